/* additive_attention and its gradient on the CUDA backend at the borders of tiles, supers and windows, for which
 * op_cases has too small shapes. Results are compared with sums taken directly in double. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/tensor/ops.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum masking { NO_MASK, ALL_MASKED, FIRST_MASKED, SOME_MASKED, MASKINGS };

typedef struct attention_case {
	int64_t batch, length, heads, dh, window;
	dtype type;
	enum masking masking;
	float loud; /* approximate std of the scores */
} attention_case;

static backend *device;

static int open_one(void **state)
{
	(void)state;
	device = open_device();
	return 0;
}

static int close_one(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

/* --- data ------------------------------------------------------------------------------- */

static void *take(int64_t count, size_t bytes)
{
	void *data = calloc((size_t)count + 1, bytes);
	if (!data)
		abort();
	return data;
}

static uint16_t narrow_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float wide_of(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float wide;
	memcpy(&wide, &bits, sizeof wide);
	return wide;
}

/* Round numbers to this type. */
static void round_all(float *x, int64_t count, dtype type)
{
	for (int64_t i = 0; i < count && type == DTYPE_BF16; i++)
		x[i] = wide_of(narrow_of(x[i]));
}

/* A case on the host: inputs and expected results. */
typedef struct attention_data {
	int64_t rows, d;
	float *x, *w, *dg;
	int32_t *mask; /* NULL: none */
	float *g, *score, *log_normalizer, *dx, *dw;
} attention_data;

static int32_t mask_at(const attention_case *c, int64_t i, int32_t random)
{
	switch (c->masking) {
	case ALL_MASKED:
		return 0;
	case FIRST_MASKED:
		return i % c->length >= c->length / 3;
	default:
		return random > 0;
	}
}

/* One head of one sequence, at x + at and from row `first` on: compute scores and M, then g. */
static void expect_forward(const attention_case *c, attention_data *a, int64_t first, int64_t h)
{
	const int64_t window = c->window <= 0 ? c->length : c->window;
	double *score = take(c->length, sizeof *score), *sum = take(c->dh, sizeof *sum);
	for (int64_t i = 0; i < c->length; i++) {
		const float *x = a->x + (first + i) * a->d + h * c->dh;
		for (int64_t e = 0; e < c->dh; e++)
			score[i] += (double)x[e] * (double)a->w[h * c->dh + e] / sqrt((double)c->dh);
		a->score[(first + i) * c->heads + h] = (float)score[i];
		if (a->mask && !a->mask[first + i])
			score[i] = -INFINITY;
		int64_t low = i < window ? 0 : i - window + 1;
		double top = -INFINITY, total = 0;
		for (int64_t j = low; j <= i; j++)
			top = fmax(top, score[j]);
		memset(sum, 0, (size_t)c->dh * sizeof *sum);
		for (int64_t j = low; j <= i && top > -INFINITY; j++) {
			double weight = exp(score[j] - top);
			total += weight;
			for (int64_t e = 0; e < c->dh && weight > 0; e++)
				sum[e] += weight * (double)a->x[(first + j) * a->d + h * c->dh + e];
		}
		a->log_normalizer[(first + i) * c->heads + h] = total > 0 ? (float)(top + log(total)) : -INFINITY;
		for (int64_t e = 0; e < c->dh; e++)
			a->g[(first + i) * a->d + h * c->dh + e] = total > 0 ? (float)(sum[e] / total) : 0;
	}
	free(sum);
	free(score);
}

/* Compute the same head's dx, and its part of dw (double). */
static void expect_backward(const attention_case *c, attention_data *a, int64_t first, int64_t h, double *dw)
{
	const int64_t window = c->window <= 0 ? c->length : c->window;
	const double scale = 1 / sqrt((double)c->dh);
	double *P = take(c->dh, sizeof *P), *D = take(c->length, sizeof *D);
	for (int64_t i = 0; i < c->length; i++)
		for (int64_t e = 0; e < c->dh; e++)
			D[i] += (double)a->dg[(first + i) * a->d + h * c->dh + e] *
			        (double)a->g[(first + i) * a->d + h * c->dh + e];
	for (int64_t j = 0; j < c->length; j++) {
		const int64_t at = (first + j) * a->d + h * c->dh;
		bool visible = !a->mask || a->mask[first + j];
		double Q = 0, da = 0, score = 0;
		for (int64_t e = 0; e < c->dh; e++)
			score += (double)a->x[at + e] * (double)a->w[h * c->dh + e] * scale;
		memset(P, 0, (size_t)c->dh * sizeof *P);
		for (int64_t i = j; visible && i < c->length && i - j < window; i++) {
			double p = exp(score - (double)a->log_normalizer[(first + i) * c->heads + h]);
			Q += p * D[i];
			for (int64_t e = 0; e < c->dh && p > 0; e++)
				P[e] += p * (double)a->dg[(first + i) * a->d + h * c->dh + e];
		}
		for (int64_t e = 0; e < c->dh; e++)
			da += (double)a->x[at + e] * P[e];
		da -= Q;
		for (int64_t e = 0; e < c->dh; e++) {
			a->dx[at + e] = (float)(P[e] + scale * da * (double)a->w[h * c->dh + e]);
			dw[h * c->dh + e] += scale * da * (double)a->x[at + e];
		}
	}
	free(D);
	free(P);
}

static attention_data data_new(const attention_case *c)
{
	attention_data a = {.rows = c->batch * c->length, .d = c->heads * c->dh};
	int64_t count = a.rows * a.d;
	a.x = take(count, sizeof *a.x);
	a.w = take(a.d, sizeof *a.w);
	a.dg = take(count, sizeof *a.dg);
	a.g = take(count, sizeof *a.g);
	a.dx = take(count, sizeof *a.dx);
	a.dw = take(a.d, sizeof *a.dw);
	a.score = take(a.rows * c->heads, sizeof *a.score);
	a.log_normalizer = take(a.rows * c->heads, sizeof *a.log_normalizer);
	random_normal(a.x, count, 1, 1);
	random_normal(a.w, a.d, 2, (double)c->loud);
	random_normal(a.dg, count, 3, 1);
	round_all(a.x, count, c->type);
	round_all(a.dg, count, c->type);
	if (c->masking != NO_MASK) {
		a.mask = take(a.rows, sizeof *a.mask);
		random_integers(a.mask, a.rows, 4, 0, 2);
		for (int64_t i = 0; i < a.rows; i++)
			a.mask[i] = mask_at(c, i, a.mask[i]);
	}
	double *dw = take(a.d, sizeof *dw);
	for (int64_t b = 0; b < c->batch; b++)
		for (int64_t h = 0; h < c->heads; h++)
			expect_forward(c, &a, b * c->length, h);
	round_all(a.g, count, c->type);
	for (int64_t b = 0; b < c->batch; b++)
		for (int64_t h = 0; h < c->heads; h++)
			expect_backward(c, &a, b * c->length, h, dw);
	for (int64_t e = 0; e < a.d; e++)
		a.dw[e] = (float)dw[e];
	free(dw);
	return a;
}

static void data_free(attention_data *a)
{
	float *all[] = {a->x, a->w, a->dg, a->g, a->score, a->log_normalizer, a->dx, a->dw};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]);
	free(a->mask);
}

