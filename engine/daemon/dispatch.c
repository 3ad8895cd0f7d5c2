/* dispatch.c - one row per method: its handler. The contract (gen/schemas.h) states whether a method has an id, whether
 * it is an upload, and which schema its other params must match. Handlers therefore read params without checking
 * types. */
#include "engine/daemon/dispatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/reserve.h"
#include "engine/daemon/generation/methods.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/explain_request.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/library/adapter_methods.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/library/models.h"
#include "engine/daemon/library/statistics.h"
#include "engine/daemon/library/storage.h"
#include "engine/daemon/metrics.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/queue/trace_outbox.h"
#include "engine/daemon/requests/audit.h"
#include "engine/daemon/requests/deadline.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/responses.h"
#include "engine/daemon/rooms.h"
#include "engine/daemon/sessions/session_task.h"
#include "engine/daemon/sessions/sessions.h"
#include "gen/schemas.h"

typedef struct method {
	const char *name;
	void (*begin)(stream *s);
	room room;
	bool counted; /* it computes with a client's input: it counts for its key's limits, and the deaths of the
	               * engine during it are counted */
} method;

static void watch_traces(stream *s)
{
	const engine *e = s->room;
	trace_outbox_watch(s, e->traces);
}

static const method methods[] = {
    {"engine.status", metrics_status, ROOM_ENGINE, false},
    {"engine.metrics", metrics_read, ROOM_ENGINE, false},
    {"key.create", keys_create, ROOM_KEYS, false},
    {"key.list", keys_list, ROOM_KEYS, false},
    {"key.get", keys_get, ROOM_KEYS, false},
    {"key.update", keys_update, ROOM_KEYS, false},
    {"key.delete", keys_revoke, ROOM_KEYS, false},
    {"key.watch", keys_watch, ROOM_KEYS, false},
    {"trace.watch", watch_traces, ROOM_ENGINE, false},
    {"storage.usage", storage_usage, ROOM_LIBRARY, false},
    {"model.list", models_list, ROOM_LIBRARY, false},
    {"model.get", models_get, ROOM_LIBRARY, false},
    {"model.delete", models_delete, ROOM_LIBRARY, false},
    {"model.load", models_load, ROOM_LIBRARY, false},
    {"model.unload", models_unload, ROOM_LIBRARY, false},
    {"model.import", models_import, ROOM_LIBRARY, true},
    {"model.file", models_file, ROOM_LIBRARY, false},
    {"model.files", models_files, ROOM_LIBRARY, false},
    {"model.card", models_card, ROOM_LIBRARY, false},
    {"adapter.list", adapter_methods_list, ROOM_LIBRARY, false},
    {"adapter.get", adapter_methods_get, ROOM_LIBRARY, false},
    {"adapter.delete", adapter_methods_delete, ROOM_LIBRARY, false},
    {"adapter.content", adapter_methods_content, ROOM_LIBRARY, false},
    {"adapter.import", adapter_methods_import, ROOM_LIBRARY, false},
    {"file.create", files_create, ROOM_LIBRARY, true},
    {"file.list", files_list, ROOM_LIBRARY, false},
    {"file.get", files_get, ROOM_LIBRARY, false},
    {"file.delete", files_delete, ROOM_LIBRARY, false},
    {"file.content", files_content, ROOM_LIBRARY, false},
    {"file.statistics", statistics_read, ROOM_LIBRARY, true},
    {"completion.create", completions_create, ROOM_GENERATION, true},
    {"chat.create", chat_create, ROOM_GENERATION, true},
    {"response.create", chat_respond, ROOM_GENERATION, true},
    {"response.get", responses_get, ROOM_ENGINE, false},
    {"response.cancel", responses_cancel, ROOM_ENGINE, false},
    {"response.delete", responses_delete, ROOM_ENGINE, false},
    {"response.input", responses_input, ROOM_ENGINE, false},
    {"session.create", session_prompts_create, ROOM_GENERATION, true},
    {"session.list", sessions_list, ROOM_SESSIONS, false},
    {"session.get", sessions_get, ROOM_SESSIONS, false},
    {"session.delete", sessions_delete, ROOM_SESSIONS, false},
    {"session.generate", completions_continue, ROOM_GENERATION, true},
    {"session.append", session_prompts_append, ROOM_GENERATION, true},
    {"session.fork", session_task_fork, ROOM_SESSIONS, false},
    {"session.tree", sessions_tree, ROOM_SESSIONS, false},
    {"session.rollback", snapshot_tasks_rollback, ROOM_SESSIONS, false},
    {"snapshot.create", snapshot_tasks_create, ROOM_SESSIONS, false},
    {"snapshot.list", snapshot_tasks_list, ROOM_SESSIONS, false},
    {"snapshot.delete", snapshot_tasks_delete, ROOM_SESSIONS, false},
    {"session.export", session_task_export, ROOM_SESSIONS, false},
    {"session.import", session_task_import, ROOM_SESSIONS, true},
    {"session.alpha", explain_request_session, ROOM_GENERATION, true},
    {"explain", explain_request_create, ROOM_GENERATION, true},
    {"classify", classify_create, ROOM_GENERATION, true},
    {"fill_mask", fill_mask_create, ROOM_GENERATION, true},
    {"embed", embeddings_create, ROOM_GENERATION, true},
    {"tokenize", tokens_encode, ROOM_GENERATION, true},
    {"detokenize", tokens_decode, ROOM_GENERATION, true},
};

