#include "server/compare.h"

#include <math.h>

#include "server/template.h"

enum { COMPARE_TABLE_ROWS = 20 };

typedef struct compare_page {
	const char *nonce;
	compare_view view;
} compare_page;

static void compare_write_style(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_explain_css.data, embedded_explain_css.bytes);
	buffer_append(out, embedded_compare_css.data, embedded_compare_css.bytes);
}

static void compare_write_script(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_strip_js.data, embedded_strip_js.bytes);
	buffer_append(out, embedded_compare_js.data, embedded_compare_js.bytes);
}

static void compare_write_numbers(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_numbers_html.data, embedded_numbers_html.bytes);
}

static void compare_write_nonce(buffer *out, const void *context)
{
	buffer_string(out, ((const compare_page *)context)->nonce);
}

static void compare_write_kind(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	buffer_string(out, v->first.parts ? "contributions" : "weights");
}

static void compare_write_first(buffer *out, const void *context)
{
	compare_title(&((const compare_page *)context)->view, false, out);
}

static void compare_write_second(buffer *out, const void *context)
{
	compare_title(&((const compare_page *)context)->view, true, out);
}

static void compare_write_first_target(buffer *out, const void *context)
{
	explain_view_likelihood(&((const compare_page *)context)->view.first, out);
}

static void compare_write_second_target(buffer *out, const void *context)
{
	explain_view_likelihood(&((const compare_page *)context)->view.second, out);
}

static void compare_write_note(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	if (!v->first.parts != !v->second.parts)
		buffer_string(out, "<p>One has contributions and the other weights: they have no differences.</p>");
	else if (v->first.parts && !v->same_target)
		buffer_string(out, "<p>The two explain different outputs; <code>target</code> asks both for one.</p>");
}

static void compare_write_token(buffer *out, const explain_view *v, size_t i)
{
	const double heat = explain_view_heat(v, i);
	if (i >= v->n) {
		buffer_string(out, "<span></span>");
		return;
	}
	buffer_format(out, "<span style=\"--w:%.4g\" class=\"%s %s\">", fabs(heat),
	              !v->parts  ? ""
	              : heat < 0 ? "minus"
	                         : "plus",
	              i == v->position ? "here" : "");
	explain_view_token(v, i, false, out);
	buffer_string(out, "</span>");
}

static void compare_write_words(buffer *out, const explain_view *v, size_t i)
{
	if (i >= v->n) {
		buffer_string(out, "none");
		return;
	}
	buffer_format(out, "token %zu “", i);
	explain_view_token(v, i, false, out);
	buffer_string(out, "” ");
	explain_view_value(v, v->value[i], out);
}

static void compare_write_column(buffer *out, const compare_view *v, const compare_column *c)
{
	const double heat = compare_heat(v, c);
	buffer_string(out, "<span class=\"column\" title=\"first: ");
	compare_write_words(out, &v->first, c->first);
	buffer_string(out, "; second: ");
	compare_write_words(out, &v->second, c->second);
	if (c->same) {
		buffer_string(out, "; difference ");
		compare_value(v, compare_difference(v, c), out);
	}
	buffer_string(out, "\">");
	compare_write_token(out, &v->first, c->first);
	compare_write_token(out, &v->second, c->second);
	if (c->same)
		buffer_format(out, "<i style=\"--w:%.4g\" class=\"%s\">%s</i>", fabs(heat), heat < 0 ? "minus" : "plus",
		              fabs(heat) < 0.1 ? ""
		              : heat < 0       ? "−"
		                               : "+");
	else
		buffer_string(out, "<i></i>");
	buffer_string(out, compare_breaks(v, c) ? "</span><br>" : "</span>");
}

static void compare_write_columns(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	for (size_t i = 0; i < v->n; i++)
		compare_write_column(out, v, &v->columns[i]);
}

static void compare_write_min(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	explain_view_value(&v->first, v->first.parts ? -v->first.max : 0, out);
}

static void compare_write_max(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	explain_view_value(&v->first, v->first.max, out);
}

static void compare_write_sum(buffer *out, const char *name, double first, double second)
{
	buffer_format(out, "<tr><th scope=\"row\">%s</th><td>%+.6f</td><td>%+.6f</td><td>%+.6f</td></tr>\n", name,
	              first, second, second - first);
}

