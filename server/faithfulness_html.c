/* The page has a table of all means and the curves, then a chart and a table for each metric. */
#include "server/faithfulness_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"
#include "proto/schema.h"
#include "server/markup.h"
#include "server/plot.h"
#include "server/template.h"

typedef struct faithfulness_page {
	const json_t *answer, *job, *evaluation; /* job, evaluation: NULL where there is none */
	const json_t *metrics, *methods;
	size_t n; /* methods that are shown */
} faithfulness_page;

/* --- numbers ------------------------------------------------------------------------------------------- */

static double faithfulness_number(const json_t *value)
{
	const double x = json_is_number(value) ? json_number_value(value) : NAN;
	return fabs(x) <= PLOT_MAX ? x : NAN;
}

static void faithfulness_write_value(buffer *out, double value)
{
	if (isnan(value))
		buffer_string(out, "–");
	else
		buffer_format(out, "%+.4g", value);
}

static double faithfulness_end(const json_t *estimate, size_t end)
{
	return faithfulness_number(json_array_get(json_object_get(estimate, "interval"), end));
}

/* "+0.1 [+0.05, +0.2]" */
static void faithfulness_write_estimate(buffer *out, const json_t *estimate)
{
	const double low = faithfulness_end(estimate, 0), high = faithfulness_end(estimate, 1);
	faithfulness_write_value(out, faithfulness_number(json_object_get(estimate, "mean")));
	if (!isnan(low) && !isnan(high))
		buffer_format(out, " [%+.4g, %+.4g]", low, high);
}

static const json_t *faithfulness_numbers(const faithfulness_page *p, size_t method, size_t metric)
{
	const json_t *row = json_array_get(p->methods, method);
	return json_array_get(json_object_get(row, "numbers"), metric);
}

static const char *faithfulness_name(const faithfulness_page *p, size_t method)
{
	const char *name = json_string_value(json_object_get(json_array_get(p->methods, method), "method"));
	return name ? name : "";
}

static bool faithfulness_baseline(const faithfulness_page *p, size_t method)
{
	return json_is_true(json_object_get(json_array_get(p->methods, method), "baseline"));
}

/* 1: better than recency by more than the interval, -1: worse. */
static int faithfulness_verdict(const faithfulness_page *p, size_t method, size_t metric)
{
	const json_t *difference = json_object_get(faithfulness_numbers(p, method, metric), "less_recency");
	const char *better = json_string_value(json_object_get(json_array_get(p->metrics, metric), "better"));
	const double low = faithfulness_end(difference, 0), high = faithfulness_end(difference, 1);
	const int side = low > 0 ? 1 : high < 0 ? -1 : 0;
	return better && strcmp(better, "lower") == 0 ? -side : side;
}

/* --- words ----------------------------------------------------------------------------------------------- */

static const struct {
	const char *metric, *title, *unit;
} faithfulness_metrics[] = {{"comprehensiveness", "Comprehensiveness", "nats"},
                            {"sufficiency", "Sufficiency", "nats"},
                            {"deletion_auc", "Deletion", "mean log-probability, nats"},
                            {"insertion_auc", "Insertion", "mean log-probability, nats"},
                            {"normalised_aopc", "Normalised AOPC", "0 to 1"},
                            {"kendall_tau", "Kendall’s τ with leave-one-out", "−1 to 1"},
                            {"soft_comprehensiveness", "Soft comprehensiveness", "nats"},
                            {"soft_sufficiency", "Soft sufficiency", "nats"},
                            {"far_drop", "Far drop", "nats"}};

/* Append the name of a metric, with its fraction, as text; its unit. */
static const char *faithfulness_write_metric(buffer *out, const json_t *metric)
{
	const json_t *word = json_object_get(metric, "metric");
	const char *name = json_is_string(word) ? json_string_value(word) : "";
	const double fraction = faithfulness_number(json_object_get(metric, "fraction"));
	const char *unit = NULL;
	for (size_t i = 0; i < sizeof faithfulness_metrics / sizeof *faithfulness_metrics && !unit; i++)
		if (strcmp(faithfulness_metrics[i].metric, name) == 0) {
			buffer_string(out, faithfulness_metrics[i].title);
			unit = faithfulness_metrics[i].unit;
		}
	if (!unit)
		buffer_string(out, name);
	if (!isnan(fraction))
		buffer_format(out, ", %.3g %%", 100 * fraction);
	return unit ? unit : "";
}

