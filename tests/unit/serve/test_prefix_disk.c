/* States after the beginnings of prompts on the disk return with the same bits, and to their owner only. They keep the
 * limits. */
#include "tests/unit/serve/disk_fixture.h"

#include "engine/serve/session_blob.h"

/* Nothing is in memory after a restart. */
static void a_state_returns_after_a_restart(void **state)
{
	disk_fixture *x = *state;
	leave(x, 1, "a");
	assert_int_equal(x->f.scheduler->prefixes.count, 0);
	assert_true(ask(x, PROMPT, "a") >= PROMPT - 1);
	assert_int_equal(stats_of(x).reads, 1);
	assert_true(ask(x, PROMPT, "a") >= PROMPT - 1); /* it is in memory now */
	assert_int_equal(stats_of(x).reads, 1);
}

static void a_state_of_whole_pieces_returns(void **state)
{
	disk_fixture *x = *state;
	assert_false(x->f.model->any_pieces);
	leave(x, 2, NULL);
	assert_int_equal(ask(x, PROMPT, NULL), (PROMPT - 1) / SCHEDULER_PREFILL_CHUNK * SCHEDULER_PREFILL_CHUNK);
	assert_int_equal(stats_of(x).reads, 1);
}

/* Return the bytes of all blocks in memory. */
static int64_t block_bytes(void)
{
	held_stats s;
	held_state_read_stats(&s);
	return s.bytes;
}

static void a_large_state_returns(void **state)
{
	disk_fixture *x = *state;
	leave(x, 2, NULL);
	assert_true(ask(x, 300, NULL) == 0 && block_bytes() > 0);
	const int64_t block = block_bytes();
	assert_int_equal(ask(x, PROMPT, NULL), 512);
	assert_int_equal(stats_of(x).reads, 1);
	assert_int_equal(block_bytes(), 2 * block); /* the first one is shared with the state in memory */
	assert_true(2 * block > PREFIXES_AT_ONCE);
	assert_int_equal(ask(x, PROMPT, NULL), 512);
	assert_int_equal(stats_of(x).reads, 1);
}

/* A cache of a few tokens is small on the disk: the rest of its slot may belong to others. */
static void only_what_the_tokens_have_written_is_stored(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	random_tokens(ids, LONG, 3);
	ask(x, 300, NULL);
	restart(x);
	assert_int_equal(count_files(x, &bytes), 1);
	const int64_t slot = (int64_t)statepool_slot_bytes(x->f.model->pool);
	assert_in_range(bytes, slot * 256 / LONG, slot * 256 / LONG + 256 * (int64_t)sizeof(int32_t) + 256);
}

static void states_leave_memory_for_the_disk_and_return(void **state)
{
	disk_fixture *x = *state;
	prefix_cache *c = &x->f.scheduler->prefixes;
	random_tokens(ids, LONG, 4);
	ask(x, PROMPT, NULL);
	c->limit = c->bytes;
	for (int i = 1; i < 4; i++) {
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
		assert_true(c->bytes <= c->limit);
	}
	assert_true(settle(x).writes >= 3);
	for (int i = 1; i < 4; i++) {
		ids[0] = 3 + i;
		assert_true(ask(x, PROMPT, NULL) >= PROMPT - 1);
		settle(x);
	}
	assert_in_range(stats_of(x).reads, 2, 3);
	assert_true(c->bytes <= c->limit);
}

static void an_owner_reads_its_own_states_only(void **state)
{
	disk_fixture *x = *state;
	leave(x, 5, "a");
	assert_int_equal(ask(x, PROMPT, "b"), 0);
	assert_int_equal(ask(x, PROMPT, NULL), 0);
	assert_int_equal(stats_of(x).reads, 0);
	assert_true(ask(x, PROMPT, "a") > 0);
}

