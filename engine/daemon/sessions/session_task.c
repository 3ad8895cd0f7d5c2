/* session_task.c - a session_task is one executor task with one session. The pool reads the session's state if it is
 * not live. The executor finds or creates the session by its ticket, acts, and records the change. The loop settles it
 * and answers. The methods differ in `act` and in the result made by `answer`. */
#include "engine/daemon/sessions/session_task_private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/download.h"
#include "engine/daemon/requests/upload.h"

#define SESSION_TASK_MAX_STATE ((int64_t)1 << 30)
enum { SESSION_TASK_LOG_SLICE = 1 << 20 /* bytes of a log copied in one turn */ };

void session_task_free(session_task *t)
{
	catalog_release(t->model);
	session_log_fini(&t->log);
	scheduler_transfer_fini(&t->export);
	session_ticket_fini(&t->ticket);
	free(t);
}

static status act(session_task *t, device *d)
{
	session *x = NULL;
	TRY(session_ticket_redeem(&t->ticket, t->model, d, &x, &t->error));
	return t->kind->act ? t->kind->act(t, d, x, &t->error) : STATUS_OK;
}

/* Give up the live session, so that the ticket's state can be imported under its id. */
static void discard_live(session_task *t, device *d)
{
	scheduler *s = device_scheduler(d);
	session *live = s ? scheduler_session_find(s, t->ticket.id) : NULL;
	if (live)
		scheduler_session_delete(s, live, NULL);
	t->replaced = true;
}

static bool prepare_session_task(task *x, device *d)
{
	session_task *t = (session_task *)x;
	if (t->kind->replaces && !t->replaced)
		discard_live(t, d);
	if (!session_ticket_prepare(&t->ticket, t->model, d))
		return false;
	t->result = act(t, d);
	return t->result != STATUS_OK || !t->more;
}

static void run_session_task(task *x, device *d)
{
	session_task *t = (session_task *)x;
	if (t->result != STATUS_OK)
		error_set(&t->error, t->result, NULL, "%s", status_text(t->result));
	session_ticket_look(&t->change, d, sessions_id(t->entry));
	if (t->parent && !t->stored)
		session_ticket_look(&t->parent_change, d, sessions_id(t->parent));
}

static json_t *made_object(session_settlement *x)
{
	return sessions_object(x->entry);
}

static void session_task_made(session_settlement *x)
{
	session_task_free(TASK_OWNER(x, session_task, settlement));
}

static void settle_made(session_task *t)
{
	static const session_ticket fresh = {.create = true};
	t->settlement = (session_settlement){.stream = t->stream,
	                                     .sessions = t->all,
	                                     .entry = t->entry,
	                                     .ticket = &fresh,
	                                     .making = true,
	                                     .change = t->change,
	                                     .error = t->error,
	                                     .result = made_object,
	                                     .settled = session_task_made};
	session_settle(&t->settlement);
}

void session_task_settle(session_task *t, json_t *(*result)(session_settlement *x),
                         void (*settled)(session_settlement *x))
{
	static const session_ticket none = {.create = true}; /* a damaged snapshot is no damage of the session */
	t->settlement = (session_settlement){.stream = t->stream,
	                                     .sessions = t->all,
	                                     .entry = t->entry,
	                                     .ticket = t->kind->replaces ? &none : &t->ticket,
	                                     .changed = true,
	                                     .all_or_nothing = true,
	                                     .change = t->change,
	                                     .error = t->error,
	                                     .result = result,
	                                     .settled = settled};
	session_settle(&t->settlement);
}

/* Return the session that has been forked. */
static void return_parent(session_task *t)
{
	if (t->stored && t->ticket.damaged)
		sessions_note_snapshot_damage(t->parent, t->snapshot);
	if (t->stored)
		sessions_release(t->all, t->parent);
	else if (t->parent)
		sessions_return(t->all, &t->parent, &t->ticket, &t->parent_change, &t->error);
	t->parent = NULL;
}

static void import_copy(session_task *t);

static void session_task_done(task *x)
{
	session_task *t = (session_task *)x;
	return_parent(t);
	if (t->kind->imports && t->error.status == STATUS_OK) {
		import_copy(t);
		return;
	}
	if (!t->kind->answer) {
		settle_made(t);
		return;
	}
	if (t->kind->settles) {
		t->kind->answer(t);
		return;
	}
	sessions_return(t->all, &t->entry, &t->ticket, &t->change, &t->error);
	if (t->error.status == STATUS_OK) {
		t->kind->answer(t);
		return;
	}
	if (t->entry)
		sessions_cancel_snapshots(t->all, t->entry);
	stream_error(t->stream, &t->error, NULL);
	session_task_free(t);
}