/* --- on the device ------------------------------------------------------------------------- */

static void must(status s)
{
	if (s != STATUS_OK)
		fail_msg("the device failed: %s", status_name(s));
}

static tensor on_device(dtype type, shape s)
{
	tensor t = {NULL, type, s};
	size_t bytes;
	assert_true(shape_bytes(s, type, &bytes));
	must(device->allocate(device, bytes, &t.data));
	return t;
}

/* Copy x to the device as this type. */
static tensor put(const void *x, dtype type, shape s)
{
	tensor t = on_device(type, s);
	int64_t count = shape_count(s);
	uint16_t *narrow = take(count, sizeof *narrow);
	for (int64_t i = 0; i < count && type == DTYPE_BF16; i++)
		narrow[i] = narrow_of(((const float *)x)[i]);
	must(device->upload(device, t.data, type == DTYPE_BF16 ? narrow : x, (size_t)count * dtype_bytes(type)));
	free(narrow);
	return t;
}

/* A tensor's numbers as floats. */
static float *fetch(const tensor *t)
{
	int64_t count = shape_count(t->shape);
	float *x = take(count, sizeof *x);
	if (t->type == DTYPE_BF16) {
		uint16_t *narrow = take(count, sizeof *narrow);
		must(device->download(device, narrow, t->data, (size_t)count * sizeof *narrow));
		for (int64_t i = 0; i < count; i++)
			x[i] = wide_of(narrow[i]);
		free(narrow);
	} else {
		must(device->download(device, x, t->data, (size_t)count * sizeof *x));
	}
	return x;
}

