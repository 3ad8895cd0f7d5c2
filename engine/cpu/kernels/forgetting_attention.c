/* forgetting_attention, forgetting_stream and the gradient, over whole sequences or a slot's next tokens.
 *
 * A unit of work is a sequence for a group of neighbouring heads; its tokens come one after another, so a sequence that
 * is cut in any way leaves the same bits, and both forms are one loop. Heads are independent, so the grouping changes
 * no bit. A token takes two exponentials of each head, in vectors over the heads, and one pass over the channels. At
 * d 128 and 16 heads that is about 60 ns, a hundredth of a layer's products, so no scan in parts is needed. */
#include <math.h>
#include <string.h>

#include "engine/cpu/kernels/attention.h"
#include "engine/tensor/ops/forgetting.h"
#include "engine/tensor/ops/sequence.h"

enum {
	COST = 4,
	GRAD_COST = 8,
	HEADS = 16, /* maximum heads of a unit */
	LINE = 8,   /* heads of a unit are a multiple of this, so that units rarely share a cache line */
	START = 7,  /* the input of the stream */
	STREAM_F = 8,
	STREAM_BONUS = 9,
};

/* A call, taken apart. Row r of a tensor is at r·d or r·heads. */
typedef struct pooling {
	const float *v, *a, *f; /* f NULL: 0 */
	const int32_t *mask;    /* NULL: no token is skipped */
	const float *bonus;     /* NULL: none; otherwise dh is 1 */
	float *g, *l, *before;  /* l and before may be NULL */
	int64_t d, heads, dh;
	int64_t f_stride; /* 0: one rate of each head */
	int64_t group, groups;
} pooling;

/* Heads head … head + heads - 1 of tokens first … first + length - 1. */
typedef struct unit {
	int64_t head, heads, first, length;
} unit;

static pooling pooling_of(const op_call *call, int f, int mask, int bonus, int threads)
{
	const int64_t d = call->in[0].shape.dim[2], heads = shape_last(call->in[1].shape);
	pooling p = {.v = call->in[0].data,
	             .a = call->in[1].data,
	             .f = kernel_optional(call, f),
	             .mask = kernel_optional(call, mask),
	             .bonus = kernel_optional(call, bonus),
	             .d = d,
	             .heads = heads,
	             .dh = d / heads};
	p.f_stride = p.f && shape_count(call->in[f].shape) != heads ? heads : 0;
	p.group = kernel_min(HEADS, kernel_parts(kernel_parts(heads, threads), LINE) * LINE);
	p.groups = kernel_parts(heads, p.group);
	return p;
}

static unit forgetting_unit(const pooling *p, int64_t index, sequence tokens, int64_t length)
{
	const int64_t head = index % p->groups * p->group;
	return (unit){head, kernel_min(p->group, p->heads - head), tokens.first, length};
}

/* --- forward ------------------------------------------------------------------------------------------------ */

/* The running sums of a unit's heads, and their e^f = 2^n (1 + less) (engine/tensor/ops/forgetting.h). */
typedef struct head_sums {
	int32_t m[HEADS];
	float s[HEADS], rest[HEADS];
} head_sums;
typedef struct head_rates {
	int32_t n[HEADS];
	float less[HEADS];
} head_rates;

/* 2^e for e from -127 (here 0) to 127. */
static inline float two_to(int32_t e)
{
	return math_float((uint32_t)(e + 127) << 23);
}

static inline int32_t at_least(int32_t x, int32_t low)
{
	return x > low ? x : low;
}

/* e^x = 2^n (1 + less), |less| < 0.42. Returns n. NaN gives less = NaN. */
static inline int32_t power(float x, float *less)
{
	const float finite = x == x ? x : 0.0f;
#ifdef FP_FAST_FMAF
	/* A second time, since the first product has no fraction left from 2^23 on. */
	const float log2e = 0x1.715476p0f, high = 0x1.62e43p-1f, low = -0x1.05c61p-29f;
	const float n = rintf(finite * log2e), near = fmaf(-n, low, fmaf(-n, high, x));
	const float more = rintf((x == x ? near : 0.0f) * log2e), r = fmaf(-more, low, fmaf(-more, high, near));
	*less = math_exp_less_one_near(r);
	return (int32_t)n + (int32_t)more;
#else
	const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453, turns = (double)finite * log2e;
	const int32_t n = (int32_t)(turns < 0 ? turns - 0.5 : turns + 0.5);
	*less = math_exp_less_one_near((float)((double)x - n * ln2));
	return n;
#endif
}

