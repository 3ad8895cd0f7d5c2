#include "engine/explain/faithfulness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/philox.h"

#define FAR_FRACTION 0.05

/* --- metrics ----------------------------------------------------------------------------------- */

/* Metrics that follow those of the fractions. The soft ones are last because they are optional. */
static const faithfulness_metric others[] = {
    {"deletion_auc", 0, false},     {"insertion_auc", 0, true}, {"normalised_aopc", 0, true},
    {"kendall_tau", 0, true},       {"far_drop", 0, true},      {"soft_comprehensiveness", 0, true},
    {"soft_sufficiency", 0, false},
};
enum { DELETION, INSERTION, AOPC, KENDALL, FAR_DROP, SOFT_COMPREHENSIVENESS, SOFT_SUFFICIENCY, OTHERS };

int faithfulness_metrics(const faithfulness_options *o)
{
	return 2 * o->n_fractions + (o->soft > 0 ? OTHERS : SOFT_COMPREHENSIVENESS);
}

faithfulness_metric faithfulness_metric_at(const faithfulness_options *o, int i)
{
	if (i < o->n_fractions)
		return (faithfulness_metric){"comprehensiveness", o->fractions[i], true};
	if (i < 2 * o->n_fractions)
		return (faithfulness_metric){"sufficiency", o->fractions[i - o->n_fractions], false};
	return others[i - 2 * o->n_fractions];
}

/* --- counts -------------------------------------------------------------------------------------- */

/* Return the number of tokens of a fraction. A fraction meant as k / n gives k, however it was rounded. */
static int64_t count_of(double fraction, int64_t n)
{
	const int64_t count = (int64_t)ceil(fraction * (double)n - 1e-9);
	return count < 1 ? 1 : count < n ? count : n;
}

/* Count at point g of a curve. Points are symmetric: point grid - g removes the others. */
static int64_t count_at(const faithfulness *f, int g)
{
	const int grid = f->options->grid;
	return 2 * g > grid ? f->n - count_at(f, grid - g) : (2 * g * f->n + grid) / (2 * grid);
}

static void add_count(faithfulness *f, int64_t count)
{
	int at = f->n_counts;
	if (count < 1 || count >= f->n)
		return;
	while (at > 0 && f->counts[at - 1] > count)
		at--;
	if (at > 0 && f->counts[at - 1] == count)
		return;
	memmove(f->counts + at + 1, f->counts + at, (size_t)(f->n_counts - at) * sizeof *f->counts);
	f->counts[at] = count;
	f->n_counts++;
}

static void add_both(faithfulness *f, int64_t count)
{
	add_count(f, count);
	add_count(f, f->n - count);
}

static int64_t distance(const faithfulness *f, int64_t token)
{
	return token < f->reader ? f->reader - token : token + 1 - f->reader;
}

/* Number of the n tokens in a row that are at distance `far` or more. */
static int64_t count_far(int64_t n, int64_t far)
{
	return n >= far ? n - far + 1 : 0;
}

void faithfulness_init(faithfulness *f, const faithfulness_options *o, int64_t n, int64_t reader, uint32_t text)
{
	*f = (faithfulness){.options = o, .n = n, .reader = reader, .text = text};
	for (int i = 0; i < o->n_fractions; i++)
		add_both(f, count_of(o->fractions[i], n));
	for (int g = 0; g <= o->grid; g++)
		add_both(f, count_at(f, g));
	f->far = count_far(reader, o->far) + count_far(n - reader, o->far);
	f->n_far = f->far > 0 ? count_of(FAR_FRACTION, f->far) : 0;
}

/* --- sets ---------------------------------------------------------------------------------------- */

/* Sets of an order: deletion by rising count, insertion by rising count, pairs of soft sets, then the sets without the
 * first and without the last far tokens. The set of all tokens precedes all orders. */
static int64_t sets_of_order(const faithfulness *f)
{
	return 2 * (int64_t)f->n_counts + 2 * (int64_t)f->options->soft + (f->far > 0 ? 2 : 0);
}

