/* Token by token, with the state in double. The state in a slot is m [H] | s [H] | rest [H] | g
 * [D] (engine/tensor/ops/forgetting.h). */
#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/forgetting.h"
#include "engine/tensor/ops/sequence.h"

/* The tokens of a sequence as one head sees them. */
typedef struct reading {
	const float *v, *a, *f; /* f NULL: 0 */
	const int32_t *mask;    /* NULL: no token is skipped */
	int64_t d, heads, width, f_stride;
	const float *bonus;    /* NULL: none */
	float *g, *l, *before; /* each may be NULL; before: with bonus */
} reading;

static const void *given(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : NULL;
}

static float *offset(float *data, int64_t by)
{
	return data ? data + by : NULL;
}

/* Head h from row `row` on; f, mask and bonus are inputs with these numbers. */
static reading forgetting_head(const op_call *call, int f, int mask, int bonus, int64_t row, int64_t h)
{
	const int64_t d = call->in[0].shape.dim[2], heads = shape_last(call->in[1].shape);
	const float *rate = given(call, f), *own = given(call, bonus);
	const int32_t *kept = given(call, mask);
	const bool by_token = rate && shape_count(call->in[f].shape) != heads;
	return (reading){.v = (const float *)call->in[0].data + row * d + h * (d / heads),
	                 .a = (const float *)call->in[1].data + row * heads + h,
	                 .f = rate ? rate + (by_token ? row * heads : 0) + h : NULL,
	                 .mask = kept ? kept + row : NULL,
	                 .bonus = own ? own + h : NULL,
	                 .d = d,
	                 .heads = heads,
	                 .width = d / heads,
	                 .f_stride = by_token ? heads : 0};
}

static double forget_of(const reading *r, int64_t t)
{
	return r->f ? (double)r->f[t * r->f_stride] : 0;
}

static double bounded_score(const reading *r, int64_t t)
{
	return r->a[t * r->heads] == -INFINITY ? -INFINITY : (double)forgetting_bounded(r->a[t * r->heads]);
}

static bool is_skipped(const reading *r, int64_t t)
{
	return r->mask && !r->mask[t];
}

/* l' = log(e^p + e^a) */
static double log_add(double p, double a)
{
	const double top = fmax(p, a);
	return top == -INFINITY ? top : top + log(exp(p - top) + exp(a - top));
}

static double logistic(double x)
{
	return 1 / (1 + exp(-x));
}

/* With bonus: output the state before token t, and what the token reads. */
static void read_own(const reading *r, int64_t t, double l, const double *g)
{
	const double share = is_skipped(r, t) ? 0 : logistic((double)*r->bonus + bounded_score(r, t) - l);
	for (int64_t c = 0; c < r->width; c++) {
		const double more = share > 0 ? share * ((double)r->v[t * r->d + c] - g[c]) : 0;
		if (r->g)
			r->g[t * r->d + c] = (float)(g[c] + more);
		if (r->before)
			r->before[t * r->d + c] = (float)g[c];
	}
	if (r->l)
		r->l[t * r->heads] = (float)l;
}

/* Read `count` tokens into the state l, g [width]. */
static void read_tokens(const reading *r, int64_t count, double *l, double *g)
{
	for (int64_t t = 0; t < count; t++) {
		if (r->bonus)
			read_own(r, t, *l, g);
		if (!is_skipped(r, t)) {
			const double a = bounded_score(r, t), next = log_add(*l + forget_of(r, t), a),
			             w = exp(a - next);
			for (int64_t c = 0; c < r->width && a != -INFINITY; c++)
				g[c] += w * ((double)r->v[t * r->d + c] - g[c]);
			*l = next;
		}
		for (int64_t c = 0; c < r->width && r->g && !r->bonus; c++)
			r->g[t * r->d + c] = (float)g[c];
		if (r->l && !r->bonus)
			r->l[t * r->heads] = (float)*l;
	}
}

/* g [dh] */
size_t reference_forgetting_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) * sizeof(double);
}

