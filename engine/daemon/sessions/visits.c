/* A visit is a task with a session: the pool reads its state, if it is not live, the executor finds or makes the
 * session by its ticket, acts, and looks at what has become of it; the loop settles that and answers. The methods
 * differ in what `act` does, and in what `answer` says when all went well. */
#include "engine/daemon/sessions/visits.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/download.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/requests/upload.h"
#include "engine/daemon/sessions/session_settle.h"

#define VISITS_MAX_STATE ((int64_t)1 << 30)
enum { VISITS_LOG_SLICE = 1 << 20 /* bytes of a log that are copied in one turn */ };

typedef struct visit visit;

typedef struct visit_kind {
	/* Executor thread; called in the next turn again while it sets v->more. NULL: being there is enough */
	status (*act)(visit *v, device *d, session *x, error *err);
	void (*answer)(
	    visit *v); /* loop thread; answers the stream and frees v. NULL: the visit makes a session, the answer */
} visit_kind;

struct visit {
	task task;
	const visit_kind *kind;
	stream *stream;
	model_entry *model;
	session_entry *entry;  /* visited, or being made */
	session_entry *parent; /* fork: the one copied from */
	session_ticket ticket; /* of entry; fork: of the parent */
	session_change change, parent_change;
	session_settlement settlement; /* of the session that is made */
	status result;
	error error;
	session_transfer export;
	uv_work_t work;
	session_log log;
	int64_t copied; /* tokens of the log */
	bool more;
	void (*fetched)(stream *s, session_log *log);
};

static sessions *table(const visit *v)
{
	return v->stream->engine->sessions;
}

static void visit_free(visit *v)
{
	catalog_release(v->model);
	session_log_fini(&v->log);
	scheduler_transfer_fini(&v->export);
	session_ticket_fini(&v->ticket);
	free(v);
}

static status act(visit *v, device *d)
{
	session *x = NULL;
	TRY(session_ticket_redeem(&v->ticket, v->model, d, &x, &v->error));
	return v->kind->act ? v->kind->act(v, d, x, &v->error) : STATUS_OK;
}

static bool prepare_visit(task *t, device *d)
{
	visit *v = (visit *)t;
	if (!session_ticket_prepare(&v->ticket, v->model, d))
		return false;
	v->result = act(v, d);
	return v->result != STATUS_OK || !v->more;
}

static void run_visit(task *t, device *d)
{
	visit *v = (visit *)t;
	if (v->result != STATUS_OK)
		error_set(&v->error, v->result, NULL, "%s", status_text(v->result));
	session_ticket_look(&v->change, d, sessions_id(v->entry));
	if (v->parent)
		session_ticket_look(&v->parent_change, d, sessions_id(v->parent));
}

static json_t *made_object(session_settlement *x)
{
	return sessions_object(x->entry);
}

static void made(session_settlement *x)
{
	visit_free(TASK_OWNER(x, visit, settlement));
}

static void settle_made(visit *v)
{
	static const session_ticket fresh = {.create = true};
	v->settlement = (session_settlement){.stream = v->stream,
	                                     .entry = v->entry,
	                                     .ticket = &fresh,
	                                     .making = true,
	                                     .change = v->change,
	                                     .error = v->error,
	                                     .result = made_object,
	                                     .settled = made};
	session_settle(&v->settlement);
}

static void visit_done(task *t)
{
	visit *v = (visit *)t;
	if (v->parent)
		sessions_return(table(v), &v->parent, &v->ticket, &v->parent_change, &v->error);
	if (!v->kind->answer) {
		settle_made(v);
		return;
	}
	sessions_return(table(v), &v->entry, &v->ticket, &v->change, &v->error);
	if (v->error.status == STATUS_OK) {
		v->kind->answer(v);
		return;
	}
	stream_error(v->stream, &v->error, NULL);
	visit_free(v);
}

static void refuse(visit *v, status why, const char *words)
{
	if (v->parent)
		sessions_release(table(v), v->parent);
	if (v->parent || v->ticket.create)
		sessions_remove(table(v), v->entry, NULL);
	else
		sessions_release(table(v), v->entry);
	stream_refuse(v->stream, why, NULL, NULL, "%s", words);
	visit_free(v);
}

static void submit(visit *v)
{
	v->task = (task){.prepare = prepare_visit, .run = run_visit, .done = visit_done};
	if (!executor_submit(v->stream->engine->executor, &v->task))
		refuse(v, STATUS_BUSY, "too many requests are waiting");
}

