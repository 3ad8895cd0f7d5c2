#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/serve/statepool.h"

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
	assert_int_equal(statepool_write(p, slot, data), STATUS_OK);
}

static void assert_slot(statepool *p, int32_t slot, float x, float step)
{
	float data[FLOATS];
	memset(data, 0xff, sizeof data);
	assert_int_equal(statepool_read(p, slot, data), STATUS_OK);
	for (int i = 0; i < FLOATS; i++)
		assert_true(data[i] == x + step * (float)i);
}

static void slots_keep_their_content_while_the_pool_grows(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 100), STATUS_OK);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		assert_int_equal(slot, i);
		write_slot(p, slot, (float)(1000 * i));
	}
	for (int i = 0; i < 100; i++)
		assert_slot(p, i, (float)(1000 * i), 1);
	assert_int_equal(statepool_slots(p), 128);
	statepool_free(p);
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

static void a_slot_never_shows_what_was_there_before(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, 4), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_slot(p, slot, 0, 0);
	write_slot(p, slot, 5);
	statepool_give(p, slot);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
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
	assert_int_equal(statepool_copy(p, b, a), STATUS_OK);
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
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 2, 4), STATUS_INVALID);
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 8, 4), STATUS_INVALID);
	assert_null(p);
	statepool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(slots_keep_their_content_while_the_pool_grows),
	    cmocka_unit_test(a_full_pool_is_busy_until_a_slot_comes_back),
	    cmocka_unit_test(a_slot_never_shows_what_was_there_before),
	    cmocka_unit_test(a_copy_is_independent_of_its_original),
	    cmocka_unit_test(impossible_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
