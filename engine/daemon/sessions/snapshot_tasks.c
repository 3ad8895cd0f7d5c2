/* snapshot_tasks.c - the methods on a session's snapshots.
 *
 * Snapshots of a session that is not durable are in the scheduler, and its tasks copy them. A durable session is stored
 * after every change, so its stored version is the snapshot: it only stays when a later version is stored. Making the
 * snapshot stores the session again, as a version that names the snapshot in its document. A rollback imports the
 * snapshot's version and stores it again as the newest. So the newest version always describes the session completely.
 */
#include <stdio.h>
#include <string.h>

#include "engine/daemon/requests/listing.h"
#include "engine/daemon/sessions/session_task_private.h"

static const char unknown[] = "the session has no snapshot with this id";

static const snapshot *named(const session_entry *e, const stream *s)
{
	return snapshots_find(sessions_snapshots(e), json_string_value(json_object_get(s->params, "snapshot")));
}

/* --- create ------------------------------------------------------------------------ */

static status act_create(session_task *t, device *d, session *x, error *err)
{
	bool done;
	status result = scheduler_session_snapshot_step(device_scheduler(d), x, t->snapshot, &t->moved, &done, err);
	t->more = !done;
	return result;
}

static json_t *newest_object(const session_entry *e)
{
	return snapshots_object(sessions_snapshots(e)->newest, sessions_id(e));
}

static void answer_create(session_task *t)
{
	sessions_adding(t->entry)->tokens = sessions_tokens(t->entry); /* it may have read its pending token before */
	sessions_keep_snapshots(t->all, t->entry);
	stream_result(t->stream, newest_object(t->entry));
	session_task_free(t);
}

static json_t *stored_result(session_settlement *x)
{
	return snapshots_object(sessions_adding(x->entry), sessions_id(x->entry));
}

static void stored(session_settlement *x)
{
	session_task_free(TASK_OWNER(x, session_task, settlement));
}

static void answer_stored(session_task *t)
{
	session_task_settle(t, stored_result, stored);
}

void snapshot_tasks_create(stream *s)
{
	static const session_task_kind in_memory = {.act = act_create, .answer = answer_create},
	                               durable = {.answer = answer_stored, .settles = true};
	error err = ERROR_INIT;
	const snapshot *x;
	session_task *t = session_task_existing(s, s->room, s->target, &in_memory);
	if (!t)
		return;
	const status result =
	    sessions_begin_snapshot(t->all, t->entry, json_string_value(json_object_get(s->params, "name")), &x, &err);
	if (result != STATUS_OK) {
		error_set(&err, result, NULL, "%s", status_text(result));
		sessions_release(t->all, t->entry);
		stream_error(s, &err, result == STATUS_CONFLICT ? "too_many_snapshots" : NULL);
		session_task_free(t);
		return;
	}
	if (x->version)
		t->kind = &durable;
	snprintf(t->snapshot, sizeof t->snapshot, "%s", x->id);
	session_task_begin(t);
}

/* --- rollback ---------------------------------------------------------------------- */

static status act_rollback(session_task *t, device *d, session *x, error *err)
{
	bool done;
	status result = scheduler_session_rollback_step(device_scheduler(d), x, t->snapshot, &t->moved, &done, err);
	t->more = !done;
	return result;
}

static json_t *session_result(session_settlement *x)
{
	return sessions_object(x->entry);
}

static void rolled_back(session_settlement *x)
{
	session_task_free(TASK_OWNER(x, session_task, settlement));
}

static void answer_rollback(session_task *t)
{
	if (t->kind->replaces && t->ticket.damaged)
		sessions_note_snapshot_damage(t->entry, t->snapshot);
	session_task_settle(t, session_result, rolled_back);
}

