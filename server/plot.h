/* plot.h - small charts as SVG inside a page: horizontal bars with error bars, and curves. Text and axes have the
 * page's colour. Series differ by dashes and by colours that are distinguishable with every kind of colour vision. */
#ifndef SERVER_PLOT_H
#define SERVER_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "server/buffer.h"

enum { PLOT_SERIES = 16, PLOT_POINTS = 256 };
#define PLOT_MAX 1e30 /* larger absolute values count as absent, like NaN */

typedef struct plot_bar {
	const char *name;
	double value, low, high; /* low and high: the ends of the error bar */
	double mark;             /* a second value, shown as a hollow circle */
	bool pale;               /* drawn as a reference */
} plot_bar;

typedef struct plot_curve {
	const char *name;
	double y[PLOT_POINTS];
	size_t n;
	bool pale;
} plot_curve;

/* Append a chart with one bar per line. title: the text for screen readers. */
void plot_bars(buffer *out, const char *title, const plot_bar *bars, size_t n);
/* Append a chart of curves over common x, increasing, with a legend. */
void plot_curves(buffer *out, const char *title, const double *x, const plot_curve *curves, size_t n);

#endif