/* f NULL: 0 */
ATTENTION_INLINE void prepare_rates(const float *f, head_rates *to, int64_t heads)
{
	if (!f)
		*to = (head_rates){0};
#pragma omp simd
	for (int64_t h = 0; h < (f ? heads : 0); h++)
		to->n[h] = power(forgetting_bounded_rate(f[h]), &to->less[h]);
}

/* Add a token, and return its weight. */
ATTENTION_INLINE void weigh(const float *a, const head_rates *rates, head_sums *S, float *weight, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		float more;
		const int32_t power_of_a = power(forgetting_bounded(a[h]), &more);
		const bool hidden = a[h] == -INFINITY;
		const int32_t k = hidden ? FORGETTING_HIDDEN : power_of_a;
		const float own = hidden ? 0.0f : 1.0f + more;
		const float s = S->s[h], less = rates->less[h];
		const int32_t over = S->m[h] + rates->n[h] - k, above = at_least(over, 0);
		const float old = two_to(at_least(over - above, -FORGETTING_FAR));
		const float new = two_to(at_least(-above, -FORGETTING_FAR));
		const float kept = s * old, added = kept * less + (S->rest[h] * old * (1.0f + less) + own * new);
		const float sum = kept + added;
		const float left = kept > added ? (kept - sum) + added : (added - sum) + kept;
		const int32_t exponent = (int32_t)(math_bits(s) >> 23) - 127,
		              e = at_least(exponent + over - above, -above);
		const int32_t m = at_least(k + above + e, FORGETTING_FLOOR);
		const float scale = two_to(-e), next = sum * scale, rest = left * scale;
		S->s[h] = next;
		S->rest[h] = rest;
		S->m[h] = m;
		weight[h] = own * two_to(at_least(k - m, -127)) / (next + rest);
	}
}

/* l = m ln 2 + log s */
ATTENTION_INLINE void write_logs(const head_sums *S, float *l, int64_t heads)
{
	const float high = 0x1.62e43p-1f, low = -0x1.05c61p-29f; /* parts of ln 2 */
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float m = (float)S->m[h], log = m * high + (m * low + math_log(S->s[h] + S->rest[h]));
		l[h] = S->m[h] > FORGETTING_FLOOR ? log : -INFINITY;
	}
}

ATTENTION_INLINE void pool_token(const float *v, const float *weight, float *state, float *g, int64_t heads,
                                 const int64_t dh)
{
	for (int64_t h = 0; h < heads; h++) {
		const float w = weight[h];
#pragma omp simd
		for (int64_t i = h * dh; i < (h + 1) * dh; i++) {
			state[i] += w * (v[i] - state[i]);
			g[i] = state[i];
		}
	}
}

/* One channel a head: heads are the vector. */
ATTENTION_INLINE void pool_heads(const float *v, const float *weight, float *state, float *g, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		state[h] += weight[h] * (v[h] - state[h]);
		g[h] = state[h];
	}
}

/* Read the unit's tokens into its sums and g [heads · dh]. */
ATTENTION_INLINE void read_unit(const pooling *p, const unit *u, head_sums *S, float *state, const int64_t dh)
{
	float weight[HEADS];
	head_rates rates;
	prepare_rates(p->f && !p->f_stride ? p->f + u->head : NULL, &rates, u->heads);
	for (int64_t t = u->first; t < u->first + u->length; t++) {
		const int64_t channel = t * p->d + u->head * dh, head = t * p->heads + u->head;
		if (p->mask && !p->mask[t]) {
			memcpy(p->g + channel, state, (size_t)(u->heads * dh) * sizeof *state);
		} else {
			if (p->f_stride)
				prepare_rates(p->f + head, &rates, u->heads);
			weigh(p->a + head, &rates, S, weight, u->heads);
			if (dh == 1)
				pool_heads(p->v + channel, weight, state, p->g + channel, u->heads);
			else
				pool_token(p->v + channel, weight, state, p->g + channel, u->heads, dh);
		}
		if (p->l)
			write_logs(S, p->l + head, u->heads);
	}
}

/* Write e^{a + bonus} / (S + e^{a + bonus}), the share of a token in what it reads itself. */
ATTENTION_INLINE void weigh_own(const float *a, const float *bonus, const head_sums *S, float *share, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float score = a[h] + bonus[h];
		float less;
		const int32_t k = power(forgetting_bounded(score), &less), over = S->m[h] - k,
		              above = at_least(over, 0);
		const float own = score == -INFINITY ? 0.0f : (1.0f + less) * two_to(at_least(-above, -FORGETTING_FAR));
		share[h] = own / ((S->s[h] + S->rest[h]) * two_to(at_least(over - above, -FORGETTING_FAR)) + own);
	}
}

