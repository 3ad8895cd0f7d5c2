/* sample.h - sample a token from a row of logits, in arithmetic that does not depend on the order of operations.
 *
 * 1. penalties and bias (Keskar et al. 2019; OpenAI's), for the tokens that `adjust` names:
 *      x = x > 0 ? x / repetition : x · repetition;  x -= presence + frequency · count;  x += bias
 *    (the first two where count > 0); then, where the row has a mask, -inf for the tokens that it leaves out
 * 2. temperature 0: the largest finite logit, the lowest id on ties.
 * 3. weights: w_i = round(2^SAMPLE_BITS · e^{-t_i}), t_i = (max - x_i) / temperature, a whole number; 0 where x_i is
 * not finite. max is the largest finite logit; a token without weight is out.
 * 4. top-k, then top-p of what is left: the first tokens by rank (larger logit first, then lower id) up to
 *    the one at which k are counted, or at which their weights reach ⌈top_p · mass⌉ (top_p as the next multiple of
 *    2^-24); at least the first.
 * 5. min-p: weights below min_p · 2^SAMPLE_BITS are out. top-a: weights below top_a · 2^SAMPLE_BITS ·
 *    pmax^(top_a_power - 1) are out, pmax the first token's share of the mass that step 4 leaves; these are the
 *    probabilities below top_a · pmax^top_a_power. The first token stays.
 * 6. one draw: among those left, in the order of ids, the first at which the sum of weights exceeds
 *    ⌊u · mass / 2^24⌋, u the upper 24 bits of word 0 of philox(seed, PHILOX_STREAM_SAMPLE, 0, position).
 *
 * Sums of integers are the same in any order. A token's weight is a difference and a quotient, which IEEE 754 rounds in
 * one way only, and then integers. (In floats every product followed by a sum would depend on whether the compiler
 * fuses them; where it matters below, fmaf says so.) So the token is a function of the logits' bits and the setting: on
 * every backend, in any batch. A vocabulary of 2^24 tokens does not overflow 64 bits. Tokens 28 nats below the best
 * weigh 0.
 *
 * All filters see the probabilities at the request's temperature, and what is left keeps its proportions.
 * (x-transformers filters before the temperature, and its top_a makes what is left equally likely:
 * tests/golden/logit_filters.h.)
 *
 * The functions here are that arithmetic, for C and for device code. */
#ifndef ENGINE_TENSOR_OPS_SAMPLE_H
#define ENGINE_TENSOR_OPS_SAMPLE_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/device_function.h"

enum { SAMPLE_BITS = 39, SAMPLE_MAX_VOCAB = 1 << 24 };

/* One row's setting, 32-bit words: the fields of a request, under their names, and what the caller adds. */
typedef struct sample_setting {
	float temperature, top_p, min_p;
	float top_a, top_a_power; /* top_a 0: off */
	int32_t top_k;            /* 0: off */
	float repetition_penalty, presence_penalty, frequency_penalty;
	uint32_t seed_low, seed_high;
	uint32_t position_low, position_high;
	int32_t first, count; /* rows of `adjust` for this row */
	int32_t masked;       /* 1: the next sample_mask_rows rows of `adjust` after them are a mask */
	int32_t active;       /* 0: this row is not sampled; its token is -1 */
} sample_setting;

enum { SAMPLE_WORDS = sizeof(sample_setting) / sizeof(int32_t) };

/* Sorted by token, without duplicates; entries outside the vocabulary are ignored. */
typedef struct sample_adjust {
	int32_t token;
	int32_t count; /* number of occurrences so far */
	float bias;
} sample_adjust;

/* A mask is a bit set, with token i in word i / 32, stored in rows of `adjust`: this many for a vocabulary. */
enum { SAMPLE_MASK_ROW = 32 * sizeof(sample_adjust) / sizeof(uint32_t) };
DEVICE_FUNCTION int32_t sample_mask_rows(int64_t vocab)
{
	return (int32_t)((vocab + SAMPLE_MASK_ROW - 1) / SAMPLE_MASK_ROW);
}

/* The mask of a row, or NULL. */
DEVICE_FUNCTION const uint32_t *sample_mask(const sample_setting *s, const sample_adjust *adjust)
{
	return s->masked ? (const uint32_t *)(adjust + s->first + s->count) : NULL;
}

DEVICE_FUNCTION bool sample_is_left(const uint32_t *mask, int64_t token)
{
	return !mask || (mask[token >> 5] >> (token & 31) & 1);
}

DEVICE_FUNCTION bool sample_finite(float x)
{
	return x >= -FLT_MAX && x <= FLT_MAX;
}

/* Step 1 for one logit. */
DEVICE_FUNCTION float sample_adjusted(float x, const sample_setting *s, const sample_adjust *a)
{
	if (a->count > 0) {
		x = x > 0 ? x / s->repetition_penalty : fmaf(x, s->repetition_penalty, 0.0f);
		x -= fmaf(s->frequency_penalty, (float)a->count, s->presence_penalty);
	}
	return x + a->bias;
}

/* t of step 3 for a temperature above 0, from 0 to 31. A value that is not finite gets 31, which has weight 0. t never
 * decreases when x does. */
