/* Byte-pair encoding: of all neighbours that together are a piece, the two with the highest score (the leftmost if
 * equal) are merged, until none are left.
 *
 * No piece spans two characters that are adjacent in no piece, so the text between two such places is cut on its own.
 * This is mostly a word, whose merges are found with a heap. */
#include <string.h>

#include "engine/text/sentencepiece/sp_pieces.h"

typedef struct symbol {
	uint32_t at, bytes; /* bytes 0: merged into the one before */
	int32_t previous, next;
	bool frozen; /* user-defined: never merged */
} symbol;

typedef struct pair {
	float score;
	uint32_t bytes; /* length of both, to detect that neither has changed */
	int32_t left, right;
} pair;

/* One stretch of text on its way to pieces. */
typedef struct merging {
	sp_pieces *pieces;
	const char *text;
	symbol *symbols;
	pair *heap; /* room for three pairs a symbol: one between neighbours, two for each merge */
	size_t n_symbols, n_pairs;
} merging;

static bool before(pair a, pair b)
{
	return a.score > b.score || (a.score == b.score && a.left < b.left);
}

static void push(merging *g, pair p)
{
	size_t at = g->n_pairs++;
	for (; at > 0 && before(p, g->heap[(at - 1) / 2]); at = (at - 1) / 2)
		g->heap[at] = g->heap[(at - 1) / 2];
	g->heap[at] = p;
}

static pair pop(merging *g)
{
	pair top = g->heap[0], moved = g->heap[--g->n_pairs];
	size_t at = 0;
	for (size_t child; (child = 2 * at + 1) < g->n_pairs; at = child) {
		if (child + 1 < g->n_pairs && before(g->heap[child + 1], g->heap[child]))
			child++;
		if (!before(g->heap[child], moved))
			break;
		g->heap[at] = g->heap[child];
	}
	g->heap[at] = moved;
	return top;
}

static void consider(merging *g, int32_t left, int32_t right)
{
	if (left < 0 || right < 0 || g->symbols[left].frozen || g->symbols[right].frozen)
		return;
	uint32_t bytes = g->symbols[left].bytes + g->symbols[right].bytes;
	int32_t id = trie_find(&g->pieces->model->vocabulary, g->text + g->symbols[left].at, bytes);
	if (id >= 0)
		push(g, (pair){g->pieces->model->pieces[id].score, bytes, left, right});
}

static void merge_all(merging *g)
{
	symbol *s = g->symbols;
	for (int32_t i = 1; i < (int32_t)g->n_symbols; i++)
		consider(g, i - 1, i);
	while (g->n_pairs > 0) {
		pair p = pop(g);
		if (!s[p.left].bytes || !s[p.right].bytes || s[p.left].bytes + s[p.right].bytes != p.bytes)
			continue;
		s[p.left].bytes = p.bytes;
		s[p.left].next = s[p.right].next;
		if (s[p.right].next >= 0)
			s[s[p.right].next].previous = p.left;
		s[p.right].bytes = 0;
		consider(g, s[p.left].previous, p.left);
		consider(g, p.left, s[p.left].next);
	}
}

/* Cut `bytes` bytes at text by themselves. */
static status cut_stretch(merging *g, size_t bytes)
{
	const sp_model *m = g->pieces->model;
	merge_all(g);
	for (int32_t i = bytes ? 0 : -1; i >= 0; i = g->symbols[i].next) {
		const symbol *s = &g->symbols[i];
		int32_t id = trie_find(&m->vocabulary, g->text + s->at, s->bytes);
		TRY(sp_pieces_add(g->pieces, s->bytes, id < 0 ? m->unknown : id));
	}
	g->n_symbols = g->n_pairs = 0;
	return STATUS_OK;
}

status sp_bpe_cut(sp_pieces *p, const char *text, size_t bytes, bool last)
{
	const sp_model *m = p->model;
	size_t begin = 0, before_it = 0, at = 0, longest_symbol = m->user_defined.size ? m->longest : 1;
	symbol *symbols = sp_pieces_scratch(p, (bytes + 1) * (sizeof *symbols + 3 * sizeof(pair)));
	if (!symbols)
		return STATUS_NOMEM;
	merging g = {.pieces = p, .text = text, .symbols = symbols, .heap = (pair *)(symbols + bytes + 1)};
	for (symbol s; at < bytes && (last || bytes - at >= longest_symbol); at += s.bytes) {
		int32_t id;
		size_t n = trie_prefix(&m->user_defined, text + at, bytes - at, &id);
		bool frozen = n > 0;
		if (!frozen)
			n = sp_model_character((unsigned char)text[at], bytes - at);
		s = (symbol){.at = (uint32_t)at, .bytes = (uint32_t)n, .next = -1, .frozen = frozen};
		if (at > begin && !sp_model_joins(m, text + before_it, at - before_it, text + at, s.bytes)) {
			TRY(cut_stretch(&g, at - begin));
			begin = at;
		}
		before_it = at;
		s.previous = (int32_t)g.n_symbols - 1;
		if (s.previous >= 0)
			g.symbols[s.previous].next = (int32_t)g.n_symbols;
		g.symbols[g.n_symbols++] = s;
	}
	if (last || (begin == 0 && bytes > SP_RUN_MAX))
		return cut_stretch(&g, at - begin);
	return STATUS_OK;
}
