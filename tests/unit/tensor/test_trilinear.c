/* The trilinear model's ops against their definitions: attention that decays with distance, in one call and in pieces,
 * and the levels of codes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

/* --- attention --------------------------------------------------------------------------------------------------- */

enum { BATCH = 2, TOKENS = 37, HEADS = 2, KEY = 5, VALUE = 3, KEYS = HEADS * KEY, VALUES = HEADS * VALUE };

typedef struct content {
	float q[BATCH][TOKENS][KEYS], k[BATCH][TOKENS][KEYS], v[BATCH][TOKENS][VALUES];
	float first_k[KEYS], first_v[VALUES];
	int32_t mask[BATCH][TOKENS];
} content;

typedef struct results {
	float u[BATCH][TOKENS][VALUES], log_normalizer[BATCH][TOKENS][HEADS];
} results;

static const decay_params forms[] = {{HEADS, 4, 0.8f, 0.25f, 0, false},
                                     {HEADS, 1, 0.8f, 0, 0, false},
                                     {HEADS, TOKENS + 3, 0.8f, 0, 20.0f / 3, false},
                                     {HEADS, 11, 0.8f, 0.5f, 20.0f / 3, false},
                                     {HEADS, 0, 0.8f, 0.5f, 20.0f / 3, true}};
enum { FORMS = sizeof forms / sizeof *forms, CAUSAL_FORMS = FORMS - 1 };

static void draw(content *c)
{
	random_normal(&c->q[0][0][0], BATCH * TOKENS * KEYS, 1, 1);
	random_normal(&c->k[0][0][0], BATCH * TOKENS * KEYS, 2, 1);
	random_normal(&c->v[0][0][0], BATCH * TOKENS * VALUES, 3, 1);
	random_normal(c->first_k, KEYS, 4, 1);
	random_normal(c->first_v, VALUES, 5, 1);
	random_integers(&c->mask[0][0], BATCH * TOKENS, 6, 0, 4);
}

static double weight(const decay_params *p, const float *q, const float *k, int distance)
{
	double e = (double)p->hyper / distance - (double)p->slope * distance;
	for (int d = 0; d < KEY; d++)
		e += (double)p->scale * (double)q[d] * (double)k[d];
	return exp2(e);
}

/* One head of token t by the definition. */
static void define(const content *c, const decay_params *p, int b, int t, int h, results *r)
{
	const float *q = c->q[b][t] + h * KEY;
	const int oldest = p->window > 0 && t > p->window ? t - (int)p->window : 0;
	const double first = weight(p, q, c->first_k + h * KEY, t + 1);
	double z = 1 + first, sum[VALUE];
	for (int d = 0; d < VALUE; d++)
		sum[d] = first * (double)c->first_v[h * VALUE + d];
	for (int j = oldest; j < (p->bidirectional ? TOKENS : t); j++) {
		const double w = c->mask[b][j] && j != t ? weight(p, q, c->k[b][j] + h * KEY, abs(t - j)) : 0;
		z += w;
		for (int d = 0; d < VALUE; d++)
			sum[d] += w * (double)c->v[b][j][h * VALUE + d];
	}
	for (int d = 0; d < VALUE; d++)
		r->u[b][t][h * VALUE + d] = (float)(sum[d] / z);
	r->log_normalizer[b][t][h] = (float)log(z);
}

static void define_all(const content *c, const decay_params *p, results *r)
{
	for (int e = 0; e < BATCH * TOKENS * HEADS; e++)
		define(c, p, e / HEADS / TOKENS, e / HEADS % TOKENS, e % HEADS, r);
}

static bool are_close(const results *got, const results *want)
{
	return compare_close("u", &got->u[0][0][0], &want->u[0][0][0], BATCH * TOKENS * VALUES, 1e-5, 1e-5) &&
	       compare_close("log_normalizer", &got->log_normalizer[0][0][0], &want->log_normalizer[0][0][0],
	                     BATCH * TOKENS * HEADS, 1e-5, 1e-5);
}

/* The inputs of a graph over rows of `n` tokens of each sequence. */
typedef struct attention {
	plan *p;
	int n;
	value q, k, v, first_k, first_v, mask;
	stream_values at; /* for reading in pieces */
	value positions;
	decay_values out;
} attention;

