/* additive_attention: one round over whole sequences, tile by tile (attention.h, attention_tile.h).
 *
 *   1. The scores of the tile, as its x comes from memory.
 *   2. Both scans of scores, with which the factors of g_u = far_u S_u + near_u P_u and M are known before any
 *      vector is touched.
 *   3. S, backwards over the far rows of x, into g itself: the recurrence runs through the rows of g and needs no
 *      memory of its own.
 *   4. P, forwards over the tile, and g.
 *
 * Tried and dropped: a pass over all scores first (x from memory twice); blocks of a whole window without tiles (a
 * long window falls out of the cache between 3 and 4); one maximum per block (fails when the scores of a block span
 * more than 87); the normalised carry (M, g), whose log M loses small weights once scores are large. */
#include "engine/cpu/kernels/attention_tile.h"

typedef struct forward {
	attention_cut cut;
	const float *x, *w;
	const int32_t *mask;
	float scale;
	float *g, *score, *log_normalizer; /* the last two may be NULL */
} forward;

/* Compute the scores of a tile as near ones; its token 0 is token `first` of the whole batch. `out`: also write them.
 * The next tile is prefetched here or by the loop over this one, whichever was measured to be faster. */
ATTENTION_INLINE void load(const forward *f, const attention_unit *u, const attention_march *m,
                           const attention_place *place, int64_t first, bool out, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	const float *w = f->w + u->channel;
	for (int64_t t = 0; t < place->tokens; t++) {
		const float *x = f->x + (first + t) * c->d + u->channel;
		float *score = m->near.score + t * c->group;
		if (attention_windowed(c) && t < place->ahead)
			attention_prefetch(x + place->tokens * c->d, c->group * dh);
		for (int64_t h = 0; h < c->group; h++)
			score[h] = f->scale * attention_dot(x + h * dh, w + h * dh, dh);
		if (out && f->score)
			memcpy(f->score + (first + t) * c->heads + u->head, score, (size_t)c->group * sizeof *score);
		for (int64_t h = 0; h < c->group && f->mask && f->mask[first + t] == 0; h++)
			score[h] = -INFINITY;
	}
}

static void scans(const attention_cut *c, const attention_march *m, const attention_place *place)
{
	attention_scans(c, m, place, true);
}

/* Compute the factors of g = far S + near P, and M. */
static void factors(const forward *f, const attention_unit *u, const attention_march *m, int64_t first, int64_t tokens)
{
	const attention_cut *c = &f->cut;
#pragma omp simd
	for (int64_t e = 0; e < attention_padded(tokens * c->group); e++) {
		float far, near, top = m->far.top[e] > m->near.top[e] ? m->far.top[e] : m->near.top[e];
		attention_exps(m->far.top[e], m->near.top[e], &far, &near);
		float sum = far * m->far.sum[e] + near * m->near.sum[e];
		float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
		m->far_factor[e] = far * inverse;
		m->near_factor[e] = near * inverse;
		m->extra[e] = sum > 0.0f ? top + math_log(sum) : -INFINITY;
	}
	for (int64_t t = 0; t < tokens && f->log_normalizer; t++)
		memcpy(f->log_normalizer + (first + t) * c->heads + u->head, m->extra + t * c->group,
		       (size_t)c->group * sizeof(float));
}

/* Process token u of a tile: add x to P, and set g = far S + near P. */
ATTENTION_INLINE void token(const attention_cut *c, const attention_march *m, int64_t u, bool first, const float *x,
                            const float *s, float *p, float *g, const int64_t dh)
{
	for (int64_t h = 0; h < c->group; h++) {
		int64_t e = u * c->group + h;
		const float keep = m->near.keep[e], weight = m->near.weight[e];
		const float far = m->far_factor[e], near = m->near_factor[e];
		if (first) {
#pragma omp simd
			for (int64_t i = h * dh; i < (h + 1) * dh; i++) {
				p[i] = weight * x[i];
				g[i] = far * s[i] + near * p[i];
			}
		} else {
#pragma omp simd
			for (int64_t i = h * dh; i < (h + 1) * dh; i++) {
				p[i] = keep * p[i] + weight * x[i];
				g[i] = far * s[i] + near * p[i];
			}
		}
	}
}

