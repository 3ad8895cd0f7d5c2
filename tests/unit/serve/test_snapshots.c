/* test_snapshots.c - a session that is rolled back continues as one that has never read what was undone. */
#include "tests/unit/serve/snapshots.h"

#include "engine/serve/session.h"
#include "engine/text/grammar/json_grammar.h"

enum { BEFORE = 12, UNDONE = 9, AFTER = 14 };

/* Ways to continue a text. */
enum { GREEDY, SEEDED, PENALISED, CONSTRAINED, WAYS };

static void go_on(fixture *f, session *x, client *c, int way, constraint *format)
{
	generation_request r = request(c, NULL, 0, AFTER);
	r.sampling.temperature = way == GREEDY ? 0 : 1;
	r.sampling.seed = 77;
	if (way == PENALISED)
		r.sampling.repetition_penalty = 1.4f, r.sampling.presence_penalty = 0.6f;
	r.constraint = way == CONSTRAINED ? format : NULL;
	run(f, x, c, &r);
	assert_int_equal(c->result.status, STATUS_OK);
}

static void a_session_that_is_rolled_back_equals_one_that_read_nothing_since(void **state)
{
	fixture *f = *state;
	static client undone, x_after, y_after;
	token_trie *trie;
	grammar *g;
	constraint *format;
	json_t *schema = json_pack("{s:[s, s]}", "enum", "abcdefghijklmnop", "abdefghijklmnopq");
	int32_t ids[BEFORE];
	random_tokens(ids, BEFORE, 31);
	assert_int_equal(token_trie_new(&trie, f->model->tokenizer, VOCAB, false), STATUS_OK);
	assert_int_equal(json_grammar_new(&g, schema, NULL), STATUS_OK);
	assert_int_equal(constraint_new(&format, g, trie), STATUS_OK);
	for (int explain = 0; explain < 2; explain++)
		for (int way = 0; way < WAYS; way++) {
			session *x = open_session(f, "x", POSITION_CLAMP, explain),
			        *y = open_session(f, "y", POSITION_CLAMP, explain);
			append(f, x, ids, BEFORE);
			append(f, y, ids, BEFORE);
			snapshot(f, x, "s");
			generation_request r = request(&undone, ids, 3, UNDONE);
			r.sampling.temperature = 1;
			run(f, x, &undone, &r);
			assert_int_equal(x->tokens, BEFORE + 3 + UNDONE);
			x->pending = ids[0]; /* as after a step that failed: undone, too */
			rollback(f, x, "s");
			assert_same_state(f, x, y);
			go_on(f, x, &x_after, way, format);
			go_on(f, y, &y_after, way, format);
			assert_int_equal(x_after.n_tokens, y_after.n_tokens);
			assert_memory_equal(x_after.tokens, y_after.tokens,
			                    (size_t)y_after.n_tokens * sizeof *y_after.tokens);
			assert_same_state(f, x, y);
			drop(f, x);
			drop(f, y);
		}
	constraint_free(format);
	token_trie_free(trie);
	json_decref(schema);
}

/* Each snapshot keeps its own tokens and log, whatever the session read after it was rolled back. */
static void a_session_moves_between_the_snapshots_of_different_texts(void **state)
{
	enum { SHARED = TOKEN_CHUNK + 3, BRANCH = 70 };
	fixture *f = *state;
	static int32_t ids[SHARED + 3 * BRANCH];
	random_tokens(ids, SHARED + 3 * BRANCH, 32);
	session *x = open_session(f, "x", POSITION_WRAP, true), *y;
	append(f, x, ids, SHARED);
	snapshot(f, x, "root");
	char name[16];
	for (int i = 0; i < 3; i++) {
		append(f, x, ids + SHARED + i * BRANCH, BRANCH);
		snprintf(name, sizeof name, "%d", i);
		snapshot(f, x, name);
		rollback(f, x, "root");
		assert_int_equal(x->tokens, SHARED);
	}
	for (int i = 2; i >= 0; i--) {
		snprintf(name, sizeof name, "%d", i);
		rollback(f, x, name);
		y = open_session(f, "y", POSITION_WRAP, true);
		append(f, y, ids, SHARED);
		append(f, y, ids + SHARED + i * BRANCH, BRANCH);
		assert_same_state(f, x, y);
		append(f, x, ids, 5);
		append(f, y, ids, 5);
		assert_same_state(f, x, y);
		drop(f, y);
	}
	drop(f, x);
}