int64_t faithfulness_sets(const faithfulness *f, int orders)
{
	return 1 + orders * sets_of_order(f);
}

static float uniform(const faithfulness *f, int draw, int64_t token, int word)
{
	const uint64_t index = (uint64_t)f->text << 32 | (uint64_t)token;
	const philox_block b =
	    philox(f->options->seed, PHILOX_STREAM_FAITHFULNESS + (uint32_t)draw, (uint32_t)f->reader, index);
	return philox_uniform(b.word[word]);
}

void faithfulness_random(const faithfulness *f, double *numbers)
{
	for (int64_t j = 0; j < f->n; j++)
		numbers[j] = (double)uniform(f, 0, j, 1);
}

void faithfulness_recency(const faithfulness *f, double *numbers)
{
	for (int64_t j = 0; j < f->n; j++)
		numbers[j] = (double)(f->n + 1 - distance(f, j));
}

/* Index of a token in a set, which also has the reader. */
static int64_t faithfulness_place_of(const faithfulness *f, int64_t token)
{
	return token + (token >= f->reader);
}

typedef struct ranked {
	double number;
	int64_t token;
} ranked;

static int by_number(const void *a, const void *b)
{
	const ranked *x = a, *y = b;
	return x->number != y->number ? (x->number < y->number) - (x->number > y->number)
	                              : (x->token > y->token) - (x->token < y->token);
}

static double largest_size(const double *numbers, int64_t n)
{
	double most = 0;
	for (int64_t j = 0; j < n; j++)
		most = fmax(most, fabs(numbers[j]));
	return most;
}

/* Write the sets of the first and of the last far tokens. */
static void write_far(const faithfulness *f, const ranked *order, bool *first, bool *last)
{
	int64_t seen = 0;
	for (int64_t i = 0; i < f->n; i++) {
		const int64_t place = faithfulness_place_of(f, order[i].token);
		if (distance(f, order[i].token) < f->options->far)
			continue;
		first[place] = seen < f->n_far;
		last[place] = seen >= f->far - f->n_far;
		seen++;
	}
}

static void write_order(const faithfulness *f, const double *numbers, const ranked *order, bool *absent)
{
	const int64_t row = f->n + 1, counts = f->n_counts;
	for (int64_t c = 0; c < counts; c++)
		for (int64_t i = 0; i < f->n; i++) {
			const int64_t place = faithfulness_place_of(f, order[i].token);
			absent[c * row + place] = i < f->counts[c];
			absent[(counts + c) * row + place] = i >= f->counts[c];
		}
	absent += 2 * counts * row;
	for (int s = 0; s < f->options->soft; s++, absent += 2 * row) {
		/* Write draw s of an order: the set that comprehensiveness removes and the one that sufficiency
		 * removes. */
		const double most = largest_size(numbers, f->n);
		for (int64_t j = 0; j < f->n; j++) {
			const bool drawn = most > 0 && (double)uniform(f, s, j, 0) < fabs(numbers[j]) / most;
			absent[faithfulness_place_of(f, j)] = drawn;
			absent[row + faithfulness_place_of(f, j)] = !drawn;
		}
	}
	if (f->far > 0)
		write_far(f, order, absent, absent + row);
}

status faithfulness_write_sets(const faithfulness *f, const double *numbers, int orders, bool *absent)
{
	const int64_t row = f->n + 1;
	ranked *order = memory_new((size_t)f->n, sizeof *order);
	if (!order)
		return STATUS_NOMEM;
	memset(absent, 0, (size_t)(faithfulness_sets(f, orders) * row) * sizeof *absent);
	memset(absent, true, (size_t)row * sizeof *absent);
	absent[f->reader] = false;
	for (int o = 0; o < orders; o++) {
		for (int64_t j = 0; j < f->n; j++)
			order[j] = (ranked){numbers[o * f->n + j], j};
		qsort(order, (size_t)f->n, sizeof *order, by_number);
		write_order(f, numbers + o * f->n, order, absent + (1 + o * sets_of_order(f)) * row);
	}
	free(order);
	return STATUS_OK;
}

