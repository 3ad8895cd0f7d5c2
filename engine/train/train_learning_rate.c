/* The warm-up's first step already trains: (t + 1) / warmup. Where it ends and the
 * schedule begins, both give the full rate. */
#include "engine/train/trainer.h"

#include <math.h>

double train_learning_rate(const train_options *o, int64_t step)
{
	static const double pi = 3.14159265358979323846;
	if (step < o->warmup_steps)
		return o->learning_rate * (double)(step + 1) / (double)o->warmup_steps;
	if (o->schedule == SCHEDULE_CONSTANT)
		return o->learning_rate;
	if (step >= o->max_steps)
		return 0;
	double done = (double)(step - o->warmup_steps) / (double)(o->max_steps - o->warmup_steps);
	return o->learning_rate * (o->schedule == SCHEDULE_LINEAR ? 1 - done : (1 + cos(pi * done)) / 2);
}
