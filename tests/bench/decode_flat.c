/* decode_flat: does a token cost the same at the end of a long sequence as at its beginning?
 *
 *   build/bench/decode_flat [threads [vocabulary]]
 *
 * One model (d 128, 4 heads, 6 layers, windows 4 8 16 32 64 and global, 512 positions, clamped beyond), two
 * sessions: one that has read 200 tokens, one that has read 60,000. They take turns in bouts of a few tokens, so that
 * a machine that becomes slower or faster does so for both; the time of a token is that from one event to
 * the next. Prints the median of 500 tokens of each, and their ratio. A small vocabulary (259) keeps the
 * logits' product, which is flat by nature, from hiding anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/serve/scheduler.h"

enum { TOKENS = 500, BOUT = 10, SHORT = 200, LONG = 60000, PIECE = 4096 };

typedef struct listener {
	uint64_t last; /* event, ns; 0: none in this bout */
	double ns[TOKENS];
	int count;
	status status;
} listener;

static int64_t on_event(void *context, const generation_event *e)
{
	listener *l = context;
	uint64_t now = clock_ns();
	(void)e;
	if (l->last && l->count < TOKENS)
		l->ns[l->count++] = (double)(now - l->last);
	l->last = now;
	return 1;
}

static void on_finished(void *context, const generation_result *r)
{
	((listener *)context)->status = r->status;
}

static status generate(scheduler *s, session *x, listener *l, const int32_t *prompt, int64_t n, int64_t max_tokens,
                       error *err)
{
	generation *g;
	generation_request r = {.prompt = prompt,
	                        .n_prompt = n,
	                        .max_tokens = max_tokens,
	                        .ignore_end = true,
	                        .credit = 1,
	                        .n_logprobs = -1,
	                        .event = on_event,
	                        .finished = on_finished,
	                        .context = l};
	sampling_default(&r.sampling);
	l->last = 0;
	TRY(scheduler_generate(s, NULL, x, &r, &g, err));
	while (scheduler_runnable(s))
		TRY(scheduler_tick(s));
	return l->status;
}

/* A session that has read `length` arbitrary tokens. */
static status prepare(scheduler *s, served_model *m, const char *id, int64_t length, session **x, error *err)
{
	int32_t ids[PIECE];
	listener nobody = {0};
	session_options o = {.policy = POSITION_CLAMP};
	TRY(scheduler_session_new(s, m, id, &o, x, err));
	for (int64_t at = 0; at < length; at += PIECE) {
		int64_t n = length - at < PIECE ? length - at : PIECE;
		for (int64_t i = 0; i < n; i++)
			ids[i] = 3 + (int32_t)((at + i) * (at + i + 7) % 256);
		TRY(generate(s, *x, &nobody, ids, n, 0, err));
	}
	return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(listener *l)
{
	qsort(l->ns, (size_t)l->count, sizeof *l->ns, ascending);
	return l->ns[l->count / 2];
}

static status measure(scheduler *s, served_model *m, error *err)
{
	static listener near, far;
	session *x, *y;
	TRY(prepare(s, m, "near", SHORT, &x, err));
	TRY(prepare(s, m, "far", LONG, &y, err));
	while (near.count < TOKENS) {
		TRY(generate(s, x, &near, NULL, 0, BOUT, err));
		TRY(generate(s, y, &far, NULL, 0, BOUT, err));
	}
	double at_near = median(&near), at_far = median(&far);
	printf("position %6d  %9.0f ns/token\nposition %6d  %9.0f ns/token\nratio %.3f\n", SHORT, at_near, LONG, at_far,
	       at_far / at_near);
	return STATUS_OK;
}

static status make_model(const char *folder, backend *b, int vocab, error *err)
{
	model *m;
	json_t *config =
	    json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i,i,i,i,i,i]}", "hidden_size", 128, "vocab_size", vocab, "n_heads",
	              4, "n_positions", 512, "n_layer", 6, "window_sizes", 4, 8, 16, 32, 64, 512);
	if (!config)
		return STATUS_NOMEM;
	status s = model_create(&m, architecture_find("additive"), config, 1, b, err);
	if (s == STATUS_OK)
		s = model_save(m, folder, err);
	model_free(m);
	json_decref(config);
	return s;
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	error err = ERROR_INIT;
	char folder[] = "/tmp/decode-flat-XXXXXX";
	backend *b = NULL;
	scheduler *s = NULL;
	served_model *m;
	scheduler_limits limits = {.max_models = 1, .max_sessions = 2, .max_generations = 1, .max_batch = 1};
	if (!mkdtemp(folder)) {
		perror(folder);
		return EXIT_FAILURE;
	}
	status why = cpu_open(&b, argc > 1 ? atoi(argv[1]) : 0, &err);
	if (why == STATUS_OK)
		why = make_model(folder, b, argc > 2 ? atoi(argv[2]) : 259, &err);
	if (why == STATUS_OK)
		why = scheduler_new(&s, b, &limits);
	if (why == STATUS_OK)
		why = scheduler_model(s, "m", folder, &m, &err);
	if (why == STATUS_OK)
		printf("%s\n", b->device);
	if (why == STATUS_OK)
		why = measure(s, m, &err);
	if (why != STATUS_OK)
		fprintf(stderr, "decode_flat: %s: %s\n", status_name(why), error_message(&err));
	scheduler_free(s);
	backend_close(b);
	file_remove_tree(folder, NULL);
	return why == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
