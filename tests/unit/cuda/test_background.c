/* A backend in the background: its products leave processors to other work on the device and are repeatable, and its
 * long passes are many short blocks. */
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include "engine/tensor/ops.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/tensors.h"

static const char switch_name[] = "ADDITIVE_CUDA_BACKGROUND_PROCESSORS";
static const char serving_name[] = "ADDITIVE_CUDA_SERVING_PROCESSORS";
enum { EMULATED_PROCESSORS = 4 };

/* setting: the value of the switch; NULL: unset. */
static backend *open_as(bool background, const char *setting)
{
	const backend_options options = {.background = background};
	if (setting)
		setenv(switch_name, setting, 1);
	else
		unsetenv(switch_name);
	backend *b = open_device_as(&options);
	unsetenv(switch_name);
	return b;
}

typedef struct products {
	float *y, *scores; /* results of a linear with a bias, and of a matmul */
	int64_t count;
} products;

/* Compute y = x Wᵀ + bias and x Wᵀ on b. */
static void run_products(backend *b, products *p, int64_t m, int64_t n, int64_t k)
{
	static const linear_params as_linear = {.alpha = 1};
	static const matmul_params as_matmul = {.trans_b = true, .alpha = 1};
	tensor x = tensors_normal(b, DTYPE_BF16, SHAPE2(m, k), 1), w = tensors_normal(b, DTYPE_BF16, SHAPE2(n, k), 2),
	       bias = tensors_normal(b, DTYPE_F32, SHAPE1(n), 3), y = tensors_empty(b, DTYPE_BF16, SHAPE2(m, n));
	op_call linear = {.params = &as_linear, .n_in = 3, .n_out = 1, .in = {x, w, bias}, .out = {y}};
	op_call matmul = {.params = &as_matmul, .n_in = 2, .n_out = 1, .in = {x, w}, .out = {y}};
	tensors_run(b, OP_linear, &linear);
	p->y = tensors_get(b, y);
	tensors_run(b, OP_matmul, &matmul);
	p->scores = tensors_get(b, y);
	p->count = m * n;
	const tensor all[] = {x, w, bias, y};
	for (int i = 0; i < 4; i++)
		b->release(b, all[i].data);
}

static void products_free(products *p)
{
	free(p->y);
	free(p->scores);
}

enum { PRODUCTS = 2 }; /* those of run_products */

/* Get the number of processors for which each product of such a backend is planned; 0: all of them. */
static void aims(unsigned out[PRODUCTS], bool background, const char *setting)
{
	backend *b = open_as(background, setting);
	const emulator_counter counter = emulator_counting();
	products p;
	size_t n;
	int count = 0;
	if (!counter.begin) {
		backend_close(b);
		skip();
	}
	counter.begin();
	run_products(b, &p, 24, 16, 40);
	const emulator_work *work = counter.end(&n);
	for (size_t i = 0; i < n; i++)
		if (work[i].kind == EMULATOR_PRODUCT) {
			assert_true(count < PRODUCTS);
			out[count++] = work[i].processors;
		}
	assert_int_equal(count, PRODUCTS);
	products_free(&p);
	backend_close(b);
}

/* Number of processors for which all products are planned. */
static unsigned aimed_at(bool background, const char *setting)
{
	unsigned each[PRODUCTS];
	aims(each, background, setting);
	assert_int_equal(each[0], each[1]);
	return each[0];
}

static void products_in_the_background_leave_processors_free(void **state)
{
	(void)state;
	assert_int_equal(aimed_at(true, NULL), EMULATED_PROCESSORS * 7 / 8);
	assert_int_equal(aimed_at(true, ""), EMULATED_PROCESSORS * 7 / 8);
	assert_int_equal(aimed_at(true, "0"), EMULATED_PROCESSORS * 7 / 8);
}

static void the_switch_sets_the_number_of_processors(void **state)
{
	(void)state;
	assert_int_equal(aimed_at(true, "1"), 1);
	assert_int_equal(aimed_at(true, "4"), 0); /* all of them */
	assert_int_equal(aimed_at(true, "1000"), 0);
}

static void products_of_serving_use_all_processors(void **state)
{
	(void)state;
	assert_int_equal(aimed_at(false, NULL), 0);
	assert_int_equal(aimed_at(false, "2"), 0);
}

