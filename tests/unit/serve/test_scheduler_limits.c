/* Refusals (too many, too long, too soon), and freeing the scheduler. */
#include "tests/unit/serve/fixture.h"

static void tick(fixture *f)
{
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

/* --- limits ------------------------------------------------------------------------------------ */

static void a_request_over_the_limit_is_busy_and_a_second_one_on_a_session_conflicts(void **state)
{
	fixture *f = *state;
	enum { N = 16 };
	client c[N], more;
	int32_t ids[5];
	error err = ERROR_INIT;
	random_tokens(ids, 5, 14);
	session *x = open_session(f, "x", POSITION_ERROR, false), *y;
	generation_request r = request(&more, ids, 5, 5), r0 = request(&c[0], ids, 5, 5);
	start(f, x, &c[0], &r0);
	assert_int_equal(scheduler_generate(f->scheduler, NULL, x, &r, &more.generation, &err), STATUS_CONFLICT);
	assert_null(more.generation);
	assert_int_equal(scheduler_session_delete(f->scheduler, x, NULL), STATUS_CONFLICT);
	assert_int_equal(scheduler_session_fork(f->scheduler, x, "y", &y, NULL), STATUS_CONFLICT);
	void *blob;
	size_t bytes;
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_CONFLICT);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_CONFLICT);
	for (int i = 1; i < N; i++) {
		generation_request ri = request(&c[i], ids, 5, 5);
		start(f, NULL, &c[i], &ri);
	}
	assert_int_equal(scheduler_generate(f->scheduler, f->model, NULL, &r, &more.generation, NULL), STATUS_BUSY);
	drain(f);
	for (int i = 0; i < N; i++)
		assert_int_equal(c[i].finished, 1);
	assert_int_equal(more.finished, 0);
	start(f, NULL, &more, &r);
	drain(f);
	assert_int_equal(more.finished, 1);
	drop(f, x);
}

static void the_longest_idle_model_is_unloaded_and_without_one_the_load_is_busy(void **state)
{
	fixture *f = *state; /* max_models is 2, and "m" is loaded */
	served_model *b, *c;
	error err = ERROR_INIT;
	session_options o = {.policy = POSITION_ERROR};
	session *x, *y;
	assert_int_equal(scheduler_model(f->scheduler, "b", f->folder, DTYPE_PANEL_F32, &b, NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &f->model, NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "c", f->folder, DTYPE_PANEL_F32, &c, NULL), STATUS_OK);
	assert_true(scheduler_model_loaded(f->scheduler, "m") && !scheduler_model_loaded(f->scheduler, "b"));
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "x", &o, &x, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_new(f->scheduler, c, "y", &o, &y, NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "b", f->folder, DTYPE_PANEL_F32, &b, &err), STATUS_BUSY);
	assert_null(b);
	assert_int_equal(scheduler_model_unload(f->scheduler, "c", NULL), STATUS_CONFLICT);
	drop(f, y);
	assert_int_equal(scheduler_model(f->scheduler, "b", f->folder, DTYPE_PANEL_F32, &b, NULL), STATUS_OK);
	assert_false(scheduler_model_loaded(f->scheduler, "c"));
	assert_int_equal(scheduler_model_unload(f->scheduler, "b", NULL), STATUS_OK);
	assert_int_equal(scheduler_model_unload(f->scheduler, "never loaded", NULL), STATUS_OK);
	drop(f, x);
}

static void a_model_that_cannot_be_loaded_leaves_no_memory(void **state)
{
	fixture *f = *state;
	served_model *m = f->model;
	error err = ERROR_INIT;
	assert_int_not_equal(scheduler_model(f->scheduler, "nowhere", "/nonexistent/model", DTYPE_PANEL_F32, &m, &err),
	                     STATUS_OK);
	assert_null(m);
	assert_false(scheduler_model_loaded(f->scheduler, "nowhere"));
	scheduler_stats stats;
	scheduler_stats_read(f->scheduler, &stats);
	assert_int_equal(stats.models, 1);
}

static void impossible_limits_are_refused(void **state)
{
	fixture *f = *state;
	scheduler *s;
	scheduler_limits l = roomy;
	l.max_batch = 0;
	assert_int_equal(scheduler_new(&s, f->backend, &l), STATUS_INVALID);
	assert_null(s);
	scheduler_free(NULL);
}

