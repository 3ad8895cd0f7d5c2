#include "engine/recipe/job_estimate.h"

#include <math.h>
#include <stdio.h>

/* A token costs two operations per weight forward and four backward. Each stack of an encoder-decoder has about half of
 * the weights. */
static double operations(const job_request *r, double parameters, const dataset *valid)
{
	const train_options *o = &r->options;
	const double row = o->objective->form->source ? (double)(o->sequence_length + train_options_source(o)) / 2
	                                              : (double)(o->sequence_length * objective_rows(o->objective));
	const double records = (double)o->max_steps * (double)o->batch_size * (double)o->gradient_accumulation;
	const double checks = !valid ? 0 : o->eval_every > 0 ? ceil((double)o->max_steps / (double)o->eval_every) : 1;
	double checked = valid ? (double)dataset_records(valid) : 0;
	if (o->eval_blocks > 0)
		checked = fmin(checked, (double)o->eval_blocks);
	return parameters * row * (6 * records + 2 * checks * checked);
}

status job_estimate_make(job_estimate *out, const job_request *r, const dataset *valid, double speed)
{
	*out = (job_estimate){(double)architecture_count_parameters(r->architecture, r->parsed), NAN};
	if (out->parameters < 0)
		return STATUS_NOMEM;
	if (speed > 0)
		out->seconds = operations(r, out->parameters, valid) / speed;
	return STATUS_OK;
}

const char *job_estimate_text(const job_estimate *e, char out[32])
{
	static const struct {
		const char *unit;
		double seconds, from;
	} units[] = {{"days", 86400, 172800}, {"h", 3600, 5400}, {"min", 60, 100}, {"s", 1, 0}};
	size_t i = 0;
	out[0] = 0;
	if (!isfinite(e->seconds))
		return out;
	while (e->seconds < units[i].from)
		i++;
	const double count = fmax(1, e->seconds / units[i].seconds);
	snprintf(out, 32, count < 9.95 ? "about %.2g %s" : "about %.0f %s", count, units[i].unit);
	return out;
}
