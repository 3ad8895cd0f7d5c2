/* The most probable way to cut a text into pieces: at each place the best way that ends there, from left to right.
 *
 * Scores are added in single precision along the whole text, as the library does it: which of two equally good ways
 * wins depends on the rounding, hence on everything before. So a run begins with the score of the text so far, until
 * that is so large that it would round away the differences between pieces; then with 0. A run's pieces are certain up
 * to the last place through which the best ways to all places near its end lead. */
#include <string.h>

#include "engine/text/sentencepiece/sp_pieces.h"

static const float unknown_penalty = 10, coarse = -131072;

typedef struct node {
	float score;  /* score of the best path that ends here */
	int32_t id;   /* its last piece */
	int32_t from; /* where that begins; -1: no way ends here */
} node;

static void improve(node *n, float score, int32_t id, size_t from)
{
	if (n->from < 0 || score > n->score)
		*n = (node){.score = score, .id = id, .from = (int32_t)from};
}

/* Extend paths by all pieces that begin at `at`; returns true if one has a single character. */
static bool extend(const sp_model *m, node *nodes, const char *text, size_t bytes, size_t at, size_t character)
{
	bool single = false;
	float before = nodes[at].score;
	uint32_t place = 0;
	for (size_t end = at; end < bytes && (place = trie_step(&m->vocabulary, place, (unsigned char)text[end]));) {
		const trie_unit *u = &m->vocabulary.units[place];
		end++;
		if (u->value < 0)
			continue;
		improve(&nodes[end], u->score + before, u->value, at);
		single |= end - at == character;
	}
	return single;
}

static void find_ways(const sp_model *m, node *nodes, const char *text, size_t bytes)
{
	float unknown = m->lowest_score - unknown_penalty;
	for (size_t at = 0, n; at < bytes; at += n) {
		n = sp_model_character((unsigned char)text[at], bytes - at);
		if (!extend(m, nodes, text, bytes, at, n))
			improve(&nodes[at + n], unknown + nodes[at].score, m->unknown, at);
	}
}

/* The last place through which the best ways to all of the last m->longest places lead. needed: [bytes + 1], zeroed. */
static size_t find_certain(const sp_model *m, const node *nodes, unsigned char *needed, const char *text, size_t bytes)
{
	size_t at = 0, first = bytes > m->longest ? bytes - m->longest : 0, open = 0;
	for (size_t n; at < bytes; at += n) {
		n = sp_model_character((unsigned char)text[at], bytes - at);
		open += needed[at] = at > first;
	}
	open += needed[bytes] = 1;
	for (at = bytes; open > 1; at--) {
		if (!needed[at])
			continue;
		unsigned char *from = &needed[nodes[at].from];
		open -= *from;
		*from = 1;
	}
	while (!needed[at])
		at--;
	return at;
}

/* The pieces of the best way to `end`. */
static status add_way(sp_pieces *p, const node *nodes, size_t end)
{
	size_t first = p->count, n = 0;
	for (size_t at = end; at > 0; at = (size_t)nodes[at].from, n++)
		TRY(sp_pieces_add(p, at - (size_t)nodes[at].from, nodes[at].id));
	for (size_t i = 0; i < n / 2; i++) {
		sp_cut other = p->cuts[first + i];
		p->cuts[first + i] = p->cuts[first + n - 1 - i];
		p->cuts[first + n - 1 - i] = other;
	}
	return STATUS_OK;
}

status sp_unigram_cut(sp_pieces *p, const char *text, size_t bytes, bool last)
{
	node *nodes = sp_pieces_scratch(p, (bytes + 1) * (sizeof *nodes + 1));
	if (!nodes)
		return STATUS_NOMEM;
	unsigned char *needed = (unsigned char *)(nodes + bytes + 1);
	for (size_t i = 0; i <= bytes; i++)
		nodes[i].from = -1;
	nodes[0] = (node){.score = p->score};
	find_ways(p->model, nodes, text, bytes);
	size_t end = bytes;
	if (!last) {
		memset(needed, 0, bytes + 1);
		end = find_certain(p->model, nodes, needed, text, bytes);
		if (end == 0 && bytes > SP_RUN_MAX)
			for (end = bytes; end > bytes - bytes / 4;)
				end = (size_t)nodes[end].from;
	}
	p->score = nodes[end].score < coarse ? 0 : nodes[end].score;
	return add_way(p, nodes, end);
}
