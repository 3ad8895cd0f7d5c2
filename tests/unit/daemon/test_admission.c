/* Slots, shares, eviction and retry times, with a clock that the test advances. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/daemon/generation/admission.h"

enum { SLOTS = 8, MAX = 64 };

typedef struct fixture {
	admission *all;
	uint64_t now_ms;
	admitted held[MAX];
	int n, evicted;
} fixture;

static fixture *current;

static void on_evict(admitted *x)
{
	(void)x;
	current->evicted++;
}

static int setup(void **state)
{
	static fixture f;
	f = (fixture){.now_ms = 1000000};
	current = &f;
	*state = &f;
	return admission_new(&f.all, SLOTS) != STATUS_OK;
}

static int teardown(void **state)
{
	fixture *f = *state;
	for (int i = 0; i < f->n; i++)
		admission_leave(f->all, &f->held[i], f->now_ms);
	admission_free(f->all);
	return 0;
}

/* Request slots. Returns 0 if admitted, as the next entry of f->held; otherwise the seconds to wait. */
static int ask(fixture *f, const char *owner, int slots)
{
	error err = ERROR_INIT;
	int retry_after;
	admitted *x = &f->held[f->n];
	*x = (admitted){.slots = slots, .most_tokens = 100 * slots, .first_ms = f->now_ms, .evict = on_evict};
	status s = admission_enter(f->all, x, owner, f->now_ms, &retry_after, &err);
	assert_true(s == STATUS_OK || s == STATUS_BUSY);
	assert_int_equal(s == STATUS_OK, retry_after == 0);
	f->n += s == STATUS_OK;
	return retry_after;
}

static void stall(fixture *f, admitted *x)
{
	x->stalled = true;
	x->stalled_ms = f->now_ms;
}

static void end(fixture *f, int i)
{
	admission_leave(f->all, &f->held[i], f->now_ms);
}

static void one_owner_may_use_all_slots_and_no_more(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "a", 7), 0);
	assert_true(ask(f, "a", 2) > 0);
	assert_int_equal(ask(f, "a", 1), 0);
	assert_true(ask(f, "a", 1) > 0);
	end(f, 1);
	assert_int_equal(ask(f, "a", 1), 0);
}

static void an_owner_within_its_share_is_admitted_when_another_uses_all_slots(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "heavy", SLOTS), 0);
	for (int i = 0; i < SLOTS / 2; i++)
		assert_int_equal(ask(f, "light", 1), 0);
	assert_true(ask(f, "light", 1) > 0);
	assert_true(ask(f, "heavy", 1) > 0);
	for (int i = 0; i < SLOTS / 4; i++)
		assert_int_equal(ask(f, "third", 1), 0);
	assert_true(ask(f, "third", 1) > 0);
	assert_int_equal(f->evicted, 0);
}

static void the_number_of_slots_in_use_is_bounded_for_any_number_of_owners(void **state)
{
	static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
	fixture *f = *state;
	int used = 0;
	for (size_t o = 0; o < sizeof names / sizeof *names; o++)
		while (ask(f, names[o], 1) == 0)
			used++;
	assert_in_range(used, SLOTS + 1, admission_limit(SLOTS));
}

static void requests_in_the_background_take_none_of_these_slots(void **state)
{
	fixture *f = *state;
	error err = ERROR_INIT;
	int retry_after;
	admitted x = {.slots = SLOTS - 1, .background = true}, y = {.slots = 2, .background = true};
	assert_int_equal(admission_enter(f->all, &x, "batch", f->now_ms, &retry_after, &err), STATUS_OK);
	assert_int_equal(admission_enter(f->all, &y, "batch", f->now_ms, &retry_after, &err), STATUS_BUSY);
	admission_leave(f->all, &y, f->now_ms); /* it holds none */
	assert_int_equal(ask(f, "a", SLOTS), 0);
	assert_int_equal(ask(f, "b", SLOTS / 2), 0);
	admission_leave(f->all, &x, f->now_ms);
	y.slots = SLOTS;
	err = (error)ERROR_INIT;
	assert_int_equal(admission_enter(f->all, &y, "batch", f->now_ms, &retry_after, &err), STATUS_OK);
	admission_leave(f->all, &y, f->now_ms);
}

static void a_stalled_stream_loses_its_slots_when_another_request_needs_them(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "a", SLOTS / 2), 0);
	assert_int_equal(ask(f, "a", SLOTS / 2), 0);
	stall(f, &f->held[0]);
	f->now_ms += ADMISSION_STALL_MS - 1;
	assert_true(ask(f, "a", 1) > 0);
	f->now_ms += 1;
	assert_int_equal(ask(f, "a", 1), 0);
	assert_int_equal(f->evicted, 1);
	assert_true(f->held[0].evicted);
}

