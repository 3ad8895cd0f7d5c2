/* serving.h - a model that is served through the scheduler, as the service does it, for measuring programs. Sessions
 * clamp positions past the end of the table; the model has random weights. Everything here exits the program on
 * failure. */
#ifndef TESTS_BENCH_SUPPORT_SERVING_H
#define TESTS_BENCH_SUPPORT_SERVING_H

#include "engine/serve/scheduler.h"
#include "tests/bench/support/bench.h"

enum { SERVING_PIECE = 4096 }; /* tokens of a prompt given at once */

typedef struct serving {
	backend *backend;
	scheduler *scheduler;
	served_model *model;
	int64_t vocab;
} serving;

/* Serve a model of this configuration on b, for `sessions` sessions, `rows` of them in a step. Takes b. */
void serving_open(serving *s, backend *b, const char *config, const char *weights, int sessions, int rows);
void serving_close(serving *s);

/* --- sessions --------------------------------------------------------------------- */

session *serving_session(serving *s, const char *id);
session *serving_fork(serving *s, session *x, const char *id);
void serving_delete(serving *s, session *x);
/* Let a session read `length` arbitrary tokens. */
void serving_read(serving *s, session *x, int64_t length);

/* --- generations ------------------------------------------------------------------ */

typedef struct serving_listener {
	bench_times *times; /* between events; NULL: not measured */
	uint64_t last;
} serving_listener;

/* temperature 0: greedy; else drawn, of the 50 likeliest that make up 0.95. l stays until the generation has ended. */
void serving_submit(serving *s, session *x, serving_listener *l, const int32_t *prompt, int64_t n, int64_t max_tokens,
                    float temperature);
/* As a request's `finished`: exits when the generation failed. */
void serving_finished(void *context, const generation_result *r);
/* Until nothing is left to do. */
void serving_run(serving *s);
/* Add the times of `tokens` greedy tokens. It generates one more, since a time is between two events. */
void serving_generate(serving *s, session *x, int64_t tokens, bench_times *times);

#endif