/* The emulated device gives processors in groups of 2. Without a part, products leave processors as usual. */
static void the_background_may_run_on_part_of_the_processors(void **state)
{
	(void)state;
	skip_unless_emulated();
	static const struct {
		const char *kept;
		bool background;
		unsigned aim;
	} cases[] = {{"1", true, 2}, {"2", true, 2}, {"1", false, 0}, {"0", true, 3}, {"4", true, 3}, {"5", true, 3}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		setenv(serving_name, cases[i].kept, 1);
		assert_int_equal(aimed_at(cases[i].background, NULL), cases[i].aim);
	}
	unsetenv(serving_name);
}

static void a_product_without_an_algorithm_for_few_processors_uses_all(void **state)
{
	(void)state;
	unsigned each[PRODUCTS];
	skip_unless_emulated();
	setenv("ADDITIVE_EMULATOR_FAULT", "algorithm:1", 1);
	aims(each, true, NULL);
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	assert_int_equal(each[0], 0);
	assert_int_equal(each[1], EMULATED_PROCESSORS * 7 / 8);
}

/* On a GPU, large enough for kernels that stay on their processors. */
static void products_in_the_background_are_right_and_repeatable(void **state)
{
	(void)state;
	products foreground, in_background, again;
	backend *serving = open_as(false, NULL), *background = open_as(true, NULL), *other = open_as(true, NULL);
	const int64_t scale = device_is_emulated(serving) ? 1 : 64;
	run_products(serving, &foreground, 64 * scale, 24 * scale, 32 * scale);
	run_products(background, &in_background, 64 * scale, 24 * scale, 32 * scale);
	run_products(other, &again, 64 * scale, 24 * scale, 32 * scale);
	assert_memory_equal(in_background.y, again.y, (size_t)in_background.count * sizeof *in_background.y);
	assert_memory_equal(in_background.scores, again.scores,
	                    (size_t)in_background.count * sizeof *in_background.scores);
	assert_true(tensors_near("linear", "background", in_background.y, foreground.y, foreground.count));
	assert_true(tensors_near("matmul", "background", in_background.scores, foreground.scores, foreground.count));
	products_free(&foreground);
	products_free(&in_background);
	products_free(&again);
	backend_close(serving);
	backend_close(background);
	backend_close(other);
}

/* --- updates ------------------------------------------------------------------------------------ */

typedef struct update {
	float *p, *m;
	unsigned blocks; /* blocks of the update; 0: not counted */
} update;

/* Two updates of n parameters by an op: adamw or sgd. */
static update run_updates(bool background, op_id id, int64_t n)
{
	static const adamw_params as_adamw = {0.9f, 0.95f, 1e-8f, 0.1f, 1, false};
	static const sgd_params as_sgd = {0.9f, 0.1f, 1, false};
	const float norm2 = 3, hyper[] = {0.01f, 2};
	backend *b = open_as(background, NULL);
	const emulator_counter counter = emulator_counting();
	const tensor p = tensors_normal(b, DTYPE_F32, SHAPE1(n), 4), g = tensors_normal(b, DTYPE_F32, SHAPE1(n), 5),
	             m = tensors_empty(b, DTYPE_F32, SHAPE1(n)), v = tensors_empty(b, DTYPE_F32, SHAPE1(n)),
	             norm = {tensors_put(b, &norm2, sizeof norm2), DTYPE_F32, SHAPE0()},
	             rate = {tensors_put(b, hyper, sizeof hyper), DTYPE_F32, SHAPE1(2)};
	op_call adamw = {.params = &as_adamw, .n_in = 6, .in = {p, g, m, v, norm, rate}},
	        sgd = {.params = &as_sgd, .n_in = 5, .in = {p, g, m, norm, rate}};
	update u = {0};
	size_t count;
	if (counter.begin)
		counter.begin();
	for (int i = 0; i < 2; i++)
		tensors_run(b, id, id == OP_adamw ? &adamw : &sgd);
	if (counter.begin) {
		const emulator_work *work = counter.end(&count);
		for (size_t i = 0; i < count; i++)
			if (work[i].kind == EMULATOR_KERNEL)
				u.blocks = work[i].grid[0];
	}
	u.p = tensors_get(b, p);
	u.m = tensors_get(b, m);
	const tensor all[] = {p, g, m, v, norm, rate};
	for (int i = 0; i < 6; i++)
		b->release(b, all[i].data);
	backend_close(b);
	return u;
}

