/* additive_attention_grad: the forward's march, backwards in time (attention.h, attention_tile.h).
 *
 * Token j is in the windows V(j) = {j … j+k-1}. With "scores" -M_i and values (G_i, D_i), G = dL/dg and D_i = G_i·g_i
 * per head, the sums over V(j) are aggregates with maximum r, in two parts, and
 *
 *   P_j = Σ e^{a_j - M_i} G_i = e^{a_j + r_far} S_j + e^{a_j + r_near} N_j,   Q_j likewise with D
 *   da_j = x_j·P_j - Q_j,   dx_j = P_j + c da_j w,   dw = c Σ da_j x_j,   c = 1/√dh
 *
 * where no exponent is above 0, since every a_j - M_i is not. S is written into dx, which then becomes the gradient. x,
 * g and dg come from memory once; a and D are computed then. A position whose window is empty has M = -inf: its score
 * becomes -inf too, so that it has no weight. The parts of dw are added in order. */
#include "engine/cpu/kernels/attention_tile.h"

typedef struct backward {
	attention_cut cut;
	const float *x, *w, *g, *log_normalizer, *dg;
	const int32_t *mask;
	float scale;
	bool frozen;
	float *dx;
	float *dw; /* [batch · parts, d] */
} backward;

/* March position r of the unit's sequence is this token of the batch. */
static inline int64_t attention_grad_token_at(const attention_cut *c, const attention_unit *u, int64_t r)
{
	return (u->sequence + 1) * c->length - 1 - r;
}

/* Compute the scores -M and values D of a tile, as near ones. */
ATTENTION_INLINE void load(const backward *f, const attention_unit *u, const attention_march *m,
                           const attention_place *place, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	for (int64_t t = 0; t < place->tokens; t++) {
		int64_t token = attention_grad_token_at(c, u, place->first + t), at = token * c->d + u->channel;
		int64_t next = at - place->tokens * c->d;
		if (t < place->ahead) {
			attention_prefetch(f->x + next, c->group * dh);
			attention_prefetch(f->g + next, c->group * dh);
		}
		const float *log_normalizer = f->log_normalizer + token * c->heads + u->head;
		for (int64_t h = 0; h < c->group; h++) {
			int64_t e = t * c->group + h;
			m->near.score[e] = log_normalizer[h] == -INFINITY ? -INFINITY : -log_normalizer[h];
			m->near.value[e] = attention_dot(f->dg + at + h * dh, f->g + at + h * dh, dh);
		}
	}
}

/* Compute the scores a of the same tokens. */
ATTENTION_INLINE void scores(const backward *f, const attention_unit *u, const attention_march *m,
                             const attention_place *place, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	const float *w = f->w + u->channel;
	for (int64_t t = 0; t < place->tokens; t++) {
		int64_t token = attention_grad_token_at(c, u, place->first + t);
		if (t < place->ahead)
			attention_prefetch(f->dg + (token - place->tokens) * c->d + u->channel, c->group * dh);
		const float *x = f->x + token * c->d + u->channel;
		bool present = !f->mask || f->mask[token] != 0;
		for (int64_t h = 0; h < c->group; h++)
			m->extra[t * c->group + h] =
			    present ? f->scale * attention_dot(x + h * dh, w + h * dh, dh) : -INFINITY;
	}
}

static void scans(const attention_cut *c, const attention_march *m, const attention_place *place)
{
	attention_scans(c, m, place, false);
}

/* Compute the factors of S and N; Q replaces a. */
static void factors(const attention_march *m, int64_t count)
{
#pragma omp simd
	for (int64_t e = 0; e < attention_padded(count); e++) {
		float far = math_exp(m->extra[e] + m->far.top[e]), near = math_exp(m->extra[e] + m->near.top[e]);
		m->far_factor[e] = far;
		m->near_factor[e] = near;
		m->extra[e] = far * m->far.sum[e] + near * m->near.sum[e];
	}
}

/* Process token u of a tile: add dg to N, turn dx into the gradient, and add the token's share to dw. */
ATTENTION_INLINE void token(const backward *f, const attention_march *m, int64_t u, bool first, const float *x,
                            const float *w, const float *dg, const float *s, float *n, float *dx, float *dw,
                            const int64_t dh)
{
	const attention_cut *c = &f->cut;
	for (int64_t h = 0; h < c->group; h++) {
		int64_t e = u * c->group + h, low = h * dh, high = low + dh;
		const float keep = first ? 0.0f : m->near.keep[e], weight = m->near.weight[e];
		const float far = m->far_factor[e], near = m->near_factor[e];
		float sum = 0.0f;
		if (first) {
#pragma omp simd
			for (int64_t i = low; i < high; i++)
				n[i] = weight * dg[i];
		} else {
#pragma omp simd
			for (int64_t i = low; i < high; i++)
				n[i] = keep * n[i] + weight * dg[i];
		}
#pragma omp simd reduction(+ : sum)
		for (int64_t i = low; i < high; i++) {
			dx[i] = far * s[i] + near * n[i];
			sum += x[i] * dx[i];
		}
		const float da = f->frozen ? 0.0f : f->scale * (sum - m->extra[e]);
#pragma omp simd
		for (int64_t i = low; i < high; i++) {
			dx[i] += da * w[i];
			dw[i] += da * x[i];
		}
	}
}

