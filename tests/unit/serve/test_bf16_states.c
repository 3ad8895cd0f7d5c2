/* Sessions of a GPT-2 whose rings hold keys and values as bf16. They are read in pieces, forked, exported and imported
 * past the end of the ring. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

enum { WIDTH = 30, CONTEXT = 24, TOKENS = 70 };
#define SIZES                                                                                                          \
	"\"n_embd\": 30, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 24, \"n_layer\": 2, "                    \
	"\"initializer_range\": 0.3"

static void open_with(fixture *f, const char *config)
{
	fixture_folder(f);
	backend_close(f->backend);
	assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	write_configured(f->folder, f->backend, "gpt2", config);
	fixture_serve(f, &roomy);
}

static void open_bf16(fixture *f)
{
	open_with(f, "{" SIZES ", \"cache_dtype\": \"bf16\"}");
}

static void a_state_has_half_a_float_for_each_key_and_value_and_a_float_for_each_token(void **state)
{
	(void)state;
	fixture floats, half;
	session_info info;
	open_with(&floats, "{" SIZES "}");
	open_bf16(&half);
	assert_int_equal(model_states(floats.model->model)->floats, 2 * CONTEXT * (2 * WIDTH + 1));
	assert_int_equal(model_states(half.model->model)->floats, 2 * CONTEXT * (WIDTH + 1));
	session *x = open_session(&half, "x", POSITION_WRAP, false);
	scheduler_session_info(x, &info);
	assert_int_equal(info.state_bytes, (model_states(half.model->model)->floats + 15) / 16 * 64);
	fixture_close(&floats);
	fixture_close(&half);
}

/* A key or value is rounded by at most 2^-9 of itself. */
static void logits_are_within_a_64th_of_those_of_a_ring_of_floats(void **state)
{
	(void)state;
	fixture f[2];
	session *s[2];
	int32_t ids[TOKENS];
	double off = 0, largest = 0;
	random_tokens(ids, TOKENS, 3);
	open_with(&f[0], "{" SIZES "}");
	open_bf16(&f[1]);
	for (int i = 0; i < 2; i++)
		s[i] = open_session(&f[i], "x", POSITION_WRAP, false);
	for (int i = 0; i < TOKENS; i++) {
		append(&f[0], s[0], ids + i, 1);
		append(&f[1], s[1], ids + i, 1);
		for (int v = 0; v < VOCAB; v++) {
			off = fmax(off, fabs((double)s[1]->logits[v] - (double)s[0]->logits[v]));
			largest = fmax(largest, fabs((double)s[0]->logits[v]));
		}
	}
	print_message("largest difference %.2e of logits up to %.2f\n", off, largest);
	assert_true(off > 0 && off <= largest / 64);
	fixture_close(&f[0]);
	fixture_close(&f[1]);
}

/* Token by token, from states with the same bits. */
static void assert_continue_alike(fixture *f, session *a, session *b, int n)
{
	client x, y;
	generation_request r = request(&x, NULL, 0, n);
	run(f, a, &x, &r);
	r = request(&y, NULL, 0, n);
	run(f, b, &y, &r);
	assert_memory_equal(x.tokens, y.tokens, (size_t)n * sizeof(int32_t));
	assert_same_logits(a, b);
}

static void forks_and_imports_continue_with_the_bits_of_the_original(void **state)
{
	(void)state;
	static const int lengths[] = {1, 8, CONTEXT, 64};
	for (int i = 0; i < 4; i++) {
		fixture f;
		int32_t ids[64];
		void *blob, *again;
		size_t bytes, bytes_again;
		session *fork, *imported;
		open_bf16(&f);
		random_tokens(ids, 64, 7);
		session *x = open_session(&f, "x", POSITION_WRAP, true);
		append(&f, x, ids, lengths[i]);
		assert_int_equal(scheduler_session_fork(f.scheduler, x, "fork", &fork, NULL), STATUS_OK);
		assert_int_equal(scheduler_session_export(f.scheduler, x, &blob, &bytes, NULL), STATUS_OK);
		assert_int_equal(
		    scheduler_session_import(f.scheduler, f.model, "imported", blob, bytes, &imported, NULL),
		    STATUS_OK);
		assert_int_equal(scheduler_session_export(f.scheduler, imported, &again, &bytes_again, NULL),
		                 STATUS_OK);
		assert_int_equal(bytes_again, bytes);
		assert_memory_equal(again, blob, bytes);
		assert_continue_alike(&f, x, fork, 40);
		client c;
		generation_request r = request(&c, NULL, 0, 40);
		run(&f, imported, &c, &r);
		assert_same_logits(x, imported);
		free(blob);
		free(again);
		fixture_close(&f);
	}
}

/* A model with the same weights and a ring of floats has another state. */
static void a_state_of_another_format_is_refused(void **state)
{
	(void)state;
	fixture floats, half;
	void *blob;
	size_t bytes;
	session *imported;
	error err = ERROR_INIT;
	int32_t ids[9];
	open_with(&floats, "{" SIZES "}");
	open_bf16(&half);
	random_tokens(ids, 9, 7);
	session *x = open_session(&half, "x", POSITION_WRAP, false);
	append(&half, x, ids, 9);
	assert_int_equal(scheduler_session_export(half.scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(
	    scheduler_session_import(floats.scheduler, floats.model, "imported", blob, bytes, &imported, &err),
	    STATUS_INVALID);
	print_message("%s\n", error_message(&err));
	free(blob);
	fixture_close(&floats);
	fixture_close(&half);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_state_has_half_a_float_for_each_key_and_value_and_a_float_for_each_token),
	    cmocka_unit_test(logits_are_within_a_64th_of_those_of_a_ring_of_floats),
	    cmocka_unit_test(forks_and_imports_continue_with_the_bits_of_the_original),
	    cmocka_unit_test(a_state_of_another_format_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
