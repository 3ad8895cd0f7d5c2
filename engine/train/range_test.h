/* range_test.h - the learning rate that a range test suggests. Its rate rises by a constant factor each step (Smith
 * 2017, with the smoothed loss and the steepest point of fastai). The loss is smoothed exponentially, without bias. */
#ifndef ENGINE_TRAIN_RANGE_TEST_H
#define ENGINE_TRAIN_RANGE_TEST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct range_test {
	double mean;          /* Σ β^k loss (1 - β), not divided by `weight` */
	double weight;        /* 1 - β^steps */
	double first, lowest; /* smoothed losses */
	double fall, rate;    /* largest fall of the smoothed loss in a step, and the rate of that step; 0: none so
	                       * far */
	double ended;         /* 1: the loss has risen too far or was not finite */
} range_test;

/* Add a step; no effect after the end. */
void range_test_take(range_test *t, int64_t step, double rate, double loss);

#endif