/* --- measures -------------------------------------------------------------------------------------- */

double faithfulness_kendall(const double *x, const double *y, int64_t n)
{
	int64_t agree = 0, in_x = 0, in_y = 0; /* pairs in the same order minus pairs in opposite order, without ties in
	                                        * x or y */
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = i + 1; j < n; j++) {
			const int a = (x[i] > x[j]) - (x[i] < x[j]), b = (y[i] > y[j]) - (y[i] < y[j]);
			agree += a * b;
			in_x += a != 0;
			in_y += b != 0;
		}
	return in_x && in_y ? (double)agree / sqrt((double)in_x * (double)in_y) : NAN;
}

/* Scores along an order or its reverse. */
typedef struct curves {
	const faithfulness *f;
	double whole, empty;
	const double *without; /* scores of the order's sets */
	bool reverse;
} curves;

static double removed(const curves *c, int64_t count);

/* Score with only the first `count` tokens of the order. */
static double kept(const curves *c, int64_t count)
{
	const faithfulness *f = c->f;
	int at = 0;
	if (count == 0 || count == f->n)
		return count == 0 ? c->empty : c->whole;
	if (c->reverse) {
		curves forward = *c;
		forward.reverse = false;
		return removed(&forward, f->n - count);
	}
	while (f->counts[at] != count)
		at++;
	return c->without[f->n_counts + at];
}

static double removed(const curves *c, int64_t count)
{
	const faithfulness *f = c->f;
	int at = 0;
	if (count == 0 || count == f->n)
		return count == 0 ? c->whole : c->empty;
	if (c->reverse) {
		curves forward = *c;
		forward.reverse = false;
		return kept(&forward, f->n - count);
	}
	while (f->counts[at] != count)
		at++;
	return c->without[at];
}

static double area(const curves *c, double (*at)(const curves *c, int64_t count))
{
	const faithfulness *f = c->f;
	double sum = 0;
	for (int g = 0; g < f->options->grid; g++) {
		const int64_t a = count_at(f, g), b = count_at(f, g + 1);
		sum += (double)(b - a) * (at(c, a) + at(c, b)) / 2;
	}
	return sum / (double)f->n;
}

/* Mean score over the draws without the sets of comprehensiveness (0) or of sufficiency (1). */
static double soft_mean(const curves *c, int which)
{
	double sum = 0;
	for (int s = 0; s < c->f->options->soft; s++)
		sum += c->without[2 * c->f->n_counts + 2 * s + which];
	return sum / c->f->options->soft;
}

/* Compute all metrics except those that need other orders or the numbers. */
static void measure_curves(const curves *c, double *values)
{
	const faithfulness *f = c->f;
	const faithfulness_options *o = f->options;
	double *rest = values + 2 * o->n_fractions;
	for (int i = 0; i < o->n_fractions; i++) {
		const int64_t count = count_of(o->fractions[i], f->n);
		values[i] = c->whole - removed(c, count);
		values[o->n_fractions + i] = c->whole - kept(c, count);
	}
	rest[DELETION] = area(c, removed);
	rest[INSERTION] = area(c, kept);
	rest[AOPC] = rest[KENDALL] = NAN;
	rest[FAR_DROP] = f->far > 0 ? c->whole - c->without[2 * f->n_counts + 2 * o->soft + (c->reverse ? 1 : 0)] : NAN;
	if (o->soft > 0) {
		rest[SOFT_COMPREHENSIVENESS] = c->whole - soft_mean(c, c->reverse ? 1 : 0);
		rest[SOFT_SUFFICIENCY] = c->whole - soft_mean(c, c->reverse ? 0 : 1);
	}
}

