/* bench_serve - reading and writing tokens through the scheduler, as the service does.
 *
 *   bench_serve decode CONFIG DTYPE CONTEXT       a contestant (support/bench.h): greedy tokens of one session, within
 *                                                 TURN / 2 of CONTEXT; a time is that from one event to the next
 *   bench_serve flat CONFIG DTYPE POSITION…       time per token and state of sessions at these positions (ascending)
 *   bench_serve batch CONFIG DTYPE CONTEXT COUNT [ROWS]
 *                                                 tokens per second of COUNT sessions at once, ROWS of them in a step
 *                                                 (all), and of one: greedy tokens, and drawn ones
 *   bench_serve beams CONFIG DTYPE COUNT          milliseconds of a step: a beam search with COUNT beams, COUNT greedy
 *                                                 streams with log-probabilities, and as many without
 *   bench_serve prefill CONFIG DTYPE TOKENS       tokens per second and growth of memory of one prompt, after another
 *   bench_serve prompts CONFIG DTYPE COUNT TOKENS [ROUNDS]
 *                                                 COUNT requests at once with prompts of TOKENS tokens: milliseconds to
 *                                                 the first token, the median, p99 and that of the last
 *   bench_serve beside CONFIG DTYPE COUNT TOKENS  COUNT streams beside one prompt of TOKENS tokens after another:
 *                                                 milliseconds between two tokens of a stream, and tokens per second
 *   bench_serve load CONFIG DTYPE                 milliseconds to draw random weights, and of the phases of loading a
 *                                                 folder with a manifest: weights; states and buffers; plans
 *   bench_serve copies CONFIG DTYPE POSITION      nanoseconds of a fork, a snapshot, a rollback of the snapshot and a
 *                                                 token after it, of a session at this position
 *   bench_serve state CONFIG                      bytes of a session's state
 *
 * Sessions that are compared take turns in short bouts, so that a machine that becomes slower or faster does so for all
 * of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/manifest.h"
#include "engine/cpu/threads.h"
#include "engine/serve/served_model.h"
#include "tests/bench/support/serving.h"

enum {
	TURN = 128,         /* tokens of a decoding bout, at most */
	FLAT_TOKENS = 1000, /* tokens tokens of each session */
	FLAT_BOUT = 10,
	MAX_POSITIONS = 8,
	BATCH_ROUNDS = 3,
	BATCH_TOKENS = 48, /* tokens of each session in a round */
	BEAM_ROUNDS = 7,
	BEAM_PROMPT = 16,
	WARM_READS = 3, /* a plan runs once before it is recorded */
	BEAM_TOKENS = 100,
	BESIDE_TOKENS = 300, /* tokens of each stream */
	BESIDE_PROMPTS = 997
};

static long long state_bytes(const session *x)
{
	session_info info;
	scheduler_session_info(x, &info);
	return (long long)info.state_bytes;
}

/* --- decode ----------------------------------------------------------------------- */

typedef struct contest {
	serving *service;
	session *base; /* TURN / 2 before the context */
} contest;

static void decode_bout(void *context, int count, bench_times *t)
{
	contest *c = context;
	for (int left = count; left > 0; left -= TURN) {
		session *x = serving_fork(c->service, c->base, "turn");
		serving_generate(c->service, x, left < TURN ? left : TURN, t);
		serving_delete(c->service, x);
	}
}

static void decode(char **arguments)
{
	serving s;
	serving_open(&s, bench_backend(), arguments[0], arguments[1], 1, 1);
	contest c = {&s, serving_session(&s, "base")};
	serving_read(&s, c.base, atoll(arguments[2]) - TURN / 2);
	bench_times warm = {0};
	decode_bout(&c, TURN, &warm);
	bench_times_free(&warm);
	json_t *facts = json_pack("{s:s, s:I, s:I}", "device", s.backend->device, "weight_bytes",
	                          (json_int_t)(4 * model_arena_floats(served_model_model(s.model))), "state_bytes",
	                          (json_int_t)state_bytes(c.base));
	bench_contest(facts, decode_bout, &c);
	json_decref(facts);
	serving_close(&s);
}

/* --- flat ------------------------------------------------------------------------- */

