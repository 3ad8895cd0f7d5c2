/* additive_stream.h - the state of one recurrent round of additive attention.
 *
 * An aggregate of tokens is (m, z, s) per head and represents e^m·z and e^m·s: m is the largest score in it, z = Σ
 * e^{a_j - m}, s = Σ e^{a_j - m} x_j. A token is (a, 1, x). The empty aggregate, and so a masked token, is
 * (STREAM_EMPTY, 0, 0). Merging two is exact in m (it is always one of the scores, so a million equal scores of 1e4
 * still count as a million) and never meets inf - inf:
 *
 *   m = max(m1, m2),  z = e^{m1-m} z1 + e^{m2-m} z2,  s = e^{m1-m} s1 + e^{m2-m} s2
 *   g = s / z,  M = m + log z;   z = 0 (empty):  g = 0,  M = -inf
 *
 * One aggregate in memory, all heads together, `stream_width` floats:
 *
 *   | m [H] | z [H] | s [D] |
 *
 * Window k: positions come in blocks of b = ⌊k/2⌋. At position t = j·b + p:
 *
 *   block      j-2              j-1                j
 *           |......SSSSS|ttttttttSSSSSS|ttttttttttt·····|
 *                  ^        turned <-- |             ^ now, offset p
 *                  |        |<----------- Q -------->|
 *                  window's first token|<---- P ---->|
 *
 *   1. Turn one more token of block j-1 into a suffix aggregate, right to left:
 *      slot b-1-p becomes itself ⊕ slot b-p (the last slot is its own suffix).
 *   2. At p = 0: Q := P, P := empty. Then P := P ⊕ token, Q := Q ⊕ token.
 *   3. g = (suffix of block j-2 from index f) ⊕ Q, where f = p + 1 for even k and p for
 *      odd k; f = b is empty. The suffixes of block j-2 were all turned during block j-1.
 *   4. Token -> slot p of block j, overwriting a suffix of block j-2 that is no
 *      longer wanted: two blocks of slots are enough, block j in half j mod 2.
 *
 * Blocks before 0 are empty. Every token therefore costs at most four merges, without spikes. The phases follow from
 * the position alone, without a stored pointer.
 *
 *   k >= 2:  | P | Q | b slots of even blocks | b slots of odd blocks |
 *   global:  | P |                              P := P ⊕ token, g from P
 *   k = 1:   nothing                            g = x, M = a
 *
 * At position 0 the whole state is first set to zeros, then P and Q to empty. A slot never exposes an earlier session,
 * and the floats depend only on the tokens read. */
#ifndef ENGINE_TENSOR_OPS_ADDITIVE_STREAM_H
#define ENGINE_TENSOR_OPS_ADDITIVE_STREAM_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

/* m of the empty aggregate: below every score, and finite, so that a difference of two
 * maxima is never NaN. */
#define STREAM_EMPTY (-FLT_MAX)

/* Positions are 32 bits, so a longer window can never lose a token: it is global. */
static inline bool stream_is_global(int64_t window)
{
	return window <= 0 || window > INT32_MAX;
}

/* b, the tokens in a block; 0 when there are no blocks (global, k = 1). */
static inline int64_t stream_block(int64_t window)
{
	return stream_is_global(window) ? 0 : window / 2;
}

/* Floats of one aggregate. */
static inline int64_t stream_width(int64_t d, int64_t heads)
{
	return d + 2 * heads;
}

/* Float offset of P, of Q, and of slot `index` of block `block`. */
enum { STREAM_PREFIX = 0 };

static inline int64_t stream_running(int64_t width)
{
	return width;
}

static inline int64_t stream_slot(int64_t width, int64_t window, int64_t block, int64_t index)
{
	return (2 + (block % 2) * stream_block(window) + index) * width;
}

/* Index of the first suffix of block j-2 that belongs to the window at offset p; b: none. */
static inline int64_t stream_first(int64_t window, int64_t p)
{
	return window % 2 ? p : p + 1;
}

/* Write the state of a global round that has read one token: score [heads], channels [d] -> [additive_state_floats] */
void additive_state_of_token(const float *score, const float *channels, int64_t d, int64_t heads, float *state);

#endif
