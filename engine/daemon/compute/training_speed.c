#include "engine/daemon/compute/training_speed.h"

#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/cpu/gemm.h"

/* Smaller products run at a third of the speed: their packed copies are at the end of a heap, where prefetches miss the
 * TLB. */
enum { ROWS = 1024, WIDTH = 512, INNER = 512, TRIES = 4 };

/* Fraction of the product's speed that steps of small models reach; attention, norms, softmax and the optimiser wait
 * for memory. */
static const double share = 0.4;

static uv_once_t once = UV_ONCE_INIT;
static double product_speed; /* measured on one thread */

/* Measure the best of several attempts, because other programs use the machine, too. */
static void training_speed_measure(void)
{
	float *a = memory_new(ROWS * WIDTH, sizeof *a), *b = memory_new(WIDTH * INNER, sizeof *b),
	      *c = memory_new(ROWS * INNER, sizeof *c);
	for (int i = 0; i < TRIES && a && b && c; i++) {
		const uint64_t began = clock_ns();
		if (gemm(1, false, false, ROWS, INNER, WIDTH, 1, a, b, 0, c) != STATUS_OK)
			break;
		const double seconds = (double)(clock_ns() - began) * 1e-9;
		const double speed = seconds > 0 ? 2.0 * ROWS * WIDTH * INNER / seconds : 0;
		product_speed = speed > product_speed ? speed : product_speed;
	}
	free(a);
	free(b);
	free(c);
}

double training_speed(const char *backend_name, int threads)
{
	if (strcmp(backend_name, "cpu") != 0)
		return 0;
	uv_once(&once, training_speed_measure);
	return share * product_speed * (double)(threads > 0 ? threads : (int)uv_available_parallelism());
}
