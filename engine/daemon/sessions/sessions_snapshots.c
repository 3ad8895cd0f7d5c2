/* sessions_snapshots.c - the table's side of snapshots: their number, their memory, their place in the document. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/daemon/sessions/sessions_private.h"

const snapshot_list *sessions_snapshots(const session_entry *e)
{
	return &sessions_extra(e)->snapshots;
}

bool sessions_has_snapshot(const session_entry *e, const char *id)
{
	const session_extra *extra = sessions_extra(e);
	const snapshot *x = snapshots_find(&extra->snapshots, id);
	return (x && !x->leaving) || snapshots_find(&extra->adding, id);
}

static status check_snapshot_room(const sessions *all, const session_entry *e, error *err)
{
	const session_parts *p = &all->parts;
	const snapshot_list *list = sessions_snapshots(e);
	const int count = snapshots_count(list) - snapshots_count_automatic(list);
	if (count >= p->max_snapshots)
		return error_set(err, STATUS_CONFLICT, NULL,
		                 "the session has %d snapshots: delete some, or start the service with a larger "
		                 "--max-snapshots (%d)",
		                 count, p->max_snapshots);
	const int64_t used = atomic_load(p->snapshot_used) + all->snapshot_bytes;
	if (!e->durable && e->snapshot_bytes > p->snapshot_bytes - used)
		return error_set(
		    err, STATUS_BUSY, NULL,
		    "snapshots take %lld bytes of memory, and this one up to %lld more: delete some, make the "
		    "session durable, or start the service with a larger --snapshot-bytes (%lld)",
		    (long long)used, (long long)e->snapshot_bytes, (long long)p->snapshot_bytes);
	return STATUS_OK;
}

status sessions_begin_snapshot(sessions *all, session_entry *e, const char *name, const snapshot **out, error *err)
{
	assert(e->busy && !sessions_extra(e)->adding.newest);
	*out = NULL;
	TRY(check_snapshot_room(all, e, err));
	session_extra *extra = sessions_use_extra(e);
	snapshot *x = extra ? snapshots_new(name, e->tokens) : NULL;
	if (!x)
		return STATUS_NOMEM;
	x->bytes = e->snapshot_bytes;
	const status s =
	    e->durable ? store_session_current(all->parts.store, e->id, &x->version, &x->bytes, err) : STATUS_OK;
	if (s != STATUS_OK) {
		free(x);
		return s;
	}
	snapshots_add(&extra->adding, x);
	all->snapshot_bytes += snapshots_memory(&extra->adding); /* the only one */
	*out = x;
	return STATUS_OK;
}

snapshot *sessions_adding(const session_entry *e)
{
	snapshot *x = sessions_extra(e)->adding.newest;
	while (x && x->automatic)
		x = x->older;
	return x;
}

static snapshot *new_automatic(const char *id, int64_t tokens, int64_t bytes, int64_t version)
{
	snapshot *x = snapshots_new(NULL, tokens);
	if (!x)
		return NULL;
	snprintf(x->id, sizeof x->id, "%s", id);
	x->bytes = bytes;
	x->version = version;
	x->automatic = true;
	return x;
}

status sessions_begin_automatic(session_entry *e, const char *id, int64_t tokens, int64_t bytes, int64_t version)
{
	session_extra *extra = sessions_use_extra(e);
	snapshot *x = extra ? new_automatic(id, tokens, bytes, version) : NULL, *old;
	if (!x)
		return STATUS_NOMEM;
	snapshots_add(&extra->adding, x);
	if ((old = snapshots_find(&extra->snapshots, id)))
		old->leaving = true;
	int count = snapshots_count_automatic(&extra->snapshots) + snapshots_count_automatic(&extra->adding);
	for (; count > SCHEDULER_AUTOMATIC && (old = snapshots_oldest_automatic(&extra->snapshots)); count--)
		old->leaving = true;
	return STATUS_OK;
}

void sessions_note_snapshot_bytes(session_entry *e, const char *id, int64_t bytes)
{
	snapshots_find(&e->extra->adding, id)->bytes = bytes; /* automatic ones are in no sum */
}

void sessions_keep_snapshots(sessions *all, session_entry *e)
{
	session_extra *extra = e->extra;
	if (!extra)
		return;
	for (snapshot *x = extra->snapshots.newest, *older; x; x = older) {
		older = x->older;
		if (x->leaving)
			snapshots_remove(&extra->snapshots, x);
	}
	all->snapshot_bytes -= snapshots_memory(&extra->adding);
	snapshots_move(&extra->snapshots, &extra->adding);
}

void sessions_cancel_snapshots(sessions *all, session_entry *e)
{
	session_extra *extra = e->extra;
	if (!extra)
		return;
	all->snapshot_bytes -= snapshots_memory(&extra->adding);
	snapshots_fini(&extra->adding);
	for (snapshot *x = extra->snapshots.newest; x; x = x->older)
		x->leaving = false;
}

void sessions_sync_snapshots(session_entry *e, const session_info *info)
{
	session_extra *extra = info->n_automatic > 0 ? sessions_use_extra(e) : e->extra;
	if (!extra) /* it has no snapshots, or without memory they are listed later */
		return;
	for (snapshot *x = extra->snapshots.newest, *older; x; x = older) {
		bool found = !x->automatic;
		older = x->older;
		for (int i = 0; i < info->n_automatic && !found; i++)
			found = strcmp(info->automatic[i].id, x->id) == 0;
		if (!found)
			snapshots_remove(&extra->snapshots, x);
	}
	for (int i = 0; i < info->n_automatic; i++) {
		snapshot *x =
		    snapshots_find(&extra->snapshots, info->automatic[i].id)
		        ? NULL
		        : new_automatic(info->automatic[i].id, info->automatic[i].tokens, info->automatic[i].bytes, 0);
		if (x) /* without memory it is listed later */
			snapshots_add(&extra->snapshots, x);
	}
}

void sessions_remove_snapshot(session_entry *e, const char *id)
{
	snapshot *x = snapshots_find(sessions_snapshots(e), id);
	if (x)
		snapshots_remove(&e->extra->snapshots, x);
}

status sessions_delete_snapshot(sessions *all, session_entry *e, const char *id, error *err)
{
	int64_t version, bytes;
	assert(!e->busy && e->durable);
	TRY(store_session_current(all->parts.store, e->id, &version, &bytes, err));
	snapshot *x = snapshots_find(sessions_snapshots(e), id);
	x->leaving = true;
	json_t *document = sessions_document(e);
	x->leaving = false;
	const status s = document ? store_session_keep(all->parts.store, e->id, version, document, err) : STATUS_NOMEM;
	json_decref(document);
	if (s == STATUS_OK) {
		sessions_remove_snapshot(e, id);
		sessions_count_bytes(e);
	}
	return s;
}

void sessions_note_snapshot_damage(session_entry *e, const char *id)
{
	snapshot *x = snapshots_find(sessions_snapshots(e), id);
	if (x)
		x->damaged = true;
}
