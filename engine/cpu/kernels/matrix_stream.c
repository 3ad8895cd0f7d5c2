/* stream_scores, stream_apply, stream_store: queries against the memories, the ring of
 * engine/tensor/ops/matrix_stream.h and the call's own tokens: up to four runs of contiguous rows.
 *
 * If a sequence reads up to SHORT tokens, they are processed one by one, at the speed of memory. A score is a dot
 * product, and values are added in columns of four from the first existing one. More are taken as blocks of queries
 * against tiles of tokens (product.h); a query's own columns are cut out of the tile, and into it. The choice depends
 * only on the length that the sequence reads, so no bit depends on the other sequences of the call. */
#include "engine/tensor/ops/matrix_stream.h"

#include <assert.h>
#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/product.h"
#include "engine/tensor/ops/sequence.h"
#include "engine/tensor/ops/softmax_stream.h"

enum { MASK = 6, START = 7, MEMORY = 8 /* inputs */, RUNS = 4, AT_ONCE = 4, SHORT = 4, QUERIES = 64, KEYS = 64 };

typedef struct stream {
	matrix_ring ring;
	float *slot, *state;
	const float *memory;
	int64_t memories, position, length, columns;
	bool source; /* position: its tokens */
	sequence tokens;
} stream;

static int64_t matrix_stream_columns_of(const op_call *call)
{
	const matrix_stream_params *p = call->params;
	return p->window + (kernel_optional(call, MEMORY) ? shape_rows(call->in[MEMORY].shape) : p->stored.count);
}

static stream stream_at(const op_call *call, int64_t s)
{
	const matrix_stream_params *p = call->params;
	const int32_t slot = ((const int32_t *)call->in[3].data)[s];
	const int64_t columns = matrix_stream_columns_of(call);
	float *at = (float *)call->in[2].data + slot * call->in[2].shape.dim[1];
	stream r = {.ring = {p->key_width, p->value_width, p->window, p->segment, p->near, p->far},
	            .slot = at,
	            .state = at + p->offset,
	            .memory = kernel_optional(call, MEMORY),
	            .memories = columns - p->window,
	            .position = ((const int32_t *)call->in[4].data)[s],
	            .length = ((const int32_t *)call->in[5].data)[s],
	            .columns = columns,
	            .source = p->source,
	            .tokens = sequence_at(call, START, s)};
	if (p->source)
		r.position =
		    source_count(softmax_store_of(p->key_width, p->value_width, p->window, SOFTMAX_F32), r.state);
	assert(r.length >= 0 && r.length <= r.tokens.room && r.position >= 0 && slot >= 0 &&
	       slot < call->in[2].shape.dim[0]);
	return r;
}

/* Contents of the columns for token i of a sequence's call. */
static matrix_columns columns_at(const stream *s, int64_t i)
{
	return matrix_columns_at(s->source ? s->position - 1 : s->position + i, s->ring, s->memories);
}

/* Keys, or values, of the memories. */
static const float *memories_of(const op_call *call, const stream *s, bool keys)
{
	const slot_rows stored = ((const matrix_stream_params *)call->params)->stored;
	return stored.count ? s->slot + stored.offset + (keys ? 0 : stored.count * s->ring.key_width) : s->memory;
}

