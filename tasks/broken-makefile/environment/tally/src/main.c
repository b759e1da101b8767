#include "reader.h"
#include "stats.h"

#define ROOM 100000

static double numbers[ROOM];

int main(void)
{
    size_t count = read_numbers(stdin, numbers, ROOM);

    if (count == 0) {
        fputs("tally: no numbers\n", stderr);
        return 1;
    }
    printf("count %d\n", count);
    printf("mean %.3f\n", mean(numbers, count));
    printf("deviation %.3f\n", deviation(numbers, count));
    return 0;
}
