/* softmax_stream.h - what one layer of softmax attention keeps in a slot.
 *
 * What it remembers (softmax_stream): a ring of the keys and values of the last `window` tokens. Token t lies at place
 * t mod window; `there` is 1, or 0 for a token that was masked.
 *
 *   | key [window, G·h] | value [window, G·w] | there [window] |
 *
 * At position t the places of tokens stream_oldest(t) … t are read, so what the ring held before
 * position 0 is never seen.
 *
 * What it reads from (source_store, source_attention): the keys and values of a source's tokens, and how many there
 * are.
 *
 *   | key [capacity, G·h] | value [capacity, G·w] | count |
 */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H
#define ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H

#include "engine/tensor/ops/stream_window.h"

/* Floats of a token's keys and of its values, and the number of places. */
typedef struct softmax_store {
	int64_t key_width, value_width, places;
} softmax_store;

DEVICE_FUNCTION int64_t softmax_key(softmax_store s, int64_t place)
{
	return place * s.key_width;
}

DEVICE_FUNCTION int64_t softmax_value(softmax_store s, int64_t place)
{
	return s.places * s.key_width + place * s.value_width;
}

DEVICE_FUNCTION int64_t softmax_there(softmax_store s, int64_t place)
{
	return s.places * (s.key_width + s.value_width) + place;
}

DEVICE_FUNCTION int64_t source_count_at(softmax_store s)
{
	return softmax_there(s, 0);
}

/* The count that a slot holds. A session from elsewhere may hold any number: never more than there are places. */
DEVICE_FUNCTION int64_t source_count(softmax_store s, const float *state)
{
	const float count = state[source_count_at(s)];
	return count >= 1.0f ? (count < (float)s.places ? (int64_t)count : s.places) : 0;
}

#endif
