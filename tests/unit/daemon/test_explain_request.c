/* Explanations of inputs and sessions, with a real device thread. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

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

/* Create a session that has read n bytes, more than the model's positions. */
static void create(rig *d, size_t n, char id[STORE_ID_BYTES])
{
	char *text = malloc(n + 1);
	memset(text, 'x', n);
	text[n] = 0;
	json_t *made = rig_ask(
	    d, 0, "session.create",
	    json_pack("{s:s, s:s, s:b, s:s}", "model", "m", "prompt", text, "explain", 1, "position_policy", "clamp"));
	assert_int_equal(json_integer_value(json_object_get(made, "tokens")), n);
	snprintf(id, STORE_ID_BYTES, "%s", json_string_value(json_object_get(made, "id")));
	json_decref(made);
	free(text);
}

static json_t *one_row(const char *id)
{
	return json_pack("{s:s, s:[i], s:[i], s:[s]}", "id", id, "layers", 1, "heads", 0, "rounds", "key");
}

/* --- turns ---------------------------------------------------------------------------------- */

/* A task that blocks the executor's thread once per turn, after the tasks that were submitted earlier. */
typedef struct gate {
	task task;
	uv_sem_t reached, open;
	bool last;
} gate;

static bool wait_at_gate(task *t, device *d)
{
	gate *g = (gate *)t;
	(void)d;
	uv_sem_post(&g->reached);
	uv_sem_wait(&g->open);
	return g->last;
}

static void pass_gate(task *t, device *d)
{
	(void)t;
	(void)d;
}

/* Begin a request and check after two of its turns that the session is still busy. Returns the answer. */
static json_t *ask_over_turns(rig *d, const char *id, const char *method, json_t *params)
{
	gate g = {.task = {.prepare = wait_at_gate, .run = pass_gate}};
	uv_sem_init(&g.reached, 0);
	uv_sem_init(&g.open, 0);
	rig_hold(d);
	rig_call *c = rig_begin(d, method, params, 10);
	executor_control(fleet_executor(d->engine.fleet, 0), &g.task);
	uv_sem_post(&d->held);
	uv_sem_wait(&g.reached); /* a part of the session has been copied, */
	uv_sem_post(&g.open);
	uv_sem_wait(&g.reached); /* and the message of that turn is in the loop's queue */
	uv_run(&d->engine.loop, UV_RUN_NOWAIT);
	json_decref(rig_ask(d, 409, "session.alpha", one_row(id)));
	g.last = true;
	uv_sem_post(&g.open);
	rig_wait(c);
	assert_false(c->failed);
	json_t *answer = json_incref(c->answer);
	rig_call_free(c);
	rig_settle(d);
	uv_sem_destroy(&d->held);
	uv_sem_destroy(&g.reached);
	uv_sem_destroy(&g.open);
	return answer;
}

static void a_long_log_is_copied_over_several_turns(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, 20000, id); /* 64 bytes for each token */
	json_t *expected = rig_ask(d, 0, "session.alpha", one_row(id));
	json_t *answer = ask_over_turns(d, id, "session.alpha", one_row(id));
	assert_true(json_equal(answer, expected));
	json_decref(expected);
	json_decref(answer);
}

static void a_session_with_a_long_log_is_forked_over_several_turns(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, 20000, id);
	json_t *expected = rig_ask(d, 0, "session.alpha", one_row(id));
	json_t *made = ask_over_turns(d, id, "session.fork", json_pack("{s:s}", "id", id));
	assert_int_equal(json_integer_value(json_object_get(made, "tokens")), 20000);
	json_t *same = rig_ask(d, 0, "session.alpha", one_row(json_string_value(json_object_get(made, "id"))));
	assert_true(json_equal(same, expected));
	json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:s}", "id", id)));
	json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:O}", "id", json_object_get(made, "id"))));
	json_decref(expected);
	json_decref(made);
	json_decref(same);
}

/* --- inputs --------------------------------------------------------------------------------- */

static void an_input_has_the_weights_of_a_session_that_reads_it(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, 7, id);
	json_t *a = rig_ask(d, 0, "explain",
	                    json_pack("{s:s, s:s, s:s}", "model", "m", "input", "xxxxxxx", "aggregate", "rollout"));
	json_t *b = rig_ask(d, 0, "session.alpha", json_pack("{s:s, s:s}", "id", id, "aggregate", "rollout"));
	assert_int_equal(json_array_size(json_object_get(a, "weights")), 2 * 2 * 2);
	assert_true(json_equal(a, b));
	json_decref(a);
	json_decref(b);
}

static void a_cancelled_input_is_not_answered_and_frees_its_place(void **state)
{
	rig *d = *state;
	for (int i = 0; i < 3 * RIG_GENERATIONS; i++) {
		rig_hold(d);
		rig_call *c = rig_begin(d, "explain", json_pack("{s:s, s:s}", "model", "m", "input", "some text"), 10);
		rig_cancel(c);
		rig_release(d);
		rig_wait(c);
		assert_true(c->failed);
		assert_int_equal(json_integer_value(json_object_get(c->answer, "status")), 499);
		rig_call_free(c);
	}
	json_decref(rig_ask(d, 0, "explain", json_pack("{s:s, s:s}", "model", "m", "input", "some text")));
}

static void a_client_that_grants_no_events_gets_its_explanation(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "explain", json_pack("{s:s, s:s}", "model", "m", "input", "some text"), 0);
	rig_wait(c);
	assert_false(c->failed);
	rig_call_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_long_log_is_copied_over_several_turns),
	    cmocka_unit_test(a_session_with_a_long_log_is_forked_over_several_turns),
	    cmocka_unit_test(an_input_has_the_weights_of_a_session_that_reads_it),
	    cmocka_unit_test(a_cancelled_input_is_not_answered_and_frees_its_place),
	    cmocka_unit_test(a_client_that_grants_no_events_gets_its_explanation),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
