/* States outside of slots that have tokens in common. They have the shared part in memory once. Each continues with the
 * bits of a session that has read its tokens alone. */
#include "tests/unit/serve/held.h"

#include <pthread.h>

static void snapshots_of_a_session_take_the_bytes_of_their_tails(void **state)
{
	fixture *f = *state;
	session_info info;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 600);
	scheduler_session_info(x, &info);
	assert_int_equal(info.snapshot_bytes, own(600) + 2 * block);
	snapshot(f, x, "a");
	assert_blocks(2, 0);
	assert_int_equal(atomic_load(&snapshot_used), own(600) + 2 * block);
	append(f, x, ids + 600, 10);
	snapshot(f, x, "b");
	assert_blocks(2, 2);
	assert_int_equal(atomic_load(&snapshot_used), own(600) + own(610) + 2 * block);
	append(f, x, ids + 610, 200);
	snapshot(f, x, "c");
	assert_blocks(3, 4);
	assert_int_equal(atomic_load(&snapshot_used), own(600) + own(610) + own(810) + 3 * block);
	assert_int_equal(scheduler_session_drop(x, "a", NULL), STATUS_OK);
	assert_blocks(3, 2);
	assert_int_equal(atomic_load(&snapshot_used), own(610) + own(810) + 3 * block);
	assert_int_equal(scheduler_session_drop(x, "c", NULL), STATUS_OK);
	assert_blocks(2, 0);
	assert_int_equal(atomic_load(&snapshot_used), own(610) + 2 * block);
	assert_int_equal(scheduler_session_drop(x, "b", NULL), STATUS_OK);
	assert_blocks(0, 0); /* the session in its slot keeps none */
	assert_int_equal(atomic_load(&snapshot_used), 0);
	drop(f, x);
}

/* Forks share with each other and with what they were forked from, also what none of them held for a while. */
static void forks_share_the_tokens_before_they_parted(void **state)
{
	enum { FORKS = 8 };
	fixture *f = *state;
	session *fork[FORKS];
	char id[16];
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 700);
	for (int i = 0; i < FORKS; i++) {
		snprintf(id, sizeof id, "f%d", i);
		assert_int_equal(scheduler_session_fork(f->scheduler, x, id, &fork[i], NULL), STATUS_OK);
		append(f, fork[i], ids + 700 + i, 100);
	}
	for (int again = 0; again < 2; again++) {
		for (int i = 0; i < FORKS; i++)
			snapshot(f, fork[i], "s");
		assert_blocks(2 + FORKS, 2 * (FORKS - 1));
		for (int i = 0; i < FORKS; i++)
			assert_int_equal(scheduler_session_drop(fork[i], "s", NULL), STATUS_OK);
		assert_blocks(0, 0);
	}
	drop(f, x);
	for (int i = 0; i < FORKS; i++)
		drop(f, fork[i]);
}

/* Branches that part within a block and at its end. */
static void snapshots_of_other_branches_keep_their_bits(void **state)
{
	fixture *f = *state;
	const part none = {0, 0};
	const int64_t starts[] = {255, 256, 300, 512};
	for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
		const part start = {0, starts[i]}, left = {600, 260}, right = {900, 300}, more = {1300, 9};
		session *x = open_session(f, "x", POSITION_ERROR, false), *held, *fork;
		append(f, x, ids, start.n);
		snapshot(f, x, "start");
		append(f, x, ids + left.from, left.n);
		snapshot(f, x, "left");
		rollback(f, x, "start");
		assert_reads(f, x, start, none, none);
		append(f, x, ids + right.from, right.n);
		snapshot(f, x, "right");
		assert_int_equal(scheduler_session_snapshot(x, "left", &held, NULL), STATUS_OK);
		assert_reads(f, held, start, left, none);
		rollback(f, x, "left");
		assert_reads(f, x, start, left, none);
		append(f, x, ids + more.from, more.n);
		assert_reads(f, x, start, left, more);
		assert_int_equal(scheduler_session_snapshot(x, "right", &held, NULL), STATUS_OK);
		assert_int_equal(scheduler_session_fork(f->scheduler, held, "fork", &fork, NULL), STATUS_OK);
		drop(f, x);
		assert_reads(f, fork, start, right, none);
		append(f, fork, ids + more.from, more.n);
		assert_reads(f, fork, start, right, more);
		snapshot(f, fork, "again");
		rollback(f, fork, "again");
		assert_reads(f, fork, start, right, more);
		drop(f, fork);
	}
}

