#include "engine/text/grammar/number_range.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INTEGER_DIGITS = 16, NUMBER_DIGITS = 15, MAX_DIGITS = 32, MAX_DIVISOR_DIGITS = 15 };

/* --- decimals ------------------------------------------------------------------------------------- */

static void print_shortest(char *out, size_t size, double x)
{
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(out, size, "%.*e", digits - 1, x);
		if (strtod(out, NULL) == x)
			return;
	}
}

decimal decimal_of(const json_t *number)
{
	char text[64];
	decimal d = {0};
	int point = 0;
	bool after_point = false;
	const char *p = text;
	if (json_is_integer(number))
		snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
	else
		print_shortest(text, sizeof text, json_real_value(number));
	d.negative = *p == '-';
	for (p += d.negative; *p && *p != 'e'; p++) {
		after_point |= *p == '.';
		if (*p == '.' || (d.n == 0 && *p == '0')) {
			point -= after_point && *p == '0';
			continue;
		}
		d.digits[d.n++] = (signed char)(*p - '0');
		point += !after_point;
	}
	d.point = point + (*p == 'e' ? (int)strtol(p + 1, NULL, 10) : 0);
	while (d.n > 0 && d.digits[d.n - 1] == 0)
		d.n--;
	if (d.n == 0)
		d = (decimal){0};
	return d;
}

static int compare_magnitude(const decimal *a, const decimal *b)
{
	if (a->n == 0 || b->n == 0)
		return (a->n > 0) - (b->n > 0);
	if (a->point != b->point)
		return a->point < b->point ? -1 : 1;
	for (int i = 0; i < a->n && i < b->n; i++)
		if (a->digits[i] != b->digits[i])
			return a->digits[i] < b->digits[i] ? -1 : 1;
	return (a->n > b->n) - (a->n < b->n);
}

int decimal_compare(const decimal *a, const decimal *b)
{
	if (a->negative != b->negative)
		return a->negative ? -1 : 1;
	return a->negative ? compare_magnitude(b, a) : compare_magnitude(a, b);
}

/* Digits before the point, at least the 0. */
static int whole_digits(const decimal *d)
{
	return d->n > 0 && d->point > 0 ? d->point : 1;
}

static int digit_at(const decimal *d, int i)
{
	return i >= 0 && i < d->n ? d->digits[i] : 0;
}

static int whole_digit(const decimal *d, int i)
{
	return d->point > 0 ? digit_at(d, i) : 0;
}

/* --- one sign -------------------------------------------------------------------------------------- */

/* Magnitudes from low to high. */
typedef struct span {
	bool has_low, has_high, above_low, below_high, none;
	decimal low, high;
} span;

typedef enum place { BEGIN, AFTER_SIGN, ZERO, WHOLE, POINT, FRACTION } place;

typedef struct at {
	int64_t remainder;       /* the digits read, modulo the divisor */
	int32_t place, negative; /* without padding: states are compared byte by byte */
	int32_t whole, fraction; /* digits */
	int32_t low, high;       /* order of the digits read and those of the bound: -1, 0, 1 */
} at;

typedef struct maker {
	span spans[2];                /* magnitudes of the numbers that are not negative, and of those that are */
	int max_digits, max_fraction; /* before and after the point together; after it */
	bool without_bounds;
	int64_t
	    divisor; /* applies to the digits, max_fraction of them after the point; 1: every number is a multiple */
	automaton_builder *builder;
} maker;

static int sign_of(int x)
{
	return (x > 0) - (x < 0);
}

/* The order when the digits before the point have ended. */
static int end_whole(int order, int digits, const decimal *bound)
{
	const int more = digits - whole_digits(bound);
	return more != 0 ? sign_of(more) : order;
}

static int end_fraction(int order, int digits, const decimal *bound)
{
	return order == 0 && digits < bound->n - bound->point && bound->n > 0 ? -1 : order;
}

static int compare_digit(int order, int digit, int other)
{
	return order != 0 ? order : sign_of(digit - other);
}

static bool is_multiple(const maker *m, const at *x)
{
	int64_t rest = x->remainder;
	for (int i = x->fraction; i < m->max_fraction && m->divisor > 1; i++)
		rest = rest * 10 % m->divisor;
	return m->divisor == 1 || rest == 0;
}

