/* session.c - sessions, each one of the model's scheduler. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/library/handles.h"

_Static_assert((int)ADDITIVE_POSITIONS_ERROR == (int)POSITION_ERROR &&
                   (int)ADDITIVE_POSITIONS_CLAMP == (int)POSITION_CLAMP &&
                   (int)ADDITIVE_POSITIONS_WRAP == (int)POSITION_WRAP,
               "the public policies are those of feed.h");

/* --- handles ------------------------------------------------------------------------- */

/* Reserve memory for a copy of n more tokens. */
static status reserve_copy(additive_session *x, size_t n)
{
	if (n <= x->capacity - x->count)
		return STATUS_OK;
	const size_t need = x->count + n, capacity = 2 * x->capacity > need ? 2 * x->capacity : need;
	int32_t *bigger = realloc(x->tokens, capacity * sizeof *bigger);
	if (!bigger)
		return STATUS_NOMEM;
	x->tokens = bigger;
	x->capacity = capacity;
	return STATUS_OK;
}

/* Copy the tokens that the session has read since; memory for them is reserved. */
static void copy_tokens(additive_session *x)
{
	x->count += (size_t)scheduler_session_tokens(x->session, (int64_t)x->count, (int64_t)(x->capacity - x->count),
	                                             x->tokens + x->count);
}

static status adopt_session(additive_session **out, additive_model *m, session *x, error *err)
{
	session_info info;
	scheduler_session_info(x, &info);
	*out = memory_new(1, sizeof **out);
	if (*out)
		**out = (additive_session){.model = m, .session = x};
	if (!*out || reserve_copy(*out, (size_t)info.tokens) != STATUS_OK) {
		scheduler_session_delete(m->scheduler, x, err);
		free(*out);
		*out = NULL;
		return STATUS_NOMEM;
	}
	copy_tokens(*out);
	m->sessions++;
	return STATUS_OK;
}

static void name_session(additive_model *m, char id[SCHEDULER_ID_BYTES])
{
	snprintf(id, SCHEDULER_ID_BYTES, "%lu", m->next++);
}

static status open_session(additive_session **out, additive_model *m, additive_positions positions, error *err)
{
	char id[SCHEDULER_ID_BYTES];
	session *x;
	if ((int)positions < ADDITIVE_POSITIONS_ERROR || positions > ADDITIVE_POSITIONS_WRAP)
		return error_set(err, STATUS_INVALID, "positions", "%d is no value of additive_positions",
		                 (int)positions);
	TRY(handles_refuse_source(m, err));
	const session_options o = {.policy = (position_policy)positions};
	name_session(m, id);
	TRY(scheduler_session_new(m->scheduler, m->served, id, &o, &x, err));
	return adopt_session(out, m, x, err);
}

additive_code additive_session_open(additive_session **out, additive_model *m, additive_positions positions,
                                    additive_error *failure)
{
	error err = ERROR_INIT;
	*out = NULL;
	return handles_report(failure, open_session(out, m, positions, &err), &err);
}

void additive_session_close(additive_session *x)
{
	if (!x)
		return;
	scheduler_session_delete(x->model->scheduler, x->session, NULL);
	x->model->sessions--;
	free(x->tokens);
	free(x);
}

/* --- reading and sampling -------------------------------------------------------------- */

static int64_t ignore_event(void *context, const generation_event *e)
{
	(void)context, (void)e;
	return 1;
}

static void keep_error(void *context, const generation_result *r)
{
	error *err = context;
	*err = r->error;
	err->status = r->status;
}

static status read_tokens(additive_session *x, const int32_t *tokens, size_t count, error *err)
{
	generation *g;
	error ended = {.status = STATUS_INTERNAL};
	TRY(handles_check_tokens(x->model, tokens, count, "prompt", err));
	TRY(reserve_copy(x, count));
	generation_request r = {.prompt = tokens,
	                        .n_prompt = (int64_t)count,
	                        .n_logprobs = -1,
	                        .credit = 1,
	                        .event = ignore_event,
	                        .finished = keep_error,
	                        .context = &ended};
	sampling_default(&r.sampling);
	TRY(scheduler_generate(x->model->scheduler, x->model->served, x->session, &r, &g, err));
	status result = handles_run(x->model, err);
	copy_tokens(x);
	TRY(result);
	return ended.status == STATUS_OK ? STATUS_OK : error_set(err, ended.status, ended.param, "%s", ended.message);
}

additive_code additive_session_read(additive_session *x, const int32_t *tokens, size_t count, additive_error *failure)
{
	error err = ERROR_INIT;
	return handles_report(failure, read_tokens(x, tokens, count, &err), &err);
}

additive_code additive_session_step(additive_session *x, int32_t token, additive_error *failure)
{
	error err = ERROR_INIT;
	status result = reserve_copy(x, 1);
	if (result == STATUS_OK)
		result = scheduler_session_step(x->session, token, &err);
	copy_tokens(x);
	return handles_report(failure, result, &err);
}

size_t additive_session_tokens(const additive_session *x, const int32_t **tokens)
{
	*tokens = x->count ? x->tokens : NULL;
	return x->count;
}

additive_code additive_session_logits(additive_session *x, const float **logits, additive_error *failure)
{
	error err = ERROR_INIT;
	return handles_report(failure, scheduler_session_logits(x->session, logits, &err), &err);
}

void additive_sampling_default(additive_sampling *out)
{
	sampling s;
	sampling_default(&s);
	*out = (additive_sampling){
#define NUMBER(name, above, min, max, fallback) .name = s.name,
#define INTEGER(name, min, max, fallback) .name = s.name,
#include "gen/sampling.def"
	};
}

additive_code additive_session_sample(additive_session *x, const additive_sampling *given, int32_t *token,
                                      additive_error *failure)
{
	error err = ERROR_INIT;
	const sampling s = {
#define NUMBER(name, above, min, max, fallback) .name = given->name,
#define INTEGER(name, min, max, fallback) .name = given->name,
#include "gen/sampling.def"
	    .seed = given->seed};
	return handles_report(failure, scheduler_session_sample(x->session, &s, token, &err), &err);
}

/* --- copies -------------------------------------------------------------------------- */

static status fork_session(additive_session *x, additive_session **out, error *err)
{
	char id[SCHEDULER_ID_BYTES];
	session *copy;
	name_session(x->model, id);
	TRY(scheduler_session_fork(x->model->scheduler, x->session, id, &copy, err));
	return adopt_session(out, x->model, copy, err);
}

additive_code additive_session_fork(additive_session *x, additive_session **copy, additive_error *failure)
{
	error err = ERROR_INIT;
	*copy = NULL;
	return handles_report(failure, fork_session(x, copy, &err), &err);
}

additive_code additive_session_save(additive_session *x, void **data, size_t *bytes, additive_error *failure)
{
	error err = ERROR_INIT;
	return handles_report(failure, scheduler_session_export(x->model->scheduler, x->session, data, bytes, &err),
	                      &err);
}

static status import_session(additive_session **out, additive_model *m, const void *data, size_t bytes, error *err)
{
	char id[SCHEDULER_ID_BYTES];
	session *x;
	TRY(handles_refuse_source(m, err));
	name_session(m, id);
	TRY(scheduler_session_import(m->scheduler, m->served, id, data, bytes, &x, err));
	return adopt_session(out, m, x, err);
}

additive_code additive_session_load(additive_session **out, additive_model *m, const void *data, size_t bytes,
                                    additive_error *failure)
{
	error err = ERROR_INIT;
	*out = NULL;
	return handles_report(failure, import_session(out, m, data, bytes, &err), &err);
}
