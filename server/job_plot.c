#include "server/job_plot.h"

#include <math.h>
#include <string.h>

#include "server/markup.h"

enum { LEFT = 80, TOP = 40, HEIGHT = 320, RIGHT = 24, BOTTOM = 56, TICKS = 6 };

typedef struct job_plot_range {
	double low, high;
} job_plot_range;

void job_plot_add(job_plot *p, const json_t *data)
{
	const json_t *train = json_object_get(data, "train_loss"), *valid = json_object_get(data, "valid_loss");
	const json_int_t step = json_integer_value(json_object_get(data, "step"));
	p->total = p->total ? p->total : json_integer_value(json_object_get(data, "total_steps"));
	if (step < 1 || p->total < 1)
		return;
	const double at = (double)(step - 1) / (double)p->total * JOB_PLOT_COLUMNS;
	const int column = at < 0 ? 0 : at >= JOB_PLOT_COLUMNS ? JOB_PLOT_COLUMNS - 1 : (int)at;
	p->latest = step > p->latest ? step : p->latest;
	if (json_is_number(train)) {
		p->sum[column] += json_number_value(train);
		p->count[column]++;
	}
	if (json_is_number(valid)) {
		p->valid[column] = json_number_value(valid);
		p->valid_count[column]++;
	}
}

static void job_plot_widen(job_plot_range *r, double x)
{
	r->low = fmin(r->low, x);
	r->high = fmax(r->high, x);
}

/* Range of all losses; false if there are none. */
static bool job_plot_losses(const job_plot *p, job_plot_range *r)
{
	*r = (job_plot_range){INFINITY, -INFINITY};
	for (int i = 0; i < JOB_PLOT_COLUMNS; i++) {
		if (p->count[i])
			job_plot_widen(r, p->sum[i] / p->count[i]);
		if (p->valid_count[i])
			job_plot_widen(r, p->valid[i]);
	}
	return r->high >= r->low;
}

/* The distance of at most TICKS ticks: 1, 2 or 5 times a power of ten. */
static double job_plot_tick(double span)
{
	const double power = pow(10, floor(log10(span / TICKS)));
	for (int i = 0; i < 3; i++) {
		const double tick = power * (const double[]){1, 2, 5}[i];
		if (span / tick <= TICKS)
			return tick;
	}
	return 10 * power;
}

static double job_plot_y(const job_plot_range *r, double loss)
{
	return TOP + (r->high - loss) / (r->high - r->low) * HEIGHT;
}

static void job_plot_axes(const job_plot *p, const job_plot_range *r, buffer *out)
{
	const double middle = LEFT + JOB_PLOT_COLUMNS / 2.0;
	const double tick = job_plot_tick(r->high - r->low), steps = fmax(job_plot_tick((double)p->total), 1);
	for (double loss = ceil(r->low / tick) * tick; loss <= r->high; loss += tick)
		buffer_format(out,
		              "<path class=\"grid\" d=\"M%d %.1fh%d\"/><text x=\"%d\" y=\"%.1f\" "
		              "text-anchor=\"end\">%.6g</text>\n",
		              LEFT, job_plot_y(r, loss), JOB_PLOT_COLUMNS, LEFT - 8, job_plot_y(r, loss) + 4,
		              fabs(loss) < tick / 2 ? 0 : loss);
	for (double step = 0; step <= (double)p->total; step += steps)
		buffer_format(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.9g</text>\n",
		              LEFT + step / (double)p->total * JOB_PLOT_COLUMNS, TOP + HEIGHT + 20, step);
	buffer_format(
	    out,
	    "<path class=\"axis\" d=\"M%d %dv%dh%d\"/>\n"
	    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">step</text>\n"
	    "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">loss (nats per token)</text>\n",
	    LEFT, TOP, HEIGHT, JOB_PLOT_COLUMNS, middle, TOP + HEIGHT + 44, TOP + HEIGHT / 2.0);
}

/* One line through the columns that have a value; marks: with a dot at each. */
static void job_plot_line(const job_plot_range *r, const char *kind, const double *value, const int *count, bool marks,
                          buffer *out)
{
	bool started = false;
	buffer_format(out, "<path class=\"%s\" d=\"", kind);
	for (int i = 0; i < JOB_PLOT_COLUMNS; i++) {
		if (!count[i])
			continue;
		buffer_format(out, "%s%.1f %.1f", started ? "L" : "M", LEFT + i + 0.5, job_plot_y(r, value[i]));
		started = true;
	}
	buffer_string(out, "\"/>\n");
	for (int i = 0; i < JOB_PLOT_COLUMNS && marks; i++)
		if (count[i])
			buffer_format(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", kind,
			              LEFT + i + 0.5, job_plot_y(r, value[i]));
}

static void job_plot_curves(const job_plot *p, buffer *out)
{
	double mean[JOB_PLOT_COLUMNS];
	job_plot_range r;
	if (!job_plot_losses(p, &r)) {
		buffer_format(out, "<text x=\"%d\" y=\"%d\">No step is reported yet.</text>\n", LEFT, TOP + 20);
		return;
	}
	if (r.high - r.low < 1e-6 * fmax(1, fabs(r.high))) /* a line in the middle */
		r = (job_plot_range){r.low - 0.5, r.high + 0.5};
	for (int i = 0; i < JOB_PLOT_COLUMNS; i++)
		mean[i] = p->count[i] ? p->sum[i] / p->count[i] : 0;
	job_plot_axes(p, &r, out);
	job_plot_line(&r, "train", mean, p->count, false, out);
	job_plot_line(&r, "valid", p->valid, p->valid_count, true, out);
}

void job_plot_write(const job_plot *p, const char *id, buffer *out)
{
	const int width = LEFT + JOB_PLOT_COLUMNS + RIGHT, height = TOP + HEIGHT + BOTTOM;
	buffer_format(out,
	              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n",
	              width, height, width, height);
	buffer_string(out, "<style>svg{background:#fff;color-scheme:light dark}text{font:12px sans-serif;fill:#333}"
	                   "path{fill:none}.axis{stroke:#777}.grid{stroke:#ddd}.train{stroke:#1a6fc4;stroke-width:1.5}"
	                   "path.valid{stroke:#e66100;stroke-width:1.5}circle.valid{fill:#e66100}"
	                   "text.train{fill:#1a6fc4;stroke:none}text.valid{fill:#e66100}"
	                   "@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#ccc}.grid{stroke:#333}"
	                   ".train{stroke:#6cb0f5}text.train{fill:#6cb0f5}path.valid{stroke:#ff9a4d}"
	                   "circle.valid,text.valid{fill:#ff9a4d}}</style>\n<title>");
	markup_escape(out, id, strlen(id));
	buffer_format(out, "</title>\n<text x=\"%d\" y=\"22\">step %lld of %lld</text>\n", LEFT, (long long)p->latest,
	              (long long)p->total);
	buffer_format(out,
	              "<text class=\"train\" x=\"%d\" y=\"22\">training loss</text>\n"
	              "<text class=\"valid\" x=\"%d\" y=\"22\">validation loss</text>\n",
	              LEFT + 400, LEFT + 510);
	job_plot_curves(p, out);
	buffer_string(out, "</svg>\n");
}