static void flat(char **arguments, int count)
{
	serving s;
	session *x[MAX_POSITIONS];
	bench_times t[MAX_POSITIONS] = {{0}};
	int n = count - 2 < MAX_POSITIONS ? count - 2 : MAX_POSITIONS;
	serving_open(&s, bench_backend(), arguments[0], arguments[1], n, n);
	for (int i = 0; i < n; i++) {
		char id[16];
		int64_t read = i ? atoll(arguments[1 + i + 1]) - atoll(arguments[1 + i]) : atoll(arguments[2]);
		snprintf(id, sizeof id, "%d", i);
		x[i] = i ? serving_fork(&s, x[i - 1], id) : serving_session(&s, id);
		serving_read(&s, x[i], read);
	}
	while (n && t[0].count < FLAT_TOKENS)
		for (int i = 0; i < n; i++)
			serving_generate(&s, x[i], FLAT_BOUT, &t[i]);
	for (int i = 0; i < n; i++)
		printf("{\"position\": %s, \"ns\": %.0f, \"p99_ns\": %.0f, \"best_ns\": %.0f, \"state_bytes\": %lld}\n",
		       arguments[2 + i], bench_times_median(&t[i]), bench_times_p99(&t[i]), bench_times_best(&t[i]),
		       state_bytes(x[i]));
	for (int i = 0; i < n; i++)
		bench_times_free(&t[i]);
	serving_close(&s);
}

/* --- batch ------------------------------------------------------------------------ */

/* Tokens per second of the first n sessions. */
static double together(serving *s, session **x, serving_listener *l, int n, float temperature)
{
	uint64_t began = clock_ns();
	for (int i = 0; i < n; i++)
		serving_submit(s, x[i], &l[i], NULL, 0, BATCH_TOKENS, temperature);
	serving_run(s);
	double seconds = (double)(clock_ns() - began) * 1e-9;
	return n * BATCH_TOKENS / seconds;
}

static void batch(char **arguments, int n)
{
	serving s;
	int count = atoi(arguments[3]), rows = n > 4 ? atoi(arguments[4]) : count;
	session **x = calloc((size_t)count, sizeof *x);
	serving_listener *l = calloc((size_t)count, sizeof *l);
	if (count < 1 || !x || !l)
		bench_fail("%d sessions", count);
	serving_open(&s, bench_backend(), arguments[0], arguments[1], count, rows);
	x[0] = serving_session(&s, "0");
	serving_read(&s, x[0], atoll(arguments[2]));
	for (int i = 1; i < count; i++) {
		char id[16];
		snprintf(id, sizeof id, "%d", i);
		x[i] = serving_fork(&s, x[0], id);
	}
	bench_times one = {0}, all = {0}, drawn = {0};
	for (int round = -1; round < BATCH_ROUNDS; round++) { /* -1: warm-up */
		double alone = together(&s, x, l, 1, 0), crowd = together(&s, x, l, count, 0),
		       drawing = together(&s, x, l, count, 0.8f);
		if (round >= 0) {
			bench_times_add(&one, alone);
			bench_times_add(&all, crowd);
			bench_times_add(&drawn, drawing);
		}
	}
	printf("{\"sessions\": %d, \"rows\": %d, \"tokens_per_second\": %.1f, \"drawn\": %.1f, \"alone\": %.1f, "
	       "\"state_bytes\": %lld}\n",
	       count, rows, bench_times_median(&all), bench_times_median(&drawn), bench_times_median(&one),
	       state_bytes(x[0]));
	bench_times_free(&one);
	bench_times_free(&all);
	bench_times_free(&drawn);
	free(x);
	free(l);
	serving_close(&s);
}

/* --- beams ------------------------------------------------------------------------- */

static void note_time(void *context, const generation_result *r)
{
	double *ms = context;
	bench_check(r->status, &r->error);
	*ms = fmax(*ms, (double)(r->ended_ns - r->prompted_ns) / 1e6);
}

static int64_t take_event(void *context, const generation_event *e)
{
	(void)context;
	(void)e;
	return 1;
}

/* Milliseconds of a step in which `count` requests of one token each are advanced, or the beams of one search. */
static double beam_step(serving *s, int count, bool search, int n_logprobs)
{
	int32_t prompt[BEAM_PROMPT];
	double ms = 0;
	error err = ERROR_INIT;
	generation *g;
	const beam_options o = {.beams = count, .length_penalty = 1};
	for (int i = 0; i < BEAM_PROMPT; i++)
		prompt[i] = (int32_t)((i * 37 + 5) % s->vocab);
	generation_request r = {.prompt = prompt,
	                        .n_prompt = BEAM_PROMPT,
	                        .max_tokens = BEAM_TOKENS,
	                        .ignore_end = true,
	                        .credit = 1,
	                        .n_logprobs = n_logprobs,
	                        .event = take_event,
	                        .finished = note_time,
	                        .context = &ms};
	sampling_default(&r.sampling);
	if (search)
		bench_check(scheduler_search(s->scheduler, s->model, &o, &r, 1, &g, &err), &err);
	r.sampling.temperature = 0;
	for (int i = 0; i < count && !search; i++)
		bench_check(scheduler_generate(s->scheduler, s->model, NULL, &r, &g, &err), &err);
	serving_run(s);
	return ms / BEAM_TOKENS;
}

