/* bench_beside - the cost of training for decoding at the same time, and the reverse.
 *
 *   bench_beside CONFIG DTYPE CONTEXT TRAINED BATCH LENGTH [TOKENS]
 *
 * One session of the model CONFIG with weights of DTYPE, at CONTEXT, says greedy tokens; a model TRAINED is trained in
 * bf16 (fp32 where the device has no bf16) on a backend in the background, by a thread of its own. In turns, ROUNDS
 * times: TOKENS tokens alone, as many beside the training, and the training alone for as long as the latter took. One
 * line: of both kinds of tokens how many, p50 and p99 in microseconds, and tokens trained per second alone and beside.
 *
 * On a device the two share it; ADDITIVE_CUDA_BACKGROUND_PROCESSORS says how many processors products of the training
 * take. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/cpu/threads.h"
#include "tests/bench/support/serving.h"
#include "tests/bench/support/training.h"

enum { ROUNDS = 3, TOKENS = 1000, WARM_TOKENS = 20 };

/* A training that runs on a thread of its own from start to stop. */
typedef struct trained {
	training training;
	pthread_t thread;
	bool stop;
	int64_t steps; /* in all turns */
	double ns;     /* that they took */
} trained;

static void *train(void *context)
{
	trained *t = context;
	const uint64_t began = clock_ns();
	training_batch(&t->training);
	for (bool last = false; !last;) {
		last = __atomic_load_n(&t->stop, __ATOMIC_ACQUIRE);
		training_step(&t->training, last);
		__atomic_add_fetch(&t->steps, 1, __ATOMIC_RELEASE);
	}
	t->ns += (double)(clock_ns() - began);
	return NULL;
}

/* Returns when a step has been made. */
static void start(trained *t)
{
	const int64_t before = t->steps;
	t->stop = false;
	if (pthread_create(&t->thread, NULL, train, t) != 0)
		bench_fail("cannot start a thread");
	while (__atomic_load_n(&t->steps, __ATOMIC_ACQUIRE) == before)
		nanosleep(&(struct timespec){0, 100000}, NULL);
}

static void stop(trained *t)
{
	__atomic_store_n(&t->stop, true, __ATOMIC_RELEASE);
	pthread_join(t->thread, NULL);
}

/* Tokens of a fork of x, so that all begin at the same position. */
static void say(serving *s, session *x, int64_t tokens, bench_times *times)
{
	session *turn = serving_fork(s, x, "turn");
	serving_generate(s, turn, tokens, times);
	serving_delete(s, turn);
}

static void sleep_ns(double ns)
{
	const int64_t left = (int64_t)ns;
	nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
}

static void print_times(const char *what, bench_times *t)
{
	printf("\"%s\": {\"tokens\": %d, \"p50_us\": %.1f, \"p99_us\": %.1f}, ", what, t->count,
	       bench_times_median(t) * 1e-3, bench_times_p99(t) * 1e-3);
}

static double rate(const trained *t)
{
	return (double)(t->steps * t->training.tokens) / t->ns * 1e9;
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	if (argc < 7)
		bench_fail("usage: bench_beside CONFIG DTYPE CONTEXT TRAINED BATCH LENGTH [TOKENS]");
	const int64_t tokens = argc > 7 ? atoll(argv[7]) : TOKENS;
	backend *background = bench_backend_in_background();
	serving s;
	bench_times alone = {0}, beside = {0}, warm = {0};
	trained t = {0}, by_itself = {0};
	serving_open(&s, bench_backend(), argv[1], argv[2], 2, 2);
	training_open(&t.training, background, argv[4],
	              &(training_shape){.batch = atoll(argv[5]), .length = atoll(argv[6]), .bf16 = background->bf16});
	by_itself.training = t.training;
	session *x = serving_session(&s, "base");
	serving_read(&s, x, atoll(argv[3]));
	say(&s, x, WARM_TOKENS, &warm);
	for (int i = 0; i < ROUNDS; i++) {
		say(&s, x, tokens, &alone);
		start(&t);
		const uint64_t began = clock_ns();
		say(&s, x, tokens, &beside);
		const double ns = (double)(clock_ns() - began);
		stop(&t);
		start(&by_itself);
		sleep_ns(ns);
		stop(&by_itself);
	}
	printf("{\"device\": \"%s\", ", s.backend->device);
	print_times("alone", &alone);
	print_times("beside", &beside);
	printf("\"trained_alone\": %.0f, \"trained_beside\": %.0f}\n", rate(&by_itself), rate(&t));
	bench_times_free(&alone);
	bench_times_free(&beside);
	bench_times_free(&warm);
	training_close(&t.training);
	serving_close(&s);
	backend_close(background);
	return EXIT_SUCCESS;
}