void session_task_refuse(session_task *t, status result, const char *param, const char *words)
{
	if (t->parent)
		sessions_release(t->all, t->parent);
	if (t->parent || t->ticket.create)
		sessions_remove(t->all, t->entry, NULL);
	else
		sessions_release(t->all, t->entry);
	stream_refuse(t->stream, result, NULL, param, "%s", words);
	session_task_free(t);
}

static void submit(session_task *t)
{
	const int at = sessions_device(t->parent && !t->stored ? t->parent : t->entry);
	t->task = (task){.prepare = prepare_session_task, .run = run_session_task, .done = session_task_done};
	if (!executor_submit(fleet_executor(sessions_parts(t->all)->fleet, at), &t->task))
		session_task_refuse(t, STATUS_BUSY, NULL, "too many requests are waiting");
}

static void pool_fetch(uv_work_t *work)
{
	session_ticket_fetch(&((session_task *)work->data)->ticket);
}

static void state_fetched(uv_work_t *work, int cancelled)
{
	(void)cancelled; /* cannot be cancelled */
	submit(work->data);
}

void session_task_begin(session_task *t)
{
	t->work.data = t;
	if (!session_ticket_has_work(&t->ticket))
		submit(t);
	else if (uv_queue_work(t->stream->net->loop, &t->work, pool_fetch, state_fetched) != 0)
		session_task_refuse(t, STATUS_NOMEM, NULL, "out of memory");
}

static session_task *session_task_new(stream *s, sessions *all, const session_task_kind *kind)
{
	session_task *t = memory_new(1, sizeof *t);
	if (!t) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return NULL;
	}
	t->stream = s;
	t->all = all;
	t->kind = kind;
	return t;
}

session_task *session_task_existing(stream *s, sessions *all, const char *id, const session_task_kind *kind)
{
	session_task *t = session_task_new(s, all, kind);
	if (t)
		t->entry = sessions_take(all, s, id, &t->ticket, &t->model);
	if (t && !t->entry) {
		session_task_free(t);
		return NULL;
	}
	return t;
}

/* --- create ------------------------------------------------------------------------ */

/* Find the adapter that the request names; "": none. */
static status session_task_find_adapter(const stream *s, const model_entry *c, adapter_ref *out, error *err)
{
	const char *id = json_string_value(json_object_get(s->params, "adapter"));
	*out = (adapter_ref){0};
	return id ? adapters_find(s->net->store, id, s->scope.all ? NULL : s->scope.project, c->id, out, err)
	          : STATUS_OK;
}

status session_task_make(stream *s, sessions *all, const model_entry *c, session_entry **out, session_ticket *ticket,
                         error *err)
{
	session_options options;
	const json_t *ttl = json_object_get(s->params, "ttl_seconds");
	options = (session_options){
	    .policy = sessions_policy(json_string_value(json_object_get(s->params, "position_policy"))),
	    .explain = json_is_true(json_object_get(s->params, "explain")),
	    .durable = json_is_true(json_object_get(s->params, "durable"))};
	if (options.explain)
		TRY(catalog_check_explains(c, false, "explain", err));
	if (options.explain && json_object_get(s->params, "adapter"))
		return error_set(err, STATUS_UNSUPPORTED, "explain", "the share of an adapter is not explained");
	const automatic_snapshots automatic = {json_integer_value(json_object_get(s->params, "snapshot_every")),
	                                       json_is_true(json_object_get(s->params, "snapshot_before_calls"))};
	TRY(sessions_check_automatic(all, c, &options, automatic, err));
	adapter_ref adapter;
	TRY(session_task_find_adapter(s, c, &adapter, err));
	const session_traits traits = {
	    .ttl = json_is_integer(ttl) ? json_integer_value(ttl) : -1, .automatic = automatic, .adapter = adapter.id};
	TRY(sessions_add(all, c, &options, &traits, s, out, err));
	*ticket = (session_ticket){.options = options, .adapter = adapter, .create = true};
	snprintf(ticket->id, sizeof ticket->id, "%s", sessions_id(*out));
	return STATUS_OK;
}

