/* Attention with its matrix, read in pieces, against its definition in double and against one call. It has memories,
 * biases, a limited past, and only the largest scores. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

static plan *open_plan(backend *b, graph *g, const plan_binding *bindings, int n)
{
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return p;
}

enum {
	SEQUENCES = 3,
	TOKENS = 29, /* per sequence */
	HEADS = 4,
	KV_HEADS = 2,
	KEY = 3, /* channels per head */
	VALUE = 5,
	MEMORIES = 2,
	FAR = TOKENS + MEMORIES, /* distances in the table */
	PAST = 9,                /* visible distances */
	TOP = 5,
	ROOM = 11 /* tokens per call */
};

typedef struct content {
	float q[SEQUENCES][TOKENS][HEADS * KEY], k[SEQUENCES][TOKENS][KV_HEADS * KEY];
	float v[SEQUENCES][TOKENS][KV_HEADS * VALUE];
	float memory_k[MEMORIES][KV_HEADS * KEY], memory_v[MEMORIES][KV_HEADS * VALUE], bias[FAR][HEADS];
	int32_t mask[SEQUENCES][TOKENS];
} content;

typedef float results[SEQUENCES][TOKENS][HEADS * VALUE];

static const content *drawn(void)
{
	static content c;
	random_normal(&c.q[0][0][0], SEQUENCES * TOKENS * HEADS * KEY, 11, 1);
	random_normal(&c.k[0][0][0], SEQUENCES * TOKENS * KV_HEADS * KEY, 12, 1);
	random_normal(&c.v[0][0][0], SEQUENCES * TOKENS * KV_HEADS * VALUE, 13, 1);
	random_normal(&c.memory_k[0][0], MEMORIES * KV_HEADS * KEY, 14, 1);
	random_normal(&c.memory_v[0][0], MEMORIES * KV_HEADS * VALUE, 15, 1);
	random_normal(&c.bias[0][0], FAR * HEADS, 16, 1);
	random_integers(&c.mask[0][0], SEQUENCES * TOKENS, 17, 0, 3);
	return &c;
}

/* One head of token t by the definition. The memories come directly before the oldest of the last `window` tokens. */
static void define(const content *c, int s, int t, int head, int window, float *y)
{
	const int count = t + 1 < window ? t + 1 : window, group = HEADS / KV_HEADS;
	double a[TOKENS + MEMORIES], top[TOP], sum = 0, total[VALUE] = {0};
	for (int i = 0; i < TOP; i++)
		top[i] = -INFINITY;
	for (int j = 0; j < MEMORIES + count; j++) { /* oldest first */
		const int distance = MEMORIES + count - 1 - j, token = t - distance;
		const float *k = j < MEMORIES ? c->memory_k[j] : c->k[s][token];
		a[j] = 0;
		for (int d = 0; d < KEY; d++)
			a[j] += 0.8 * (double)c->q[s][t][head * KEY + d] * (double)k[head / group * KEY + d];
		a[j] += (double)c->bias[distance][head];
		if (distance >= PAST || (j >= MEMORIES && !c->mask[s][token]))
			a[j] = -INFINITY;
		for (int i = 0; i < TOP; i++) {
			if (a[j] <= top[i])
				continue;
			memmove(top + i + 1, top + i, (size_t)(TOP - 1 - i) * sizeof *top);
			top[i] = a[j];
			break;
		}
	}
	for (int j = 0; j < MEMORIES + count; j++) {
		const double weight = a[j] < top[TOP - 1] ? 0 : exp(a[j]);
		const float *v = j < MEMORIES ? c->memory_v[j] : c->v[s][t - (MEMORIES + count - 1 - j)];
		sum += weight;
		for (int d = 0; d < VALUE; d++)
			total[d] += weight * (double)v[head / group * VALUE + d];
	}
	for (int d = 0; d < VALUE; d++)
		y[head * VALUE + d] = sum > 0 ? (float)(total[d] / sum) : 0;
}

static void define_all(const content *c, int window, results y)
{
	for (int e = 0; e < SEQUENCES * TOKENS * HEADS; e++)
		define(c, e / HEADS / TOKENS, e / HEADS % TOKENS, e % HEADS, window,
		       y[e / HEADS / TOKENS][e / HEADS % TOKENS]);
}

static value input(graph *g, const char *name, dtype type, shape s)
{
	return graph_input(g, name, type, s);
}

/* A call reads up to ROOM tokens: of all sequences, concatenated, or ROOM / SEQUENCES of each. */
typedef struct reader {
	plan *p;
	int n; /* tokens per sequence; 0: concatenated */
} reader;

