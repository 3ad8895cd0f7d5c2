#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
	assert_int_equal(statepool_new(&p, *state, FLOATS, FLOATS, 100), STATUS_OK);
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

/* Slots without memory only use address space. */
static void slots_get_memory_when_they_are_used(void **state)
{
	enum { LIMIT = 1 << 20, WIDE = 1 << 16 }; /* 256 GiB in total */
	statepool *p;
	int32_t slot;
	static float data[WIDE];
	assert_int_equal(statepool_new(&p, *state, WIDE, WIDE, LIMIT), STATUS_OK);
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

/* Resident bytes of a slot. */
static size_t resident(const statepool *p, int32_t slot)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = statepool_slot_bytes(p);
	char *from = (char *)(uintptr_t)statepool_data(p) + (size_t)slot * bytes;
	unsigned char *pages = malloc(bytes / page);
	size_t found = 0;
	assert_true(bytes % page == 0 && (uintptr_t)from % page == 0);
	assert_int_equal(mincore(from, bytes, pages), 0);
	for (size_t i = 0; i < bytes / page; i++)
		found += (pages[i] & 1) * page;
	free(pages);
	return found;
}

enum { CACHE = 4 << 20, PLACES = 16 }; /* floats of a slot, and number of places that a token writes */

static void write_token(statepool *p, int32_t slot)
{
	const float x = 1;
	for (size_t i = 0; i < PLACES; i++)
		assert_int_equal(statepool_write(p, slot, i * (CACHE / PLACES) * sizeof x, &x, sizeof x), STATUS_OK);
}

static void a_token_of_a_cache_uses_memory_only_for_itself(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, CACHE, PLACES, 4), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(resident(p, slot), 0);
	write_token(p, slot);
	assert_true(resident(p, slot) > 0);
	assert_true(resident(p, slot) <= (size_t)PLACES * sysconf(_SC_PAGESIZE));
	statepool_free(p);
}

static void a_new_slot_is_zero_without_being_written(void **state)
{
	statepool *p;
	int32_t slot;
	float x = 1;
	assert_int_equal(statepool_new(&p, *state, CACHE, PLACES, 4), STATUS_OK);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		assert_int_equal(statepool_clear(p, slot), STATUS_OK);
		assert_true(i > 0 || resident(p, slot) == 0);
		assert_int_equal(statepool_read(p, slot, 0, &x, sizeof x), STATUS_OK);
		assert_true(x == 0);
		write_token(p, slot);
		statepool_give(p, slot);
	}
	statepool_free(p);
}

/* Large pages change no number, for any size and place of a slot. */
static void a_long_session_gets_large_pages_in_steps(void **state)
{
	enum { ODD = (3 << 20) + 33, TOKENS = ODD / PLACES };
	statepool *p;
	int32_t slot = -1;
	float x = -1;
	int steps = 0;
	assert_int_equal(statepool_new(&p, *state, ODD, PLACES, 4), STATUS_OK);
	for (int i = 0; i < 2; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < ODD; i += 1000) {
			x = (float)i;
			assert_int_equal(statepool_write(p, k, (size_t)i * sizeof x, &x, sizeof x), STATUS_OK);
		}
	assert_false(statepool_reached(p, slot, TOKENS / 4 - 1));
	while (statepool_reached(p, slot, TOKENS / 4 + 1))
		steps++;
	assert_in_range(steps, 6, 8); /* 12 MB */
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < ODD; i += 1000) {
			assert_int_equal(statepool_read(p, k, (size_t)i * sizeof x, &x, sizeof x), STATUS_OK);
			assert_true(x == (float)i);
		}
	statepool_give(p, slot);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_false(statepool_reached(p, slot, TOKENS)); /* the slot keeps its pages */
	statepool_free(p);
}

static void a_state_that_is_written_at_once_keeps_its_pages(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, CACHE, CACHE, 4), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_false(statepool_reached(p, slot, 1 << 20));
	statepool_free(p);
}

static void without_memory_for_more_the_pool_is_unchanged(void **state)
{
	fault_backend *f = fault_backend_new(*state);
	statepool *p = (statepool *)&p;
	int32_t slot;
	for (int i = 0; i < 2; i++) { /* fails at the reservation, then at the first slots */
		fault_arm(f, FAULT_ALLOCATE, i, false);
		assert_int_equal(statepool_new(&p, &f->base, FLOATS, FLOATS, 100), STATUS_NOMEM);
		assert_null(p);
		assert_int_equal(f->memory, 0);
	}
	assert_int_equal(statepool_new(&p, &f->base, FLOATS, FLOATS, 100), STATUS_OK);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		write_slot(p, slot, (float)i);
	}
	f->full = true;
	assert_int_equal(statepool_take(p, &slot), STATUS_NOMEM);
	assert_int_equal(slot, -1);
	assert_int_equal(statepool_slots(p), 4);
	f->full = false;
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(slot, 4);
	for (int i = 0; i < 4; i++)
		assert_slot(p, i, (float)i, 1);
	statepool_free(p);
	assert_int_equal(f->memory, 0);
	free(f);
}

