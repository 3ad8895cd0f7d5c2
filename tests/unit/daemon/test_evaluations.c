/* Windows of evaluations and the sums of their scores: resuming at any border gives the same result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/daemon/evaluations/evaluation_sums.h"
#include "tests/unit/support/allocations.h"

enum { TOKENS = 9001, MAX_ALLOCATIONS = 2000 };

static tokenizer *bytes;

static bool is_last(int64_t i, bool documents)
{
	return i + 1 == TOKENS || (documents && (i % 1009 == 7 || i == 8 || i == 5500));
}

static token_cache *make_text(bool documents)
{
	token_writer *w;
	token_cache *text;
	assert_int_equal(token_writer_new(&w, NULL, 0, 1, bytes, true, NULL), STATUS_OK);
	for (int64_t i = 0; i < TOKENS; i++) {
		const int32_t id = (int32_t)(3 + i * 7 % 256);
		const unsigned char flags = is_last(i, documents) ? TOKEN_LAST : 0;
		assert_int_equal(token_writer_add(w, &id, &flags, 1, NULL), STATUS_OK);
	}
	assert_int_equal(token_writer_finish(w, &text, NULL), STATUS_OK);
	token_writer_free(w);
	return text;
}

/* Scores that depend only on the token. */
static void score(const evaluation_unit *u)
{
	for (int64_t k = 0; k < u->n_sequences; k++)
		for (int64_t i = 0; i < u->sequences[k].count; i++) {
			const score_sequence *q = &u->sequences[k];
			if (q->next[i] < 0)
				continue;
			q->scores[i] = (token_logprob){.token = q->next[i], .logprob = -(float)q->next[i] / 7};
			q->best[i] = (token_logprob){.token = q->next[i] % 3 ? q->next[i] : 1};
		}
}

/* settings: by context, length and stride; window and overlap follow. */
static evaluation_settings settings_of(evaluation_context context, int64_t length, int64_t stride, bool documents)
{
	const evaluation_settings asked = {.context = context,
	                                   .length = length,
	                                   .stride = stride,
	                                   .reset_at_document = documents,
	                                   .top = 9,
	                                   .weights = DTYPE_PANEL_F32};
	evaluation_settings s;
	json_t *written = evaluation_settings_write(&asked);
	assert_int_equal(evaluation_settings_restore(&s, written, NULL), STATUS_OK);
	json_decref(written);
	return s;
}

/* Check that every token, except the first of a sequence or block, is scored once, with the earlier tokens that its
 * context gives. */
static int64_t check_windows(const evaluation_unit *u, const evaluation_settings *s, int64_t done, bool documents)
{
	for (int64_t k = 0; k < u->n_windows; k++) {
		const evaluation_window *w = &u->windows[k];
		assert_true(w->done == done && w->end > done && w->begin <= done && w->start <= w->begin);
		assert_true(w->start == 0 || is_last(w->start - 1, documents));
		assert_int_equal(w->finishes, is_last(w->end - 1, documents));
		for (int64_t i = w->start; i + 1 < w->end; i++)
			assert_false(is_last(i, documents));
		if (s->context == EVALUATION_SLIDING && done > w->start)
			assert_int_equal(done - w->begin, s->length - s->stride);
		assert_true(w->end - w->begin <= s->window);
		done = w->end;
	}
	return done;
}

static json_t *report_of(const evaluation_settings *s, const token_cache *text, int64_t stop_every, bool documents)
{
	evaluation_unit u;
	evaluation_sums sums = {0};
	evaluation_cursor at = {0};
	char state[1];
	int64_t done = 0;
	assert_int_equal(evaluation_unit_init(&u, s), STATUS_OK);
	for (int64_t units = 1;; units++) {
		assert_int_equal(evaluation_unit_plan(&u, s, text, &at, state, NULL), STATUS_OK);
		if (u.n_windows == 0)
			break;
		done = check_windows(&u, s, done, documents);
		score(&u);
		assert_int_equal(evaluation_sums_add(&sums, s, &u, bytes, NULL), STATUS_OK);
		if (stop_every && units % stop_every == 0) { /* through the ledger */
			json_t *json = evaluation_sums_write(&sums);
			char *written = json_text(json, JSON_COMPACT);
			json_t *back = json_loads(written, 0, NULL);
			memset(&sums, 0xff, sizeof sums);
			assert_int_equal(evaluation_sums_read(&sums, back, NULL), STATUS_OK);
			evaluation_unit_fini(&u);
			assert_int_equal(evaluation_unit_init(&u, s), STATUS_OK);
			json_decref(back);
			json_decref(json);
			free(written);
		}
	}
	assert_int_equal(done, TOKENS);
	json_t *report = evaluation_sums_report(&sums, bytes, text, NULL);
	assert_non_null(report);
	evaluation_unit_fini(&u);
	return report;
}

static int64_t unscored(const evaluation_settings *s, bool documents)
{
	int64_t n = 0, at = 0;
	for (int64_t i = 0; i < TOKENS; i++) {
		n += at == 0 || (s->context == EVALUATION_BLOCKS && at % s->length == 0);
		at = is_last(i, documents) ? 0 : at + 1;
	}
	return n;
}

