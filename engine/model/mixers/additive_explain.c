/* additive_explain.c - weights of additive attention, p_ij = e^{a_j - M_i} over a window of k tokens, from the
 * scores of the log.
 *
 * A product with p is
 *
 *   y_j = Σ_{i ∈ V(j)} v_i e^{a_j - M_i},   V(j) = {j … min(N-1, j+k-1)},   M_i = log Σ_{j ∈ W(i)} e^{a_j}
 *
 * Both M and y are sums of e^{m_i} s_i over a sliding window: M over (a_j, 1) looking back, y over (-M_i, v_i) looking
 * ahead. One scan computes both, on blocks of k like the model itself. A window is the end of one block joined to the
 * start of the next, so for any k each element is part of two running sums. No sum needs a subtraction. An element e^m
 * s is stored as (m, s) with m the running maximum, so every exponent is ≤ 0 (a_j ≤ M_i wherever a_j counts).
 *
 * The normaliser is recomputed from the scores in double: at scores of 1e4 a float's M is only good to 1e-3. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"query", "key"};
enum { ROUND_COUNT = sizeof rounds / sizeof *rounds };

static int additive_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	static const char *const names[] = {"query.score", "query.log_normalizer", "key.score", "key.log_normalizer"};
	const additive_options *o = options;
	for (int i = 0; i < 2 * ROUND_COUNT; i++)
		out[i] = (log_part){.name = names[i], .width = o->heads};
	return 2 * ROUND_COUNT;
}

static int64_t additive_explain_heads(const void *options)
{
	return ((const additive_options *)options)->heads;
}

static explain_range additive_explain_range(const void *options, int64_t position, int64_t tokens)
{
	(void)tokens;
	return explainer_window(((const additive_options *)options)->window, position);
}

/* a_j */
static double additive_explain_score(const explain_site *s, int64_t j)
{
	const additive_options *o = s->options;
	return (double)s->log[j * s->stride + 2 * s->round * o->heads + s->head];
}

static void additive_explain_scores(const explain_site *s, int64_t n, int which, double *out)
{
	const additive_options *o = s->options;
	for (int64_t j = 0; j < n; j++)
		out[j] = (double)s->log[j * s->stride + (2 * s->round + which) * o->heads + s->head];
}

static status additive_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	explain_range r = additive_explain_range(s->options, position, s->tokens);
	double max = -INFINITY, sum = 0;
	for (int64_t j = r.first; j < r.end; j++)
		max = fmax(max, additive_explain_score(s, j));
	for (int64_t j = r.first; j < r.end; j++)
		sum += alpha[j - r.first] = exp(additive_explain_score(s, j) - max);
	for (int64_t j = r.first; j < r.end; j++)
		alpha[j - r.first] /= sum;
	return STATUS_OK;
}

/* e^m s. */
typedef struct element {
	double m, s;
} element;
static const element nothing = {-INFINITY, 0};

static element additive_explain_join(element a, element b)
{
	if (a.m == -INFINITY)
		return b;
	if (b.m == -INFINITY)
		return a;
	double m = fmax(a.m, b.m);
	return (element){m, exp(a.m - m) * a.s + exp(b.m - m) * b.s};
}

/* out[i] = x[i-k+1] ⊕ … ⊕ x[i] (from x[0] if i < k - 1; k = 0: always). backwards: the mirror image, x[i] ⊕ … ⊕
 * x[i+k-1]. suffix: scratch for n. Blocks of k: the suffix of the previous block, from i-k+1 to its end, and the
 * prefix of i's block up to i. */
static void scan(const element *x, element *out, element *suffix, int64_t n, int64_t k, bool backwards)
{
	int64_t step = backwards ? -1 : 1, origin = backwards ? n - 1 : 0;
	element prefix = nothing;
	if (k <= 0 || k > n)
		k = n;
	for (int64_t i = n - 1; i >= 0; i--) {
		bool block_ends = i == n - 1 || (i + 1) % k == 0;
		suffix[i] = additive_explain_join(x[origin + step * i], block_ends ? nothing : suffix[i + 1]);
	}
	for (int64_t i = 0; i < n; i++) {
		prefix = additive_explain_join(i % k == 0 ? nothing : prefix, x[origin + step * i]);
		bool whole_block = (i + 1) % k == 0 || i < k;
		out[origin + step * i] = whole_block ? prefix : additive_explain_join(suffix[i - k + 1], prefix);
	}
}

static status pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	int64_t k = ((const additive_options *)s->options)->window;
	element *x = memory_new((size_t)n, 3 * sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	element *window = x + n, *suffix = window + n;
	for (int64_t j = 0; j < n; j++)
		x[j] = (element){additive_explain_score(s, j), 1};
	scan(x, window, suffix, n, k, false);
	for (int64_t i = 0; i < n; i++)
		x[i] = (element){-(window[i].m + log(window[i].s)), v[i]};
	scan(x, window, suffix, n, k, true);
	for (int64_t j = 0; j < n; j++)
		y[j] += exp(additive_explain_score(s, j) + window[j].m) * window[j].s;
	free(x);
	return STATUS_OK;
}

const explainer additive_explainer = {
    .rounds = rounds,
    .n_rounds = ROUND_COUNT,
    .parts = additive_explain_parts,
    .heads = additive_explain_heads,
    .range = additive_explain_range,
    .scores = additive_explain_scores,
    .row = additive_explain_row,
    .pull = pull,
};