/* Run directly; record and replay; replay again. */
enum { DIRECT, REPLAYED, AGAIN, TURNS };

static void run_turn(op_id id, op_call *call, int turn, void **recording)
{
	if (turn == DIRECT) {
		must(device->kernel[id](device, call));
	} else if (turn == REPLAYED) {
		must(device->record_begin(device));
		must(device->kernel[id](device, call));
		must(device->record_end(device, recording));
	}
	if (turn != DIRECT)
		must(device->replay(device, *recording));
	must(device->synchronize(device));
}

/* Run with the requested outputs (bits); out[i] are the results, NULL if not requested. The scratch is first poisoned,
 * then as the previous call left it; every turn must give the same bits. */
static void run(op_id id, op_call *call, unsigned requested, float *out[])
{
	call->scratch = NULL;
	for (int i = 0; i < call->n_out; i++) {
		tensor *t = &call->out[i];
		out[i] = NULL;
		t->data = NULL;
		if (requested >> i & 1)
			*t = on_device(t->type, t->shape);
	}
	size_t bytes = device->scratch[id] ? device->scratch[id](device, call) : 0;
	void *dirt = take((int64_t)bytes, 1);
	memset(dirt, 0xa5, bytes);
	must(device->allocate(device, bytes, &call->scratch));
	must(device->upload(device, call->scratch, dirt, bytes));
	free(dirt);
	void *recording = NULL;
	for (int turn = DIRECT; turn < (device->replay ? TURNS : REPLAYED); turn++) {
		run_turn(id, call, turn, &recording);
		for (int i = 0; i < call->n_out; i++) {
			if (!call->out[i].data)
				continue;
			float *now = fetch(&call->out[i]);
			if (turn == DIRECT) {
				out[i] = now;
				continue;
			}
			assert_memory_equal(now, out[i], (size_t)shape_count(call->out[i].shape) * sizeof *now);
			free(now);
		}
	}
	if (recording)
		device->forget(device, recording);
	device->release(device, call->scratch);
	for (int i = 0; i < call->n_out; i++)
		device->release(device, call->out[i].data);
}

static void release_inputs(op_call *call)
{
	for (int i = 0; i < call->n_in; i++)
		device->release(device, call->in[i].data);
}

static bool close_enough(const attention_case *c, const char *what, const float *got, const float *want, int64_t count,
                         double absolute, double relative)
{
	char text[160];
	static const char *const masks[] = {"none", "all", "first", "some"};
	snprintf(text, sizeof text, "%s: %s, B %d, N %d, H %d, dh %d, k %d, masked %s, loud %g", what,
	         dtype_name(c->type), (int)c->batch, (int)c->length, (int)c->heads, (int)c->dh, (int)c->window,
	         masks[c->masking], (double)c->loud);
	return !got || compare_close(text, got, want, count, absolute, relative);
}

