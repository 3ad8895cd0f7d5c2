/* The recurrent form of softmax attention: against its definition in double, and the properties that sessions depend
 * on, for all numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/cpu/streams.h"

/* --- the definition --------------------------------------------------------------------------------------- */

/* Result of head h for token t of a text, by the definition. The memories have positions 0 … m - 1, and the tokens
 * follow. */
static void expected(const layer *l, const text *x, int64_t t, int64_t h, double *y)
{
	enum { MOST_KEYS = 600 };
	const kind *k = &l->k;
	const int64_t oldest = t + 1 > k->window ? t + 1 - k->window : 0, group = h / (k->heads / k->kv_heads);
	const int64_t query = k->memories + t - oldest;
	const float *q = x->q + (t * k->heads + h) * k->key;
	double score[MOST_KEYS];
	const float *v[MOST_KEYS];
	assert_true(query < MOST_KEYS);
	for (int64_t place = 0; place <= query; place++) {
		const bool memory = place < k->memories;
		const int64_t row = memory ? place : oldest + place - k->memories;
		const float *key = (memory ? (const float *)l->memory_k.data : x->k) + row * key_width(k);
		v[place] = (memory ? (const float *)l->memory_v.data : x->v) + row * value_width(k) + group * k->value;
		score[place] = (double)l->p.scale * dot(q, key + group * k->key, k->key);
		if (k->biased)
			score[place] += (double)((const float *)l->bias.data)[(query - place) * k->heads + h];
		if ((k->past > 0 && query - place > k->past) || (!memory && !x->mask[row]))
			score[place] = -INFINITY;
	}
	pooled(score, v, query + 1, k->value, y);
}

static bool as_defined(const layer *l, const text *x)
{
	double y[64];
	for (int64_t i = 0; i < x->n * l->k.heads; i++) {
		expected(l, x, i / l->k.heads, i % l->k.heads, y);
		for (int64_t d = 0; d < l->k.value; d++)
			if (!(fabs((double)x->y[i * l->k.value + d] - y[d]) <= 1e-5 + 1e-5 * fabs(y[d]))) {
				print_error("token %d, head %d, channel %d: %g, not %g\n", (int)(i / l->k.heads),
				            (int)(i % l->k.heads), (int)d, (double)x->y[i * l->k.value + d], y[d]);
				return false;
			}
	}
	return true;
}

/* Number of combinations of options; kind i is the i-th. */
enum { KINDS = 3 * 2 * 3 * 2 * 2 * 4 };
static kind kind_at(int i)
{
	static const int64_t windows[] = {1, 7, 40, 200}, groups[] = {4, 2, 1}, pasts[] = {0, 4, 30};
	kind k = {.heads = 4, .key = 5, .value = 9};
	k.window = windows[i % 4];
	k.masked = i / 4 % 2;
	k.biased = i / 8 % 2;
	k.memories = i / 16 % 2 * 3;
	k.past = pasts[i / 32 % 3];
	k.kv_heads = groups[i / 96];
	return k;
}

/* Read some texts in random pieces: one token of each, or several, concatenated. */
static void read_in_pieces(layer *l, text *const *some, int64_t count, uint64_t *seed)
{
	for (bool more = true; more;) {
		int32_t length[MOST];
		const int64_t most = random_next(seed, 0, 2) == 0 ? 1 : random_next(seed, 2, 70);
		more = false;
		for (int64_t i = 0; i < count; i++) {
			const int64_t left = some[i]->n - some[i]->read, wish = random_next(seed, 0, most);
			length[i] = (int32_t)(wish < left ? wish : left);
			more |= length[i] < left;
		}
		read_texts(l, some, length, count, most > 1);
	}
}

static void every_combination_of_options_follows_its_definition(void **state)
{
	(void)state;
	uint64_t seed = 7;
	for (int i = 0; i < KINDS; i++) {
		const kind k = kind_at(i);
		for (int r = 0; r < 2; r++) {
			layer l = layer_new(r ? fast : reference, fixture_run, k, SOFTMAX_F32);
			text x[] = {text_new(&k, 97, 11), text_new(&k, 60, 21)};
			read_in_pieces(&l, (text *[]){&x[0], &x[1]}, 2, &seed);
			if (!as_defined(&l, &x[0]) || !as_defined(&l, &x[1]))
				fail_msg("kind %d", i);
			text_free(&x[0]);
			text_free(&x[1]);
			layer_free(&l);
		}
	}
}