static attention attention_inputs(graph *g, int n)
{
	return (attention){.n = n,
	                   .q = graph_input(g, "q", DTYPE_F32, SHAPE3(BATCH, n, KEYS)),
	                   .k = graph_input(g, "k", DTYPE_F32, SHAPE3(BATCH, n, KEYS)),
	                   .v = graph_input(g, "v", DTYPE_F32, SHAPE3(BATCH, n, VALUES)),
	                   .first_k = graph_input(g, "first k", DTYPE_F32, SHAPE1(KEYS)),
	                   .first_v = graph_input(g, "first v", DTYPE_F32, SHAPE1(VALUES)),
	                   .mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(BATCH, n))};
}

static void attention_open(attention *a, backend *b, graph *g, const content *c, plan_binding *binding)
{
	error err = ERROR_INIT;
	graph_output(g, a->out.u, "u");
	graph_output(g, a->out.log_normalizer, "log_normalizer");
	if (plan_new(&a->p, g, b, binding, binding ? 1 : 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_write(a->p, a->first_k, c->first_k), STATUS_OK);
	assert_int_equal(plan_write(a->p, a->first_v, c->first_v), STATUS_OK);
}

/* Run tokens from … from + n - 1 of each sequence. */
static void attention_run(const attention *a, const content *c, int from, results *r)
{
	static float q[BATCH][TOKENS * KEYS], k[BATCH][TOKENS * KEYS], v[BATCH * TOKENS * VALUES];
	static float u[BATCH * TOKENS * VALUES], log_normalizer[BATCH * TOKENS * HEADS];
	int32_t mask[BATCH * TOKENS];
	const size_t n = (size_t)a->n, f = sizeof(float);
	for (int b = 0; b < BATCH; b++) {
		memcpy(&q[0][0] + b * a->n * KEYS, c->q[b][from], n * KEYS * f);
		memcpy(&k[0][0] + b * a->n * KEYS, c->k[b][from], n * KEYS * f);
		memcpy(v + b * a->n * VALUES, c->v[b][from], n * VALUES * f);
		memcpy(mask + b * a->n, &c->mask[b][from], n * sizeof *mask);
	}
	assert_int_equal(plan_write(a->p, a->q, q), STATUS_OK);
	assert_int_equal(plan_write(a->p, a->k, k), STATUS_OK);
	assert_int_equal(plan_write(a->p, a->v, v), STATUS_OK);
	assert_int_equal(plan_write(a->p, a->mask, mask), STATUS_OK);
	assert_int_equal(plan_run(a->p), STATUS_OK);
	assert_int_equal(plan_read(a->p, a->out.u, u), STATUS_OK);
	assert_int_equal(plan_read(a->p, a->out.log_normalizer, log_normalizer), STATUS_OK);
	for (int b = 0; b < BATCH; b++) {
		memcpy(r->u[b][from], u + b * a->n * VALUES, n * VALUES * f);
		memcpy(r->log_normalizer[b][from], log_normalizer + b * a->n * HEADS, n * HEADS * f);
	}
}

static void whole(backend *b, const content *c, decay_params params, results *r)
{
	graph *g = graph_new();
	attention a = attention_inputs(g, TOKENS);
	a.out = op_decay_attention(g, a.q, a.k, a.v, a.first_k, a.first_v, a.mask, VALUE_NONE, params);
	attention_open(&a, b, g, c, NULL);
	attention_run(&a, c, 0, r);
	plan_free(a.p);
}

static void decayed_attention_follows_its_definition(void **state)
{
	const backends *b = *state;
	static content c;
	static results want, got;
	draw(&c);
	for (int i = 0; i < 2 * (FORMS + 1); i++) {
		decay_params p = forms[i / 2 % FORMS];
		if (i / 2 == FORMS)
			p.window = 0; /* all earlier tokens */
		define_all(&c, &p, &want);
		whole(b->each[i % 2], &c, p, &got);
		assert_true(are_close(&got, &want));
	}
}

static void a_token_changes_only_later_results(void **state)
{
	enum { CHANGED = 21 };
	const backends *b = *state;
	static content c;
	static results before, after;
	draw(&c);
	for (int i = 0; i < 2; i++) {
		draw(&c);
		whole(b->each[i], &c, forms[3], &before);
		c.mask[0][CHANGED] = 1;
		for (int d = 0; d < KEYS; d++)
			c.k[0][CHANGED][d] = 50;
		for (int d = 0; d < VALUES; d++)
			c.v[0][CHANGED][d] = -50;
		whole(b->each[i], &c, forms[3], &after);
		assert_memory_equal(before.u[0], after.u[0], (CHANGED + 1) * sizeof before.u[0][0]);
		assert_memory_equal(before.u[1], after.u[1], sizeof before.u[1]);
		assert_memory_not_equal(before.u[0][CHANGED + 1], after.u[0][CHANGED + 1], sizeof before.u[0][0]);
	}
}

/* Read all tokens through rings in slots, `n` at a time and the rest one by one. With `coded`, the graph quantizes keys
 * and values, and the rings hold codes. */
static void in_pieces(backend *b, const content *c, decay_params params, int n, bool coded, results *r)
{
	enum { OFFSET = 3, SLOT_FLOATS = OFFSET + (KEYS + VALUES + 1) * (TOKENS + 4) };
	static float pool[BATCH * SLOT_FLOATS];
	for (int i = 0; i < BATCH * SLOT_FLOATS; i++)
		pool[i] = NAN; /* position 0 must not depend on the slot's earlier content */
	assert_true(OFFSET + decay_state_floats(KEYS, VALUES, params.window, coded) <= SLOT_FLOATS);
	for (int from = 0; from < TOKENS; from += n) {
		n = n > TOKENS - from ? 1 : n;
		graph *g = graph_new();
		attention a = attention_inputs(g, n);
		a.at = (stream_values){graph_state(g, "pool", SHAPE2(BATCH, SLOT_FLOATS)),
		                       graph_input(g, "slot", DTYPE_I32, SHAPE1(BATCH)),
		                       graph_input(g, "position", DTYPE_I32, SHAPE1(BATCH)),
		                       graph_input(g, "length", DTYPE_I32, SHAPE1(BATCH)),
		                       a.mask,
		                       VALUE_NONE};
		a.positions = graph_input(g, "positions", DTYPE_I32, SHAPE2(BATCH, n));
		decay_codes codes = {.key_step = VALUE_NONE};
		quantize_values k = {a.k, VALUE_NONE};
		value v = a.v;
		if (coded) {
			k = op_quantize_with_step(g, a.k, (quantize_params){QUANTIZE_ROWS, 8});
			v = op_quantize(g, a.v, (quantize_params){QUANTIZE_FIXED, 8});
			codes = (decay_codes){k.step, QUANTIZE_FIXED_STEP, QUANTIZE_FIXED_STEP};
		}
		a.out = op_decay_stream(g, a.q, k.y, v, a.first_k, a.first_v, codes, a.at, a.positions, VALUE_NONE,
		                        OFFSET, params);
		attention_open(&a, b, g, c, &(plan_binding){a.at.pool, pool});
		int32_t positions[BATCH * TOKENS];
		for (int i = 0; i < BATCH * n; i++)
			positions[i] = from + i % n;
		assert_int_equal(plan_write(a.p, a.positions, positions), STATUS_OK);
		assert_int_equal(plan_write(a.p, a.at.slot, (int32_t[BATCH]){1, 0}), STATUS_OK);
		assert_int_equal(plan_write(a.p, a.at.position, (int32_t[BATCH]){from, from}), STATUS_OK);
		assert_int_equal(plan_write(a.p, a.at.length, (int32_t[BATCH]){n, n}), STATUS_OK);
		attention_run(&a, c, from, r);
		plan_free(a.p);
	}
}

static void pieces_follow_the_definition_even_past_the_end_of_the_ring(void **state)
{
	const backends *b = *state;
	static const int pieces[] = {1, 6, TOKENS};
	static content c;
	static results want, got;
	draw(&c);
	for (int i = 0; i < 2 * CAUSAL_FORMS; i++) {
		define_all(&c, &forms[i / 2], &want);
		for (size_t n = 0; n < sizeof pieces / sizeof *pieces; n++) {
			in_pieces(b->each[i % 2], &c, forms[i / 2], pieces[n], false, &got);
			assert_true(are_close(&got, &want));
		}
	}
}

/* Quantize as the graph does; queries with the fixed step. */
static void quantize_content(content *c)
{
	for (int t = 0; t < BATCH * TOKENS; t++) {
		float *k = c->k[t / TOKENS][t % TOKENS];
		const float step = quantize_tensor_step(k, KEYS);
		for (int d = 0; d < KEYS; d++)
			k[d] = quantize_value(k[d], step, 8);
	}
	for (int i = 0; i < BATCH * TOKENS * VALUES; i++)
		(&c->v[0][0][0])[i] = quantize_value((&c->v[0][0][0])[i], QUANTIZE_FIXED_STEP, 8);
}

static void pieces_through_rings_of_codes_follow_the_definition(void **state)
{
	const backends *b = *state;
	static const int pieces[] = {1, 6, TOKENS};
	static content c, whole;
	static results want, got;
	draw(&c);
	for (int i = 0; i < BATCH * TOKENS * KEYS; i++)
		(&c.q[0][0][0])[i] = quantize_value((&c.q[0][0][0])[i], QUANTIZE_FIXED_STEP, 8);
	whole = c;
	quantize_content(&whole);
	for (int i = 0; i < 2 * CAUSAL_FORMS; i++) {
		define_all(&whole, &forms[i / 2], &want);
		for (size_t n = 0; n < sizeof pieces / sizeof *pieces; n++) {
			in_pieces(b->each[i % 2], &c, forms[i / 2], pieces[n], true, &got);
			assert_true(are_close(&got, &want));
		}
	}
}

/* --- the frozen network ------------------------------------------------------------------------------------------ */

/* A product of 8-bit vectors with attention's result. The parts pulled back to the vectors, the values and the first
 * value, times these, sum to the score. */
static void the_parts_of_a_frozen_layer_sum_to_the_score(void **state)
{
	enum { N = 9, T = 16, SOURCES = 3 };
	const backends *b = *state;
	const int64_t counts[SOURCES] = {N * T, N * T, T};
	static const char *const names[] = {"code", "value", "first value", "query", "key"};
	static float x[SOURCES][N * T], part[N * T], dp[N * 16 * T], p[N * 16 * T], qk[2][N * KEY];
	for (int fast = 0; fast < 2; fast++) {
		graph *g = graph_new();
		value in[SOURCES], source[SOURCES], keys[2];
		for (int i = 0; i < SOURCES; i++) {
			in[i] = graph_input(g, names[i], DTYPE_F32, i < 2 ? SHAPE3(1, N, T) : SHAPE1(T));
			source[i] = op_scale(g, in[i], 1);
			random_normal(x[i], counts[i], 30 + (uint64_t)i, 1);
		}
		for (int i = 0; i < 2; i++) {
			keys[i] = graph_input(g, names[SOURCES + i], DTYPE_F32, SHAPE3(1, N, KEY));
			random_normal(qk[i], N * KEY, 40 + (uint64_t)i, 1);
		}
		const value first_k = op_fill(g, SHAPE1(KEY), 0.5f);
		const value dy = graph_input(g, "dy", DTYPE_F32, SHAPE3(1, N, 16 * T));
		const value code = op_quantize(g, source[0], (quantize_params){QUANTIZE_ROWS, 8});
		const value u = op_decay_attention(g, keys[0], keys[1], source[1], first_k, source[2], VALUE_NONE,
		                                   VALUE_NONE, (decay_params){1, 4, 0.5f, 0.25f, 1, false})
		                    .u;
		const value y = op_trilinear(g, code, u);
		const graph_rule rule = {.frozen = true, .share = 0.25f, .apart = VALUE_NONE};
		error err = ERROR_INIT;
		graph_pull_back(g, y, dy, source, SOURCES, rule);
		if (graph_status(g, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		graph_output(g, y, "y");
		for (int i = 0; i < SOURCES; i++)
			graph_output(g, graph_gradient(g, source[i]), "part %d", i);
		plan *made;
		assert_int_equal(plan_new(&made, g, b->each[fast], NULL, 0, NULL), STATUS_OK);
		random_normal(dp, N * 16 * T, 50, 1);
		for (int i = 0; i < SOURCES; i++)
			assert_int_equal(plan_write(made, in[i], x[i]), STATUS_OK);
		for (int i = 0; i < 2; i++)
			assert_int_equal(plan_write(made, keys[i], qk[i]), STATUS_OK);
		assert_int_equal(plan_write(made, dy, dp), STATUS_OK);
		assert_int_equal(plan_run(made), STATUS_OK);
		assert_int_equal(plan_read(made, y, p), STATUS_OK);
		double score = 0, sum[SOURCES] = {0};
		for (int e = 0; e < N * 16 * T; e++)
			score += (double)dp[e] * (double)p[e];
		for (int i = 0; i < SOURCES; i++) {
			assert_int_equal(plan_read(made, graph_gradient(g, source[i]), part), STATUS_OK);
			for (int e = 0; e < counts[i]; e++)
				sum[i] += (double)part[e] * (double)x[i][e];
			assert_true(fabs(sum[i]) > 1e-3);
		}
		assert_true(fabs(sum[0] - 0.75 * score) < 1e-3 && fabs(sum[1] + sum[2] - 0.25 * score) < 1e-3);
		plan_free(made);
	}
}

/* --- codes ------------------------------------------------------------------------------------------------------- */

static void codes_are_rounded_to_even_and_saturate(void **state)
{
	(void)state;
	static const float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 127.4f, 200, -128.5f, -300, 0},
	                   want[] = {0, 2, 2, 0, -2, 127, 127, -128, -128, 0};
	for (size_t i = 0; i < sizeof x / sizeof *x; i++)
		assert_true(quantize_code(x[i] / 32, 1.0f / 32) == want[i]);
	assert_true(quantize_code(3, 0) == 0);
	assert_true(isnan(quantize_code(NAN, 1)));
}

/* More parts than one block adds up, so the sum takes a third step. */
static void the_codes_of_a_large_tensor_are_the_same_bits(void **state)
{
	enum { COUNT = QUANTIZE_PART * QUANTIZE_PART + 70001 };
	const backends *b = *state;
	float *x = malloc(COUNT * sizeof *x), *y[2];
	assert_non_null(x);
	random_normal(x, COUNT, 7, 3);
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE1(COUNT));
		const value out = op_quantize(g, in, (quantize_params){QUANTIZE_TENSOR, 4});
		graph_output(g, out, "y");
		plan *p;
		assert_int_equal(plan_new(&p, g, b->each[i], NULL, 0, NULL), STATUS_OK);
		assert_int_equal(plan_write(p, in, x), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		y[i] = malloc(COUNT * sizeof *x);
		assert_non_null(y[i]);
		assert_int_equal(plan_read(p, out, y[i]), STATUS_OK);
		plan_free(p);
	}
	assert_true(compare_same("y", y[1], y[0], COUNT));
	free(x);
	free(y[0]);
	free(y[1]);
}

/* Lower bounds of the levels of 4 bits, and of 2. */
static void few_bits_have_the_levels_of_their_tables(void **state)
{
	(void)state;
	static const int edges4[] = {-67, -58, -49, -40, -31, -22, -13, -4, 5, 14, 23, 32, 41, 50, 59},
	                 edges2[] = {-24, 0, 25};
	for (int q = -128; q < 128; q++) {
		int level4 = -68, level2 = -36;
		for (size_t i = 0; i < sizeof edges4 / sizeof *edges4; i++)
			level4 += q >= edges4[i] ? 9 : 0;
		for (size_t i = 0; i < sizeof edges2 / sizeof *edges2; i++)
			level2 += q >= edges2[i] ? 24 : 0;
		assert_true(quantize_recode((float)q, 8) == (float)q);
		assert_true(quantize_recode((float)q, 4) == (float)level4);
		assert_true(quantize_recode((float)q, 2) == (float)level2);
	}
}

/* --- refusals ---------------------------------------------------------------------------------------------------- */

static void assert_refuses(graph *g, const char *param)
{
	error err = ERROR_INIT;
	assert_int_equal(graph_status(g, &err), STATUS_INVALID);
	assert_non_null(strstr(error_message(&err), param));
	graph_free(g);
}

static void unsupported_parameters_are_refused_by_name(void **state)
{
	(void)state;
	graph *g = graph_new();
	op_quantize(g, graph_input(g, "x", DTYPE_F32, SHAPE2(3, 4)), (quantize_params){QUANTIZE_ROWS, 4});
	assert_refuses(g, "bits");
	g = graph_new();
	const value odd = graph_input(g, "odd", DTYPE_F32, SHAPE2(3, 24));
	op_trilinear(g, odd, odd);
	assert_refuses(g, "k has 24 channels");
	g = graph_new();
	attention a = attention_inputs(g, TOKENS);
	op_decay_attention(g, a.q, a.k, a.v, a.first_v, a.first_v, a.mask, VALUE_NONE, forms[0]);
	assert_refuses(g, "first_k");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(decayed_attention_follows_its_definition),
	    cmocka_unit_test(a_token_changes_only_later_results),
	    cmocka_unit_test(pieces_follow_the_definition_even_past_the_end_of_the_ring),
	    cmocka_unit_test(pieces_through_rings_of_codes_follow_the_definition),
	    cmocka_unit_test(the_parts_of_a_frozen_layer_sum_to_the_score),
	    cmocka_unit_test(codes_are_rounded_to_even_and_saturate),
	    cmocka_unit_test(the_codes_of_a_large_tensor_are_the_same_bits),
	    cmocka_unit_test(few_bits_have_the_levels_of_their_tables),
	    cmocka_unit_test(unsupported_parameters_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
