/* stream_scores, stream_apply, stream_store: a token and a head at a time against the memories, the ring of
 * engine/tensor/ops/matrix_stream.h and the call's own tokens, up to four runs of rows that lie one after another.
 *
 * A score is a dot product of its own, and a sum over values is made in columns of four from the first that is there,
 * so neither the batch nor the cut of a prompt into calls changes a bit. */
#include "engine/tensor/ops/matrix_stream.h"

#include <assert.h>
#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/tensor/ops/sequence.h"

enum { MASK = 6, START = 7, MEMORY = 8 /* inputs */, RUNS = 4, AT_ONCE = 4 };

typedef struct stream {
	matrix_ring ring;
	float *state;
	const float *memory;
	int64_t memories, position, length, columns;
	sequence tokens;
} stream;

static stream stream_at(const op_call *call, int64_t s)
{
	const matrix_stream_params *p = call->params;
	const int32_t slot = ((const int32_t *)call->in[3].data)[s];
	stream r = {.ring = {p->key_width, p->value_width, p->window},
	            .state = (float *)call->in[2].data + slot * call->in[2].shape.dim[1] + p->offset,
	            .memory = kernel_optional(call, MEMORY),
	            .memories = kernel_optional(call, MEMORY) ? call->in[MEMORY].shape.dim[0] : 0,
	            .position = ((const int32_t *)call->in[4].data)[s],
	            .length = ((const int32_t *)call->in[5].data)[s],
	            .tokens = sequence_at(call, START, s)};
	r.columns = r.memories + p->window;
	assert(r.length >= 0 && r.length <= r.tokens.room && r.position >= 0 && slot >= 0 &&
	       slot < call->in[2].shape.dim[0]);
	return r;
}

