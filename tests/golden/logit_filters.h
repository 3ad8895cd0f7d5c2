/* logit_filters.h - the filters of x-transformers (1.6.0) on logits, in that library's forms.
 *
 * They are for comparisons with it. The service samples with other forms of the same filters
 * (engine/tensor/ops/sample.h): a number of tokens, a share, a ratio, always of one row, after the temperature.
 *
 * A row is changed in place; removed logits become -inf. Probabilities are the softmax of the row, in double. Logits
 * are finite, rows not empty. Equal logits rank by index. */
#ifndef TESTS_GOLDEN_LOGIT_FILTERS_H
#define TESTS_GOLDEN_LOGIT_FILTERS_H

#include <stdint.h>

/* Return the number of n logits that top-k keeps: ⌈(1 - threshold) · n⌉ in double. Rounding makes it one larger for
 * some thresholds (0.7 keeps 4 of 10). threshold: 0 … 1. */
int64_t logit_filter_count(double threshold, int64_t n);

/* Space of a filter that sorts: n of these. */
typedef struct logit_rank {
	double logit;
	int64_t at;
} logit_rank;

/* Leave the logit_filter_count(threshold, n) largest. */
void logit_filter_top_k(float *row, int64_t n, double threshold, logit_rank *space);

/* Remove every logit before which, by rank, the probabilities add up to more than 1 - threshold: a threshold of 0.9
 * leaves the tokens that hold the first tenth. The largest stays. */
void logit_filter_top_p(float *row, int64_t n, double threshold, logit_rank *space);

/* Remove logits whose probability is below ratio · pmax^power, pmax the largest probability of all rows; those that
 * stay become 1, that is equally likely. With several rows a row may lose all of its logits. */
void logit_filter_top_a(float *logits, int64_t rows, int64_t n, double ratio, double power);

/* row = softmax(row / temperature); 0 where the row is -inf. At least one logit is finite. */
void logit_filter_softmax(float *row, int64_t n, double temperature);

#endif