/* With bonus: the outputs are those of the state before each token, and what the token reads. */
ATTENTION_INLINE void read_with_bonus(const pooling *p, const unit *u, head_sums *S, float *state)
{
	const size_t bytes = (size_t)u->heads * sizeof *state;
	float weight[HEADS], share[HEADS];
	head_rates rates;
	prepare_rates(p->f && !p->f_stride ? p->f + u->head : NULL, &rates, u->heads);
	for (int64_t t = u->first; t < u->first + u->length; t++) {
		const int64_t at = t * p->d + u->head;
		const float *v = p->v + at;
		float *g = p->g + at;
		if (p->l)
			write_logs(S, p->l + at, u->heads);
		if (p->before)
			memcpy(p->before + at, state, bytes);
		if (p->mask && !p->mask[t]) {
			memcpy(g, state, bytes);
			continue;
		}
		weigh_own(p->a + at, p->bonus + u->head, S, share, u->heads);
		if (p->f_stride)
			prepare_rates(p->f + at, &rates, u->heads);
		weigh(p->a + at, &rates, S, weight, u->heads);
#pragma omp simd
		for (int64_t h = 0; h < u->heads; h++) {
			const float old = state[h], off = v[h] - old;
			g[h] = old + share[h] * off;
			state[h] = old + weight[h] * off;
		}
	}
}

/* Call f with the width of a head as a constant, if it is a usual one. */
#define FORGETTING_WIDTHS(dh, f, ...)                                                                                  \
	((dh) == 1    ? f(__VA_ARGS__, 1)                                                                              \
	 : (dh) == 8  ? f(__VA_ARGS__, 8)                                                                              \
	 : (dh) == 16 ? f(__VA_ARGS__, 16)                                                                             \
	              : ATTENTION_WIDTHS(dh, f, __VA_ARGS__))

static void pool_tokens(const pooling *p, const unit *u, head_sums *S, float *state)
{
	if (p->bonus)
		read_with_bonus(p, u, S, state);
	else
		FORGETTING_WIDTHS(p->dh, read_unit, p, u, S, state);
}

static void clear_sums(head_sums *S)
{
	for (int64_t h = 0; h < HEADS; h++) {
		S->m[h] = FORGETTING_FLOOR;
		S->s[h] = 1.0f;
		S->rest[h] = 0.0f;
	}
}

/* A unit's state, for each thread. */
static int64_t state_floats(const op_call *call)
{
	return HEADS * (shape_last(call->in[0].shape) / shape_last(call->in[1].shape));
}

size_t KERNEL(forgetting_attention_scratch)(const backend *b, const op_call *call)
{
	const int threads = kernel_threads(b, shape_count(call->in[0].shape) * COST);
	return (size_t)(kernel_spare_floats(call, 0) + threads * state_floats(call)) * sizeof(float);
}

status KERNEL(forgetting_attention)(backend *b, const op_call *call)
{
	const shape v = call->in[0].shape;
	const int threads = kernel_threads(b, shape_count(v) * COST);
	float *memory = call->scratch;
	pooling p = pooling_of(call, 2, 3, 4, threads);
	p.g = kernel_output(call, 0, &memory);
	p.l = call->out[1].data;
	p.before = call->out[2].data;
	const int64_t count = v.dim[0] * p.groups, floats = state_floats(call);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
	for (int thread = 0; thread < threads; thread++)
		for (int64_t i = thread; i < count; i += threads) {
			const sequence tokens = {i / p.groups * v.dim[1], v.dim[1]};
			const unit u = forgetting_unit(&p, i, tokens, v.dim[1]);
			float *state = memory + thread * floats;
			head_sums S;
			clear_sums(&S);
			memset(state, 0, (size_t)(u.heads * p.dh) * sizeof *state);
			pool_tokens(&p, &u, &S, state);
		}
	return STATUS_OK;
}

/* --- the recurrent form ------------------------------------------------------------------------------------- */

/* from: m, s and rest of the first head; each is `stride` from the last. */
static void load_sums(head_sums *S, const float *from, int64_t stride, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		S->m[h] = forgetting_exponent(from[h]);
		S->s[h] = from[stride + h];
		S->rest[h] = from[2 * stride + h];
	}
}