static void beams(char **arguments)
{
	serving s;
	const int count = atoi(arguments[2]);
	bench_times searched = {0}, scored = {0}, plain = {0};
	serving_open(&s, bench_backend(), arguments[0], arguments[1], count, count);
	for (int round = -1; round < BEAM_ROUNDS; round++) { /* -1: warm-up */
		const double a = beam_step(&s, count, true, -1), b = beam_step(&s, count, false, 0),
		             c = beam_step(&s, count, false, -1);
		if (round >= 0) {
			bench_times_add(&searched, a);
			bench_times_add(&scored, b);
			bench_times_add(&plain, c);
		}
	}
	printf("{\"beams\": %d, \"search_ms\": %.3f, \"streams_with_logprobs_ms\": %.3f, \"streams_ms\": %.3f}\n",
	       count, bench_times_median(&searched), bench_times_median(&scored), bench_times_median(&plain));
	bench_times_free(&searched);
	bench_times_free(&scored);
	bench_times_free(&plain);
	serving_close(&s);
}

/* --- prefill, state ----------------------------------------------------------------- */

static void prefill(char **arguments)
{
	serving s;
	const int64_t tokens = atoll(arguments[2]);
	if (tokens < 1)
		bench_fail("TOKENS must be at least 1");
	serving_open(&s, bench_backend(), arguments[0], arguments[1], 2, 1);
	session *warm = serving_session(&s, "warm"), *x = serving_session(&s, "prompt");
	for (int i = 0; i < WARM_READS; i++)
		serving_read(&s, warm, tokens < SERVING_PIECE ? tokens : SERVING_PIECE);
	serving_delete(&s, warm);
	bench_peak_reset();
	double before = bench_peak();
	uint64_t began = clock_ns();
	serving_read(&s, x, tokens);
	double seconds = (double)(clock_ns() - began) * 1e-9;
	printf("{\"tokens\": %lld, \"tokens_per_second\": %.0f, \"peak_growth_bytes\": %.0f, \"state_bytes\": %lld}\n",
	       (long long)tokens, (double)tokens / seconds, bench_peak() - before, state_bytes(x));
	serving_close(&s);
}

/* --- prompts ------------------------------------------------------------------------ */

typedef struct arrival {
	bench_times *times;
	uint64_t submitted;
} arrival;

static int64_t on_first(void *context, const generation_event *e)
{
	arrival *a = context;
	(void)e;
	bench_times_add(a->times, (double)(clock_ns() - a->submitted));
	return 1;
}

/* One request after the other begins as if none had been there, on a temporary session. */
static void arrive(serving *s, arrival *a, const int32_t *ids, int64_t tokens)
{
	error err = ERROR_INIT;
	generation *g;
	generation_request r = {.prompt = ids,
	                        .n_prompt = tokens,
	                        .max_tokens = 1,
	                        .ignore_end = true,
	                        .credit = 1,
	                        .n_logprobs = -1,
	                        .event = on_first,
	                        .finished = serving_finished,
	                        .context = a};
	sampling_default(&r.sampling);
	r.sampling.temperature = 0;
	a->submitted = clock_ns();
	bench_check(scheduler_generate(s->scheduler, s->model, NULL, &r, &g, &err), &err);
}

static void prompts(char **arguments, int n)
{
	serving s;
	int count = atoi(arguments[2]), rounds = n > 4 ? atoi(arguments[4]) : 20;
	int64_t tokens = atoll(arguments[3]);
	int32_t *ids = calloc((size_t)(count + tokens), sizeof *ids);
	arrival *a = calloc((size_t)count, sizeof *a);
	if (count < 1 || tokens < 1 || !ids || !a)
		bench_fail("%d prompts of %lld tokens", count, (long long)tokens);
	serving_open(&s, bench_backend(), arguments[0], arguments[1], count, count);
	for (int64_t i = 0; i < count + tokens; i++)
		ids[i] = (int32_t)(3 + i * (i + 7) % (s.vocab - 3));
	bench_times first = {0}, last = {0}, warm = {0};
	for (int round = -2; round < rounds; round++) {
		uint64_t began = clock_ns();
		for (int i = 0; i < count; i++) {
			a[i].times = round < 0 ? &warm : &first;
			arrive(&s, &a[i], ids + i, tokens);
		}
		serving_run(&s);
		bench_times_add(round < 0 ? &warm : &last, (double)(clock_ns() - began));
	}
	printf("{\"prompts\": %d, \"tokens\": %lld, \"first_ms\": %.3f, \"first_p99_ms\": %.3f, \"last_ms\": %.3f, "
	       "\"best_last_ms\": %.3f}\n",
	       count, (long long)tokens, bench_times_median(&first) * 1e-6, bench_times_p99(&first) * 1e-6,
	       bench_times_median(&last) * 1e-6, bench_times_best(&last) * 1e-6);
	bench_times_free(&first);
	bench_times_free(&last);
	bench_times_free(&warm);
	free(ids);
	free(a);
	serving_close(&s);
}