static void freeing_the_scheduler_ends_every_generation_once(void **state)
{
	fixture *f = *state;
	enum { N = 5 };
	client c[N];
	static int32_t ids[40];
	random_tokens(ids, 40, 15);
	session *x = open_session(f, "x", POSITION_CLAMP, true);
	for (int i = 0; i < N; i++) {
		generation_request r = request(&c[i], ids, 30, 10);
		r.credit = i == 2 ? 1 : 100;
		start(f, i == 1 ? x : NULL, &c[i], &r);
		tick(f);
		tick(f);
	}
	scheduler_free(f->scheduler);
	f->scheduler = NULL;
	for (int i = 0; i < N; i++) {
		assert_int_equal(c[i].finished, 1);
		assert_int_equal(c[i].result.status, STATUS_CANCELLED);
	}
	fixture_serve(f, &roomy);
}

/* --- positions ------------------------------------------------------------------------------------ */

static void a_text_ends_with_length_at_the_last_position(void **state)
{
	fixture *f = *state;
	int32_t ids[POSITIONS + 1];
	client c;
	error err = ERROR_INIT;
	random_tokens(ids, POSITIONS + 1, 16);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 40);
	generation_request r = request(&c, ids, 9, 0);
	assert_int_equal(scheduler_generate(f->scheduler, NULL, x, &r, &c.generation, &err), STATUS_INVALID);
	assert_string_equal(err.param, "prompt");
	assert_int_equal(x->tokens, 40); /* no token was read */
	r = request(&c, ids, 3, 20);     /* room for five more */
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_LENGTH);
	assert_int_equal(c.n_tokens, 5);
	assert_int_equal(c.result.completion_tokens, 5);
	assert_int_equal(x->tokens, POSITIONS);
	r = request(&c, NULL, 0, 1);
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_LENGTH);
	assert_int_equal(c.n_tokens, 0);
	drop(f, x);
}

