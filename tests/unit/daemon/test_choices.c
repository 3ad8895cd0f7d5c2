/* test_choices.c - generations of one request: their events, the single answer, and every way to end them early. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/daemon/generation/admission.h"
#include "engine/daemon/generation/choice_events.h"
#include "engine/daemon/generation/choices.h"
#include "tests/unit/support/rig.h"

static int setup(void **state)
{
	*state = rig_new(NULL);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

/* All tests share a rig; each frees its calls. */
static int drop_calls(void **state)
{
	rig_drop_calls(*state);
	return 0;
}

/* Params of a completion that consists of `a`s, whatever the model predicts. */
static json_t *of_a(int n, int max_tokens)
{
	return json_pack("{s:s, s:s, s:i, s:i, s:i, s:{s:i}}", "model", "m", "prompt", "word", "n", n, "max_tokens",
	                 max_tokens, "temperature", 0, "logit_bias", "100", 100);
}

static json_t *with(json_t *params, const char *key, json_t *member)
{
	assert_int_equal(json_object_set_new(params, key, member), 0);
	return params;
}

static int count_tokens(const rig_call *c, int index)
{
	size_t i;
	json_t *event;
	int n = 0;
	json_array_foreach(c->events, i, event) if (json_integer_value(json_object_get(event, "index")) == index) n +=
	    (int)json_array_size(json_object_get(event, "tokens"));
	return n;
}

static void text_is(const rig_call *c, int index, const char *expected)
{
	char *text = rig_text(c, index);
	assert_string_equal(text, expected);
	free(text);
}

static const json_t *choice(const json_t *answer, int i)
{
	return json_array_get(json_object_get(answer, "choices"), (size_t)i);
}

static const char *finish(const json_t *answer, int i)
{
	return json_string_value(json_object_get(choice(answer, i), "finish_reason"));
}

static json_int_t usage(const json_t *answer, const char *key)
{
	return json_integer_value(json_object_get(json_object_get(answer, "usage"), key));
}

/* Check that the request is answered once, with this error, and that all its generations are free. */
static void ended_with(rig *d, rig_call *c, int http)
{
	rig_wait(c);
	rig_settle(d);
	assert_true(c->failed);
	assert_int_equal(json_integer_value(json_object_get(c->answer, "status")), http);
	assert_int_equal(c->answers, 1);
	assert_int_equal(c->late, 0);
	rig_call_free(c);
	device_stats stats;
	device_snapshot(fleet_device(d->engine.fleet, 0), &stats);
	assert_int_equal(stats.scheduler.running + stats.scheduler.waiting, 0);
	rig_call *all = rig_begin(d, "completion.create", of_a(RIG_GENERATIONS, 1), 1000); /* uses every generation */
	rig_wait(all);
	assert_false(all->failed);
	rig_call_free(all);
}

/* --- events and the answer ---------------------------------------------------------------- */

static void every_choice_has_its_events_and_one_answer_follows_them(void **state)
{
	rig *d = *state;
	json_t *params = with(of_a(2, 5), "prompt", json_pack("[s, s]", "one", "three"));
	rig_call *c = rig_begin(d, "completion.create", params, 1000);
	rig_wait(c);
	rig_settle(d);
	assert_false(c->failed);
	assert_int_equal(c->answers, 1);
	assert_int_equal(c->late, 0);
	for (int i = 0; i < 4; i++) {
		text_is(c, i, "aaaaa");
		assert_int_equal(count_tokens(c, i), 5);
		assert_int_equal(json_integer_value(json_object_get(choice(c->answer, i), "index")), i);
		assert_string_equal(finish(c->answer, i), "length");
	}
	assert_null(choice(c->answer, 4));
	assert_int_equal(count_tokens(c, 4), 0);
	assert_int_equal(usage(c->answer, "prompt_tokens"), 3 + 5); /* each prompt once */
	assert_int_equal(usage(c->answer, "completion_tokens"), 20);
	rig_call_free(c);
}

static void choices_differ_by_seed_and_are_reproducible(void **state)
{
	rig *d = *state;
	char *texts[2][3];
	for (int k = 0; k < 2; k++) {
		json_t *params = json_pack("{s:s, s:s, s:i, s:i, s:i}", "model", "m", "prompt", "word", "n", 3,
		                           "max_tokens", 20, "seed", 5);
		rig_call *c = rig_begin(d, "completion.create", params, 1000);
		rig_wait(c);
		for (int i = 0; i < 3; i++)
			texts[k][i] = rig_text(c, i);
		rig_call_free(c);
	}
	for (int i = 0; i < 3; i++) {
		assert_string_equal(texts[0][i], texts[1][i]);
		assert_string_not_equal(texts[0][i], texts[0][(i + 1) % 3]);
	}
	for (int i = 0; i < 6; i++)
		free(texts[i / 3][i % 3]);
}