/* The sequence of a row of the call: the last that begins at it or before. */
static int64_t sequence_of(const op_call *call, int64_t row)
{
	const int32_t *start = kernel_optional(call, START);
	if (!start)
		return row / call->in[0].shape.dim[1];
	int64_t low = 0, high = call->in[START].shape.dim[0];
	while (high - low > 1) {
		const int64_t middle = (low + high) / 2;
		if (start[middle] <= row)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Rows `step` apart; and `there`, where some of them may be masked. */
typedef struct run {
	const float *row, *there;
	const int32_t *mask;
	int64_t step, count;
} run;

/* What stands in the columns of token i from *first on: keys, or values. Returns the number of runs. */
static int runs_of(const op_call *call, const stream *s, int64_t i, bool keys, run out[RUNS], int64_t *first)
{
	const matrix_columns c = matrix_columns_at(s->position + i, s->ring.window, s->memories);
	const int64_t width = keys ? s->ring.key_width : s->ring.value_width, end = s->position + i + 1;
	const float *rows = (const float *)call->in[keys ? 1 : 0].data + s->tokens.first * width;
	const int32_t *mask = kernel_optional(call, MASK);
	int n = 0;
	*first = c.first;
	if (s->memories > 0)
		out[n++] = (run){.row = s->memory, .step = width, .count = s->memories};
	int64_t token = c.oldest;
	while (token < s->position) {
		const int64_t place = token % s->ring.window;
		const int64_t at = keys ? matrix_ring_key(s->ring, place) : matrix_ring_value(s->ring, place);
		const int64_t count = kernel_min(s->position - token, s->ring.window - place);
		out[n++] = (run){.row = s->state + at,
		                 .there = s->state + matrix_ring_there(s->ring, place),
		                 .step = width,
		                 .count = count};
		token += count;
	}
	out[n++] = (run){.row = rows + (token - s->position) * width,
	                 .mask = mask ? mask + s->tokens.first + (token - s->position) : NULL,
	                 .step = width,
	                 .count = end - token};
	return n;
}

/* Units are heads of rows; `work` of a unit, in elements. */
static status each_head(const backend *b, const op_call *call, int64_t width, kernel_range fn)
{
	const matrix_stream_params *p = call->params;
	const shape x = call->in[0].shape;
	const int64_t columns = p->window + (kernel_optional(call, MEMORY) ? call->in[MEMORY].shape.dim[0] : 0);
	const int64_t count = x.dim[0] * x.dim[1] * p->heads;
	return kernel_for(b, call, count, count * columns * (width + 1) / 2, fn);
}

static void score_rows(const run *r, const float *query, int64_t width, float scale, float *to)
{
	for (int64_t j = 0; j < r->count; j++) {
		const float *key = r->row + j * r->step;
		float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t d = 0; d < width; d++)
			sum += query[d] * key[d];
		to[j] = scale * sum;
	}
}

static void show(const run *r, int32_t *to)
{
	for (int64_t j = 0; j < r->count; j++)
		to[j] = r->there ? r->there[j] != 0.0f : !r->mask || r->mask[j] != 0;
}

static void scores(const op_call *call, int64_t first, int64_t last)
{
	const matrix_stream_params *p = call->params;
	const int64_t d = call->in[0].shape.dim[2], width = d / p->heads;
	const int64_t group = p->kv_heads > 0 ? p->heads / p->kv_heads : 1;
	for (int64_t unit = first; unit < last; unit++) {
		const int64_t row = unit / p->heads, head = unit % p->heads;
		const stream s = stream_at(call, sequence_of(call, row));
		float *to = call->out[0].data ? (float *)call->out[0].data + unit * s.columns : NULL;
		int32_t *visible =
		    call->out[1].data && head == 0 ? (int32_t *)call->out[1].data + row * s.columns : NULL;
		run runs[RUNS];
		int64_t column = s.columns;
		const int n =
		    row - s.tokens.first < s.length ? runs_of(call, &s, row - s.tokens.first, true, runs, &column) : 0;
		if (to)
			memset(to, 0, (size_t)column * sizeof *to);
		if (visible)
			memset(visible, 0, (size_t)column * sizeof *visible);
		for (int i = 0; i < n; column += runs[i++].count) {
			run r = runs[i];
			if (visible)
				show(&r, visible + column);
			r.row += head / group * width;
			if (to)
				score_rows(&r, (const float *)call->in[0].data + row * d + head * width, width,
				           p->scale, to + column);
		}
	}
}

status KERNEL(stream_scores)(backend *b, const op_call *call)
{
	return each_head(b, call, call->in[0].shape.dim[2] / ((const matrix_stream_params *)call->params)->heads,
	                 scores);
}

/* y += Σ_j weight[j] row_j for up to AT_ONCE rows; the last stand for the missing ones, without weight. */
static void add_rows(const float *row[AT_ONCE], const float weight[AT_ONCE], int64_t width, float *y)
{
	const float *a = row[0], *b = row[1], *c = row[2], *d = row[3];
#pragma omp simd
	for (int64_t i = 0; i < width; i++)
		y[i] += (weight[0] * a[i] + weight[1] * b[i]) + (weight[2] * c[i] + weight[3] * d[i]);
}

static void values(const op_call *call, int64_t first, int64_t last)
{
	const matrix_stream_params *p = call->params;
	const int64_t group = p->kv_heads > 0 ? p->heads / p->kv_heads : 1;
	const int64_t width = call->out[0].shape.dim[2] / p->heads;
	for (int64_t unit = first; unit < last; unit++) {
		const int64_t at = unit / p->heads, head = unit % p->heads;
		const stream s = stream_at(call, sequence_of(call, at));
		const float *weights = (const float *)call->in[1].data + unit * s.columns;
		float *y = (float *)call->out[0].data + unit * width;
		run runs[RUNS];
		int64_t column = s.columns;
		const int n =
		    at - s.tokens.first < s.length ? runs_of(call, &s, at - s.tokens.first, false, runs, &column) : 0;
		const float *row[AT_ONCE] = {NULL};
		float weight[AT_ONCE] = {0};
		int held = 0;
		memset(y, 0, (size_t)width * sizeof *y);
		for (int i = 0; i < n; i++) {
			const float *from = runs[i].row + head / group * width;
			for (int64_t j = 0; j < runs[i].count; j++, from += runs[i].step) {
				row[held] = from;
				weight[held++] = weights[column++];
				if (held == AT_ONCE) {
					add_rows(row, weight, width, y);
					held = 0;
				}
			}
		}
		for (int i = held; i < AT_ONCE && held > 0; i++) {
			row[i] = row[0];
			weight[i] = 0.0f;
		}
		if (held > 0)
			add_rows(row, weight, width, y);
	}
}

status KERNEL(stream_apply)(backend *b, const op_call *call)
{
	return each_head(b, call, call->out[0].shape.dim[2] / ((const matrix_stream_params *)call->params)->heads,
	                 values);
}

/* The last `window` tokens of a call stay. */
status KERNEL(stream_store)(backend *b, const op_call *call)
{
	(void)b;
	const int32_t *mask = kernel_optional(call, MASK);
	for (int64_t index = 0; index < sequence_count(call, START); index++) {
		const stream s = stream_at(call, index);
		for (int64_t i = s.length > s.ring.window ? s.length - s.ring.window : 0; i < s.length; i++) {
			const int64_t row = s.tokens.first + i, token = s.position + i;
			memcpy(s.state + matrix_ring_key(s.ring, token),
			       (const float *)call->in[0].data + row * s.ring.key_width,
			       (size_t)s.ring.key_width * sizeof(float));
			memcpy(s.state + matrix_ring_value(s.ring, token),
			       (const float *)call->in[1].data + row * s.ring.value_width,
			       (size_t)s.ring.value_width * sizeof(float));
			s.state[matrix_ring_there(s.ring, token)] = !mask || mask[row] ? 1.0f : 0.0f;
		}
	}
	return STATUS_OK;
}
