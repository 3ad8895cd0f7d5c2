/* Sessions of a model whose states hold keys and values as 8-bit codes. They are read in any pieces, forked, exported
 * and imported past the end of every ring. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

#define SIZES                                                                                                          \
	"\"hidden_size\": 32, \"key_size\": 14, \"value_size\": 32, \"vocab_size\": 259, \"n_heads\": 2, "             \
	"\"n_layer\": 2,"                                                                                              \
	" \"window_size\": 9, \"wide_window_size\": 20, \"combiner_init\": \"random\", \"weight_bits\": 8"
enum { KEYS = 14, VALUES = 32, TOKENS = 70 };

static void open_with(fixture *f, const char *config, dtype weights)
{
	fixture_folder(f);
	backend_close(f->backend);
	assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	write_configured(f->folder, f->backend, "trilinear", config);
	fixture_serve_as(f, &roomy, weights);
}

static void open_coded(fixture *f, dtype weights)
{
	open_with(f, "{" SIZES ", \"vector_bits\": 8}", weights);
}

/* Two attention layers: one over 9 tokens including the current one, one wide. */
static void a_state_has_a_byte_for_each_key_and_value_and_a_float_for_each_token(void **state)
{
	(void)state;
	fixture floats, codes;
	session_info info;
	const int64_t places = 9 + 20;
	open_with(&floats, "{" SIZES "}", DTYPE_PANEL_F32);
	open_coded(&codes, DTYPE_PANEL_F32);
	assert_int_equal(model_states(floats.model->model)->floats, places * (KEYS + VALUES + 1));
	assert_int_equal(model_states(codes.model->model)->floats, places * ((KEYS + 2) / 4 + VALUES / 4 + 1));
	session *x = open_session(&codes, "x", POSITION_CLAMP, false);
	scheduler_session_info(x, &info);
	assert_int_equal(info.state_bytes, (model_states(codes.model->model)->floats + 15) / 16 * 64);
	fixture_close(&floats);
	fixture_close(&codes);
}

/* Compare the logits of text and session. Rounding may change a score, and with it a code of the next layer by one. */
static void a_session_gives_the_logits_of_the_parallel_form(void **state)
{
	(void)state;
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_INT8};
	for (int t = 0; t < 2; t++) {
		fixture f;
		int32_t ids[TOKENS];
		int near = 0;
		open_coded(&f, types[t]);
		random_tokens(ids, TOKENS, 3);
		session *x = open_session(&f, "x", POSITION_CLAMP, false);
		for (int i = 0; i < TOKENS; i++) {
			append(&f, x, ids + i, 1);
			session *whole = open_session(&f, "whole", POSITION_CLAMP, false);
			append(&f, whole, ids, i + 1);
			double off = 0;
			for (int v = 0; v < VOCAB; v++)
				off = fmax(off, fabs((double)x->logits[v] - (double)whole->logits[v]));
			assert_true(off <= 0.1);
			near += off <= 1e-4;
			drop(&f, whole);
		}
		print_message("%d of %d rows of logits within 1e-4\n", near, TOKENS);
		assert_true(near >= TOKENS * 9 / 10);
		fixture_close(&f);
	}
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
	static const int lengths[] = {1, 8, 21, 64};
	for (int i = 0; i < 4; i++) {
		fixture f;
		int32_t ids[64];
		void *blob, *again;
		size_t bytes, bytes_again;
		open_coded(&f, i % 2 ? DTYPE_PANEL_INT8 : DTYPE_PANEL_F32);
		random_tokens(ids, 64, 7);
		session *x = open_session(&f, "x", POSITION_CLAMP, true), *fork, *imported;
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
		drop(&f, fork);
		assert_int_equal(scheduler_session_fork(f.scheduler, x, "fork", &fork, NULL), STATUS_OK);
		assert_continue_alike(&f, x, fork, 5);
		client c;
		generation_request r = request(&c, NULL, 0, 45);
		run(&f, imported, &c, &r);
		assert_same_logits(x, imported);
		free(blob);
		free(again);
		fixture_close(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_state_has_a_byte_for_each_key_and_value_and_a_float_for_each_token),
	    cmocka_unit_test(a_session_gives_the_logits_of_the_parallel_form),
	    cmocka_unit_test(forks_and_imports_continue_with_the_bits_of_the_original),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