static void heads_of_any_width_follow_the_definition_on_every_instruction_set(void **state)
{
	(void)state;
	static const char *const isas[] = {"baseline", "avx2", "avx512"};
	static const int64_t widths[][2] = {{1, 1}, {16, 16}, {32, 5}, {7, 64}, {40, 33}, {64, 48}};
	uint64_t seed = 8;
	for (int i = 0; i < 3 * 6; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i / 6], 1);
		backend *b = fixture_open(2);
		unsetenv("ADDITIVE_CPU_ISA");
		const kind k = {2, 1, widths[i % 6][0], widths[i % 6][1], 130, 0, 70, true, i % 2, false, false};
		layer l = layer_new(b, fixture_run, k, SOFTMAX_F32);
		text x = text_new(&k, 200, 31);
		read_in_pieces(&l, (text *[]){&x}, 1, &seed);
		assert_true(as_defined(&l, &x));
		text_free(&x);
		layer_free(&l);
		backend_close(b);
	}
}

static const int64_t windows[] = {1, 2, 7, 50, 64, 129, 301, 600};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

static kind plain(int64_t window, bool masked)
{
	return (kind){2, 2, 19, 19, window, 0, 0, false, masked, true, false};
}

static void chunks_of_any_size_follow_the_definition(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 3, 4, 5, 16, 63, 64, 65, 150, 301};
	for (int i = 0; i < WINDOWS * 10; i++) {
		const kind k = plain(windows[i / 10], i % 2);
		layer l = layer_new(fast, fixture_run, k, SOFTMAX_F32);
		text x = text_new(&k, 301, 81);
		read_in_chunks(&l, &x, chunks[i % 10]);
		assert_true(as_defined(&l, &x));
		text_free(&x);
		layer_free(&l);
	}
}

/* --- bits ----------------------------------------------------------------------------------------------------- */

/* Check that two ways to read a text give the same results and, if `also`, the same slot. */
static void assert_same(const layer *a, const text *x, const layer *b, const text *y, bool also)
{
	const int64_t floats = a->pool.shape.dim[1], count = x->n * a->k.heads * a->k.value;
	assert_true(compare_same("y", x->y, y->y, count));
	if (also)
		assert_memory_equal((float *)a->pool.data + floats, (float *)b->pool.data + floats,
		                    (size_t)floats * sizeof(float));
}

static void q_k_and_v_in_one_tensor_or_three_give_the_same_bits(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * WINDOWS; i++) {
		kind one = {3, 3, 17, 17, windows[i / 2], 0, 0, false, i % 2, true, false}, three = one;
		three.together = false;
		layer a = layer_new(fast, fixture_run, one, SOFTMAX_F32),
		      b = layer_new(fast, fixture_run, three, SOFTMAX_F32);
		text x = text_new(&one, 150, 41), y = text_new(&three, 150, 41);
		for (int64_t n = 1; x.read < x.n; n = n * 3 < x.n - x.read ? n * 3 : x.n - x.read) {
			read_one(&a, &x, n);
			read_one(&b, &y, n);
		}
		assert_same(&a, &x, &b, &y, true);
		text_free(&x);
		text_free(&y);
		layer_free(&a);
		layer_free(&b);
	}
}

/* One key head for several query heads equals that key head repeated. */
static void grouped_heads_give_the_bits_of_repeated_heads(void **state)
{
	(void)state;
	const kind grouped = {4, 2, 5, 9, 40, 0, 0, true, true, false, false},
	           repeated = {4, 4, 5, 9, 40, 0, 0, true, true, false, false};
	layer a = layer_new(fast, fixture_run, grouped, SOFTMAX_F32),
	      b = layer_new(fast, fixture_run, repeated, SOFTMAX_F32);
	text x = text_new(&grouped, 90, 51), y = text_new(&repeated, 90, 51);
	for (int64_t i = 0; i < 90 * 4; i++) {
		memcpy(y.k + i * 5, x.k + (i / 4 * 2 + i % 4 / 2) * 5, 5 * sizeof(float));
		memcpy(y.v + i * 9, x.v + (i / 4 * 2 + i % 4 / 2) * 9, 9 * sizeof(float));
	}
	memcpy(y.mask, x.mask, 90 * sizeof *x.mask);
	for (int64_t n = 1; x.read < x.n; n = n * 3 < x.n - x.read ? n * 3 : x.n - x.read) {
		read_one(&a, &x, n);
		read_one(&b, &y, n);
	}
	assert_same(&a, &x, &b, &y, false);
	text_free(&x);
	text_free(&y);
	layer_free(&a);
	layer_free(&b);
}