static void faithfulness_write_escaped(buffer *out, const char *text)
{
	markup_escape(out, text, strlen(text));
}

static void faithfulness_write_metric_escaped(buffer *out, const json_t *metric, const char **unit)
{
	buffer name = {0};
	const char *of = faithfulness_write_metric(&name, metric);
	markup_escape(out, name.data ? name.data : "", name.used);
	out->failed |= name.failed;
	buffer_fini(&name);
	if (unit)
		*unit = of;
}

/* --- the results ------------------------------------------------------------------------------------------ */

static void faithfulness_write_counts(buffer *out, const faithfulness_page *p)
{
	const json_t *e = p->evaluation, *settings = json_object_get(e, "settings");
	const char *resampled = json_string_value(json_object_get(e, "resampled"));
	const double texts = json_number_value(json_object_get(e, "texts"));
	buffer_format(out, "<p>%.0f predictions of %.0f text%s; intervals of %.4g %% by a bootstrap over ",
	              json_number_value(json_object_get(e, "positions")), texts, texts == 1 ? "" : "s",
	              100 * json_number_value(json_object_get(settings, "confidence")));
	faithfulness_write_escaped(out, resampled ? resampled : "texts");
	buffer_format(
	    out,
	    ". The mean log-probability of what is explained is %.4g, and %.4g without all tokens but the reader. "
	    "%.0f readings of %.0f tokens in all took %.4g s.</p>\n",
	    json_number_value(json_object_get(e, "log_probability")), json_number_value(json_object_get(e, "empty")),
	    json_number_value(json_object_get(e, "readings")), json_number_value(json_object_get(e, "tokens_read")),
	    json_number_value(json_object_get(e, "seconds")));
}

static void faithfulness_write_overview(buffer *out, const faithfulness_page *p)
{
	const size_t metrics = json_array_size(p->metrics);
	buffer_string(out,
	              "<h2>Means of all methods</h2>\n<p>▲ better and ▼ worse than recency, where the interval of the "
	              "difference does not contain 0.</p>\n"
	              "<div class=\"wide\"><table id=\"overview\"><thead><tr><td></td>");
	for (size_t i = 0; i < p->n; i++) {
		buffer_string(out, "<th scope=\"col\">");
		faithfulness_write_escaped(out, faithfulness_name(p, i));
		buffer_string(out, "</th>");
	}
	buffer_string(out, "</tr></thead><tbody>\n");
	for (size_t k = 0; k < metrics; k++) {
		buffer_string(out, "<tr><th scope=\"row\">");
		faithfulness_write_metric_escaped(out, json_array_get(p->metrics, k), NULL);
		buffer_string(out, "</th>");
		for (size_t i = 0; i < p->n; i++) {
			buffer_string(out, "<td>");
			faithfulness_write_value(
			    out, faithfulness_number(json_object_get(faithfulness_numbers(p, i, k), "mean")));
			const int verdict = faithfulness_verdict(p, i, k);
			if (verdict > 0)
				buffer_string(out, " <abbr title=\"better than recency\">▲</abbr>");
			else if (verdict < 0)
				buffer_string(out, " <abbr title=\"worse than recency\">▼</abbr>");
			buffer_string(out, "</td>");
		}
		buffer_string(out, "</tr>\n");
	}
	buffer_string(out, "</tbody></table></div>\n");
}

static void faithfulness_write_curves(buffer *out, const faithfulness_page *p, const char *which, const char *title,
                                      const char *caption)
{
	double x[PLOT_POINTS] = {0};
	plot_curve *curves = calloc(p->n + 1, sizeof *curves);
	out->failed |= !curves;
	for (size_t i = 0; curves && i < p->n; i++) {
		const json_t *curve = json_object_get(json_array_get(p->methods, i), "curve");
		const json_t *fractions = json_object_get(curve, "fractions"), *values = json_object_get(curve, which);
		plot_curve *c = &curves[i];
		c->name = faithfulness_name(p, i);
		c->pale = faithfulness_baseline(p, i);
		for (; c->n < PLOT_POINTS && c->n < json_array_size(values); c->n++) {
			x[c->n] = faithfulness_number(json_array_get(fractions, c->n));
			c->y[c->n] = faithfulness_number(json_array_get(values, c->n));
		}
	}
	buffer_string(out, "<figure>");
	if (curves)
		plot_curves(out, title, x, curves, p->n);
	buffer_format(out, "<figcaption>%s</figcaption></figure>\n", caption);
	free(curves);
}

