/* range_test.h - what a run whose rate rises by the same factor each step says of the rate (Smith 2017, with the
 * smoothed loss and the steepest point of fastai). The loss is smoothed exponentially, without bias. */
#ifndef ENGINE_TRAIN_RANGE_TEST_H
#define ENGINE_TRAIN_RANGE_TEST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct range_test {
	double mean;          /* Σ β^k loss (1 - β), not yet divided by `weight` */
	double weight;        /* 1 - β^steps */
	double first, lowest; /* smoothed losses */
	double fall, rate;    /* the largest fall of the smoothed loss in a step, and that step's rate; 0: none yet */
	double ended;         /* 1: the loss has risen too far, or was not finite */
} range_test;

/* Take in a step. After the end nothing changes. */
void range_test_take(range_test *t, int64_t step, double rate, double loss);

#endif
