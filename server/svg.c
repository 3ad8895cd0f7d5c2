#include "server/svg.h"

#include <math.h>

enum { SVG_LINE = 22, SVG_BOX = 20, SVG_MARGIN = 14, SVG_BASELINE = 15 };
static const double svg_column = 8.4; /* width in a monospaced font of 14 px */

static double svg_x(size_t column)
{
	return SVG_MARGIN + (double)column * svg_column;
}

static size_t svg_y(size_t line)
{
	return SVG_MARGIN + line * SVG_LINE;
}

void svg_text(buffer *out, size_t line, size_t column)
{
	buffer_format(out, "<text x=\"%.1f\" y=\"%zu\">", svg_x(column), svg_y(line) + SVG_BASELINE);
}

void svg_box(buffer *out, size_t line, size_t column, size_t columns, double heat, bool is_signed)
{
	const double x = svg_x(column), width = (double)columns * svg_column;
	const char *colour = heat < 0 ? SVG_MINUS : SVG_PLUS;
	if (!(fabs(heat) >= 0.005))
		return;
	buffer_format(out,
	              "<rect x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2f\"/>", x,
	              svg_y(line), width, SVG_BOX, colour, 0.75 * fabs(heat));
	if (is_signed && fabs(heat) >= 0.1)
		buffer_format(out, "<path d=\"M%.1f %zuh%.1f\" stroke=\"%s\"%s/>", x, svg_y(line) + SVG_BOX, width,
		              colour, heat < 0 ? " stroke-dasharray=\"2\"" : "");
}

void svg_token(buffer *out, const explain_view *v, size_t i, const buffer *shown, size_t line, size_t column,
               size_t columns)
{
	svg_box(out, line, column, columns, explain_view_heat(v, i), v->parts != NULL);
	if (i == v->position)
		buffer_format(out,
		              "<rect x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"%d\" fill=\"none\" stroke=\"#000\"/>",
		              svg_x(column), svg_y(line), (double)columns * svg_column, SVG_BOX);
	buffer_format(out, "<text x=\"%.1f\" y=\"%zu\" textLength=\"%.1f\" xml:space=\"preserve\"><title>token %zu: ",
	              svg_x(column), svg_y(line) + SVG_BASELINE, (double)columns * svg_column, i);
	explain_view_value(v, v->value[i], out);
	buffer_string(out, "</title>");
	buffer_append(out, shown->data, shown->used);
	buffer_string(out, "</text>\n");
	out->failed |= shown->failed;
}

void svg_legend(buffer *out, const explain_view *v, size_t line)
{
	for (int step = v->parts ? -1 : 0; step <= 1; step++) {
		const size_t column = (size_t)(step + 1) * 16;
		svg_box(out, line, column, 2, step, v->parts != NULL);
		svg_text(out, line, column + 3);
		explain_view_value(v, step * v->max, out);
		buffer_string(out, "</text>\n");
	}
}

void svg_write(buffer *out, const buffer *title, const buffer *body, size_t columns, size_t lines)
{
	buffer_format(out,
	              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%zu\" role=\"img\" "
	              "font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n<title>",
	              svg_x(columns) + SVG_MARGIN, svg_y(lines) + SVG_MARGIN);
	buffer_append(out, title->data, title->used);
	buffer_string(out, "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
	buffer_append(out, body->data, body->used);
	buffer_string(out, "</svg>\n");
	out->failed |= body->failed || title->failed;
}