static void a_removed_owner_has_no_states(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 6, "a");
	ask(x, PROMPT, "a"); /* in memory, too */
	ask(x, PROMPT, "a tenant");
	ask(x, PROMPT, "b");
	const int before = count_files(x, &bytes);
	prefix_disk_remove_owner(x->disk, "a");
	assert_int_equal(settle(x).states, 0);
	assert_int_equal(ask(x, PROMPT, "a"), 0);
	assert_int_equal(ask(x, PROMPT, "a tenant"), 0);
	restart(x);
	assert_in_range(count_files(x, &bytes), 1, before); /* b's */
	assert_int_equal(ask(x, PROMPT, "a"), 0);
	assert_true(ask(x, PROMPT, "b") > 0);
}

/* Its prompt has been read, and the copy of the state is not complete. */
static void a_removed_owner_keeps_no_state_that_is_being_copied(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	random_tokens(ids, LONG, 6);
	generation_request r = request(memset(&with, 0, sizeof with), ids, PROMPT, 2);
	with.credit = INT32_MAX;
	r.owner = "a";
	start(&x->f, NULL, &with, &r);
	while (!session_copies(with.generation->session))
		assert_int_equal(scheduler_tick(x->f.scheduler), STATUS_OK);
	prefix_disk_remove_owner(x->disk, "a");
	drain(&x->f);
	assert_int_equal(with.result.status, STATUS_OK);
	assert_int_equal(x->f.scheduler->prefixes.count, 0);
	assert_int_equal(block_bytes(), 0);
	restart(x);
	assert_int_equal(count_files(x, &bytes), 0);
}

static void a_removed_model_has_no_states(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 7, "a");
	ask(x, PROMPT - 400, "a");
	assert_int_equal(scheduler_model_unload(x->f.scheduler, "m", NULL), STATUS_OK);
	prefix_disk_remove_model(x->disk, "another");
	assert_true(stats_of(x).states > 0);
	prefix_disk_remove_model(x->disk, "m"); /* also what waits to be written */
	assert_int_equal(settle(x).states, 0);
	assert_int_equal(count_files(x, &bytes), 0);
	restart(x);
	assert_int_equal(ask(x, PROMPT, "a"), 0);
}

/* As after a kill between the removal of a model and that of its files. */
static void the_start_removes_files_of_models_that_do_not_exist(void **state)
{
	disk_fixture *x = *state;
	const char *const names[] = {"m", "other"};
	int64_t bytes;
	for (int i = 0; i < 2; i++) {
		leave(x, 70, NULL);
		stop(x);
		x->models.names = malloc(sizeof *x->models.names);
		x->models.names[x->models.n++] = prefix_disk_name(names[i]);
		serve(x);
		assert_int_equal(count_files(x, &bytes), i == 0);
		prefix_disk_remove_model(x->disk, "m");
		settle(x);
	}
}

static void the_least_recently_used_files_leave_the_limit(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 22, NULL);
	count_files(x, &bytes);
	x->limit = 3 * bytes;
	for (int i = 1; i < 6; i++) {
		restart(x);
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
		restart(x);
		ids[0] = 4; /* stays in use */
		assert_true(ask(x, PROMPT, NULL) > 0);
		count_files(x, &bytes);
		assert_true(bytes <= x->limit);
	}
	x->limit = 0;
	restart(x);
	assert_int_equal(access(x->kept, F_OK), -1); /* off: nothing stays on the disk */
}

static void writing_keeps_the_limit(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 23, NULL);
	count_files(x, &bytes);
	x->limit = 2 * bytes;
	restart(x);
	for (int i = 0; i < 4; i++) {
		ids[0] = 3 + i;
		ask(x, PROMPT, NULL);
		prefixes_free(&x->f.scheduler->prefixes, x->f.model);
		const int64_t counted = settle(x).bytes;
		count_files(x, &bytes);
		assert_int_equal(bytes, counted);
		assert_in_range(bytes, 1, x->limit);
	}
	assert_true(stats_of(x).writes >= 3);
}

