/* bench_owners - the scheduler's times of one owner's requests beside those of another owner, without sockets and
 * clients.
 *
 *   bench_owners CONFIG DTYPE COUNT SECONDS
 *
 * Owner "one" has one request at a time. The next one arrives up to PAUSE_NS after the end of the last one, usually
 * within a step. Owner "many" always has COUNT requests. A request has 8 to 32 tokens and is answered with TOKENS.
 * Prints milliseconds to the first token and between two tokens, and tokens per second, of each owner. With one core
 * (`taskset -c 0 bench_owners …`) a time is the process's processor time, so other programs do not lengthen it. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/philox.h"
#include "engine/cpu/threads.h"
#include "tests/bench/support/serving.h"

enum { TOKENS = 32, SHORTEST = 8, LONGEST = 32, PAUSE_NS = 8000000, WARM_SECONDS = 1 };

typedef struct owner {
	const char *name;
	bench_times first, gap; /* only of what begins after the warm-up */
	int64_t tokens;
} owner;

typedef struct caller {
	owner *owner;
	uint64_t arrived, last; /* last: time of the latest token; 0: none yet */
	int32_t prompt[LONGEST];
	bool idle;
} caller;

static clockid_t clock_id = CLOCK_MONOTONIC;
static bool warm;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(clock_id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t random_word(void)
{
	static uint64_t n;
	return philox(1, 0, 0, n++).word[0];
}

static int64_t on_event(void *context, const generation_event *e)
{
	caller *c = context;
	const uint64_t now = now_ns();
	if (!warm)
		bench_times_add(c->last ? &c->owner->gap : &c->owner->first,
		                (double)(now - (c->last ? c->last : c->arrived)));
	c->owner->tokens += warm ? 0 : e->n_tokens;
	c->last = now;
	return 1;
}

static void on_finished(void *context, const generation_result *r)
{
	caller *c = context;
	bench_check(r->status, &r->error);
	c->idle = true;
}

static void send(serving *s, caller *c)
{
	error err = ERROR_INIT;
	generation *g;
	const int64_t n = SHORTEST + random_word() % (LONGEST - SHORTEST + 1);
	for (int64_t i = 0; i < n; i++)
		c->prompt[i] = (int32_t)(3 + random_word() % (uint32_t)(s->vocab - 3));
	generation_request r = {.prompt = c->prompt,
	                        .n_prompt = n,
	                        .max_tokens = TOKENS,
	                        .ignore_end = true,
	                        .credit = 1,
	                        .n_logprobs = -1,
	                        .owner = c->owner->name,
	                        .event = on_event,
	                        .finished = on_finished,
	                        .context = c};
	sampling_default(&r.sampling);
	r.sampling.temperature = 0;
	c->idle = false;
	c->last = 0;
	bench_check(scheduler_generate(s->scheduler, s->model, NULL, &r, &g, &err), &err);
}

static void print_owner(owner *o, double seconds)
{
	printf("{\"owner\": \"%s\", \"requests\": %lld, \"first_ms\": {\"p50\": %.3f, \"p99\": %.3f}, "
	       "\"gap_ms\": {\"p50\": %.3f, \"p99\": %.3f}, \"tokens_per_second\": %.0f}\n",
	       o->name, (long long)o->first.count, bench_times_median(&o->first) * 1e-6,
	       bench_times_p99(&o->first) * 1e-6, bench_times_median(&o->gap) * 1e-6, bench_times_p99(&o->gap) * 1e-6,
	       (double)o->tokens / seconds);
	bench_times_free(&o->first);
	bench_times_free(&o->gap);
}

/* Run until `end`. The measured caller is all[0]. */
static void run(serving *s, caller *all, int count, uint64_t end)
{
	error err = ERROR_INIT;
	caller *one = &all[0];
	bool coming = false;
	for (uint64_t now; (now = now_ns()) < end;) {
		for (int i = 1; i <= count; i++) {
			if (all[i].idle) {
				all[i].arrived = now;
				send(s, &all[i]);
			}
		}
		if (one->idle && !coming) {
			one->arrived = now + random_word() % PAUSE_NS;
			coming = true;
		}
		if (coming && one->arrived <= now) {
			coming = false;
			send(s, one);
		}
		if (scheduler_runnable(s->scheduler))
			bench_check(scheduler_tick(s->scheduler), &err);
	}
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	const int count = argc == 5 ? atoi(argv[3]) : -1;
	const double seconds = argc == 5 ? atof(argv[4]) : 0;
	caller *all = calloc((size_t)(count < 0 ? 0 : count) + 1, sizeof *all);
	serving s;
	if (count < 0 || seconds <= 0 || !all)
		bench_fail("usage: bench_owners CONFIG DTYPE COUNT SECONDS");
	clock_id = omp_get_num_procs() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
	serving_open(&s, bench_backend(), argv[1], argv[2], count + 1, 256);
	owner one = {.name = "one"}, many = {.name = "many"};
	for (int i = 0; i <= count; i++)
		all[i] = (caller){.owner = i > 0 ? &many : &one, .idle = true};
	warm = true;
	run(&s, all, count, now_ns() + (uint64_t)WARM_SECONDS * 1000000000u);
	warm = false;
	run(&s, all, count, now_ns() + (uint64_t)(seconds * 1e9));
	warm = true;
	serving_run(&s);
	print_owner(&one, seconds);
	if (count > 0)
		print_owner(&many, seconds);
	free(all);
	serving_close(&s);
	return EXIT_SUCCESS;
}
