/* faithfulness.h - measures how well a method's ranking of tokens predicts the effect of removing them.
 *
 * All n tokens of a sequence are ranked except the reader, at which the target is predicted and which cannot be
 * removed. The reader is the last token or, in models that read both directions, any token. A source's tokens precede
 * those of the decoder. An order is n numbers, largest first, ties by earlier token. faithfulness_write_sets derives
 * the sets of tokens to remove. From the model's score of the target without each set, faithfulness_measure computes
 * the metrics. faithfulness_estimate gives their means over many texts with intervals.
 *
 * Notation: f(S) is the log-probability of the target when the tokens S are removed, and f = f({}). T_k is the first k
 * tokens of the order, A is all n tokens, and k(q) = ⌈q n⌉.
 *
 *   comprehensiveness    f - f(T_k), k = k(fraction)                              DeYoung et al. 2020
 *   sufficiency          f - f(A \ T_k)
 *   deletion_auc         mean of f(T_x) over 0 <= x <= n, trapezoids through
 *                        grid + 1 points                                          Petsiuk et al. 2018
 *   insertion_auc        mean of f(A \ T_x) likewise
 *   normalised_aopc      (a - min) / (max - min) of a = f - deletion_auc over all given orders and their reverses
 *                        (Edin et al. 2025 search for the bounds; here the given orders are the bounds)
 *   kendall_tau          tau-b of the numbers and f - f({j})
 *   soft_…               f - mean of f(S) over draws: token j is in S with probability |number j| / max |number|
 *                        (soft_sufficiency: one minus that); after Zhao and Aletras 2023, for whole tokens
 *   far_drop             f - f(S), S the first k(1/20) of the tokens at a distance of `far` or more from the reader
 *
 * The reverse of an order needs no sets: what one removes, the other keeps. Pure functions; any thread. */
#ifndef ENGINE_EXPLAIN_FAITHFULNESS_H
#define ENGINE_EXPLAIN_FAITHFULNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { FAITHFULNESS_MAX_FRACTIONS = 20, FAITHFULNESS_MAX_GRID = 100, FAITHFULNESS_MAX_COUNTS = 242 };

typedef struct faithfulness_options {
	int n_fractions;
	double fractions[FAITHFULNESS_MAX_FRACTIONS]; /* > 0 and ≤ 1 */
	int grid;                                     /* 2 to FAITHFULNESS_MAX_GRID */
	int soft;                                     /* number of draws; 0: no soft metrics */
	int64_t far;
	uint64_t seed;
} faithfulness_options;

typedef struct faithfulness_metric {
	const char *name;
	double fraction; /* 0: not a metric of a fraction */
	bool higher;     /* true if a higher value is better */
} faithfulness_metric;

/* Number of metrics of an order, and metric i. */
int faithfulness_metrics(const faithfulness_options *o);
faithfulness_metric faithfulness_metric_at(const faithfulness_options *o, int i);

/* One prediction: its tokens and the sets to remove. */
typedef struct faithfulness {
	const faithfulness_options *options; /* borrowed */
	int64_t n;                           /* ranked tokens, at least 1 */
	int64_t reader;                      /* ranked tokens before the reader */
	uint32_t text;                       /* selects the random draws */
	int n_counts;
	int64_t counts[FAITHFULNESS_MAX_COUNTS]; /* rising, between 0 and n; if k is included, n - k is */
	int64_t far;                             /* number of far tokens, */
	int64_t n_far;                           /* and how many of them are removed */
} faithfulness;

void faithfulness_init(faithfulness *f, const faithfulness_options *o, int64_t n, int64_t reader, uint32_t text);
/* Return the number of sets for `orders` orders. */
int64_t faithfulness_sets(const faithfulness *f, int orders);
/* Write the numbers of the baselines [n]. Recency: larger is nearer to the reader. */
void faithfulness_random(const faithfulness *f, double *numbers);
void faithfulness_recency(const faithfulness *f, double *numbers);
/* Write absent [sets][n + 1], with the reader at its index, for finite numbers [orders][n]. STATUS_NOMEM. */
status faithfulness_write_sets(const faithfulness *f, const double *numbers, int orders, bool *absent);

/* Results of one prediction; the caller's memory. NAN: the metric does not exist. */
typedef struct faithfulness_values {
	double *values, *reverse;     /* [orders][metrics] */
	double *deletion, *insertion; /* [orders][grid + 1] */
	double empty;                 /* f(A) */
} faithfulness_values;
/* Compute the metrics. whole: f; singles [n]: f({j}); without [sets]: the score without each set. */
void faithfulness_measure(const faithfulness *f, const double *numbers, int orders, double whole, const double *singles,
                          const double *without, faithfulness_values *out);

/* tau-b of x and y [n]; NAN if all of one are equal. O(n²). */
double faithfulness_kendall(const double *x, const double *y, int64_t n);

typedef struct faithfulness_interval {
	double mean, low, high; /* NAN: no values; low and high also for a single group, from which no spread follows */
	int64_t count;
} faithfulness_interval;
/* Write the groups that each bootstrap sample consists of: draws [samples][groups]. */
void faithfulness_draw(uint64_t seed, int64_t samples, int64_t groups, uint32_t *draws);
/* Return the mean of all values, where group g has counts[g] values with the sum sums[g], and the interval between two
 * percentiles of the samples' means. Percentiles are interpolated linearly; samples of empty groups are skipped.
 * scratch [samples]. */
faithfulness_interval faithfulness_estimate(const double *sums, const int64_t *counts, int64_t groups,
                                            const uint32_t *draws, int64_t samples, double confidence, double *scratch);

#endif