static void pool_fetch(uv_work_t *work)
{
	session_ticket_fetch(&((visit *)work->data)->ticket);
}

static void state_is_here(uv_work_t *work, int cancelled)
{
	(void)cancelled; /* nothing cancels a request */
	submit(work->data);
}

static void begin(visit *v)
{
	v->work.data = v;
	if (!session_ticket_has_work(&v->ticket))
		submit(v);
	else if (uv_queue_work(&v->stream->engine->loop, &v->work, pool_fetch, state_is_here) != 0)
		refuse(v, STATUS_NOMEM, "out of memory");
}

static visit *visit_new(stream *s, const visit_kind *kind)
{
	visit *v = memory_new(1, sizeof *v);
	if (!v) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return NULL;
	}
	v->stream = s;
	v->kind = kind;
	return v;
}

/* A visit to an existing session; NULL: answered. */
static visit *visit_existing(stream *s, const char *id, const visit_kind *kind)
{
	visit *v = visit_new(s, kind);
	if (v)
		v->entry = sessions_take(s->engine->sessions, s, id, &v->ticket, &v->model);
	if (v && !v->entry) {
		visit_free(v);
		return NULL;
	}
	return v;
}

/* --- create ------------------------------------------------------------------------ */

static void read_options(const json_t *params, session_options *out)
{
	*out = (session_options){sessions_policy(json_string_value(json_object_get(params, "position_policy"))),
	                         json_is_true(json_object_get(params, "explain")),
	                         json_is_true(json_object_get(params, "durable"))};
}

status visits_make(stream *s, const model_entry *c, session_entry **out, session_ticket *ticket, error *err)
{
	session_options options;
	const json_t *ttl = json_object_get(s->params, "ttl_seconds");
	read_options(s->params, &options);
	if (options.explain)
		TRY(catalog_check_explains(c, false, "explain", err));
	TRY(sessions_add(s->engine->sessions, c, &options, json_is_integer(ttl) ? json_integer_value(ttl) : -1, out,
	                 err));
	*ticket = (session_ticket){.options = options, .create = true};
	snprintf(ticket->id, sizeof ticket->id, "%s", sessions_id(*out));
	return STATUS_OK;
}

void visits_create(stream *s)
{
	static const visit_kind kind = {NULL, NULL};
	error err = ERROR_INIT;
	visit *v = visit_new(s, &kind);
	if (!v)
		return;
	status why = catalog_open_generative(s->engine->catalog, json_string_value(json_object_get(s->params, "model")),
	                                     &v->model, &err);
	if (why == STATUS_OK)
		why = visits_make(s, v->model, &v->entry, &v->ticket, &err);
	if (why == STATUS_OK) {
		begin(v);
		return;
	}
	visit_free(v);
	error_set(&err, why, NULL, "%s", status_text(why));
	stream_error(s, &err, NULL);
}

/* --- fork -------------------------------------------------------------------------- */

static status act_fork(visit *v, device *d, session *x, error *err)
{
	session *copy;
	return scheduler_session_fork(device_scheduler(d), x, sessions_id(v->entry), &copy, err);
}

void visits_fork(stream *s)
{
	static const visit_kind kind = {act_fork, NULL};
	error err = ERROR_INIT;
	visit *v = visit_existing(s, s->target, &kind);
	if (!v)
		return;
	v->parent = v->entry;
	status why = sessions_add_like(s->engine->sessions, v->model, v->parent, &v->entry, &err);
	if (why == STATUS_OK) {
		begin(v);
		return;
	}
	sessions_release(s->engine->sessions, v->parent);
	visit_free(v);
	error_set(&err, why, NULL, "%s", status_text(why));
	stream_error(s, &err, NULL);
}

/* --- export and import ---------------------------------------------------------------- */

static status act_export(visit *v, device *d, session *x, error *err)
{
	status why = scheduler_session_export_step(device_scheduler(d), x, &v->export, err);
	v->more = !v->export.done;
	return why;
}

static void pool_seal(uv_work_t *work)
{
	scheduler_transfer_seal(&((visit *)work->data)->export);
}

static void sealed(uv_work_t *work, int cancelled)
{
	visit *v = work->data;
	session_transfer export = v->export;
	char filename[STORE_ID_BYTES + 8];
	(void)cancelled; /* nothing cancels a request */
	v->export = (session_transfer){0};
	snprintf(filename, sizeof filename, "%s.state", v->stream->target);
	download_bytes(v->stream, export.blob, export.bytes, filename, "application/octet-stream");
	visit_free(v);
}