void session_task_create(stream *s, sessions *all)
{
	static const session_task_kind kind = {.act = NULL};
	error err = ERROR_INIT;
	session_task *t = session_task_new(s, all, &kind);
	if (!t)
		return;
	status result = catalog_open_generative(
	    sessions_parts(all)->catalog, json_string_value(json_object_get(s->params, "model")), &t->model, &err);
	if (result == STATUS_OK && t->model->dims.source)
		result = error_set(&err, STATUS_INVALID, "source", "this model reads a source: it must not be missing");
	if (result == STATUS_OK)
		result = session_task_make(s, all, t->model, &t->entry, &t->ticket, &err);
	if (result == STATUS_OK) {
		session_task_begin(t);
		return;
	}
	session_task_free(t);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

/* --- fork -------------------------------------------------------------------------- */

static status act_fork(session_task *t, device *d, session *x, error *err)
{
	session *copy;
	t->more = t->moved == 0 && scheduler_slot_is_coming(device_scheduler(d));
	if (t->more)
		return STATUS_OK;
	if (t->snapshot[0])
		TRY(scheduler_session_snapshot(x, t->snapshot, &x, err));
	status result =
	    scheduler_session_fork_step(device_scheduler(d), x, sessions_id(t->entry), &t->moved, &copy, err);
	t->more = !copy;
	return result;
}

static status act_export(session_task *t, device *d, session *x, error *err)
{
	if (t->snapshot[0])
		TRY(scheduler_session_snapshot(x, t->snapshot, &x, err));
	status result = scheduler_session_export_step(device_scheduler(d), x, &t->export, err);
	t->more = !t->export.done;
	return result;
}

/* The parent has been exported: create the copy on its own device. */
static void import_copy(session_task *t)
{
	static const session_task_kind kind = {.act = NULL};
	const adapter_ref adapter = t->ticket.adapter;
	session_ticket_fini(&t->ticket);
	t->kind = &kind;
	t->more = false;
	t->ticket = (session_ticket){
	    .adapter = adapter, .create = true, .import = {.blob = t->export.blob, .bytes = t->export.bytes}};
	snprintf(t->ticket.id, sizeof t->ticket.id, "%s", sessions_id(t->entry));
	t->export = (session_transfer){0};
	submit(t);
}

/* Let the task import a stored snapshot of the parent. */
static void import_stored(session_task *t, int64_t version)
{
	static const session_task_kind kind = {.act = NULL};
	t->kind = &kind;
	t->stored = true;
	t->ticket = (session_ticket){.adapter = t->ticket.adapter, .create = true, .fetch = true};
	snprintf(t->ticket.id, sizeof t->ticket.id, "%s", sessions_id(t->entry));
	store_session_version_path(t->stream->net->store, sessions_id(t->parent), version, t->ticket.state);
}

void session_task_fork(stream *s)
{
	static const session_task_kind here = {.act = act_fork}, apart = {.act = act_export, .imports = true};
	error err = ERROR_INIT;
	const char *named = json_string_value(json_object_get(s->params, "snapshot"));
	session_task *t = session_task_existing(s, s->room, s->target, &here);
	if (!t)
		return;
	const snapshot *from = named ? snapshots_find(sessions_snapshots(t->entry), named) : NULL;
	if (named && !from) {
		session_task_refuse(t, STATUS_NOT_FOUND, "snapshot", "the session has no snapshot with this id");
		return;
	}
	t->parent = t->entry;
	snprintf(t->snapshot, sizeof t->snapshot, "%s", from ? from->id : "");
	status result = sessions_add_like(t->all, t->model, t->parent, from ? from->id : NULL, s, &t->entry, &err);
	if (result == STATUS_OK && from && from->version)
		import_stored(t, from->version);
	else if (result == STATUS_OK && sessions_device(t->entry) != sessions_device(t->parent))
		t->kind = &apart;
	if (result == STATUS_OK) {
		session_task_begin(t);
		return;
	}
	sessions_release(t->all, t->parent);
	session_task_free(t);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

/* --- export and import ---------------------------------------------------------------- */

static void pool_seal(uv_work_t *work)
{
	scheduler_transfer_seal(&((session_task *)work->data)->export);
}

static void sealed(uv_work_t *work, int cancelled)
{
	session_task *t = work->data;
	session_transfer export = t->export;
	char filename[STORE_ID_BYTES + 8];
	(void)cancelled; /* cannot be cancelled */
	t->export = (session_transfer){0};
	snprintf(filename, sizeof filename, "%s.state", t->stream->target);
	download_bytes(t->stream, export.blob, export.bytes, filename, "application/octet-stream");
	session_task_free(t);
}

static void answer_export(session_task *t)
{
	if (uv_queue_work(t->stream->net->loop, &t->work, pool_seal, sealed) == 0)
		return;
	stream_refuse(t->stream, STATUS_NOMEM, NULL, NULL, "out of memory");
	session_task_free(t);
}

void session_task_export(stream *s)
{
	static const session_task_kind kind = {.act = act_export, .answer = answer_export};
	session_task *t = session_task_existing(s, s->room, s->target, &kind);
	if (t)
		session_task_begin(t);
}

/* The upload is complete; its options are in the blob and known once that has been read. */
static void received(stream *s, const char *folder)
{
	static const session_task_kind kind = {.act = NULL};
	error err = ERROR_INIT;
	session_task *t = session_task_new(s, s->room, &kind);
	if (!t)
		return;
	(void)folder;
	t->ticket.import.blob = upload_take(s, &t->ticket.import.bytes);
	status result = catalog_open_generative(
	    sessions_parts(s->room)->catalog, json_string_value(json_object_get(s->params, "model")), &t->model, &err);
	if (result == STATUS_OK)
		result = session_task_find_adapter(s, t->model, &t->ticket.adapter, &err);
	if (result == STATUS_OK)
		result =
		    sessions_add(s->room, t->model, &(session_options){0},
		                 &(session_traits){.ttl = -1, .adapter = t->ticket.adapter.id}, s, &t->entry, &err);
	if (result == STATUS_OK) {
		t->ticket.create = true;
		snprintf(t->ticket.id, sizeof t->ticket.id, "%s", sessions_id(t->entry));
		session_task_begin(t);
		return;
	}
	session_task_free(t);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

void session_task_import(stream *s)
{
	static const upload_part parts[] = {
	    {.name = "state", .file = "state", .limit = SESSION_TASK_MAX_STATE, .required = true}, {0}};
	static const upload_plan requested = {.parts = parts, .in_memory = true, .finished = received};
	error err = ERROR_INIT;
	model_entry *c;
	if (catalog_open_generative(sessions_parts(s->room)->catalog,
	                            json_string_value(json_object_get(s->params, "model")), &c, &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return;
	}
	catalog_release(c);
	upload_begin(s, &requested);
}

/* --- the log ------------------------------------------------------------------------- */

void session_log_fini(session_log *log)
{
	catalog_release(log->model);
	free(log->tokens);
	free(log->data);
	free(log->source);
	*log = (session_log){0};
}

static int64_t floats_of(const session_task *t)
{
	return explain_token_floats(t->model->architecture, t->model->parsed);
}

static status copy_source(session_log *log, const session *x)
{
	const int32_t *ids;
	log->n_source = scheduler_session_source(x, &ids);
	log->source = memory_new((size_t)log->n_source, sizeof *log->source);
	if (!log->source)
		return STATUS_NOMEM;
	memcpy(log->source, ids, (size_t)log->n_source * sizeof *ids);
	return STATUS_OK;
}

/* Allocate the log of x; again if x was restored with another size after a device failure. */
static status begin_log(session_task *t, session *x, const float **data, error *err)
{
	int64_t count;
	session_log *log = &t->log;
	TRY(catalog_check_explains(t->model, false, NULL, err));
	TRY(scheduler_session_log(x, data, &count, err));
	if (count == 0)
		return error_set(err, STATUS_INVALID, NULL, "the session has read nothing yet");
	if (log->tokens && count == log->count)
		return STATUS_OK;
	session_log_fini(log);
	t->copied = 0;
	log->count = count;
	log->tokens = memory_new((size_t)count, sizeof *log->tokens);
	if (!*data)
		return log->tokens ? copy_source(log, x) : STATUS_NOMEM;
	log->data = memory_new((size_t)count, (size_t)floats_of(t) * sizeof **data);
	return log->tokens && log->data ? STATUS_OK : STATUS_NOMEM;
}

/* Copy the next tokens of the log. */
static status act_log(session_task *t, device *d, session *x, error *err)
{
	const float *data;
	(void)d;
	TRY(begin_log(t, x, &data, err));
	session_log *log = &t->log;
	const int64_t floats = floats_of(t), at = t->copied;
	int64_t n = SESSION_TASK_LOG_SLICE / (int64_t)sizeof *data / floats + 1;
	n = n < log->count - at ? n : log->count - at;
	scheduler_session_tokens(x, at, n, log->tokens + at);
	if (data)
		memcpy(log->data + at * floats, data + at * floats, (size_t)(n * floats) * sizeof *data);
	t->copied += n;
	t->more = t->copied < log->count;
	return STATUS_OK;
}

static void answer_log(session_task *t)
{
	session_log log = t->log;
	log.model = t->model;
	log.device = sessions_device(t->entry);
	t->model = NULL;
	t->log = (session_log){0};
	t->fetched(t->stream, &log);
	session_task_free(t);
}

void session_task_log(stream *s, sessions *all, const char *id, void (*fetched)(stream *s, session_log *log))
{
	static const session_task_kind kind = {.act = act_log, .answer = answer_log};
	session_task *t = session_task_existing(s, all, id, &kind);
	if (!t)
		return;
	t->fetched = fetched;
	session_task_begin(t);
}
