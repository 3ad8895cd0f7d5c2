/* heat.c - 256-colour backgrounds from pale yellow to red under black text: legible on dark and light terminals. */
#include "clients/cli/heat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/terminal.h"

enum { LEVELS = 7, BAR = 30, NUMBERS = 19, QUOTES = 4, LEAST_PIECE = 8 };
static const int colours[LEVELS + 1] = {0, 230, 229, 222, 215, 209, 203, 196};

/* Bytes of the character that completes a run of tokens; of text that ends within a character, the most there are. */
static size_t first_character(const char *string)
{
	unsigned char lead = (unsigned char)*string;

	return lead >= 0xf0 || lead == 0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
}

static void add_piece(heat *h, const char *string, const json_t *weights, size_t from, size_t to)
{
	double weight = 0;

	for (size_t i = from; i <= to; i++)
		weight += json_number_value(json_array_get(weights, i));
	h->pieces[h->n++] = (heat_piece){string, weight, (long long)to};
	h->max = weight > h->max ? weight : h->max;
}

bool heat_new(heat *h, const json_t *tokens, const json_t *weights)
{
	size_t n = json_array_size(weights), from = 0;

	*h = (heat){0};
	if (n > json_array_size(tokens))
		return false;
	h->pieces = calloc(n ? n : 1, sizeof(*h->pieces));
	if (!h->pieces)
		return false;
	for (size_t i = 0; i < n; i++) {
		const char *string = json_string_value(json_object_get(json_array_get(tokens, i), "text"));

		string = string ? string : "";
		if (!*string && i + 1 < n)
			continue;
		while (i - from >= first_character(string)) {
			add_piece(h, "", weights, from, from);
			from++;
		}
		add_piece(h, string, weights, from, i);
		from = i + 1;
	}
	return true;
}

void heat_free(heat *h)
{
	free(h->pieces);
	*h = (heat){0};
}

static int colour_of(const heat *h, double weight)
{
	return colours[h->max > 0 && weight > 0 ? (int)fmin(LEVELS, ceil(LEVELS * sqrt(weight / h->max))) : 0];
}

/* colour 0: none; width 0: any. Returns the columns written. */
static int write_coloured(text *out, int colour, const char *string, int width)
{
	text shown = {0};

	terminal_escape(&shown, string, strlen(string), false);
	int columns = terminal_columns(text_get(&shown), shown.used);
	if (colour > 0)
		text_format(out, "\x1b[38;5;16;48;5;%dm", colour);
	terminal_cut(out, text_get(&shown), shown.used, width > 0 ? width : columns);
	if (colour > 0)
		text_string(out, "\x1b[0m");
	text_free(&shown);
	return columns;
}

static void write_legend(const heat *h, int width, text *out)
{
	int used = 0;

	text_string(out, "\n\n");
	for (int level = 0; level <= LEVELS; level++) {
		char label[32] = "weight  ";

		if (level > 0)
			snprintf(label, sizeof(label), " ≤%.2g ", h->max * level * level / (LEVELS * LEVELS));
		int columns = terminal_columns(label, strlen(label));
		if (width > 0 && used > 0 && used + columns > width) {
			text_string(out, "\n");
			used = 0;
		}
		used += write_coloured(out, colours[level], label, 0);
	}
	text_string(out, "\n");
}

void heat_map(const heat *h, int width, text *out)
{
	for (size_t i = 0; i < h->n; i++) {
		const char *string = h->pieces[i].text;
		bool newline = strcmp(string, "\n") == 0;

		write_coloured(out, colour_of(h, h->pieces[i].weight), string, 0);
		if (newline)
			text_string(out, "\n");
	}
	write_legend(h, width, out);
}

static int heavier(const void *a, const void *b)
{
	const heat_piece *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

void heat_top(const heat *h, size_t k, bool colour, int width, text *out)
{
	/* "%8.4f  %7lld  ", the bar, "  ", and the piece in quotes */
	int room = width - NUMBERS - QUOTES,
	    bar_width = width > 0 && room - LEAST_PIECE < BAR ? room - LEAST_PIECE : BAR;
	bar_width = bar_width < 0 ? 0 : bar_width;
	int piece = width > 0 ? room - bar_width : 0;
	size_t n = h->n < k ? h->n : k;
	heat_piece *sorted = malloc((h->n ? h->n : 1) * sizeof(*sorted));

	if (!sorted)
		return;
	memcpy(sorted, h->pieces, h->n * sizeof(*sorted));
	qsort(sorted, h->n, sizeof(*sorted), heavier);
	for (size_t i = 0; i < n; i++) {
		const heat_piece *p = &sorted[i];
		int bar = h->max > 0 ? (int)lround(bar_width * p->weight / h->max) : 0;

		text_format(out, "%8.4f  %7lld  ", p->weight, p->position);
		for (int b = 0; b < bar_width; b++)
			text_string(out, b < bar ? "#" : " ");
		text_string(out, "  '");
		write_coloured(out, colour ? colour_of(h, p->weight) : 0, p->text, piece);
		text_string(out, "'\n");
	}
	free(sorted);
}

void heat_show(const heat *h, size_t k, bool colour, int width, text *out)
{
	if (colour) {
		heat_map(h, width, out);
		text_string(out, "\n");
	}
	text_string(out, "  weight  position\n");
	heat_top(h, k, colour, width, out);
}