static void faithfulness_write_chart(buffer *out, const faithfulness_page *p, size_t metric)
{
	plot_bar bars[PLOT_SERIES];
	buffer title = {0};
	for (size_t i = 0; i < p->n; i++) {
		const json_t *numbers = faithfulness_numbers(p, i, metric);
		bars[i] = (plot_bar){
		    .name = faithfulness_name(p, i),
		    .value = faithfulness_number(json_object_get(numbers, "mean")),
		    .low = faithfulness_end(numbers, 0),
		    .high = faithfulness_end(numbers, 1),
		    .mark = faithfulness_number(json_object_get(json_object_get(numbers, "reverse"), "mean")),
		    .pale = faithfulness_baseline(p, i)};
	}
	faithfulness_write_metric(&title, json_array_get(p->metrics, metric));
	buffer_append(&title, "", 1);
	buffer_string(out, "<figure>");
	plot_bars(out, title.failed ? "" : title.data, bars, p->n);
	buffer_string(out,
	              "<figcaption>Bars: means, with intervals. ○: the reversed order. Grey: baselines.</figcaption>"
	              "</figure>\n");
	out->failed |= title.failed;
	buffer_fini(&title);
}

static void faithfulness_write_table(buffer *out, const faithfulness_page *p, size_t metric)
{
	static const char *const estimates[] = {"reverse", "less_random", "less_recency"};
	buffer_string(out,
	              "<div class=\"wide\"><table><thead><tr><td></td><th scope=\"col\">Mean</th>"
	              "<th scope=\"col\">Reversed</th><th scope=\"col\">Less random</th>"
	              "<th scope=\"col\">Less recency</th><th scope=\"col\">Predictions</th></tr></thead><tbody>\n");
	for (size_t i = 0; i < p->n; i++) {
		const json_t *numbers = faithfulness_numbers(p, i, metric);
		buffer_string(out, "<tr><th scope=\"row\">");
		faithfulness_write_escaped(out, faithfulness_name(p, i));
		buffer_string(out, "</th><td>");
		faithfulness_write_estimate(out, numbers);
		for (size_t k = 0; k < sizeof estimates / sizeof *estimates; k++) {
			buffer_string(out, "</td><td>");
			faithfulness_write_estimate(out, json_object_get(numbers, estimates[k]));
		}
		buffer_format(out, "</td><td>%.0f</td></tr>\n", json_number_value(json_object_get(numbers, "count")));
	}
	buffer_string(out, "</tbody></table></div>\n");
}

static void faithfulness_write_section(buffer *out, const faithfulness_page *p, size_t metric)
{
	const json_t *of = json_array_get(p->metrics, metric);
	const char *better = json_string_value(json_object_get(of, "better")), *unit;
	buffer_string(out, "<section><h3>");
	faithfulness_write_metric_escaped(out, of, &unit);
	buffer_format(out, " <small>(%s%s is better)</small></h3>\n", unit,
	              better && strcmp(better, "lower") == 0 ? "; lower" : "; higher");
	faithfulness_write_chart(out, p, metric);
	faithfulness_write_table(out, p, metric);
	buffer_string(out, "</section>\n");
}

static void faithfulness_write_settings(buffer *out, const faithfulness_page *p)
{
	const json_t *settings = json_object_get(p->evaluation ? p->evaluation : p->job, "settings"), *value;
	const char *name;
	buffer_string(out, "<h2>Settings</h2>\n<table class=\"settings\"><tbody>\n");
	json_object_foreach((json_t *)settings, name, value)
	{
		char *text = json_memory_print(value, PROTO_JSON | JSON_ENCODE_ANY);
		buffer_string(out, "<tr><th scope=\"row\">");
		faithfulness_write_escaped(out, name);
		buffer_string(out, "</th><td>");
		faithfulness_write_escaped(out, text ? text : "");
		buffer_string(out, "</td></tr>\n");
		out->failed |= !text;
		free(text);
	}
	buffer_string(out, "</tbody></table>\n");
}