/* Convert areas under the curve to positions between the bounds. */
static void normalise(const faithfulness *f, int orders, faithfulness_values *out)
{
	const int metrics = faithfulness_metrics(f->options), first = 2 * f->options->n_fractions;
	double least = INFINITY, most = -INFINITY;
	for (int o = 0; o < orders; o++) {
		const double a = out->values[o * metrics + first + DELETION];
		const double b = out->reverse[o * metrics + first + DELETION];
		least = fmin(least, fmin(a, b));
		most = fmax(most, fmax(a, b));
	}
	for (int o = 0; o < orders && most > least; o++) {
		double *rows[] = {out->values + o * metrics + first, out->reverse + o * metrics + first};
		for (int i = 0; i < 2; i++)
			rows[i][AOPC] = (most - rows[i][DELETION]) / (most - least);
	}
}

void faithfulness_measure(const faithfulness *f, const double *numbers, int orders, double whole, const double *singles,
                          const double *without, faithfulness_values *out)
{
	const faithfulness_options *o = f->options;
	const int metrics = faithfulness_metrics(o), kendall = 2 * o->n_fractions + KENDALL, points = o->grid + 1;
	out->empty = without[0];
	for (int i = 0; i < orders; i++) {
		curves c = {f, whole, out->empty, without + 1 + i * sets_of_order(f), false};
		double *values = out->values + i * metrics, *reverse = out->reverse + i * metrics;
		measure_curves(&c, values);
		for (int g = 0; g < points; g++) {
			out->deletion[i * points + g] = removed(&c, count_at(f, g));
			out->insertion[i * points + g] = kept(&c, count_at(f, g));
		}
		c.reverse = true;
		measure_curves(&c, reverse);
		/* A large drop means a small remaining score. */
		values[kendall] = -faithfulness_kendall(numbers + i * f->n, singles, f->n);
		reverse[kendall] = -values[kendall];
	}
	normalise(f, orders, out);
}

/* --- intervals ------------------------------------------------------------------------------------- */

void faithfulness_draw(uint64_t seed, int64_t samples, int64_t groups, uint32_t *draws)
{
	for (int64_t s = 0; s < samples; s++)
		for (int64_t i = 0; i < groups; i += 4) {
			const philox_block b = philox(seed, PHILOX_STREAM_BOOTSTRAP, (uint32_t)s, (uint64_t)i / 4);
			for (int64_t k = i; k < i + 4 && k < groups; k++)
				draws[s * groups + k] = (uint32_t)((uint64_t)b.word[k - i] * (uint64_t)groups >> 32);
		}
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Return the percentile `share` of sorted values [n]. */
static double percentile(const double *sorted, int64_t n, double share)
{
	const double at = share * (double)(n - 1);
	const int64_t below = (int64_t)at, above = below + 1 < n ? below + 1 : below;
	return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

faithfulness_interval faithfulness_estimate(const double *sums, const int64_t *counts, int64_t groups,
                                            const uint32_t *draws, int64_t samples, double confidence, double *scratch)
{
	faithfulness_interval x = {NAN, NAN, NAN, 0};
	double total = 0;
	int64_t n = 0, used = 0;
	for (int64_t g = 0; g < groups; g++) {
		total += sums[g];
		x.count += counts[g];
		used += counts[g] > 0;
	}
	if (x.count > 0)
		x.mean = total / (double)x.count;
	for (int64_t s = 0; s < samples && used > 1; s++) {
		double sum = 0;
		int64_t count = 0;
		for (int64_t g = 0; g < groups; g++) {
			sum += sums[draws[s * groups + g]];
			count += counts[draws[s * groups + g]];
		}
		if (count > 0)
			scratch[n++] = sum / (double)count;
	}
	if (n == 0)
		return x;
	qsort(scratch, (size_t)n, sizeof *scratch, by_size);
	x.low = percentile(scratch, n, (1 - confidence) / 2);
	x.high = percentile(scratch, n, (1 + confidence) / 2);
	return x;
}