/* Large scores have fewer exact digits. */
static double slack(const attention_case *c)
{
	return 2e-6 * (1 + 3 * (double)c->loud);
}

static bool forward_matches(const attention_case *c, const attention_data *a, unsigned requested)
{
	const shape rows = SHAPE3(c->batch, c->length, a->d), heads = SHAPE3(c->batch, c->length, c->heads);
	op_call call = {.params = &(additive_attention_params){.heads = c->heads, .window = c->window},
	                .n_in = a->mask ? 3 : 2,
	                .n_out = 3};
	float *out[3];
	call.in[0] = put(a->x, c->type, rows);
	call.in[1] = put(a->w, DTYPE_F32, SHAPE1(a->d));
	if (a->mask)
		call.in[2] = put(a->mask, DTYPE_I32, SHAPE2(c->batch, c->length));
	call.out[0] = (tensor){NULL, c->type, rows};
	call.out[1] = call.out[2] = (tensor){NULL, DTYPE_F32, heads};
	run(OP_additive_attention, &call, requested, out);
	double e = slack(c), narrow = c->type == DTYPE_BF16 ? 0x1p-7 : 0;
	bool fine = close_enough(c, "g", out[0], a->g, a->rows * a->d, 3 * e + narrow / 64, e + narrow);
	fine = close_enough(c, "score", out[1], a->score, a->rows * c->heads, e, 1e-6) && fine;
	fine = close_enough(c, "M", out[2], a->log_normalizer, a->rows * c->heads, 2 * e, 1e-6) && fine;
	for (int i = 0; i < 3; i++)
		free(out[i]);
	release_inputs(&call);
	return fine;
}

static bool backward_matches(const attention_case *c, const attention_data *a, unsigned requested)
{
	const shape rows = SHAPE3(c->batch, c->length, a->d), heads = SHAPE3(c->batch, c->length, c->heads);
	op_call call = {
	    .params = &(additive_attention_params){.heads = c->heads, .window = c->window}, .n_in = 6, .n_out = 2};
	float *out[2];
	call.in[0] = put(a->x, c->type, rows);
	call.in[1] = put(a->w, DTYPE_F32, SHAPE1(a->d));
	if (a->mask)
		call.in[2] = put(a->mask, DTYPE_I32, SHAPE2(c->batch, c->length));
	call.in[3] = put(a->g, c->type, rows);
	call.in[4] = put(a->log_normalizer, DTYPE_F32, heads);
	call.in[5] = put(a->dg, c->type, rows);
	call.out[0] = (tensor){NULL, c->type, rows};
	call.out[1] = (tensor){NULL, DTYPE_F32, SHAPE1(a->d)};
	run(OP_additive_attention_grad, &call, requested, out);
	double e = 2 * slack(c), narrow = c->type == DTYPE_BF16 ? 0x1p-7 : 0;
	double size = compare_magnitude(a->dx, a->rows * a->d), dw = compare_magnitude(a->dw, a->d);
	bool fine = close_enough(c, "dx", out[0], a->dx, a->rows * a->d, e * size + narrow / 64, 1e-5 + narrow);
	fine = close_enough(c, "dw", out[1], a->dw, a->d, 1e-5 + 3 * e * (1 + dw), 2e-5) && fine;
	for (int i = 0; i < 2; i++)
		free(out[i]);
	release_inputs(&call);
	return fine;
}

static int failures(attention_case c)
{
	attention_data a = data_new(&c);
	int failed = !forward_matches(&c, &a, 7) + !backward_matches(&c, &a, 3);
	data_free(&a);
	return failed;
}

/* --- tests --------------------------------------------------------------------------------------- */

