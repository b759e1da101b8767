#ifndef READER_H
#define READER_H

#include <stddef.h>

double mean(const double *numbers, size_t count);

/* The population standard deviation. */
double deviation(const double *numbers, size_t count);

#endif