enum { SAMPLE_FAR = 31 };
DEVICE_FUNCTION float sample_distance(float x, float max, float temperature)
{
	float t = (max - x) / temperature;
	bool near = (t >= 0) & (t < SAMPLE_FAR); /* without a branch, so that loops become vector code */
	return near ? t : (float)SAMPLE_FAR;
}

/* a · b / 2^32, rounded down, for a and b below 2^32. */
DEVICE_FUNCTION uint64_t sample_product(uint64_t a, uint64_t b)
{
	return (uint64_t)(uint32_t)a * (uint32_t)b >> 32;
}

/* 2^SAMPLE_BITS · 2^-f, for f in units of 2^-32 and below one: exactly 2^SAMPLE_BITS for f = 0, elsewhere within 2e-8
 * of it. 2^-f = 1 - f·h(f), h a minimax polynomial (Lawson's iteration) whose signs alternate; h in units of 2^-32. */
DEVICE_FUNCTION uint64_t sample_half(uint64_t f)
{
	uint64_t h = 5475002 - sample_product(f, 468251);
	h = 41142264 - sample_product(f, h);
	h = 238330987 - sample_product(f, h);
	h = 1031755804 - sample_product(f, h);
	h = 2977043973 - sample_product(f, h);
	return ((uint64_t)1 << SAMPLE_BITS) - (sample_product(f, h) << (SAMPLE_BITS - 32));
}

/* round(2^SAMPLE_BITS · e^-t): exactly 2^SAMPLE_BITS for t = 0, elsewhere within 2e-8 of it or half of one.
 * e^-t = 2^-n · 2^-f with a whole n and 0 <= f < 1. */
DEVICE_FUNCTION uint64_t sample_weight(float t)
{
	const uint64_t log2e = 1549082005; /* in units of 2^-30 */
	uint64_t z = (uint32_t)(int32_t)(t * 0x1p26f) * log2e, n = z >> 56, f = z >> 24 & 0xffffffff;
	return ((sample_half(f) << 1 >> n) + 1) >> 1; /* rounded to the nearest, a half up */
}

/* ⌊part · mass / 2^24⌋ for part <= 2^24. */
DEVICE_FUNCTION uint64_t sample_share(uint32_t part, uint64_t mass)
{
	uint64_t high = part * (mass >> 32), low = part * (mass & 0xffffffff);
	return (high << 8) + (low >> 24);
}

/* The mass that top-p requires: rounded up. */
DEVICE_FUNCTION uint64_t sample_goal(float top_p, uint64_t mass)
{
	float scaled = top_p * 0x1p24f;
	uint32_t part = (uint32_t)scaled;
	part += (float)part < scaled;
	return sample_share(part, mass) + ((part * (mass & 0xffffff) & 0xffffff) != 0);
}

/* The least weight that min-p keeps; 1 where it is off. */
DEVICE_FUNCTION uint64_t sample_least(float min_p)
{
	float scaled = min_p * 0x1p39f;
	uint64_t least = (uint64_t)scaled;
	least += (float)least < scaled;
	return least > 0 ? least : 1;
}

/* log2 of a whole number above 0, a multiple of 2^-32 within 2^-31 of it: every squaring of the mantissa gives one more
 * bit. */
DEVICE_FUNCTION double sample_log2(uint64_t x)
{
	int exponent;
	double mantissa = 2 * frexp((double)x, &exponent), log = exponent - 1;
	for (double bit = 0.5; bit >= 0x1p-32; bit *= 0.5) {
		mantissa *= mantissa;
		if (mantissa >= 2) {
			mantissa *= 0.5;
			log += bit;
		}
	}
	return log;
}

/* The least weight that top-a keeps, for tokens with this mass: 2^SAMPLE_BITS · top_a · pmax^(power - 1), with pmax =
 * 2^SAMPLE_BITS / mass. Rounded up, and at most the likeliest token's weight. With power 1 it equals min-p's. Products
 * are followed only by quotients by powers of 2, which no compiler fuses. */
DEVICE_FUNCTION uint64_t sample_least_a(float top_a, float power, uint64_t mass)
{
	const uint64_t most = (uint64_t)1 << SAMPLE_BITS;
	const double exponent = (sample_log2(mass) - SAMPLE_BITS) * (((double)power - 1) * 0x1p32);
	const int64_t z = (int64_t)floor(exponent), n = z >> 32, f = z & 0xffffffff; /* pmax^(power-1) = 2^-n · 2^-f */
	const double least = ceil(ldexp((double)top_a * (double)sample_half((uint64_t)f), -(int)n));
	return least < (double)most ? (uint64_t)least : most;
}

/* The least weight that step 5 keeps. mass: the mass after step 4; read for top-a only. */
DEVICE_FUNCTION uint64_t sample_bottom(const sample_setting *s, uint64_t mass)
{
	const uint64_t least = sample_least(s->min_p);
	const uint64_t least_a = s->top_a > 0 ? sample_least_a(s->top_a, s->top_a_power, mass) : 0;
	return least > least_a ? least : least_a;
}

DEVICE_FUNCTION uint64_t sample_seed(const sample_setting *s)
{
	return (uint64_t)s->seed_high << 32 | s->seed_low;
}

DEVICE_FUNCTION uint64_t sample_position(const sample_setting *s)
{
	return (uint64_t)s->position_high << 32 | s->position_low;
}

#endif
