/* Decoding at the size of a real model, with each switch that changes when kernels run but not their results: early
 * launches, recordings and programs (cuda/program.cuh), on and off. Tokens, logits and the final session have the same
 * bits.
 * On a GPU: 2,000 tokens of width 768 in 12 layers; an emulated device decodes 40 of a tiny model, or 400 with
 * ADDITIVE_ALL_CASES. */
#include "tests/unit/serve/fixture.h"

#include "tests/unit/cuda/device.h"

enum { MOST_TOKENS = 2000, PIECES = 20, SWITCHES = 3, COMBINATIONS = 1 << SWITCHES };

/* In a combination, a set bit is a switch that is off. */
static const char *const switches[SWITCHES] = {"ADDITIVE_CUDA_EARLY", "ADDITIVE_CUDA_RECORD",
                                               "ADDITIVE_CUDA_PERSISTENT"};

typedef struct sizes {
	int width, heads, layers, vocabulary, tokens;
} sizes;

/* The decoded tokens and the session afterwards. */
typedef struct decoded {
	int32_t ids[MOST_TOKENS];
	float *logits; /* after each piece [PIECES, vocabulary] */
	void *blob;
	size_t bytes;
} decoded;

static backend *open_with(int off)
{
	for (int i = 0; i < SWITCHES; i++)
		setenv(switches[i], off >> i & 1 ? "0" : "1", 1);
	return open_device();
}

/* Windows 4, 8, 16, …, at most 256, and a global layer at the end. */
static json_t *config_of(const sizes *s)
{
	json_t *windows = json_array();
	for (int i = 0; i < s->layers; i++) {
		const int window = i == s->layers - 1 ? 1 << 20 : i < 6 ? 4 << i : 256;
		assert_int_equal(json_array_append_new(windows, json_integer(window)), 0);
	}
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o, s:f}", "hidden_size", s->width, "vocab_size", s->vocabulary,
	                 "n_heads", s->heads, "n_positions", 2 * MOST_TOKENS, "n_layer", s->layers, "window_sizes",
	                 windows, "hidden_dropout_prob", 0.0);
}

/* Scores of a new model are all equal; noise on every parameter makes them differ. */
static void write_folder(const char *folder, const sizes *s)
{
	backend *cpu;
	model *m;
	error err = ERROR_INIT;
	json_t *config = config_of(s);
	assert_int_equal(cpu_open(&cpu, 0, NULL), STATUS_OK);
	if (model_create(&m, architecture_find("additive"), config, 1, cpu, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	float *arena = model_arena(m);
	for (int64_t i = 0; i < model_arena_floats(m); i++)
		arena[i] += 0.05f * (philox_uniform(philox(9, 0, 0, (uint64_t)i).word[0]) - 0.5f);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	backend_close(cpu);
	json_decref(config);
}

static void decode(decoded *d, const char *folder, const sizes *s, int off)
{
	fixture f = {.backend = open_with(off)};
	client c;
	const int each = s->tokens / PIECES;
	snprintf(f.folder, sizeof f.folder, "%s", folder);
	fixture_serve_as(&f, &roomy, DTYPE_PANEL_BF16);
	session *x = open_session(&f, "x", POSITION_ERROR, false);
	d->logits = malloc((size_t)PIECES * (size_t)s->vocabulary * sizeof *d->logits);
	assert_non_null(d->logits);
	for (int i = 0; i < PIECES; i++) {
		generation_request r = request(&c, (const int32_t[]){5, 6, 7}, i == 0 ? 3 : 0, each);
		r.sampling.temperature = 1;
		r.sampling.seed = 11;
		run(&f, x, &c, &r);
		assert_int_equal(c.n_tokens, each);
		memcpy(d->ids + i * each, c.tokens, (size_t)each * sizeof *c.tokens);
		memcpy(d->logits + (int64_t)i * s->vocabulary, x->logits, (size_t)s->vocabulary * sizeof *x->logits);
	}
	assert_int_equal(scheduler_session_export(f.scheduler, x, &d->blob, &d->bytes, NULL), STATUS_OK);
	scheduler_free(f.scheduler);
	backend_close(f.backend);
}

static void decoded_free(decoded *d)
{
	free(d->logits);
	free(d->blob);
}

static int different_ids(const int32_t *ids, int n)
{
	int count = 0;
	for (int i = 0; i < n; i++) {
		int first = 0;
		while (ids[first] != ids[i])
			first++;
		count += first == i;
	}
	return count;
}

static void assert_same(const decoded *a, const decoded *b, const sizes *s)
{
	for (int i = 0; i < s->tokens; i++)
		if (a->ids[i] != b->ids[i])
			fail_msg("token %d of %d is another one", i, s->tokens);
	for (int i = 0; i < PIECES; i++)
		if (memcmp(a->logits + (int64_t)i * s->vocabulary, b->logits + (int64_t)i * s->vocabulary,
		           (size_t)s->vocabulary * sizeof *a->logits) != 0)
			fail_msg("logits differ after %d of %d tokens", (i + 1) * (s->tokens / PIECES), s->tokens);
	assert_int_equal(a->bytes, b->bytes);
	assert_memory_equal(a->blob, b->blob, a->bytes);
}

static void no_switch_changes_a_bit_of_a_long_decode(void **state)
{
	(void)state;
	char folder[64];
	static decoded first, other;
	find_plain_plugin(); /* test_serving checks every access, also with these switches */
	backend *b = open_device();
	const bool emulated = device_is_emulated(b);
	const int few = is_left_out(b, 1, 2) ? 40 : 400;
	backend_close(b);
	const sizes s = emulated ? (sizes){32, 2, 2, VOCAB, few} : (sizes){768, 12, 12, 32768, MOST_TOKENS};
	make_folder(folder);
	write_folder(folder, &s);
	decode(&first, folder, &s, 0);
	print_message("note: %d tokens, %d different ones\n", s.tokens, different_ids(first.ids, s.tokens));
	for (int i = 1; i < COMBINATIONS; i++) {
		if ((i & 6) == 2) /* programs are only made from recordings */
			continue;
		decode(&other, folder, &s, i);
		print_message("note: early launches %s, recordings %s, programs %s\n", i & 1 ? "off" : "on",
		              i & 2 ? "off" : "on", i & 4 ? "off" : "on");
		assert_same(&first, &other, &s);
		decoded_free(&other);
	}
	decoded_free(&first);
	for (int i = 0; i < SWITCHES; i++)
		unsetenv(switches[i]);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_switch_changes_a_bit_of_a_long_decode),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
