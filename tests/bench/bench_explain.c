/* bench_explain - the cost of explaining one prediction, compared with reading its text once.
 *
 *   bench_explain CONFIG DTYPE TOKENS…
 *
 * Prints a line for each number of tokens. It has medians, in nanoseconds, of one forward with the logits of the last
 * token, of an attribution through the frozen network, and of one by gradients; the three take turns. It also has the
 * longest node of the second, and the bytes of its plan for each token, layer and channel. Models have random
 * weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/model/feed.h"
#include "tests/bench/support/bench.h"

enum { FORMS = 3, ROUNDS = 9 };

static plan *plan_of(const model *m, int64_t tokens, attribution way)
{
	const forward_spec spec = {
	    .batch = 1, .length = tokens, .out.logits = LOGITS_LAST, .explain.attribution = way, .explain.share = 0.5f};
	plan *p;
	error err = ERROR_INIT;
	bench_check(model_plan(&p, m, &spec, NULL, NULL, &err), &err);
	const int64_t v = model_dimensions(m)->outputs;
	int32_t *ids = calloc((size_t)tokens, sizeof *ids), last = (int32_t)tokens - 1;
	float *coefficients = calloc((size_t)v, sizeof *coefficients), one = 1;
	for (int64_t i = 0; i < tokens; i++)
		ids[i] = (int32_t)(i * 7919 % v);
	coefficients[3] = 1;
	bench_check(feed_write(p, PORT_TOKENS, ids), NULL);
	bench_check(feed_positions(p, model_dimensions(m), POSITION_CLAMP, 0), NULL);
	bench_check(feed_write(p, PORT_LAST, &last), NULL);
	bench_check(feed_write(p, PORT_FACTOR, &one), NULL);
	bench_check(feed_baseline(p, NULL), NULL);
	bench_check(feed_write(p, PORT_COEFFICIENTS, coefficients), NULL);
	free(ids);
	free(coefficients);
	return p;
}

/* Nanoseconds of a run; *longest: of its longest node. */
static double run(plan *p, double *longest)
{
	uint64_t began = clock_ns(), at = began;
	int cursor = 0;
	*longest = 0;
	while (cursor < plan_node_count(p)) {
		bench_check(plan_step(p, &cursor), NULL);
		uint64_t now = clock_ns();
		*longest = (double)(now - at) > *longest ? (double)(now - at) : *longest;
		at = now;
	}
	return (double)(at - began);
}

static void measure(const model *m, int64_t tokens)
{
	static const attribution forms[FORMS] = {ATTRIBUTION_NONE, ATTRIBUTION_FROZEN, ATTRIBUTION_GRADIENT};
	bench_times times[FORMS] = {0}, longest = {0};
	plan *plans[FORMS];
	const model_dims *d = model_dimensions(m);
	for (int i = 0; i < FORMS; i++)
		plans[i] = plan_of(m, tokens, forms[i]);
	for (int r = 0; r <= ROUNDS; r++)
		for (int i = 0; i < FORMS; i++) {
			double node, ns = run(plans[i], &node);
			if (r > 0)
				bench_times_add(&times[i], ns);
			if (r > 0 && forms[i] == ATTRIBUTION_FROZEN)
				bench_times_add(&longest, node);
		}
	printf("{\"tokens\": %lld, \"forward_ns\": %.0f, \"contributions_ns\": %.0f, \"gradient_ns\": %.0f, "
	       "\"longest_node_ns\": %.0f, \"bytes_per_token_layer_channel\": %.1f}\n",
	       (long long)tokens, bench_times_median(&times[0]), bench_times_median(&times[1]),
	       bench_times_median(&times[2]), bench_times_median(&longest),
	       (double)plan_bytes(plans[1]) / (double)(tokens * d->layers * d->hidden));
	fflush(stdout);
	for (int i = 0; i < FORMS; i++) {
		plan_free(plans[i]);
		bench_times_free(&times[i]);
	}
	bench_times_free(&longest);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		bench_fail("usage: bench_explain CONFIG DTYPE TOKENS...");
	char folder[BENCH_FOLDER_BYTES];
	error err = ERROR_INIT;
	backend *b = bench_backend();
	model *m;
	bench_model_folder(folder, argv[1], b);
	bench_check(model_open(&m, folder, bench_dtype(argv[2]), b, &err), &err);
	file_remove_tree(folder, NULL);
	for (int i = 3; i < argc; i++)
		measure(m, atoll(argv[i]));
	model_free(m);
	backend_close(b);
	return 0;
}
