/* compare.h - two explanations side by side: which tokens are the same, and by how much their numbers differ.
 *
 * compare_join makes one answer of two: the first, with the second as its member `compare`, which has a member
 * `same_tokens`, and, where both have a source, `same_source_tokens`. The same tokens are a longest common subsequence
 * of the texts of the tokens. compare_view reads such an answer as columns, from left to right: a column has a token of
 * the first, of the second, or of both. A column with both has the same token twice, or two tokens that differ and
 * stand between the same neighbours. */
#ifndef SERVER_COMPARE_H
#define SERVER_COMPARE_H

#include "server/explain_view.h"

typedef struct compare_column {
	size_t first, second; /* tokens; n of the view: none */
	bool same;            /* one token, with two numbers that can be compared */
} compare_column;

typedef struct compare_view {
	explain_view first, second; /* their `max` is that of both, where both have numbers of the same kind */
	const json_t *model[2];
	bool same_target; /* both have numbers for the same output */
	compare_column *columns;
	size_t n;
} compare_view;

/* Both are stolen. NULL when out of memory. */
json_t *compare_join(json_t *first, json_t *second);

/* False when out of memory. Borrows from the answer. */
bool compare_view_init(compare_view *v, const json_t *answer);
void compare_view_fini(compare_view *v);

/* Of a column whose tokens are the same: the second number less the first. */
double compare_difference(const compare_view *v, const compare_column *column);
/* The same on the scale of both, at most 1 and at least -1. */
double compare_heat(const compare_view *v, const compare_column *column);
/* Append a difference with its unit: "+0.1234", or of weights "+1.20 %". */
void compare_value(const compare_view *v, double difference, buffer *out);
/* Append what a side is, as markup: its model and what is explained. */
void compare_title(const compare_view *v, bool second, buffer *out);
/* A line ends behind the column. */
bool compare_breaks(const compare_view *v, const compare_column *column);
/* The k columns with the largest differences, the largest first, without zeros and without the readers. Returns how
 * many. */
size_t compare_top(const compare_view *v, size_t *top, size_t k);
/* The k columns without a difference that have the largest numbers, the largest first; readers and zeros count, too.
 * Returns how many: 0 if one side has contributions and the other weights. */
size_t compare_top_unmatched(const compare_view *v, size_t *top, size_t k);

#endif