/* v [B, N, D], a [B, N, H], f?, mask?, bonus? -> g [B, N, D], l [B, N, H], before [B, N, D] */
status reference_forgetting_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const shape v = call->in[0].shape;
	const int64_t heads = shape_last(call->in[1].shape);
	double *g = call->scratch;
	for (int64_t b = 0; b < v.dim[0]; b++)
		for (int64_t h = 0; h < heads; h++) {
			const int64_t row = b * v.dim[1];
			reading r = forgetting_head(call, 2, 3, 4, row, h);
			double l = -INFINITY;
			memset(g, 0, (size_t)r.width * sizeof *g);
			r.g = offset(call->out[0].data, row * r.d + h * r.width);
			r.l = offset(call->out[1].data, row * heads + h);
			r.before = offset(call->out[2].data, row * r.d + h * r.width);
			read_tokens(&r, v.dim[1], &l, g);
		}
	return STATUS_OK;
}

/* dg_t summed with what comes from later tokens [dh], df of a constant rate [H] and dbonus [H] */
size_t reference_forgetting_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(shape_last(call->in[0].shape) + 2 * shape_last(call->in[1].shape)) * sizeof(double);
}

/* v, a, f?, mask?, g, l, dg -> dv, da, df; for one head of the sequence that begins at `row`. G [dh]; *total: df
 * summed over the tokens. */
static void pull_head(const op_call *call, int64_t row, int64_t h, double *G, double *total)
{
	const reading r = forgetting_head(call, 2, 3, 7, row, h);
	const bool frozen = ((const forgetting_params *)call->params)->frozen;
	const int64_t n = call->in[0].shape.dim[1], channel = row * r.d + h * r.width, head = row * r.heads + h;
	const float *g = (const float *)call->in[4].data + channel, *l = (const float *)call->in[5].data + head;
	const float *dg = (const float *)call->in[6].data + channel;
	float *dv = offset(call->out[0].data, channel), *da = offset(call->out[1].data, head);
	float *df = r.f_stride ? offset(call->out[2].data, head) : NULL;
	double L = 0;
	memset(G, 0, (size_t)r.width * sizeof *G);
	for (int64_t t = n - 1; t >= 0; t--) {
		const bool skipped = is_skipped(&r, t);
		const double at = (double)l[t * r.heads];
		const double w = skipped ? 0 : exp(bounded_score(&r, t) - at);
		double keep = 1, delta = 0;
		if (!skipped && t > 0)
			keep = exp((double)l[(t - 1) * r.heads] + forget_of(&r, t) - at);
		else if (!skipped)
			keep = -expm1(fmin(bounded_score(&r, t) - at, 0));
		for (int64_t c = 0; c < r.width; c++) {
			G[c] += (double)dg[t * r.d + c];
			delta += w * G[c] * ((double)r.v[t * r.d + c] - (double)g[t * r.d + c]);
			if (dv)
				dv[t * r.d + c] = (float)(w * G[c]);
			G[c] *= keep;
		}
		const double to_a = frozen ? 0 : delta + w * L, to_p = frozen ? 0 : keep * L - delta;
		if (da)
			da[t * r.heads] = (float)to_a;
		if (df)
			df[t * r.heads] = skipped ? 0 : (float)to_p;
		*total += skipped ? 0 : to_p;
		L = to_p;
	}
}

/* Likewise with a bonus and one channel; g and l are those before each token. *own: the sum of dbonus. */
static void pull_with_bonus(const op_call *call, int64_t row, int64_t h, double *total, double *own)
{
	const reading r = forgetting_head(call, 2, 3, 7, row, h);
	const bool frozen = ((const forgetting_params *)call->params)->frozen;
	const int64_t first = row * r.heads + h;
	const float *g = (const float *)call->in[4].data + first, *l = (const float *)call->in[5].data + first;
	const float *dg = (const float *)call->in[6].data + first;
	float *dv = offset(call->out[0].data, first), *da = offset(call->out[1].data, first);
	float *df = r.f_stride ? offset(call->out[2].data, first) : NULL;
	double G = 0, L = 0;
	for (int64_t t = call->in[0].shape.dim[1] - 1; t >= 0; t--) {
		const int64_t i = t * r.heads;
		const bool skipped = is_skipped(&r, t);
		const double a = bounded_score(&r, t), bonus = (double)*r.bonus, out = (double)dg[i], at = (double)l[i];
		const double w = skipped ? 0 : logistic(a - at - forget_of(&r, t));
		const double keep = skipped ? 1 : logistic(at + forget_of(&r, t) - a);
		const double s = skipped ? 0 : logistic(bonus + a - at),
		             others = skipped ? 1 : logistic(at - a - bonus);
		const double off = skipped ? 0 : (double)r.v[i] - (double)g[i];
		const double delta = frozen ? 0 : w * keep * G * off, e = frozen ? 0 : s * others * out * off;
		const double to_a = delta + e + w * L, to_p = keep * L - delta;
		if (dv)
			dv[i] = (float)(w * G + s * out);
		if (da)
			da[i] = (float)to_a;
		if (df)
			df[i] = skipped ? 0 : (float)to_p;
		*total += skipped ? 0 : to_p;
		*own += e;
		G = keep * G + others * out;
		L = to_p - e;
	}
}