static void a_text_without_a_session_ends_with_length_at_the_last_position(void **state)
{
	fixture *f = *state;
	int32_t ids[POSITIONS + 1];
	random_tokens(ids, POSITIONS + 1, 16);
	for (int n = 1; n <= POSITIONS; n += n == 1 ? POSITIONS - 2 : 1) {
		client c;
		generation_request r = request(&c, ids, n, 2 * POSITIONS);
		run(f, NULL, &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
		assert_int_equal(c.result.finish, FINISH_LENGTH);
		assert_int_equal(c.n_tokens, POSITIONS - n);
	}
	client c;
	error err = ERROR_INIT;
	generation_request r = request(&c, ids, POSITIONS + 1, 1);
	assert_int_equal(scheduler_generate(f->scheduler, f->model, NULL, &r, &c.generation, &err), STATUS_INVALID);
	assert_string_equal(err.param, "prompt");
}

static void clamp_and_wrap_continue_without_limit(void **state)
{
	fixture *f = *state;
	static int32_t ids[3 * POSITIONS];
	random_tokens(ids, 3 * POSITIONS, 17);
	for (position_policy policy = POSITION_CLAMP; policy <= POSITION_WRAP; policy++) {
		client c;
		session *x = open_session(f, "x", policy, false);
		generation_request r = request(&c, ids, 3 * POSITIONS, 2 * POSITIONS);
		run(f, x, &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
		assert_int_equal(c.n_tokens, 2 * POSITIONS);
		assert_int_equal(x->tokens, 5 * POSITIONS);
		drop(f, x);
	}
}

/* A model with more positions, whose rows past POSITIONS repeat the last row or start again, gives the expected
 * result. */
static void clamp_keeps_the_last_position_and_wrap_starts_again(void **state)
{
	fixture *f = *state;
	static int32_t ids[3 * POSITIONS];
	random_tokens(ids, 3 * POSITIONS, 18);
	for (position_policy policy = POSITION_CLAMP; policy <= POSITION_WRAP; policy++) {
		char folder[64];
		served_model *longer;
		session *y, *x = open_session(f, "x", policy, false);
		session_options o = {.policy = POSITION_ERROR};
		make_folder(folder);
		write_model(folder, f->backend, 1, 3 * POSITIONS, policy);
		assert_int_equal(scheduler_model(f->scheduler, "longer", folder, DTYPE_PANEL_F32, &longer, NULL),
		                 STATUS_OK);
		assert_int_equal(scheduler_session_new(f->scheduler, longer, "y", &o, &y, NULL), STATUS_OK);
		for (int i = 0; i < 3 * POSITIONS; i += 12) { /* pieces end at 48, 96 and 144 */
			append(f, x, ids + i, 12);
			append(f, y, ids + i, 12);
			assert_same_logits(x, y);
		}
		drop(f, x);
		drop(f, y);
		x = open_session(f, "x", policy, false);
		assert_int_equal(scheduler_session_new(f->scheduler, longer, "y", &o, &y, NULL), STATUS_OK);
		append(f, x, ids, 3 * POSITIONS); /* with ends of pieces within a chunk */
		append(f, y, ids, 3 * POSITIONS);
		assert_same_logits(x, y);
		drop(f, x);
		drop(f, y);
		assert_int_equal(scheduler_model_unload(f->scheduler, "longer", NULL), STATUS_OK);
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
}

static void a_model_is_loaded_in_steps_while_others_serve(void **state)
{
	fixture *f = *state;
	served_model *m = NULL, *other;
	client c;
	int steps = 0;
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &f->model, NULL), STATUS_OK);
	for (; !m; steps++) {
		assert_int_equal(scheduler_model_step(f->scheduler, "b", f->folder, DTYPE_PANEL_F32, &m, NULL),
		                 STATUS_OK);
		if (m)
			break;
		assert_true(scheduler_model_loading(f->scheduler, "b") && !scheduler_model_loaded(f->scheduler, "b"));
		assert_int_equal(scheduler_model_unload(f->scheduler, "b", NULL), STATUS_CONFLICT);
		/* Models are loaded one at a time; loaded models are available meanwhile. */
		assert_int_equal(scheduler_model_step(f->scheduler, "c", f->folder, DTYPE_PANEL_F32, &other, NULL),
		                 STATUS_OK);
		assert_null(other);
		assert_int_equal(scheduler_model_step(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &other, NULL),
		                 STATUS_OK);
		assert_ptr_equal(other, f->model);
		if (steps > 2)
			continue;
		int32_t prompt[3] = {3, 4, 5};
		generation_request r = request(&c, prompt, 3, 4);
		run(f, NULL, &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
	}
	assert_true(steps > 5);
	assert_true(scheduler_model_loaded(f->scheduler, "b") && !scheduler_model_loading(f->scheduler, "b"));
}

static void an_abandoned_load_leaves_no_memory(void **state)
{
	fixture *f = *state;
	served_model *m;
	for (int i = 0; i < 4; i++)
		assert_int_equal(scheduler_model_step(f->scheduler, "b", f->folder, DTYPE_PANEL_F32, &m, NULL),
		                 STATUS_OK);
	assert_null(m);
	scheduler_model_abandon(f->scheduler);
	assert_false(scheduler_model_loading(f->scheduler, "b") || scheduler_model_loaded(f->scheduler, "b"));
	assert_int_equal(scheduler_model_unload(f->scheduler, "b", NULL), STATUS_OK);
	for (int i = 0; i < 4; i++) /* the last load is still in progress at the end */
		assert_int_equal(scheduler_model_step(f->scheduler, "b", f->folder, DTYPE_PANEL_INT8, &m, NULL),
		                 STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_request_over_the_limit_is_busy_and_a_second_one_on_a_session_conflicts,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(the_longest_idle_model_is_unloaded_and_without_one_the_load_is_busy, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_model_that_cannot_be_loaded_leaves_no_memory, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_model_is_loaded_in_steps_while_others_serve, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_abandoned_load_leaves_no_memory, setup, teardown),
	    cmocka_unit_test_setup_teardown(impossible_limits_are_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(freeing_the_scheduler_ends_every_generation_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_text_ends_with_length_at_the_last_position, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_text_without_a_session_ends_with_length_at_the_last_position, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(clamp_and_wrap_continue_without_limit, setup, teardown),
	    cmocka_unit_test_setup_teardown(clamp_keeps_the_last_position_and_wrap_starts_again, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
