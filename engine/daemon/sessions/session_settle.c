/* executor: export the state ─▶ loop: adopt the change ─▶ pool: checksum, write and sync the file ─▶ loop: one commit,
 * then the answer. The answer's text is made before the commit, so nothing can fail after it. */
#include "engine/daemon/sessions/session_settle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/requests/idempotency.h"

typedef struct settled_snapshot {
	char id[SCHEDULER_ID_BYTES];
	int64_t tokens, bytes; /* bytes of the file, once it is written */
	session_transfer state;
} settled_snapshot;

static void session_settle_finish(session_settlement *x)
{
	json_decref(x->document);
	for (int i = 0; i < x->n_snapshots; i++)
		scheduler_transfer_fini(&x->snapshots[i].state);
	free(x->snapshots);
	scheduler_transfer_fini(&x->state);
	reserve_free(x->answer);
	x->settled(x);
}

static void answer_error(session_settlement *x)
{
	stream_error(x->stream, &x->error, NULL);
	session_settle_finish(x);
}

static void answer_result(session_settlement *x)
{
	char *text = x->answer;
	x->answer = NULL;
	stream_result_text(x->stream, text);
	session_settle_finish(x);
}

/* Undo the change, which is not acknowledged. */
static void take_back(session_settlement *x)
{
	session_entry *e = x->entry;
	if (x->making) {
		sessions_remove(x->sessions, e, NULL);
		x->entry = NULL;
	} else {
		sessions_revert(x->sessions, e);
	}
	answer_error(x);
}

