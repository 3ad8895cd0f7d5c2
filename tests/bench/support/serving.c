#include "tests/bench/support/serving.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"

void serving_open(serving *s, backend *b, const char *config, const char *weights, int sessions, int rows)
{
	char folder[BENCH_FOLDER_BYTES];
	error err = ERROR_INIT;
	/* The scheduler's own batch is a power of two; a padding row needs a slot besides. */
	scheduler_limits limits = {.max_models = 1,
	                           .max_sessions = sessions + 2,
	                           .max_generations = sessions + 2,
	                           .max_batch = rows < 2 ? 2 : rows};
	s->backend = b;
	bench_model_folder(folder, config, s->backend);
	bench_check(scheduler_new(&s->scheduler, s->backend, &limits), &err);
	bench_check(scheduler_model(s->scheduler, "m", folder, bench_dtype(weights), &s->model, &err), &err);
	s->vocab = model_dimensions(served_model_model(s->model))->outputs;
	file_remove_tree(folder, NULL);
}

void serving_close(serving *s)
{
	scheduler_free(s->scheduler);
	backend_close(s->backend);
}

/* --- generations ------------------------------------------------------------------ */

static int64_t on_event(void *context, const generation_event *e)
{
	serving_listener *l = context;
	uint64_t now = clock_ns();
	(void)e;
	if (l->times && l->last)
		bench_times_add(l->times, (double)(now - l->last));
	l->last = now;
	return 1;
}

void serving_finished(void *context, const generation_result *r)
{
	(void)context;
	bench_check(r->status, &r->error);
}

void serving_submit(serving *s, session *x, serving_listener *l, const int32_t *prompt, int64_t n, int64_t max_tokens,
                    float temperature)
{
	error err = ERROR_INIT;
	generation *g;
	generation_request r = {.prompt = prompt,
	                        .n_prompt = n,
	                        .max_tokens = max_tokens,
	                        .ignore_end = true,
	                        .credit = 1,
	                        .n_logprobs = -1,
	                        .event = on_event,
	                        .finished = serving_finished,
	                        .context = l};
	sampling_default(&r.sampling);
	r.sampling.temperature = temperature;
	r.sampling.top_k = 50;
	r.sampling.top_p = 0.95f;
	r.sampling.seed = 1;
	bench_check(scheduler_generate(s->scheduler, NULL, x, &r, &g, &err), &err);
}

void serving_run(serving *s)
{
	error err = ERROR_INIT;
	while (scheduler_runnable(s->scheduler))
		bench_check(scheduler_tick(s->scheduler), &err);
}

void serving_generate(serving *s, session *x, int64_t tokens, bench_times *times)
{
	serving_listener l = {.times = times};
	serving_submit(s, x, &l, NULL, 0, tokens + 1, 0);
	serving_run(s);
}

session *serving_session(serving *s, const char *id)
{
	session *x;
	error err = ERROR_INIT;
	session_options o = {.policy = POSITION_CLAMP};
	bench_check(scheduler_session_new(s->scheduler, s->model, id, &o, &x, &err), &err);
	return x;
}

void serving_read(serving *s, session *x, int64_t length)
{
	static int32_t ids[SERVING_PIECE];
	serving_listener ignored = {0};
	for (int64_t at = 0; at < length; at += SERVING_PIECE) {
		int64_t n = length - at < SERVING_PIECE ? length - at : SERVING_PIECE;
		for (int64_t i = 0; i < n; i++)
			ids[i] = (int32_t)(3 + (at + i) * (at + i + 7) % (s->vocab - 3));
		serving_submit(s, x, &ignored, ids, n, 0, 0);
		serving_run(s);
	}
}

session *serving_fork(serving *s, session *x, const char *id)
{
	session *copy;
	error err = ERROR_INIT;
	bench_check(scheduler_session_fork(s->scheduler, x, id, &copy, &err), &err);
	return copy;
}

void serving_delete(serving *s, session *x)
{
	error err = ERROR_INIT;
	bench_check(scheduler_session_delete(s->scheduler, x, &err), &err);
}