/* A cache that has dropped its oldest tokens is no longer the same for all that began like it. */
static void a_ring_that_has_wrapped_shares_nothing(void **state)
{
	fixture *f = *state;
	const part first = {0, PLACES - 24}, later = {1100, 100}, none = {0, 0};
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	append(f, x, ids, first.n);
	snapshot(f, x, "before");
	assert_blocks(3, 0);
	append(f, x, ids + later.from, later.n);
	snapshot(f, x, "after");
	assert_blocks(3, 0);
	rollback(f, x, "before");
	assert_reads(f, x, first, none, none);
	snapshot(f, x, "second");
	assert_blocks(3, 3);
	rollback(f, x, "after");
	assert_reads(f, x, first, later, none);
	drop(f, x);
}

enum { PROMPT = 800, SHARED = 512, KEPT = 768 }; /* such a prompt keeps its states after 512 and 768 tokens */

/* Run chat i, which begins as all chats do. Return the number of tokens that it did not read. */
static int64_t chat(fixture *f, int i)
{
	static client c;
	random_tokens(ids + SHARED, PROMPT - SHARED, 91 + (uint64_t)i);
	generation_request r = request(&c, ids, PROMPT, 2);
	r.n_shared = SHARED;
	run(f, NULL, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	return c.result.cached_tokens;
}

static void states_of_prompts_share_what_they_have_in_common(void **state)
{
	enum { CHATS = 16 };
	fixture *f = *state;
	prefix_cache *c = &f->scheduler->prefixes;
	int64_t more = 0;
	for (int i = 0; i < CHATS; i++) {
		const int64_t before = c->bytes;
		assert_int_equal(chat(f, i), i ? SHARED : 0);
		assert_int_equal(c->count, 2 + i);
		assert_blocks(3 + i, 2 + 2 * i);
		more = c->bytes - before;
	}
	/* an entry without its blocks and tokens */
	const int64_t entry = more - block - KEPT * (int64_t)sizeof(int32_t);
	assert_in_range(entry, 1, 2048);
	assert_int_equal(c->bytes, (CHATS + 1) * entry + (CHATS * KEPT + SHARED) * (int64_t)sizeof(int32_t) +
	                               (CHATS + 2) * block);

	c->limit = c->bytes - 1; /* the two oldest leave for one more */
	assert_int_equal(chat(f, CHATS), SHARED);
	assert_int_equal(c->count, CHATS);
	assert_int_equal(c->bytes, c->limit + 1 - more);
	assert_blocks(2 + CHATS - 1, 2 * (CHATS - 1));
	assert_int_equal(chat(f, 2), KEPT);
	assert_int_equal(chat(f, 1), SHARED);

	c->limit =
	    entry + KEPT * (int64_t)sizeof(int32_t) + 3 * block; /* one state and what it shared with the others */
	assert_int_equal(chat(f, CHATS + 1), SHARED);
	assert_int_equal(c->count, 1);
	assert_int_equal(c->bytes, c->limit);
	assert_blocks(3, 0);
	assert_int_equal(chat(f, CHATS + 1), KEPT);
	c->limit--;
	assert_int_equal(chat(f, CHATS + 2), 0); /* has room for its state after 512 tokens only */
	assert_int_equal(c->count, 1);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_OK);
	assert_int_equal(c->bytes, 0);
	assert_blocks(0, 0);
}

/* Two prompts that are read at the same time: the second one finds the first one's state when it would keep its own. */
static void prompts_that_are_read_together_share_too(void **state)
{
	fixture *f = *state;
	static client k[2];
	static int32_t prompts[2][PROMPT];
	for (int i = 0; i < 2; i++) {
		memcpy(prompts[i], ids, sizeof prompts[i]);
		random_tokens(prompts[i] + SHARED, PROMPT - SHARED, 400 + (uint64_t)i);
		generation_request r = request(&k[i], prompts[i], PROMPT, 2);
		r.n_shared = SHARED;
		start(f, NULL, &k[i], &r);
	}
	drain(f);
	assert_int_equal(k[1].result.cached_tokens, 0);
	assert_int_equal(f->scheduler->prefixes.count, 3);
	assert_blocks(4, 4);
}