static void store_sums(const head_sums *S, float *to, int64_t stride, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		to[h] = (float)S->m[h];
		to[stride + h] = S->s[h];
		to[2 * stride + h] = S->rest[h];
	}
}

static void forgetting_session(const op_call *call, const pooling *p, int64_t i)
{
	const int64_t row = i / p->groups;
	const sequence tokens = sequence_at(call, START, row);
	const int32_t slot = ((const int32_t *)call->in[3].data)[row],
	              length = ((const int32_t *)call->in[5].data)[row];
	const unit u = forgetting_unit(p, i, tokens, length);
	float *state = (float *)call->in[2].data + slot * call->in[2].shape.dim[1] +
	               ((const forgetting_stream_params *)call->params)->offset;
	float *kept = state + u.head, *g = state + 3 * p->heads + u.head * p->dh;
	head_sums S;
	assert(length >= 0 && length <= tokens.room && slot >= 0 && slot < call->in[2].shape.dim[0]);
	if (length > 0) {
		if (((const int32_t *)call->in[4].data)[row] == 0) {
			clear_sums(&S);
			memset(g, 0, (size_t)(u.heads * p->dh) * sizeof *g);
		} else {
			load_sums(&S, kept, p->heads, u.heads);
		}
		pool_tokens(p, &u, &S, g);
		store_sums(&S, kept, p->heads, u.heads);
	}
	for (int64_t t = tokens.first + length; t < tokens.first + tokens.room; t++) {
		memset(p->g + t * p->d + u.head * p->dh, 0, (size_t)(u.heads * p->dh) * sizeof *p->g);
		if (p->l)
			memset(p->l + t * p->heads + u.head, 0, (size_t)u.heads * sizeof *p->l);
		if (p->bonus && p->before)
			memset(p->before + t * p->d + u.head, 0, (size_t)u.heads * sizeof *p->before);
	}
}

size_t KERNEL(forgetting_stream_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_spare_floats(call, 0) * sizeof(float);
}

status KERNEL(forgetting_stream)(backend *b, const op_call *call)
{
	const int threads = kernel_threads(b, shape_count(call->in[0].shape) * COST);
	float *memory = call->scratch;
	const int64_t rows = sequence_count(call, START);
	pooling p = pooling_of(call, STREAM_F, 6, STREAM_BONUS, rows < threads ? threads : 1);
	p.g = kernel_output(call, 0, &memory);
	p.l = call->out[1].data;
	p.before = call->out[2].data;
	const int64_t count = rows * p.groups;
	if (threads == 1) { /* entering a parallel region costs as much as a step */
		for (int64_t i = 0; i < count; i++)
			forgetting_session(call, &p, i);
		return STATUS_OK;
	}
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
	for (int64_t i = 0; i < count; i++)
		forgetting_session(call, &p, i);
	return STATUS_OK;
}

/* --- gradient ------------------------------------------------------------------------------------------------ */

typedef struct gradient {
	pooling p;
	const float *g, *l, *dg;
	float *dv, *da, *df; /* df NULL: not by token */
	float *sums;         /* [B, H]: df of each sequence, for one rate of each head */
	float *own;          /* [B, H]: dbonus of each sequence */
	bool frozen;
} gradient;

/* w = e^{a - l} and 1 - w. before: l of the token before; NULL: for the first of the call. */
ATTENTION_INLINE void factors(const float *a, const float *f, const float *l, const float *before, float *weight,
                              float *keep, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float over = a[h] - l[h];
		weight[h] = math_exp(over > 0.0f ? 0.0f : over); /* above by rounding only */
		keep[h] = before ? math_exp(before[h] + (f ? f[h] : 0.0f) - l[h]) : 1.0f - weight[h];
	}
}

/* sum: the gradient of g that later tokens have brought, which becomes that of the token before. delta = w G·(v - g).
 */
ATTENTION_INLINE void pull_token(const float *v, const float *g, const float *dg, const float *weight,
                                 const float *keep, float *sum, float *dv, float *delta, int64_t heads,
                                 const int64_t dh)
{
	for (int64_t h = 0; h < heads; h++) {
		const float w = weight[h], kept = keep[h];
		float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
		for (int64_t i = h * dh; i < (h + 1) * dh; i++) {
			const float both = sum[i] + dg[i];
			dot += both * (v[i] - g[i]);
			dv[i] = w * both;
			sum[i] = kept * both;
		}
		delta[h] = w * dot;
	}
}

