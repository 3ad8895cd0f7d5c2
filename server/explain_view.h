/* explain_view.h - what is shown of an explanation first: one number for each token, and the words that go with them.
 *
 * The signed parts of a score where there are any, contributions or another method's, else the weights of the
 * aggregate, else those of the first row. Of a span of predictions it is the last. Of parts the last token read, the
 * reader, is apart: much of the score comes by its own path, so it has a line among the sums, no place among the top
 * tokens, and no part in the scale of colours.
 */
#ifndef SERVER_EXPLAIN_VIEW_H
#define SERVER_EXPLAIN_VIEW_H

#include <stdbool.h>

#include <jansson.h>

#include "server/buffer.h"

typedef struct explain_view {
	const json_t *tokens; /* of the explanation, borrowed */
	const json_t *parts;  /* `contributions` or `attribution`, borrowed; NULL: weights are shown */
	const json_t *method; /* of the parts, borrowed; NULL: contributions */
	size_t n;             /* tokens */
	size_t position;      /* the one whose prediction is explained */
	size_t reader;        /* n: none is apart */
	double *value;        /* [n] signed logits, or weights of 0 to 1 */
	double max;           /* the largest |value| of all but the reader */
	char name[96];        /* which weights */
} explain_view;

/* False when out of memory. What is malformed is left out. Borrows from the explanation. */
bool explain_view_init(explain_view *v, const json_t *explanation);
/* The same of the tokens of its source; n 0: it has none. */
bool explain_view_init_source(explain_view *v, const json_t *explanation);
void explain_view_fini(explain_view *v);
/* One scale of colours for both. */
void explain_view_share_scale(explain_view *a, explain_view *b);

/* value / max, at most 1 and at least -1. */
double explain_view_heat(const explain_view *v, size_t i);
/* How large item i of a context is; 0: it is in no list. */
typedef double explain_view_size(const void *context, size_t i);
/* The k largest of `count` items, the largest first, of equal ones the earlier. Returns how many. */
size_t explain_view_largest(explain_view_size *size, const void *context, size_t count, size_t *top, size_t k);
/* The k tokens of the largest |value|, the largest first, without the reader and without zeros. Returns how many. */
size_t explain_view_top(const explain_view *v, size_t *top, size_t k);
/* Append the text of a token, visibly; the columns that it takes. */
size_t explain_view_token(const explain_view *v, size_t i, bool breaks, buffer *out);
/* Does the text of a token end a line? */
bool explain_view_breaks(const explain_view *v, size_t i);
/* Append a value with its unit, "+0.1234" or "12.34 %". */
void explain_view_value(const explain_view *v, double value, buffer *out);
/* Append how likely the explained output is, where there is one: "Its logit is 1.2, its probability 34 %." */
void explain_view_likelihood(const explain_view *v, buffer *out);
/* Append what is explained, in words and as markup: "why “x”, against all other options", with the method where it is
 * not contributions; of weights their name. */
void explain_view_title(const explain_view *v, buffer *out);
/* A number of the parts' `sums`, or another member of them; 0 where there is none. */
double explain_view_sum(const explain_view *v, const char *name);
double explain_view_number(const explain_view *v, const char *name);

#endif
