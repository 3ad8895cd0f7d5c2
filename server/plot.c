#include "server/plot.h"

#include <math.h>
#include <string.h>

#include "server/markup.h"

enum {
	PLOT_WIDTH = 560,
	PLOT_NAMES = 180, /* left of bars, right of curves */
	PLOT_ROW = 22,
	PLOT_BAR = 12,
	PLOT_AXIS = 26,
	PLOT_EDGE = 16,
	PLOT_HEIGHT = 240, /* for curves */
	PLOT_TICKS = 5
};

/* Okabe and Ito's colours for every kind of colour vision, without yellow, which is too light for a line. */
static const char *const plot_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a6fd1"};
static const char *const plot_dashes[] = {"", "6 3", "2 3", "9 3 2 3"};

/* --- the scale ------------------------------------------------------------------------------------------- */

typedef struct plot_scale {
	double low, high, step; /* in values; step: between ticks */
	double from, to;        /* in pixels */
} plot_scale;

static bool plot_there(double value)
{
	return fabs(value) <= PLOT_MAX;
}

static void plot_include(plot_scale *s, double value)
{
	if (!plot_there(value))
		return;
	s->low = fmin(s->low, value);
	s->high = fmax(s->high, value);
}

/* The ends become multiples of a step of 1, 2 or 5 times a power of ten. */
static void plot_settle(plot_scale *s)
{
	if (!(s->low <= s->high))
		s->low = s->high = 0;
	const double size = fmax(fabs(s->low), fabs(s->high)), range = s->high - s->low;
	const double wide = range > 1e-9 * size ? range : size; /* all values are nearly the same */
	const double raw = (wide > 1 / PLOT_MAX ? wide : 1) / PLOT_TICKS;
	const double power = pow(10, floor(log10(raw))), factor = raw / power;
	s->step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
	s->low = s->step * floor(s->low / s->step);
	s->high = s->step * fmax(ceil(s->high / s->step), s->low / s->step + 1);
}

static double plot_at(const plot_scale *s, double value)
{
	return s->from + (s->to - s->from) * ((value - s->low) / (s->high - s->low));
}

static int plot_ticks(const plot_scale *s)
{
	const double n = round((s->high - s->low) / s->step);
	return n >= 0 && n <= 4 * PLOT_TICKS ? (int)n : 0;
}

static double plot_tick(const plot_scale *s, int i)
{
	const double value = s->low + i * s->step;
	return fabs(value) < s->step / 2 ? 0 : value;
}

/* --- pieces ------------------------------------------------------------------------------------------------- */

static void plot_begin(buffer *out, const char *title, double height)
{
	buffer_format(out, "<svg class=\"plot\" viewBox=\"0 0 %d %.0f\" role=\"img\"><title>", PLOT_WIDTH, height);
	markup_escape(out, title, strlen(title));
	buffer_string(out, "</title>\n");
}