void snapshot_tasks_rollback(stream *s)
{
	static const session_task_kind in_memory = {.act = act_rollback, .answer = answer_rollback, .settles = true},
	                               durable = {.answer = answer_rollback, .settles = true, .replaces = true};
	session_task *t = session_task_existing(s, s->room, s->target, &in_memory);
	if (!t)
		return;
	const snapshot *x = named(t->entry, s);
	if (!x) {
		session_task_refuse(t, STATUS_NOT_FOUND, "snapshot", unknown);
		return;
	}
	snprintf(t->snapshot, sizeof t->snapshot, "%s", x->id);
	if (x->version) {
		t->kind = &durable;
		t->ticket.fetch = true;
		sessions_forget_away(t->all, t->entry, &t->ticket);
		store_session_version_path(s->net->store, sessions_id(t->entry), x->version, t->ticket.state);
	}
	session_task_begin(t);
}

/* --- delete and list ---------------------------------------------------------------- */

static status act_delete(session_task *t, device *d, session *x, error *err)
{
	(void)d;
	return scheduler_session_drop(x, t->snapshot, err);
}

static void answer_deleted(stream *s, const char *id)
{
	stream_result(s, json_pack("{s:s, s:s, s:b}", "id", id, "object", "session.snapshot", "deleted", 1));
}

static void answer_delete(session_task *t)
{
	sessions_remove_snapshot(t->entry, t->snapshot);
	answer_deleted(t->stream, t->snapshot);
	session_task_free(t);
}

static void delete_stored(stream *s, session_entry *e, const char *id)
{
	error err = ERROR_INIT;
	char deleted[STORE_ID_BYTES];
	snprintf(deleted, sizeof deleted, "%s", id);
	const status result = sessions_delete_snapshot(s->room, e, id, &err);
	error_settle(&err, result);
	if (result == STATUS_OK)
		answer_deleted(s, deleted);
	else
		stream_error(s, &err, NULL);
}

void snapshot_tasks_delete(stream *s)
{
	static const session_task_kind kind = {.act = act_delete, .answer = answer_delete};
	session_entry *e = sessions_named(s->room, s, s->target);
	const snapshot *x = e ? named(e, s) : NULL;
	if (!e)
		return;
	if (!x) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "snapshot", "%s", unknown);
	} else if (sessions_is_busy(e)) {
		stream_refuse(s, STATUS_CONFLICT, "session_busy", "id", "another request uses the session");
	} else if (x->version) {
		delete_stored(s, e, x->id);
	} else {
		session_task *t = session_task_existing(s, s->room, s->target, &kind);
		if (!t)
			return;
		snprintf(t->snapshot, sizeof t->snapshot, "%s", x->id);
		session_task_begin(t);
	}
}

/* Return the first snapshot of a page: the one after `after`, or the first of all in the requested order. NULL: there
 * is none. */
static const snapshot *next_snapshot(const snapshot_list *list, const snapshot *after, bool ascending)
{
	if (!ascending)
		return after ? after->older : list->newest;
	const snapshot *x = list->newest;
	while (x && x->older != after)
		x = x->older;
	return x;
}

void snapshot_tasks_list(stream *s)
{
	const session_entry *e = sessions_named(s->room, s, s->target);
	if (!e)
		return;
	const snapshot_list *list = sessions_snapshots(e);
	const listing_page page = listing_read(s->params, LISTING_SESSIONS);
	const snapshot *x = page.after ? snapshots_find(list, page.after) : NULL;
	if (page.after && !x) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "after", "there is no \"%.64s\" in this list", page.after);
		return;
	}
	json_t *data = json_array();
	bool complete = data;
	x = page.ascending && x && x == list->newest ? NULL : next_snapshot(list, x, page.ascending);
	for (int64_t n = 0; complete && x && n < page.limit; n++) {
		complete = json_array_append_new(data, snapshots_object(x, sessions_id(e))) == 0;
		x = page.ascending && x == list->newest ? NULL : next_snapshot(list, x, page.ascending);
	}
	if (complete) {
		stream_result(s, listing_object(data, x != NULL));
		return;
	}
	json_decref(data);
	stream_result(s, NULL);
}