static void a_fork_of_a_snapshot_leaves_session_and_snapshot_unchanged(void **state)
{
	fixture *f = *state;
	int32_t ids[2 * BEFORE];
	random_tokens(ids, 2 * BEFORE, 33);
	session *x = open_session(f, "x", POSITION_ERROR, true), *y = open_session(f, "y", POSITION_ERROR, true);
	append(f, x, ids, BEFORE);
	append(f, y, ids, BEFORE);
	snapshot(f, x, "s");
	append(f, x, ids + BEFORE, BEFORE);
	session *fork = fork_snapshot(f, x, "s", "fork"), *held;
	assert_int_equal(scheduler_session_snapshot(x, "s", &held, NULL), STATUS_OK);
	assert_same_state(f, held, y);
	assert_null(fork->snapshots);
	assert_same_state(f, fork, y);
	append(f, fork, ids + BEFORE, 4);
	assert_int_equal(x->tokens, 2 * BEFORE);
	rollback(f, x, "s");
	assert_same_state(f, x, y);
	drop(f, x); /* the fork survives its origin */
	append(f, y, ids + BEFORE, 4);
	assert_same_state(f, fork, y);
	drop(f, fork);
	drop(f, y);
}

static void a_snapshot_shares_the_tokens_and_takes_the_bytes_that_are_announced(void **state)
{
	fixture *f = *state;
	static int32_t ids[2 * TOKEN_CHUNK + 1];
	random_tokens(ids, 2 * TOKEN_CHUNK + 1, 34);
	session *x = open_session(f, "x", POSITION_WRAP, false);
	session_info info;
	append(f, x, ids, 2 * TOKEN_CHUNK + 1);
	scheduler_session_info(x, &info);
	const int64_t others = VOCAB * (int64_t)sizeof(float) + (int64_t)sizeof ids;
	assert_int_equal(info.snapshot_bytes,
	                 model_states(f->model->model)->floats * (int64_t)sizeof(float) + others);
	assert_int_equal(info.export_bytes, info.state_bytes + others);
	snapshot(f, x, "s");
	assert_ptr_equal(x->snapshots->history.chunks[0], x->history.chunks[0]);
	assert_ptr_equal(x->snapshots->history.chunks[1], x->history.chunks[1]);
	assert_ptr_not_equal(x->snapshots->history.chunks[2], x->history.chunks[2]);
	drop(f, x);
}

static void a_snapshot_and_a_rollback_copy_a_bounded_part_at_a_time(void **state)
{
	enum { MANY = 30000 };
	fixture *f = *state;
	int32_t *ids = calloc(MANY, sizeof *ids);
	random_tokens(ids, MANY, 35);
	session *x = open_session(f, "x", POSITION_CLAMP, true);
	append(f, x, ids, MANY);
	const int64_t bytes = session_snapshot_bytes(x);
	size_t moved = 0;
	bool done = false;
	int steps = 0;
	for (size_t before = 0; !done; before = moved, steps++) {
		assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, "s", &moved, &done, NULL), STATUS_OK);
		assert_true(moved - before <= SESSION_STEP);
	}
	assert_true(steps > 2 && steps >= (int)(bytes / SESSION_STEP));
	append(f, x, ids, 100);
	moved = 0;
	done = false;
	for (size_t before = 0; !done; before = moved) {
		assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, "s", &moved, &done, NULL), STATUS_OK);
		assert_true(moved - before <= SESSION_STEP);
	}
	assert_tokens(x, ids, MANY);
	free(ids);
	drop(f, x);
}