/* The kinds of jobs; each brings its own methods. */
#define JOB_KINDS(row) row(training_jobs) row(evaluation_jobs) row(faithfulness_jobs) row(batch_jobs)
#define DECLARE(kind) extern const job_kind kind;
#define ROW(kind) &(kind),
JOB_KINDS(DECLARE)
const job_kind *const dispatch_job_kinds[] = {JOB_KINDS(ROW) NULL};

/* The handler of a request: a row of the table above, or a method of a kind of jobs. */
typedef struct handler {
	const method *row;
	const job_method *job;
	job_queue *queue; /* set with `job` */
} handler;

static bool find_handler(stream *s, const char *name, handler *out)
{
	engine *e = s->net->owner;
	*out = (handler){0};
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (strcmp(methods[i].name, name) == 0)
			out->row = &methods[i];
	if (out->row)
		s->room = rooms_context(e, out->row->room);
	else
		out->job = job_machine_method(e->job_machine, name, &out->queue);
	return out->row || out->job;
}

/* Return the contract's row of a method. */
static const schema_method *find_contract(const char *name)
{
	for (const schema_method *m = schema_methods; m->name; m++)
		if (strcmp(m->name, name) == 0)
			return m;
	return NULL;
}

/* Move "id" from the params to s->target. False: the stream has been answered. */
static bool take_id(stream *s)
{
	const json_t *id = json_object_get(s->params, "id");
	const char *text = json_string_value(id);
	if (!text) {
		stream_refuse(s, STATUS_INVALID, id ? "invalid_type" : "missing_parameter", "id",
		              "id must be a string");
		return false;
	}
	if (json_string_length(id) >= sizeof s->target || strlen(text) != json_string_length(id)) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "no object has this id");
		return false;
	}
	strcpy(s->target, text);
	json_object_del(s->params, "id");
	return true;
}

/* --- keys -------------------------------------------------------------------------------------------- */

/* Return the model that a request names, directly or by its session; NULL: none. */
static const char *named_model(const stream *s, const char *name)
{
	const engine *e = s->net->owner;
	if (strncmp(name, "model.", 6) == 0)
		return s->target[0] ? s->target : NULL;
	if (s->target[0] && (strncmp(name, "session.", 8) == 0 || strncmp(name, "snapshot.", 9) == 0))
		return sessions_model(e->sessions, s, s->target);
	const char *of = json_string_value(json_object_get(s->params, "session"));
	return of ? sessions_model(e->sessions, s, of) : json_string_value(json_object_get(s->params, "model"));
}

/* False: the stream has been answered. */
static bool has_key(stream *s, const char *name)
{
	const engine *e = s->net->owner;
	error err = ERROR_INIT;
	if (keys_admit(e->keys, s, name, &err) == STATUS_OK)
		return true;
	stream_error(s, &err, NULL);
	return false;
}

/* Check that the request may use the model that it names. An import names one that must not exist. */
static status check_model(const stream *s, const char *name, error *err)
{
	const engine *e = s->net->owner;
	const char *named = named_model(s, name);
	if (!keys_allow_model(s, named))
		return error_set(err, STATUS_NOT_FOUND, s->target[0] ? "id" : "model",
		                 "there is no model \"%.64s\", or this key may not use it", named);
	return named && !s->scope.all && strcmp(name, "model.import") != 0
	           ? catalog_check_project(e->catalog, named, s->scope.project, err)
	           : STATUS_OK;
}

/* Check the request against its key's models and limit of requests. False: the stream has been answered. */
static bool key_allows(stream *s, const char *name, bool counted)
{
	error err = ERROR_INIT;
	if (check_model(s, name, &err) == STATUS_OK && (!counted || keys_take_request(s, &err) == STATUS_OK))
		return true;
	stream_error(s, &err, NULL);
	return false;
}

