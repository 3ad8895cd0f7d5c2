/* Number of kernels, copies and matrix products for a served token and for a training step, counted on the emulated
 * device, per layer and for the rest. Two depths of one model are counted; the difference is one layer. Each launch
 * costs about a microsecond whatever it does, so for small batches this is the time.
 *
 * When a count changes, the failure lists all work by name, and the table below has to be updated. LAUNCHES=1 in the
 * environment prints the lists. */
#include "tests/unit/serve/fixture.h"

#include "engine/train/trainer.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/datasets.h"

enum { LOW = 2, HIGH = 3, KINDS = 4 };

typedef struct counts {
	int of[KINDS]; /* by emulator_kind: launches, products, copies, sets */
} counts;

typedef struct expected {
	const char *what;
	counts layer, rest;
} expected;

/*                                                            layer: kernels, products, copies, sets   all else */
static const expected decode_1 = {"a token of one session",    {{6, 0, 0, 0}}, {{7, 0, 2, 0}}};
static const expected decode_8 = {"a token of eight sessions", {{6, 0, 0, 0}}, {{7, 0, 2, 0}}};
/* With programs (cuda/program.cuh), the layers and the logits are one launch. */
static const expected program_1 = {"a token of one session, by a program", {{0, 0, 0, 0}}, {{6, 0, 2, 0}}};
static const expected program_8 = {"a token of eight sessions, by a program", {{0, 0, 0, 0}}, {{6, 0, 2, 0}}};
static const expected forgetting_program = {"a token of one session of additive2, by a program", {{0, 0, 0, 0}}, {{6, 0, 2, 0}}};
static const expected train_step = {"a training step",         {{17, 18, 0, 0}}, {{29, 0, 5, 0}}};

static backend *device, *with_programs;
static emulator_counter counter;

static int open_all(void **state)
{
	(void)state;
	device = open_device();
	setenv("ADDITIVE_CUDA_PERSISTENT", "1", 1);
	with_programs = open_device();
	unsetenv("ADDITIVE_CUDA_PERSISTENT");
	counter = emulator_counting();
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	backend_close(with_programs);
	backend_close(device);
	return 0;
}

static json_t *config_of(int layers, int width, int positions)
{
	json_t *windows = json_array();
	for (int i = 0; i < layers; i++)
		assert_int_equal(json_array_append_new(windows, json_integer(i == 0 ? 1 << 20 : 8)), 0); /* one global round */
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o, s:f}", "hidden_size", width, "vocab_size", VOCAB, "n_heads", 2,
	                 "n_positions", positions, "n_layer", layers, "window_sizes", windows,
	                 "hidden_dropout_prob", 0.0);
}

