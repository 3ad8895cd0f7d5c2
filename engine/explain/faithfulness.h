/* faithfulness.h - how well the order in which a method ranks tokens fits what happens when they are removed.
 *
 * Of a sequence all n tokens but one are ranked: the reader, at which the target is predicted, cannot be removed. The
 * reader is the last token, or, where tokens on both sides are read, any one; a source's tokens stand in front of those
 * that a decoder reads. An order is n numbers, the largest first, of equal ones the earlier token. From the orders
 * follow sets of tokens to remove (faithfulness_write_sets); from what the model says of its target without each set,
 * the metrics (faithfulness_measure), and from those of many texts means with intervals (faithfulness_estimate).
 *
 * With f(S) the log-probability of the target when the tokens S are removed, f = f({}), T_k the first k tokens of the
 * order, A all n tokens and k(q) = ⌈q n⌉:
 *
 *   comprehensiveness    f - f(T_k), k = k(fraction)                              DeYoung et al. 2020
 *   sufficiency          f - f(A \ T_k)
 *   deletion_auc         mean of f(T_x) over 0 <= x <= n, trapezoids through grid + 1 points    Petsiuk et al. 2018
 *   insertion_auc        mean of f(A \ T_x) likewise
 *   normalised_aopc      (a - min) / (max - min) of a = f - deletion_auc over all orders at hand and their reverses;
 *                        Edin et al. 2025 search for the bounds, here they are those of the orders that are known
 *   kendall_tau          tau-b of the numbers and f - f({j})
 *   soft_…               f - mean of f(S) over draws: token j is in S with probability |number j| / max |number|
 *                        (soft_sufficiency: one less that); after Zhao and Aletras 2023, here for whole tokens
 *   far_drop             f - f(S), S the first k(1/20) of the tokens at a distance of `far` and more from the reader
 *
 * The reverse of an order needs no sets of its own: what the one removes, the other keeps. Pure functions; any thread.
 */
#ifndef ENGINE_EXPLAIN_FAITHFULNESS_H
#define ENGINE_EXPLAIN_FAITHFULNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { FAITHFULNESS_MAX_FRACTIONS = 20, FAITHFULNESS_MAX_GRID = 100, FAITHFULNESS_MAX_COUNTS = 242 };

typedef struct faithfulness_options {
	int n_fractions;
	double fractions[FAITHFULNESS_MAX_FRACTIONS]; /* above 0, at most 1 */
	int grid;                                     /* 2 to FAITHFULNESS_MAX_GRID */
	int soft;                                     /* draws; 0: no soft metrics */
	int64_t far;
	uint64_t seed;
} faithfulness_options;

typedef struct faithfulness_metric {
	const char *name;
	double fraction; /* 0: it has none */
	bool higher;     /* is better */
} faithfulness_metric;

/* How many numbers an order gets, and what number i is. */
int faithfulness_metrics(const faithfulness_options *o);
faithfulness_metric faithfulness_metric_at(const faithfulness_options *o, int i);

/* One prediction: which sets are removed. */
typedef struct faithfulness {
	const faithfulness_options *options; /* the caller's */
	int64_t n;                           /* tokens that are ranked, at least 1 */
	int64_t reader;                      /* of which so many stand before the reader */
	uint32_t text;                       /* of the draws */
	int n_counts;
	int64_t counts[FAITHFULNESS_MAX_COUNTS]; /* between 0 and n, rising; with k there is n - k */
	int64_t far;                             /* tokens are far: so many, */
	int64_t n_far;                           /* of which so many are removed */
} faithfulness;

void faithfulness_init(faithfulness *f, const faithfulness_options *o, int64_t n, int64_t reader, uint32_t text);
/* Sets for so many orders. */
int64_t faithfulness_sets(const faithfulness *f, int orders);
/* The numbers of the baselines [n]. Recency: the nearer to the reader, the larger. */
void faithfulness_random(const faithfulness *f, double *numbers);
void faithfulness_recency(const faithfulness *f, double *numbers);
/* absent [sets][n + 1], the reader in its place among them, of numbers [orders][n], which are finite. STATUS_NOMEM. */
status faithfulness_write_sets(const faithfulness *f, const double *numbers, int orders, bool *absent);

/* What comes out of one prediction; the caller's memory. NAN: the metric is not there. */
typedef struct faithfulness_values {
	double *values, *reverse;     /* [orders][metrics] */
	double *deletion, *insertion; /* [orders][grid + 1] */
	double empty;                 /* f(A) */
} faithfulness_values;
/* whole: f; singles [n]: f({j}); without [sets]. */
void faithfulness_measure(const faithfulness *f, const double *numbers, int orders, double whole, const double *singles,
                          const double *without, faithfulness_values *out);

/* tau-b of x and y [n]; NAN where all of one are equal. O(n²). */
double faithfulness_kendall(const double *x, const double *y, int64_t n);

typedef struct faithfulness_interval {
	double mean, low, high; /* NAN: of nothing; low and high also of one group, which says nothing of others */
	int64_t count;
} faithfulness_interval;
/* Groups of which a bootstrap sample consists: draws [samples][groups]. */
void faithfulness_draw(uint64_t seed, int64_t samples, int64_t groups, uint32_t *draws);
/* Mean of all values, of which group g has counts[g] with the sum sums[g], and the interval between the percentiles of
 * the means of the samples, interpolated linearly; a sample of empty groups does not count. scratch [samples]. */
faithfulness_interval faithfulness_estimate(const double *sums, const int64_t *counts, int64_t groups,
                                            const uint32_t *draws, int64_t samples, double confidence, double *scratch);

#endif
