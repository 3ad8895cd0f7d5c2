/* Sessions of models whose rings hold keys and values as bf16 or as 8-bit codes. They are read in pieces, forked,
 * exported and imported past the end of every ring. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

#define GPT2                                                                                                           \
	"\"n_embd\": 30, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 24, \"n_layer\": 2, "                    \
	"\"initializer_range\": 0.3"
/* Two attention layers: one over 9 tokens including the current one, one wide. */
#define TRILINEAR                                                                                                      \
	"\"hidden_size\": 32, \"key_size\": 14, \"value_size\": 32, \"vocab_size\": 259, \"n_heads\": 2, "             \
	"\"n_layer\": 2,"                                                                                              \
	" \"window_size\": 9, \"wide_window_size\": 20, \"combiner_init\": \"random\", \"weight_bits\": 8"
enum { TOKENS = 70 };

typedef struct format {
	const char *kind, *plain, *stored; /* configurations with rings of floats and of the format */
	int64_t plain_floats, stored_floats; /* floats of their states */
	position_policy policy;
	dtype weights[2];
	int full; /* tokens that fill a ring */
} format;

enum { BF16, CODES, FORMATS };
static const format formats[FORMATS] = {
    [BF16] = {.kind = "gpt2",
              .plain = "{" GPT2 "}",
              .stored = "{" GPT2 ", \"cache_dtype\": \"bf16\"}",
              .plain_floats = 2 * 24 * (2 * 30 + 1),
              .stored_floats = 2 * 24 * (30 + 1), /* half a float for each key and value, a float for each token */
              .policy = POSITION_WRAP,
              .weights = {DTYPE_PANEL_F32, DTYPE_PANEL_F32},
              .full = 24},
    [CODES] = {.kind = "trilinear",
               .plain = "{" TRILINEAR "}",
               .stored = "{" TRILINEAR ", \"vector_bits\": 8}",
               .plain_floats = (9 + 20) * (14 + 32 + 1),
               .stored_floats = (9 + 20) * (4 + 8 + 1), /* a byte for each key and value, a float for each token */
               .policy = POSITION_CLAMP,
               .weights = {DTYPE_PANEL_F32, DTYPE_PANEL_INT8},
               .full = 21},
};

static void open_as(fixture *f, const format *x, const char *config, dtype weights)
{
	fixture_folder(f);
	backend_close(f->backend);
	assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	write_configured(f->folder, f->backend, x->kind, config);
	fixture_serve_as(f, &roomy, weights);
}

static void open_plain(fixture *f, const format *x)
{
	open_as(f, x, x->plain, DTYPE_PANEL_F32);
}

static void open_stored(fixture *f, const format *x, dtype weights)
{
	open_as(f, x, x->stored, weights);
}

static void a_state_has_the_floats_of_its_format(void **state)
{
	(void)state;
	for (const format *x = formats; x < formats + FORMATS; x++) {
		fixture floats, stored;
		session_info info;
		open_plain(&floats, x);
		open_stored(&stored, x, DTYPE_PANEL_F32);
		assert_int_equal(model_states(floats.model->model)->floats, x->plain_floats);
		assert_int_equal(model_states(stored.model->model)->floats, x->stored_floats);
		session *s = open_session(&stored, "x", x->policy, false);
		scheduler_session_info(s, &info);
		assert_int_equal(info.state_bytes, (x->stored_floats + 15) / 16 * 64);
		fixture_close(&floats);
		fixture_close(&stored);
	}
}