/* --- streams beside prompts ----------------------------------------------------------- */

static void beside(char **arguments)
{
	serving s;
	const int count = atoi(arguments[2]);
	const int64_t tokens = atoll(arguments[3]);
	session **x = calloc((size_t)count, sizeof *x);
	serving_listener *l = calloc((size_t)count, sizeof *l);
	int32_t *ids = calloc((size_t)(tokens + BESIDE_PROMPTS), sizeof *ids);
	if (count < 1 || tokens < 1 || !x || !l || !ids)
		bench_fail("%d streams beside prompts of %lld tokens", count, (long long)tokens);
	serving_open(&s, bench_backend(), arguments[0], arguments[1], count + 1, count + 1);
	for (int64_t i = 0; i < tokens + BESIDE_PROMPTS; i++)
		ids[i] = (int32_t)(3 + i * (i + 7) % (s.vocab - 3));
	bench_times gaps = {0}, read = {0};
	arrival a = {.times = &read};
	for (int i = 0; i < count; i++) {
		char id[16];
		snprintf(id, sizeof id, "%d", i);
		x[i] = serving_session(&s, id);
		serving_read(&s, x[i], 16);
	}
	for (int i = 0; i < count; i++) {
		l[i] = (serving_listener){.times = &gaps};
		serving_submit(&s, x[i], &l[i], NULL, 0, BESIDE_TOKENS, 0);
	}
	error err = ERROR_INIT;
	const uint64_t began = clock_ns();
	int64_t prompts = 0;
	do {
		if (read.count == prompts)
			arrive(&s, &a, ids + prompts++ % BESIDE_PROMPTS, tokens); /* no two begin alike */
		bench_check(scheduler_tick(s.scheduler), &err);
	} while (gaps.count < (int64_t)count * (BESIDE_TOKENS - 1));
	const double seconds = (double)(clock_ns() - began) * 1e-9;
	serving_run(&s);
	printf("{\"streams\": %d, \"prompt\": %lld, \"ms\": %.3f, \"p99_ms\": %.3f, \"tokens_per_second\": %.0f, "
	       "\"prompt_tokens_per_second\": %.0f}\n",
	       count, (long long)tokens, bench_times_median(&gaps) * 1e-6, bench_times_p99(&gaps) * 1e-6,
	       (double)gaps.count / seconds, (double)((prompts - 1) * tokens) / seconds);
	bench_times_free(&gaps);
	bench_times_free(&read);
	free(ids);
	free(l);
	free(x);
	serving_close(&s);
}

static void state(char **arguments)
{
	backend *b = bench_backend();
	model *m = bench_model(arguments[0], b);
	printf("{\"state_bytes\": %lld}\n", (long long)model_state_floats(m) * 4);
	model_free(m);
	backend_close(b);
}

/* --- load ------------------------------------------------------------------------- */

static double random_weights_ms(const char *config, backend *b)
{
	error err = ERROR_INIT;
	const uint64_t began = clock_ns();
	model *m = bench_model(config, b);
	bench_check(b->synchronize ? b->synchronize(b) : STATUS_OK, &err);
	const double ms = (double)(clock_ns() - began) * 1e-6;
	model_free(m);
	return ms;
}

