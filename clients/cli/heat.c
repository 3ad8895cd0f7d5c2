/* heat.c - 256-colour backgrounds from pale yellow to red under black text: legible on dark and light terminals. */
#include "clients/cli/heat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/terminal.h"

enum { LEVELS = 7, BAR = 30 };
static const int colours[LEVELS + 1] = {0, 230, 229, 222, 215, 209, 203, 196};

bool heat_new(heat *h, const json_t *tokens, const json_t *weights)
{
	size_t n = json_array_size(weights);
	double held = 0;

	*h = (heat){0};
	if (n > json_array_size(tokens))
		return false;
	h->pieces = calloc(n ? n : 1, sizeof(*h->pieces));
	if (!h->pieces)
		return false;
	for (size_t i = 0; i < n; i++) {
		const char *string = json_string_value(json_object_get(json_array_get(tokens, i), "text"));

		held += json_number_value(json_array_get(weights, i));
		if ((!string || !*string) && i + 1 < n)
			continue;
		h->pieces[h->n++] = (heat_piece){string ? string : "", held, (long long)i};
		h->max = held > h->max ? held : h->max;
		held = 0;
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

/* colour 0: none */
static void write_coloured(text *out, int colour, const char *string, size_t n)
{
	if (colour > 0)
		text_format(out, "\x1b[38;5;16;48;5;%dm", colour);
	terminal_escape(out, string, n, false);
	if (colour > 0)
		text_string(out, "\x1b[0m");
}

void heat_map(const heat *h, text *out)
{
	for (size_t i = 0; i < h->n; i++) {
		const char *string = h->pieces[i].text;
		bool newline = strcmp(string, "\n") == 0;

		write_coloured(out, colour_of(h, h->pieces[i].weight), string, strlen(string));
		if (newline)
			text_string(out, "\n");
	}
	text_string(out, "\n\nweight  ");
	for (int level = 1; level <= LEVELS; level++) {
		char label[32];

		snprintf(label, sizeof(label), " ≤%.2g ", h->max * level * level / (LEVELS * LEVELS));
		write_coloured(out, colours[level], label, strlen(label));
	}
	text_string(out, "\n");
}

static int heavier(const void *a, const void *b)
{
	const heat_piece *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

void heat_top(const heat *h, size_t k, bool colour, text *out)
{
	size_t n = h->n < k ? h->n : k;
	heat_piece *sorted = malloc((h->n ? h->n : 1) * sizeof(*sorted));

	if (!sorted)
		return;
	memcpy(sorted, h->pieces, h->n * sizeof(*sorted));
	qsort(sorted, h->n, sizeof(*sorted), heavier);
	for (size_t i = 0; i < n; i++) {
		const heat_piece *p = &sorted[i];
		int bar = h->max > 0 ? (int)lround(BAR * p->weight / h->max) : 0;

		text_format(out, "%8.4f  %7lld  ", p->weight, p->position);
		for (int b = 0; b < BAR; b++)
			text_string(out, b < bar ? "#" : " ");
		text_string(out, "  '");
		write_coloured(out, colour ? colour_of(h, p->weight) : 0, p->text, strlen(p->text));
		text_string(out, "'\n");
	}
	free(sorted);
}