/* Write all parts of the scores for contributions, and only the scores for other methods. */
static void compare_write_sums(buffer *out, const void *context)
{
	static const char *const sums[][2] = {
	    {"tokens", "tokens but the reader"}, {"reader", "reader"}, {"source", "tokens of the source"},
	    {"positions", "positions"},          {"biases", "biases"}, {"rounding", "rounding"}};
	const compare_view *v = &((const compare_page *)context)->view;
	const bool whole = json_object_get(v->first.parts, "sums") && json_object_get(v->second.parts, "sums");
	for (size_t i = 0; whole && i < sizeof sums / sizeof *sums; i++) {
		const bool any = json_object_get(json_object_get(v->first.parts, "sums"), sums[i][0]) ||
		                 json_object_get(json_object_get(v->second.parts, "sums"), sums[i][0]);
		if (any)
			compare_write_sum(out, sums[i][1], explain_view_sum(&v->first, sums[i][0]),
			                  explain_view_sum(&v->second, sums[i][0]));
	}
	compare_write_sum(out, "score", explain_view_number(&v->first, "score"),
	                  explain_view_number(&v->second, "score"));
}

static void compare_write_rows(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	size_t top[COMPARE_TABLE_ROWS], n = compare_top(v, top, COMPARE_TABLE_ROWS);
	for (size_t i = 0; i < n; i++) {
		const compare_column *c = &v->columns[top[i]];
		buffer_format(out, "<tr><td>%zu, %zu</td><td>", c->first, c->second);
		explain_view_token(&v->first, c->first, true, out);
		buffer_string(out, "</td><td>");
		explain_view_value(&v->first, v->first.value[c->first], out);
		buffer_string(out, "</td><td>");
		explain_view_value(&v->second, v->second.value[c->second], out);
		buffer_string(out, "</td><td>");
		compare_value(v, compare_difference(v, c), out);
		buffer_string(out, "</td></tr>\n");
	}
}

static void compare_write_unmatched_side(buffer *out, const explain_view *v, size_t i)
{
	buffer_string(out, "<td>");
	if (i >= v->n) {
		buffer_string(out, "none</td><td></td>");
		return;
	}
	explain_view_token(v, i, true, out);
	buffer_string(out, i == v->reader ? " (reader)</td><td>" : "</td><td>");
	explain_view_value(v, v->value[i], out);
	buffer_string(out, "</td>");
}

static void compare_write_unmatched(buffer *out, const void *context)
{
	const compare_view *v = &((const compare_page *)context)->view;
	size_t top[COMPARE_TABLE_ROWS], n = compare_top_unmatched(v, top, COMPARE_TABLE_ROWS);
	for (size_t i = 0; i < n; i++) {
		const compare_column *c = &v->columns[top[i]];
		buffer_string(out, "<tr>");
		compare_write_unmatched_side(out, &v->first, c->first);
		compare_write_unmatched_side(out, &v->second, c->second);
		buffer_string(out, "</tr>\n");
	}
}

static void compare_write_all_matched(buffer *out, const void *context)
{
	size_t top[1];
	if (compare_top_unmatched(&((const compare_page *)context)->view, top, 1) == 0)
		buffer_string(out, " hidden");
}

void compare_html_write(const json_t *answer, const char *nonce, buffer *out)
{
	static const template_part parts[] = {{"style", compare_write_style},
	                                      {"kind", compare_write_kind},
	                                      {"first", compare_write_first},
	                                      {"second", compare_write_second},
	                                      {"first-target", compare_write_first_target},
	                                      {"second-target", compare_write_second_target},
	                                      {"note", compare_write_note},
	                                      {"columns", compare_write_columns},
	                                      {"min", compare_write_min},
	                                      {"max", compare_write_max},
	                                      {"sums", compare_write_sums},
	                                      {"rows", compare_write_rows},
	                                      {"all-matched", compare_write_all_matched},
	                                      {"unmatched", compare_write_unmatched},
	                                      {"numbers", compare_write_numbers},
	                                      {"nonce", compare_write_nonce},
	                                      {"script", compare_write_script},
	                                      {NULL, NULL}};
	compare_page page = {.nonce = nonce};
	if (!compare_view_init(&page.view, answer)) {
		out->failed = true;
		return;
	}
	template_write(out, &embedded_compare_html, parts, &page);
	compare_view_fini(&page.view);
}
