/* beam_search.c - hypotheses as a tree. A node is a token with its parent. A beam is a node and a sum, and beams with a
 * common beginning share its nodes. Nodes and their alternatives are kept until the search ends: `beams` for each
 * token.
 *
 * Only the best `beams` + n_ends tokens of a beam can be chosen: at most `beams` become beams, and fewer than `beams`
 * candidates rank before a finished one. */
#include "engine/serve/beam_search.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/memory.h"

typedef struct node {
	int32_t parent, token;
	float logprob; /* without biases */
} node;

typedef struct beam {
	double sum;
	int32_t node;
	int parent; /* rank of the beam that it continues */
} beam;

typedef struct candidate {
	double sum;
	int32_t token;
	int beam;
	float logprob;
} candidate;

typedef struct finished {
	beam_hypothesis hypothesis;
	int32_t node;
} finished;

struct beam_search {
	beam_options options;
	int64_t vocab, max_tokens, length;
	tally bias;
	float *unbiased; /* [bias.count] logits without their biases, saved while these are added */
	int32_t *ends;
	int n_ends, n_top, width; /* width: maximum candidates of a beam */
	beam beams[BEAM_SEARCH_MAX];
	int live;
	candidate *candidates; /* [beams × width] */
	int n_candidates;
	token_logprob *likeliest; /* [width] of the current beam */
	node *nodes;              /* [capacity]; the first is the prompt */
	token_logprob *top;       /* [capacity][n_top] alternatives to the token of each node */
	int32_t n_nodes, capacity;
	finished finished[BEAM_SEARCH_MAX]; /* best first */
	int n_finished;
	bool ended;
};

/* --- nodes --------------------------------------------------------------------- */

static size_t top_size(const beam_search *b)
{
	return b->n_top > 0 ? (size_t)b->n_top : 0;
}

/* Reserve memory for n more nodes. STATUS_NOMEM. */
static status reserve_nodes(beam_search *b, int32_t n)
{
	if (n <= b->capacity - b->n_nodes)
		return STATUS_OK;
	if (b->n_nodes > INT32_MAX / 2 - n)
		return STATUS_NOMEM;
	size_t capacity = 2 * (size_t)(b->n_nodes + n);
	node *nodes = realloc(b->nodes, capacity * sizeof *nodes);
	if (!nodes)
		return STATUS_NOMEM;
	b->nodes = nodes;
	if (top_size(b) > 0) {
		token_logprob *top = realloc(b->top, capacity * top_size(b) * sizeof *top);
		if (!top)
			return STATUS_NOMEM;
		b->top = top;
	}
	b->capacity = (int32_t)capacity;
	return STATUS_OK;
}

static int32_t add_node(beam_search *b, int32_t parent, int32_t token, float logprob)
{
	assert(b->n_nodes < b->capacity);
	b->nodes[b->n_nodes] = (node){parent, token, logprob};
	return b->n_nodes++;
}

/* --- beginning ----------------------------------------------------------------- */

static status beam_search_begin(beam_search *b, const sampling *s, const int32_t *ends)
{
	const size_t beams = (size_t)b->options.beams, width = (size_t)b->width;
	TRY(tally_init(&b->bias, s));
	b->unbiased = memory_new((size_t)b->bias.count, sizeof *b->unbiased);
	b->ends = memory_new((size_t)b->n_ends, sizeof *b->ends);
	b->candidates = memory_new(beams * width, sizeof *b->candidates);
	b->likeliest = memory_new(width, sizeof *b->likeliest);
	if (!b->unbiased || !b->ends || !b->candidates || !b->likeliest)
		return STATUS_NOMEM;
	if (b->n_ends > 0)
		memcpy(b->ends, ends, (size_t)b->n_ends * sizeof *ends);
	TRY(reserve_nodes(b, 1));
	b->beams[0].node = add_node(b, -1, -1, 0);
	b->live = 1;
	return STATUS_OK;
}

status beam_search_new(beam_search **out, const beam_options *o, int64_t vocab, int64_t max_tokens, const sampling *s,
                       const int32_t *ends, int n_ends, int n_top)
{
	assert(o->beams >= 1 && o->beams <= BEAM_SEARCH_MAX);
	*out = NULL;
	beam_search *b = memory_new(1, sizeof *b);
	if (!b)
		return STATUS_NOMEM;
	b->options = *o;
	b->vocab = vocab;
	b->max_tokens = max_tokens;
	b->n_ends = n_ends;
	b->n_top = n_top;
	b->width = o->beams + n_ends < vocab ? o->beams + n_ends : (int)vocab;
	b->ended = max_tokens == 0;
	status result = beam_search_begin(b, s, ends);
	if (result != STATUS_OK) {
		beam_search_free(b);
		return result;
	}
	*out = b;
	return STATUS_OK;
}

void beam_search_free(beam_search *b)
{
	if (!b)
		return;
	tally_fini(&b->bias);
	free(b->unbiased);
	free(b->ends);
	free(b->candidates);
	free(b->likeliest);
	free(b->nodes);
	free(b->top);
	free(b);
}

/* --- a step -------------------------------------------------------------------- */

int beam_search_live(const beam_search *b)
{
	return b->live;
}

