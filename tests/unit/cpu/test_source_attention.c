/* Attention to a source in a slot: against its definition in double, and the properties that sessions depend on, for
 * all numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/cpu/streams.h"

enum { CAPACITY = 140 };

/* A layer that attends to sources, in slots of a pool full of NaN. */
typedef struct decoder {
	backend *b;
	kind k;
	source_params p;
	tensor pool, memory_k, memory_v;
} decoder;

static decoder decoder_new(backend *b, kind k)
{
	const int64_t floats = source_state_floats(key_width(&k), value_width(&k), CAPACITY) + 2 * MARGIN;
	decoder s = {.b = b, .k = k, .pool = fixture_tensor(DTYPE_F32, SHAPE2(MOST + 1, floats))};
	s.p = (source_params){k.heads, k.kv_heads, value_width(&k), CAPACITY, MARGIN, 0.3f};
	if (k.memories) {
		s.memory_k = fixture_normal(SHAPE2(k.memories, key_width(&k)), 3, 1);
		s.memory_v = fixture_normal(SHAPE2(k.memories, value_width(&k)), 4, 1);
	}
	return s;
}

static void decoder_free(decoder *s)
{
	buffer_free(s->pool.data);
	buffer_free(s->memory_k.data);
	buffer_free(s->memory_v.data);
}

/* Store the first length[i] tokens of text i in slot i + 1. */
static void store(decoder *s, const text *x, const int32_t *length, int64_t count, int64_t room)
{
	op_call call = {.params = &s->p, .n_in = 6};
	call.in[0] = fixture_tensor(DTYPE_F32, SHAPE3(count, room, key_width(&s->k)));
	call.in[1] = fixture_tensor(DTYPE_F32, SHAPE3(count, room, value_width(&s->k)));
	call.in[2] = s->pool;
	call.in[3] = integers_of((int32_t[]){1, 2, 3, 4}, count);
	call.in[4] = integers_of(length, count);
	if (s->k.masked)
		call.in[5] = fixture_tensor(DTYPE_I32, SHAPE2(count, room));
	for (int64_t i = 0; i < count; i++) {
		put(&call.in[0], i * room, 0, x[i].k, 0, length[i], key_width(&s->k));
		put(&call.in[1], i * room, 0, x[i].v, 0, length[i], value_width(&s->k));
		if (s->k.masked)
			memcpy((int32_t *)call.in[5].data + i * room, x[i].mask, (size_t)length[i] * sizeof(int32_t));
	}
	fixture_run(s->b, OP_source_store, &call);
	call.in[2].data = NULL;
	fixture_free(&call);
}

/* Compute y for the first length[i] queries of text i, as rows or concatenated. */
static void ask(decoder *s, text *x, const int32_t *length, int64_t count, bool ragged)
{
	const int64_t queries = s->k.heads * s->k.key, width = s->k.heads * s->k.value;
	int32_t start[MOST + 1] = {0}, most = 0;
	for (int64_t i = 0; i < count; i++)
		most = length[i] > most ? length[i] : most;
	for (int64_t i = 0; i < count; i++)
		start[i + 1] = start[i] + (ragged ? length[i] + (int32_t)i : most);
	const int64_t rows = ragged ? 1 : count;
	op_call call = {.params = &s->p, .n_in = 7};
	call.in[0] = fixture_tensor(DTYPE_F32, SHAPE3(rows, start[count] / rows, queries));
	call.in[1] = s->pool;
	call.in[2] = integers_of((int32_t[]){1, 2, 3, 4}, count);
	call.in[3] = integers_of(length, count);
	if (ragged)
		call.in[4] = integers_of(start, count);
	call.in[5] = s->memory_k;
	call.in[6] = s->memory_v;
	for (int64_t i = 0; i < count; i++)
		put(&call.in[0], start[i], 0, x[i].q, 0, length[i], queries);
	fixture_run(s->b, OP_source_attention, &call);
	for (int64_t i = 0; i < count; i++) {
		const float *y = (const float *)call.out[0].data + start[i] * width;
		memcpy(x[i].y, y, (size_t)(length[i] * width) * sizeof *y);
		for (int64_t e = length[i] * width; e < (start[i + 1] - start[i]) * width; e++)
			assert_true(y[e] == 0);
	}
	call.in[1].data = call.in[5].data = call.in[6].data = NULL;
	fixture_free(&call);
}

/* Check queries 0 … queries - 1 of a text, whose first n_source tokens are the source, against the definition. */
static bool sees_the_source(const decoder *s, const text *x, int64_t n_source, int64_t queries)
{
	const kind *k = &s->k;
	double score[CAPACITY + 80], y[64];
	const float *v[CAPACITY + 80];
	for (int64_t i = 0; i < queries * k->heads; i++) {
		const int64_t group = i % k->heads / (k->heads / k->kv_heads);
		int64_t n = 0;
		for (int64_t j = -k->memories; j < n_source; j++) {
			if (j >= 0 && !x->mask[j])
				continue;
			const float *key = j < 0 ? (const float *)s->memory_k.data + (k->memories + j) * key_width(k)
			                         : x->k + j * key_width(k);
			v[n] = j < 0 ? (const float *)s->memory_v.data + (k->memories + j) * value_width(k)
			             : x->v + j * value_width(k);
			v[n] += group * k->value;
			score[n++] = (double)s->p.scale * dot(x->q + i * k->key, key + group * k->key, k->key);
		}
		pooled(score, v, n, k->value, y);
		for (int64_t d = 0; d < k->value; d++)
			if (!(fabs((double)x->y[i * k->value + d] - y[d]) <= 1e-5 + 1e-5 * fabs(y[d])))
				return false;
	}
	return true;
}

