/* Each text has its width said (textLength), so a token fills its box whatever font a viewer has. */
#include "server/explain_svg.h"

#include <math.h>
#include <string.h>

#include "server/explain_view.h"

enum { SVG_COLUMNS = 80, SVG_LINE = 22, SVG_MARGIN = 14, SVG_BASELINE = 15 };
static const double svg_column = 8.4; /* of a monospaced font of 14 px */
static const char svg_plus[] = "#e66100", svg_minus[] = "#1a6fc4";

typedef struct svg_place {
	size_t column, line, widest;
} svg_place;

static double svg_x(size_t column)
{
	return SVG_MARGIN + (double)column * svg_column;
}

static size_t svg_y(size_t line)
{
	return SVG_MARGIN + line * SVG_LINE;
}

static void svg_box(buffer *out, const svg_place *at, size_t columns, double heat, bool is_signed)
{
	double x = svg_x(at->column), width = (double)columns * svg_column;
	const char *colour = heat < 0 ? svg_minus : svg_plus;
	if (!(fabs(heat) >= 0.005))
		return;
	buffer_format(out,
	              "<rect x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"20\" fill=\"%s\" fill-opacity=\"%.2f\"/>", x,
	              svg_y(at->line), width, colour, 0.75 * fabs(heat));
	if (is_signed && fabs(heat) >= 0.1)
		buffer_format(out, "<path d=\"M%.1f %zuh%.1f\" stroke=\"%s\"%s/>", x, svg_y(at->line) + 20, width,
		              colour, heat < 0 ? " stroke-dasharray=\"2\"" : "");
}

static void svg_token(const explain_view *v, size_t i, svg_place *at, buffer *out)
{
	const json_t *text = json_object_get(json_array_get(v->tokens, i), "text");
	buffer shown = {0};
	size_t columns = explain_view_token(v, i, false, &shown);
	if (at->column > 0 && at->column + columns > SVG_COLUMNS) {
		at->column = 0;
		at->line++;
	}
	svg_box(out, at, columns, explain_view_heat(v, i), v->parts != NULL);
	if (i == v->position)
		buffer_format(out,
		              "<rect x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"20\" fill=\"none\" stroke=\"#000\"/>",
		              svg_x(at->column), svg_y(at->line), (double)columns * svg_column);
	buffer_format(out, "<text x=\"%.1f\" y=\"%zu\" textLength=\"%.1f\" xml:space=\"preserve\"><title>token %zu: ",
	              svg_x(at->column), svg_y(at->line) + SVG_BASELINE, (double)columns * svg_column, i);
	explain_view_value(v, v->value[i], out);
	buffer_string(out, "</title>");
	buffer_append(out, shown.data, shown.used);
	buffer_string(out, "</text>\n");
	out->failed |= shown.failed;
	buffer_fini(&shown);
	at->column += columns;
	at->widest = at->column > at->widest ? at->column : at->widest;
	if (json_is_string(text) && memchr(json_string_value(text), '\n', json_string_length(text))) {
		at->column = 0;
		at->line++;
	}
}

static void svg_line(buffer *out, size_t line, size_t column)
{
	buffer_format(out, "<text x=\"%.1f\" y=\"%zu\">", svg_x(column), svg_y(line) + SVG_BASELINE);
}

/* Three boxes with the numbers that they stand for; below contributions what they sum to. */
static void svg_legend(const explain_view *v, svg_place *at, buffer *out)
{
	at->line += 2;
	for (int step = v->parts ? -1 : 0; step <= 1; step++) {
		at->column = (size_t)(step + 1) * 16;
		svg_box(out, at, 2, step, v->parts != NULL);
		svg_line(out, at->line, at->column + 3);
		explain_view_value(v, step * v->max, out);
		buffer_string(out, "</text>\n");
	}
	at->line++;
	if (!json_object_get(v->parts, "sums"))
		return;
	svg_line(out, at->line++, 0);
	buffer_format(out, "score %+.4g = tokens %+.4g", explain_view_number(v, "score"),
	              explain_view_sum(v, "tokens"));
	if (v->reader < v->n)
		buffer_format(out, ", reader %+.4g", explain_view_sum(v, "reader"));
	buffer_string(out, ",</text>\n");
	svg_line(out, at->line++, 0);
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
	for (size_t i = 0; i < v.n; i++)
		svg_token(&v, i, &at, &body);
	svg_legend(&v, &at, &body);
	buffer_format(out,
	              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%zu\" role=\"img\" "
	              "font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n<title>",
	              svg_x(at.widest) + SVG_MARGIN, svg_y(at.line) + SVG_MARGIN);
	buffer_append(out, title.data, title.used);
	buffer_string(out, "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
	svg_line(out, 0, 0);
	buffer_append(out, title.data, title.used);
	buffer_string(out, "</text>\n");
	buffer_append(out, body.data, body.used);
	buffer_string(out, "</svg>\n");
	out->failed |= body.failed || title.failed;
	buffer_fini(&body);
	buffer_fini(&title);
	explain_view_fini(&v);
}
