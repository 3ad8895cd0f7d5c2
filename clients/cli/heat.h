/* heat.h - a number for each token of a text, for a terminal: importance weights, or signed contributions.
 *
 * A character can be several tokens, at most one for each of its bytes; its number is the sum of theirs. A token
 * without text of its own, such as the end of a text, is a piece without text. Eight levels: level = ⌈7 √(w / max)⌉, so
 * that in a long text, where most numbers are small, small differences show. What is negative has a hue of its own and
 * is underlined. */
#ifndef CLI_HEAT_H
#define CLI_HEAT_H

#include <jansson.h>

#include "clients/cli/text.h"

typedef struct heat_piece {
	const char *text; /* UTF-8, borrowed from the JSON */
	double weight;
	long long position; /* position of its last token */
} heat_piece;

typedef struct heat {
	heat_piece *pieces;
	size_t n, listed; /* listed: number of leading pieces used for the list and the scale */
	double max;       /* maximum of |weight| */
	bool is_signed;
	const char *unit; /* for the headings: "logits" of what is signed, else "weight" */
} heat;

/* From an explanation's "tokens" and one weight per token, beginning with the first. False: out of memory, or
 * more weights than tokens. Borrows from `tokens`. */
bool heat_new(heat *h, const json_t *tokens, const json_t *weights);
/* Like heat_new, for signed numbers. reader: the last token is a piece by itself, in the map only. */
bool heat_new_signed(heat *h, const json_t *tokens, const json_t *numbers, bool reader);
void heat_free(heat *h);

/* The text with its weights as background colours, and a legend of lines of at most `width` columns (0: one line). */
void heat_map(const heat *h, int width, text *out);
/* The k pieces of the largest weights, with or without sign and without zeros, the largest first, with bars; colour as
 * in the map. Lines have at most `width` columns (0: no limit): the bar gets shorter, then the piece is cut. */
void heat_top(const heat *h, size_t k, bool colour, int width, text *out);
/* Like heat_top, with a heading. */
void heat_list(const heat *h, size_t k, bool colour, int width, text *out);
/* The map, in colour only, and the list. */
void heat_show(const heat *h, size_t k, bool colour, int width, text *out);

#endif
