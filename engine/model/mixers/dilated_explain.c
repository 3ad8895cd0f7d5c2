/* dilated_explain.c - weights of dilated attention, from queries and keys:
 *
 *   p_ij = Σ_b α_b(i) p_ij of branch b = Σ_b e^{s_ij} / Σ_b Σ_l e^{s_il}
 *
 * over the branches b in which the head keeps i, and the kept tokens of i's segment (causal: up to i). A token kept by
 * several branches counts in each.
 *
 * A product with p takes its rows one by one: O(N (w + dh Σ w / r²)) with w the longest segment. Its time is why N is
 * limited. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/explain_rows.h"
#include "engine/model/mixers/mixer.h"
#include "engine/tensor/ops/dilated.h"

static const char *const rounds[] = {"attention"};

static int dilated_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const dilated_options *o = options;
	out[0] = (log_part){.name = "query", .width = o->hidden};
	out[1] = (log_part){.name = "key", .width = o->hidden};
	return 2;
}

static int64_t segment_start(const dilated_pattern *p, int64_t branch, int64_t position)
{
	return position / p->segment[branch] * p->segment[branch];
}

/* One past the last token that `position` reads in this branch. */
static int64_t segment_end(const dilated_options *o, int64_t branch, int64_t position, int64_t tokens)
{
	const int64_t end = segment_start(&o->pattern, branch, position) + o->pattern.segment[branch];
	return o->causal ? position + 1 : end < tokens ? end : tokens;
}

/* Union of the segments of all branches. */
static explain_range dilated_explain_range(const void *options, int64_t position, int64_t tokens)
{
	const dilated_options *o = options;
	explain_range r = {position, position + 1};
	for (int64_t b = 0; b < o->pattern.branches; b++) {
		const int64_t start = segment_start(&o->pattern, b, position);
		const int64_t end = segment_end(o, b, position, tokens);
		r.first = start < r.first ? start : r.first;
		r.end = end > r.end ? end : r.end;
	}
	return r;
}

/* First token that `position` reads in a branch; past all if the head does not keep it. */
static int64_t first_key(const explain_site *s, int64_t branch, int64_t position)
{
	const dilated_options *o = s->options;
	const int64_t start = segment_start(&o->pattern, branch, position);
	const int64_t first = dilated_first(&o->pattern, branch, o->heads, s->head);
	return (position - start) % o->pattern.dilation[branch] == first ? start + first : s->tokens;
}

static status dilated_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	const dilated_options *o = s->options;
	const int64_t width = o->hidden / o->heads;
	const explain_range r = dilated_explain_range(o, position, s->tokens);
	const float *head = s->log + s->head * width, *query = head + position * s->stride, *key = head + o->hidden;
	double top = -INFINITY, sum = 0;
	int *times = memory_new((size_t)(r.end - r.first), sizeof *times); /* number of branches that keep the token */
	if (!times)
		return STATUS_NOMEM;
	for (int64_t b = 0; b < o->pattern.branches; b++)
		for (int64_t j = first_key(s, b, position); j < segment_end(o, b, position, s->tokens);
		     j += o->pattern.dilation[b])
			times[j - r.first]++;
	for (int64_t j = r.first; j < r.end; j++) {
		alpha[j - r.first] =
		    times[j - r.first] ? o->scale * explain_dot(query, key + j * s->stride, width) : -INFINITY;
		top = fmax(top, alpha[j - r.first]);
	}
	for (int64_t j = 0; j < r.end - r.first; j++)
		sum += alpha[j] = times[j] ? times[j] * exp(alpha[j] - top) : 0;
	for (int64_t j = 0; j < r.end - r.first && sum > 0; j++)
		alpha[j] /= sum;
	free(times);
	return STATUS_OK;
}

const explainer dilated_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = dilated_explain_parts,
    .range = dilated_explain_range,
    .row = dilated_explain_row,
    .pull_tokens = 16384,
};
