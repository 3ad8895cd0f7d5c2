/* slot_with_logs.h - states as versions of the engine had them that kept logarithms in place of running sums. */
#ifndef TESTS_UNIT_SUPPORT_SLOT_WITH_LOGS_H
#define TESTS_UNIT_SUPPORT_SLOT_WITH_LOGS_H

#include <string.h>

#include "engine/model/states.h"
#include "engine/tensor/ops/forgetting.h"

/* Write a slot as it was: l [H] | what its rounding has left [H] | the rest of the state. */
static inline void slot_with_logs(const state_list *list, const float *from, float *to)
{
	for (int i = 0; i < list->count; i++) {
		const int64_t heads = list->items[i].sums, others = list->items[i].floats - 3 * heads;
		for (int64_t h = 0; h < heads; h++) {
			const double l = forgetting_log_of_sum(from + h, heads);
			to[h] = (float)l;
			to[heads + h] = (float)(l - (double)to[h]);
		}
		memcpy(to + 2 * heads, from + 3 * heads, (size_t)others * sizeof *to);
		from += 3 * heads + others;
		to += 2 * heads + others;
	}
}

#endif
