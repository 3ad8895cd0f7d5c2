/* curve.c - the losses are drawn into a grid of dots, one for each character or, in braille, 2 x 4. Of a column of dots
 * the mean loss is drawn, and neighbours are joined by a straight line. */
#include "clients/cli/curve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_COLUMNS = 512, MOST_ROWS = 32, MOST_DOTS = 2 * MOST_COLUMNS, LABEL_BYTES = 32 };

void curve_init(curve *c)
{
	*c = (curve){.stride = 1};
}

/* --- bins ---------------------------------------------------------------------------------- */

static void halve(curve_bin *bins)
{
	for (int i = 0; i < CURVE_BINS; i++) {
		curve_bin sum = {0};

		for (int j = 2 * i; j < 2 * i + 2 && j < CURVE_BINS; j++) {
			sum.losses += bins[j].losses;
			sum.steps += bins[j].steps;
			sum.n += bins[j].n;
		}
		bins[i] = sum;
	}
}

static void add_to(curve_bin *bin, long long step, double loss)
{
	if (!isfinite(loss))
		return;
	bin->losses += loss;
	bin->steps += (double)step;
	bin->n++;
}

void curve_add(curve *c, long long step, double train_loss, double valid_loss)
{
	if (step < 1 || (!isfinite(train_loss) && !isfinite(valid_loss)))
		return;
	while ((step - 1) / c->stride >= CURVE_BINS) {
		halve(c->train);
		halve(c->valid);
		c->stride *= 2;
	}
	c->first = c->last == 0 || step < c->first ? step : c->first;
	c->last = step > c->last ? step : c->last;
	add_to(&c->train[(step - 1) / c->stride], step, train_loss);
	add_to(&c->valid[(step - 1) / c->stride], step, valid_loss);
}

/* --- columns of dots --------------------------------------------------------------------------- */

typedef struct plot {
	int dots_wide, dots_high, rows, columns;
	bool utf8;
	double train[MOST_DOTS], valid[MOST_DOTS]; /* mean losses; NaN: none */
	double least, greatest;
	unsigned char cells[MOST_ROWS][MOST_COLUMNS]; /* the dots of a character: bits of its braille pattern */
	bool marks[MOST_ROWS][MOST_COLUMNS];          /* a validation loss */
} plot;

/* Mean losses of the columns of dots, of all bins that fall on one. */
static void gather(const curve *c, const curve_bin *bins, const plot *p, double *out)
{
	double sums[MOST_DOTS] = {0};
	int counts[MOST_DOTS] = {0};
	const double per_step = (double)(p->dots_wide - 1) / (double)(c->last - c->first);

	for (int i = 0; i < CURVE_BINS; i++) {
		if (bins[i].n == 0)
			continue;
		int x = (int)lround((bins[i].steps / (double)bins[i].n - (double)c->first) * per_step);

		x = x < 0 ? 0 : x >= p->dots_wide ? p->dots_wide - 1 : x;
		sums[x] += bins[i].losses / (double)bins[i].n;
		counts[x]++;
	}
	for (int x = 0; x < p->dots_wide; x++)
		out[x] = counts[x] ? sums[x] / counts[x] : NAN;
}

/* The row of dots of a loss, the greatest in row 0. Halves, since the difference of two losses may overflow. */
static int curve_row_of(const plot *p, double loss)
{
	const double range = p->greatest / 2 - p->least / 2;
	const double share = range > 0 ? (p->greatest / 2 - loss / 2) / range : 0.5;

	return (int)lround(share * (p->dots_high - 1));
}

/* --- dots -------------------------------------------------------------------------------------- */

static void set_dot(plot *p, int x, int y)
{
	static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

	if (p->utf8)
		p->cells[y / 4][x / 2] |= bits[y % 4][x % 2];
	else
		p->cells[y][x] = 1;
}

/* From the column before x0 to x1, each column's dots reaching up to those of the column before. */
static void curve_join(plot *p, int x0, int y0, int x1, int y1)
{
	int before = y0;

	for (int x = x0 + 1; x <= x1; x++) {
		int y = y0 + (int)lround((double)(y1 - y0) * (x - x0) / (x1 - x0)), step = y < before ? -1 : 1;

		for (int at = before == y ? y : before + step; at != y; at += step)
			set_dot(p, x, at);
		set_dot(p, x, y);
		before = y;
	}
}