static bool accepts(const maker *m, const at *x)
{
	const span *s = &m->spans[x->negative];
	int low = x->low, high = x->high;
	if (x->place != ZERO && x->place != WHOLE && x->place != FRACTION)
		return false;
	if (x->place != FRACTION) {
		low = end_whole(low, x->whole, &s->low);
		high = end_whole(high, x->whole, &s->high);
	}
	low = end_fraction(low, x->fraction, &s->low);
	high = end_fraction(high, x->fraction, &s->high);
	return (!s->has_low || low > 0 || (low == 0 && !s->above_low)) &&
	       (!s->has_high || high < 0 || (high == 0 && !s->below_high)) && is_multiple(m, x);
}

/* True if no digits that may follow bring the number below its bound. */
static bool is_beyond(const span *s, const at *x)
{
	const int more = x->whole - whole_digits(&s->high);
	return s->has_high &&
	       (x->place == FRACTION || x->place == POINT ? x->high > 0 : more > 0 || (more == 0 && x->high > 0));
}

/* The number of a state; -1: no number begins like this. What makes no difference from here on is left out of it. */
static int32_t number_range_add(const maker *m, at x)
{
	const span *s = &m->spans[x.negative];
	const bool decided = (x.place == FRACTION || x.place == POINT) && x.low != 0 && x.high != 0;
	if (is_beyond(s, &x) || (decided && s->has_low && x.low < 0))
		return -1;
	x.remainder = m->divisor > 1 ? x.remainder % m->divisor : 0;
	if (decided) {
		x.fraction += m->max_fraction < m->max_digits ? 0 : x.whole; /* only the sum counts */
		x.whole = 0;
	}
	if (x.negative && x.place == WHOLE && m->without_bounds)
		x.negative = 0;
	return automaton_builder_state(m->builder, &x, sizeof x);
}

static int32_t after_digit(const maker *m, at x, int digit)
{
	const span *s = &m->spans[x.negative];
	x.remainder = x.remainder * 10 + digit;
	if (x.place == POINT || x.place == FRACTION) {
		x.low = compare_digit(x.low, digit, digit_at(&s->low, s->low.point + x.fraction));
		x.high = compare_digit(x.high, digit, digit_at(&s->high, s->high.point + x.fraction));
		x.place = FRACTION;
		x.fraction++;
	} else {
		x.low = compare_digit(x.low, digit, whole_digit(&s->low, x.whole));
		x.high = compare_digit(x.high, digit, whole_digit(&s->high, x.whole));
		x.place = x.whole == 0 && digit == 0 ? ZERO : WHOLE;
		x.whole++;
	}
	return number_range_add(m, x);
}

static int32_t after_point(const maker *m, at x)
{
	const span *s = &m->spans[x.negative];
	x.low = end_whole(x.low, x.whole, &s->low);
	x.high = end_whole(x.high, x.whole, &s->high);
	x.place = POINT;
	return number_range_add(m, x);
}

static void add_edges(const maker *m, const at *x)
{
	const bool whole = x->place == BEGIN || x->place == AFTER_SIGN || x->place == WHOLE;
	const bool fraction = x->place == POINT || x->place == FRACTION;
	const int kept = m->divisor > 1 ? m->max_fraction : x->fraction; /* digits after the point */
	const bool room = fraction ? x->whole + x->fraction < m->max_digits : x->whole + kept < m->max_digits;
	if (x->place == BEGIN && !m->spans[1].none)
		automaton_builder_edge(m->builder, '-', '-',
		                       number_range_add(m, (at){.place = AFTER_SIGN, .negative = 1}));
	if ((x->place == ZERO || x->place == WHOLE) && m->max_fraction > 0 && x->whole < m->max_digits)
		automaton_builder_edge(m->builder, '.', '.', after_point(m, *x));
	if (x->place == BEGIN && m->spans[0].none)
		return;
	for (int digit = 0; digit < 10 && room && (whole || (fraction && x->fraction < m->max_fraction)); digit++)
		automaton_builder_edge(m->builder, (unsigned char)('0' + digit), (unsigned char)('0' + digit),
		                       after_digit(m, *x, digit));
}