static void a_sequence_has_the_same_bits_alone_and_among_others(void **state)
{
	(void)state;
	const kind k = {4, 2, 18, 21, 50, 33, 3, true, true, false, false};
	layer alone = layer_new(fast, fixture_run, k, SOFTMAX_F32), all = layer_new(fast, fixture_run, k, SOFTMAX_F32);
	text one = text_new(&k, 160, 61), x[] = {text_new(&k, 160, 61), text_new(&k, 400, 71), text_new(&k, 90, 81)};
	static const int32_t lengths[][3] = {{1, 200, 3}, {7, 0, 1}, {1, 1, 1}, {70, 1, 0}, {4, 64, 9}, {77, 100, 70}};
	for (int i = 0; i < 6; i++) {
		read_one(&alone, &one, lengths[i][0]);
		read_texts(&all, (text *[]){&x[0], &x[1], &x[2]}, lengths[i], 3, i % 2 == 0);
	}
	assert_int_equal(one.read, one.n);
	assert_same(&alone, &one, &all, &x[0], true);
	text_free(&one);
	for (int i = 0; i < 3; i++)
		text_free(&x[i]);
	layer_free(&alone);
	layer_free(&all);
}

static void chunks_of_any_size_give_the_same_state(void **state)
{
	(void)state;
	for (int i = 0; i < WINDOWS; i++) {
		const kind k = plain(windows[i], true);
		layer one = layer_new(fast, fixture_run, k, SOFTMAX_F32),
		      many = layer_new(fast, fixture_run, k, SOFTMAX_F32);
		text x = text_new(&k, 301, 81), y = text_new(&k, 301, 81);
		read_in_chunks(&one, &x, 1);
		read_in_chunks(&many, &y, 70);
		size_t bytes = (size_t)shape_count(one.pool.shape) * sizeof(float);
		assert_memory_equal(one.pool.data, many.pool.data, bytes);
		text_free(&x);
		text_free(&y);
		layer_free(&one);
		layer_free(&many);
	}
}

static void reading_writes_nothing_outside_the_state(void **state)
{
	(void)state;
	const kind k = plain(50, false);
	layer l = layer_new(fast, fixture_run, k, SOFTMAX_F32);
	text x = text_new(&k, 70, 81);
	const int64_t count = shape_count(l.pool.shape), floats = l.pool.shape.dim[1],
	              state_floats = softmax_state_floats(key_width(&k), value_width(&k), k.window);
	float *before = malloc((size_t)count * sizeof *before), *after = l.pool.data;
	assert_non_null(before);
	memcpy(before, after, (size_t)count * sizeof *before);
	read_one(&l, &x, 70);
	read_one(&l, &x, 0);
	assert_memory_equal(after, before, (size_t)(floats + MARGIN) * sizeof *before);
	int64_t end = floats + MARGIN + state_floats;
	assert_memory_equal(after + end, before + end, (size_t)(count - end) * sizeof *before);
	assert_memory_not_equal(after + floats + MARGIN, before + floats + MARGIN,
	                        (size_t)state_floats * sizeof *before);
	free(before);
	text_free(&x);
	layer_free(&l);
}

static void decoding_does_not_depend_on_threads(void **state)
{
	(void)state;
	enum { B = 3, LENGTH = 70, WIDTH = 64, WINDOW = 1500, MEMORIES = 3 };
	static const int threads[] = {1, 2, 3, 7};
	softmax_stream_params p = {.heads = 4, .window = WINDOW, .scale = 0.2f, .kv_heads = 4};
	float *first = NULL;
	for (int t = 0; t < 4; t++) {
		backend *b = fixture_open(7);
		op_call call = {.params = &p, .n_in = 12};
		for (int i = 0; i < 3; i++)
			call.in[i] = fixture_normal(SHAPE3(B, LENGTH, WIDTH), 92 + (uint64_t)i, 1);
		call.in[3] = fixture_normal(SHAPE2(B, softmax_state_floats(WIDTH, WIDTH, WINDOW)), 91, 1);
		call.in[4] = integers_of((int32_t[]){2, 0, 1}, B);
		call.in[5] = integers_of((int32_t[]){5000, 1499, 300}, B);
		call.in[6] = integers_of((int32_t[]){1, LENGTH, 3}, B);
		for (int i = 9; i < 11; i++)
			call.in[i] = fixture_normal(SHAPE2(MEMORIES, WIDTH), 92 + (uint64_t)i, 1);
		call.in[11] = fixture_normal(SHAPE2(WINDOW + MEMORIES, 4), 99, 1);
		fixture_narrow(b, threads[t], OP_softmax_stream, &call);
		if (first)
			assert_true(compare_same("y", call.out[0].data, first, B * LENGTH * WIDTH));
		else
			first = call.out[0].data, call.out[0].data = NULL;
		fixture_free(&call);
		backend_close(b);
	}
	buffer_free(first);
}

