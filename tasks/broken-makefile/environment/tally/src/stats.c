#include "stats.h"

#include <math.h>

double mean(const double *numbers, size_t count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += numbers[i];
    return sum / count;
}

double deviation(const double *numbers, size_t count)
{
    double middle = mean(numbers, count);
    double squares = 0;

    for (size_t i = 0; i < count; i++)
        squares += pow(numbers[i] - middle, 2);
    return sqrt(squares / count);
}