static void unknown_and_repeated_snapshots_are_refused_and_change_nothing(void **state)
{
	fixture *f = *state;
	int32_t ids[BEFORE];
	random_tokens(ids, BEFORE, 36);
	session *x = open_session(f, "x", POSITION_ERROR, false), *y;
	size_t moved = 0;
	bool done;
	error err = ERROR_INIT;
	append(f, x, ids, BEFORE);
	snapshot(f, x, "s");
	assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, "s", &moved, &done, NULL), STATUS_CONFLICT);
	assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, "t", &moved, &done, &err), STATUS_NOT_FOUND);
	assert_string_equal(err.param, "snapshot");
	assert_int_equal(scheduler_session_snapshot(x, "t", &y, NULL), STATUS_NOT_FOUND);
	assert_null(y);
	assert_int_equal(scheduler_session_drop(x, "t", NULL), STATUS_NOT_FOUND);
	client c;
	generation_request r = request(&c, ids, BEFORE, 4);
	start(f, x, &c, &r);
	moved = 0;
	assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, "u", &moved, &done, NULL), STATUS_CONFLICT);
	assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, "s", &moved, &done, NULL), STATUS_CONFLICT);
	drain(f);
	assert_int_equal(x->tokens, 2 * BEFORE + 4);
	assert_int_equal(scheduler_session_drop(x, "s", NULL), STATUS_OK);
	assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, "s", &moved, &done, NULL), STATUS_NOT_FOUND);
	drop(f, x);
}

static void a_snapshot_takes_no_place_of_a_session(void **state)
{
	fixture *f = *state;
	session *x[16];
	char id[32];
	for (int i = 0; i < 16; i++) {
		snprintf(id, sizeof id, "s%d", i);
		x[i] = open_session(f, id, POSITION_ERROR, false);
	}
	for (int i = 0; i < 3; i++) {
		snprintf(id, sizeof id, "snapshot %d", i);
		snapshot(f, x[0], id);
	}
	for (int i = 0; i < 16; i++)
		drop(f, x[i]);
	assert_int_equal(f->model->users, 0);
}

/* Serve a model on a device that can fail. */
static fault_backend *serve_faulty(fixture *f)
{
	fixture_folder(f);
	fault_backend *fault = fault_backend_new(f->backend);
	f->backend = &fault->base;
	fixture_serve(f, &roomy);
	return fault;
}

static void a_device_that_fails_during_a_rollback_loses_the_session(void **state)
{
	(void)state;
	fixture f;
	fault_backend *fault = serve_faulty(&f);
	int32_t ids[BEFORE];
	size_t moved = 0;
	bool done;
	error err = ERROR_INIT;
	random_tokens(ids, BEFORE, 37);
	session *x = open_session(&f, "x", POSITION_ERROR, false);
	append(&f, x, ids, BEFORE);
	snapshot(&f, x, "s");
	append(&f, x, ids, 3);
	fault_arm(fault, FAULT_TRANSFER, 0, false);
	assert_int_equal(scheduler_session_rollback_step(f.scheduler, x, "s", &moved, &done, &err), STATUS_DEVICE);
	assert_true(x->lost && err.message[0]);
	fixture_close(&f);
}

/* --- sessions that leave their slots ------------------------------------------------------------- */

static session *find(fixture *f, const char *id)
{
	return scheduler_session_find(f->scheduler, id);
}

static void a_session_that_left_its_slot_returns_as_it_was(void **state)
{
	enum { LONG = TOKEN_CHUNK + 5 };
	fixture *f = *state;
	static client x_after, y_after;
	static int32_t ids[LONG];
	random_tokens(ids, LONG, 36);
	session *x = open_session(f, "x", POSITION_WRAP, true), *y = open_session(f, "y", POSITION_WRAP, true), *kept;
	append(f, x, ids, LONG);
	append(f, y, ids, LONG);
	snapshot(f, x, "s");
	snapshot(f, y, "s");
	append(f, x, ids, 3);
	append(f, y, ids, 3);
	y->pending = x->pending = ids[7]; /* read before it leaves */
	session_transfer left = leave(f, x, &kept);
	assert_null(find(f, "x"));
	assert_non_null(kept);
	x = come_back(f, "x", &left, kept);
	assert_same_state(f, x, y);
	go_on(f, x, &x_after, SEEDED, NULL);
	go_on(f, y, &y_after, SEEDED, NULL);
	assert_memory_equal(x_after.tokens, y_after.tokens, (size_t)y_after.n_tokens * sizeof *y_after.tokens);
	rollback(f, x, "s");
	rollback(f, y, "s");
	assert_same_state(f, x, y);
	left = leave(f, x, &kept);
	drop(f, y);
	scheduler_snapshots_free(kept);
	scheduler_transfer_fini(&left);
}