static void a_stop_sequence_ends_a_choice_and_is_not_part_of_its_text(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", with(of_a(2, 9), "stop", json_pack("[s, s]", "b", "aaa")), 99);
	rig_wait(c);
	for (int i = 0; i < 2; i++) {
		text_is(c, i, "");
		assert_string_equal(finish(c->answer, i), "stop");
	}
	assert_int_equal(usage(c->answer, "completion_tokens"), 6);
	rig_call_free(c);
}

static void the_end_token_ends_a_choice(void **state)
{
	rig *d = *state;
	json_t *params = with(of_a(1, 9), "logit_bias", json_pack("{s:i}", "1", 100));
	rig_call *c = rig_begin(d, "completion.create", params, 99);
	rig_wait(c);
	text_is(c, 0, "");
	assert_string_equal(finish(c->answer, 0), "stop");
	rig_call_free(c);
}

static void a_prompt_without_room_is_refused_before_any_event(void **state)
{
	rig *d = *state;
	char prompt[RIG_POSITIONS + 2] = "";
	memset(prompt, 'x', RIG_POSITIONS + 1);
	json_t *params = with(of_a(3, 1), "prompt", json_pack("[s, s]", "short", prompt));
	json_object_set_new(params, "n", json_integer(1));
	rig_call *c = rig_begin(d, "completion.create", params, 99);
	rig_wait(c);
	assert_string_equal(json_string_value(json_object_get(c->answer, "param")), "prompt");
	assert_int_equal(json_array_size(c->events), 0);
	ended_with(d, c, 400);
}

/* --- credits ------------------------------------------------------------------------------- */

static void without_credit_nothing_is_sent_and_each_credit_is_one_event(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", of_a(2, 8), 0);
	rig_settle(d);
	assert_int_equal(json_array_size(c->events), 0);
	rig_grant(c, 4);
	rig_settle(d);
	assert_int_equal(json_array_size(c->events), 4);
	assert_in_range(count_tokens(c, 0), 1, 3); /* shared between both choices */
	assert_int_equal(count_tokens(c, 0) + count_tokens(c, 1), 4);
	rig_grant(c, 1);
	rig_settle(d);
	assert_int_equal(json_array_size(c->events), 5);
	assert_int_equal(c->answers, 0);
	assert_int_equal(c->stream->credit, 0);
	rig_grant(c, 100);
	rig_wait(c);
	text_is(c, 0, "aaaaaaaa");
	text_is(c, 1, "aaaaaaaa");
	rig_call_free(c);
}

static void a_choice_that_ends_early_leaves_its_credit_to_the_others(void **state)
{
	rig *d = *state;
	/* The first prompt leaves room for two tokens, the second for all. */
	char prompt[RIG_POSITIONS - 1] = "";
	memset(prompt, 'x', RIG_POSITIONS - 2);
	json_t *params = with(of_a(1, 30), "prompt", json_pack("[s, s]", prompt, "x"));
	rig_call *c = rig_begin(d, "completion.create", params, 24);
	rig_settle(d);
	int first = count_tokens(c, 0), second = count_tokens(c, 1);
	assert_in_range(first, 1, 3);
	assert_int_equal(first + second, 24);
	assert_int_equal(c->answers, 0);
	rig_grant(c, 100);
	rig_wait(c);
	assert_string_equal(finish(c->answer, 0), "length");
	assert_int_equal(count_tokens(c, 0), first);
	assert_int_equal(count_tokens(c, 1), 30);
	rig_call_free(c);
}

/* --- cancelling ------------------------------------------------------------------------------ */

static void a_request_cancelled_while_its_model_loads_is_answered_once(void **state)
{
	rig *d = *state;
	json_decref(rig_ask(d, 0, "model.unload", json_pack("{s:s}", "id", "m")));
	rig_hold(d);
	rig_call *c = rig_begin(d, "completion.create", of_a(2, 20), 1000);
	rig_cancel(c);
	assert_int_equal(c->answers, 0); /* not before the executor runs again */
	rig_release(d);
	assert_int_equal(json_array_size(c->events), 0);
	ended_with(d, c, 499);
}

static void a_request_cancelled_while_it_waits_for_credit_is_answered_once(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", of_a(2, 20), 3);
	rig_settle(d);
	assert_int_equal(json_array_size(c->events), 3);
	rig_cancel(c);
	rig_wait(c);
	assert_int_equal(json_array_size(c->events), 3);
	ended_with(d, c, 499);
}

static void a_request_cancelled_between_two_events_is_answered_once(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", of_a(3, 50), 30);
	while (json_array_size(c->events) == 0)
		uv_run(&d->engine.loop, UV_RUN_NOWAIT);
	rig_cancel(c);
	ended_with(d, c, 499);
}

