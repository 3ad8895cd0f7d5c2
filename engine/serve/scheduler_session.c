/* scheduler_session.c - the live sessions, by id. */
#include <stdio.h>
#include <string.h>

#include "engine/serve/scheduler_state.h"
#include "engine/serve/session_blob.h"

/* Check that a session `id` may be opened. STATUS_BUSY, STATUS_CONFLICT. */
static status admit(scheduler *s, served_model *m, const char *id, error *err)
{
	if ((int64_t)s->sessions.count >= s->limits.max_sessions)
		return error_set(
		    err, STATUS_BUSY, NULL,
		    "all %d slots of the device are in use: try again when requests have ended; if idle sessions use "
		    "them, delete some, give them a shorter ttl_seconds, make them durable, or start the service with "
		    "a larger --max-sessions, --session-memory-bytes or --session-disk-bytes",
		    s->limits.max_sessions);
	if (strlen(id) < 1 || strlen(id) >= SCHEDULER_ID_BYTES)
		return error_set(err, STATUS_INVALID, "id", "a session's id has 1 to %d bytes", SCHEDULER_ID_BYTES - 1);
	if (!model_dimensions(m->model)->form->stepwise)
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "this model reads whole sequences: it has no sessions");
	if (scheduler_session_find(s, id))
		return error_set(err, STATUS_CONFLICT, "id", "a session with this id exists");
	scheduler_model_touch(s, m);
	return STATUS_OK;
}

/* Add a new session to the table, which owns it from here on. On failure it is freed and *x is NULL. */
static status enlist(scheduler *s, session **x, error *err)
{
	if (string_table_add(&s->sessions, &(*x)->node, (*x)->id) == STATUS_OK)
		return STATUS_OK;
	session_free(*x);
	*x = NULL;
	return error_set(err, STATUS_NOMEM, NULL, "no memory for another session");
}

static void discard(scheduler *s, session *x)
{
	string_table_remove(&s->sessions, &x->node);
	session_free(x);
}

status scheduler_session_new(scheduler *s, served_model *m, const char *id, const session_options *o, session **out,
                             error *err)
{
	*out = NULL;
	TRY(admit(s, m, id, err));
	session *x;
	TRY(session_new(&x, m, id, o, err));
	status result = statepool_clear(m->pool, x->slot);
	if (result != STATUS_OK) {
		session_free(x);
		return error_set(err, result, NULL, "the session's state could not be cleared: %s",
		                 status_text(result));
	}
	*out = x;
	return enlist(s, out, err);
}

session *scheduler_session_find(scheduler *s, const char *id)
{
	session *x = STRING_TABLE_OWNER(string_table_find(&s->sessions, id), session, node);
	if (!x || !x->lost || x->busy)
		return x;
	discard(s, x);
	return NULL;
}

void scheduler_session_info(const session *x, session_info *out)
{
	*out = (session_info){
	    .tokens = x->tokens,
	    .source = x->n_source,
	    .state_bytes = (int64_t)statepool_slot_bytes(x->model->pool),
	    .snapshot_bytes = session_snapshot_bytes(x),
	    .export_bytes = session_export_bytes(x),
	    .busy = x->busy,
	    .options = x->options,
	};
	strcpy(out->id, x->id);
	strcpy(out->model, x->model->id);
	scheduler_automatic_list(x, out);
}

status scheduler_session_delete(scheduler *s, session *x, error *err)
{
	if (x->busy)
		return session_check(x, err);
	discard(s, x);
	return STATUS_OK;
}

status scheduler_session_fork_step(scheduler *s, session *x, const char *id, size_t *moved, session **out, error *err)
{
	bool done = false;
	session *copy = NULL;
	*out = NULL;
	if (*moved == 0) {
		TRY(session_ready(x, err));
		TRY(admit(s, x->model, id, err));
		TRY(session_fork(&copy, x, id, err));
		TRY(enlist(s, &copy, err));
		copy->busy = true;
	} else
		copy = scheduler_session_find(s, id);
	if (!copy)
		return error_set(err, STATUS_DEVICE, NULL, "the device failed while the session was copied");
	scheduler_model_touch(s, x->model);
	status result = session_fork_step(copy, x, moved, &done, err);
	if (result != STATUS_OK) {
		discard(s, copy);
	} else if (done) {
		copy->busy = false;
		*out = copy;
	}
	return result;
}

status scheduler_session_fork(scheduler *s, session *x, const char *id, session **out, error *err)
{
	size_t moved = 0;
	do
		TRY(scheduler_session_fork_step(s, x, id, &moved, out, err));
	while (!*out);
	return STATUS_OK;
}

status scheduler_session_snapshot(const session *x, const char *id, session **out, error *err)
{
	*out = session_find_snapshot(x, id);
	return *out ? STATUS_OK
	            : error_set(err, STATUS_NOT_FOUND, "snapshot", "the session has no snapshot \"%.64s\"", id);
}

status scheduler_session_snapshot_step(scheduler *s, session *x, const char *id, size_t *moved, bool *done, error *err)
{
	session *copy;
	*done = false;
	if (*moved == 0) {
		TRY(session_ready(x, err));
		if (strlen(id) < 1 || strlen(id) >= SCHEDULER_ID_BYTES || session_find_snapshot(x, id))
			return error_set(err, STATUS_CONFLICT, "id", "the session has a snapshot with this id");
		TRY(session_snapshot(&copy, x, id, err));
		copy->older = x->snapshots;
		x->snapshots = copy;
	} else
		TRY(scheduler_session_snapshot(x, id, &copy, err));
	scheduler_model_touch(s, x->model);
	const status result = session_fork_step(copy, x, moved, done, err);
	if (result != STATUS_OK)
		session_drop_snapshot(x, copy);
	else if (*done && s->limits.snapshot_used)
		session_count(copy, HELD_SNAPSHOTS, s->limits.snapshot_used);
	return result;
}