/* Query heads of a head of keys. */
static int64_t group_of(const op_call *call)
{
	const matrix_stream_params *p = call->params;
	return p->kv_heads > 0 ? p->heads / p->kv_heads : 1;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

/* Rows one after another: of tokens from `token` on, or of memories (token -1). Some may be masked. */
typedef struct run {
	const float *row, *present;
	const int32_t *mask;
	int64_t token, count;
} run;

/* Keys, or values, that tokens first … last of a sequence's call read. Returns the number of runs. */
static int runs_of(const op_call *call, const stream *s, int64_t first, int64_t last, bool keys, run out[RUNS])
{
	const matrix_columns c = columns_at(s, first);
	const int64_t width = keys ? s->ring.key_width : s->ring.value_width;
	const float *rows = (const float *)call->in[keys ? 1 : 0].data + s->tokens.first * width;
	const int32_t *mask = kernel_optional(call, MASK);
	int n = 0;
	if (s->memories > 0)
		out[n++] = (run){.row = memories_of(call, s, keys), .token = -1, .count = s->memories};
	int64_t token = c.oldest;
	while (token < s->position) {
		const int64_t place = token % s->ring.window;
		const int64_t at = keys ? matrix_ring_key(s->ring, place) : matrix_ring_value(s->ring, place);
		const int64_t count = kernel_min(s->position - token, s->ring.window - place);
		out[n++] = (run){.row = s->state + at,
		                 .present = s->source ? NULL : s->state + matrix_ring_there(s->ring, place),
		                 .token = token,
		                 .count = count};
		token += count;
	}
	if (s->source)
		return n;
	out[n++] = (run){.row = rows + (token - s->position) * width,
	                 .mask = mask ? mask + s->tokens.first + (token - s->position) : NULL,
	                 .token = token,
	                 .count = s->position + last + 1 - token};
	return n;
}

/* One head of up to QUERIES tokens of a sequence, from token `first` of it on. */
typedef struct block {
	stream s;
	int64_t head, first, count; /* count: tokens that are read */
	int64_t rows;               /* count, and tokens of the block that are not read */
} block;

/* The part of a tile that query r of a block sees: rows first … first + count - 1 of the tile, from `column` on. */
typedef struct part {
	int64_t first, count, column;
} part;

/* The tile begins with row `from` of a run and has `count` rows. */
static part part_of(const block *b, int64_t r, const run *tile, int64_t from, int64_t count)
{
	const int64_t t = b->s.source ? b->s.position - 1 : b->s.position + b->first + r;
	const matrix_columns c = columns_at(&b->s, b->first + r);
	if (tile->token < 0)
		return (part){0, count, c.first + from};
	const int64_t token = tile->token + from, oldest = c.oldest;
	const int64_t first = oldest > token ? kernel_min(oldest - token, count) : 0;
	const int64_t end = t + 1 < token + count ? t + 1 - token : count;
	return end > first ? (part){first, end - first, b->s.columns - 1 - (t - token) + first} : (part){0, 0, 0};
}

/* The part of a tile's columns that query r of a block sees. */
static part read_of(const block *b, int64_t r, part seen)
{
	const matrix_columns c = columns_at(&b->s, b->first + r);
	const int64_t first = c.begin > seen.column ? c.begin - seen.column : 0;
	const int64_t end = kernel_min(c.end - seen.column, seen.count);
	return end > first ? (part){seen.first + first, end - first, seen.column + first} : (part){0, 0, 0};
}

/* --- how the work is cut -------------------------------------------------------------------------------------------
 */

typedef void (*block_kernel)(const op_call *call, const block *b, float *desk);

/* Process every head of every block; a thread's desk has `floats` floats. */
static status each_block(const backend *owner, const op_call *call, int64_t floats, block_kernel fn)
{
	const matrix_stream_params *p = call->params;
	const shape x = call->in[0].shape;
	const int64_t sequences = sequence_count(call, START);
	int64_t longest = 0;
	for (int64_t s = 0; s < sequences; s++) {
		const int64_t room = sequence_at(call, START, s).room;
		longest = room > longest ? room : longest;
	}
	const int64_t blocks = kernel_parts(longest, QUERIES), units = sequences * p->heads * blocks;
	const int threads = kernel_threads(owner, x.dim[0] * x.dim[1] * matrix_stream_columns_of(call) * x.dim[2]);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
	for (int thread = 0; thread < threads; thread++) {
		for (int64_t unit = thread; unit < units; unit += threads) {
			block b = {.s = stream_at(call, unit / blocks / p->heads),
			           .head = unit / blocks % p->heads,
			           .first = unit % blocks * QUERIES};
			if (b.first >= b.s.tokens.room)
				continue;
			b.rows = kernel_min(QUERIES, b.s.tokens.room - b.first);
			b.count = b.s.length > b.first ? kernel_min(b.rows, b.s.length - b.first) : 0;
			fn(call, &b, (float *)call->scratch + thread * floats);
		}
	}
	return STATUS_OK;
}

/* --- scores --------------------------------------------------------------------------------------------------------
 */

/* to [count] = scale · query·key, `step` floats from key to key. */
static void score_keys(const float *key, int64_t step, int64_t count, const float *query, int64_t width, float scale,
                       float *to)
{
	for (int64_t j = 0; j < count; j += 4) {
		const float *row[4];
		product_vector sum[4] = {{0}};
		int64_t d = 0;
		for (int i = 0; i < 4; i++)
			row[i] = key + kernel_min(j + i, count - 1) * step;
		for (; d + PRODUCT_VECTOR <= width; d += PRODUCT_VECTOR)
			for (int i = 0; i < 4; i++)
				sum[i] += *(const product_vector *)(query + d) * *(const product_vector *)(row[i] + d);
		product_quad total = product_lane_sums(sum);
		for (; d < width; d++)
			total += query[d] * (product_quad){row[0][d], row[1][d], row[2][d], row[3][d]};
		total *= scale;
		for (int i = 0; i < 4 && j + i < count; i++)
			to[j + i] = total[i];
	}
}

/* packed [width, KEYS] = scale · the transpose of `count` keys, zeros to whole vectors. */
static void pack_keys(const float *key, int64_t step, int64_t count, int64_t width, float scale, float *packed)
{
	for (int64_t j = 0; j < product_round(count); j++)
		for (int64_t d = 0; d < width; d++)
			packed[d * KEYS + j] = j < count ? scale * key[j * step + d] : 0.0f;
}

static void matrix_stream_show(const run *r, int64_t first, int64_t count, int32_t *to)
{
	for (int64_t j = 0; j < count; j++)
		to[j] = r->present ? r->present[first + j] != 0.0f : !r->mask || r->mask[first + j] != 0;
}

/* desk: packed keys [width, KEYS], scores [QUERIES, KEYS] */
static void scores_of(const op_call *call, const block *b, float *desk)
{
	const matrix_stream_params *p = call->params;
	const int64_t d = call->in[0].shape.dim[2], width = d / p->heads, columns = b->s.columns;
	const int64_t row = b->s.tokens.first + b->first, key = b->head / group_of(call) * width;
	const float *query = (const float *)call->in[0].data + row * d + b->head * width;
	float *to = call->out[0].data ? (float *)call->out[0].data + (row * p->heads + b->head) * columns : NULL;
	int32_t *visible = call->out[1].data && b->head == 0 ? (int32_t *)call->out[1].data + row * columns : NULL;
	for (int64_t r = 0; r < b->rows; r++) { /* columns that no key reaches or that are outside the part */
		matrix_columns c = {columns, columns, 0, columns, columns};
		if (r < b->count)
			c = columns_at(&b->s, b->first + r);
		if (to)
			memset(to + r * p->heads * columns, 0, (size_t)c.begin * sizeof *to);
		if (to)
			memset(to + r * p->heads * columns + c.end, 0, (size_t)(columns - c.end) * sizeof *to);
		if (visible)
			memset(visible + r * columns, 0, (size_t)c.first * sizeof *visible);
	}
	run runs[RUNS];
	const int n = b->count ? runs_of(call, &b->s, b->first, b->first + b->count - 1, true, runs) : 0;
	const bool singly = b->s.length <= SHORT;
	for (int i = 0; i < n; i++) {
		const int64_t step = p->key_width, most = singly ? runs[i].count : KEYS;
		for (int64_t from = 0; from<runs[i].count; from += KEYS> most ? KEYS : most) {
			const int64_t count = kernel_min(most, runs[i].count - from);
			const float *keys = runs[i].row + from * step + key;
			if (!singly && to) {
				pack_keys(keys, step, count, width, p->scale, desk);
				product(b->count, product_round(count), width, (product_matrix){query, d, 1}, desk,
				        KEYS, desk + width * KEYS, KEYS, false);
			}
			for (int64_t r = 0; r < b->count; r++) {
				const part seen = part_of(b, r, &runs[i], from, count), read = read_of(b, r, seen);
				float *out = to ? to + r * p->heads * columns + read.column : NULL;
				if (visible)
					matrix_stream_show(&runs[i], from + seen.first, seen.count,
					                   visible + r * columns + seen.column);
				if (out && singly)
					score_keys(keys + read.first * step, step, read.count, query + r * d, width,
					           p->scale, out);
				else if (out)
					memcpy(out, desk + (width + r) * KEYS + read.first,
					       (size_t)read.count * sizeof *out);
			}
		}
	}
}

static int64_t scores_floats(const op_call *call)
{
	const matrix_stream_params *p = call->params;
	return (call->in[0].shape.dim[2] / p->heads + QUERIES) * KEYS;
}

size_t KERNEL(stream_scores_scratch)(const backend *b, const op_call *call)
{
	return (size_t)(((const cpu *)b)->threads * scores_floats(call)) * sizeof(float);
}

status KERNEL(stream_scores)(backend *b, const op_call *call)
{
	return each_block(b, call, scores_floats(call), scores_of);
}

/* --- values --------------------------------------------------------------------------------------------------------
 */

/* y += Σ_j weight[j] row_j for up to AT_ONCE rows; missing ones repeat the first with weight 0. */
static void matrix_stream_add_rows(const float *row[AT_ONCE], const float weight[AT_ONCE], int64_t width, float *y)
{
	const float *a = row[0], *b = row[1], *c = row[2], *d = row[3];
#pragma omp simd
	for (int64_t i = 0; i < width; i++)
		y[i] += (weight[0] * a[i] + weight[1] * b[i]) + (weight[2] * c[i] + weight[3] * d[i]);
}

/* One token of the block. */
static void add_values(const op_call *call, const block *b, int64_t r, const float *weights, int64_t channel,
                       int64_t width, float *y)
{
	const int64_t step = b->s.ring.value_width;
	const float *row[AT_ONCE] = {NULL};
	float weight[AT_ONCE] = {0};
	const matrix_columns c = columns_at(&b->s, b->first + r);
	int64_t column = c.first;
	int held = 0;
	run runs[RUNS];
	const int n = runs_of(call, &b->s, b->first + r, b->first + r, false, runs);
	for (int i = 0; i < n; i++) {
		const int64_t end = kernel_min(column + runs[i].count, c.end);
		int64_t at = column > c.begin ? column : c.begin;
		const float *from = runs[i].row + channel + (at - column) * step;
		for (column += runs[i].count; at < end; from += step) {
			row[held] = from;
			weight[held++] = weights[at++];
			if (held == AT_ONCE) {
				matrix_stream_add_rows(row, weight, width, y);
				held = 0;
			}
		}
	}
	for (int i = held; i < AT_ONCE && held > 0; i++) {
		row[i] = row[0];
		weight[i] = 0.0f;
	}
	if (held > 0)
		matrix_stream_add_rows(row, weight, width, y);
}

/* All tokens of the block. desk: weights [QUERIES, KEYS], values [KEYS, whole vectors], sums [QUERIES, whole vectors]
 */
static void add_tiles(const op_call *call, const block *b, const float *weights, int64_t row, int64_t channel,
                      int64_t width, float *desk)
{
	const int64_t whole = product_round(width), step = b->s.ring.value_width;
	float *values = desk + QUERIES * KEYS, *sums = values + KEYS * whole;
	bool started = false;
	run runs[RUNS];
	const int n = runs_of(call, &b->s, b->first, b->first + b->count - 1, false, runs);
	for (int i = 0; i < n; i++) {
		for (int64_t from = 0; from < runs[i].count; from += KEYS, started = true) {
			const int64_t count = kernel_min(KEYS, runs[i].count - from);
			for (int64_t j = 0; j < count; j++)
				for (int64_t d = 0; d < whole; d++)
					values[j * whole + d] =
					    d < width ? runs[i].row[(from + j) * step + channel + d] : 0.0f;
			for (int64_t r = 0; r < b->count; r++) {
				const part read = read_of(b, r, part_of(b, r, &runs[i], from, count));
				float *to = desk + r * KEYS;
				memset(to, 0, (size_t)count * sizeof *to);
				memcpy(to + read.first, weights + r * row + read.column,
				       (size_t)read.count * sizeof *to);
			}
			product(b->count, whole, count, (product_matrix){desk, KEYS, 1}, values, whole, sums, whole,
			        started);
		}
	}
}

static void values_of(const op_call *call, const block *b, float *desk)
{
	const matrix_stream_params *p = call->params;
	const int64_t d = call->out[0].shape.dim[2], width = d / p->heads, whole = product_round(width);
	const int64_t row = b->s.tokens.first + b->first, channel = b->head / group_of(call) * width;
	const int64_t weights_row = p->heads * b->s.columns;
	const float *weights = (const float *)call->in[1].data + row * weights_row + b->head * b->s.columns;
	const float *sums = desk + QUERIES * KEYS + KEYS * whole;
	const bool singly = b->s.length <= SHORT;
	float *y = (float *)call->out[0].data + row * d + b->head * width;
	if (!singly && b->count > 0)
		add_tiles(call, b, weights, weights_row, channel, width, desk);
	for (int64_t r = 0; r < b->rows; r++) {
		if (!singly && r < b->count) {
			memcpy(y + r * d, sums + r * whole, (size_t)width * sizeof *y);
			continue;
		}
		memset(y + r * d, 0, (size_t)width * sizeof *y);
		if (r < b->count)
			add_values(call, b, r, weights + r * weights_row, channel, width, y + r * d);
	}
}

static int64_t values_floats(const op_call *call)
{
	const matrix_stream_params *p = call->params;
	const int64_t whole = product_round(call->out[0].shape.dim[2] / p->heads);
	return QUERIES * KEYS + (KEYS + QUERIES) * whole;
}

size_t KERNEL(stream_apply_scratch)(const backend *b, const op_call *call)
{
	return (size_t)(((const cpu *)b)->threads * values_floats(call)) * sizeof(float);
}

status KERNEL(stream_apply)(backend *b, const op_call *call)
{
	return each_block(b, call, values_floats(call), values_of);
}

/* Store the last `window` tokens of a call. */
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
