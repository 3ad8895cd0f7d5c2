/* number_range.h - the JSON numbers between two bounds, or the multiples of a number, as an automaton.
 *
 * Bounds are compared as decimals, digit by digit, so they are exact. Numbers are written without an exponent, zero
 * without a sign. Integers have up to 16 digits, or as many as their bounds, up to 32. Other numbers have up to 15
 * digits, so that no two of them are the same double. Multiples have as many digits after the point as the divisor. */
#ifndef ENGINE_TEXT_GRAMMAR_NUMBER_RANGE_H
#define ENGINE_TEXT_GRAMMAR_NUMBER_RANGE_H

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/text/grammar/automaton.h"

/* 0.d1d2d3… × 10^point; no digit is 0 at either end, none at all: zero. */
typedef struct decimal {
	bool negative;
	int n, point;
	signed char digits[24];
} decimal;

typedef struct number_range {
	bool integer, has_min, has_max, has_divisor;
	bool above_min, below_max; /* exclusive */
	decimal min, max, divisor;
} number_range;

/* The shortest decimal that reads as this JSON number. */
decimal decimal_of(const json_t *number);
/* Less than 0, 0, greater than 0. */
int decimal_compare(const decimal *a, const decimal *b);

/* The divisor is greater than 0. STATUS_NOMEM; STATUS_TOO_LARGE with words in err, without a parameter. */
status number_range_automaton(automaton **out, const number_range *r, int64_t *budget, error *err);

#endif
