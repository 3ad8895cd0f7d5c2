/* Means are over positions. The bootstrap draws texts, with all their positions, or the positions of a single text. The
 * same draws serve all metrics. A difference of two orders is taken at the same position. */
#include "engine/daemon/faithfulness/faithfulness_report.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/attribution_request.h"

/* --- rows ------------------------------------------------------------------------------------------ */

static json_t *faithfulness_report_number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

/* Append an element, which is taken over. NULL: out of memory; the array is then freed. */
static json_t *with(json_t *array, json_t *element)
{
	if (json_array_append_new(array, element) == 0)
		return array;
	json_decref(array);
	return NULL;
}

static json_t *numbers(const double *values, int64_t n)
{
	json_t *array = json_array();
	for (int64_t i = 0; i < n; i++)
		array = with(array, faithfulness_report_number(values[i]));
	return array;
}

static bool is_baseline(const faithfulness_settings *s, int order)
{
	return s->orders[order] >= FAITHFULNESS_METHODS;
}

static json_t *row_order(const faithfulness_settings *s, const faithfulness_row *r, int order)
{
	const int metrics = faithfulness_metrics(&s->measure), points = s->measure.grid + 1;
	const double *reverse = r->values.reverse + (int64_t)order * metrics;
	return json_pack("{s:s, s:o, s:o, s:o, s:o}", "method", faithfulness_settings_name(s->orders[order]), "values",
	                 numbers(r->values.values + (int64_t)order * metrics, metrics), "reverse",
	                 is_baseline(s, order) ? json_null() : numbers(reverse, metrics), "deletion",
	                 numbers(r->values.deletion + (int64_t)order * points, points), "insertion",
	                 numbers(r->values.insertion + (int64_t)order * points, points));
}

json_t *faithfulness_report_rows(const faithfulness_settings *s, const model_entry *m, const faithfulness_row *rows,
                                 int64_t n)
{
	json_t *array = json_array();
	for (int64_t i = 0; i < n; i++) {
		const faithfulness_row *r = &rows[i];
		json_t *methods = json_array();
		for (int o = 0; o < s->n_orders; o++)
			methods = with(methods, row_order(s, r, o));
		array = with(array, json_pack("{s:I, s:o, s:f, s:f, s:o}", "position", (json_int_t)r->position,
		                              "target", attribution_request_output(m, r->token), "log_probability",
		                              r->log_probability, "empty", r->values.empty, "methods", methods));
	}
	return array;
}

static bool read_numbers(const json_t *array, double *out, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(array, (size_t)i);
		out[i] = json_is_number(x) ? (double)(float)json_number_value(x) : NAN;
	}
	return json_array_size(array) == (size_t)n;
}

static bool read_order(const faithfulness_settings *s, const json_t *object, int order, faithfulness_row *r)
{
	const int metrics = faithfulness_metrics(&s->measure), points = s->measure.grid + 1;
	double *reverse = r->values.reverse + (int64_t)order * metrics;
	return read_numbers(json_object_get(object, "values"), r->values.values + (int64_t)order * metrics, metrics) &&
	       (is_baseline(s, order) || read_numbers(json_object_get(object, "reverse"), reverse, metrics)) &&
	       read_numbers(json_object_get(object, "deletion"), r->values.deletion + (int64_t)order * points,
	                    points) &&
	       read_numbers(json_object_get(object, "insertion"), r->values.insertion + (int64_t)order * points,
	                    points);
}

status faithfulness_report_read(const faithfulness_settings *s, const json_t *object, faithfulness_row *out)
{
	const json_t *methods = json_object_get(object, "methods");
	bool whole = json_array_size(methods) == (size_t)s->n_orders;
	TRY(faithfulness_row_init(out, s));
	out->position = json_integer_value(json_object_get(object, "position"));
	out->token = (int32_t)json_integer_value(json_object_get(json_object_get(object, "target"), "id"));
	out->log_probability = (double)(float)json_number_value(json_object_get(object, "log_probability"));
	for (int o = 0; o < s->n_orders && whole; o++)
		whole = read_order(s, json_array_get(methods, (size_t)o), o, out);
	out->values.empty = (double)(float)json_number_value(json_object_get(object, "empty"));
	return whole ? STATUS_OK : STATUS_CORRUPT;
}

