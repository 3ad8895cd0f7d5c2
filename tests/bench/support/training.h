/* training.h - steps of training on random tokens, for measuring programs. A step is the trainer's work for one batch:
 * forward, loss, backward, the gradients' norm, AdamW. Everything here exits the program on failure. */
#ifndef TESTS_BENCH_SUPPORT_TRAINING_H
#define TESTS_BENCH_SUPPORT_TRAINING_H

#include "engine/train/optimizer.h"
#include "tests/bench/support/bench.h"

typedef struct training {
	model *model;
	optimizer *optimizer;
	plan *plan;
	int64_t tokens; /* tokens of a step */
} training;

typedef struct training_shape {
	int64_t batch, length;
	bool bf16;      /* activations, and the weights in products */
	bool recompute; /* activations are computed again in the backward pass */
} training_shape;

/* Train a model of this configuration on b, which outlives t; some steps have been made, so that plans are recorded. */
void training_open(training *t, backend *b, const char *config, const training_shape *way);
void training_close(training *t);

/* Forward and backward of a batch; the first thing that is issued before a number of steps. */
void training_batch(training *t);
/* Run the update after a batch, the next batch unless this is the last, and then read the update's norm. As in the
 * trainer, the numbers of a step on a device are read while the next batch is computed. */
void training_step(training *t, bool last);
/* FLOPs of the step's matrix products, two per multiply-add; attention is not counted. */
double training_flops(const training *t);

#endif