/* --- the parts of the page --------------------------------------------------------------------------------- */

static void faithfulness_write_results(buffer *out, const void *context)
{
	const faithfulness_page *p = context;
	if (p->evaluation) {
		faithfulness_write_counts(out, p);
		faithfulness_write_overview(out, p);
		buffer_string(out, "<h2>Curves</h2>\n<section>\n");
		faithfulness_write_curves(
		    out, p, "deletion", "Deletion",
		    "Deletion: the mean log-probability without the first part of the tokens, in the order of "
		    "each method. A steep fall is better.");
		faithfulness_write_curves(
		    out, p, "insertion", "Insertion",
		    "Insertion: the same with only the first part of the tokens. A steep rise is better.");
		buffer_string(out, "</section>\n<h2>Each metric</h2>\n");
		for (size_t k = 0; k < json_array_size(p->metrics); k++)
			faithfulness_write_section(out, p, k);
	}
	faithfulness_write_settings(out, p);
}

static bool faithfulness_waits(const faithfulness_page *p)
{
	const char *status = json_string_value(json_object_get(p->job, "status"));
	return status && (strcmp(status, "queued") == 0 || strcmp(status, "running") == 0);
}

static void faithfulness_write_refresh(buffer *out, const void *context)
{
	if (faithfulness_waits(context))
		buffer_string(out, "<meta http-equiv=\"refresh\" content=\"5\">");
}

static void faithfulness_write_job(buffer *out, const void *context)
{
	const faithfulness_page *p = context;
	const json_t *texts = json_object_get(p->job, "texts"), *total = json_object_get(texts, "total");
	if (!p->job)
		return;
	buffer_string(out, "<p id=\"job\">Job <code>");
	markup_visible(out, json_object_get(p->job, "id"), false);
	buffer_string(out, "</code> over file <code>");
	markup_visible(out, json_object_get(p->job, "file"), false);
	buffer_string(out, "</code>: ");
	markup_visible(out, json_object_get(p->job, "status"), false);
	buffer_format(out, ", %.0f", json_number_value(json_object_get(texts, "done")));
	if (json_is_integer(total))
		buffer_format(out, " of %.0f", json_number_value(total));
	buffer_string(out, " texts.");
	if (json_is_object(json_object_get(p->job, "error"))) {
		buffer_string(out, " ");
		markup_visible(out, json_object_get(json_object_get(p->job, "error"), "message"), false);
	}
	buffer_string(out, "</p>");
}

static void faithfulness_write_model(buffer *out, const void *context)
{
	const faithfulness_page *p = context;
	markup_visible(out, json_object_get(p->evaluation ? p->evaluation : p->answer, "model"), false);
}

static void faithfulness_write_style(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_explain_css.data, embedded_explain_css.bytes);
	buffer_append(out, embedded_faithfulness_css.data, embedded_faithfulness_css.bytes);
}

static void faithfulness_write_data(buffer *out, const void *context)
{
	markup_data(out, ((const faithfulness_page *)context)->answer);
}

void faithfulness_html_write(const json_t *answer, buffer *out)
{
	static const template_part parts[] = {{"refresh", faithfulness_write_refresh},
	                                      {"style", faithfulness_write_style},
	                                      {"model", faithfulness_write_model},
	                                      {"job", faithfulness_write_job},
	                                      {"results", faithfulness_write_results},
	                                      {"data", faithfulness_write_data},
	                                      {NULL, NULL}};
	const json_t *result = json_object_get(answer, "result");
	const bool job = json_object_get(answer, "status") != NULL;
	faithfulness_page page = {.answer = answer,
	                          .job = job ? answer : NULL,
	                          .evaluation = !job                     ? answer
	                                        : json_is_object(result) ? result
	                                                                 : NULL};
	page.metrics = json_object_get(page.evaluation, "metrics");
	page.methods = json_object_get(page.evaluation, "methods");
	page.n = json_array_size(page.methods) < PLOT_SERIES ? json_array_size(page.methods) : PLOT_SERIES;
	template_write(out, &embedded_faithfulness_html, parts, &page);
}
