/* The server writes the first view into the page, so the page says something without scripts; the script draws the
 * others: contributions or weights, any row, any position, what a token has read and what has read it. The data travels
 * inside the page as JSON in which every "<" is written as an escape, so no token can end its element. */
#include "server/explain_view.h"

#include <math.h>
#include <string.h>

#include "server/markup.h"
#include "server/template.h"

enum { EXPLAIN_TABLE_ROWS = 20 };

typedef struct explain_page {
	const json_t *explanation;
	const char *nonce;
	explain_view view, source; /* a model without a source has no tokens in `source` */
} explain_page;

static void explain_write_style(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_explain_css.data, embedded_explain_css.bytes);
}

static void explain_write_script(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_strip_js.data, embedded_strip_js.bytes);
	buffer_append(out, embedded_explain_js.data, embedded_explain_js.bytes);
}

static void explain_write_numbers(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_numbers_html.data, embedded_numbers_html.bytes);
}

static void explain_write_nonce(buffer *out, const void *context)
{
	const explain_page *page = context;
	buffer_string(out, page->nonce);
}

static void explain_write_kind(buffer *out, const void *context)
{
	const explain_page *page = context;
	buffer_string(out, page->view.parts ? "contributions" : "weights");
}

static void explain_write_model(buffer *out, const void *context)
{
	const explain_page *page = context;
	const json_t *model = json_object_get(page->explanation, "model");
	if (json_is_string(model)) {
		buffer_string(out, "Model <code>");
		markup_escape(out, json_string_value(model), json_string_length(model));
		buffer_string(out, "</code>, ");
	}
	buffer_format(out, "%zu tokens", page->view.n);
}

static void explain_write_title(buffer *out, const void *context)
{
	const explain_page *page = context;
	explain_view_title(&page->view, out);
}

static void explain_write_target(buffer *out, const void *context)
{
	const explain_page *page = context;
	explain_view_likelihood(&page->view, out);
}

static void explain_write_strip(buffer *out, const explain_view *v)
{
	for (size_t i = 0; i < v->n; i++) {
		double heat = explain_view_heat(v, i);
		const char *here = i == v->position ? "here" : "";
		if (v->parts)
			buffer_format(out, "<span style=\"--w:%.4g\" title=\"token %zu: %+.4g\" class=\"%s %s\">",
			              fabs(heat), i, v->value[i], heat < 0 ? "minus" : "plus", here);
		else
			buffer_format(out, "<span style=\"--w:%.4g\" title=\"token %zu: %.2f %%\" class=\"%s\">", heat,
			              i, 100 * v->value[i], here);
		explain_view_token(v, i, true, out);
		buffer_string(out, "</span>");
	}
}

static void explain_write_tokens(buffer *out, const void *context)
{
	explain_write_strip(out, &((const explain_page *)context)->view);
}

static void explain_write_source(buffer *out, const void *context)
{
	explain_write_strip(out, &((const explain_page *)context)->source);
}

static void explain_write_sourceless(buffer *out, const void *context)
{
	if (((const explain_page *)context)->source.n == 0)
		buffer_string(out, " hidden");
}

static void explain_write_min(buffer *out, const void *context)
{
	const explain_view *v = &((const explain_page *)context)->view;
	explain_view_value(v, v->parts ? -v->max : 0, out);
}

static void explain_write_max(buffer *out, const void *context)
{
	const explain_view *v = &((const explain_page *)context)->view;
	explain_view_value(v, v->max, out);
}

static void explain_write_sum(buffer *out, const char *name, double value)
{
	buffer_format(out, "<tr><th scope=\"row\">%s</th><td>%+.6f</td></tr>\n", name, value);
}

static void explain_write_small(buffer *out, const char *name, double value)
{
	buffer_format(out, "<tr><th scope=\"row\">%s</th><td>%+.1g</td></tr>\n", name, value);
}

/* Write all parts of the score for contributions, and the available sums for other methods. */
static void explain_write_sums(buffer *out, const void *context)
{
	const explain_view *v = &((const explain_page *)context)->view;
	const bool whole = json_object_get(v->parts, "sums") != NULL;
	if (!v->parts)
		return;
	if (whole)
		explain_write_sum(out, v->reader < v->n ? "tokens but the reader" : "tokens",
		                  explain_view_sum(v, "tokens"));
	if (v->reader < v->n) {
		buffer_format(out, "<tr><th scope=\"row\">reader, token %zu “", v->reader);
		explain_view_token(v, v->reader, false, out);
		buffer_format(out, "”</th><td>%+.6f</td></tr>\n", v->value[v->reader]);
	}
	if (json_object_get(json_object_get(v->parts, "sums"), "source"))
		explain_write_sum(out, "tokens of the source", explain_view_sum(v, "source"));
	if (whole) {
		explain_write_sum(out, "positions", explain_view_sum(v, "positions"));
		explain_write_sum(out, "biases", explain_view_sum(v, "biases"));
		explain_write_small(out, "rounding", explain_view_sum(v, "rounding"));
	}
	if (json_object_get(v->parts, "difference")) {
		explain_write_sum(out, "difference from the baseline", explain_view_number(v, "difference"));
		explain_write_small(out, "completeness error", explain_view_number(v, "completeness_error"));
	}
	explain_write_sum(out, "score", explain_view_number(v, "score"));
}

static void explain_write_largest(buffer *out, const explain_view *v)
{
	size_t top[EXPLAIN_TABLE_ROWS], n = explain_view_top(v, top, EXPLAIN_TABLE_ROWS);
	for (size_t i = 0; i < n; i++) {
		buffer_format(out, "<tr><td>%zu</td><td>", top[i]);
		explain_view_token(v, top[i], true, out);
		buffer_string(out, "</td><td>");
		explain_view_value(v, v->value[top[i]], out);
		buffer_string(out, "</td></tr>\n");
	}
}

static void explain_write_rows(buffer *out, const void *context)
{
	explain_write_largest(out, &((const explain_page *)context)->view);
}

static void explain_write_source_rows(buffer *out, const void *context)
{
	explain_write_largest(out, &((const explain_page *)context)->source);
}

static void explain_write_data(buffer *out, const void *context)
{
	markup_data(out, ((const explain_page *)context)->explanation);
}

void explain_html_write(const json_t *explanation, const char *nonce, buffer *out)
{
	static const template_part parts[] = {{"style", explain_write_style},
	                                      {"kind", explain_write_kind},
	                                      {"model", explain_write_model},
	                                      {"title", explain_write_title},
	                                      {"target", explain_write_target},
	                                      {"tokens", explain_write_tokens},
	                                      {"min", explain_write_min},
	                                      {"max", explain_write_max},
	                                      {"sums", explain_write_sums},
	                                      {"rows", explain_write_rows},
	                                      {"data", explain_write_data},
	                                      {"nonce", explain_write_nonce},
	                                      {"numbers", explain_write_numbers},
	                                      {"script", explain_write_script},
	                                      {"source", explain_write_source},
	                                      {"source_rows", explain_write_source_rows},
	                                      {"sourceless", explain_write_sourceless},
	                                      {NULL, NULL}};
	explain_page page = {.explanation = explanation, .nonce = nonce};
	if (explain_view_init(&page.view, explanation) && explain_view_init_source(&page.source, explanation)) {
		explain_view_share_scale(&page.view, &page.source);
		template_write(out, &embedded_explain_html, parts, &page);
	} else {
		out->failed = true;
	}
	explain_view_fini(&page.view);
	explain_view_fini(&page.source);
}