/* --- estimates -------------------------------------------------------------------------------------- */

typedef struct sample {
	const faithfulness_settings *settings;
	const faithfulness_row *rows;
	int64_t n, texts, groups;
	uint32_t *draws; /* [bootstrap][groups] */
	double *sums;    /* [groups] */
	int64_t *counts; /* [groups] */
	double *scratch; /* [bootstrap] */
} sample;

static void sample_fini(sample *x)
{
	free(x->draws);
	free(x->sums);
	free(x->counts);
	free(x->scratch);
}

static status sample_init(sample *x, const faithfulness_settings *s, const faithfulness_row *rows, int64_t n)
{
	*x = (sample){.settings = s, .rows = rows, .n = n, .texts = 1};
	for (int64_t i = 1; i < n; i++)
		x->texts += rows[i].text != rows[i - 1].text;
	x->groups = x->texts > 1 ? x->texts : n;
	x->draws = memory_new((size_t)(s->bootstrap * x->groups), sizeof *x->draws);
	x->sums = memory_new((size_t)x->groups, sizeof *x->sums);
	x->counts = memory_new((size_t)x->groups, sizeof *x->counts);
	x->scratch = memory_new((size_t)s->bootstrap, sizeof *x->scratch);
	if (!x->draws || !x->sums || !x->counts || !x->scratch)
		return STATUS_NOMEM;
	faithfulness_draw(s->measure.seed, s->bootstrap, x->groups, x->draws);
	return STATUS_OK;
}

static const double *row_numbers(const sample *x, int64_t row, int order, bool reverse)
{
	const faithfulness_row *r = &x->rows[row];
	const int64_t at = (int64_t)order * faithfulness_metrics(&x->settings->measure);
	return (reverse ? r->values.reverse : r->values.values) + at;
}

/* Estimate a metric of an order or its reverse, minus that of order `less` (-1: none). */
static faithfulness_interval estimate(sample *x, int metric, int order, bool reverse, int less)
{
	int64_t group = 0;
	for (int64_t g = 0; g < x->groups; g++) {
		x->sums[g] = 0;
		x->counts[g] = 0;
	}
	for (int64_t i = 0; i < x->n; i++) {
		const double found = row_numbers(x, i, order, reverse)[metric];
		const double part = found - (less >= 0 ? row_numbers(x, i, less, false)[metric] : 0);
		group += i > 0 && (x->texts == 1 || x->rows[i].text != x->rows[i - 1].text);
		if (!isfinite(part))
			continue;
		x->sums[group] += part;
		x->counts[group]++;
	}
	return faithfulness_estimate(x->sums, x->counts, x->groups, x->draws, x->settings->bootstrap,
	                             x->settings->confidence, x->scratch);
}

static json_t *interval(const faithfulness_interval *e)
{
	return isfinite(e->low) ? json_pack("[f, f]", e->low, e->high) : json_null();
}

static json_t *estimate_object(sample *x, int metric, int order, bool reverse, int less)
{
	const faithfulness_interval e = estimate(x, metric, order, reverse, less);
	return json_pack("{s:o, s:o}", "mean", faithfulness_report_number(e.mean), "interval", interval(&e));
}

