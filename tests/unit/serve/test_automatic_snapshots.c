/* test_automatic_snapshots.c - snapshots that a generation takes of its session: at intervals, and before calls. */
#include "tests/unit/serve/snapshots.h"

#include "engine/serve/session.h"

enum { BEFORE = 12 };

/* Generate n tokens after a prompt, with an automatic snapshot at every multiple. */
static void generate_every(fixture *f, session *x, client *c, const int32_t *ids, int64_t n_ids, int64_t n,
                           int64_t every)
{
	generation_request r = request(c, ids, n_ids, n);
	r.snapshot_every = every;
	run(f, x, c, &r);
	assert_int_equal(c->result.status, STATUS_OK);
}

/* Check that x has the automatic snapshots after these numbers of tokens, oldest first, and that the scheduler counts their
 * bytes. */
static void assert_automatic(const session *x, const int64_t *tokens, int n)
{
	session_info info;
	int64_t bytes = 0;
	char id[SCHEDULER_ID_BYTES];
	scheduler_session_info(x, &info);
	assert_int_equal(info.n_automatic, n);
	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof id, "auto-%lld", (long long)tokens[i]);
		assert_string_equal(info.automatic[i].id, id);
		assert_int_equal(info.automatic[i].tokens, tokens[i]);
		bytes += info.automatic[i].bytes;
	}
	assert_int_equal(atomic_load(&automatic_used), bytes);
}

static void an_automatic_snapshot_is_the_session_after_its_tokens(void **state)
{
	fixture *f = *state;
	enum { EVERY = 5, MORE = 13 };
	static const int64_t expected[] = {BEFORE, 15, 20, 25};
	static client c;
	int32_t ids[BEFORE + MORE];
	random_tokens(ids, BEFORE, 41);
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generate_every(f, x, &c, ids, BEFORE, MORE, EVERY); /* the prompt is one piece */
	memcpy(ids + BEFORE, c.tokens, MORE * sizeof *ids);
	assert_int_equal(x->tokens, BEFORE + MORE);
	assert_automatic(x, expected, 4);
	for (int i = 0; i < 4; i++) {
		char id[SCHEDULER_ID_BYTES];
		snprintf(id, sizeof id, "auto-%lld", (long long)expected[i]);
		session *y = open_session(f, "y", POSITION_CLAMP, false), *z = fork_snapshot(f, x, id, "z");
		append(f, y, ids, expected[i]);
		assert_same_state(f, z, y);
		drop(f, y);
		drop(f, z);
	}
	rollback(f, x, "auto-15");
	generate_every(f, x, &c, ids, 0, 10, EVERY); /* 20 and 25 are made again */
	assert_memory_equal(c.tokens, ids + 15, 10 * sizeof *ids);
	assert_automatic(x, expected, 4);
	drop(f, x);
	assert_int_equal(atomic_load(&automatic_used), 0);
}

/* A mark of calls that is the text of `n` tokens. */
static chat_call_form mark_of(const served_model *m, const int32_t *tokens, int n, char *text, size_t size)
{
	size_t bytes = 0;
	for (int i = 0; i < n; i++)
		bytes += tokenizer_token_bytes(m->tokenizer, tokens[i], text + bytes, size - bytes - 1);
	text[bytes] = 0;
	return (chat_call_form){.open = text};
}

/* Generate after ids, with the snapshot before a call that begins with the form's mark. */
static session *generate_calls(fixture *f, client *c, const int32_t *ids, int64_t n, const chat_call_form *form)
{
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generation_request r = request(c, ids, BEFORE, n);
	r.calls = form;
	run(f, x, c, &r);
	return x;
}

