/* heat.c - 256-colour backgrounds under black text, legible on dark and light terminals: from pale yellow to red, and
 * of what is negative from pale to full blue. */
#include "clients/cli/heat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/terminal.h"

enum { LEVELS = 7, BAR = 30, NUMBERS = 19, QUOTES = 4, LEAST_PIECE = 8 };
static const int colours[2][LEVELS + 1] = {{0, 230, 229, 222, 215, 209, 203, 196},
                                           {0, 195, 159, 153, 117, 111, 75, 69}};

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
}

/* Pieces of the tokens from `from` to before `end`. */
static void add_pieces(heat *h, const json_t *tokens, const json_t *weights, size_t from, size_t end)
{
	for (size_t i = from; i < end; i++) {
		const char *string = json_string_value(json_object_get(json_array_get(tokens, i), "text"));

		string = string ? string : "";
		if (!*string && i + 1 < end)
			continue;
		while (i - from >= first_character(string)) {
			add_piece(h, "", weights, from, from);
			from++;
		}
		add_piece(h, string, weights, from, i);
		from = i + 1;
	}
}

bool heat_new_signed(heat *h, const json_t *tokens, const json_t *numbers, bool reader)
{
	size_t n = json_array_size(numbers), first = reader && n > 0 ? n - 1 : n;

	*h = (heat){.is_signed = true, .unit = "logits"};
	if (n > json_array_size(tokens))
		return false;
	h->pieces = calloc(n ? n : 1, sizeof(*h->pieces));
	if (!h->pieces)
		return false;
	add_pieces(h, tokens, numbers, 0, first);
	h->listed = h->n;
	for (size_t i = 0; i < h->listed; i++)
		h->max = fmax(h->max, fabs(h->pieces[i].weight));
	add_pieces(h, tokens, numbers, first, n);
	return true;
}

bool heat_new(heat *h, const json_t *tokens, const json_t *weights)
{
	bool made = heat_new_signed(h, tokens, weights, false);

	h->is_signed = false;
	h->unit = "weight";
	return made;
}

void heat_free(heat *h)
{
	free(h->pieces);
	*h = (heat){0};
}

static int level_of(const heat *h, double weight)
{
	double share = h->max > 0 ? fmin(1, fabs(weight) / h->max) : 0;
	int level = (int)ceil(LEVELS * sqrt(share));

	return weight < 0 ? -level : level;
}

/* level 0: no colour; width 0: any. Returns the columns written. */
static int write_coloured(text *out, int level, const char *string, int width)
{
	text shown = {0};

	terminal_escape(&shown, string, strlen(string), false);
	int columns = terminal_columns(text_get(&shown), shown.used);
	if (level != 0)
		text_format(out, "\x1b[%s38;5;16;48;5;%dm", level < 0 ? "4;" : "", colours[level < 0][abs(level)]);
	terminal_cut(out, text_get(&shown), shown.used, width > 0 ? width : columns);
	if (level != 0)
		text_string(out, "\x1b[0m");
	text_free(&shown);
	return columns;
}

static void write_legend(const heat *h, int width, text *out)
{
	int used = terminal_columns(h->unit, strlen(h->unit)) + 2;

	text_format(out, "\n\n%s  ", h->unit);
	for (int level = h->is_signed ? -LEVELS : 1; level <= LEVELS; level += h->is_signed ? 2 : 1) {
		double bound = h->max * level * level / (LEVELS * LEVELS);
		char label[32];

		snprintf(label, sizeof(label), h->is_signed ? " %+.2g " : " ≤%.2g ", level < 0 ? -bound : bound);
		int columns = terminal_columns(label, strlen(label));
		if (width > 0 && used + columns > width) {
			text_string(out, "\n");
			used = 0;
		}
		used += write_coloured(out, level, label, 0);
	}
	text_string(out, "\n");
}

void heat_map(const heat *h, int width, text *out)
{
	for (size_t i = 0; i < h->n; i++) {
		const char *string = h->pieces[i].text;
		bool newline = strcmp(string, "\n") == 0;

		write_coloured(out, level_of(h, h->pieces[i].weight), string, 0);
		if (newline)
			text_string(out, "\n");
	}
	write_legend(h, width, out);
}

static int heavier(const void *a, const void *b)
{
	const heat_piece *x = a, *y = b;

	if (fabs(x->weight) != fabs(y->weight))
		return fabs(x->weight) > fabs(y->weight) ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

void heat_top(const heat *h, size_t k, bool colour, int width, text *out)
{
	/* "%8.4f  %7lld  ", the bar, "  ", and the piece in quotes */
	int room = width - NUMBERS - QUOTES,
	    bar_width = width > 0 && room - LEAST_PIECE < BAR ? room - LEAST_PIECE : BAR;
	bar_width = bar_width < 0 ? 0 : bar_width;
	int piece = width > 0 ? room - bar_width : 0;
	size_t n = h->listed < k ? h->listed : k;
	heat_piece *sorted = malloc((h->n ? h->n : 1) * sizeof(*sorted));

	if (!sorted)
		return;
	memcpy(sorted, h->pieces, h->listed * sizeof(*sorted));
	qsort(sorted, h->listed, sizeof(*sorted), heavier);
	for (size_t i = 0; i < n && sorted[i].weight != 0; i++) {
		const heat_piece *p = &sorted[i];
		int bar = h->max > 0 ? (int)lround(bar_width * fabs(p->weight) / h->max) : 0;

		text_format(out, h->is_signed ? "%+8.4f  %7lld  " : "%8.4f  %7lld  ", p->weight, p->position);
		for (int b = 0; b < bar_width; b++)
			text_string(out, b >= bar ? " " : !h->is_signed ? "#" : p->weight < 0 ? "-" : "+");
		text_string(out, "  '");
		write_coloured(out, colour ? level_of(h, p->weight) : 0, p->text, piece);
		text_string(out, "'\n");
	}
	free(sorted);
}

void heat_list(const heat *h, size_t k, bool colour, int width, text *out)
{
	text_format(out, "  %s  position\n", h->unit);
	heat_top(h, k, colour, width, out);
}

void heat_show(const heat *h, size_t k, bool colour, int width, text *out)
{
	if (colour) {
		heat_map(h, width, out);
		text_string(out, "\n");
	}
	heat_list(h, k, colour, width, out);
}
