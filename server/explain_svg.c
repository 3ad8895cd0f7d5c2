#include "server/explain_view.h"

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

/* All tokens of a view, and a line below them. */
static void explain_svg_tokens(const explain_view *v, svg_place *at, buffer *out)
{
	for (size_t i = 0; i < v->n; i++)
		explain_svg_token(v, i, at, out);
	at->column = 0;
	at->line += 2;
}

static void explain_svg_line(svg_place *at, const char *text, buffer *out)
{
	svg_text(out, at->line++, 0);
	buffer_format(out, "%s</text>\n", text);
}

/* Draw the source's tokens above those of the text. */
static void explain_svg_views(const explain_view *v, const explain_view *source, buffer *out)
{
	buffer body = {0}, title = {0};
	svg_place at = {.line = 2, .widest = SVG_COLUMNS};
	explain_view_title(v, &title);
	svg_text(&body, 0, 0);
	buffer_append(&body, title.data, title.used);
	buffer_string(&body, "</text>\n");
	if (source->n > 0) {
		explain_svg_line(&at, "source:", &body);
		explain_svg_tokens(source, &at, &body);
		explain_svg_line(&at, "text:", &body);
	}
	explain_svg_tokens(v, &at, &body);
	svg_legend(&body, v, at.line++);
	explain_svg_sums(v, &at.line, &body);
	svg_write(out, &title, &body, at.widest, at.line);
	buffer_fini(&body);
	buffer_fini(&title);
}

void explain_svg_write(const json_t *explanation, buffer *out)
{
	explain_view v, source = {0};
	if (explain_view_init(&v, explanation) && explain_view_init_source(&source, explanation)) {
		explain_view_share_scale(&v, &source);
		explain_svg_views(&v, &source, out);
	} else {
		out->failed = true;
	}
	explain_view_fini(&source);
	explain_view_fini(&v);
}