/* One channel a head. */
ATTENTION_INLINE void pull_heads(const float *v, const float *g, const float *dg, const float *weight,
                                 const float *keep, float *sum, float *dv, float *delta, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float both = sum[h] + dg[h];
		delta[h] = weight[h] * both * (v[h] - g[h]);
		dv[h] = weight[h] * both;
		sum[h] = keep[h] * both;
	}
}

/* da, df and the gradient of l of the token before. */
ATTENTION_INLINE void pull_scores(const gradient *o, const float *weight, const float *keep, const float *delta,
                                  float *later, float *da, float *df, float *total, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float to_a = delta[h] + weight[h] * later[h], to_f = keep[h] * later[h] - delta[h];
		da[h] = o->frozen ? 0.0f : to_a;
		later[h] = o->frozen ? 0.0f : to_f;
	}
	for (int64_t h = 0; h < heads && df; h++)
		df[h] = later[h];
	for (int64_t h = 0; h < heads && total; h++)
		total[h] += later[h];
}

/* sum: [heads · dh]; total: [heads], or NULL. */
ATTENTION_INLINE void pull_unit(const gradient *o, const unit *u, float *sum, float *total, const int64_t dh)
{
	const pooling *p = &o->p;
	float weight[HEADS], keep[HEADS], delta[HEADS], later[HEADS] = {0};
	memset(sum, 0, (size_t)(u->heads * dh) * sizeof *sum);
	for (int64_t t = u->first + u->length - 1; t >= u->first; t--) {
		const int64_t channel = t * p->d + u->head * dh, head = t * p->heads + u->head;
		const float *dg = o->dg + channel, *l = o->l + head;
		float *df = o->df ? o->df + head : NULL;
		if (p->mask && !p->mask[t]) {
			for (int64_t i = 0; i < u->heads * dh; i++)
				sum[i] += dg[i];
			memset(o->dv + channel, 0, (size_t)(u->heads * dh) * sizeof *sum);
			memset(o->da + head, 0, (size_t)u->heads * sizeof *sum);
			if (df)
				memset(df, 0, (size_t)u->heads * sizeof *sum);
			continue;
		}
		factors(p->a + head, p->f ? p->f + (p->f_stride ? head : u->head) : NULL, l,
		        t > u->first ? l - p->heads : NULL, weight, keep, u->heads);
		if (dh == 1)
			pull_heads(p->v + channel, o->g + channel, dg, weight, keep, sum, o->dv + channel, delta,
			           u->heads);
		else
			pull_token(p->v + channel, o->g + channel, dg, weight, keep, sum, o->dv + channel, delta,
			           u->heads, dh);
		pull_scores(o, weight, keep, delta, later, o->da + head, df, total, u->heads);
	}
}

/* The weights of a token in the state after it and in what it reads, and those of everything before it. */
typedef struct bonus_weights {
	float weight[HEADS], keep[HEADS], share[HEADS], others[HEADS];
} bonus_weights;

/* l: before the token. */
ATTENTION_INLINE void bonus_factors(const float *a, const float *f, const float *bonus, const float *l,
                                    bonus_weights *w, int64_t heads)
{
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float over = l[h] + (f ? f[h] : 0.0f) - a[h], e = math_exp(-fabsf(over)),
		            part = 1.0f / (1.0f + e);
		w->weight[h] = over > 0.0f ? e * part : part;
		w->keep[h] = over > 0.0f ? part : e * part;
	}
#pragma omp simd
	for (int64_t h = 0; h < heads; h++) {
		const float over = l[h] - (a[h] + bonus[h]), e = math_exp(-fabsf(over)), part = 1.0f / (1.0f + e);
		w->share[h] = over > 0.0f ? e * part : part;
		w->others[h] = over > 0.0f ? part : e * part;
	}
}

