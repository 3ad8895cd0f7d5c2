/* bench_train - training steps on random tokens (support/training.h): a contestant (support/bench.h).
 *
 *   bench_train CONFIG BATCH LENGTH [recompute|bf16]
 *
 * The ready line holds the FLOPs of the step's matrix products (two per multiply-add; attention not counted) and the
 * bytes of its plan; with `recompute` activations are computed again in the backward pass, with `bf16` activations and
 * the weights in products are bf16. The last line, after the end of standard input, holds the peak of resident memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/cpu/threads.h"
#include "tests/bench/support/training.h"

/* A time is that from one update's end to the next; the first begins with its batch. */
static void steps(void *context, int count, bench_times *times)
{
	training *t = context;
	uint64_t began = clock_ns();
	training_batch(t);
	for (int i = 0; i < count; i++) {
		training_step(t, i == count - 1);
		uint64_t now = clock_ns();
		bench_times_add(times, (double)(now - began));
		began = now;
	}
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	if (argc < 4)
		bench_fail("usage: bench_train CONFIG BATCH LENGTH [recompute|bf16]");
	const char *way = argc > 4 ? argv[4] : "";
	backend *b = bench_backend();
	training t;
	training_open(&t, b, argv[1],
	              &(training_shape){.batch = atoll(argv[2]),
	                                .length = atoll(argv[3]),
	                                .bf16 = strcmp(way, "bf16") == 0,
	                                .recompute = strcmp(way, "recompute") == 0});
	json_t *facts = json_pack("{s:s, s:I, s:I, s:f, s:I}", "device", b->device, "tokens", (json_int_t)t.tokens,
	                          "parameters", (json_int_t)model_scalar_count(t.model), "product_flops",
	                          training_flops(&t), "plan_bytes", (json_int_t)plan_bytes(t.plan));
	bench_contest(facts, steps, &t);
	printf("{\"peak_bytes\": %.0f}\n", bench_peak());
	json_decref(facts);
	training_close(&t);
	backend_close(b);
	return EXIT_SUCCESS;
}
