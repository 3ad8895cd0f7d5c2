/* logits [B, V], setting [B, SAMPLE_WORDS], adjust [A, 3] -> token [B]: the steps of engine/tensor/ops/sample.h on
 * all of a row's tokens, sorted by rank. */
#include "engine/tensor/ops/sample.h"
#include "engine/base/philox.h"
#include "engine/cpu/reference/reference.h"

#include <stdlib.h>

/* A token with a finite logit. */
typedef struct ranked {
	uint64_t weight; /* 0: it is out */
	float x;
	int32_t id;
} ranked;

static int by_rank(const void *pa, const void *pb)
{
	const ranked *a = pa, *b = pb;
	if (a->x != b->x)
		return a->x > b->x ? -1 : 1;
	return a->id < b->id ? -1 : 1;
}

static int by_id(const void *pa, const void *pb)
{
	return ((const ranked *)pa)->id < ((const ranked *)pb)->id ? -1 : 1;
}

/* Step 1. The tokens whose logits are finite, best first; returns how many. */
static int64_t rank_tokens(const float *logits, int64_t vocab, const sample_setting *s, const sample_adjust *adjust,
                           ranked *all)
{
	const uint32_t *mask = sample_mask(s, adjust);
	int64_t n = 0;
	for (int64_t i = 0; i < vocab; i++) {
		float x = logits[i];
		for (int32_t a = s->first; a < s->first + s->count; a++)
			if (adjust[a].token == i)
				x = sample_adjusted(x, s, &adjust[a]);
		if (sample_finite(x) && sample_is_left(mask, i))
			all[n++] = (ranked){0, x, (int32_t)i};
	}
	if (n > 0)
		qsort(all, (size_t)n, sizeof *all, by_rank);
	return n;
}

static uint64_t mass_of(const ranked *all, int64_t n)
{
	uint64_t mass = 0;
	for (int64_t i = 0; i < n; i++)
		mass += all[i].weight;
	return mass;
}

/* Steps 3 to 5: the weights of those that are left. */
static void weigh(ranked *all, int64_t n, const sample_setting *s)
{
	for (int64_t i = 0; i < n; i++)
		all[i].weight = sample_weight(sample_distance(all[i].x, all[0].x, s->temperature));
	int64_t counted = 0;
	for (int64_t i = 0; i < n && s->top_k > 0; i++) {
		if (counted >= s->top_k)
			all[i].weight = 0;
		counted += all[i].weight > 0;
	}
	uint64_t goal = sample_goal(s->top_p, mass_of(all, n)), reached = 0;
	for (int64_t i = 0; i < n; i++) {
		if (i > 0 && reached >= goal)
			all[i].weight = 0;
		reached += all[i].weight;
	}
	const uint64_t bottom = sample_bottom(s, mass_of(all, n));
	for (int64_t i = 0; i < n; i++)
		if (all[i].weight < bottom)
			all[i].weight = 0;
}

/* Step 6. */
static int32_t reference_sample_draw(ranked *all, int64_t n, const sample_setting *s)
{
	philox_block random = philox(sample_seed(s), PHILOX_STREAM_SAMPLE, 0, sample_position(s));
	uint64_t target = sample_share(random.word[0] >> 8, mass_of(all, n)), sum = 0;
	qsort(all, (size_t)n, sizeof *all, by_id);
	for (int64_t i = 0; i < n; i++) {
		sum += all[i].weight;
		if (sum > target)
			return all[i].id;
	}
	return -1; /* not reached: the target is below the mass */
}

size_t reference_sample_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)call->in[0].shape.dim[1] * sizeof(ranked);
}

status reference_sample(backend *b, const op_call *call)
{
	(void)b;
	const float *logits = call->in[0].data;
	const sample_setting *setting = call->in[1].data;
	const sample_adjust *adjust = call->in[2].data;
	int32_t *token = call->out[0].data;
	ranked *all = call->scratch;
	int64_t rows = call->in[0].shape.dim[0], vocab = call->in[0].shape.dim[1];
	for (int64_t row = 0; row < rows; row++) {
		const sample_setting *s = &setting[row];
		int64_t n = s->active ? rank_tokens(logits + row * vocab, vocab, s, adjust, all) : 0;
		token[row] = n > 0 ? all[0].id : -1;
		if (n > 0 && s->temperature > 0) {
			weigh(all, n, s);
			token[row] = reference_sample_draw(all, n, s);
		}
	}
	return STATUS_OK;
}
