/* fixture.h - a small random model in a temporary folder, a scheduler that serves it, and clients that record their
 * events. */
#ifndef TESTS_UNIT_SERVE_FIXTURE_H
#define TESTS_UNIT_SERVE_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/philox.h"
#include "engine/cpu/cpu.h"
#include "engine/serve/scheduler_state.h"
#include "tests/unit/serve/fault_backend.h"
#include "tests/unit/support/folder.h"

enum { POSITIONS = 48, VOCAB = 259, LAYERS = 3, HEADS = 4, HIDDEN = 32 };

typedef struct fixture {
	char folder[64];  /* folder of the model */
	backend *backend; /* the reference kernels: a row's result does not depend on the batch */
	scheduler *scheduler;
	served_model *model;
} fixture;

/* Run each test with plain steps, with steps cut into parts, and with steps that are issued before the tokens of the
 * last step are taken. */
#define RUN_ALL_WAYS(tests) run_all_ways(tests, sizeof(tests) / sizeof *(tests))
static inline int run_all_ways(const struct CMUnitTest *tests, size_t n)
{
	int failed = _cmocka_run_group_tests("tests", tests, n, NULL, NULL);
	fault_parts = true;
	failed += _cmocka_run_group_tests("parts", tests, n, NULL, NULL);
	fault_parts = false;
	fault_fetches = true;
	return failed + _cmocka_run_group_tests("ahead", tests, n, NULL, NULL);
}

static atomic_llong automatic_used;
static const scheduler_limits roomy = {.max_models = 2, .max_sessions = 16, .max_generations = 16, .max_batch = 8,
                                       .automatic_bytes = 1 << 20, .automatic_used = &automatic_used};

/* Scores are zero in a new model; give every parameter an effect. */
static inline void stir(model *m, uint64_t seed)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		float *data = model_arena(m) + model_parameter_offset(m, i);
		for (int64_t j = 0; j < shape_count(p->shape); j++)
			data[j] += philox_uniform(philox(seed, (uint32_t)i, 1, (uint64_t)j).word[0]) - 0.5f;
	}
}

/* Write a model folder of this configuration. */
static inline void write_configured(const char *folder, backend *b, const char *kind, const char *text)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config = json_loads(text, 0, NULL);
	assert_non_null(config);
	if (model_create(&m, architecture_find(kind), config, 1, b, &err) != STATUS_OK)
		fail_msg("%s: %s", kind, err.message);
	stir(m, 5);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
}

/* Write a model folder. `positions` is POSITIONS, or more; then later positions repeat or restart as the policy
 * `beyond` defines. */
static inline void write_model(const char *folder, backend *b, uint64_t seed, int64_t positions, position_policy beyond)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config = json_pack("{s:i, s:i, s:i, s:I, s:i, s:[i,i,i], s:f}", "hidden_size", HIDDEN, "vocab_size",
	                           VOCAB, "n_heads", HEADS, "n_positions", (json_int_t)positions, "n_layer", LAYERS,
	                           "window_sizes", 3, 5, 1 << 20, "initializer_range", 0.3);
	assert_int_equal(model_create(&m, architecture_find("additive"), config, seed, b, &err), STATUS_OK);
	stir(m, seed);
	for (int i = 0; i < model_tensor_count(m); i++) {
		float *rows = model_arena(m) + model_parameter_offset(m, i);
		if (strcmp(model_parameter(m, i)->name, "fastformer_model.position_embeddings.weight") != 0)
			continue;
		for (int64_t p = POSITIONS; p < positions; p++) {
			int64_t like = beyond == POSITION_WRAP ? p % POSITIONS : POSITIONS - 1;
			memcpy(rows + p * HIDDEN, rows + like * HIDDEN, HIDDEN * sizeof *rows);
		}
	}
	assert_int_equal(model_save(m, folder, &err), STATUS_OK);
	model_free(m);
	json_decref(config);
}