static void the_state_before_the_first_call_is_kept_once_the_call_has_begun(void **state)
{
	fixture *f = *state;
	enum { MORE = 24 };
	static client c;
	int32_t ids[BEFORE + MORE];
	char text[64], id[SCHEDULER_ID_BYTES];
	session_info info;
	int found = 0;
	random_tokens(ids, BEFORE, 51);
	drop(f, generate_calls(f, &c, ids, MORE, NULL));
	assert_int_equal(c.result.call_snapshot, -1);
	memcpy(ids + BEFORE, c.tokens, MORE * sizeof *ids);
	/* Each pair of tokens of the answer whose first is not in it before, and that has no white space. */
	for (int at = BEFORE; at + 2 < BEFORE + MORE; at++) {
		bool first = true;
		for (int i = BEFORE; i < at; i++)
			first &= ids[i] != ids[at];
		const chat_call_form form = mark_of(f->model, ids + at, 2, text, sizeof text);
		if (!first || strlen(text) < 2 || strpbrk(text, " \t\r\n"))
			continue;
		session *x = generate_calls(f, &c, ids, MORE, &form);
		assert_memory_equal(c.tokens, ids + BEFORE, MORE * sizeof *ids);
		assert_int_equal(c.result.call_snapshot, at);
		scheduler_session_info(x, &info);
		assert_int_equal(info.n_automatic, 1);
		snprintf(id, sizeof id, "call-%d", at);
		assert_string_equal(info.automatic[0].id, id);
		assert_int_equal(atomic_load(&automatic_used), info.automatic[0].bytes);
		session *y = open_session(f, "y", POSITION_CLAMP, false), *z = fork_snapshot(f, x, id, "z");
		append(f, y, ids, at);
		assert_same_state(f, z, y);
		drop(f, z);
		drop(f, y);
		drop(f, x);
		strcat(text, "\x01never"); /* the answer has only the beginning of this mark */
		x = generate_calls(f, &c, ids, MORE, &form);
		assert_int_equal(c.result.call_snapshot, -1);
		scheduler_session_info(x, &info);
		assert_int_equal(info.n_automatic, 0);
		drop(f, x);
		assert_int_equal(atomic_load(&automatic_used), 0);
		found++;
	}
	assert_true(found > 2);
}

static void the_oldest_automatic_snapshots_go_first_and_named_ones_stay(void **state)
{
	fixture *f = *state;
	static client c;
	int32_t ids[3];
	int64_t expected[SCHEDULER_AUTOMATIC];
	session *named;
	random_tokens(ids, 3, 42);
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	append(f, x, ids, 3);
	snapshot(f, x, "named");
	generate_every(f, x, &c, NULL, 0, 3 * SCHEDULER_AUTOMATIC, 1);
	for (int i = 0; i < SCHEDULER_AUTOMATIC; i++)
		expected[i] = x->tokens - SCHEDULER_AUTOMATIC + 1 + i;
	assert_automatic(x, expected, SCHEDULER_AUTOMATIC);
	assert_int_equal(scheduler_session_snapshot(x, "named", &named, NULL), STATUS_OK);
	drop(f, x);
}

static void automatic_snapshots_of_all_sessions_keep_their_limit_of_bytes(void **state)
{
	static client c;
	(void)state;
	for (int fit = 0; fit < 4; fit++) {
		fixture f;
		int32_t ids[3];
		scheduler_limits limits = roomy;
		fixture_folder(&f);
		fixture_serve(&f, &roomy);
		session *x = open_session(&f, "x", POSITION_CLAMP, false);
		random_tokens(ids, 3, 43);
		append(&f, x, ids, 3);
		limits.automatic_bytes = fit * (session_snapshot_bytes(x) + 64);
		scheduler_free(f.scheduler);
		fixture_serve(&f, &limits);
		x = open_session(&f, "x", POSITION_CLAMP, false);
		generate_every(&f, x, &c, ids, 3, 9, 3);
		static const int64_t expected[] = {3, 6, 9, 12};
		assert_automatic(x, expected + 4 - fit, fit);
		session *y = open_session(&f, "y", POSITION_CLAMP, false);
		generate_every(&f, y, &c, ids, 3, 9, 3); /* those of x are not removed for y */
		session_info info;
		scheduler_session_info(y, &info);
		assert_int_equal(info.n_automatic, 0);
		assert_automatic(x, expected + 4 - fit, fit);
		fixture_close(&f);
	}
}

