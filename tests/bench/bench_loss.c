/* bench_loss - what a saved model thinks of a text, with its weights in each type.
 *
 *   bench_loss FOLDER TEXT LENGTH
 *
 * Mean loss over the whole blocks of LENGTH tokens, and bits per byte, for fp32, bf16 and int8 weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/cpu/threads.h"
#include "engine/train/pass.h"
#include "tests/bench/support/bench.h"

static double mean_loss(const char *folder, dtype weights, const dataset *d, backend *b)
{
	model *m;
	pass *p;
	error err = ERROR_INIT;
	forward_spec spec = {.batch = 1, .length = dataset_length(d), .loss = true};
	double sum = 0, tokens = 0;
	bench_check(model_open(&m, folder, weights, b, &err), &err);
	bench_check(pass_new(&p, m, &objective_next_token, &spec, NULL, &err), &err);
	for (int64_t i = 0; i < dataset_records(d); i++) {
		double loss, count;
		bench_check(pass_load(p, d, 0, i, 1, &err), &err);
		bench_check(plan_run(pass_plan(p)), &err);
		bench_check(pass_result(p, &loss, &count), &err);
		sum += loss * count;
		tokens += count;
	}
	pass_free(p);
	model_free(m);
	return sum / tokens;
}

int main(int argc, char **argv)
{
	static const char *const types[] = {"fp32", "bf16", "int8"};
	threads_sleep_when_idle(argv);
	if (argc != 4)
		bench_fail("usage: bench_loss FOLDER TEXT LENGTH");
	file_map text;
	tokenizer *t;
	dataset *d;
	error err = ERROR_INIT;
	backend *b = bench_backend();
	bench_check(tokenizer_open(&t, argv[1], INT32_MAX, &err), &err);
	bench_check(file_map_open(&text, argv[2], &err), &err);
	bench_check(dataset_new(&d, t, (const char *)text.data, text.bytes, atoll(argv[3]), &err), &err);
	double bits = (double)dataset_tokens(d) / (double)dataset_bytes(d) / log(2);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		double loss = mean_loss(argv[1], bench_dtype(types[i]), d, b);
		printf("{\"weights\": \"%s\", \"loss\": %.6f, \"bits_per_byte\": %.6f}\n", types[i], loss, loss * bits);
		fflush(stdout);
	}
	dataset_free(d);
	tokenizer_free(t);
	file_map_close(&text);
	backend_close(b);
	return EXIT_SUCCESS;
}
