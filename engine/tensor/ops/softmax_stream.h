/* softmax_stream.h - what one layer of softmax attention remembers: a ring of the keys and values of the last
 * `window` tokens. Token t lies at place t mod window; `there` is 1, or 0 for a token that was masked.
 *
 *   | key [window, D] | value [window, D] | there [window] |
 *
 * At position t the places of tokens max(0, t - window + 1) … t are read, so what the ring held before
 * position 0 is never seen. */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H
#define ENGINE_TENSOR_OPS_SOFTMAX_STREAM_H

#include <stdint.h>

static inline int64_t softmax_key(int64_t d, int64_t place)
{
	return place * d;
}

static inline int64_t softmax_value(int64_t d, int64_t window, int64_t place)
{
	return (window + place) * d;
}

static inline int64_t softmax_there(int64_t d, int64_t window, int64_t place)
{
	return 2 * window * d + place;
}

#endif