/* A session that leaves its slot copies only what its snapshot does not have. Its blob is that of its export. */
static void a_session_without_a_slot_shares_with_its_snapshots(void **state)
{
	fixture *f = *state;
	const part all = {0, 700}, none = {0, 0};
	session *x = open_session(f, "x", POSITION_ERROR, false), *snapshots, *back = NULL;
	session_transfer t = {0};
	void *exported, *whole;
	size_t bytes;
	append(f, x, ids, all.n);
	snapshot(f, x, "a");
	assert_blocks(2, 0);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &exported, &bytes, NULL), STATUS_OK);
	while (!t.done)
		assert_int_equal(scheduler_session_leave_step(f->scheduler, x, &t, &snapshots, NULL), STATUS_OK);
	assert_blocks(2, 2);
	assert_int_equal(t.bytes, bytes);
	assert_int_equal(scheduler_transfer_whole(&t, &whole), STATUS_OK);
	assert_memory_equal(whole, exported, bytes);
	free(exported);
	free(whole);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &f->model, NULL), STATUS_OK);
	session_transfer from = {.blob = t.blob, .bytes = t.bytes, .held = t.held};
	while (!from.done)
		assert_int_equal(scheduler_session_import_step(f->scheduler, f->model, "x", &from, &back, NULL),
		                 STATUS_OK);
	assert_non_null(back);
	scheduler_session_attach(back, snapshots);
	scheduler_transfer_fini(&t);
	assert_blocks(2, 0);
	assert_reads(f, back, all, none, none);
	rollback(f, back, "a");
	assert_reads(f, back, all, none, none);
	drop(f, back);
}

static void *free_snapshots(void *snapshots)
{
	scheduler_snapshots_free(snapshots);
	return NULL;
}

/* Snapshots of sessions that have left their slots are freed by other threads. */
static void a_thread_frees_snapshots_while_others_are_made(void **state)
{
	fixture *f = *state;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 600);
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		snapshot(f, x, "a");
		session *detached = session_detach_snapshots(x);
		assert_int_equal(pthread_create(&thread, NULL, free_snapshots, detached), 0);
		snapshot(f, x, "b");
		rollback(f, x, "b");
		pthread_join(thread, NULL);
		assert_blocks(2, 0);
		assert_reads(f, x, (part){0, 600}, (part){0, 0}, (part){0, 0});
		assert_int_equal(scheduler_session_drop(x, "b", NULL), STATUS_OK);
	}
	drop(f, x);
}

/* A turn does not pass over all blocks of a long state with many layers, either. */
static void a_step_passes_over_few_shared_runs(void **state)
{
	enum { TOKENS = 3 * HELD_BLOCK + 4 };
	fixture f = {0};
	scheduler_limits limits = roomy;
	size_t moved = 0;
	int steps = 0;
	(void)state;
	limits.snapshot_used = &snapshot_used;
	fixture_folder(&f);
	write_configured(f.folder, f.backend, "gpt2",
	                 "{\"n_embd\": 4, \"vocab_size\": 259, \"n_head\": 1, \"n_positions\": 1024, "
	                 "\"n_layer\": 64, \"initializer_range\": 0.3}");
	fixture_serve(&f, &limits);
	random_tokens(ids, TOKENS, 91);
	session *x = open_session(&f, "x", POSITION_ERROR, false);
	append(&f, x, ids, TOKENS);
	snapshot(&f, x, "a");
	for (bool done = false; !done; steps++)
		assert_int_equal(scheduler_session_snapshot_step(f.scheduler, x, "b", &moved, &done, NULL), STATUS_OK);
	assert_true(steps > 1);
	drop(&f, x);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(snapshots_of_a_session_take_the_bytes_of_their_tails, setup_gpt2,
	                                    teardown_gpt2),
	    cmocka_unit_test_setup_teardown(forks_share_the_tokens_before_they_parted, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test_setup_teardown(snapshots_of_other_branches_keep_their_bits, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test_setup_teardown(a_ring_that_has_wrapped_shares_nothing, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test_setup_teardown(states_of_prompts_share_what_they_have_in_common, setup_gpt2,
	                                    teardown_gpt2),
	    cmocka_unit_test_setup_teardown(prompts_that_are_read_together_share_too, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test_setup_teardown(a_session_without_a_slot_shares_with_its_snapshots, setup_gpt2,
	                                    teardown_gpt2),
	    cmocka_unit_test_setup_teardown(a_thread_frees_snapshots_while_others_are_made, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test(a_step_passes_over_few_shared_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