static void every_token_is_scored_once_and_no_border_changes_a_bit(void **state)
{
	(void)state;
	const struct {
		evaluation_context context;
		int64_t length, stride;
	} kinds[] = {{EVALUATION_CARRIED, 0, 0},     {EVALUATION_BLOCKS, 2, 0},         {EVALUATION_BLOCKS, 100, 0},
	             {EVALUATION_BLOCKS, 10000, 0},  {EVALUATION_SLIDING, 64, 16},      {EVALUATION_SLIDING, 33, 32},
	             {EVALUATION_SLIDING, 5000, 41}, {EVALUATION_SLIDING, 20000, 10000}};
	for (int documents = 0; documents < 2; documents++) {
		token_cache *text = make_text(documents);
		for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
			const evaluation_settings s =
			    settings_of(kinds[k].context, kinds[k].length, kinds[k].stride, documents);
			json_t *whole = report_of(&s, text, 0, documents);
			assert_int_equal(json_integer_value(json_object_get(whole, "tokens")),
			                 TOKENS - unscored(&s, documents));
			for (int64_t every = 1; every < 3; every++) {
				json_t *stopped = report_of(&s, text, every, documents);
				assert_true(json_equal(stopped, whole));
				json_decref(stopped);
			}
			json_decref(whole);
		}
		token_cache_free(text);
	}
}

static void rows_have_the_highest_losses_and_the_first_of_equal_ones(void **state)
{
	(void)state;
	token_cache *text = make_text(false);
	const evaluation_settings s = settings_of(EVALUATION_CARRIED, 0, 0, false);
	json_t *report = report_of(&s, text, 0, false), *row;
	size_t i;
	int64_t at = 0;
	assert_int_equal(json_array_size(json_object_get(report, "rows")), 9);
	json_array_foreach(json_object_get(report, "rows"), i, row)
	{
		/* Token 258 is at the places where i · 7 mod 256 = 255. */
		while (at * 7 % 256 != 255)
			at++;
		assert_int_equal(json_integer_value(json_object_get(row, "index")), at);
		assert_int_equal(json_integer_value(json_object_get(row, "offset")), at);
		assert_true(json_real_value(json_object_get(row, "nats")) == (double)(258.0f / 7));
		at++;
	}
	json_decref(report);
	token_cache_free(text);
}

static void a_score_that_is_not_finite_ends_the_evaluation(void **state)
{
	(void)state;
	token_cache *text = make_text(false);
	const evaluation_settings s = settings_of(EVALUATION_BLOCKS, 100, 0, false);
	evaluation_unit u;
	evaluation_sums sums = {0};
	evaluation_cursor at = {0};
	error err = ERROR_INIT;
	assert_int_equal(evaluation_unit_init(&u, &s), STATUS_OK);
	assert_int_equal(evaluation_unit_plan(&u, &s, text, &at, NULL, NULL), STATUS_OK);
	score(&u);
	u.sequences[0].scores[5].logprob = NAN;
	assert_int_equal(evaluation_sums_add(&sums, &s, &u, bytes, &err), STATUS_INVALID);
	assert_string_equal(err.param, "model");
	evaluation_unit_fini(&u);
	token_cache_free(text);
}

static void sums_and_settings_that_are_damaged_are_refused(void **state)
{
	(void)state;
	static const char *const damaged[] = {"null", "{}", "{\"bytes\":1,\"offset\":1,\"ranges\":[],\"rows\":[]}"};
	evaluation_sums sums;
	evaluation_settings s;
	for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
		json_t *json = json_loads(damaged[i], JSON_DECODE_ANY, NULL);
		assert_int_equal(evaluation_sums_read(&sums, json, NULL), STATUS_CORRUPT);
		assert_int_equal(evaluation_settings_restore(&s, json, NULL), STATUS_CORRUPT);
		json_decref(json);
	}
	json_t *json = evaluation_sums_write(&(evaluation_sums){.n_rows = 1});
	assert_int_equal(evaluation_sums_read(&sums, json, NULL), STATUS_OK);
	json_array_set_new(json_object_get(json, "rows"), 0, json_pack("[i, i]", 1, 2));
	assert_int_equal(evaluation_sums_read(&sums, json, NULL), STATUS_CORRUPT);
	json_decref(json);
}

static void without_memory_a_result_is_written_completely_or_not_at_all(void **state)
{
	(void)state;
	token_cache *text = make_text(false);
	evaluation_sums sums = {.n_rows = 2, .rows = {{5, 5, 5, 2.5, 7}, {50, 50, 50, 1.5, 8}}};
	sums.ranges[3] = (evaluation_sum){10, 2, 12.5};
	for (int which = 0; which < 2; which++) {
		json_t *whole = which ? evaluation_sums_report(&sums, bytes, text, NULL) : evaluation_sums_write(&sums);
		bool refused = true;
		assert_non_null(whole);
		for (int64_t n = 0; refused && n < MAX_ALLOCATIONS; n++) {
			allocations_fail(n, false);
			json_t *found =
			    which ? evaluation_sums_report(&sums, bytes, text, NULL) : evaluation_sums_write(&sums);
			refused = allocations_refused();
			allocations_limit(-1);
			assert_true(!found || json_equal(found, whole));
			assert_true(found || refused);
			json_decref(found);
		}
		assert_false(refused);
		json_decref(whole);
	}
	token_cache_free(text);
}

static int make_tokenizer(void **state)
{
	(void)state;
	return tokenizer_new(&bytes, NULL, NULL) == STATUS_OK ? 0 : -1;
}

static int drop_tokenizer(void **state)
{
	(void)state;
	tokenizer_free(bytes);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_token_is_scored_once_and_no_border_changes_a_bit),
	    cmocka_unit_test(rows_have_the_highest_losses_and_the_first_of_equal_ones),
	    cmocka_unit_test(a_score_that_is_not_finite_ends_the_evaluation),
	    cmocka_unit_test(sums_and_settings_that_are_damaged_are_refused),
	    cmocka_unit_test(without_memory_a_result_is_written_completely_or_not_at_all),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
