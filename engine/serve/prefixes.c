/* The states are few, and comparing ids is cheap beside reading them, so the search is linear. */
#include "engine/serve/prefixes.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"

static void drop(prefix *p)
{
	if (p->state) {
		p->state->model->users++; /* session_free decrements it again */
		session_free(p->state);
	}
	free(p->ids);
	*p = (prefix){0};
}

void prefixes_free(served_model *m)
{
	for (int i = 0; i < PREFIXES_KEPT; i++)
		drop(&m->prefixes[i]);
}

static prefix *prefixes_find(served_model *m, const int32_t *ids, int64_t n)
{
	for (int i = 0; i < PREFIXES_KEPT; i++) {
		prefix *p = &m->prefixes[i];
		if (p->n == n && memcmp(p->ids, ids, (size_t)n * sizeof *ids) == 0)
			return p;
	}
	return NULL;
}

/* Record a beginning in place of the least recently used entry that is not being read. */
static void note(scheduler *s, served_model *m, const int32_t *ids, int64_t n)
{
	prefix *oldest = NULL;
	for (int i = 0; i < PREFIXES_KEPT; i++) {
		prefix *p = &m->prefixes[i];
		if (!p->reading && (!oldest || p->used < oldest->used))
			oldest = p;
	}
	if (!oldest)
		return;
	drop(oldest);
	oldest->ids = memory_new((size_t)n, sizeof *ids);
	if (!oldest->ids)
		return;
	memcpy(oldest->ids, ids, (size_t)n * sizeof *ids);
	oldest->n = n;
	oldest->used = ++s->clock;
}

static void was_read(void *context, const generation_result *r)
{
	prefix *p = context;
	p->scheduler->n_prefixes--;
	p->reading = false;
	if (r->status == STATUS_OK) {
		p->state->model->users--;
		return;
	}
	session_free(p->state);
	p->state = NULL;
}

/* Start reading its state. After a failure the entry is unchanged. */
static void read_state(scheduler *s, served_model *m, prefix *p)
{
	const session_options o = {.policy = POSITION_ERROR};
	generation *g;
	generation_request r = {.prompt = p->ids,
	                        .n_prompt = p->n,
	                        .n_logprobs = -1,
	                        .background = true,
	                        .finished = was_read,
	                        .context = p};
	sampling_default(&r.sampling);
	if (session_new(&p->state, m, "", &o, NULL) != STATUS_OK)
		return;
	p->scheduler = s;
	p->reading = true;
	s->n_prefixes++;
	if (scheduler_generate(s, m, p->state, &r, &g, NULL) == STATUS_OK)
		return;
	s->n_prefixes--;
	p->reading = false;
	session_free(p->state);
	p->state = NULL;
}

/* Return a session that has read exactly these tokens or their beginning; NULL: none so far. */
static session *lookup(scheduler *s, served_model *m, const int32_t *ids, int64_t n)
{
	const model_dims *d = model_dimensions(m->model);
	n -= m->any_pieces ? 0 : n % (d->by_segments ? d->segment : SCHEDULER_PREFILL_CHUNK);
	if (n < PREFIXES_LEAST || statepool_slot_bytes(m->pool) > PREFIXES_STATE_BYTES)
		return NULL;
	prefix *p = prefixes_find(m, ids, n);
	if (!p) {
		note(s, m, ids, n);
		return NULL;
	}
	p->used = ++s->clock;
	if (p->state && !p->reading && p->state->lost) {
		drop(p);
		return NULL;
	}
	if (!p->state)
		read_state(s, m, p);
	return p->state && !p->reading ? p->state : NULL;
}

status prefixes_begin(scheduler *s, served_model *m, generation_request *r, session **out, error *err)
{
	const session_options o = {.policy = POSITION_ERROR, .explain = r->n_alpha > 0 || r->explain};
	bool shares = r->n_shared > 0 && r->n_shared < r->n_prompt && !o.explain && !r->score_prompt && !r->n_source;
	session *known = shares ? lookup(s, m, r->prompt, r->n_shared) : NULL;
	size_t moved = 0;
	bool done = false;
	if (!known)
		return session_new(out, m, "", &o, err);
	TRY(session_fork(out, known, "", err));
	status result = STATUS_OK;
	while (result == STATUS_OK && !done)
		result = session_fork_step(*out, known, &moved, &done, err);
	if (result != STATUS_OK) {
		session_free(*out);
		*out = NULL;
		return result;
	}
	r->prompt += known->tokens;
	r->n_prompt -= known->tokens;
	return STATUS_OK;
}