status scheduler_session_rollback_step(scheduler *s, session *x, const char *snapshot, size_t *moved, bool *done,
                                       error *err)
{
	session *from;
	*done = false;
	TRY(session_check(x, err));
	TRY(scheduler_session_snapshot(x, snapshot, &from, err));
	scheduler_model_touch(s, x->model);
	const status result = session_rollback_step(x, from, moved, done, err);
	return result == STATUS_OK
	           ? result
	           : error_set(err, result, NULL, "the state could not be copied: %s", status_text(result));
}

void scheduler_block_bytes(int64_t *bytes, int64_t *shared)
{
	held_stats s;
	held_state_read_stats(&s);
	*bytes = s.bytes;
	*shared = s.shared;
}

status scheduler_session_drop(session *x, const char *snapshot, error *err)
{
	session *from;
	TRY(scheduler_session_snapshot(x, snapshot, &from, err));
	session_drop_snapshot(x, from);
	return STATUS_OK;
}

status scheduler_session_export_step(scheduler *s, session *x, session_transfer *t, error *err)
{
	if (!t->blob)
		TRY(session_ready(x, err));
	scheduler_model_touch(s, x->model);
	return session_blob_write(x, t, err);
}

status scheduler_session_export(scheduler *s, session *x, void **out, size_t *bytes, error *err)
{
	session_transfer t = {0};
	status result = STATUS_OK;
	*out = NULL;
	*bytes = 0;
	while (result == STATUS_OK && !t.done)
		result = scheduler_session_export_step(s, x, &t, err);
	if (result != STATUS_OK) {
		scheduler_transfer_fini(&t);
		return result;
	}
	scheduler_transfer_seal(&t);
	*out = t.blob;
	*bytes = t.bytes;
	return STATUS_OK;
}

status scheduler_session_leave_step(scheduler *s, session *x, session_transfer *t, session **snapshots, error *err)
{
	*snapshots = NULL;
	if (!t->blob) {
		TRY(session_ready(x, err));
		TRY(session_blob_leave(x, t, err));
		x->busy = true;
		s->n_leaving++;
	}
	scheduler_model_touch(s, x->model);
	const status result = session_fork_step(t->held, x, &t->moved, &t->done, err);
	if (result == STATUS_OK && !t->done)
		return STATUS_OK;
	x->busy = false;
	s->n_leaving--;
	if (result != STATUS_OK) {
		scheduler_transfer_fini(t);
		return result;
	}
	t->held->model = NULL; /* it may be unloaded meanwhile */
	*snapshots = session_detach_snapshots(x);
	discard(s, x);
	return STATUS_OK;
}

bool scheduler_slot_is_coming(const scheduler *s)
{
	return s->n_leaving > 0 && (int64_t)s->sessions.count >= s->limits.max_sessions;
}

void scheduler_session_attach(session *x, session *snapshots)
{
	session_attach_snapshots(x, snapshots);
}

void scheduler_snapshots_free(session *snapshots)
{
	for (session *older; snapshots; snapshots = older) {
		older = snapshots->older;
		session_free(snapshots);
	}
}

static status import_begin(scheduler *s, served_model *m, const char *id, session_transfer *t, error *err)
{
	session *x;
	TRY(admit(s, m, id, err));
	TRY(session_blob_open(&x, m, id, t, err));
	if (!x)
		return STATUS_OK;
	TRY(enlist(s, &x, err));
	x->busy = true;
	return STATUS_OK;
}

status scheduler_session_import_step(scheduler *s, served_model *m, const char *id, session_transfer *t, session **out,
                                     error *err)
{
	*out = NULL;
	if (t->moved == 0)
		return import_begin(s, m, id, t, err);
	session *x = scheduler_session_find(s, id);
	if (!x)
		return error_set(err, STATUS_DEVICE, NULL, "the device failed while the session was imported");
	scheduler_model_touch(s, m);
	status result = session_blob_read(x, t, err);
	if (result != STATUS_OK) {
		discard(s, x);
	} else if (t->done) {
		x->busy = false;
		*out = x;
	}
	return result;
}

status scheduler_session_import(scheduler *s, served_model *m, const char *id, const void *blob, size_t bytes,
                                session **out, error *err)
{
	session_transfer t = {.blob = (unsigned char *)(uintptr_t)blob, .bytes = bytes};
	*out = NULL;
	TRY(scheduler_transfer_check(&t, err));
	while (!t.done)
		TRY(scheduler_session_import_step(s, m, id, &t, out, err));
	return STATUS_OK;
}

int64_t scheduler_session_tokens(const session *x, int64_t from, int64_t most, int32_t *ids)
{
	const int64_t left = from < x->tokens ? x->tokens - from : 0, n = left < most ? left : most;
	if (n > 0)
		token_history_read(&x->history, from, n, ids);
	return n;
}

int64_t scheduler_session_source(const session *x, const int32_t **ids)
{
	*ids = x->source;
	return x->n_source;
}

status scheduler_session_log(const session *x, const float **log, int64_t *count, error *err)
{
	*log = NULL;
	*count = 0;
	if (!x->options.explain)
		return error_set(err, STATUS_CONFLICT, NULL, "the session was not opened with explain");
	*log = x->log;
	*count = x->tokens;
	return STATUS_OK;
}

void scheduler_session_free_all(scheduler *s)
{
	for (string_node *n; (n = string_table_any(&s->sessions));)
		discard(s, STRING_TABLE_OWNER(n, session, node));
	string_table_fini(&s->sessions);
}