/* --- checks ---------------------------------------------------------------------------------------------------- */

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
	(void)state;
	enum { H = 4, G = 2, KEY = 3, VALUE = 5, WINDOW = 6, M = 2 };
	const softmax_stream_params right = {H, WINDOW, 1, 1, G, 0, 0, {0}, 0, 0, false};
	const tensor in[] = {FLOATS(SHAPE3(1, 2, H * KEY)),
	                     FLOATS(SHAPE3(1, 2, G * KEY)),
	                     FLOATS(SHAPE3(1, 2, G * VALUE)),
	                     FLOATS(SHAPE2(3, 1 + (G * (KEY + VALUE) + 1) * WINDOW)),
	                     INTEGERS(SHAPE1(1)),
	                     INTEGERS(SHAPE1(1)),
	                     INTEGERS(SHAPE1(1)),
	                     INTEGERS(SHAPE2(1, 2)),
	                     INTEGERS(SHAPE1(1)),
	                     FLOATS(SHAPE2(M, G * KEY)),
	                     FLOATS(SHAPE2(M, G * VALUE)),
	                     FLOATS(SHAPE2(WINDOW + M, H))};
	assert_string_equal(refused(OP_softmax_stream, &right, 12, in), "");
	static const struct {
		int input;
		tensor instead;
		const char *name;
	} wrong[] = {
	    {0, FLOATS(SHAPE3(1, 2, H * KEY + 1)), "q"},
	    {1, {0}, "k"},
	    {1, FLOATS(SHAPE3(1, 2, H * KEY)), "k"},
	    {2, {0}, "v"},
	    {2, FLOATS(SHAPE3(1, 2, G * VALUE + 1)), "v"},
	    {2, FLOATS(SHAPE3(1, 3, G * VALUE)), "v"},
	    {3, FLOATS(SHAPE2(3, (G * (KEY + VALUE) + 1) * WINDOW)), "pool"},
	    {7, INTEGERS(SHAPE2(1, 3)), "mask"},
	    {9, {0}, "memory_k"},
	    {9, FLOATS(SHAPE2(M, H * KEY)), "memory_k"},
	    {10, {0}, "memory_v"},
	    {10, FLOATS(SHAPE2(M + 1, G * VALUE)), "memory_v"},
	    {11, FLOATS(SHAPE2(WINDOW + M - 1, H)), "bias"},
	    {11, FLOATS(SHAPE2(WINDOW + M, G)), "bias"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		tensor some[12];
		memcpy(some, in, sizeof some);
		some[wrong[i].input] = wrong[i].instead;
		assert_string_equal(refused(OP_softmax_stream, &right, 12, some), wrong[i].name);
	}
	softmax_stream_params p = right;
	p.kv_heads = 3;
	assert_string_equal(refused(OP_softmax_stream, &p, 12, in), "kv_heads");
	p = right, p.segment = WINDOW + 1;
	assert_string_equal(refused(OP_softmax_stream, &p, 12, in), "segment");
	p = right, p.heads = 0;
	assert_string_equal(refused(OP_softmax_stream, &p, 12, in), "heads");
	p = right, p.window = 0;
	assert_string_equal(refused(OP_softmax_stream, &p, 12, in), "window");
	tensor together[12] = {FLOATS(SHAPE3(1, 2, 3 * H * KEY)), {0}, {0}};
	memcpy(together + 3, in + 3, 4 * sizeof *in);
	assert_string_equal(refused(OP_softmax_stream, &right, 7, together), "kv_heads");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_combination_of_options_follows_its_definition),
	    cmocka_unit_test(heads_of_any_width_follow_the_definition_on_every_instruction_set),
	    cmocka_unit_test(chunks_of_any_size_follow_the_definition),
	    cmocka_unit_test(q_k_and_v_in_one_tensor_or_three_give_the_same_bits),
	    cmocka_unit_test(grouped_heads_give_the_bits_of_repeated_heads),
	    cmocka_unit_test(a_sequence_has_the_same_bits_alone_and_among_others),
	    cmocka_unit_test(chunks_of_any_size_give_the_same_state),
	    cmocka_unit_test(reading_writes_nothing_outside_the_state),
	    cmocka_unit_test(decoding_does_not_depend_on_threads),
	    cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