static reader reader_open(backend *b, const content *c, int window, bool ragged, float *pool)
{
	reader r = {.n = ragged ? 0 : ROOM / SEQUENCES};
	const int64_t batch = ragged ? 1 : SEQUENCES, n = ragged ? ROOM : ROOM / SEQUENCES;
	graph *g = graph_new();
	const matrix_stream_params p = {.heads = HEADS,
	                                .kv_heads = KV_HEADS,
	                                .window = window,
	                                .offset = 1,
	                                .key_width = KV_HEADS * KEY,
	                                .value_width = KV_HEADS * VALUE,
	                                .scale = 0.8f};
	const stream_values at = {graph_state(g, "pool", SHAPE2(SEQUENCES, 1 + matrix_stream_floats(p))),
	                          input(g, "slot", DTYPE_I32, SHAPE1(SEQUENCES)),
	                          input(g, "position", DTYPE_I32, SHAPE1(SEQUENCES)),
	                          input(g, "length", DTYPE_I32, SHAPE1(SEQUENCES)),
	                          input(g, "mask", DTYPE_I32, SHAPE2(batch, n)),
	                          ragged ? input(g, "start", DTYPE_I32, SHAPE1(SEQUENCES)) : VALUE_NONE};
	const value q = input(g, "q", DTYPE_F32, SHAPE3(batch, n, HEADS * KEY));
	const value k = input(g, "k", DTYPE_F32, SHAPE3(batch, n, KV_HEADS * KEY));
	const value v = input(g, "v", DTYPE_F32, SHAPE3(batch, n, KV_HEADS * VALUE));
	const value memory_k = input(g, "memory k", DTYPE_F32, SHAPE2(MEMORIES, KV_HEADS * KEY));
	const value memory_v = input(g, "memory v", DTYPE_F32, SHAPE2(MEMORIES, KV_HEADS * VALUE));
	const value bias = input(g, "bias", DTYPE_F32, SHAPE2(FAR, HEADS));
	const stream_scores_values scores = op_stream_scores(g, q, k, memory_k, at, p);
	const value weights = op_attention_weights(g, scores.scores, scores.visible, VALUE_NONE, bias,
	                                           (attention_weights_params){.window = PAST, .top_k = TOP});
	graph_output(g, op_stream_apply(g, v, weights, memory_v, at, p), "y");
	op_stream_store(g, k, v, at, p);
	for (int64_t i = 0; i < SEQUENCES * (1 + matrix_stream_floats(p)); i++)
		pool[i] = NAN; /* position 0 must not depend on the slot's earlier content */
	r.p = open_plan(b, g, (plan_binding[]){{at.pool, pool}}, 1);
	assert_int_equal(plan_write(r.p, memory_k, c->memory_k), STATUS_OK);
	assert_int_equal(plan_write(r.p, memory_v, c->memory_v), STATUS_OK);
	assert_int_equal(plan_write(r.p, bias, c->bias), STATUS_OK);
	return r;
}

static void write(const reader *r, const char *name, const void *data)
{
	const value v = graph_find(plan_graph(r->p), name);
	if (v != VALUE_NONE)
		assert_int_equal(plan_write(r->p, v, data), STATUS_OK);
}

/* Read the next length[s] tokens of each sequence, from position[s] on. */
static void read_piece(const reader *r, const content *c, const int32_t *position, const int32_t *length, results y)
{
	static float q[ROOM][HEADS * KEY], k[ROOM][KV_HEADS * KEY], v[ROOM][KV_HEADS * VALUE], out[ROOM][HEADS * VALUE];
	int32_t mask[ROOM] = {0}, start[SEQUENCES], slot[SEQUENCES];
	int row = 0;
	for (int s = 0; s < SEQUENCES; s++) {
		row = r->n ? s * r->n : row;
		start[s] = row;
		slot[s] = SEQUENCES - 1 - s;
		for (int i = 0; i < length[s]; i++, row++) {
			memcpy(q[row], c->q[s][position[s] + i], sizeof q[row]);
			memcpy(k[row], c->k[s][position[s] + i], sizeof k[row]);
			memcpy(v[row], c->v[s][position[s] + i], sizeof v[row]);
			mask[row] = c->mask[s][position[s] + i];
		}
	}
	write(r, "q", q);
	write(r, "k", k);
	write(r, "v", v);
	write(r, "mask", mask);
	write(r, "start", start);
	write(r, "slot", slot);
	write(r, "position", position);
	write(r, "length", length);
	assert_int_equal(plan_run(r->p), STATUS_OK);
	assert_int_equal(plan_read(r->p, graph_find(plan_graph(r->p), "y"), out), STATUS_OK);
	for (int s = 0; s < SEQUENCES; s++)
		memcpy(y[s][position[s]], out[start[s]], (size_t)length[s] * sizeof *out);
}

