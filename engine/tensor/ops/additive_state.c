/* The size of one recurrent round, and the state of one token: see additive_stream.h for what the floats are. */
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/additive_stream.h"

int64_t additive_state_floats(int64_t d, int64_t heads, int64_t window)
{
	if (window == 1)
		return 0;
	int64_t aggregates = stream_is_global(window) ? 1 : 2 + 2 * stream_block(window);
	return aggregates * stream_width(d, heads);
}

void additive_state_of_token(const float *score, const float *channels, int64_t d, int64_t heads, float *state)
{
	memcpy(state, score, (size_t)heads * sizeof *state);
	for (int64_t h = 0; h < heads; h++)
		state[heads + h] = 1;
	memcpy(state + 2 * heads, channels, (size_t)d * sizeof *state);
}