/* pull_unit with bonus; g and l are those before each token. own: sums of dbonus [heads]. */
ATTENTION_INLINE void pull_with_bonus(const gradient *o, const unit *u, float *restrict sum, float *restrict total,
                                      float *restrict own)
{
	const pooling *p = &o->p;
	const float kept = o->frozen ? 0.0f : 1.0f; /* 0: scores have no gradient */
	float later[HEADS] = {0}, rate[HEADS];
	bonus_weights w;
	memset(sum, 0, (size_t)u->heads * sizeof *sum);
	for (int64_t t = u->first + u->length - 1; t >= u->first; t--) {
		const int64_t at = t * p->d + u->head;
		const float *v = p->v + at, *g = o->g + at, *dg = o->dg + at;
		float *dv = o->dv + at, *da = o->da + at;
		if (p->mask && !p->mask[t]) {
			for (int64_t h = 0; h < u->heads; h++)
				sum[h] += dg[h];
			memset(dv, 0, (size_t)u->heads * sizeof *dv);
			memset(da, 0, (size_t)u->heads * sizeof *da);
			if (o->df)
				memset(o->df + at, 0, (size_t)u->heads * sizeof *o->df);
			continue;
		}
		bonus_factors(p->a + at, p->f ? p->f + (p->f_stride ? at : u->head) : NULL, p->bonus + u->head,
		              o->l + at, &w, u->heads);
#pragma omp simd
		for (int64_t h = 0; h < u->heads; h++) {
			const float off = kept * (v[h] - g[h]);
			const float delta = w.weight[h] * w.keep[h] * sum[h] * off;
			const float e = w.share[h] * w.others[h] * dg[h] * off;
			dv[h] = w.weight[h] * sum[h] + w.share[h] * dg[h];
			da[h] = delta + e + w.weight[h] * later[h];
			rate[h] = w.keep[h] * later[h] - delta;
			later[h] = rate[h] - e;
			sum[h] = w.keep[h] * sum[h] + w.others[h] * dg[h];
			own[h] += e;
		}
		if (o->df)
			memcpy(o->df + at, rate, (size_t)u->heads * sizeof *rate);
		for (int64_t h = 0; h < u->heads && total; h++)
			total[h] += rate[h];
	}
}

static void pull_tokens(const gradient *o, const unit *u, float *sum, float *total, float *own)
{
	if (o->p.bonus)
		pull_with_bonus(o, u, sum, total, own);
	else
		FORGETTING_WIDTHS(o->p.dh, pull_unit, o, u, sum, total);
}

/* dv and da if they are absent outputs; the sums of each thread's unit; df and dbonus of each sequence. */
size_t KERNEL(forgetting_attention_grad_scratch)(const backend *b, const op_call *call)
{
	const int threads = kernel_threads(b, shape_count(call->in[0].shape) * GRAD_COST);
	return (size_t)(kernel_spare_floats(call, 0) + kernel_spare_floats(call, 1) + threads * state_floats(call) +
	                2 * call->in[0].shape.dim[0] * shape_last(call->in[1].shape)) *
	       sizeof(float);
}

/* Add the rows of sums [sequences, heads]. */
static void add_sequences(const float *sums, int64_t sequences, int64_t heads, float *out)
{
	memset(out, 0, (size_t)heads * sizeof *out);
	for (int64_t b = 0; b < sequences; b++)
		for (int64_t h = 0; h < heads; h++)
			out[h] += sums[b * heads + h];
}

status KERNEL(forgetting_attention_grad)(backend *b, const op_call *call)
{
	const shape v = call->in[0].shape;
	const int threads = kernel_threads(b, shape_count(v) * GRAD_COST);
	float *memory = call->scratch, *df = call->out[2].data;
	gradient o = {.p = pooling_of(call, 2, 3, 7, threads),
	              .g = call->in[4].data,
	              .l = call->in[5].data,
	              .dg = call->in[6].data,
	              .dv = kernel_output(call, 0, &memory),
	              .da = kernel_output(call, 1, &memory),
	              .frozen = ((const forgetting_params *)call->params)->frozen};
	const bool shared = o.p.f && !o.p.f_stride && df;
	const int64_t count = v.dim[0] * o.p.groups, floats = state_floats(call);
	o.df = o.p.f_stride ? df : NULL;
	o.sums = memory + threads * floats;
	o.own = o.sums + v.dim[0] * o.p.heads;
	if (shared || o.p.bonus)
		memset(o.sums, 0, (size_t)(2 * v.dim[0] * o.p.heads) * sizeof *o.sums);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
	for (int thread = 0; thread < threads; thread++)
		for (int64_t i = thread; i < count; i += threads) {
			const int64_t row = i / o.p.groups;
			const unit u = forgetting_unit(&o.p, i, (sequence){row * v.dim[1], v.dim[1]}, v.dim[1]);
			pull_tokens(&o, &u, memory + thread * floats, shared ? o.sums + row * o.p.heads + u.head : NULL,
			            o.own + row * o.p.heads + u.head);
		}
	if (shared)
		add_sequences(o.sums, v.dim[0], o.p.heads, df);
	if (o.p.bonus && call->out[3].data)
		add_sequences(o.own, v.dim[0], o.p.heads, call->out[3].data);
	return STATUS_OK;
}