status reference_forgetting_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const shape v = call->in[0].shape;
	const int64_t heads = shape_last(call->in[1].shape);
	double *G = call->scratch, *total = G + v.dim[2], *own = total + heads;
	float *df = call->out[2].data, *bonus = call->out[3].data;
	memset(total, 0, (size_t)(2 * heads) * sizeof *total);
	for (int64_t b = 0; b < v.dim[0]; b++)
		for (int64_t h = 0; h < heads; h++)
			if (given(call, 7))
				pull_with_bonus(call, b * v.dim[1], h, &total[h], &own[h]);
			else
				pull_head(call, b * v.dim[1], h, G, &total[h]);
	for (int64_t h = 0; h < heads && df && shape_count(call->out[2].shape) == heads; h++)
		df[h] = (float)total[h];
	for (int64_t h = 0; h < heads && bonus && given(call, 7); h++)
		bonus[h] = (float)own[h];
	return STATUS_OK;
}

size_t reference_forgetting_stream_scratch(const backend *b, const op_call *call)
{
	return reference_forgetting_attention_scratch(b, call);
}

/* v, a, pool, slot, position, length, mask?, start?, f?, bonus? -> g, l, before */
status reference_forgetting_stream(backend *unused, const op_call *call)
{
	(void)unused;
	enum { START = 7 };
	const forgetting_stream_params *p = call->params;
	const int32_t *slot = call->in[3].data, *position = call->in[4].data, *length = call->in[5].data;
	const int64_t heads = shape_last(call->in[1].shape), d = call->in[0].shape.dim[2];
	double *g = call->scratch;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const sequence tokens = sequence_at(call, START, b);
		float *state = (float *)call->in[2].data + slot[b] * call->in[2].shape.dim[1] + p->offset;
		for (int64_t h = 0; h < heads && length[b] > 0; h++) {
			reading r = forgetting_head(call, 8, 6, 9, tokens.first, h);
			float *kept = state + 3 * heads + h * r.width;
			double l = position[b] ? forgetting_log_of_sum(state + h, heads) : -INFINITY;
			for (int64_t c = 0; c < r.width; c++)
				g[c] = position[b] ? (double)kept[c] : 0;
			r.g = offset(call->out[0].data, tokens.first * d + h * r.width);
			r.l = offset(call->out[1].data, tokens.first * heads + h);
			r.before = offset(call->out[2].data, tokens.first * d + h * r.width);
			read_tokens(&r, length[b], &l, g);
			forgetting_sum_of_log(l, state + h, heads);
			for (int64_t c = 0; c < r.width; c++)
				kept[c] = (float)g[c];
		}
		for (int64_t t = length[b]; t < tokens.room; t++) {
			if (call->out[0].data)
				memset((float *)call->out[0].data + (tokens.first + t) * d, 0,
				       (size_t)d * sizeof(float));
			if (call->out[2].data && given(call, 9))
				memset((float *)call->out[2].data + (tokens.first + t) * d, 0,
				       (size_t)d * sizeof(float));
			if (call->out[1].data)
				memset((float *)call->out[1].data + (tokens.first + t) * heads, 0,
				       (size_t)heads * sizeof(float));
		}
	}
	return STATUS_OK;
}