/* The most tokens in a tile (groups of lanes times rows), global or windowed. */
static int64_t tile_of(dtype type, int64_t dh, bool windowed)
{
	int64_t lanes = type == DTYPE_BF16 ? (dh <= 32 ? 4 : dh <= 64 ? 8 : 16) : (dh <= 32 ? 8 : dh <= 64 ? 16 : 32);
	bool packs = dh % (type == DTYPE_BF16 ? 8 : 4) == 0 && dh <= 128;
	return packs ? 256 / lanes * (windowed ? 4 : 8) : 8 * (windowed ? 2 : 4);
}

static void all_lengths_and_windows(int64_t dh, dtype type)
{
	const int64_t T = tile_of(type, dh, true), G = tile_of(type, dh, false);
	const int64_t lengths[] = {1, T - 1, T, T + 1, G - 1, G + 1, 3 * T + 5, 3 * G + 5};
	int failed = 0, turn = 0;
	for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
		const int64_t N = lengths[n];
		const int64_t windows[] = {0, 1, 2, 3, T - 1, T, T + 1, 2 * T, 2 * T + 3, N - 1, N, N + 7};
		for (size_t k = 0; k < sizeof windows / sizeof *windows; k++, turn++)
			if (!is_left_out(device, turn, 13))
				failed += failures((attention_case){.batch = 1 + turn % 3,
				                                    .length = N,
				                                    .heads = 1 + turn % 4,
				                                    .dh = dh,
				                                    .window = windows[k],
				                                    .type = type,
				                                    .masking = (enum masking)(turn / 2 % MASKINGS),
				                                    .loud = 1});
	}
	assert_int_equal(failed, 0);
}

static void odd_heads_match_at_every_border(void **state)
{
	(void)state;
	all_lengths_and_windows(5, DTYPE_F32);
	all_lengths_and_windows(1, DTYPE_BF16);
}

/* Long tiles: all borders in one column. */
static void wide_rows_match_at_borders(void **state)
{
	(void)state;
	static const int64_t widths[] = {16, 32, 48, 64, 128};
	int failed = 0, turn = 0;
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		for (dtype type = DTYPE_F32; type <= DTYPE_BF16; type = type + DTYPE_BF16 - DTYPE_F32) {
			const int64_t T = tile_of(type, widths[i], true), G = tile_of(type, widths[i], false);
			const int64_t shapes[][2] = {
			    {G + 1, 0},     {2 * G + 3, 0},     {T - 1, 3},
			    {T + 1, 4},     {2 * T + 3, 5},     {T + 9, T - 1},
			    {2 * T + 1, T}, {3 * T + 5, T + 1}, {3 * T + 5, 2 * T + 3},
			};
			for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, turn++)
				if (!is_left_out(device, turn, 11))
					failed += failures((attention_case){.batch = 1 + turn % 2,
					                                    .length = shapes[s][0],
					                                    .heads = 1 + turn / 2 % 2,
					                                    .dh = widths[i],
					                                    .window = shapes[s][1],
					                                    .type = type,
					                                    .masking = (enum masking)(turn % MASKINGS),
					                                    .loud = 1});
		}
	}
	assert_int_equal(failed, 0);
}

/* More than one super, which is 32 tiles of 32 tokens (global) or of 16. */
static void long_chains_match(void **state)
{
	(void)state;
	static const int64_t shapes[][2] = {{2500, 0}, {2100, 1100}, {1700, 1601}, {1100, 300}};
	int failed = 0;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		if (!is_left_out(device, (int)i + 2, 3))
			failed += failures((attention_case){.batch = 1,
			                                    .length = shapes[i][0],
			                                    .heads = 2,
			                                    .dh = 3,
			                                    .window = shapes[i][1],
			                                    .type = DTYPE_F32,
			                                    .masking = i % 2 ? SOME_MASKED : NO_MASK,
			                                    .loud = 1});
	assert_int_equal(failed, 0);
}

