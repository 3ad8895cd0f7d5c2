/* The first step of the warm-up already trains: (t + 1) / warmup. Where it ends and the schedule starts, both give the
 * full rate. The warm-up of transformers starts with 0: t / warmup. A range test has none. */
#include "engine/train/trainer.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Fraction of the highest rate in the restarting schedule of transformers. */
static double restarting(const train_options *o, int64_t step)
{
	if (step < o->warmup_steps)
		return (double)step / (double)o->warmup_steps;
	if (step >= o->max_steps)
		return 0;
	const double done = (double)(step - o->warmup_steps) / (double)(o->max_steps - o->warmup_steps);
	return (1 + cos(pi * fmod(o->cycles * done, 1))) / 2;
}

/* Interpolate from one rate to the other by equal factors. */
static double rising(const train_options *o, int64_t step)
{
	const double done = o->max_steps > 1 ? (double)step / (double)(o->max_steps - 1) : 1;
	return o->range_from * pow(o->learning_rate / o->range_from, fmin(done, 1));
}

double train_learning_rate(const train_options *o, int64_t step)
{
	if (o->schedule == SCHEDULE_RANGE_TEST)
		return rising(o, step);
	if (o->schedule == SCHEDULE_COSINE_WITH_RESTARTS)
		return o->learning_rate * restarting(o, step);
	if (step < o->warmup_steps)
		return o->learning_rate * (double)(step + 1) / (double)o->warmup_steps;
	if (o->schedule == SCHEDULE_CONSTANT)
		return o->learning_rate;
	if (step >= o->max_steps)
		return 0;
	double done = (double)(step - o->warmup_steps) / (double)(o->max_steps - o->warmup_steps);
	if (o->schedule == SCHEDULE_TAIL)
		return o->learning_rate * fmin(1, (1 - done) * o->tail);
	return o->learning_rate * (o->schedule == SCHEDULE_LINEAR ? 1 - done : (1 + cos(pi * done)) / 2);
}