static void a_request_cancelled_after_one_choice_has_ended_is_answered_once(void **state)
{
	rig *d = *state;
	char prompt[RIG_POSITIONS] = "";
	memset(prompt, 'x', RIG_POSITIONS - 1);
	json_t *params = with(of_a(1, 30), "prompt", json_pack("[s, s]", prompt, "x"));
	rig_call *c = rig_begin(d, "completion.create", params, 6);
	rig_settle(d);
	int first = count_tokens(c, 0);
	assert_in_range(first, 1, 2);
	assert_int_equal(count_tokens(c, 1), 6 - first);
	rig_cancel(c);
	ended_with(d, c, 499);
}

static void cancelling_after_the_answer_has_no_effect(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", of_a(1, 2), 1000);
	rig_wait(c);
	rig_cancel(c);
	rig_settle(d);
	assert_false(c->failed);
	assert_int_equal(c->late, 0);
	rig_call_free(c);
}

static void a_peer_that_disconnects_leaves_no_generation(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", of_a(RIG_GENERATIONS, 30), 5);
	rig_settle(d);
	rig_call_free(c);
	rig_settle(d);
	assert_int_equal(d->engine.net.streams, 0);
	ended_with(d, rig_begin(d, "completion.create", with(of_a(1, 1), "model", json_string("none")), 1), 404);
}

static const token_logprob *find(const token_logprob *all, int n, const char *name, const tokenizer *t)
{
	const token_logprob *best = NULL;
	for (int i = 0; i < n; i++) {
		char bytes[TOKEN_MAX_BYTES];
		size_t used = tokenizer_token_bytes(t, all[i].token, bytes, sizeof bytes);
		if (used == strlen(name) && memcmp(bytes, name, used) == 0 && (!best || all[i].logprob > best->logprob))
			best = &all[i];
	}
	return best;
}

/* The byte 0x65 and the piece "e" have the same text. */
static void among_tokens_with_equal_text_the_likelier_one_is_in_the_top(void **state)
{
	(void)state;
	enum { TOP = 400 };
	static token_logprob top[TOP];
	tokenizer *t;
	assert_int_equal(tokenizer_open(&t, "tests/data/tokenizers/llama2", INT64_MAX, NULL), STATUS_OK);
	int n = tokenizer_size(t) < TOP ? (int)tokenizer_size(t) : TOP, repeated = 0;
	for (int reversed = 0; reversed < 2; reversed++) {
		for (int i = 0; i < n; i++)
			top[i] = (token_logprob){.token = reversed ? n - 1 - i : i, .logprob = (float)(-1 - i)};
		const token_logprob own = {.token = top[0].token, .logprob = top[0].logprob};
		const generation_event e = {
		    .tokens = &own.token, .n_tokens = 1, .logprobs = &own, .top = top, .n_top = n, .text = ""};
		choice_events events = {.tokenizer = t};
		json_t *object = choice_events_object(&events, &e), *found;
		json_t *tops = json_array_get(json_object_get(json_object_get(object, "logprobs"), "top_logprobs"), 0);
		const char *name;
		json_object_foreach(tops, name, found)
		{
			const token_logprob *best = find(top, n, name, t);
			assert_true(!best || json_real_value(found) == (double)best->logprob);
		}
		repeated += (int)json_object_size(tops) < n;
		json_decref(object);
		choice_events_fini(&events);
	}
	assert_int_equal(repeated, 2);
	tokenizer_free(t);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, drop_calls)
	const struct CMUnitTest tests[] = {
	    TEST(every_choice_has_its_events_and_one_answer_follows_them),
	    TEST(choices_differ_by_seed_and_are_reproducible),
	    TEST(a_stop_sequence_ends_a_choice_and_is_not_part_of_its_text),
	    TEST(the_end_token_ends_a_choice),
	    TEST(a_prompt_without_room_is_refused_before_any_event),
	    TEST(without_credit_nothing_is_sent_and_each_credit_is_one_event),
	    TEST(a_choice_that_ends_early_leaves_its_credit_to_the_others),
	    TEST(a_request_cancelled_while_its_model_loads_is_answered_once),
	    TEST(a_request_cancelled_while_it_waits_for_credit_is_answered_once),
	    TEST(a_request_cancelled_between_two_events_is_answered_once),
	    TEST(a_request_cancelled_after_one_choice_has_ended_is_answered_once),
	    TEST(cancelling_after_the_answer_has_no_effect),
	    TEST(a_peer_that_disconnects_leaves_no_generation),
	    TEST(among_tokens_with_equal_text_the_likelier_one_is_in_the_top),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