static void an_update_in_the_background_uses_more_blocks_and_changes_no_bit(void **state)
{
	(void)state;
	backend *b = open_device();
	const int64_t n = device_is_emulated(b) ? (1 << 20) + 5001 : 40000003;
	backend_close(b);
	static const op_id ids[] = {OP_adamw, OP_sgd};
	for (int i = 0; i < 2; i++) {
		update foreground = run_updates(false, ids[i], n), in_background = run_updates(true, ids[i], n);
		assert_memory_equal(foreground.p, in_background.p, (size_t)n * sizeof *foreground.p);
		assert_memory_equal(foreground.m, in_background.m, (size_t)n * sizeof *foreground.m);
		assert_true(foreground.m[n - 1] != 0 &&
		            (in_background.blocks > foreground.blocks || foreground.blocks == 0));
		free(foreground.p);
		free(foreground.m);
		free(in_background.p);
		free(in_background.m);
	}
}

/* --- training ------------------------------------------------------------------------------------ */

/* The weights after some steps in bf16 on a new background backend; *bytes: their size. */
static float *train_some(const dataset *blocks, int64_t length, int width, size_t *bytes)
{
	backend *b = open_as(true, NULL);
	model *m;
	trainer *t;
	unsigned events;
	error err = ERROR_INIT;
	train_options o = fixture_options();
	json_t *config = json_pack("{s:i, s:i, s:i, s:I, s:i, s:[i, I], s:f}", "hidden_size", width, "vocab_size", 259,
	                           "n_heads", 2, "n_positions", (json_int_t)length, "n_layer", 2, "window_sizes", 4,
	                           (json_int_t)length, "hidden_dropout_prob", 0.1);
	o.sequence_length = length;
	o.max_steps = 3; /* the third step is a replay */
	o.precision = PRECISION_BF16;
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 7, b, &err), STATUS_OK);
	if (trainer_new(&t, m, &o, blocks, NULL, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	for (events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(t, 0, &events, &err), STATUS_OK);
	*bytes = (size_t)model_arena_floats(trainer_model(t)) * sizeof(float);
	float *weights = tensors_room(*bytes);
	assert_int_equal(b->download(b, weights, model_arena(trainer_model(t)), *bytes), STATUS_OK);
	trainer_free(t);
	json_decref(config);
	backend_close(b);
	return weights;
}

static void two_runs_in_the_background_have_the_same_bits(void **state)
{
	(void)state;
	backend *b = open_device();
	const bool emulated = device_is_emulated(b);
	const int64_t length = emulated ? FIXTURE_LENGTH : 1024;
	const int width = emulated ? 16 : 512;
	backend_close(b);
	tokenizer *bytes_of_text;
	dataset *blocks, *none;
	size_t bytes, text_bytes = (size_t)(20 * length);
	assert_int_equal(tokenizer_new(&bytes_of_text, NULL, NULL), STATUS_OK);
	char *text = tensors_room(text_bytes);
	fixture_text(text, text_bytes);
	assert_int_equal(dataset_split(&blocks, &none, bytes_of_text, text, text_bytes, length, 0.1, NULL), STATUS_OK);
	float *once = train_some(blocks, length, width, &bytes), *again = train_some(blocks, length, width, &bytes);
	assert_memory_equal(once, again, bytes);
	free(once);
	free(again);
	free(text);
	dataset_free(blocks);
	dataset_free(none);
	tokenizer_free(bytes_of_text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(products_in_the_background_leave_processors_free),
	    cmocka_unit_test(the_switch_sets_the_number_of_processors),
	    cmocka_unit_test(products_of_serving_use_all_processors),
	    cmocka_unit_test(the_background_may_run_on_part_of_the_processors),
	    cmocka_unit_test(a_product_without_an_algorithm_for_few_processors_uses_all),
	    cmocka_unit_test(products_in_the_background_are_right_and_repeatable),
	    cmocka_unit_test(two_runs_in_the_background_have_the_same_bits),
	    cmocka_unit_test(an_update_in_the_background_uses_more_blocks_and_changes_no_bit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
