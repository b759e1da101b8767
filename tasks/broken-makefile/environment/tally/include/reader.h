#ifndef READER_H
#define READER_H

#include <stddef.h>
#include <stdio.h>

/* Reads numbers until the end of `in`; returns how many were stored, at most `room`. */
size_t read_numbers(FILE *in, double *numbers, size_t room);

#endif