ATTENTION_INLINE void tile(const backward *f, const attention_unit *u, const attention_march *m,
                           const attention_place *place, float *dw, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	int64_t at = attention_grad_token_at(c, u, place->first) * c->d + u->channel, stride = -c->d;
	const float *x = f->x + at, *dg = f->dg + at, *w = f->w + u->channel;
	float *dx = f->dx + at;
	load(f, u, m, place, dh);
	scores(f, u, m, place, dh);
	if (attention_windowed(c)) {
		attention_exchange(c, place, m->far.score, m->near.score, m->scores);
		attention_exchange(c, place, m->far.value, m->near.value, m->values);
	}
	attention_seed(c, m, place);
	scans(c, m, place);
	factors(m, place->tokens * c->group);
	attention_aggregate carry = attention_carry(c, m, place);
	for (int64_t low = 0; low < place->tokens; low += place->segment) {
		int64_t near = kernel_min(place->segment, place->tokens - low);
		int64_t far = kernel_min(place->segment, place->far_tokens - low);
		bool present = place->first + low >= c->window;
		if (present)
			attention_far(c, m, low, near, far, dg + (low - c->window) * stride, dx + low * stride, stride,
			              dh);
		for (int64_t t = low; t < low + near; t++) {
			float *to = dx + t * stride;
			token(f, m, t, t == low, x + t * stride, w, dg + t * stride, present ? to : m->seed.vector,
			      carry.vector, to, dw, dh);
		}
	}
	attention_leave(c, m, place);
}

/* Compute what the first block of the unit needs from the window before it. */
ATTENTION_INLINE void warm(const backward *f, const attention_unit *u, const attention_march *m, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	for (int64_t t = 0; t * c->tile < c->window; t++) {
		attention_place place = attention_place_before(c, u->block, t);
		load(f, u, m, &place, dh);
		attention_exchange(c, &place, m->far.score, m->near.score, m->scores);
		attention_exchange(c, &place, m->far.value, m->near.value, m->values);
		scans(c, m, &place);
		attention_absorb(c, m, &place, f->dg + attention_grad_token_at(c, u, place.first) * c->d + u->channel,
		                 -c->d, dh);
		attention_leave(c, m, &place);
	}
}

ATTENTION_INLINE void unit_of(const backward *f, const attention_unit *u, const attention_march *m, const int64_t dh)
{
	const attention_cut *c = &f->cut;
	attention_start(c, m);
	if (u->block > 0)
		warm(f, u, m, dh);
	for (int64_t block = u->block; block < u->end; block++) {
		float *dw = f->dw + (u->sequence * c->parts + block / c->part) * c->d + u->channel;
		if (block % c->part == 0)
			memset(dw, 0, (size_t)(c->group * dh) * sizeof *dw);
		attention_begin(c, m);
		for (int64_t t = 0; t < c->tiles; t++) {
			attention_place place = attention_place_of(c, block, t);
			if (place.tokens > 0)
				tile(f, u, m, &place, dw, dh);
		}
	}
}

static void unit(const backward *f, const attention_unit *u, const attention_march *m)
{
	ATTENTION_WIDTHS(f->cut.dh, unit_of, f, u, m);
}

/* Process every threads-th unit, starting with number `thread`. */
static void attention_grad_share(const backward *f, int thread, float *memory)
{
	const attention_cut *c = &f->cut;
	attention_march m = attention_march_in(c, memory + thread * attention_march_floats(c));
	for (int64_t i = thread; i < attention_units(c); i += c->threads) {
		attention_unit u = attention_unit_at(c, i);
		unit(f, &u, &m);
	}
}

size_t KERNEL(additive_attention_grad_scratch)(const backend *b, const op_call *call)
{
	attention_cut c = attention_cut_of(b, call);
	int64_t floats = kernel_spare_floats(call, 0) + c.batch * c.parts * c.d;
	return (size_t)(floats + c.threads * attention_march_floats(&c)) * sizeof(float);
}

status KERNEL(additive_attention_grad)(backend *b, const op_call *call)
{
	float *memory = call->scratch;
	backward f = {.cut = attention_cut_of(b, call),
	              .x = call->in[0].data,
	              .w = call->in[1].data,
	              .mask = kernel_optional(call, 2),
	              .g = call->in[3].data,
	              .log_normalizer = call->in[4].data,
	              .dg = call->in[5].data,
	              .dx = kernel_output(call, 0, &memory)};
	const attention_cut *c = &f.cut;
	const int threads = c->threads;
	f.frozen = ((const additive_attention_params *)call->params)->frozen;
	f.scale = 1.0f / sqrtf((float)c->dh);
	f.dw = memory;
	memory += c->batch * c->parts * c->d;
	if (threads == 1) {
		attention_grad_share(&f, 0, memory);
	} else {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
		for (int thread = 0; thread < threads; thread++)
			attention_grad_share(&f, thread, memory);
	}
	if (call->out[1].data)
		kernel_sum_parts(call->out[1].data, f.dw, c->batch * c->parts, c->d, 1.0f);
	return STATUS_OK;
}
