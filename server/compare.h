/* compare.h - two explanations side by side: their common tokens, and the differences of their numbers.
 *
 * compare_join combines two answers: the first, with the second as its member `compare`. That has a member
 * `same_tokens`, and `same_source_tokens` if both have a source. Common tokens are a longest common subsequence of the
 * tokens' texts. The engine is called twice, one after the other, so a comparison takes one place among the
 * generations.
 *
 * compare_view reads such an answer as columns, from left to right. A column has a token of the first, of the second,
 * or of both. A column with both has the same token twice, or two different tokens between the same neighbours. */
#ifndef SERVER_COMPARE_H
#define SERVER_COMPARE_H

#include <jansson.h>

#include "server/buffer.h"
#include "server/explain_view.h"

typedef struct compare_column {
	size_t first, second; /* token indices; n of the view: none */
	bool same;            /* the tokens are equal and their numbers comparable */
} compare_column;

typedef struct compare_view {
	explain_view first, second; /* they share one `max` if both have numbers of the same kind */
	const json_t *model[2];
	bool same_target; /* both have numbers for the same output */
	compare_column *columns;
	size_t n;
} compare_view;

/* Combine two answers, both stolen. NULL when out of memory. */
json_t *compare_join(json_t *first, json_t *second);

/* False when out of memory. Borrows from the answer. */
bool compare_view_init(compare_view *v, const json_t *answer);
void compare_view_fini(compare_view *v);

/* The second number minus the first, for a column whose tokens are equal. */
double compare_difference(const compare_view *v, const compare_column *column);
/* The difference on the common scale, from -1 to 1. */
double compare_heat(const compare_view *v, const compare_column *column);
/* Append the title of a side as markup: its model and the explained output. */
void compare_title(const compare_view *v, bool second, buffer *out);
/* True if a line ends after the column. */
bool compare_breaks(const compare_view *v, const compare_column *column);
/* compare_svg.c: append a picture, without network, for an answer of compare_join. */
void compare_svg_write(const json_t *answer, buffer *out);

#endif
