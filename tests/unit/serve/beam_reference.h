/* beam_reference.h - a plain beam search: a hypothesis is its tokens, a candidate is a hypothesis, and every step sorts
 * all candidates. Log-probabilities are sums of doubles. It follows the definition in engine/serve/beam_search.h and
 * shares no code with beam_search.c. */
#ifndef TESTS_UNIT_SERVE_BEAM_REFERENCE_H
#define TESTS_UNIT_SERVE_BEAM_REFERENCE_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_LENGTH = 16, PLAIN_BEAMS = 128 };

typedef struct plain_hypothesis {
	int32_t tokens[PLAIN_LENGTH];
	int length, parent; /* parent: rank of the beam that it continues */
	bool ended;
	double sum, score;
} plain_hypothesis;

typedef struct plain_search {
	/* Logits [vocab] after these tokens, without biases, which are added here. */
	void (*logits)(void *context, const int32_t *tokens, int n, float *out);
	void *context;
	int vocab, max_tokens, beams;
	double length_penalty;
	bool early_stopping;
	const int32_t *ends;
	int n_ends;
	plain_hypothesis live[PLAIN_BEAMS], best[2 * PLAIN_BEAMS + 1];
	int n_live, n_best, steps;
	int moved; /* beams that did not get their parent's slot */
} plain_search;

static inline int plain_candidates(const void *left, const void *right)
{
	const plain_hypothesis *a = left, *b = right;
	if (a->sum < b->sum || a->sum > b->sum)
		return a->sum < b->sum ? 1 : -1;
	return a->parent != b->parent ? a->parent - b->parent : a->tokens[a->length - 1] - b->tokens[b->length - 1];
}

static inline bool plain_ends(const plain_search *p, int32_t token)
{
	bool end = false;
	for (int i = 0; i < p->n_ends; i++)
		end |= p->ends[i] == token;
	return end;
}

/* Insert after all hypotheses that are at least as good; then keep only `beams`. */
static inline void plain_finish(plain_search *p, plain_hypothesis h, bool ended)
{
	int at = 0;
	h.ended = ended;
	h.score = h.sum / pow(h.length, p->length_penalty);
	while (at < p->n_best && p->best[at].score >= h.score)
		at++;
	for (int i = p->n_best++; i > at; i--)
		p->best[i] = p->best[i - 1];
	p->best[at] = h;
	p->n_best = p->n_best < p->beams ? p->n_best : p->beams;
}

static inline void plain_step(plain_search *p)
{
	plain_hypothesis *all = calloc((size_t)p->n_live * (size_t)p->vocab, sizeof *all);
	float *logits = calloc((size_t)p->vocab, sizeof *logits);
	assert(all && logits);
	int n = 0, live = 0;
	for (int i = 0; i < p->n_live; i++) {
		double sum = 0;
		p->logits(p->context, p->live[i].tokens, p->live[i].length, logits);
		for (int t = 0; t < p->vocab; t++)
			sum += isfinite(logits[t]) ? exp(logits[t]) : 0;
		for (int t = 0; t < p->vocab; t++) {
			if (!isfinite(logits[t]))
				continue;
			all[n] = p->live[i];
			all[n].parent = i;
			all[n].tokens[all[n].length++] = t;
			all[n++].sum += logits[t] - log(sum);
		}
	}
	qsort(all, (size_t)n, sizeof *all, plain_candidates);
	bool used[PLAIN_BEAMS] = {false};
	for (int i = 0; i < n && live < p->beams; i++) {
		if (!plain_ends(p, all[i].tokens[all[i].length - 1])) {
			p->moved += used[all[i].parent];
			used[all[i].parent] = true;
			p->live[live++] = all[i];
		} else if (i < p->beams) {
			plain_finish(p, all[i], true);
		}
	}
	p->n_live = live;
	p->steps++;
	free(all);
	free(logits);
}

/* Run the search; best [n_best] is then the answer, best first. */
static inline void plain_run(plain_search *p)
{
	p->live[0] = (plain_hypothesis){.length = 0};
	p->n_live = 1;
	p->n_best = p->steps = p->moved = 0;
	while (p->n_live > 0 && p->steps < p->max_tokens) {
		plain_step(p);
		if (p->n_live == 0 || p->steps == p->max_tokens || p->n_best < p->beams)
			continue;
		double hope = p->live[0].sum / pow(p->steps, p->length_penalty);
		if (p->early_stopping || hope <= p->best[p->n_best - 1].score)
			return;
	}
	for (int i = 0; i < p->n_live; i++)
		plain_finish(p, p->live[i], false);
}

#endif
