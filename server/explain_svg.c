#include "server/explain_svg.h"

#include <string.h>

#include "server/svg.h"

typedef struct svg_place {
	size_t column, line, widest;
} svg_place;

static void explain_svg_token(const explain_view *v, size_t i, svg_place *at, buffer *out)
{
	buffer shown = {0};
	const size_t columns = explain_view_token(v, i, false, &shown);
	if (at->column > 0 && at->column + columns > SVG_COLUMNS) {
		at->column = 0;
		at->line++;
	}
	svg_token(out, v, i, &shown, at->line, at->column, columns);
	buffer_fini(&shown);
	at->column += columns;
	at->widest = at->column > at->widest ? at->column : at->widest;
	if (explain_view_breaks(v, i)) {
		at->column = 0;
		at->line++;
	}
}

/* Below contributions what they sum to. */
static void explain_svg_sums(const explain_view *v, size_t *line, buffer *out)
{
	if (!json_object_get(v->parts, "sums"))
		return;
	svg_text(out, (*line)++, 0);
	buffer_format(out, "score %+.4g = tokens %+.4g", explain_view_number(v, "score"),
	              explain_view_sum(v, "tokens"));
	if (v->reader < v->n)
		buffer_format(out, ", reader %+.4g", explain_view_sum(v, "reader"));
	if (json_object_get(json_object_get(v->parts, "sums"), "source"))
		buffer_format(out, ", source %+.4g", explain_view_sum(v, "source"));
	buffer_string(out, ",</text>\n");
	svg_text(out, (*line)++, 0);
	buffer_format(out, "positions %+.4g, biases %+.4g (logits)</text>\n", explain_view_sum(v, "positions"),
	              explain_view_sum(v, "biases"));
}

void explain_svg_write(const json_t *explanation, buffer *out)
{
	explain_view v;
	buffer body = {0}, title = {0};
	svg_place at = {.line = 2, .widest = SVG_COLUMNS};
	if (!explain_view_init(&v, explanation)) {
		out->failed = true;
		return;
	}
	explain_view_title(&v, &title);
	svg_text(&body, 0, 0);
	buffer_append(&body, title.data, title.used);
	buffer_string(&body, "</text>\n");
	for (size_t i = 0; i < v.n; i++)
		explain_svg_token(&v, i, &at, &body);
	at.line += 2;
	svg_legend(&body, &v, at.line++);
	explain_svg_sums(&v, &at.line, &body);
	svg_write(out, &title, &body, at.widest, at.line);
	buffer_fini(&body);
	buffer_fini(&title);
	explain_view_fini(&v);
}
