/* The ranges of a slot that tokens change, compared with a check of every float. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "engine/model/states.h"

enum { FLOATS = 7 + 5 * 6 + 3 * 2 + 4 };

static void mark_ring(bool *changed, int64_t places, const int64_t widths[3], int64_t token)
{
	for (int k = 0; k < 3; changed += places * widths[k++])
		for (int64_t i = 0; i < widths[k]; i++)
			changed[token % places * widths[k] + i] = true;
}

static const int64_t widths[3] = {2, 3, 1}, thin[3] = {2, 0, 0}; /* entries of a ring for each token */

static void add_sums_and_ring(state_list *list)
{
	state_list_add(list, STATE_RECURRENT, 7, "sums");
	state_list_add(list, STATE_CACHE, 30, "ring");
	state_list_set_ring(list, 5, 2, 3, 1);
}

static void tokens_change_their_ring_entries_and_all_of_other_states(void **state)
{
	(void)state;
	state_list list = {0};
	add_sums_and_ring(&list);
	state_list_add(&list, STATE_CACHE, 6, "thin");
	state_list_set_ring(&list, 3, 2, 0, 0);
	state_list_add(&list, STATE_CACHE, 4, "other");
	for (int64_t gap = 0; gap < 12; gap += 3)
		for (int64_t from = 0; from < 12; from++)
			for (int64_t to = from + 1; to < from + 8; to++) {
				state_range ranges[4 * STATE_RANGES];
				bool want[FLOATS] = {false};
				memset(want, true, 7);
				memset(want + FLOATS - 4, true, 4);
				for (int64_t t = from; t < to; t++) {
					mark_ring(want + 7, 5, widths, t);
					mark_ring(want + 37, 3, thin, t);
				}
				int n = state_list_changes(&list, from, to, gap, ranges);
				int64_t at = 0;
				assert_true(n >= 1 && n <= 4 * STATE_RANGES);
				for (int i = 0; i < n; at = ranges[i].first + ranges[i].count, i++) {
					assert_true(i == 0 || ranges[i].first - at > gap);
					for (int64_t k = at; k < ranges[i].first; k++)
						assert_false(want[k]);
					int64_t unchanged = 0; /* length of a gap between two changes in one range */
					for (int64_t k = 0; k < ranges[i].count; k++) {
						unchanged = want[ranges[i].first + k] ? 0 : unchanged + 1;
						assert_true(unchanged <= gap);
					}
				}
				assert_int_equal(at, FLOATS);
			}
	state_list_free(&list);
}

/* Places by token are those of the longest ring while it has one for each token. */
static void the_floats_that_tokens_have_written_are_listed_in_order(void **state)
{
	(void)state;
	state_list list = {0};
	add_sums_and_ring(&list);
	state_list_add(&list, STATE_SOURCE, 4, "source");
	state_list_add(&list, STATE_CACHE, 6, "thin");
	state_list_set_ring(&list, 3, 2, 0, 0);
	for (int64_t tokens = 0; tokens < 12; tokens++)
		for (int source = 0; source < 2; source++) {
			bool want[FLOATS] = {false}, listed[FLOATS] = {false};
			state_piece pieces[4 * STATE_RING_TENSORS];
			int64_t end = 0;
			int by_token = 0;
			memset(want, tokens > 0, 7);
			memset(want + 37, source, 4);
			for (int64_t t = 0; t < tokens; t++) {
				mark_ring(want + 7, 5, widths, t);
				mark_ring(want + 41, 3, thin, t);
			}
			const int n = state_list_pieces(&list, tokens, source, pieces);
			for (int i = 0; i < n; i++) {
				assert_true(pieces[i].first >= end && pieces[i].width * pieces[i].count > 0);
				end = pieces[i].first + pieces[i].width * pieces[i].count;
				memset(listed + pieces[i].first, true, (size_t)(end - pieces[i].first));
				if (!pieces[i].by_token)
					continue;
				assert_int_equal(pieces[i].width, widths[by_token++]);
				assert_int_equal(pieces[i].count, tokens);
			}
			assert_memory_equal(listed, want, sizeof want);
			assert_int_equal(by_token, tokens > 0 && tokens <= 5 ? 3 : 0);
		}
	state_list_free(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(tokens_change_their_ring_entries_and_all_of_other_states),
	    cmocka_unit_test(the_floats_that_tokens_have_written_are_listed_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