/* The cache is assumed to hold only the windows of 16 chains, so the last wave is short. */
static void more_chains_than_a_wave_match(void **state)
{
	(void)state;
	const bool emulated = device_is_emulated(device); /* its cache is small */
	assert_int_equal(failures((attention_case){.batch = 3,
	                                           .length = emulated ? 130 : 640,
	                                           .heads = 6,
	                                           .dh = emulated ? 3 : 256,
	                                           .window = emulated ? 60 : 600,
	                                           .type = DTYPE_F32,
	                                           .masking = NO_MASK,
	                                           .loud = 1}),
	                 0);
}

/* Wider than a block can hold: computed in pieces. */
static void heads_in_pieces_match(void **state)
{
	(void)state;
	static const int64_t widths[] = {255, 256, 257, 520};
	int failed = 0, turn = 0;
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
		for (int64_t window = 0; window < 60; window += 7, turn++)
			if (!is_left_out(device, turn, 13))
				failed += failures((attention_case){.batch = 2,
				                                    .length = 70,
				                                    .heads = 2,
				                                    .dh = widths[i],
				                                    .window = window,
				                                    .type = i % 2 ? DTYPE_BF16 : DTYPE_F32,
				                                    .masking = (enum masking)(window % MASKINGS),
				                                    .loud = 1});
	assert_int_equal(failed, 0);
}

/* Up to 1e4. One maximum per tile would lose windows, and a difference of sums would lose everything. */
static void loud_scores_give_finite_and_right_results(void **state)
{
	(void)state;
	static const float louds[] = {30, 3000};
	int failed = 0;
	for (int64_t window = 0; window < 150; window += 37)
		for (int i = 0; i < 2; i++)
			failed += failures((attention_case){.batch = 1,
			                                    .length = 400,
			                                    .heads = 2,
			                                    .dh = 32,
			                                    .window = window,
			                                    .type = DTYPE_F32,
			                                    .masking = window % 2 ? SOME_MASKED : NO_MASK,
			                                    .loud = louds[i]});
	assert_int_equal(failed, 0);
}

/* w = 0: every token has the same weight. */
static void equal_scores_give_means(void **state)
{
	(void)state;
	int failed = 0;
	for (int64_t window = 0; window < 200; window += 66)
		failed += failures((attention_case){.batch = 1,
		                                    .length = 600,
		                                    .heads = 1,
		                                    .dh = 64,
		                                    .window = window,
		                                    .type = DTYPE_BF16,
		                                    .masking = NO_MASK,
		                                    .loud = 0});
	assert_int_equal(failed, 0);
}

static void any_outputs_may_be_left_out(void **state)
{
	(void)state;
	static const int64_t windows[] = {0, 5, 100};
	static const int64_t widths[] = {32, 7, 300};
	int failed = 0;
	for (int i = 0; i < 9; i++) {
		if (is_left_out(device, i, 4))
			continue;
		attention_case c = {.batch = 1,
		                    .length = 150,
		                    .heads = 2,
		                    .dh = widths[i / 3],
		                    .window = windows[i % 3],
		                    .type = DTYPE_F32,
		                    .masking = NO_MASK,
		                    .loud = 1};
		attention_data a = data_new(&c);
		for (unsigned requested = 1; requested < 7; requested++)
			failed += !forward_matches(&c, &a, requested);
		for (unsigned requested = 1; requested < 3; requested++)
			failed += !backward_matches(&c, &a, requested);
		data_free(&a);
	}
	assert_int_equal(failed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(odd_heads_match_at_every_border),
	    cmocka_unit_test(wide_rows_match_at_borders),
	    cmocka_unit_test(long_chains_match),
	    cmocka_unit_test(more_chains_than_a_wave_match),
	    cmocka_unit_test(heads_in_pieces_match),
	    cmocka_unit_test(loud_scores_give_finite_and_right_results),
	    cmocka_unit_test(equal_scores_give_means),
	    cmocka_unit_test(any_outputs_may_be_left_out),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