/* Make the answer, also as text. On failure there is none. */
static status make_answer(session_settlement *x, json_t **result, error *err)
{
	reserve_forget(); /* building it failed */
	*result = x->result(x);
	x->answer = json_text_reserve(*result, PROTO_JSON);
	if (x->answer)
		return STATUS_OK;
	json_decref(*result);
	*result = NULL;
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- sessions that are not durable, and those that have not changed ---------------------------------- */

static void settle_in_memory(session_settlement *x)
{
	json_t *result = NULL;
	if (sessions_return(x->sessions, &x->entry, x->ticket, &x->change, &x->error) == STATUS_OK &&
	    x->error.status == STATUS_OK)
		make_answer(x, &result, &x->error);
	json_decref(result);
	if (x->error.status == STATUS_OK) {
		answer_result(x);
		return;
	}
	if (x->making && x->entry) {
		sessions_remove(x->sessions, x->entry, NULL);
		x->entry = NULL;
	}
	answer_error(x);
}

/* --- durable ones -------------------------------------------------------------------------------------- */

/* Write the path of snapshot i, or of the session after them: x->version is the last one. */
static void version_path(const session_settlement *x, int i, char *path)
{
	store_session_version_path(x->stream->net->store, sessions_id(x->entry), x->version - x->n_snapshots + i, path);
}

/* Return the document for the file of snapshot i, or of the session after them. Rows of a lost ledger are made from
 * files, so a snapshot's document has its own tokens. NULL: out of memory. */
static json_t *document_of(const session_settlement *x, int i)
{
	if (i == x->n_snapshots)
		return json_incref(x->document);
	json_t *document = json_copy(x->document);
	if (json_object_set_new(document, "tokens", json_integer(x->snapshots[i].tokens)) == 0)
		return document;
	json_decref(document);
	return NULL;
}

/* Record the size of the file of snapshot i, also in the document that the session's file will have. */
static status note_size(session_settlement *x, int i, const char *path)
{
	struct stat st;
	size_t at;
	json_t *row;
	const int64_t version = x->version - x->n_snapshots + i;
	if (stat(path, &st) != 0)
		return file_error(&x->write_error, path, "cannot keep");
	x->snapshots[i].bytes = st.st_size;
	json_array_foreach(json_object_get(x->document, "snapshots"), at, row)
	{
		if (json_integer_value(json_object_get(row, "version")) == version)
			json_integer_set(json_object_get(row, "bytes"), st.st_size);
	}
	return STATUS_OK;
}

static status write_version(session_settlement *x, int i)
{
	session_transfer *t = i < x->n_snapshots ? &x->snapshots[i].state : &x->state;
	char path[PATH_MAX];
	json_t *document = document_of(x, i);
	if (!document)
		return error_set(&x->write_error, STATUS_NOMEM, NULL, "out of memory");
	version_path(x, i, path);
	scheduler_transfer_seal(t);
	const status s = store_session_write(path, sessions_id(x->entry), document, t->blob, t->bytes, &x->write_error);
	json_decref(document);
	return s == STATUS_OK && i < x->n_snapshots ? note_size(x, i, path) : s;
}

static void pool_write(uv_work_t *work)
{
	session_settlement *x = work->data;
	x->written = STATUS_OK;
	for (int i = 0; i <= x->n_snapshots && x->written == STATUS_OK; i++)
		x->written = write_version(x, i);
}

static void discard_written(const session_settlement *x)
{
	char path[PATH_MAX];
	for (int i = 0; i <= x->n_snapshots; i++) {
		version_path(x, i, path);
		store_session_discard(path);
	}
}

/* Commit the state and, if the request has a key, its answer. */
static status commit(session_settlement *x, const json_t *result, error *err)
{
	stream *s = x->stream;
	store *all = x->stream->net->store;
	TRY(store_begin(all, err));
	status ended = store_session_keep(all, sessions_id(x->entry), x->version, x->document, err);
	if (ended == STATUS_OK && result)
		ended = idempotency_keep(s, result, err);
	return store_end(all, ended, err);
}

static void session_settle_give_up(session_settlement *x, status result, error *err)
{
	if (result == STATUS_NOT_FOUND) /* refers to the folder, not to anything that the client named */
		result = err->status = STATUS_STORAGE;
	error_set(err, result, NULL, "%s", status_text(result));
	/* The sweep logs a locked ledger once, not once per session. A quota refusal is not logged. */
	if (result != STATUS_UNAVAILABLE && result != STATUS_RATE_LIMITED)
		log_request(LOG_ERROR, x->stream->request_id, "the state of %s is not stored: %s",
		            sessions_id(x->entry), error_message(err));
	x->error = *err; /* replaces an earlier error: the client has not seen the session's state */
	take_back(x);
}

static void written(uv_work_t *work, int cancelled)
{
	session_settlement *x = work->data;
	json_t *result = NULL;
	error err = x->write_error;
	status s = x->written;
	(void)cancelled; /* cannot be cancelled */
	for (int i = 0; i < x->n_snapshots && s == STATUS_OK; i++)
		sessions_note_snapshot_bytes(x->entry, x->snapshots[i].id, x->snapshots[i].bytes);
	if (s == STATUS_OK && x->error.status == STATUS_OK)
		s = make_answer(x, &result, &err);
	bool kept = s == STATUS_OK;
	if (s == STATUS_OK)
		s = commit(x, result, &err);
	json_decref(result);
	if (s != STATUS_OK) {
		/* After an I/O error and a crash the ledger may refer to the new version, so it is kept until then. */
		if (!kept || s != STATUS_IO)
			discard_written(x);
		session_settle_give_up(x, s, &err);
		return;
	}
	sessions_settled(x->sessions, x->entry, (int64_t)x->state.bytes);
	if (x->error.status == STATUS_OK)
		answer_result(x);
	else
		answer_error(x);
}

static void settle_durably(session_settlement *x)
{
	error err = ERROR_INIT;
	store *ledger = x->stream->net->store;
	sessions_adopt(x->sessions, x->entry, &x->change);
	char path[PATH_MAX];
	size_t bytes = x->state.bytes;
	for (int i = 0; i < x->n_snapshots; i++)
		bytes += x->snapshots[i].state.bytes;
	status result = store_check_room(ledger, (int64_t)bytes, &err);
	if (result == STATUS_OK)
		result = store_session_next(ledger, sessions_id(x->entry), &x->version, path, &err);
	for (int i = 0; i < x->n_snapshots && result == STATUS_OK; i++) {
		const settled_snapshot *p = &x->snapshots[i];
		result = sessions_begin_automatic(x->entry, p->id, p->tokens, (int64_t)p->state.bytes, x->version++);
	}
	if (result == STATUS_OK)
		result = sessions_reserve_bytes(x->entry, x->stream, (int64_t)x->state.bytes, &err);
	if (result == STATUS_OK &&
	    (!(x->document = sessions_document(x->entry)) ||
	     json_object_set_new(x->document, "stored_bytes", json_integer((json_int_t)x->state.bytes)) != 0))
		result = STATUS_NOMEM;
	x->work.data = x;
	if (result == STATUS_OK && uv_queue_work(x->stream->net->loop, &x->work, pool_write, written) != 0)
		result = STATUS_NOMEM;
	if (result != STATUS_OK)
		session_settle_give_up(x, result, &err);
}

/* Executor thread. */
static status list_snapshots(session_settlement *x, const session *live)
{
	session_info info;
	scheduler_session_info(live, &info);
	x->listed = true;
	if (info.n_automatic == 0)
		return STATUS_OK;
	x->snapshots = memory_new((size_t)info.n_automatic, sizeof *x->snapshots);
	if (!x->snapshots)
		return error_set(&x->export_error, STATUS_NOMEM, NULL, "out of memory");
	for (; x->n_snapshots < info.n_automatic; x->n_snapshots++) {
		settled_snapshot *p = &x->snapshots[x->n_snapshots];
		memcpy(p->id, info.automatic[x->n_snapshots].id, sizeof p->id);
		p->tokens = info.automatic[x->n_snapshots].tokens;
	}
	return STATUS_OK;
}

/* Export the next step: the snapshots, then the session. Executor thread. */
static status export_step(session_settlement *x, scheduler *s, session *live)
{
	if (!x->listed)
		TRY(list_snapshots(x, live));
	for (int i = 0; i < x->n_snapshots; i++) {
		settled_snapshot *p = &x->snapshots[i];
		session *from;
		if (p->state.done)
			continue;
		TRY(scheduler_session_snapshot(live, p->id, &from, &x->export_error));
		return scheduler_session_export_step(s, from, &p->state, &x->export_error);
	}
	return scheduler_session_export_step(s, live, &x->state, &x->export_error);
}

/* The `prepare` of the export task: export the next step. Executor thread. */
static bool prepare_export(task *t, device *d)
{
	session_settlement *x = TASK_OWNER(t, session_settlement, export);
	scheduler *s = device_scheduler(d);
	session *live = s ? scheduler_session_find(s, sessions_id(x->entry)) : NULL;
	status result = live ? export_step(x, s, live) : STATUS_DEVICE;
	error_settle(&x->export_error, result);
	return result != STATUS_OK || x->state.done;
}

/* The session may have read one more token. Its automatic snapshots will be on disk: the scheduler keeps none. */
static void run_export(task *t, device *d)
{
	session_settlement *x = TASK_OWNER(t, session_settlement, export);
	scheduler *s = device_scheduler(d);
	session *live = s ? scheduler_session_find(s, sessions_id(x->entry)) : NULL;
	for (int i = 0; live && i < x->n_snapshots; i++)
		scheduler_session_drop(live, x->snapshots[i].id, NULL);
	session_ticket_look(&x->change, d, sessions_id(x->entry));
}

static void exported(task *t)
{
	session_settlement *x = TASK_OWNER(t, session_settlement, export);
	error err = x->export_error;
	if (err.status == STATUS_OK)
		settle_durably(x);
	else
		session_settle_give_up(x, err.status, &err);
}

static void export(session_settlement *x)
{
	x->export = (task){.prepare = prepare_export, .run = run_export, .done = exported};
	executor_control(fleet_executor(sessions_parts(x->sessions)->fleet, sessions_device(x->entry)), &x->export);
}

void session_settle(session_settlement *x)
{
	session_entry *e = x->entry;
	bool failed = x->error.status != STATUS_OK;
	bool durable = sessions_is_durable(e) || (x->change.live && x->change.info.options.durable);
	if (x->ticket->read)
		sessions_note_damage(e, x->ticket->damaged);
	if (x->ticket->read && x->ticket->damaged && sessions_is_durable(e))
		store_note_damage(x->stream->net->store, STORE_SESSIONS, sessions_id(e), error_message(&x->error));
	if (!durable || (failed && !x->making && !x->changed)) {
		settle_in_memory(x);
	} else if (failed &&
	           (x->making || x->all_or_nothing || !x->change.live || x->error.status != STATUS_CANCELLED)) {
		take_back(x);
	} else {
		export(x);
	}
}
