/* forgetting_attention and forgetting_stream on the device: heads of every width, sequences of many tiles, and the
 * properties that sessions depend on. The bits depend neither on the batch nor on the division of tokens into calls. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"

enum { MARGIN = 3 };

typedef enum { NO_RATE, BY_TOKEN, BY_HEAD } rate_kind;

typedef struct pooling_kind {
	int64_t d, heads;
	rate_kind rate;
	bool masked, bonus;
} pooling_kind;

/* Heads of one channel, of packed and other widths, wider than a block, several slabs. */
static const pooling_kind kinds[] = {
    {6, 6, BY_TOKEN, true, false},     {300, 300, BY_HEAD, false, false}, {24, 2, BY_TOKEN, true, false},
    {21, 3, NO_RATE, true, false},     {512, 16, BY_TOKEN, false, false}, {80, 40, BY_HEAD, true, false},
    {1100, 1, BY_TOKEN, false, false}, {514, 2, BY_TOKEN, true, false},   {6, 6, BY_TOKEN, true, true},
    {300, 300, BY_HEAD, false, true},  {133, 133, NO_RATE, true, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The tokens of a sequence. */
typedef struct text {
	tensor v, a, f, mask, bonus;
	int64_t n;
} text;

static text text_new(pooling_kind kind, int64_t n, uint64_t seed)
{
	text t = {call_normal(SHAPE3(1, n, kind.d), seed, 1),
	          call_normal(SHAPE3(1, n, kind.heads), seed + 1, 3),
	          {0},
	          {0},
	          {0},
	          n};
	if (kind.bonus)
		t.bonus = call_normal(SHAPE1(kind.heads), seed + 4, 1);
	if (kind.rate != NO_RATE) {
		t.f = call_normal(kind.rate == BY_HEAD ? SHAPE1(kind.heads) : SHAPE3(1, n, kind.heads), seed + 2, 0.3);
		for (int64_t i = 0; i < shape_count(t.f.shape); i++)
			((float *)t.f.data)[i] = -fabsf(((float *)t.f.data)[i]);
	}
	if (kind.masked) {
		t.mask = call_tensor(DTYPE_I32, SHAPE2(1, n));
		random_integers(t.mask.data, n, seed + 3, 0, 2);
	}
	return t;
}

static void text_free(text *t)
{
	buffer_free(t->v.data);
	buffer_free(t->a.data);
	buffer_free(t->f.data);
	buffer_free(t->mask.data);
	buffer_free(t->bonus.data);
}

/* Tokens first … first + n - 1 of one sequence, without its last dimension's name: a view. */
static tensor some_rows(tensor t, int64_t first, int64_t n)
{
	const bool by_token = t.data && t.shape.rank > 1;
	if (!by_token)
		return t;
	const int64_t width = t.shape.rank == 3 ? t.shape.dim[2] : 1;
	t.data = (char *)t.data + first * width * (int64_t)sizeof(float);
	t.shape.dim[1] = n;
	return t;
}

/* A pool of slots of NaN. */
static tensor pool_new(pooling_kind kind, int64_t slots)
{
	return call_tensor(DTYPE_F32, SHAPE2(slots, forgetting_state_floats(kind.d, kind.heads) + 2 * MARGIN));
}

/* Read tokens first … first + n - 1 of a text into a slot; g [n, D] and l [n, H] are added to the outputs. */
static void read_text(backend *b, pooling_kind kind, tensor pool, int32_t slot, const text *t, int64_t first, int64_t n,
                      float *g, float *l)
{
	const shape one = SHAPE1(1);
	op_call call = {.params = &(forgetting_stream_params){MARGIN}, .n_in = 10};
	call.in[0] = some_rows(t->v, first, n);
	call.in[1] = some_rows(t->a, first, n);
	call.in[2] = pool;
	call.in[3] = call_integers(one, &slot);
	call.in[4] = call_integers(one, &(int32_t){(int32_t)first});
	call.in[5] = call_integers(one, &(int32_t){(int32_t)n});
	call.in[6] = some_rows(t->mask, first, n);
	call.in[8] = some_rows(t->f, first, n);
	call.in[9] = t->bonus;
	call_run(b, OP_forgetting_stream, &call);
	memcpy(g + first * kind.d, call.out[0].data, (size_t)(n * kind.d) * sizeof *g);
	memcpy(l + first * kind.heads, call.out[1].data, (size_t)(n * kind.heads) * sizeof *l);
	call_free_outputs(&call);
	for (int i = 3; i < 6; i++)
		buffer_free(call.in[i].data);
}

static float *outputs_new(int64_t count)
{
	return buffer_new((size_t)count * sizeof(float));
}

/* Read a text of n tokens in two slots, whole and in parts, the first of `part` tokens and the next ones longer. */
static void check_parts(pooling_kind kind, int64_t n, int64_t part)
{
	const int64_t floats = forgetting_state_floats(kind.d, kind.heads) + 2 * MARGIN;
	tensor pool = pool_new(kind, 3);
	text t = text_new(kind, n, 5);
	float *g[2], *l[2], *state = pool.data;
	for (int i = 0; i < 2; i++) {
		g[i] = outputs_new(n * kind.d);
		l[i] = outputs_new(n * kind.heads);
	}
	read_text(device, kind, pool, 0, &t, 0, n, g[0], l[0]);
	for (int64_t at = 0, next; at < n; at += next, part = part * 3 / 2 + 1) {
		next = part < n - at ? part : n - at;
		read_text(device, kind, pool, 2, &t, at, next, g[1], l[1]);
	}
	assert_true(compare_same("g", g[1], g[0], n * kind.d));
	assert_true(compare_same("l", l[1], l[0], n * kind.heads));
	assert_true(compare_same("state", state + 2 * floats + MARGIN, state + MARGIN, floats - 2 * MARGIN));
	for (int64_t i = 0; i < 3 * floats; i++) {
		const bool inside = i / floats != 1 && i % floats >= MARGIN && i % floats < floats - MARGIN;
		assert_int_equal(isnan(state[i]) != 0, !inside);
	}
	for (int i = 0; i < 2; i++) {
		buffer_free(g[i]);
		buffer_free(l[i]);
	}
	text_free(&t);
	buffer_free(pool.data);
}

static void cuts_change_no_bit(void **state)
{
	(void)state;
	for (int i = 0; i < KINDS; i++) {
		check_parts(kinds[i], 109, 1);
		check_parts(kinds[i], 70, 33);
	}
}

/* Sequences of several lengths, one of them 0, as one row of tokens (`start`), against each alone. */
static void the_batch_changes_no_bit(void **state)
{
	(void)state;
	enum { ROWS = 4 };
	static const int32_t lengths[ROWS] = {5, 0, 47, 1}, starts[ROWS] = {0, 5, 7, 54}, slots[ROWS] = {2, 4, 0, 3};
	const int64_t n = 56;
	for (int i = 0; i < KINDS; i++) {
		const pooling_kind kind = kinds[i];
		const int64_t floats = forgetting_state_floats(kind.d, kind.heads) + 2 * MARGIN;
		tensor together = pool_new(kind, 5), alone = pool_new(kind, 1);
		text t = text_new(kind, n, 9);
		op_call call = {.params = &(forgetting_stream_params){MARGIN}, .n_in = 10, .in = {t.v, t.a, together}};
		call.in[3] = call_integers(SHAPE1(ROWS), slots);
		call.in[4] = call_integers(SHAPE1(ROWS), (int32_t[ROWS]){0});
		call.in[5] = call_integers(SHAPE1(ROWS), lengths);
		call.in[6] = t.mask;
		call.in[7] = call_integers(SHAPE1(ROWS), starts);
		call.in[8] = t.f;
		call.in[9] = t.bonus;
		call_run(device, OP_forgetting_stream, &call);
		for (int row = 0; row < ROWS; row++) {
			const int64_t length = lengths[row], first = starts[row];
			if (length == 0)
				continue;
			text part = {some_rows(t.v, first, length),
			             some_rows(t.a, first, length),
			             some_rows(t.f, first, length),
			             some_rows(t.mask, first, length),
			             t.bonus,
			             length};
			float *g = outputs_new(length * kind.d), *l = outputs_new(length * kind.heads);
			read_text(device, kind, alone, 0, &part, 0, length, g, l);
			assert_true(compare_same("g", (float *)call.out[0].data + first * kind.d, g, length * kind.d));
			assert_true(
			    compare_same("l", (float *)call.out[1].data + first * kind.heads, l, length * kind.heads));
			assert_true(
			    compare_same("state", (float *)together.data + slots[row] * floats, alone.data, floats));
			buffer_free(g);
			buffer_free(l);
		}
		for (int64_t e = 0; e < 2 * kind.d; e++) /* tokens 5 and 6 are read by no sequence */
			assert_true(((float *)call.out[0].data)[5 * kind.d + e] == 0);
		call_free_outputs(&call);
		for (int k = 3; k < 8; k++)
			if (k != 6)
				buffer_free(call.in[k].data);
		text_free(&t);
		buffer_free(together.data);
		buffer_free(alone.data);
	}
}

/* A state of the reference continues on the device. */
static void a_state_of_the_cpu_continues(void **state)
{
	(void)state;
	enum { N = 90, BEFORE = 61 };
	for (int i = 0; i < KINDS; i++) {
		const pooling_kind kind = kinds[i];
		tensor ours = pool_new(kind, 1), theirs = pool_new(kind, 1);
		text t = text_new(kind, N, 11);
		float *g[2], *l[2];
		for (int k = 0; k < 2; k++) {
			g[k] = outputs_new(N * kind.d);
			l[k] = outputs_new(N * kind.heads);
		}
		read_text(cpu, kind, theirs, 0, &t, 0, BEFORE, g[1], l[1]);
		memcpy(ours.data, theirs.data, call_bytes(&ours));
		read_text(device, kind, ours, 0, &t, BEFORE, N - BEFORE, g[0], l[0]);
		read_text(cpu, kind, theirs, 0, &t, BEFORE, N - BEFORE, g[1], l[1]);
		assert_true(compare_close("g", g[0] + BEFORE * kind.d, g[1] + BEFORE * kind.d, (N - BEFORE) * kind.d,
		                          1e-5, 1e-5));
		assert_true(compare_close("l", l[0] + BEFORE * kind.heads, l[1] + BEFORE * kind.heads,
		                          (N - BEFORE) * kind.heads, 1e-5, 1e-5));
		for (int k = 0; k < 2; k++) {
			buffer_free(g[k]);
			buffer_free(l[k]);
		}
		text_free(&t);
		buffer_free(ours.data);
		buffer_free(theirs.data);
	}
}

/* Read a text on the device and on the CPU, and compare g and l. Frees the text. */
static void check_as_on_the_cpu(pooling_kind kind, text *t, double tolerance)
{
	backend *const on[] = {device, cpu};
	float *g[2], *l[2];
	for (int k = 0; k < 2; k++) {
		tensor pool = pool_new(kind, 1);
		g[k] = outputs_new(t->n * kind.d);
		l[k] = outputs_new(t->n * kind.heads);
		read_text(on[k], kind, pool, 0, t, 0, t->n, g[k], l[k]);
		buffer_free(pool.data);
	}
	for (int64_t i = 0; i < t->n * kind.heads; i++)
		if (isinf(l[0][i]) && l[0][i] == l[1][i])
			l[0][i] = l[1][i] = 0;
	assert_true(compare_close("g", g[0], g[1], t->n * kind.d, tolerance, tolerance));
	assert_true(compare_close("l", l[0], l[1], t->n * kind.heads, 1e-5, 1e-5));
	for (int k = 0; k < 2; k++) {
		buffer_free(g[k]);
		buffer_free(l[k]);
	}
	text_free(t);
}

/* Each token outweighs all before it. In even heads scores alternate, in the others they are random. */
static void tokens_that_outweigh_all_before_them(void **state)
{
	(void)state;
	enum { N = 400 };
	for (int i = 0; i < KINDS; i++) {
		const pooling_kind kind = kinds[i];
		text t = text_new(kind, N, 23);
		float *a = t.a.data, *f = t.f.data;
		for (int64_t k = 0; k < N * kind.heads; k++)
			a[k] = k % kind.heads % 2 ? a[k] : k / kind.heads % 2 ? 0.1f : -0.3f;
		for (int64_t k = 0; kind.rate != NO_RATE && k < shape_count(t.f.shape); k++)
			f[k] = k % 2 ? -60 : -INFINITY;
		check_as_on_the_cpu(kind, &t, 1e-5);
	}
}

/* Everything is forgotten, scores of -inf and beyond the range of the sums, long before and long after others. */
static void extreme_scores_are_as_on_the_cpu(void **state)
{
	(void)state;
	enum { N = 100 };
	static const float extremes[] = {-INFINITY, 1e4f, -1e4f, 300, -300, 1e30f, -1e30f};
	for (int i = 0; i < KINDS; i++) {
		const pooling_kind kind = kinds[i];
		text t = text_new(kind, N, 19);
		float *a = t.a.data, *f = t.f.data;
		for (int64_t k = kind.heads; k < N * kind.heads; k += 3)
			a[k] = extremes[k % (kind.bonus ? 5 : 7)]; /* beyond 2^23 a bonus is lost in rounding */
		for (int64_t k = kind.heads; k < (kind.rate == BY_TOKEN ? N * kind.heads : 0); k += 5)
			f[k] = k % 2 ? -INFINITY : -1e4f;
		check_as_on_the_cpu(kind, &t, 2e-3);
	}
}

/* Many tiles, and one tile for each sequence of a batch that fills the device. */
static void check_whole(pooling_kind kind, int64_t batch, int64_t n)
{
	text t = text_new(kind, batch * n, 13);
	tensor dg = call_normal(SHAPE3(batch, n, kind.d), 17, 1);
	t.v.shape = SHAPE3(batch, n, kind.d);
	t.a.shape = SHAPE3(batch, n, kind.heads);
	if (kind.rate == BY_TOKEN)
		t.f.shape = t.a.shape;
	if (kind.masked)
		t.mask.shape = SHAPE2(batch, n);
	op_call ours = {.params = &(no_params){0}, .n_in = 5, .in = {t.v, t.a, t.f, t.mask, t.bonus}}, theirs = ours;
	call_run(device, OP_forgetting_attention, &ours);
	call_run(cpu, OP_forgetting_attention, &theirs);
	assert_true(compare_close("g", ours.out[0].data, theirs.out[0].data, batch * n * kind.d, 2e-5, 2e-5));
	assert_true(compare_close("l", ours.out[1].data, theirs.out[1].data, batch * n * kind.heads, 2e-5, 2e-5));
	if (kind.bonus)
		assert_true(
		    compare_close("before", ours.out[2].data, theirs.out[2].data, batch * n * kind.d, 2e-5, 2e-5));
	op_call back = {.params = &(forgetting_params){false},
	                .n_in = 8,
	                .in = {t.v, t.a, t.f, t.mask, theirs.out[kind.bonus ? 2 : 0], theirs.out[1], dg, t.bonus}},
	        forth = back;
	call_run(device, OP_forgetting_attention_grad, &back);
	call_run(cpu, OP_forgetting_attention_grad, &forth);
	static const char *const names[] = {"dv", "da", "df", "dbonus"};
	for (int o = 0; o < 4; o++)
		assert_true(compare_close(names[o], back.out[o].data, forth.out[o].data, shape_count(back.out[o].shape),
		                          1e-4, 1e-4));
	call_free_outputs(&ours);
	call_free_outputs(&theirs);
	call_free_outputs(&back);
	call_free_outputs(&forth);
	text_free(&t);
	buffer_free(dg.data);
}

static void every_width_of_a_head_and_number_of_tiles_is_right(void **state)
{
	(void)state;
	for (int i = 0; i < KINDS; i++) {
		check_whole(kinds[i], 2, 131);
		check_whole(kinds[i], 33, 40);
	}
	check_whole((pooling_kind){8, 2, BY_TOKEN, true, false}, 1, 5000);
	check_whole((pooling_kind){3, 3, BY_HEAD, false, false}, 1, 5000);
	check_whole((pooling_kind){3, 3, BY_HEAD, false, true}, 1, 5000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(cuts_change_no_bit),
	    cmocka_unit_test(the_batch_changes_no_bit),
	    cmocka_unit_test(a_state_of_the_cpu_continues),
	    cmocka_unit_test(tokens_that_outweigh_all_before_them),
	    cmocka_unit_test(extreme_scores_are_as_on_the_cpu),
	    cmocka_unit_test(every_width_of_a_head_and_number_of_tiles_is_right),
	};
	return cmocka_run_group_tests(tests, open_pair, close_pair);
}
