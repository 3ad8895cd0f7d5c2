/* The size of one recurrent round: see additive_stream.h for what the floats are. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/additive_stream.h"

int64_t additive_state_floats(int64_t d, int64_t heads, int64_t window)
{
	if (window == 1)
		return 0;
	int64_t aggregates = stream_is_global(window) ? 1 : 2 + 2 * stream_block(window);
	return aggregates * stream_width(d, heads);
}