static void answer_export(visit *v)
{
	if (uv_queue_work(&v->stream->engine->loop, &v->work, pool_seal, sealed) == 0)
		return;
	stream_refuse(v->stream, STATUS_NOMEM, NULL, NULL, "out of memory");
	visit_free(v);
}

void visits_export(stream *s)
{
	static const visit_kind kind = {act_export, answer_export};
	visit *v = visit_existing(s, s->target, &kind);
	if (v)
		begin(v);
}

/* The state is here; what kind of session it is stands in the blob, and is known once it has been read. */
static void received(stream *s, const char *folder)
{
	static const visit_kind kind = {NULL, NULL};
	error err = ERROR_INIT;
	visit *v = visit_new(s, &kind);
	if (!v)
		return;
	(void)folder;
	v->ticket.import.blob = upload_take(s, &v->ticket.import.bytes);
	status why = catalog_open_generative(s->engine->catalog, json_string_value(json_object_get(s->params, "model")),
	                                     &v->model, &err);
	if (why == STATUS_OK)
		why = sessions_add(s->engine->sessions, v->model, &(session_options){0}, -1, &v->entry, &err);
	if (why == STATUS_OK) {
		v->ticket.create = true;
		snprintf(v->ticket.id, sizeof v->ticket.id, "%s", sessions_id(v->entry));
		begin(v);
		return;
	}
	visit_free(v);
	error_set(&err, why, NULL, "%s", status_text(why));
	stream_error(s, &err, NULL);
}

void visits_import(stream *s)
{
	static const upload_part parts[] = {{"state", "state", VISITS_MAX_STATE, true}, {0}};
	static const upload_plan wanted = {.parts = parts, .in_memory = true, .finished = received};
	error err = ERROR_INIT;
	model_entry *c;
	if (catalog_open_generative(s->engine->catalog, json_string_value(json_object_get(s->params, "model")), &c,
	                            &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return;
	}
	catalog_release(c);
	upload_begin(s, &wanted);
}

/* --- the log ------------------------------------------------------------------------- */

void session_log_fini(session_log *log)
{
	catalog_release(log->model);
	free(log->tokens);
	free(log->data);
	*log = (session_log){0};
}

/* Room for the log of x, once; again if x has come back otherwise after the device has failed. */
static status begin_log(visit *v, session *x, const int32_t **tokens, const float **data, error *err)
{
	int64_t count;
	explain_log *log = &v->log.log;
	TRY(catalog_check_explains(v->model, false, NULL, err));
	TRY(scheduler_session_log(x, tokens, data, &count, err));
	if (count == 0)
		return error_set(err, STATUS_INVALID, NULL, "the session has read nothing yet");
	if (v->log.data && count == log->tokens)
		return STATUS_OK;
	session_log_fini(&v->log);
	v->copied = 0;
	explain_log_init(log, v->model->architecture, v->model->parsed, NULL, count);
	v->log.tokens = memory_new((size_t)count, sizeof **tokens);
	log->data = v->log.data = memory_new((size_t)count, (size_t)log->floats * sizeof **data);
	return v->log.tokens && v->log.data ? STATUS_OK : STATUS_NOMEM;
}

/* The next tokens of the log. */
static status act_log(visit *v, device *d, session *x, error *err)
{
	const int32_t *tokens;
	const float *data;
	(void)d;
	TRY(begin_log(v, x, &tokens, &data, err));
	const explain_log *log = &v->log.log;
	int64_t n = VISITS_LOG_SLICE / (int64_t)sizeof *data / log->floats + 1, at = v->copied;
	n = n < log->tokens - at ? n : log->tokens - at;
	memcpy(v->log.tokens + at, tokens + at, (size_t)n * sizeof *tokens);
	memcpy(v->log.data + at * log->floats, data + at * log->floats, (size_t)(n * log->floats) * sizeof *data);
	v->copied += n;
	v->more = v->copied < log->tokens;
	return STATUS_OK;
}

static void answer_log(visit *v)
{
	session_log log = v->log;
	log.model = v->model;
	v->model = NULL;
	v->log = (session_log){0};
	v->fetched(v->stream, &log);
	visit_free(v);
}

void visits_log(stream *s, const char *id, void (*fetched)(stream *s, session_log *log))
{
	static const visit_kind kind = {act_log, answer_log};
	visit *v = visit_existing(s, id, &kind);
	if (!v)
		return;
	v->fetched = fetched;
	begin(v);
}
