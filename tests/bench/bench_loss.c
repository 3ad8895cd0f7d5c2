/* bench_loss - the loss of a saved model on a text, with its weights in each type.
 *
 *   bench_loss FOLDER TEXT LENGTH [BLOCKS [TYPE]]
 *
 * Prints the mean loss over the first BLOCKS blocks of LENGTH tokens (0 or absent: all), the objective's other numbers
 * and the time; "seconds_without": without hits. The weights have TYPE, or fp32, bf16 and int8 in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/cpu/threads.h"
#include "engine/train/pass.h"
#include "tests/bench/support/bench.h"
#include "tests/unit/support/datasets.h"

/* Seconds of all forwards. With hits, *out is the result of an evaluation of the whole text. */
static double evaluate(const char *folder, dtype weights, const dataset *d, backend *b, bool hits, evaluation *out)
{
	model *m;
	pass *p;
	error err = ERROR_INIT;
	forward_spec spec = {.batch = 1, .length = dataset_length(d), .train.loss = true, .train.hits = hits};
	uint64_t spent = 0;
	train_options options;
	train_options_default(&options); /* for next_token */
	options.sequence_length = dataset_length(d);
	bench_check(model_open(&m, folder, weights, b, &err), &err);
	bench_check(pass_new(&p, m, &options, &spec, NULL, &err), &err);
	for (int64_t i = 0; i < out->records; i++) {
		double loss, count;
		bench_check(pass_load(p, d, 0, (pass_rows){i, 1, 1, true}, &err), &err);
		uint64_t began = clock_ns();
		bench_check(plan_run(pass_plan(p)), &err);
		spent += clock_ns() - began;
		bench_check(pass_result(p, &loss, &count), &err);
		if (!hits)
			continue;
		bench_check(objective_next_token.tally(out, pass_plan(p), i, 1), &err);
		out->nats += loss * count;
		out->labels += count;
	}
	pass_free(p);
	model_free(m);
	return (double)spent * 1e-9;
}

static void report(const char *folder, const char *weights, const dataset *d, int64_t records, backend *b)
{
	const objective *o = &objective_next_token;
	double metrics[TRAIN_MAX_METRICS];
	evaluation e = {.data = d, .records = records, .tally = calloc(1, o->tally_bytes(d))};
	e.hits = calloc((size_t)dataset_length(d), sizeof *e.hits);
	if (!e.tally || !e.hits)
		bench_fail("out of memory");
	double with = evaluate(folder, bench_dtype(weights), d, b, true, &e);
	double without = evaluate(folder, bench_dtype(weights), d, b, false, &e);
	o->measure(&e, metrics);
	printf("{\"weights\": \"%s\", \"loss\": %.9f", weights, e.nats / e.labels);
	for (int i = 0; o->metrics[i]; i++)
		printf(", \"%s\": %.9f", o->metrics[i], metrics[i]);
	printf(", \"seconds\": %.3f, \"seconds_without\": %.3f}\n", with, without);
	fflush(stdout);
	text_record_fini(&e.record);
	free(e.tally);
	free(e.hits);
}

int main(int argc, char **argv)
{
	static const char *const types[] = {"fp32", "bf16", "int8"};
	threads_sleep_when_idle(argv);
	if (argc < 4 || argc > 6)
		bench_fail("usage: bench_loss FOLDER TEXT LENGTH [BLOCKS [TYPE]]");
	file_map text;
	tokenizer *t;
	dataset *d;
	error err = ERROR_INIT;
	backend *b = bench_backend();
	bench_check(tokenizer_open(&t, argv[1], INT32_MAX, &err), &err);
	bench_check(file_map_open(&text, argv[2], &err), &err);
	bench_check(dataset_new(&d, t, (const char *)text.data, text.bytes, atoll(argv[3]), &err), &err);
	const int64_t blocks = argc > 4 ? atoll(argv[4]) : 0, all = dataset_records(d);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (argc < 6 || strcmp(argv[5], types[i]) == 0)
			report(argv[1], types[i], d, blocks > 0 && blocks < all ? blocks : all, b);
	dataset_free(d);
	tokenizer_free(t);
	file_map_close(&text);
	backend_close(b);
	return EXIT_SUCCESS;
}
