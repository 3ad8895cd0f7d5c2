/* The recurrent form, one token and one head at a time, over the state drawn in
 * engine/tensor/ops/additive_stream.h. */
#include "engine/tensor/ops/additive_stream.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"

/* One aggregate (m, z, s[dh]) of one head. */
typedef struct aggregate {
	float *m, *z, *s;
	int64_t width; /* dh */
} aggregate;

/* Data that is constant for one sequence and head. */
typedef struct stream {
	float *state; /* this round's floats in the slot */
	int64_t window, channels, heads, head;
} stream;

/* Head `head` of the aggregate at float `at` of the state: | m [H] | z [H] | s [D] |. */
static aggregate aggregate_at(const stream *t, int64_t at)
{
	int64_t width = t->channels / t->heads;
	float *first = t->state + at;
	return (aggregate){first + t->head, first + t->heads + t->head, first + 2 * t->heads + t->head * width, width};
}

static void set_empty(aggregate a)
{
	*a.m = STREAM_EMPTY;
	*a.z = 0;
	for (int64_t d = 0; d < a.width; d++)
		a.s[d] = 0;
}

static void set(aggregate to, aggregate from)
{
	*to.m = *from.m;
	*to.z = *from.z;
	memcpy(to.s, from.s, (size_t)to.width * sizeof *to.s);
}

/* to = to ⊕ b: m = max, z and s rescaled to it and added. */
static void merge(aggregate to, aggregate b)
{
	double m = fmax((double)*to.m, (double)*b.m);
	double mine = exp((double)*to.m - m), other = exp((double)*b.m - m);
	*to.m = (float)m;
	*to.z = (float)(mine * (double)*to.z + other * (double)*b.z);
	for (int64_t d = 0; d < to.width; d++)
		to.s[d] = (float)(mine * (double)to.s[d] + other * (double)b.s[d]);
}

/* Steps 1 to 4 of the header for the token at `position`; total becomes the window. */
static void advance_window(const stream *t, int64_t position, aggregate token, aggregate total)
{
	int64_t width = stream_width(t->channels, t->heads), b = stream_block(t->window);
	int64_t j = position / b, p = position % b, first = stream_first(t->window, p);
	aggregate P = aggregate_at(t, STREAM_PREFIX), Q = aggregate_at(t, stream_running(width));
	if (j >= 1 && p >= 1)
		merge(aggregate_at(t, stream_slot(width, t->window, j - 1, b - 1 - p)),
		      aggregate_at(t, stream_slot(width, t->window, j - 1, b - p)));
	if (p == 0) {
		set(Q, P);
		set_empty(P);
	}
	merge(P, token);
	merge(Q, token);
	set(total, Q);
	if (j >= 2 && first < b)
		merge(total, aggregate_at(t, stream_slot(width, t->window, j - 2, first)));
	set(aggregate_at(t, stream_slot(width, t->window, j, p)), token);
}

static void restart(const stream *t)
{
	int64_t floats = additive_state_floats(t->channels, t->heads, t->window);
	int64_t width = stream_width(t->channels, t->heads);
	if (t->head == 0) /* the first head clears for all */
		memset(t->state, 0, (size_t)floats * sizeof *t->state);
	if (floats > 0)
		set_empty(aggregate_at(t, STREAM_PREFIX));
	if (stream_block(t->window) > 0)
		set_empty(aggregate_at(t, stream_running(width)));
}

static void advance(const stream *t, int64_t position, aggregate token, aggregate total)
{
	if (position == 0)
		restart(t);
	if (stream_is_global(t->window)) {
		aggregate P = aggregate_at(t, STREAM_PREFIX);
		merge(P, token);
		set(total, P);
	} else if (t->window == 1) {
		set(total, token);
	} else {
		advance_window(t, position, token, total);
	}
}

/* Two aggregates of one head: the token and its window. */
size_t reference_additive_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return 2 * ((size_t)shape_last(call->in[0].shape) + 2) * sizeof(float);
}

/* Read one token of one head: x, w [dh] -> g [dh], score, log_normalizer; outputs may be NULL. */
static void additive_stream_read_token(const stream *t, int64_t position, bool masked, const float *x, const float *w,
                                       float *scratch, float *g, float *score, float *log_normalizer)
{
	int64_t width = t->channels / t->heads;
	aggregate token = {scratch, scratch + 1, scratch + 2, width};
	aggregate total = {scratch + width + 2, scratch + width + 3, scratch + width + 4, width};
	double a = 0;
	for (int64_t d = 0; d < width; d++)
		a += (double)w[d] * (double)x[d];
	a /= sqrt((double)width);
	set_empty(token);
	if (!masked) {
		*token.m = (float)a;
		*token.z = 1;
		memcpy(token.s, x, (size_t)width * sizeof *x);
	}
	advance(t, position, token, total);
	bool empty = !(*total.z > 0);
	for (int64_t d = 0; d < width && g; d++)
		g[d] = empty ? 0 : (float)((double)total.s[d] / (double)*total.z);
	if (score)
		*score = (float)a;
	if (log_normalizer)
		*log_normalizer = empty ? -INFINITY : (float)((double)*total.m + log((double)*total.z));
}

static void zero(float *data, int64_t count)
{
	if (data)
		memset(data, 0, (size_t)count * sizeof *data);
}

/* Address of element `at`, or NULL for an unwanted output. */
static float *element(const tensor *t, int64_t at)
{
	return t->data ? (float *)t->data + at : NULL;
}

/* x [B, N, D], w [D], pool [slots, floats], slot, position, length [B], mask? [B, N], start?
 *   -> g [B, N, D], score [B, N, H], log_normalizer [B, N, H] */
status reference_additive_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const additive_stream_params *p = call->params;
	const float *x = call->in[0].data, *w = call->in[1].data;
	const int32_t *slot = call->in[3].data, *position = call->in[4].data, *length = call->in[5].data;
	const int32_t *mask = call->n_in > 6 ? call->in[6].data : NULL;
	shape in = call->in[0].shape;
	int64_t channels = in.dim[2], width = channels / p->heads;
	zero(call->out[0].data, shape_count(call->out[0].shape));
	zero(call->out[1].data, shape_count(call->out[1].shape));
	zero(call->out[2].data, shape_count(call->out[2].shape));
	for (int64_t b = 0; b < sequence_count(call, 7); b++) {
		float *state = (float *)call->in[2].data + slot[b] * call->in[2].shape.dim[1] + p->offset;
		for (int64_t i = 0; i < length[b]; i++) {
			int64_t row = sequence_at(call, 7, b).first + i;
			for (int64_t h = 0; h < p->heads; h++) {
				stream t = {state, p->window, channels, p->heads, h};
				additive_stream_read_token(&t, (int64_t)position[b] + i, mask && !mask[row],
				                           x + row * channels + h * width, w + h * width, call->scratch,
				                           element(&call->out[0], row * channels + h * width),
				                           element(&call->out[1], row * p->heads + h),
				                           element(&call->out[2], row * p->heads + h));
			}
		}
	}
	return STATUS_OK;
}