static model *sized_model(int layers, int width, int positions)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config = config_of(layers, width, positions);
	if (model_create(&m, architecture_find("additive"), config, 7, device, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(config);
	return m;
}

static model *model_of(int layers)
{
	return sized_model(layers, 32, 64);
}

static model *forgetting_model_of(int layers)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:f}", "hidden_size", 32, "vocab_size", VOCAB, "n_heads", 4,
	                           "n_layer", layers, "intermediate_size", 48, "dropout", 0.0);
	if (model_create(&m, architecture_find("additive2"), config, 7, device, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(config);
	return m;
}

/* --- lists of work ------------------------------------------------------------------------------- */

typedef struct work {
	emulator_work *at;
	size_t n;
} work;

static work work_end(void)
{
	work w;
	const emulator_work *from = counter.end(&w.n);
	w.at = calloc(w.n + 1, sizeof *w.at);
	assert_non_null(w.at);
	memcpy(w.at, from, w.n * sizeof *w.at);
	return w;
}

static counts count(work w)
{
	counts c = {{0}};
	for (size_t i = 0; i < w.n; i++)
		c.of[w.at[i].kind]++;
	return c;
}

static int times(work w, const char *name)
{
	int n = 0;
	for (size_t i = 0; i < w.n; i++)
		n += strcmp(w.at[i].name, name) == 0;
	return n;
}

/* Print every name with its number of occurrences per step at the two depths. */
static void print_names(work low, work high, int steps)
{
	for (size_t i = 0; i < high.n; i++) {
		size_t first = 0;
		while (strcmp(high.at[first].name, high.at[i].name) != 0)
			first++;
		if (first == i)
			printf("  %6.2f  %6.2f  %s\n", (double)times(low, high.at[i].name) / steps,
			       (double)times(high, high.at[i].name) / steps, high.at[i].name);
	}
}

static void assert_counts(const expected *e, work low, work high, int steps)
{
	static const char *const names[KINDS] = {"kernels", "products", "copies", "sets"};
	const counts a = count(low), b = count(high);
	bool good = true;
	for (int k = 0; k < KINDS; k++) {
		const double layer = (double)(b.of[k] - a.of[k]) / steps, rest = (double)a.of[k] / steps - LOW * layer;
		const bool same = layer == e->layer.of[k] && rest == e->rest.of[k];
		if (!same || getenv("LAUNCHES"))
			printf("%s: %g %s of a layer and %g of all else; the table says %d and %d\n", e->what, layer, names[k], rest,
			       e->layer.of[k], e->rest.of[k]);
		good = good && same;
	}
	if (!good || getenv("LAUNCHES")) {
		printf("all of it, with %d and %d layers:\n", LOW, HIGH);
		print_names(low, high, steps);
	}
	free(low.at);
	free(high.at);
	assert_true(good);
}

/* --- serving --------------------------------------------------------------------------------------- */

enum { SESSIONS = 8, SHORT = 4, STEPS = 4 };

/* Work for `tokens` tokens of each of n sessions, beginning with the prompt. */
static work generate(fixture *f, int n, int tokens)
{
	client clients[SESSIONS];
	counter.begin();
	for (int i = 0; i < n; i++) {
		const int32_t prompt = 3 + i;
		const generation_request r = request(&clients[i], &prompt, 1, tokens);
		start(f, NULL, &clients[i], &r);
	}
	drain(f);
	return work_end();
}

/* Work in `all` that is not in `part`: its last items, because both begin alike. */
static work rest_of(work all, work part)
{
	work w = {calloc(all.n + 1, sizeof *w.at), 0};
	assert_non_null(w.at);
	for (size_t i = 0; i < all.n; i++) {
		const char *name = all.at[i].name;
		int before = 0;
		for (size_t j = 0; j < i; j++)
			before += strcmp(all.at[j].name, name) == 0;
		if (before >= times(part, name))
			w.at[w.n++] = all.at[i];
	}
	free(all.at);
	free(part.at);
	return w;
}

static void serve(fixture *f, backend *b, model *m)
{
	error err = ERROR_INIT;
	memset(f, 0, sizeof *f);
	f->backend = b;
	make_folder(f->folder);
	assert_int_equal(model_save(m, f->folder, &err), STATUS_OK);
	model_free(m);
	fixture_serve_as(f, &roomy, DTYPE_PANEL_BF16);
}

/* Work of STEPS decode steps: the difference between two generations, after all plans were made and recorded. */
static work decode(backend *b, model *(*make)(int layers), int layers, int sessions)
{
	fixture f;
	serve(&f, b, make(layers));
	for (int i = 0; i < 2; i++)
		free(generate(&f, sessions, SHORT + STEPS).at);
	const work some = generate(&f, sessions, SHORT), more = generate(&f, sessions, SHORT + STEPS);
	scheduler_free(f.scheduler);
	assert_int_equal(file_remove_tree(f.folder, NULL), STATUS_OK);
	return rest_of(more, some);
}

static void a_decode_step_has_the_expected_number_of_launches(void **state)
{
	(void)state;
	if (!counter.begin)
		skip();
	assert_counts(&decode_1, decode(device, model_of, LOW, 1), decode(device, model_of, HIGH, 1), STEPS);
	assert_counts(&program_1, decode(with_programs, model_of, LOW, 1), decode(with_programs, model_of, HIGH, 1), STEPS);
	assert_counts(&forgetting_program, decode(with_programs, forgetting_model_of, LOW, 1),
	              decode(with_programs, forgetting_model_of, HIGH, 1), STEPS);
}

static void a_decode_step_of_eight_has_the_expected_number_of_launches(void **state)
{
	(void)state;
	if (!counter.begin)
		skip();
	assert_counts(&decode_8, decode(device, model_of, LOW, SESSIONS), decode(device, model_of, HIGH, SESSIONS), STEPS);
	assert_counts(&program_8, decode(with_programs, model_of, LOW, SESSIONS), decode(with_programs, model_of, HIGH, SESSIONS), STEPS);
}

/* Bytes that the kernels of STEPS tokens prefetch. */
static uint64_t prefetched(bool ahead, int layers)
{
	uint64_t bytes = 0;
	setenv("ADDITIVE_CUDA_AHEAD", ahead ? "1" : "0", 1);
	backend *b = open_device();
	const work w = decode(b, model_of, layers, 1);
	for (size_t i = 0; i < w.n; i++)
		bytes += w.at[i].prefetched;
	free(w.at);
	backend_close(b);
	unsetenv("ADDITIVE_CUDA_AHEAD");
	return bytes;
}

/* In bf16: three projections of the layernorm, P, and two of four times the width. */
static void each_weight_of_a_layer_is_prefetched_two_products_before_it_is_used(void **state)
{
	(void)state;
	if (!counter.begin)
		skip();
	const uint64_t layer = (3 + 1 + 2 * 4) * 32 * 32 * 2;
	assert_int_equal(prefetched(true, HIGH) - prefetched(true, LOW) - (prefetched(false, HIGH) - prefetched(false, LOW)),
	                 STEPS * layer);
}

enum { PROMPT = 128, WIDTH = 128 };

/* Products by wgmma in one step that reads a prompt of PROMPT tokens. Sets `all` to all kernels. */
static int prompt_products(int layers, int *all)
{
	fixture f;
	client c;
	int32_t prompt[PROMPT];
	int found = 0;
	serve(&f, device, sized_model(layers, WIDTH, 2 * PROMPT));
	for (int i = 0; i < PROMPT; i++)
		prompt[i] = 3 + i % 5;
	counter.begin();
	const generation_request r = request(&c, prompt, PROMPT, 1);
	start(&f, NULL, &c, &r);
	drain(&f);
	const work w = work_end();
	for (size_t i = 0; i < w.n; i++)
		found += strncmp(w.at[i].name, "wgmma_kernel", strlen("wgmma_kernel")) == 0;
	*all = count(w).of[EMULATOR_KERNEL];
	if (getenv("LAUNCHES"))
		print_names(w, w, 1);
	free(w.at);
	scheduler_free(f.scheduler);
	assert_int_equal(file_remove_tree(f.folder, NULL), STATUS_OK);
	return found;
}

/* Three projections of the layernorm are one kernel; P and two products of four times the width are one each. The other
 * kernels of a layer are 8. */
static void a_prompt_has_four_products_by_wgmma_per_layer(void **state)
{
	int low, high;
	(void)state;
	if (!counter.begin)
		skip();
	const int products = prompt_products(LOW, &low);
	assert_int_equal(prompt_products(HIGH, &high) - products, 4);
	assert_int_equal(high - low, 12);
}

/* --- training ----------------------------------------------------------------------------------------- */

enum { LENGTH = 16, FIRST_STEPS = 3, TRAIN_STEPS = 2, TEXT = 2000 };

static void advance(trainer *t, int64_t steps)
{
	error err = ERROR_INIT;
	unsigned events;
	while (trainer_progress(t)->step < steps)
		if (trainer_advance(t, 0, &events, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
}

/* Work of TRAIN_STEPS steps of training in bf16, after the steps in which plans are made and recorded. */
static work train(int layers)
{
	static char text[TEXT];
	tokenizer *words;
	dataset *blocks;
	trainer *t;
	train_options o;
	error err = ERROR_INIT;
	for (int i = 0; i < TEXT; i++)
		text[i] = (char)('a' + philox(1, 0, 0, (uint64_t)i).word[0] % 20);
	assert_int_equal(tokenizer_new(&words, NULL, NULL), STATUS_OK);
	dataset *none;
	assert_int_equal(dataset_split(&blocks, &none, words, text, TEXT, LENGTH, 0.1, &err), STATUS_OK);
	train_options_default(&o);
	o.sequence_length = LENGTH;
	o.batch_size = 2;
	o.max_steps = 100;
	o.precision = PRECISION_BF16;
	if (trainer_new(&t, model_of(layers), &o, blocks, NULL, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	advance(t, FIRST_STEPS);
	counter.begin();
	advance(t, FIRST_STEPS + TRAIN_STEPS);
	const work w = work_end();
	trainer_free(t);
	dataset_free(blocks);
	dataset_free(none);
	tokenizer_free(words);
	return w;
}

static void a_training_step_has_the_expected_number_of_launches(void **state)
{
	(void)state;
	if (!counter.begin)
		skip();
	assert_counts(&train_step, train(LOW), train(HIGH), TRAIN_STEPS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_decode_step_has_the_expected_number_of_launches),
	    cmocka_unit_test(a_decode_step_of_eight_has_the_expected_number_of_launches),
	    cmocka_unit_test(each_weight_of_a_layer_is_prefetched_two_products_before_it_is_used),
	    cmocka_unit_test(a_prompt_has_four_products_by_wgmma_per_layer),
	    cmocka_unit_test(a_training_step_has_the_expected_number_of_launches),
	};
	return cmocka_run_group_tests(tests, open_all, close_all);
}