static void add_biases(beam_search *b, float *logits)
{
	for (int32_t i = 0; i < b->bias.count; i++) {
		float *x = &logits[b->bias.rows[i].token];
		b->unbiased[i] = *x;
		*x += b->bias.rows[i].bias;
	}
}

void beam_search_read(beam_search *b, int rank, float *logits)
{
	const beam *x = &b->beams[rank];
	const int first = b->n_candidates;
	const double own = sampler_normalizer(logits, b->vocab);
	if (top_size(b) > 0)
		sampler_top(logits, b->vocab, own, b->top + (size_t)x->node * top_size(b), b->n_top);
	add_biases(b, logits);
	const double biased = b->bias.count > 0 ? sampler_normalizer(logits, b->vocab) : own;
	sampler_top(logits, b->vocab, biased, b->likeliest, b->width);
	for (int i = 0; i < b->width && b->likeliest[i].token >= 0; i++) {
		const int32_t token = b->likeliest[i].token;
		b->candidates[b->n_candidates++] =
		    (candidate){.sum = x->sum + (logits[token] - biased), .token = token, .beam = rank};
	}
	for (int32_t i = 0; i < b->bias.count; i++)
		logits[b->bias.rows[i].token] = b->unbiased[i];
	for (int i = first; i < b->n_candidates; i++)
		b->candidates[i].logprob = (float)(logits[b->candidates[i].token] - own);
}

static int by_rank(const void *left, const void *right)
{
	const candidate *a = left, *b = right;
	if (a->sum != b->sum)
		return a->sum > b->sum ? -1 : 1;
	if (a->beam != b->beam)
		return a->beam < b->beam ? -1 : 1;
	return (a->token > b->token) - (a->token < b->token);
}

static bool is_end(const beam_search *b, int32_t token)
{
	for (int i = 0; i < b->n_ends; i++)
		if (b->ends[i] == token)
			return true;
	return false;
}

/* Return the score of a sum at the present length. */
static double beam_search_score(const beam_search *b, double sum)
{
	return b->length > 0 ? sum / pow((double)b->length, b->options.length_penalty) : 0;
}

static void beam_search_finish(beam_search *b, const beam *x, bool ended)
{
	const finished new = {{x->sum, beam_search_score(b, x->sum), b->length, ended}, x->node};
	int at = b->n_finished;
	while (at > 0 && new.hypothesis.score > b->finished[at - 1].hypothesis.score)
		at--;
	if (at == b->options.beams)
		return;
	b->n_finished += b->n_finished < b->options.beams;
	memmove(&b->finished[at + 1], &b->finished[at], (size_t)(b->n_finished - 1 - at) * sizeof new);
	b->finished[at] = new;
}

/* True if no beam can become better than the finished hypotheses under the stopping rule. */
static bool is_decided(const beam_search *b)
{
	if (b->n_finished < b->options.beams)
		return false;
	return b->options.early_stopping ||
	       beam_search_score(b, b->beams[0].sum) <= b->finished[b->n_finished - 1].hypothesis.score;
}

status beam_search_advance(beam_search *b)
{
	beam next[BEAM_SEARCH_MAX];
	int live = 0;
	TRY(reserve_nodes(b, 2 * b->options.beams)); /* at most as many are finished as continue */
	qsort(b->candidates, (size_t)b->n_candidates, sizeof *b->candidates, by_rank);
	b->length++;
	for (int i = 0; i < b->n_candidates && live < b->options.beams; i++) {
		const candidate *c = &b->candidates[i];
		const bool ends = is_end(b, c->token);
		if (ends && i >= b->options.beams)
			continue;
		const beam x = {c->sum, add_node(b, b->beams[c->beam].node, c->token, c->logprob), c->beam};
		if (ends)
			beam_search_finish(b, &x, true);
		else
			next[live++] = x;
	}
	memcpy(b->beams, next, (size_t)live * sizeof *next);
	b->live = live;
	b->n_candidates = 0;
	b->ended = live == 0 || b->length == b->max_tokens || is_decided(b);
	for (int i = 0; b->length == b->max_tokens && i < live; i++)
		beam_search_finish(b, &b->beams[i], false);
	return STATUS_OK;
}

int beam_search_parent(const beam_search *b, int rank)
{
	return b->beams[rank].parent;
}

int32_t beam_search_token(const beam_search *b, int rank)
{
	return b->nodes[b->beams[rank].node].token;
}

/* --- what was found ------------------------------------------------------------- */

bool beam_search_ended(const beam_search *b)
{
	return b->ended;
}

int beam_search_count(const beam_search *b)
{
	return b->n_finished;
}

const beam_hypothesis *beam_search_best(const beam_search *b, int i)
{
	return &b->finished[i].hypothesis;
}

void beam_search_tokens(const beam_search *b, int i, token_logprob *tokens, token_logprob *top)
{
	const size_t n_top = top_size(b);
	int32_t at = b->finished[i].node;
	for (int64_t k = b->finished[i].hypothesis.length; k-- > 0; at = b->nodes[at].parent) {
		const node *x = &b->nodes[at];
		tokens[k] = (token_logprob){.token = x->token, .logprob = x->logprob};
		if (n_top > 0)
			memcpy(top + (size_t)k * n_top, b->top + (size_t)x->parent * n_top, n_top * sizeof *top);
	}
}