/* Write a GPT-2 with the same vocabulary and positions. */
static inline void write_gpt2(const char *folder, backend *b, uint64_t seed)
{
	model *m;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:f}", "n_embd", HIDDEN, "vocab_size", VOCAB, "n_head",
	                           HEADS, "n_positions", POSITIONS, "n_layer", LAYERS, "initializer_range", 0.3);
	assert_int_equal(model_create(&m, architecture_find("gpt2"), config, seed, b, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
}

static inline void make_folder(char folder[64])
{
	folder_new(folder);
}

/* Make an empty folder, and open the backend. */
static inline void fixture_begin(fixture *f, status (*open)(backend **b, int threads, error *err), int threads)
{
	make_folder(f->folder);
	assert_int_equal(open(&f->backend, threads, NULL), STATUS_OK);
	if (fault_fetches || fault_parts)
		f->backend = &fault_backend_new(f->backend)->base;
}

static inline void fixture_folder_on(fixture *f, status (*open)(backend **b, int threads, error *err), int threads)
{
	fixture_begin(f, open, threads);
	write_model(f->folder, f->backend, 1, POSITIONS, POSITION_ERROR);
}

static inline void fixture_folder(fixture *f)
{
	fixture_folder_on(f, cpu_open, 1);
}

static inline void fixture_serve_as(fixture *f, const scheduler_limits *limits, dtype weights)
{
	error err = ERROR_INIT;
	assert_int_equal(scheduler_new(&f->scheduler, f->backend, limits), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, weights, &f->model, &err), STATUS_OK);
	f->model->way_is_fixed = fault_parts;
	f->model->way = THREADS_PARTS;
}

static inline void fixture_serve(fixture *f, const scheduler_limits *limits)
{
	fixture_serve_as(f, limits, DTYPE_PANEL_F32);
}

/* Let steps depend on these times instead of measured ones until a step has run. A step of few rows takes 1000 ns. Each
 * token of a prompt adds 50. */
static inline void set_times(served_model *m, uint64_t row_ns)
{
	m->step_ns = 1000;
	m->row_ns = row_ns;
	m->token_ns = 50;
}

static inline void fixture_open(fixture *f, const scheduler_limits *limits)
{
	fixture_folder(f);
	fixture_serve(f, limits);
}

static inline void fixture_close(fixture *f)
{
	scheduler_free(f->scheduler);
	backend_close(f->backend);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
}

/* A new fixture for each test. */
static inline int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	fixture_open(f, &roomy);
	*state = f;
	return 0;
}

static inline int teardown(void **state)
{
	fixture_close(*state);
	free(*state);
	return 0;
}

static inline session *open_session(fixture *f, const char *id, position_policy policy, bool explain)
{
	session *x;
	session_options o = {.policy = policy, .explain = explain};
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, id, &o, &x, NULL), STATUS_OK);
	return x;
}

static inline void drop(fixture *f, session *x)
{
	assert_int_equal(scheduler_session_delete(f->scheduler, x, NULL), STATUS_OK);
}

/* --- clients -------------------------------------------------------------------- */

enum { CLIENT_TOKENS = 600 };

typedef struct client {
	generation *generation; /* NULL when finished */
	int64_t credit;
	int cancel_after; /* cancel in the event of this token; 0: never */
	int32_t tokens[CLIENT_TOKENS];
	int n_tokens, n_empty; /* events without text */
	char text[4 * CLIENT_TOKENS];
	size_t text_bytes;
	token_logprob logprob, top[GENERATION_MAX_LOGPROBS]; /* those of the last token */
	token_logprob logprobs[CLIENT_TOKENS];
	int n_top;
	alpha_weight alpha[64];
	int n_alpha;
	int finished;
	generation_result result;
	bool keeps_log; /* from the result; freed by the test */
	/* called after the event is recorded, if set */
	void (*on_event)(struct client *c);
	void (*on_finished)(struct client *c);
	void *context;
} client;

static inline int64_t client_event(void *context, const generation_event *e)
{
	client *c = context;
	assert_int_equal(c->finished, 0);
	assert_true(c->credit > 0);
	assert_true((e->n_tokens > 0 || e->text_bytes > 0) && c->n_tokens + e->n_tokens <= CLIENT_TOKENS);
	memcpy(c->tokens + c->n_tokens, e->tokens, (size_t)e->n_tokens * sizeof *e->tokens);
	c->n_empty += e->text_bytes == 0;
	memcpy(c->text + c->text_bytes, e->text, e->text_bytes);
	c->text_bytes += e->text_bytes;
	if (e->logprobs) {
		memcpy(c->logprobs + c->n_tokens, e->logprobs, (size_t)e->n_tokens * sizeof *e->logprobs);
		c->logprob = e->logprobs[e->n_tokens - 1];
		c->n_top = e->n_top;
		const token_logprob *top = e->top + (e->n_tokens - 1) * e->n_top;
		memcpy(c->top, top, (size_t)e->n_top * sizeof *e->top);
	}
	c->n_tokens += e->n_tokens;
	c->n_alpha = e->n_alpha;
	if (e->n_alpha > 0)
		memcpy(c->alpha, e->alpha, (size_t)e->n_alpha * sizeof *e->alpha);
	c->credit--;
	if (c->n_tokens == c->cancel_after)
		generation_cancel(c->generation);
	if (c->on_event)
		c->on_event(c);
	return c->credit;
}

