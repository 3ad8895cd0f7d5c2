/* refusal.h - while the device refuses a call, two sessions decode, one reads a prompt, one continues without a prompt
 * and one is idle. At most the sessions of one step are affected; all others have the tokens of a day without a fault.
 */
#ifndef TESTS_UNIT_SERVE_REFUSAL_H
#define TESTS_UNIT_SERVE_REFUSAL_H

#include "tests/unit/serve/fixture.h"

enum { REFUSAL_SESSIONS = 5, REFUSAL_DECODING = 3, REFUSAL_TOKENS = 9 };
/* The sessions 0 and 1 decode from the start. */
enum { REFUSAL_RESUMED = 2, REFUSAL_PROMPT = 3, REFUSAL_IDLE = 4 };

typedef struct refusal_day {
	fixture *f;
	scheduler *scheduler;
	session *sessions[REFUSAL_SESSIONS];
	client clients[REFUSAL_SESSIONS];
} refusal_day;

/* Number of failed steps by kind, and of their sessions by what has happened to them. */
typedef struct refusal_count {
	int decode, prompt, lost, kept;
} refusal_count;

static const int64_t refusal_prompts[REFUSAL_SESSIONS] = {7, 5, 6, 21, 9};

static inline void refusal_prompt(int i, int32_t *ids)
{
	random_tokens(ids, refusal_prompts[i], 40 + (uint64_t)i);
}

/* Read the session's prompt, or continue without one, and generate max_tokens. */
static inline void refusal_start(refusal_day *d, int i, client *c, bool prompt, int64_t max_tokens)
{
	int32_t ids[32];
	refusal_prompt(i, ids);
	generation_request r = request(c, ids, prompt ? refusal_prompts[i] : 0, max_tokens);
	r.sampling.temperature = (float)(i % 2);
	start(d->f, d->sessions[i], c, &r);
}

/* `arm` plants the fault in the call with this number from then on; NULL: none. */
static inline void refusal_run(refusal_day *d, fixture *f, void (*arm)(void *context, int call), void *context,
                               int call)
{
	static const scheduler_limits limits = {
	    .max_models = 1, .max_sessions = 8, .max_generations = 8, .max_batch = 5};
	char id[8];
	memset(d, 0, sizeof *d);
	fixture_serve(f, &limits);
	d->f = f;
	d->scheduler = f->scheduler;
	for (int i = 0; i < REFUSAL_SESSIONS; i++) {
		snprintf(id, sizeof id, "%d", i);
		d->sessions[i] = open_session(f, id, POSITION_CLAMP, false);
	}
	refusal_start(d, REFUSAL_IDLE, &d->clients[REFUSAL_IDLE], true, 0);
	refusal_start(d, REFUSAL_RESUMED, &d->clients[REFUSAL_RESUMED], true, 0);
	drain(f);
	for (int i = 0; i < REFUSAL_RESUMED; i++)
		refusal_start(d, i, &d->clients[i], true, REFUSAL_TOKENS);
	while (d->clients[0].n_tokens < 3 || d->clients[1].n_tokens < 3)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	if (arm)
		arm(context, call);
	refusal_start(d, REFUSAL_RESUMED, &d->clients[REFUSAL_RESUMED], false, REFUSAL_TOKENS);
	refusal_start(d, REFUSAL_PROMPT, &d->clients[REFUSAL_PROMPT], true, 0);
	drain(f); /* no tick reports a lost device */
	for (int i = 0; i < REFUSAL_SESSIONS; i++)
		assert_int_equal(d->clients[i].finished, 1);
}

/* Continue a session whose generation has failed, to the tokens of the golden one. */
static inline void refusal_continue(refusal_day *d, const refusal_day *golden, int i)
{
	client rest;
	const client *c = &d->clients[i], *g = &golden->clients[i];
	const int left = g->n_tokens - c->n_tokens;
	refusal_start(d, i, &rest, i == REFUSAL_PROMPT, left);
	drain(d->f);
	assert_int_equal(rest.finished, 1);
	assert_int_equal(rest.result.status, STATUS_OK);
	assert_int_equal(rest.n_tokens, left);
	assert_memory_equal(rest.tokens, g->tokens + c->n_tokens, (size_t)left * sizeof *rest.tokens);
}

/* True if client i has an error. Its session is then lost, or has not changed in the failed step. */
static inline bool refusal_failed(refusal_day *d, const refusal_day *golden, int i, refusal_count *all)
{
	const client *c = &d->clients[i], *g = &golden->clients[i];
	session *x = d->sessions[i];
	assert_true(c->n_tokens <= g->n_tokens);
	assert_memory_equal(c->tokens, g->tokens, (size_t)c->n_tokens * sizeof *c->tokens);
	const bool failed = c->result.status != STATUS_OK;
	if (failed) {
		assert_true(c->result.status == STATUS_DEVICE || c->result.status == STATUS_NOMEM);
		assert_non_null(strstr(c->result.error.message, x->lost ? "is lost" : "keeps the tokens"));
		all->lost += x->lost;
		all->kept += !x->lost;
	} else {
		assert_int_equal(c->n_tokens, g->n_tokens);
		assert_false(x->lost);
	}
	if (x->lost) {
		assert_null(scheduler_session_find(d->scheduler, x->id)); /* freed: the id can be used again */
		return true;
	}
	if (failed)
		refusal_continue(d, golden, i);
	assert_same_logits(x, golden->sessions[i]);
	assert_equals_new_session(d->f, x);
	return failed;
}

static inline void refusal_judge(refusal_day *d, const refusal_day *golden, refusal_count *all)
{
	const int kept = all->kept;
	int decoding = 0;
	for (int i = 0; i < REFUSAL_DECODING; i++)
		decoding += refusal_failed(d, golden, i, all);
	const bool prompt = refusal_failed(d, golden, REFUSAL_PROMPT, all);
	assert_false(refusal_failed(d, golden, REFUSAL_IDLE, all));
	/* A step of both that has changed nothing ends none of them. */
	assert_true(decoding == 0 || !prompt || all->kept == kept);
	all->decode += decoding > 0;
	all->prompt += prompt;
}

static inline void refusal_end(refusal_day *d)
{
	scheduler_free(d->scheduler);
}

#endif
