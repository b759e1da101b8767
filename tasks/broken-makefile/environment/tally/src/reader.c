#include "reader.h"

size_t read_numbers(FILE *in, double *numbers, size_t room)
{
    size_t count = 0;

    while (count < room && fscanf(in, "%lf", &numbers[count]) == 1)
        count++;
    return count;
}