bool dispatch_answered(stream *s, status result, const char *text)
{
	const engine *e = s->net->owner;
	keys_leave(s);
	return e->audit && audit_record(e->audit, s, result, text);
}

/* --- what grows with the params: on the pool when they are large ------------------------------------ */

typedef struct dispatch {
	uv_work_t work;
	stream *stream;
	handler handler;
	const schema_method *contract;
	bool fits;
	schema_error wrong; /* the first mismatch */
} dispatch;

static void dispatch_check_params(dispatch *d)
{
	d->fits = schema_check(d->contract->params, d->stream->params, &d->wrong);
	if (d->fits)
		idempotency_hash(d->stream, d->contract->name);
}

static bool is_counted(const handler *h)
{
	return h->row ? h->row->counted : h->job->counted;
}

/* True if the request may run; otherwise the stream has been answered. */
static bool is_safe(stream *s, const handler *h)
{
	error err = ERROR_INIT;
	/* upload.c counts an upload by its bytes */
	if (!is_counted(h) || s->upload || s->background || s->work[0])
		return true;
	if (stream_count_deaths(s, "request", s->digest, &err) == STATUS_OK)
		return true;
	stream_error(s, &err, NULL);
	return false;
}

/* False: the audit log takes no line for the request, and the stream has been answered. */
static bool can_be_audited(stream *s)
{
	const engine *e = s->net->owner;
	if (!e->audit || !audit_is_full(e->audit, s))
		return true;
	s->unaudited = true;
	stream_refuse(s, STATUS_UNAVAILABLE, NULL, NULL, "too many requests wait for the audit log to be written");
	return false;
}

/* s: the stream of the request, or that of its response, which has the same key. */
static void begin_method(stream *s, void *context)
{
	const dispatch *d = context;
	if ((s != d->stream && !has_key(s, d->contract->name)) || !is_safe(s, &d->handler))
		return;
	s->upload = d->contract->upload;
	s->begin = d->handler.row ? d->handler.row->begin : NULL;
	if (d->handler.row && d->handler.row->room == ROOM_GENERATION)
		deadline_begin(s);
	if (s->begin)
		s->begin(s);
	else
		job_machine_begin(s, d->handler.job, d->handler.queue);
}

static void dispatch_begin(dispatch *d)
{
	stream *s = d->stream;
	const schema_method *m = d->contract;
	if (s->cancelled) {
		stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
	} else if (!d->fits) {
		stream_refuse(s, STATUS_INVALID, d->wrong.code, d->wrong.param, "%s", d->wrong.message);
	} else if (m->upload && !s->upload) {
		stream_refuse(s, STATUS_INVALID, "missing_parameter", NULL,
		              "the method is an upload, and nothing was sent");
	} else if (key_allows(s, m->name, is_counted(&d->handler)) && idempotency_admit(s, m->upload)) {
		responses_run(s, m->name, begin_method, d);
	}
}

static void pool_check(uv_work_t *work)
{
	reserve_forget();
	dispatch_check_params(work->data);
}

static void checked(uv_work_t *work, int cancelled)
{
	dispatch *d = work->data;
	(void)cancelled; /* cannot be cancelled */
	dispatch_begin(d);
	free(d);
}

static void check_and_begin(const dispatch *requested)
{
	stream *s = requested->stream;
	dispatch now = *requested, *later = s->large ? malloc(sizeof *later) : NULL;
	if (!s->large) {
		dispatch_check_params(&now);
		dispatch_begin(&now);
		return;
	}
	if (later) {
		*later = now;
		later->work.data = later;
		if (uv_queue_work(s->net->loop, &later->work, pool_check, checked) == 0)
			return;
	}
	free(later);
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
}

void dispatch_request(stream *s, const char *name)
{
	handler found;
	const schema_method *m = find_contract(name);
	s->method = m ? m->name : NULL;
	if (!can_be_audited(s)) /* first: a refusal has a line, too */
		return;
	if (!s->params) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	} else if (s->net->draining) {
		stream_refuse_stopping(s);
	} else if (!m || !find_handler(s, name, &found)) {
		stream_refuse(s, STATUS_NOT_FOUND, "unknown_method", NULL, "there is no method \"%.64s\"", name);
	} else if (!has_key(s, name) || (m->id && !take_id(s))) {
		return;
	} else if (!m->keyed || idempotency_take(s)) {
		check_and_begin(&(dispatch){.stream = s, .handler = found, .contract = m});
	}
}
