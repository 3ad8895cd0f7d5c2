/* Memory that is refused while a state is held, forked or rolled back. */
#include "tests/unit/serve/held.h"
#include "tests/unit/support/allocations.h"

/* Each allocation of a snapshot, a rollback and a fork fails in turn. What exists keeps its bits. */
static void a_failed_allocation_leaves_all_states_whole(void **state)
{
	fixture *f = *state;
	const part first = {0, 600}, later = {700, 300}, none = {0, 0};
	session *x = open_session(f, "x", POSITION_ERROR, false), *held, *fork = NULL;
	append(f, x, ids, first.n);
	snapshot(f, x, "a");
	append(f, x, ids + later.from, later.n);
	int failed = 0;
	for (int64_t n = 0, refused = 1; refused; n++) {
		allocations_fail(n, true);
		const status s = try_snapshot(f, x, "b");
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_blocks(refused ? 2 : 3, refused ? 0 : 2);
		failed += refused != 0;
	}
	assert_true(failed >= 6);
	assert_int_equal(scheduler_session_snapshot(x, "a", &held, NULL), STATUS_OK);
	for (int64_t n = 0, refused = 1; refused; n++) {
		allocations_fail(n, true);
		const status s = scheduler_session_fork(f->scheduler, held, "fork", &fork, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_reads(f, held, first, none, none);
	}
	assert_reads(f, fork, first, none, none);
	drop(f, fork);
	for (int64_t n = 0, refused = 1; refused; n++) {
		allocations_fail(n, true);
		const status s = try_rollback(f, x, "a");
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_reads(f, x, first, refused ? later : none, none);
	}
	rollback(f, x, "b");
	assert_reads(f, x, first, later, none);
	drop(f, x);
}

/* Each allocation of a session that leaves its slot, and then returns, fails in turn. It stays where it is. */
static void a_failed_allocation_leaves_a_session_in_its_place(void **state)
{
	fixture *f = *state;
	const part all = {0, 700}, none = {0, 0};
	session *x = open_session(f, "x", POSITION_ERROR, false), *snapshots, *back = NULL;
	session_transfer t = {0};
	append(f, x, ids, all.n);
	for (int64_t n = 0, refused = 1; refused; n++) {
		status s = STATUS_OK;
		allocations_fail(n, true);
		while (s == STATUS_OK && !t.done)
			s = scheduler_session_leave_step(f->scheduler, x, &t, &snapshots, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_blocks(refused ? 0 : 2, 0);
		if (refused)
			assert_reads(f, x, all, none, none);
	}
	for (int64_t n = 0, refused = 1; refused; n++) {
		session_transfer from = {.blob = t.blob, .bytes = t.bytes, .held = t.held};
		status s = STATUS_OK;
		allocations_fail(n, true);
		while (s == STATUS_OK && !from.done)
			s = scheduler_session_import_step(f->scheduler, f->model, "x", &from, &back, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_blocks(2, 0);
		assert_int_equal(f->model->users, !refused);
	}
	scheduler_transfer_fini(&t);
	assert_blocks(0, 0);
	assert_reads(f, back, all, none, none);
	drop(f, back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_failed_allocation_leaves_all_states_whole, setup_gpt2, teardown_gpt2),
	    cmocka_unit_test_setup_teardown(a_failed_allocation_leaves_a_session_in_its_place, setup_gpt2,
	                                    teardown_gpt2),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
