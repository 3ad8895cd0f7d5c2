/* hide_keys: the number of hidden keys, and the keys that are never hidden, for the reference and the fast kernels. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"

enum { ROWS = 3, KEYS = 50, DRAWS = 200 };

/* mask: NULL, or [ROWS, KEYS]. */
static void hide(backend *b, hide_keys_params p, int32_t step, const int32_t *mask, int32_t *out)
{
	graph *g = graph_new();
	const int32_t random[] = {11, 12, step, 0};
	value rng = graph_input(g, "rng", DTYPE_I32, SHAPE1(4));
	value given = mask ? graph_input(g, "mask", DTYPE_I32, SHAPE2(ROWS, KEYS)) : VALUE_NONE;
	value hidden = op_hide_keys(g, rng, given, p);
	plan *made;
	graph_output(g, hidden, "hidden");
	assert_int_equal(plan_new(&made, g, b, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_write(made, rng, random), STATUS_OK);
	if (mask)
		assert_int_equal(plan_write(made, given, mask), STATUS_OK);
	assert_int_equal(plan_run(made), STATUS_OK);
	assert_int_equal(plan_read(made, hidden, out), STATUS_OK);
	plan_free(made);
}

static int seen(const int32_t *row)
{
	int n = 0;
	for (int i = 0; i < KEYS; i++)
		n += row[i];
	return n;
}

static void the_share_is_hidden_in_each_row_and_never_a_key_before_the_first(void **state)
{
	const backends *all = *state;
	int32_t out[ROWS * KEYS], again[ROWS * KEYS], times[KEYS] = {0};
	hide_keys_params p = {.batch = ROWS, .length = KEYS, .first = 1, .beyond = 1, .p = 0.15, .stream = 5};
	for (int32_t step = 0; step < DRAWS; step++) {
		for (int k = 0; k < 2; k++) {
			hide(all->each[k], p, step, NULL, k ? again : out);
			for (int b = 0; b < ROWS; b++) {
				const int32_t *row = (k ? again : out) + b * KEYS;
				assert_int_equal(seen(row), KEYS - 7); /* ⌊51 · 0.15⌋ = 7 */
				assert_int_equal(row[0], 1);
			}
		}
		assert_memory_equal(out, again, sizeof out);
		for (int i = 0; i < ROWS * KEYS; i++)
			times[i % KEYS] += !out[i];
	}
	/* Each of 49 keys is hidden in 600 rows of 7 of 49: mean 86, standard deviation 8.6. */
	for (int i = 1; i < KEYS; i++)
		assert_in_range(times[i], 43, 129);
}

static void masked_keys_are_hidden_and_one_key_is_always_visible(void **state)
{
	const backends *all = *state;
	int32_t mask[ROWS * KEYS], out[ROWS * KEYS];
	hide_keys_params p = {.batch = ROWS, .length = KEYS, .p = 0.4, .stream = 5};
	for (int i = 0; i < ROWS * KEYS; i++)
		mask[i] = i % KEYS < (int[]){KEYS, 21, 1}[i / KEYS];
	hide(all->each[1], p, 3, mask, out);
	for (int i = 0; i < ROWS * KEYS; i++)
		assert_true(out[i] <= mask[i]);
	assert_int_equal(seen(out), KEYS - 20);
	assert_int_equal(seen(out + KEYS), 21 - 8);
	assert_int_equal(seen(out + 2 * KEYS), 1);
	p.p = 0.999;
	hide(all->each[1], p, 3, NULL, out);
	for (int b = 0; b < ROWS; b++)
		assert_int_equal(seen(out + b * KEYS), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_share_is_hidden_in_each_row_and_never_a_key_before_the_first),
	    cmocka_unit_test(masked_keys_are_hidden_and_one_key_is_always_visible),
	};
	return cmocka_run_group_tests_name("hide_keys", tests, open_backends, close_backends);
}