static void every_query_sees_all_of_the_source_and_the_memories(void **state)
{
	(void)state;
	static const int64_t groups[] = {4, 2, 1}, memories[] = {0, 3, 70};
	static const int32_t sources[][3] = {{1, 64, 130}, {139, 5, 65}, {12, 33, 0}},
	                     queries[][3] = {{1, 1, 1}, {3, 4, 5}, {70, 0, 2}};
	for (int i = 0; i < 2 * 2 * 3 * 3; i++) {
		const kind k = {4, groups[i / 4 % 3], 18, 7, 1, 0, memories[i / 12], false, i / 2 % 2, false, false};
		decoder s = decoder_new(i % 2 ? fast : reference, k);
		text x[] = {text_new(&k, 140, 11), text_new(&k, 140, 21), text_new(&k, 140, 31)};
		for (int turn = 0; turn < 3;
		     turn++) { /* sources longer and shorter than the previous one in the slot */
			store(&s, x, sources[turn], 3, CAPACITY - turn % 2);
			ask(&s, x, queries[(turn + i) % 3], 3, i % 3);
			for (int t = 0; t < 3; t++) { /* length 0 keeps the previous source */
				const int32_t n = sources[turn][t] ? sources[turn][t] : sources[turn - 1][t];
				assert_true(sees_the_source(&s, &x[t], n, queries[(turn + i) % 3][t]));
			}
		}
		for (int t = 0; t < 3; t++)
			text_free(&x[t]);
		decoder_free(&s);
	}
}

static void a_query_has_the_same_bits_in_any_batch_of_decoders(void **state)
{
	(void)state;
	const kind k = {4, 2, 18, 21, 1, 0, 3, false, true, false, false};
	decoder s = decoder_new(fast, k);
	text x[] = {text_new(&k, 140, 11), text_new(&k, 140, 21)}, one = text_new(&k, 140, 11);
	store(&s, x, (int32_t[]){120, 77}, 2, 130);
	static const int32_t lengths[] = {1, 4, 5, 66};
	for (int i = 0; i < 4; i++) {
		ask(&s, &one, &lengths[i], 1, false);
		ask(&s, x, (int32_t[]){lengths[i], 90}, 2, i % 2);
		assert_true(compare_same("y", x[0].y, one.y, lengths[i] * k.heads * k.value));
	}
	text_free(&x[0]);
	text_free(&x[1]);
	text_free(&one);
	decoder_free(&s);
}

/* The floats of an imported session come from a client. */
static void an_impossible_count_reads_nothing_outside_the_slot(void **state)
{
	(void)state;
	static const float counts[] = {1e30f, INFINITY, CAPACITY + 1, -1, NAN, -INFINITY};
	const kind k = {2, 2, 8, 8, 1, 0, 0, false, false, false, false};
	for (int i = 0; i < 2 * 6; i++) {
		decoder s = decoder_new(i % 2 ? fast : reference, k);
		text x = text_new(&k, CAPACITY, 11);
		store(&s, &x, &(int32_t){CAPACITY}, 1, CAPACITY);
		float *slot = (float *)s.pool.data + s.pool.shape.dim[1] + MARGIN;
		slot[source_state_floats(16, 16, CAPACITY) - 1] = counts[i / 2];
		ask(&s, &x, &(int32_t){3}, 1, false);
		assert_true(sees_the_source(&s, &x, i / 2 < 3 ? CAPACITY : 0, 3));
		text_free(&x);
		decoder_free(&s);
	}
}

/* --- checks ---------------------------------------------------------------------------------------------------- */

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
	(void)state;
	enum { H = 4, G = 2, KEY = 3, VALUE = 5, M = 2 };
	const tensor q = FLOATS(SHAPE3(1, 2, H * KEY)), pool = FLOATS(SHAPE2(3, 1 + (G * (KEY + VALUE) + 1) * 6)),
	             one = INTEGERS(SHAPE1(1)), memory_k = FLOATS(SHAPE2(M, G * KEY)),
	             memory_v = FLOATS(SHAPE2(M, G * VALUE));
	const source_params source = {H, G, G * VALUE, 2, 0, 1};
	const tensor stored[] = {FLOATS(SHAPE3(1, 3, G * KEY)), FLOATS(SHAPE3(1, 3, G * VALUE)), pool, one};
	assert_string_equal(refused(OP_source_store, &source, 4, stored), "k");
	source_params s = source;
	s.value_width = 3;
	assert_string_equal(refused(OP_source_store, &s, 4, stored), "value_width");
	s = source, s.capacity = SOURCE_MOST + 1;
	assert_string_equal(refused(OP_source_store, &s, 4, stored), "capacity");
	s = source, s.capacity = 1 << 20;
	assert_string_equal(refused(OP_source_store, &s, 4, stored), "pool");
	const tensor asked[] = {q, pool, one, one, one, memory_k, memory_v};
	assert_string_equal(refused(OP_source_attention, &source, 7, asked), "");
	assert_string_equal(refused(OP_source_attention, &source, 6, asked), "memory_v");
}
int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_query_sees_all_of_the_source_and_the_memories),
	    cmocka_unit_test(a_query_has_the_same_bits_in_any_batch_of_decoders),
	    cmocka_unit_test(an_impossible_count_reads_nothing_outside_the_slot),
	    cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