static json_t *metric_object(sample *x, int metric, int order)
{
	const int random = x->settings->n_orders - 2, recency = x->settings->n_orders - 1;
	const faithfulness_interval e = estimate(x, metric, order, false, -1);
	return json_pack(
	    "{s:o, s:o, s:I, s:o, s:o, s:o}", "mean", faithfulness_report_number(e.mean), "interval", interval(&e),
	    "count", (json_int_t)e.count, "reverse",
	    is_baseline(x->settings, order) ? json_null() : estimate_object(x, metric, order, true, -1), "less_random",
	    order == random ? json_null() : estimate_object(x, metric, order, false, random), "less_recency",
	    order == recency ? json_null() : estimate_object(x, metric, order, false, recency));
}

/* --- curves ------------------------------------------------------------------------------------------ */

static json_t *mean_curve(const sample *x, int order, bool insertion)
{
	const int points = x->settings->measure.grid + 1;
	double means[FAITHFULNESS_MAX_GRID + 1] = {0};
	for (int64_t i = 0; i < x->n; i++) {
		const faithfulness_values *v = &x->rows[i].values;
		for (int g = 0; g < points; g++)
			means[g] += (insertion ? v->insertion : v->deletion)[order * points + g] / (double)x->n;
	}
	return numbers(means, points);
}

static json_t *curve_object(const sample *x, int order)
{
	const int grid = x->settings->measure.grid;
	double fractions[FAITHFULNESS_MAX_GRID + 1];
	for (int g = 0; g <= grid; g++)
		fractions[g] = (double)g / grid;
	return json_pack("{s:o, s:o, s:o}", "fractions", numbers(fractions, grid + 1), "deletion",
	                 mean_curve(x, order, false), "insertion", mean_curve(x, order, true));
}

/* --- the evaluation ---------------------------------------------------------------------------------- */

static json_t *metrics_list(const faithfulness_settings *s)
{
	json_t *list = json_array();
	for (int i = 0; i < faithfulness_metrics(&s->measure); i++) {
		const faithfulness_metric m = faithfulness_metric_at(&s->measure, i);
		list = with(list, m.fraction > 0 ? json_pack("{s:s, s:f, s:s}", "metric", m.name, "fraction",
		                                             m.fraction, "better", m.higher ? "higher" : "lower")
		                                 : json_pack("{s:s, s:s}", "metric", m.name, "better",
		                                             m.higher ? "higher" : "lower"));
	}
	return list;
}

static json_t *methods_list(sample *x)
{
	const faithfulness_settings *s = x->settings;
	json_t *list = json_array();
	for (int o = 0; o < s->n_orders; o++) {
		json_t *found = json_array();
		for (int i = 0; i < faithfulness_metrics(&s->measure); i++)
			found = with(found, metric_object(x, i, o));
		list =
		    with(list, json_pack("{s:s, s:b, s:o, s:o}", "method", faithfulness_settings_name(s->orders[o]),
		                         "baseline", is_baseline(s, o), "numbers", found, "curve", curve_object(x, o)));
	}
	return list;
}

json_t *faithfulness_report_make(const faithfulness_settings *s, const json_t *settings, const model_entry *m,
                                 const faithfulness_row *rows, int64_t n, const faithfulness_cost *cost)
{
	sample x;
	double whole = 0, empty = 0;
	json_t *object = NULL;
	for (int64_t i = 0; i < n; i++) {
		whole += rows[i].log_probability / (double)n;
		empty += rows[i].values.empty / (double)n;
	}
	if (sample_init(&x, s, rows, n) == STATUS_OK)
		object = json_pack("{s:s, s:s, s:O, s:I, s:I, s:s, s:o, s:o, s:f, s:f, s:f, s:I, s:I}", "object",
		                   "explain.evaluation", "model", m->id, "settings", settings, "texts",
		                   (json_int_t)x.texts, "positions", (json_int_t)n, "resampled",
		                   x.texts > 1 ? "texts" : "positions", "metrics", metrics_list(s), "methods",
		                   methods_list(&x), "log_probability", whole, "empty", empty, "seconds", cost->seconds,
		                   "readings", (json_int_t)cost->readings, "tokens_read", (json_int_t)cost->tokens);
	sample_fini(&x);
	return object;
}