ATTENTION_INLINE void tile(const forward *f, const attention_unit *u, const attention_march *m,
                           const attention_place *place, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	int64_t first = u->sequence * c->length + place->first, stride = c->d;
	const float *x = f->x + first * c->d + u->channel;
	float *g = f->g + first * c->d + u->channel;
	load(f, u, m, place, first, true, dh);
	if (attention_windowed(c))
		attention_exchange(c, place, m->far.score, m->near.score, m->scores);
	attention_seed(c, m, place);
	scans(c, m, place);
	factors(f, u, m, first, place->tokens);
	attention_aggregate carry = attention_carry(c, m, place);
	for (int64_t low = 0; low < place->tokens; low += place->segment) {
		int64_t near = kernel_min(place->segment, place->tokens - low);
		int64_t far = kernel_min(place->segment, place->far_tokens - low);
		bool present = place->first + low >= c->window;
		if (present)
			attention_far(c, m, low, near, far, x + (low - c->window) * stride, g + low * stride, stride,
			              dh);
		for (int64_t t = low; t < low + near; t++) {
			float *to = g + t * stride;
			token(c, m, t, t == low, x + t * stride, present ? to : m->seed.vector, carry.vector, to, dh);
			if (!attention_windowed(c) && t < place->ahead)
				attention_prefetch(x + (t + place->tokens) * stride, c->group * dh);
		}
	}
	attention_leave(c, m, place);
}

/* Compute what the first block of the unit needs from the window before it. */
ATTENTION_INLINE void warm(const forward *f, const attention_unit *u, const attention_march *m, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	for (int64_t t = 0; t * c->tile < c->window; t++) {
		attention_place place = attention_place_before(c, u->block, t);
		int64_t first = u->sequence * c->length + place.first;
		load(f, u, m, &place, first, false, dh);
		attention_exchange(c, &place, m->far.score, m->near.score, m->scores);
		scans(c, m, &place);
		attention_absorb(c, m, &place, f->x + first * c->d + u->channel, c->d, dh);
		attention_leave(c, m, &place);
	}
}

ATTENTION_INLINE void unit_of(const forward *f, const attention_unit *u, const attention_march *m, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	attention_start(c, m);
	if (u->block > 0)
		warm(f, u, m, dh);
	for (int64_t block = u->block; block < u->end; block++) {
		attention_begin(c, m);
		for (int64_t t = 0; t < c->tiles; t++) {
			attention_place place = attention_place_of(c, block, t);
			if (place.tokens > 0)
				tile(f, u, m, &place, dh);
		}
	}
}

static void unit(const forward *f, const attention_unit *u, const attention_march *m)
{
	ATTENTION_WIDTHS(f->cut.dh, unit_of, f, u, m);
}

/* Process every threads-th unit, starting with number `thread`. */
static void attention_share(const forward *f, int thread, float *memory)
{
	const attention_cut *c = &f->cut;
	attention_march m = attention_march_in(c, memory + thread * attention_march_floats(c));
	for (int64_t i = thread; i < attention_units(c); i += c->threads) {
		attention_unit u = attention_unit_at(c, i);
		unit(f, &u, &m);
	}
}

size_t KERNEL(additive_attention_scratch)(const backend *b, const op_call *call)
{
	attention_cut c = attention_cut_of(b, call);
	return (size_t)(kernel_spare_floats(call, 0) + c.threads * attention_march_floats(&c)) * sizeof(float);
}

status KERNEL(additive_attention)(backend *b, const op_call *call)
{
	float *memory = call->scratch;
	forward f = {.cut = attention_cut_of(b, call),
	             .x = call->in[0].data,
	             .w = call->in[1].data,
	             .mask = kernel_optional(call, 2),
	             .g = kernel_output(call, 0, &memory),
	             .score = call->out[1].data,
	             .log_normalizer = call->out[2].data};
	const int threads = f.cut.threads;
	f.scale = 1.0f / sqrtf((float)f.cut.dh);
	if (threads == 1) {
		attention_share(&f, 0, memory);
		return STATUS_OK;
	}
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++)
		attention_share(&f, thread, memory);
	return STATUS_OK;
}
