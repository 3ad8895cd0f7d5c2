#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/serve/statepool.h"
#include "tests/unit/serve/fault_backend.h"

enum { FLOATS = 33 };

static int setup(void **state)
{
	backend *b;
	if (cpu_reference_open(&b, 1, NULL) != STATUS_OK)
		return -1;
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	backend_close(*state);
	return 0;
}

static void write_slot(statepool *p, int32_t slot, float x)
{
	float data[FLOATS];
	for (int i = 0; i < FLOATS; i++)
		data[i] = x + (float)i;
	assert_int_equal(statepool_write(p, slot, 0, data, statepool_slot_bytes(p)), STATUS_OK);
}

static void assert_slot(statepool *p, int32_t slot, float x, float step)
{
	float data[FLOATS];
	memset(data, 0xff, sizeof data);
	assert_int_equal(statepool_read(p, slot, 0, data, statepool_slot_bytes(p)), STATUS_OK);
	for (int i = 0; i < FLOATS; i++)
		assert_true(data[i] == x + step * (float)i);
}

static void slots_keep_their_content_while_the_pool_grows(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 100), STATUS_OK);
	const float *data = statepool_data(p);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		assert_int_equal(slot, i);
		write_slot(p, slot, (float)(1000 * i));
		assert_true(statepool_slots(p) > i && (statepool_slots(p) & (statepool_slots(p) - 1)) == 0);
		assert_true(statepool_slots(p) <= statepool_capacity(p));
		assert_ptr_equal(statepool_data(p), data);
	}
	for (int i = 0; i < 100; i++)
		assert_slot(p, i, (float)(1000 * i), 1);
	assert_int_equal(statepool_slots(p), 128);
	assert_int_equal(statepool_capacity(p), 128);
	statepool_free(p);
}

/* Slots without memory cost nothing but addresses. */
static void memory_comes_with_the_slots(void **state)
{
	enum { LIMIT = 1 << 20, WIDE = 1 << 16 }; /* 256 GiB in all */
	statepool *p;
	int32_t slot;
	static float data[WIDE];
	assert_int_equal(statepool_new(&p, *state, WIDE, LIMIT), STATUS_OK);
	assert_int_equal(statepool_capacity(p), LIMIT);
	assert_int_equal(statepool_slots(p), 4);
	for (int i = 0; i < 5; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(statepool_slots(p), 8);
	data[WIDE - 1] = 3;
	assert_int_equal(statepool_write(p, slot, 0, data, statepool_slot_bytes(p)), STATUS_OK);
	data[WIDE - 1] = 0;
	assert_int_equal(statepool_read(p, slot, 0, data, statepool_slot_bytes(p)), STATUS_OK);
	assert_true(data[WIDE - 1] == 3);
	statepool_free(p);
}

static void without_memory_for_more_the_pool_stays_as_it_was(void **state)
{
	fault_backend *f = fault_backend_new(*state);
	statepool *p = (statepool *)&p;
	int32_t slot;
	for (int i = 0; i < 2; i++) { /* the reservation, the first slots */
		fault_arm(f, FAULT_ALLOCATE, i, false);
		assert_int_equal(statepool_new(&p, &f->base, FLOATS, 100), STATUS_NOMEM);
		assert_null(p);
		assert_int_equal(f->memory, 0);
	}
	assert_int_equal(statepool_new(&p, &f->base, FLOATS, 100), STATUS_OK);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		write_slot(p, slot, (float)i);
	}
	fault_arm(f, FAULT_ALLOCATE, 0, false);
	assert_int_equal(statepool_take(p, &slot), STATUS_NOMEM);
	assert_int_equal(slot, -1);
	assert_int_equal(statepool_slots(p), 4);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(slot, 4);
	for (int i = 0; i < 4; i++)
		assert_slot(p, i, (float)i, 1);
	statepool_free(p);
	assert_int_equal(f->memory, 0);
	free(f);
}

static void a_full_pool_is_busy_until_a_slot_comes_back(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 3), STATUS_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_BUSY);
	assert_int_equal(slot, -1);
	statepool_give(p, 1);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(slot, 1);
	statepool_free(p);
}

static void a_cleared_slot_does_not_show_what_was_there_before(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 4), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_slot(p, slot, 0, 0);
	write_slot(p, slot, 5);
	statepool_give(p, slot);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(statepool_clear(p, slot), STATUS_OK);
	assert_slot(p, slot, 0, 0);
	statepool_free(p);
}

static void a_copy_is_independent_of_its_original(void **state)
{
	statepool *p;
	int32_t a, b;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 4), STATUS_OK);
	assert_int_equal(statepool_take(p, &a), STATUS_OK);
	assert_int_equal(statepool_take(p, &b), STATUS_OK);
	write_slot(p, a, 7);
	assert_int_equal(statepool_copy(p, b, a, 0, statepool_slot_bytes(p)), STATUS_OK);
	write_slot(p, a, 9);
	assert_slot(p, b, 7, 1);
	assert_slot(p, a, 9, 1);
	statepool_free(p);
}

static void impossible_sizes_are_refused(void **state)
{
	statepool *p = (statepool *)&p;
	assert_int_equal(statepool_new(&p, *state, 0, 4), STATUS_INVALID);
	assert_null(p);
	assert_int_equal(statepool_new(&p, *state, 4, 0), STATUS_INVALID);
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 2, 4), STATUS_NOMEM);
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 8, 4), STATUS_NOMEM);
	assert_int_equal(statepool_new(&p, *state, (int64_t)1 << 50, 4),
	                 STATUS_NOMEM); /* more than there are addresses */
	assert_null(p);
	statepool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(slots_keep_their_content_while_the_pool_grows),
	    cmocka_unit_test(memory_comes_with_the_slots),
	    cmocka_unit_test(without_memory_for_more_the_pool_stays_as_it_was),
	    cmocka_unit_test(a_full_pool_is_busy_until_a_slot_comes_back),
	    cmocka_unit_test(a_cleared_slot_does_not_show_what_was_there_before),
	    cmocka_unit_test(a_copy_is_independent_of_its_original),
	    cmocka_unit_test(impossible_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
