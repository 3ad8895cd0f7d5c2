/* Memory that is refused while the state of a prompt leaves its slot in pieces. */
#include "tests/unit/serve/disk_fixture.h"
#include "tests/unit/support/allocations.h"

static void tick(const disk_fixture *x)
{
	x->f.scheduler->turn_ns = 0;
	x->f.scheduler->prefixes.byte_ns = 1e-6; /* copying is always worth it, one piece a turn */
	assert_int_equal(scheduler_tick(x->f.scheduler), STATUS_OK);
}

static bool copies(void)
{
	return !with.finished && session_copies(with.generation->session);
}

/* Each allocation of a copy fails in turn. A copy that is not complete is not kept, and no file is written of it. */
static void a_failed_allocation_keeps_no_part_of_a_state(void **state)
{
	disk_fixture *x = *state;
	int failed = 0;
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		random_tokens(ids, LONG, 40 + (uint64_t)n);
		const generation_request r = request(&with, ids, PROMPT, 2);
		start(&x->f, NULL, &with, &r);
		while (!copies())
			tick(x);
		allocations_fail(n, true);
		while (copies())
			assert_int_equal(prefixes_copy(&x->f.scheduler->prefixes, with.generation->session, &(size_t){1}),
			                 STATUS_OK);
		refused = allocations_refused();
		allocations_limit(-1);
		failed += refused;
		assert_int_equal(x->f.scheduler->prefixes.count, !refused);
		drain(&x->f);
		assert_int_equal(with.result.status, STATUS_OK);
		restart(x);
		assert_int_equal(stats_of(x).states, !refused);
	}
	assert_true(failed >= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_failed_allocation_keeps_no_part_of_a_state, setup_large, teardown_disk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