/* Without memory for both, plans go before slots. */
static void a_pool_of_a_device_leaves_memory_for_plans(void **state)
{
	fault_backend *f = fault_backend_new(*state);
	statepool *p;
	int32_t slot;
	f->room = 11 * FLOATS * sizeof(float);
	f->base.host_memory = false;
	assert_int_equal(statepool_new(&p, &f->base, FLOATS, FLOATS, 100), STATUS_OK);
	for (int i = 0; i < 8; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	fault_arm(f, FAULT_ALLOCATE, 0, false);
	assert_int_equal(statepool_take(p, &slot), STATUS_NOMEM);
	assert_int_equal(statepool_slots(p), 8);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(statepool_slots(p), 10);
	statepool_free(p);
	assert_int_equal(f->memory, 0);
	free(f);
}

static void a_pool_grows_to_the_last_slot_that_has_memory(void **state)
{
	enum { ROOM = 27 };
	fault_backend *f = fault_backend_new(*state);
	statepool *p;
	int32_t slot;
	f->room = ROOM * FLOATS * sizeof(float);
	assert_int_equal(statepool_new(&p, &f->base, FLOATS, FLOATS, 100), STATUS_OK);
	for (int i = 0; i < ROOM; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		assert_int_equal(slot, i);
		write_slot(p, slot, (float)i);
	}
	assert_int_equal(statepool_take(p, &slot), STATUS_NOMEM);
	assert_int_equal(statepool_slots(p), ROOM);
	f->room *= 2; /* others have released memory */
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	for (int i = 0; i < ROOM; i++)
		assert_slot(p, i, (float)i, 1);
	statepool_free(p);
	free(f);
}

/* After many sessions have ended, their memory is free, and the remaining one keeps its state. */
static void a_pool_gives_up_the_memory_of_a_crowd(void **state)
{
	enum { CROWD = 64, KEPT = 2 };
	statepool *p;
	int32_t slot;
	float x = -1;
	assert_int_equal(statepool_new(&p, *state, CACHE, PLACES, CROWD), STATUS_OK);
	for (int i = 0; i < CROWD; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		write_token(p, slot);
	}
	for (int i = 0; i < CROWD; i++)
		if (i != KEPT)
			statepool_give(p, i);
	assert_in_range(statepool_slots(p), KEPT + 1, CROWD / 8);
	assert_int_equal(resident(p, CROWD - 1), 0);
	assert_int_equal(statepool_read(p, KEPT, 0, &x, sizeof x), STATUS_OK);
	assert_true(x == 1);
	for (int i = 0; i < CROWD - 1; i++) {
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
		assert_int_equal(statepool_clear(p, slot), STATUS_OK);
		assert_int_equal(statepool_read(p, slot, 0, &x, sizeof x), STATUS_OK);
		assert_true(x == 0);
	}
	assert_int_equal(statepool_slots(p), CROWD);
	statepool_free(p);
}

/* The last slot is taken, so no memory can be given up. */
static void a_session_in_the_last_slot_keeps_the_pool(void **state)
{
	enum { CROWD = 64 };
	statepool *p;
	int32_t slot;
	float x = 0;
	assert_int_equal(statepool_new(&p, *state, CACHE, PLACES, CROWD), STATUS_OK);
	for (int i = 0; i < CROWD; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	write_token(p, slot);
	for (int i = 0; i < CROWD - 1; i++)
		statepool_give(p, i);
	assert_int_equal(statepool_slots(p), CROWD);
	assert_int_equal(statepool_read(p, slot, 0, &x, sizeof x), STATUS_OK);
	assert_true(x == 1);
	statepool_free(p);
}

static void a_full_pool_is_busy_until_a_slot_is_returned(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, FLOATS, 3), STATUS_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(statepool_take(p, &slot), STATUS_BUSY);
	assert_int_equal(slot, -1);
	statepool_give(p, 1);
	assert_int_equal(statepool_take(p, &slot), STATUS_OK);
	assert_int_equal(slot, 1);
	statepool_free(p);
}

static void a_cleared_slot_has_none_of_its_earlier_content(void **state)
{
	statepool *p;
	int32_t slot;
	assert_int_equal(statepool_new(&p, *state, FLOATS, FLOATS, 4), STATUS_OK);
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
	assert_int_equal(statepool_new(&p, *state, FLOATS, FLOATS, 4), STATUS_OK);
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
	assert_int_equal(statepool_new(&p, *state, 0, 0, 4), STATUS_INVALID);
	assert_null(p);
	assert_int_equal(statepool_new(&p, *state, 4, 4, 0), STATUS_INVALID);
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 2, INT64_MAX / 2, 4), STATUS_NOMEM);
	assert_int_equal(statepool_new(&p, *state, INT64_MAX / 8, INT64_MAX / 8, 4), STATUS_NOMEM);
	assert_int_equal(statepool_new(&p, *state, (int64_t)1 << 50, (int64_t)1 << 50, 4),
	                 STATUS_NOMEM); /* more than the address space */
	assert_null(p);
	statepool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(slots_keep_their_content_while_the_pool_grows),
	    cmocka_unit_test(slots_get_memory_when_they_are_used),
	    cmocka_unit_test(a_token_of_a_cache_uses_memory_only_for_itself),
	    cmocka_unit_test(a_new_slot_is_zero_without_being_written),
	    cmocka_unit_test(a_long_session_gets_large_pages_in_steps),
	    cmocka_unit_test(a_state_that_is_written_at_once_keeps_its_pages),
	    cmocka_unit_test(a_pool_gives_up_the_memory_of_a_crowd),
	    cmocka_unit_test(a_session_in_the_last_slot_keeps_the_pool),
	    cmocka_unit_test(without_memory_for_more_the_pool_is_unchanged),
	    cmocka_unit_test(a_pool_grows_to_the_last_slot_that_has_memory),
	    cmocka_unit_test(a_pool_of_a_device_leaves_memory_for_plans),
	    cmocka_unit_test(a_full_pool_is_busy_until_a_slot_is_returned),
	    cmocka_unit_test(a_cleared_slot_has_none_of_its_earlier_content),
	    cmocka_unit_test(a_copy_is_independent_of_its_original),
	    cmocka_unit_test(impossible_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