/* A key or value is rounded by at most 2^-9 of itself. */
static void logits_are_within_a_64th_of_those_of_a_ring_of_floats(void **state)
{
	(void)state;
	const format *x = &formats[BF16];
	fixture f[2];
	session *s[2];
	int32_t ids[TOKENS];
	double off = 0, largest = 0;
	random_tokens(ids, TOKENS, 3);
	open_plain(&f[0], x);
	open_stored(&f[1], x, DTYPE_PANEL_F32);
	for (int i = 0; i < 2; i++)
		s[i] = open_session(&f[i], "x", x->policy, false);
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

/* Compare the logits of text and session. Rounding may change a score, and with it a code of the next layer by one. */
static void a_session_of_codes_gives_the_logits_of_the_parallel_form(void **state)
{
	(void)state;
	const format *x = &formats[CODES];
	for (int t = 0; t < 2; t++) {
		fixture f;
		int32_t ids[TOKENS];
		int near = 0;
		open_stored(&f, x, x->weights[t]);
		random_tokens(ids, TOKENS, 3);
		session *s = open_session(&f, "x", x->policy, false);
		for (int i = 0; i < TOKENS; i++) {
			append(&f, s, ids + i, 1);
			session *whole = open_session(&f, "whole", x->policy, false);
			append(&f, whole, ids, i + 1);
			double off = 0;
			for (int v = 0; v < VOCAB; v++)
				off = fmax(off, fabs((double)s->logits[v] - (double)whole->logits[v]));
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

static void check_copies(const format *x, int length, dtype weights)
{
	fixture f;
	int32_t ids[64];
	void *blob, *again;
	size_t bytes, bytes_again;
	session *fork, *imported;
	open_stored(&f, x, weights);
	random_tokens(ids, 64, 7);
	session *s = open_session(&f, "x", x->policy, true);
	append(&f, s, ids, length);
	assert_int_equal(scheduler_session_fork(f.scheduler, s, "fork", &fork, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_export(f.scheduler, s, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f.scheduler, f.model, "imported", blob, bytes, &imported, NULL),
	                 STATUS_OK);
	assert_int_equal(scheduler_session_export(f.scheduler, imported, &again, &bytes_again, NULL), STATUS_OK);
	assert_int_equal(bytes_again, bytes);
	assert_memory_equal(again, blob, bytes);
	assert_continue_alike(&f, s, fork, 40);
	drop(&f, fork);
	assert_int_equal(scheduler_session_fork(f.scheduler, s, "fork", &fork, NULL), STATUS_OK);
	assert_continue_alike(&f, s, fork, 5);
	client c;
	generation_request r = request(&c, NULL, 0, 45);
	run(&f, imported, &c, &r);
	assert_same_logits(s, imported);
	free(blob);
	free(again);
	fixture_close(&f);
}

static void forks_and_imports_continue_with_the_bits_of_the_original(void **state)
{
	(void)state;
	for (const format *x = formats; x < formats + FORMATS; x++) {
		const int lengths[] = {1, 8, x->full, 64};
		for (int i = 0; i < 4; i++)
			check_copies(x, lengths[i], x->weights[i % 2]);
	}
}

/* A model with the same weights and a ring of floats has another state. */
static void a_state_of_another_format_is_refused(void **state)
{
	(void)state;
	for (const format *x = formats; x < formats + FORMATS; x++) {
		fixture floats, stored;
		void *blob;
		size_t bytes;
		session *imported;
		error err = ERROR_INIT;
		int32_t ids[9];
		open_plain(&floats, x);
		open_stored(&stored, x, DTYPE_PANEL_F32);
		random_tokens(ids, 9, 7);
		session *s = open_session(&stored, "x", x->policy, false);
		append(&stored, s, ids, 9);
		assert_int_equal(scheduler_session_export(stored.scheduler, s, &blob, &bytes, NULL), STATUS_OK);
		assert_int_equal(
		    scheduler_session_import(floats.scheduler, floats.model, "imported", blob, bytes, &imported, &err),
		    STATUS_INVALID);
		print_message("%s\n", error_message(&err));
		free(blob);
		fixture_close(&floats);
		fixture_close(&stored);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_state_has_the_floats_of_its_format),
	    cmocka_unit_test(logits_are_within_a_64th_of_those_of_a_ring_of_floats),
	    cmocka_unit_test(a_session_of_codes_gives_the_logits_of_the_parallel_form),
	    cmocka_unit_test(forks_and_imports_continue_with_the_bits_of_the_original),
	    cmocka_unit_test(a_state_of_another_format_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