/* A slot is awaited from the first step to the last. */
static void a_session_leaves_its_slot_in_steps(void **state)
{
	enum { MANY = 30000 };
	fixture *f = *state;
	session *others[16], *kept;
	session_transfer t = {0};
	char name[16];
	int steps = 0;
	int32_t *ids = calloc(MANY, sizeof *ids);
	random_tokens(ids, MANY, 37);
	session *x = open_session(f, "x", POSITION_CLAMP, true);
	append(f, x, ids, MANY);
	for (int i = 1; i < roomy.max_sessions; i++) {
		snprintf(name, sizeof name, "%d", i);
		others[i] = open_session(f, name, POSITION_CLAMP, false);
	}
	assert_false(scheduler_slot_is_coming(f->scheduler));
	for (size_t before = 0; !t.done; before = t.moved, steps++) {
		assert_true(steps == 0 || scheduler_slot_is_coming(f->scheduler));
		assert_int_equal(scheduler_session_leave_step(f->scheduler, x, &t, &kept, NULL), STATUS_OK);
		assert_true(steps == 0 || t.moved - before <= SESSION_STEP);
	}
	assert_true(steps > 2);
	assert_false(scheduler_slot_is_coming(f->scheduler));
	x = come_back(f, "x", &t, kept);
	assert_tokens(x, ids, MANY);
	drop(f, x);
	for (int i = 1; i < roomy.max_sessions; i++)
		drop(f, others[i]);
	free(ids);
}

/* The session keeps its slot, or its place in host memory. */
static void a_device_that_fails_leaves_a_session_in_its_place(void **state)
{
	(void)state;
	fixture f;
	fault_backend *fault = serve_faulty(&f);
	int32_t ids[BEFORE];
	random_tokens(ids, BEFORE, 38);
	session *x = open_session(&f, "x", POSITION_ERROR, false), *y = open_session(&f, "y", POSITION_ERROR, false);
	session *kept;
	session_transfer t = {0};
	append(&f, x, ids, BEFORE);
	append(&f, y, ids, BEFORE);
	fault_arm(fault, FAULT_TRANSFER, 0, false);
	assert_int_equal(scheduler_session_leave_step(f.scheduler, x, &t, &kept, NULL), STATUS_DEVICE);
	assert_null(t.blob);
	assert_null(t.held);
	assert_same_state(&f, x, y);
	t = leave(&f, x, &kept);
	session_transfer from = {.blob = t.blob, .bytes = t.bytes, .held = t.held};
	fault_arm(fault, FAULT_TRANSFER, 0, false);
	assert_int_equal(scheduler_session_import_step(f.scheduler, f.model, "x", &from, &x, NULL), STATUS_DEVICE);
	assert_null(find(&f, "x"));
	x = come_back(&f, "x", &t, kept);
	assert_same_state(&f, x, y);
	fixture_close(&f);
}

static void a_busy_session_does_not_leave(void **state)
{
	fixture *f = *state;
	static client c;
	generation *g;
	session *x = open_session(f, "x", POSITION_WRAP, false), *snapshots;
	session_transfer t = {0};
	int32_t ids[3] = {1, 2, 3};
	generation_request r = request(&c, ids, 3, AFTER);
	assert_int_equal(scheduler_generate(f->scheduler, f->model, x, &r, &g, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_leave_step(f->scheduler, x, &t, &snapshots, NULL), STATUS_CONFLICT);
	assert_null(t.blob);
	assert_false(scheduler_slot_is_coming(f->scheduler));
	generation_cancel(g);
	while (scheduler_runnable(f->scheduler))
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	drop(f, find(f, "x"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_session_that_is_rolled_back_equals_one_that_read_nothing_since, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_session_moves_between_the_snapshots_of_different_texts, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_fork_of_a_snapshot_leaves_session_and_snapshot_unchanged, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_snapshot_shares_the_tokens_and_takes_the_bytes_that_are_announced, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_snapshot_and_a_rollback_copy_a_bounded_part_at_a_time, setup, teardown),
	    cmocka_unit_test_setup_teardown(unknown_and_repeated_snapshots_are_refused_and_change_nothing, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_snapshot_takes_no_place_of_a_session, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_that_left_its_slot_returns_as_it_was, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_leaves_its_slot_in_steps, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_busy_session_does_not_leave, setup, teardown),
	    cmocka_unit_test(a_device_that_fails_leaves_a_session_in_its_place),
	    cmocka_unit_test(a_device_that_fails_during_a_rollback_loses_the_session),
	};
	return RUN_ALL_WAYS(tests);
}