static void a_stalled_stream_is_kept_while_no_request_needs_its_slots(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "a", SLOTS - 1), 0);
	stall(f, &f->held[0]);
	f->now_ms += 100 * ADMISSION_STALL_MS;
	assert_int_equal(ask(f, "a", 1), 0);
	assert_int_equal(f->evicted, 0);
}

static void a_stalled_stream_within_its_owners_share_is_not_evicted_for_others(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "slow", SLOTS / 2), 0);
	assert_int_equal(ask(f, "busy", SLOTS / 2), 0);
	stall(f, &f->held[0]);
	f->now_ms += ADMISSION_STALL_MS;
	assert_true(ask(f, "busy", 1) > 0);
	assert_int_equal(f->evicted, 0);
}

static void the_owner_with_most_slots_loses_its_longest_stalled_stream_first(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "small", 3), 0);
	assert_int_equal(ask(f, "large", 3), 0);
	stall(f, &f->held[0]);
	f->now_ms += 1;
	assert_int_equal(ask(f, "large", 2), 0);
	stall(f, &f->held[2]);
	f->now_ms += 1;
	stall(f, &f->held[1]);
	f->now_ms += ADMISSION_STALL_MS;
	assert_int_equal(ask(f, "new", 1), 0);
	assert_int_equal(f->evicted, 1);
	assert_true(f->held[2].evicted);
}

static void no_stream_is_evicted_for_a_request_that_is_still_refused(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, "a", 1), 0);
	assert_int_equal(ask(f, "a", SLOTS - 1), 0);
	stall(f, &f->held[0]);
	f->now_ms += ADMISSION_STALL_MS;
	assert_true(ask(f, "a", 2) > 0);
	assert_int_equal(f->evicted, 0);
}

/* All slots are held by requests that take 0.1 s per token and have 60 tokens left. */
static void be_busy(fixture *f)
{
	for (int i = 0; i < SLOTS; i++)
		assert_int_equal(ask(f, "a", 1), 0);
	f->now_ms += 4000;
	for (int i = 0; i < SLOTS; i++)
		f->held[i].tokens = 40;
}

static void a_refused_request_gets_an_estimate_of_when_a_slot_is_free(void **state)
{
	fixture *f = *state;
	be_busy(f);
	f->held[3].tokens = 90; /* ends after 0.4 s; its slot is promised to the first request */
	assert_int_equal(ask(f, "a", 1), 1);
	assert_in_range(ask(f, "a", 1), 5, 9); /* after one of the others, at 0.1 s per token */
}

static void retries_are_spread_over_the_times_at_which_slots_become_free(void **state)
{
	fixture *f = *state;
	be_busy(f);
	int first = ask(f, "a", 1), last = first;
	for (int i = 1; i < 2 * SLOTS; i++) {
		int after = ask(f, "a", 1);
		assert_true(after >= last);
		last = after;
	}
	assert_true(last > first);
	for (int i = 0; i < 1000; i++)
		assert_in_range(ask(f, "a", 1), 1, ADMISSION_MAX_RETRY);
}

static void without_running_requests_the_estimate_uses_the_pace_of_past_ones(void **state)
{
	fixture *f = *state;
	for (int i = 0; i < MAX / 2; i++) {
		assert_int_equal(ask(f, "a", 1), 0);
		f->now_ms += 30000;
		f->held[i].tokens = 100;
		end(f, i);
	}
	assert_int_equal(ask(f, "a", SLOTS), 0);
	assert_in_range(ask(f, "a", 1), 31, 40);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(one_owner_may_use_all_slots_and_no_more),
	    T(an_owner_within_its_share_is_admitted_when_another_uses_all_slots),
	    T(the_number_of_slots_in_use_is_bounded_for_any_number_of_owners),
	    T(requests_in_the_background_take_none_of_these_slots),
	    T(a_stalled_stream_loses_its_slots_when_another_request_needs_them),
	    T(a_stalled_stream_is_kept_while_no_request_needs_its_slots),
	    T(a_stalled_stream_within_its_owners_share_is_not_evicted_for_others),
	    T(the_owner_with_most_slots_loses_its_longest_stalled_stream_first),
	    T(no_stream_is_evicted_for_a_request_that_is_still_refused),
	    T(a_refused_request_gets_an_estimate_of_when_a_slot_is_free),
	    T(retries_are_spread_over_the_times_at_which_slots_become_free),
	    T(without_running_requests_the_estimate_uses_the_pace_of_past_ones),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