/* --- all ---------------------------------------------------------------------------------------------- */

static decimal magnitude(decimal d)
{
	d.negative = false;
	return d;
}

static void make_spans(maker *m, const number_range *r)
{
	span *up = &m->spans[0], *down = &m->spans[1];
	const bool min_down = r->has_min && r->min.negative, max_down = r->has_max && r->max.negative;
	if (r->has_min && !min_down)
		*up = (span){.has_low = true, .above_low = r->above_min, .low = r->min};
	up->none = max_down;
	up->has_high = r->has_max && !max_down;
	up->below_high = r->below_max;
	if (up->has_high)
		up->high = r->max;
	down->none = r->has_min && !min_down;
	down->has_low = down->above_low = true; /* zero has no sign */
	if (max_down) {
		down->low = magnitude(r->max);
		down->above_low = r->below_max;
	}
	down->has_high = min_down;
	down->below_high = r->above_min;
	if (min_down)
		down->high = magnitude(r->min);
}

static status read_divisor(maker *m, const decimal *d, bool integer, error *err)
{
	const int fraction = d->n > d->point ? d->n - d->point : 0;
	if (d->point > MAX_DIVISOR_DIGITS || fraction > MAX_DIVISOR_DIGITS || d->n > MAX_DIVISOR_DIGITS)
		return error_set(err, STATUS_TOO_LARGE, NULL, "has more than %d digits", MAX_DIVISOR_DIGITS);
	for (int i = 0; i < (d->n > d->point ? d->n : d->point); i++)
		m->divisor = (i == 0 ? 0 : m->divisor * 10) + digit_at(d, i);
	m->max_fraction = fraction;
	if (integer) /* whole multiples: those of the divisor's numerator in lowest terms */
		for (; m->max_fraction > 0; m->max_fraction--) {
			const bool two = m->divisor % 2 == 0, five = m->divisor % 5 == 0;
			m->divisor /= (two ? 2 : 1) * (five ? 5 : 1);
		}
	return STATUS_OK;
}

static status read_range(maker *m, const number_range *r, error *err)
{
	m->divisor = 1;
	m->max_fraction = r->integer ? 0 : NUMBER_DIGITS;
	if (r->has_divisor)
		TRY(read_divisor(m, &r->divisor, r->integer, err));
	make_spans(m, r);
	m->without_bounds = !r->has_min && !r->has_max;
	m->max_digits = r->integer ? INTEGER_DIGITS : NUMBER_DIGITS;
	for (int i = 0; i < 2; i++) {
		const span *s = &m->spans[i];
		const int low = s->has_low && !s->none ? whole_digits(&s->low) : 1,
		          high = s->has_high && !s->none ? whole_digits(&s->high) : 1;
		if (low > (r->integer ? MAX_DIGITS : NUMBER_DIGITS))
			return error_set(err, STATUS_TOO_LARGE, NULL, "needs numbers of more than %d digits",
			                 r->integer ? MAX_DIGITS : NUMBER_DIGITS);
		if (r->integer && low > m->max_digits)
			m->max_digits = low;
		if (r->integer && high > m->max_digits && high <= MAX_DIGITS)
			m->max_digits = high;
	}
	return STATUS_OK;
}

status number_range_automaton(automaton **out, const number_range *r, int64_t *budget, error *err)
{
	maker m = {0};
	const void *key;
	size_t bytes;
	*out = NULL;
	TRY(read_range(&m, r, err));
	m.builder = automaton_builder_new(budget);
	if (!m.builder)
		return STATUS_NOMEM;
	number_range_add(&m, (at){.place = BEGIN});
	while (automaton_builder_next(m.builder, &key, &bytes)) {
		at x;
		memcpy(&x, key, sizeof x);
		if (accepts(&m, &x))
			automaton_builder_accept(m.builder);
		add_edges(&m, &x);
	}
	const status s = automaton_builder_finish(out, m.builder);
	return s == STATUS_TOO_LARGE ? error_set(err, s, NULL, "the numbers need too many states") : s;
}