/* The disk does not write a file only to remove it for a later one. */
static void a_model_that_is_unloaded_writes_what_the_limit_allows(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 24, NULL);
	const int files = count_files(x, &bytes);
	x->limit = 2 * bytes + bytes / 2;
	restart(x);
	for (int i = 0; i < 5; i++) {
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
	}
	assert_int_equal(settle(x).writes, 0);
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_in_range(settle(x).writes, files, 5 * files / 2);
	restart(x);
	assert_true(ask(x, PROMPT, NULL) > 0); /* the latest */
}

/* A limit that shrinks applies at once. */
static void a_smaller_limit_removes_files_at_the_start(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes, less;
	for (uint64_t i = 0; i < 3; i++)
		leave(x, 30 + i, NULL);
	count_files(x, &bytes);
	x->limit = bytes / 2;
	restart(x);
	assert_true(count_files(x, &less) > 0 && less <= x->limit);
	assert_int_equal(stats_of(x).bytes, less);
	assert_true(ask(x, PROMPT, NULL) > 0); /* the latest */
}

static void a_bare_blob_is_no_session(void **state)
{
	disk_fixture *x = *state;
	char path[256], *data;
	size_t bytes;
	session *made;
	leave(x, 60, NULL);
	assert_true(file_at(x, 0, path));
	assert_int_equal(file_read(path, 1 << 24, &data, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(x->f.scheduler, x->f.model, "s", data, bytes, &made, NULL),
	                 STATUS_UNSUPPORTED);
	assert_null(scheduler_session_find(x->f.scheduler, "s"));
	free(data);
	made = open_session(&x->f, "s", POSITION_ERROR, false);
	append(&x->f, made, ids, PROMPT);
	assert_int_equal(scheduler_session_export(x->f.scheduler, made, (void **)&data, &bytes, NULL), STATUS_OK);
	drop(&x->f, made);
	stop(x);
	for (int i = 0; file_at(x, i, path); i++)
		assert_int_equal(file_write_scratch(path, data, bytes, NULL), STATUS_OK);
	free(data);
	serve(x);
	assert_int_equal(ask(x, PROMPT, NULL), 0); /* a session is no bare blob, either */
	assert_in_range(stats_of(x).damaged, 1, 10);
}

/* Prompts that branch at random, with room in memory for one or two states. */
static void random_conversations_have_the_same_tokens(void **state)
{
	disk_fixture *x = *state;
	uint64_t random = 61;
	int64_t cached = 0;
	random_tokens(ids, LONG, 62);
	x->f.scheduler->prefixes.limit = 40000;
	for (int i = 0; i < 30; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		const int64_t n = PROMPT / 2 + (int64_t)(random >> 33) % (PROMPT / 2),
		              from = (int64_t)(random >> 43) % n;
		if (i % 3 == 0)
			random_tokens(ids + from, LONG - from, random);
		cached += ask(x, n, i % 2 ? "a" : "b");
	}
	assert_true(cached > PROMPT);
	assert_true(stats_of(x).reads > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_state_returns_after_a_restart, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_of_whole_pieces_returns, setup_gpt2, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_large_state_returns, setup_large, teardown_disk),
	    cmocka_unit_test_setup_teardown(only_what_the_tokens_have_written_is_stored, setup_gpt2, teardown_disk),
	    cmocka_unit_test_setup_teardown(states_leave_memory_for_the_disk_and_return, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(an_owner_reads_its_own_states_only, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_removed_owner_has_no_states, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_removed_owner_keeps_no_state_that_is_being_copied, setup_large,
	                                    teardown_disk),
	    cmocka_unit_test_setup_teardown(a_removed_model_has_no_states, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(the_start_removes_files_of_models_that_do_not_exist, setup_disk,
	                                    teardown_disk),
	    cmocka_unit_test_setup_teardown(the_least_recently_used_files_leave_the_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(writing_keeps_the_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_model_that_is_unloaded_writes_what_the_limit_allows, setup_disk,
	                                    teardown_disk),
	    cmocka_unit_test_setup_teardown(a_smaller_limit_removes_files_at_the_start, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_bare_blob_is_no_session, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(random_conversations_have_the_same_tokens, setup_disk, teardown_disk),
	};
	return RUN_ALL_WAYS(tests);
}