static inline void client_finished(void *context, const generation_result *r)
{
	client *c = context;
	c->finished++;
	c->result = *r;
	if (!c->keeps_log) {
		free(r->log);
		c->result.log = NULL;
	}
	c->generation = NULL;
	if (c->on_finished)
		c->on_finished(c);
}

/* A request for max_tokens after the prompt, greedy, without end of text. */
static inline generation_request request(client *c, const int32_t *prompt, int64_t n_prompt, int64_t max_tokens)
{
	memset(c, 0, sizeof *c);
	c->credit = INT32_MAX;
	generation_request r = {.prompt = prompt,
	                        .n_prompt = n_prompt,
	                        .max_tokens = max_tokens,
	                        .ignore_end = true,
	                        .n_logprobs = -1,
	                        .event = client_event,
	                        .finished = client_finished,
	                        .context = c,
	                        .credit = INT32_MAX};
	sampling_default(&r.sampling);
	r.sampling.temperature = 0;
	return r;
}

static inline void start(fixture *f, session *x, client *c, const generation_request *r)
{
	error err = ERROR_INIT;
	c->credit = r->credit;
	status s = scheduler_generate(f->scheduler, x ? NULL : f->model, x, r, &c->generation, &err);
	if (s != STATUS_OK)
		fail_msg("%s: %s", status_name(s), err.message);
}

/* Start a beam search whose n best go to one client each. */
static inline void start_search(fixture *f, const beam_options *o, const generation_request *r, client *c, int n)
{
	generation_request each[BEAM_SEARCH_MAX] = {{0}};
	generation *g[BEAM_SEARCH_MAX];
	error err = ERROR_INIT;
	memset(c, 0, (size_t)n * sizeof *c);
	for (int i = 0; i < n; i++) {
		each[i] = *r;
		each[i].context = &c[i];
		c[i].credit = r->credit;
	}
	status s = scheduler_search(f->scheduler, f->model, o, each, n, g, &err);
	if (s != STATUS_OK)
		fail_msg("%s: %s", status_name(s), err.message);
	for (int i = 0; i < n; i++)
		c[i].generation = g[i];
}

static inline generation_request search_request(const int32_t *prompt, int64_t n_prompt, int64_t max_tokens)
{
	client unused;
	generation_request r = request(&unused, prompt, n_prompt, max_tokens);
	r.sampling.temperature = 1;
	r.n_logprobs = 2;
	return r;
}

/* Tick until there is nothing to do. */
static inline void drain(fixture *f)
{
	for (int i = 0; scheduler_runnable(f->scheduler); i++) {
		assert_true(i < 100000);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
}

static inline void run(fixture *f, session *x, client *c, const generation_request *r)
{
	start(f, x, c, r);
	drain(f);
	assert_int_equal(c->finished, 1);
}

/* n random tokens, none of them special. */
static inline void random_tokens(int32_t *ids, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		ids[i] = 3 + (int32_t)(philox(seed, 3, 0, (uint64_t)i).word[0] % (VOCAB - 3));
}

static inline void append(fixture *f, session *x, const int32_t *ids, int64_t n)
{
	client c;
	generation_request r = request(&c, ids, n, 0);
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.n_tokens, 0);
}

/* Return the session's tokens; free() them. */
static inline int32_t *tokens_of(const session *x)
{
	int32_t *ids = malloc((size_t)x->tokens * sizeof *ids + 1);
	assert_non_null(ids);
	assert_int_equal(scheduler_session_tokens(x, 0, INT64_MAX, ids), x->tokens);
	return ids;
}

static inline void assert_tokens(const session *x, const int32_t *ids, int64_t n)
{
	int32_t *own = tokens_of(x);
	assert_int_equal(x->tokens, n);
	assert_memory_equal(own, ids, (size_t)n * sizeof *ids);
	free(own);
}

static inline void assert_same_tokens(const session *a, const session *b)
{
	int32_t *ids = tokens_of(b);
	assert_tokens(a, ids, b->tokens);
	free(ids);
}

static inline void assert_same_logits(const session *a, const session *b)
{
	assert_memory_equal(a->logits, b->logits, VOCAB * sizeof *a->logits);
}

/* Check that the session's logits equal those of a new session that reads its tokens in one call. */
static inline void assert_equals_new_session(fixture *f, const session *x)
{
	session *y = open_session(f, "afresh", x->options.policy, false);
	int32_t *ids = tokens_of(x);
	append(f, y, ids, x->tokens);
	free(ids);
	assert_same_logits(x, y);
	drop(f, y);
}

#endif