static void load(char **arguments)
{
	enum { ROWS = 256, SLOTS = 1024, PHASES = 3 };
	char folder[BENCH_FOLDER_BYTES];
	uint64_t at[PHASES + 1];
	bool done = false;
	error err = ERROR_INIT;
	served_model *m;
	backend *b = bench_backend();
	const double random_ms = random_weights_ms(arguments[0], b);
	bench_model_folder(folder, arguments[0], b);
	bench_check(manifest_write(folder, "model", "m", NULL, &err), &err);
	at[0] = clock_ns();
	bench_check(served_model_new(&m, "m", folder, bench_dtype(arguments[1]), b, ROWS, SLOTS, &err), &err);
	while (!m->model)
		bench_check(served_model_load(m, &done, &err), &err);
	at[1] = clock_ns();
	bench_check(served_model_load(m, &done, &err), &err);
	at[2] = clock_ns();
	while (!done)
		bench_check(served_model_load(m, &done, &err), &err);
	bench_check(b->synchronize ? b->synchronize(b) : STATUS_OK, &err);
	at[3] = clock_ns();
	printf("{\"parameters\": %lld, \"random_ms\": %.1f, \"weights_ms\": %.1f, \"buffers_ms\": %.1f, \"plans_ms\": "
	       "%.1f}\n",
	       (long long)model_scalar_count(m->model), random_ms, (double)(at[1] - at[0]) * 1e-6,
	       (double)(at[2] - at[1]) * 1e-6, (double)(at[3] - at[2]) * 1e-6);
	served_model_free(m);
	backend_close(b);
	file_remove_tree(folder, NULL);
}

/* --- copies ------------------------------------------------------------------------ */

static void snapshot(serving *s, session *x)
{
	size_t moved = 0;
	error err = ERROR_INIT;
	for (bool done = false; !done;)
		bench_check(scheduler_session_snapshot_step(s->scheduler, x, "s", &moved, &done, &err), &err);
}

static void roll_back(serving *s, session *x)
{
	size_t moved = 0;
	error err = ERROR_INIT;
	for (bool done = false; !done;)
		bench_check(scheduler_session_rollback_step(s->scheduler, x, "s", &moved, &done, &err), &err);
}

static void copies(char **arguments)
{
	enum { COPIES = 200, SINCE = 3 };
	serving s;
	bench_times t[4] = {{0}};
	static const char *const names[] = {"fork_ns", "snapshot_ns", "rollback_ns", "token_ns"};
	json_t *figures = json_pack("{s:I}", "position", (json_int_t)atoll(arguments[2]));
	serving_open(&s, bench_backend(), arguments[0], arguments[1], 2, 2);
	session *x = serving_session(&s, "x");
	serving_read(&s, x, atoll(arguments[2]));
	for (int i = 0; i < COPIES; i++) {
		const uint64_t began = clock_ns();
		session *copy = serving_fork(&s, x, "copy");
		const uint64_t forked = clock_ns();
		serving_delete(&s, copy);
		const uint64_t deleted = clock_ns();
		snapshot(&s, x);
		const uint64_t held = clock_ns();
		serving_read(&s, x, SINCE);
		const uint64_t read = clock_ns();
		roll_back(&s, x);
		const uint64_t back = clock_ns();
		serving_read(&s, x, 1);
		bench_times_add(&t[0], (double)(forked - began));
		bench_times_add(&t[1], (double)(held - deleted));
		bench_times_add(&t[2], (double)(back - read));
		bench_times_add(&t[3], (double)(clock_ns() - back));
		roll_back(&s, x);
		bench_check(scheduler_session_drop(x, "s", NULL), NULL);
	}
	for (int i = 0; i < 4; i++) {
		json_t *figure = json_pack("{s:f, s:f, s:f}", "median", bench_times_median(&t[i]), "p99",
		                           bench_times_p99(&t[i]), "best", bench_times_best(&t[i]));
		json_object_set_new(figures, names[i], figure);
		bench_times_free(&t[i]);
	}
	json_dumpf(figures, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(figures);
	serving_close(&s);
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	const char *mode = argc > 1 ? argv[1] : "";
	int n = argc - 2;
	if (strcmp(mode, "decode") == 0 && n == 3)
		decode(argv + 2);
	else if (strcmp(mode, "flat") == 0 && n >= 3)
		flat(argv + 2, n);
	else if (strcmp(mode, "batch") == 0 && (n == 4 || n == 5))
		batch(argv + 2, n);
	else if (strcmp(mode, "beams") == 0 && n == 3)
		beams(argv + 2);
	else if (strcmp(mode, "prefill") == 0 && n == 3)
		prefill(argv + 2);
	else if (strcmp(mode, "prompts") == 0 && (n == 4 || n == 5))
		prompts(argv + 2, n);
	else if (strcmp(mode, "beside") == 0 && n == 4)
		beside(argv + 2);
	else if (strcmp(mode, "load") == 0 && n == 2)
		load(argv + 2);
	else if (strcmp(mode, "copies") == 0 && n == 3)
		copies(argv + 2);
	else if (strcmp(mode, "state") == 0 && n == 1)
		state(argv + 2);
	else
		bench_fail("usage: bench_serve decode|flat|batch|beams|prefill|prompts|beside|load|copies|state CONFIG "
		           "…, see the "
		           "source's "
		           "first lines");
	return EXIT_SUCCESS;
}