/* Read all tokens in pieces; one seed cuts the first sequence, another one the others. */
static void read_all(backend *b, const content *c, int window, bool ragged, uint64_t seed, uint64_t company, results y)
{
	enum { PIECE = 8 }; /* most tokens of the first sequence in a piece */
	static float pool[SEQUENCES * (1 + (KV_HEADS * (KEY + VALUE) + 1) * (TOKENS + 1))];
	const reader r = reader_open(b, c, window, ragged, pool);
	int32_t position[SEQUENCES] = {0};
	for (int done = 0; done < SEQUENCES;) {
		int32_t length[SEQUENCES], room = ROOM;
		for (int s = 0; s < SEQUENCES; s++) {
			const int32_t left = s > 0 ? room : PIECE, most = r.n ? r.n : left, rest = TOKENS - position[s];
			length[s] = (int32_t)random_next(s > 0 ? &company : &seed, 0, rest < most ? rest : most);
			room -= length[s];
		}
		read_piece(&r, c, position, length, y);
		done = 0;
		for (int s = 0; s < SEQUENCES; s++) {
			position[s] += length[s];
			done += position[s] == TOKENS;
		}
	}
	plan_free(r.p);
}

static void pieces_of_any_size_give_the_definition_even_past_the_end_of_the_ring(void **state)
{
	const backends *b = *state;
	static const int windows[] = {1, 4, 12, TOKENS + 1};
	static results want, got;
	const content *c = drawn();
	for (int i = 0; i < 16; i++) {
		define_all(c, windows[i / 4], want);
		read_all(b->each[i % 2], c, windows[i / 4], i & 2, 20 + (uint64_t)i, 90, got);
		assert_true(
		    compare_close("y", &got[0][0][0], &want[0][0][0], SEQUENCES * TOKENS * HEADS * VALUE, 1e-5, 1e-5));
	}
}

static void the_bits_of_a_sequence_do_not_depend_on_the_others(void **state)
{
	const backends *b = *state;
	static results y[2];
	const content *c = drawn();
	for (int ragged = 0; ragged < 2; ragged++) {
		read_all(b->each[1], c, 7, ragged, 40, 50, y[0]);
		read_all(b->each[1], c, 7, ragged, 40, 51, y[1]);
		assert_true(compare_same("y", &y[1][0][0][0], &y[0][0][0][0], TOKENS * HEADS * VALUE));
	}
}

/* The memories are the first keys of a single call; the ring holds all tokens. */
static void pieces_give_the_results_of_one_call(void **state)
{
	const backends *b = *state;
	enum { KEYS = MEMORIES + TOKENS };
	static results want, got;
	static float k[SEQUENCES][KEYS][KV_HEADS * KEY], v[SEQUENCES][KEYS][KV_HEADS * VALUE];
	static int32_t mask[SEQUENCES][KEYS];
	static content c;
	c = *drawn();
	for (int s = 0; s < SEQUENCES; s++) {
		memcpy(k[s], c.memory_k, sizeof c.memory_k);
		memcpy(v[s], c.memory_v, sizeof c.memory_v);
		memcpy(k[s] + MEMORIES, c.k[s], sizeof c.k[s]);
		memcpy(v[s] + MEMORIES, c.v[s], sizeof c.v[s]);
		for (int j = 0; j < KEYS; j++)
			mask[s][j] = j < MEMORIES ? 1 : c.mask[s][j - MEMORIES];
	}
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		const attention_matrix_params p = {HEADS, KV_HEADS, 0.8f};
		const value q = graph_input(g, "q", DTYPE_F32, SHAPE3(SEQUENCES, TOKENS, HEADS * KEY));
		const value keys = graph_input(g, "k", DTYPE_F32, SHAPE3(SEQUENCES, KEYS, KV_HEADS * KEY));
		const value values = graph_input(g, "v", DTYPE_F32, SHAPE3(SEQUENCES, KEYS, KV_HEADS * VALUE));
		const value seen = graph_input(g, "mask", DTYPE_I32, SHAPE2(SEQUENCES, KEYS));
		const value bias = graph_input(g, "bias", DTYPE_F32, SHAPE2(FAR, HEADS));
		const value weights =
		    op_attention_weights(g, op_attention_scores(g, q, keys, p), seen, VALUE_NONE, bias,
		                         (attention_weights_params){.window = PAST, .top_k = TOP});
		graph_output(g, op_attention_apply(g, weights, values, p), "y");
		plan *run = open_plan(
		    b->each[i], g, (plan_binding[]){{q, c.q}, {keys, k}, {values, v}, {seen, mask}, {bias, c.bias}}, 5);
		assert_int_equal(plan_run(run), STATUS_OK);
		assert_int_equal(plan_read(run, graph_find(g, "y"), want), STATUS_OK);
		plan_free(run);
		read_all(b->each[i], &c, TOKENS, true, 60, 61, got);
		assert_true(
		    compare_close("y", &got[0][0][0], &want[0][0][0], SEQUENCES * TOKENS * HEADS * VALUE, 1e-5, 1e-5));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pieces_of_any_size_give_the_definition_even_past_the_end_of_the_ring),
	    cmocka_unit_test(the_bits_of_a_sequence_do_not_depend_on_the_others),
	    cmocka_unit_test(pieces_give_the_results_of_one_call),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