static void a_turn_copies_a_bounded_part_of_large_states(void **state)
{
	enum { EVERY = 4, MORE = 14, SESSIONS = 2 };
	static client c[SESSIONS];
	(void)state;
	fixture f;
	scheduler_limits limits = roomy;
	session_info info[SESSIONS];
	int32_t ids[2];
	limits.automatic_bytes = 16 * SCHEDULER_AUTOMATIC_BYTES;
	fixture_folder(&f);
	write_configured(f.folder, f.backend, "gpt2",
	                 "{\"n_embd\": 256, \"vocab_size\": 259, \"n_head\": 4, \"n_positions\": 640, \"n_layer\": 2}");
	fixture_serve(&f, &limits);
	random_tokens(ids, 2, 48);
	for (int i = 0; i < SESSIONS; i++) {
		session *x = open_session(&f, i ? "y" : "x", POSITION_CLAMP, false);
		generation_request r = request(&c[i], ids, 2, MORE);
		assert_in_range(statepool_slot_bytes(f.model->pool), SCHEDULER_AUTOMATIC_BYTES / SESSIONS + 1,
		                SCHEDULER_AUTOMATIC_BYTES);
		r.snapshot_every = EVERY;
		start(&f, x, &c[i], &r);
	}
	drain(&f);
	for (int i = 0; i < SESSIONS; i++)
		scheduler_session_info(scheduler_session_find(f.scheduler, i ? "y" : "x"), &info[i]);
	assert_int_equal(info[0].n_automatic, 4); /* both pass 4, 8, 12 and 16 in the same steps */
	assert_int_equal(info[1].n_automatic, 3); /* the last one has no later step */
	for (int i = 0; i < 3; i++)
		assert_int_equal(info[1].automatic[i].tokens, info[0].automatic[i].tokens + 1);
	fixture_close(&f);
}

/* Only the state is limited, as where the interval is accepted. */
static void a_long_source_or_text_does_not_prevent_automatic_snapshots(void **state)
{
	enum { LONG = SCHEDULER_AUTOMATIC_BYTES / sizeof(int32_t) + 1 };
	(void)state;
	fixture f;
	scheduler_limits limits = roomy;
	limits.automatic_bytes = 4 * SCHEDULER_AUTOMATIC_BYTES;
	fixture_open(&f, &limits);
	session *x = open_session(&f, "x", POSITION_CLAMP, false);
	assert_int_equal(session_reserve_source(x, LONG, NULL), STATUS_OK);
	memset(x->source, 0, LONG * sizeof *x->source);
	x->n_source = LONG;
	scheduler_session_keep_automatic(f.scheduler, x);
	assert_automatic(x, (const int64_t[]){0}, 1);
	fixture_close(&f);
}

static void automatic_snapshots_are_counted_also_without_a_slot(void **state)
{
	fixture *f = *state;
	static const int64_t expected[] = {4, 8, 12};
	static client c;
	session *snapshots;
	int32_t ids[3];
	random_tokens(ids, 3, 47);
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generate_every(f, x, &c, ids, 3, 10, 4);
	assert_automatic(x, expected, 3);
	const int64_t bytes = atomic_load(&automatic_used);
	session_transfer t = leave(f, x, &snapshots);
	assert_int_equal(atomic_load(&automatic_used), bytes);
	x = come_back(f, "x", &t, snapshots);
	assert_automatic(x, expected, 3);
	t = leave(f, x, &snapshots);
	scheduler_transfer_fini(&t);
	scheduler_snapshots_free(snapshots);
	assert_int_equal(atomic_load(&automatic_used), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(an_automatic_snapshot_is_the_session_after_its_tokens, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_state_before_the_first_call_is_kept_once_the_call_has_begun, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(the_oldest_automatic_snapshots_go_first_and_named_ones_stay, setup,
	                                    teardown),
	    cmocka_unit_test(automatic_snapshots_of_all_sessions_keep_their_limit_of_bytes),
	    cmocka_unit_test(a_turn_copies_a_bounded_part_of_large_states),
	    cmocka_unit_test(a_long_source_or_text_does_not_prevent_automatic_snapshots),
	    cmocka_unit_test_setup_teardown(automatic_snapshots_are_counted_also_without_a_slot, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
