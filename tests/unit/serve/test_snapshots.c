/* test_snapshots.c - a session that is rolled back continues as one that has never read what was undone. */
#include "tests/unit/serve/fixture.h"

#include "engine/serve/session.h"
#include "engine/text/grammar/json_grammar.h"

enum { BEFORE = 12, UNDONE = 9, AFTER = 14 };

static void snapshot(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static void rollback(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static session *fork_snapshot(fixture *f, session *x, const char *snapshot, const char *id)
{
	session *from, *out;
	assert_int_equal(scheduler_session_snapshot(x, snapshot, &from, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_fork(f->scheduler, from, id, &out, NULL), STATUS_OK);
	return out;
}

/* Compare everything that an export has: options, tokens, state, logits, log and source. */
static void assert_same_state(fixture *f, session *a, session *b)
{
	void *blobs[2];
	size_t bytes[2];
	assert_int_equal(scheduler_session_export(f->scheduler, a, &blobs[0], &bytes[0], NULL), STATUS_OK);
	assert_int_equal(scheduler_session_export(f->scheduler, b, &blobs[1], &bytes[1], NULL), STATUS_OK);
	assert_int_equal(bytes[0], bytes[1]);
	assert_memory_equal(blobs[0], blobs[1], bytes[0]);
	free(blobs[0]);
	free(blobs[1]);
}

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

/* --- automatic snapshots ---------------------------------------------------------------- */

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

/* --- sessions that leave their slots ------------------------------------------------------------- */

static session *find(fixture *f, const char *id)
{
	return scheduler_session_find(f->scheduler, id);
}

/* Move x out of its slot. */
static session_transfer leave(fixture *f, session *x, session **snapshots)
{
	session_transfer t = {0};
	while (!t.done)
		assert_int_equal(scheduler_session_leave_step(f->scheduler, x, &t, snapshots, NULL), STATUS_OK);
	return t;
}

static session *come_back(fixture *f, const char *id, session_transfer *left, session *snapshots)
{
	session *x = NULL;
	session_transfer t = {.blob = left->blob, .bytes = left->bytes, .held = left->held};
	while (!x)
		assert_int_equal(scheduler_session_import_step(f->scheduler, f->model, id, &t, &x, NULL), STATUS_OK);
	scheduler_session_attach(x, snapshots);
	scheduler_transfer_fini(left);
	return x;
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
