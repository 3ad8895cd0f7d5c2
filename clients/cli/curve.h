/* curve.h - training and validation losses over the steps of a job, as lines of text.
 *
 * Memory is fixed: a bin holds the mean of the losses of `stride` steps. A step after the last bin doubles the
 * stride, and neighbouring bins are merged. At least half of the bins are therefore in use, more than a wide
 * terminal has dots. */
#ifndef CLI_CURVE_H
#define CLI_CURVE_H

#include <stdbool.h>

#include "clients/cli/text.h"

enum { CURVE_BINS = 1024, CURVE_LEAST_WIDTH = 40 };

typedef struct curve_bin {
	double losses, steps; /* sums */
	long long n;
} curve_bin;

typedef struct curve {
	long long first, last; /* steps with a loss; last 0: none yet */
	long long stride;
	curve_bin train[CURVE_BINS], valid[CURVE_BINS];
} curve;

void curve_init(curve *c);
/* Add the losses at `step`, which is at least 1. NaN: not known; one that is not finite is left out. */
void curve_add(curve *c, long long step, double train_loss, double valid_loss);
/* Append `rows` + 1 lines, each with its \n and of at most `width` columns. They show the training loss as a line of
 * braille dots (utf8) or of '*', and validation losses as 'o'. The greatest and the least loss precede the first and
 * the last row, and the first and the last step are below them. False, with nothing appended: fewer than two steps have
 * a loss, the width is below CURVE_LEAST_WIDTH, or rows is below 2. */
bool curve_draw(const curve *c, int width, int rows, bool utf8, text *out);

#endif
