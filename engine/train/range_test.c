#include "engine/train/range_test.h"

#include <math.h>

/* The first steps change the smoothed loss only by chance. */
enum { FIRST_STEPS = 10 };
static const double smoothing = 0.95, too_high = 2;

void range_test_take(range_test *t, int64_t step, double rate, double loss)
{
	if (t->ended != 0)
		return;
	if (!isfinite(loss)) {
		t->ended = 1;
		return;
	}
	const double before = t->weight > 0 ? t->mean / t->weight : loss;
	t->mean = smoothing * t->mean + (1 - smoothing) * loss;
	t->weight = smoothing * t->weight + (1 - smoothing);
	const double now = t->mean / t->weight;
	if (step == 1)
		t->first = t->lowest = now;
	t->lowest = fmin(t->lowest, now);
	if (step > FIRST_STEPS && before - now > t->fall) {
		t->fall = before - now;
		t->rate = rate;
	}
	t->ended = step > FIRST_STEPS && now > t->first && now > too_high * t->lowest;
}