static void draw_line(plot *p)
{
	int before = -1, row = 0;

	for (int x = 0; x < p->dots_wide; x++) {
		if (isnan(p->train[x]))
			continue;
		int y = curve_row_of(p, p->train[x]);

		if (before < 0)
			set_dot(p, x, y);
		else
			curve_join(p, before, row, x, y);
		before = x;
		row = y;
	}
}

static void draw_marks(plot *p)
{
	for (int x = 0; x < p->dots_wide; x++) {
		if (isnan(p->valid[x]))
			continue;
		int y = curve_row_of(p, p->valid[x]);

		p->marks[p->utf8 ? y / 4 : y][p->utf8 ? x / 2 : x] = true;
	}
}

/* --- text ------------------------------------------------------------------------------------------ */

static void write_row(const plot *p, int row, const char *label, int label_width, text *out)
{
	int used = 0;

	text_format(out, "%*s %s", label_width, label, p->utf8 ? "│" : "|");
	for (int column = 0; column < p->columns; column++)
		if (p->cells[row][column] || p->marks[row][column])
			used = column + 1;
	for (int column = 0; column < used; column++) {
		const unsigned char dots = p->cells[row][column];
		/* U+2800 and the pattern */
		const char braille[4] = {(char)0xe2, (char)(0xa0 | dots >> 6), (char)(0x80 | (dots & 0x3f)), '\0'};

		text_string(out, p->marks[row][column] ? "o" : !dots ? " " : p->utf8 ? braille : "*");
	}
	text_string(out, "\n");
}

/* The first step below the first column, the last one below the last, and between them what is drawn. */
static void write_axis(const curve *c, const plot *p, int indent, bool marked, text *out)
{
	const char *legend = marked ? "training loss, o: validation" : "training loss";
	char first[LABEL_BYTES], last[LABEL_BYTES];
	int n = snprintf(first, sizeof(first), "%lld", c->first), m = snprintf(last, sizeof(last), "%lld", c->last);
	int gap = p->columns - n - m - (int)strlen(legend);

	text_format(out, "%*s%s", indent, "", first);
	if (gap >= 4)
		text_format(out, "%*s%s%*s", gap / 2, "", legend, gap - gap / 2, "");
	else
		text_format(out, "%*s", p->columns - n - m > 1 ? p->columns - n - m : 1, "");
	text_format(out, "%s\n", last);
}

static int longer(const char *a, const char *b)
{
	return (int)(strlen(a) > strlen(b) ? strlen(a) : strlen(b));
}

/* Everything of p but utf8. False: there is no room. */
static bool lay_out(const curve *c, plot *p, int columns, int rows)
{
	p->columns = columns < MOST_COLUMNS ? columns : MOST_COLUMNS;
	p->rows = rows;
	p->dots_wide = p->utf8 ? 2 * p->columns : p->columns;
	p->dots_high = p->utf8 ? 4 * rows : rows;
	if (p->columns < 2)
		return false;
	gather(c, c->train, p, p->train);
	gather(c, c->valid, p, p->valid);
	p->least = INFINITY;
	p->greatest = -INFINITY;
	for (int x = 0; x < p->dots_wide; x++) {
		p->least = fmin(p->least, fmin(p->train[x], p->valid[x]));
		p->greatest = fmax(p->greatest, fmax(p->train[x], p->valid[x]));
	}
	return true;
}

bool curve_draw(const curve *c, int width, int rows, bool utf8, text *out)
{
	char greatest[LABEL_BYTES], least[LABEL_BYTES];
	plot p = {.utf8 = utf8};
	int label = 0, before;
	bool marked = false;

	if (c->last <= c->first || width < CURVE_LEAST_WIDTH || rows < 2 || rows > MOST_ROWS)
		return false;
	/* The labels are those of means, which depend on the width that the labels leave. */
	do {
		before = label;
		if (!lay_out(c, &p, width - label - 2, rows))
			return false;
		snprintf(greatest, sizeof(greatest), "%.4g", p.greatest);
		snprintf(least, sizeof(least), "%.4g", p.least);
		label = longer(greatest, least) > label ? longer(greatest, least) : label;
	} while (label > before);
	draw_line(&p);
	draw_marks(&p);
	for (int x = 0; x < p.dots_wide; x++)
		marked = marked || !isnan(p.valid[x]);
	for (int row = 0; row < rows; row++)
		write_row(&p, row, row == 0 ? greatest : row == rows - 1 ? least : "", label, out);
	write_axis(c, &p, label + 2, marked, out);
	return true;
}