static void plot_text(buffer *out, double x, double y, const char *anchor, const char *text)
{
	buffer_format(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	markup_escape(out, text, strlen(text));
	buffer_string(out, "</text>\n");
}

static void plot_path(buffer *out, double x1, double y1, double x2, double y2, const char *class)
{
	buffer_format(out, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class, x1, y1, x2, y2);
}

static void plot_grid(buffer *out, const plot_scale *s, bool upright, double from, double to)
{
	for (int i = 0; i <= plot_ticks(s); i++) {
		const double value = plot_tick(s, i), at = plot_at(s, value);
		char label[32];
		snprintf(label, sizeof label, "%.4g", value);
		if (upright)
			plot_path(out, at, from, at, to, value == 0 ? "zero" : "grid");
		else
			plot_path(out, from, at, to, at, value == 0 ? "zero" : "grid");
		if (upright)
			plot_text(out, at, to + 16, "middle", label);
		else
			plot_text(out, from - 6, at + 4, "end", label);
	}
}

/* --- bars ------------------------------------------------------------------------------------------------------ */

static void plot_one_bar(buffer *out, const plot_scale *s, const plot_bar *bar, double y)
{
	const double middle = y + PLOT_ROW / 2.0, zero = plot_at(s, 0);
	plot_text(out, PLOT_NAMES - 8, middle + 4, "end", bar->name);
	if (plot_there(bar->value)) {
		const double at = plot_at(s, bar->value);
		buffer_format(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>",
		              bar->pale ? "pale" : "bar", fmin(at, zero), middle - PLOT_BAR / 2.0, fabs(at - zero),
		              PLOT_BAR);
		markup_escape(out, bar->name, strlen(bar->name));
		buffer_format(out, ": %.4g</title></rect>\n", bar->value);
	} else {
		plot_text(out, PLOT_NAMES + 4, middle + 4, "start", "–");
	}
	if (plot_there(bar->low) && plot_there(bar->high)) {
		const double low = plot_at(s, bar->low), high = plot_at(s, bar->high);
		plot_path(out, low, middle, high, middle, "error");
		plot_path(out, low, middle - 4, low, middle + 4, "error");
		plot_path(out, high, middle - 4, high, middle + 4, "error");
	}
	if (plot_there(bar->mark))
		buffer_format(out, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
		              plot_at(s, bar->mark), middle);
}

void plot_bars(buffer *out, const char *title, const plot_bar *bars, size_t n)
{
	plot_scale s = {.from = PLOT_NAMES, .to = PLOT_WIDTH - PLOT_EDGE};
	const double bottom = PLOT_EDGE / 2.0 + (double)n * PLOT_ROW;
	for (size_t i = 0; i < n; i++) {
		plot_include(&s, bars[i].value);
		plot_include(&s, bars[i].low);
		plot_include(&s, bars[i].high);
		plot_include(&s, bars[i].mark);
	}
	plot_settle(&s);
	plot_begin(out, title, bottom + PLOT_AXIS);
	plot_grid(out, &s, true, PLOT_EDGE / 2.0, bottom);
	for (size_t i = 0; i < n; i++)
		plot_one_bar(out, &s, &bars[i], PLOT_EDGE / 2.0 + (double)i * PLOT_ROW);
	buffer_string(out, "</svg>\n");
}

/* --- curves ---------------------------------------------------------------------------------------------------- */

/* A pale series is thin and has the page's colour. */
static void plot_stroke(buffer *out, size_t i, bool pale)
{
	const size_t colours = sizeof plot_colours / sizeof *plot_colours,
	             dashes = sizeof plot_dashes / sizeof *plot_dashes;
	buffer_format(out, "class=\"curve\" stroke=\"%s\" stroke-width=\"%s\" stroke-dasharray=\"%s\"",
	              pale ? "currentColor" : plot_colours[i % colours], pale ? "1" : "2", plot_dashes[i % dashes]);
}

static void plot_one_curve(buffer *out, const plot_scale *xs, const plot_scale *ys, const double *x,
                           const plot_curve *curve, size_t i)
{
	bool drawn = false;
	buffer_string(out, "<path ");
	plot_stroke(out, i, curve->pale);
	buffer_string(out, " d=\"");
	for (size_t k = 0; k < curve->n; k++) {
		const bool drawable = plot_there(x[k]) && plot_there(curve->y[k]);
		if (drawable)
			buffer_format(out, "%c%.1f %.1f", drawn ? 'L' : 'M', plot_at(xs, x[k]),
			              plot_at(ys, curve->y[k]));
		drawn = drawable;
	}
	buffer_string(out, "\"><title>");
	markup_escape(out, curve->name, strlen(curve->name));
	buffer_string(out, "</title></path>\n");
}

void plot_curves(buffer *out, const char *title, const double *x, const plot_curve *curves, size_t n)
{
	const double legend = PLOT_WIDTH - PLOT_NAMES, names = (double)n * PLOT_ROW;
	const double bottom = PLOT_EDGE / 2.0 + fmax(PLOT_HEIGHT, names);
	plot_scale xs = {.low = INFINITY, .high = -INFINITY, .from = 3.5 * PLOT_EDGE, .to = legend - PLOT_EDGE},
	           ys = {.low = INFINITY, .high = -INFINITY, .from = bottom, .to = PLOT_EDGE / 2.0};
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < curves[i].n; k++) {
			plot_include(&xs, x[k]);
			plot_include(&ys, curves[i].y[k]);
		}
	plot_settle(&xs);
	plot_settle(&ys);
	plot_begin(out, title, bottom + PLOT_AXIS);
	plot_grid(out, &xs, true, ys.to, bottom);
	plot_grid(out, &ys, false, xs.from, xs.to);
	for (size_t i = 0; i < n; i++) {
		const double y = ys.to + ((double)i + 0.5) * PLOT_ROW;
		plot_one_curve(out, &xs, &ys, x, &curves[i], i);
		buffer_string(out, "<path ");
		plot_stroke(out, i, curves[i].pale);
		buffer_format(out, " d=\"M%.1f %.1fh28\"/>\n", legend, y);
		plot_text(out, legend + 34, y + 4, "start", curves[i].name);
	}
	buffer_string(out, "</svg>\n");
}
