/* explain_view.h - the first view of an explanation: one number for each token, and the words that describe it.
 *
 * It shows the signed parts of a score if there are any, of contributions or another method. Otherwise it shows the
 * weights of the aggregate, or else those of the first row. For a span of predictions it shows the last one. In signed
 * parts, the last token read (the reader) is separate, since much of the score comes through its own path. It has a
 * line among the sums, no place among the top tokens, and does not affect the colour scale. */
#ifndef SERVER_EXPLAIN_VIEW_H
#define SERVER_EXPLAIN_VIEW_H

#include <stdbool.h>

#include <jansson.h>

#include "server/buffer.h"

typedef struct explain_view {
	const json_t *tokens; /* the explanation's, borrowed */
	const json_t *parts;  /* `contributions` or `attribution`, borrowed; NULL: weights are shown */
	const json_t *method; /* method of the parts, borrowed; NULL: contributions */
	size_t n;             /* number of tokens */
	size_t position;      /* position whose prediction is explained */
	size_t reader;        /* index of the reader; n: none is separate */
	double *value;        /* [n] signed logits, or weights of 0 to 1 */
	double max;           /* the largest |value| except the reader's */
	char name[96];        /* name of the weights */
} explain_view;

/* Malformed parts are left out. Borrows from the explanation. False when out of memory. */
bool explain_view_init(explain_view *v, const json_t *explanation);
/* A view of the source's tokens; n is 0 if the explanation has no source. */
bool explain_view_init_source(explain_view *v, const json_t *explanation);
void explain_view_fini(explain_view *v);
/* Give both views one colour scale. */
void explain_view_share_scale(explain_view *a, explain_view *b);

/* value / max, from -1 to 1. */
double explain_view_heat(const explain_view *v, size_t i);
/* Append the text of a token in visible form; returns the number of columns. */
size_t explain_view_token(const explain_view *v, size_t i, bool breaks, buffer *out);
/* True if the token's text ends a line. */
bool explain_view_breaks(const explain_view *v, size_t i);
/* Append a value with its unit, "+0.1234" or "12.34 %". */
void explain_view_value(const explain_view *v, double value, buffer *out);
/* Append a title as markup: "why “x”, against all other options", and the method unless it is contributions; for
 * weights, their name. */
void explain_view_title(const explain_view *v, buffer *out);
/* A number of the parts' `sums`, or another member of them; 0 where there is none. */
double explain_view_sum(const explain_view *v, const char *name);
double explain_view_number(const explain_view *v, const char *name);

/* explain_svg.c: append a picture without network: the explained output, the text with a coloured box around each token, and the scale. A negative
 * value is blue with a dotted line below, a positive one orange with a solid line. */
void explain_svg_write(const json_t *explanation, buffer *out);

#endif
