/* softmax_stream.h - the state of one layer of softmax attention in a slot.
 *
 * softmax_stream keeps a ring of the keys and values of the last `window` tokens, in one of three formats. Token t is
 * at place t mod window; `there` is 1, or 0 for a masked token. In f32:
 *
 *    | key [window, G·h] | value [window, G·w] | there [window] |
 *
 * At position t the places of tokens stream_oldest(t) … t are read, so contents from before position 0 are never read.
 *
 * A ring of bf16 has the upper halves of floats, rounded to nearest even, two to a float. The keys of a token and its
 * values each fill whole floats, the last one with a zero if their number is odd:
 *
 *    | key bf16 [window, ⌈G·h / 2⌉ · 2] | value bf16 [window, ⌈G·w / 2⌉ · 2] | there [window] |
 *
 * A ring of codes has 8-bit codes (quantize.h) in place of keys and values, four to a float; the codes of a token's
 * keys and of its values each fill whole floats. After them comes the step of the token's keys, -1 for a masked token:
 *
 *    | key i8 [window, ⌈G·h / 4⌉ · 4] | value i8 [window, ⌈G·w / 4⌉ · 4] | step [window] |
 *
 * source_store and source_attention use the keys and values of a source's tokens, and their number:
 *
 *    | key [capacity, G·h] | value [capacity, G·w] | count | */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H
#define ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H

#include <stdbool.h>

#include "engine/tensor/ops/stream_window.h"

/* The values are the numbers of channels that fill a float. */
typedef enum softmax_format { SOFTMAX_F32 = 1, SOFTMAX_BF16 = 2, SOFTMAX_CODES = 4 } softmax_format;

/* The format of a ring with steps of keys (`codes`), or else with the parameter bf16. */
DEVICE_FUNCTION softmax_format softmax_format_of(bool codes, bool bf16)
{
	return codes ? SOFTMAX_CODES : bf16 ? SOFTMAX_BF16 : SOFTMAX_F32;
}

/* Floats of a token's keys and of its values in the slot, and the number of places. */
typedef struct softmax_store {
	int64_t key_width, value_width, places;
	softmax_format format;
} softmax_store;

/* Number of floats that hold this many channels. */
DEVICE_FUNCTION int64_t softmax_row_floats(int64_t channels, softmax_format format)
{
	return (channels + (int64_t)format - 1) / (int64_t)format;
}

/* A store for this many channels of keys and values. */
DEVICE_FUNCTION softmax_store softmax_store_of(int64_t keys, int64_t values, int64_t places, softmax_format format)
{
	const softmax_store s = {softmax_row_floats(keys, format), softmax_row_floats(values, format), places, format};
	return s;
}

/* Floats of a ring in a slot. */
DEVICE_FUNCTION int64_t softmax_ring_floats(softmax_store s)
{
	return (s.key_width + s.value_width + 1) * s.places;
}

/* Maximum channels of codes whose products sum to 32 bits. */
enum { SOFTMAX_MOST_CODES = 1 << 16 };

/* Step stored for a masked token in a ring of codes. */
#define SOFTMAX_MASKED_STEP (-1.0f)
DEVICE_FUNCTION bool softmax_step_is_there(float step)
{
	return !(step < 0.0f); /* true for NaN too, the step of keys that are not finite */
}

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

/* The count in a slot, at most the number of places: an imported session may hold any number. */
DEVICE_FUNCTION int64_t source_count(softmax_store s, const float *state)
{
	const float count = state[source_count_at(s)];
	return count >= 1.0f ? (count < (float)s.places ? (int64_t)count : s.places) : 0;
}

#endif
