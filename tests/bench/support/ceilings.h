/* ceilings.h - the ceilings of this machine, as lines of JSON, and the timing with which ops are compared with them. */
#ifndef TESTS_BENCH_SUPPORT_CEILINGS_H
#define TESTS_BENCH_SUPPORT_CEILINGS_H

#include "engine/tensor/backend.h"

/* Memory of a host backend, the caller's to release; exits the program when there is none. */
void *ceilings_memory(backend *b, size_t bytes);
/* Numbers in [-1, 1), always the same. */
void ceilings_fill(float *x, int64_t n);
/* Time call(context) until there are enough repeats, and print the end of a line: median, best and their number. */
void ceilings_time(void (*call)(void *context), void *context);
/* A line for each size of a copy and each shape of a matrix product, with one thread and with `threads`. */
void ceilings_print(backend *b, int threads);

#endif
