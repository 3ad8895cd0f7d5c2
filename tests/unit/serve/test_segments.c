/* Sessions of models that read in segments: the rows kept for later segments differ from those that a segment reads
 * itself. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

enum { TOKENS = 150, LONG = 110, HALF = 75 };

#define KEYS                                                                                                           \
	"{\"dim\": 32, \"depth\": 2, \"heads\": 4, \"attn_dim_head\": 8, \"num_tokens\": 259, \"max_seq_len\": 40, "
static const char *const configs[] = {
    KEYS "\"max_mem_len\": 60, \"rel_pos_bias\": true, \"raw_memory\": true, \"shift_tokens\": 1}",
    KEYS "\"max_mem_len\": 60, \"rotary_pos_emb\": true, \"rotate_values\": true, \"shift_mem_down\": 1}",
    KEYS "\"max_mem_len\": 60, \"rotary_pos_emb\": true, \"num_memory_tokens\": 3, \"shift_tokens\": 1}",
};

static void open_segments(fixture *f, const char *text)
{
	memset(f, 0, sizeof *f);
	fixture_folder(f);
	write_configured(f->folder, f->backend, "transformer", text);
	fixture_serve(f, &roomy);
}

static void assert_near(const session *a, const session *b)
{
	for (int i = 0; i < VOCAB; i++)
		if (!(fabs((double)a->logits[i] - (double)b->logits[i]) <= 1e-4))
			fail_msg("logit %d: %g, %g", i, (double)a->logits[i], (double)b->logits[i]);
}

static void a_session_is_the_same_in_one_piece_token_by_token_and_copied(void **state)
{
	(void)state;
	for (size_t c = 0; c < sizeof configs / sizeof *configs; c++) {
		fixture f;
		int32_t ids[TOKENS];
		void *blob;
		size_t bytes;
		session *copies[3];
		open_segments(&f, configs[c]);
		random_tokens(ids, TOKENS, 3);
		session *whole = open_session(&f, "whole", POSITION_ERROR, false),
		        *tokens = open_session(&f, "tokens", POSITION_ERROR, false);
		append(&f, whole, ids, TOKENS);
		for (int i = 0; i < TOKENS; i++)
			append(&f, tokens, ids + i, 1);
		assert_near(whole, tokens);
		assert_equals_new_session(&f, whole);
		copies[0] = open_session(&f, "x", POSITION_ERROR, false);
		append(&f, copies[0], ids, HALF);
		assert_int_equal(scheduler_session_export(f.scheduler, copies[0], &blob, &bytes, NULL), STATUS_OK);
		assert_int_equal(scheduler_session_fork(f.scheduler, copies[0], "fork", &copies[1], NULL), STATUS_OK);
		assert_int_equal(
		    scheduler_session_import(f.scheduler, f.model, "import", blob, bytes, &copies[2], NULL), STATUS_OK);
		for (int i = 0; i < 3; i++) {
			append(&f, copies[i], ids + HALF, LONG - HALF);
			append(&f, copies[i], ids + LONG, TOKENS - LONG);
			assert_near(copies[i], whole);
			assert_same_logits(copies[i], copies[0]);
		}
		free(blob);
		fixture_close(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_session_is_the_same_in_one_piece_token_by_token_and_copied),
	};
	return cmocka_run_group_tests_name("segments", tests, NULL, NULL);
}
