/* scheduler_session.c - the live sessions, by id. Looked up once per request, so a list
 * is fast enough for as many as there are slots. */
#include <string.h>

#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"
#include "engine/serve/session_blob.h"

/* May another session of that id be opened? */
static status admit(scheduler *s, served_model *m, const char *id, error *err)
{
	if (s->n_sessions >= s->limits.max_sessions)
		return error_set(err, STATUS_BUSY, NULL, "all %d sessions are in use", s->limits.max_sessions);
	if (strlen(id) < 1 || strlen(id) >= SCHEDULER_ID_BYTES)
		return error_set(err, STATUS_INVALID, "id", "a session's id has 1 to %d bytes", SCHEDULER_ID_BYTES - 1);
	if (scheduler_session_find(s, id))
		return error_set(err, STATUS_CONFLICT, "id", "there is a session of that id");
	scheduler_model_touch(s, m);
	return STATUS_OK;
}

static void enlist(scheduler *s, session *x)
{
	x->next = s->sessions;
	s->sessions = x;
	s->n_sessions++;
}

static void discard(scheduler *s, session *x)
{
	session **link = &s->sessions;
	while (*link != x)
		link = &(*link)->next;
	*link = x->next;
	s->n_sessions--;
	session_free(x);
}

status scheduler_session_new(scheduler *s, served_model *m, const char *id, const session_options *o, session **out,
                             error *err)
{
	*out = NULL;
	TRY(admit(s, m, id, err));
	TRY(session_new(out, m, id, o, err));
	enlist(s, *out);
	return STATUS_OK;
}

session *scheduler_session_find(scheduler *s, const char *id)
{
	session *x = s->sessions;
	while (x && strcmp(x->id, id) != 0)
		x = x->next;
	return x;
}

void scheduler_session_info(const session *x, session_info *out)
{
	*out = (session_info){
	    .tokens = x->tokens,
	    .state_bytes = (int64_t)statepool_slot_bytes(x->model->pool),
	    .busy = x->busy,
	    .options = x->options,
	};
	strcpy(out->id, x->id);
	strcpy(out->model, x->model->id);
}

status scheduler_session_delete(scheduler *s, session *x, error *err)
{
	if (x->busy)
		return session_check(x, err);
	discard(s, x);
	return STATUS_OK;
}

status scheduler_session_ready(scheduler *s, session *x, error *err)
{
	if (x->owed >= 0)
		scheduler_land(s);
	return session_ready(x, err);
}

status scheduler_session_fork(scheduler *s, session *x, const char *id, session **out, error *err)
{
	*out = NULL;
	TRY(scheduler_session_ready(s, x, err));
	TRY(admit(s, x->model, id, err));
	TRY(session_fork(out, x, id, err));
	enlist(s, *out);
	return STATUS_OK;
}

status scheduler_session_export(scheduler *s, session *x, void **out, size_t *bytes, error *err)
{
	*out = NULL;
	*bytes = 0;
	TRY(scheduler_session_ready(s, x, err));
	scheduler_model_touch(s, x->model);
	return session_blob_write(x, out, bytes, err);
}

status scheduler_session_import(scheduler *s, served_model *m, const char *id, const void *blob, size_t bytes,
                                session **out, error *err)
{
	*out = NULL;
	TRY(admit(s, m, id, err));
	TRY(session_blob_read(out, m, id, blob, bytes, err));
	enlist(s, *out);
	return STATUS_OK;
}

status scheduler_session_log(session *x, const int32_t **tokens, const float **scores, int64_t *count, error *err)
{
	*tokens = NULL;
	*scores = NULL;
	*count = 0;
	if (!x->options.explain)
		return error_set(err, STATUS_CONFLICT, NULL, "the session was not opened with explain");
	*tokens = x->ids;
	*scores = x->scores;
	*count = x->tokens;
	return STATUS_OK;
}

void scheduler_session_free_all(scheduler *s)
{
	while (s->sessions)
		discard(s, s->sessions);
}
