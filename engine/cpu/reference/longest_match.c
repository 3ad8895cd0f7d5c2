/* The token that followed the longest earlier match; every match is measured token by token. */
#include "engine/tensor/ops/longest_match.h"

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"

/* The tokens of a sequence: those of the call from `before` on, earlier ones in the ring. */
typedef struct text {
	const int32_t *x, *mask; /* mask may be NULL */
	const float *ring;
	int64_t before;
	longest_match_params p;
} text;

/* -1: masked */
static int32_t longest_match_token_at(const text *t, int64_t i)
{
	const int64_t k = i - t->before;
	if (k < 0)
		return (int32_t)t->ring[i % t->p.window];
	return t->mask && !t->mask[k] ? -1 : t->x[k];
}

static int32_t reference_longest_match_next_of(const text *t, int64_t i)
{
	int64_t longest = 0;
	int32_t next = -1;
	for (int64_t j = i - 1; j >= longest_match_least(i, t->p.window, t->p.length); j--) {
		int64_t m = 0;
		while (m < t->p.length && m <= j && longest_match_token_at(t, i - m) >= 0 &&
		       longest_match_token_at(t, i - m) == longest_match_token_at(t, j - m))
			m++;
		if (m > longest) {
			longest = m;
			next = longest_match_token_at(t, j + 1);
		}
	}
	return next;
}

/* tokens [B, N], mask? [B, N] -> next [B, N] */
status reference_longest_match(backend *unused, const op_call *call)
{
	(void)unused;
	const shape s = call->in[0].shape;
	const int32_t *x = call->in[0].data, *mask = call->n_in > 1 ? call->in[1].data : NULL;
	int32_t *y = call->out[0].data;
	for (int64_t b = 0; b < s.dim[0]; b++) {
		const int64_t first = b * s.dim[1];
		const text t = {x + first, mask ? mask + first : NULL, NULL, 0,
		                *(const longest_match_params *)call->params};
		for (int64_t i = 0; i < s.dim[1]; i++)
			y[first + i] = reference_longest_match_next_of(&t, i);
	}
	return STATUS_OK;
}

/* tokens [B, N], pool, slot, position, length [B], mask? [B, N], start? -> next [B, N] */
status reference_longest_match_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const longest_match_params *p = call->params;
	const int32_t *slot = call->in[2].data, *position = call->in[3].data, *length = call->in[4].data;
	const int32_t *x = call->in[0].data, *mask = call->n_in > 5 ? call->in[5].data : NULL;
	int32_t *y = call->out[0].data;
	for (int64_t b = 0; b < call->in[2].shape.dim[0]; b++) {
		const sequence tokens = sequence_at(call, 6, b);
		float *ring = (float *)call->in[1].data + slot[b] * call->in[1].shape.dim[1] + p->offset;
		const text t = {x + tokens.first, mask ? mask + tokens.first : NULL, ring, position[b], *p};
		for (int64_t i = 0; i < tokens.room && y; i++)
			y[tokens.first + i] = i < length[b] ? reference_longest_match_next_of(&t, t.before + i) : -1;
		for (int64_t i = 0; i < length[b]; i++)
			ring[(t.before + i) % p->window] = (float)longest_match_token_at(&t, t.before + i);
	}
	return STATUS_OK;
}
