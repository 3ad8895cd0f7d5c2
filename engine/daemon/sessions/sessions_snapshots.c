/* sessions_snapshots.c - the table's side of snapshots: their number, their memory, their place in the document. */
#include <assert.h>
#include <stdlib.h>

#include "engine/daemon/sessions/sessions_private.h"

const snapshot_list *sessions_snapshots(const session_entry *e)
{
	return &e->snapshots;
}

static status check_snapshot_room(const sessions *all, const session_entry *e, error *err)
{
	const session_parts *p = &all->parts;
	if (e->snapshots.count >= p->max_snapshots)
		return error_set(err, STATUS_CONFLICT, NULL,
		                 "the session has %d snapshots: delete some, or start the service with a larger "
		                 "--max-snapshots (%d)",
		                 e->snapshots.count, p->max_snapshots);
	if (!e->options.durable && e->snapshot_bytes > p->snapshot_bytes - all->snapshot_bytes)
		return error_set(err, STATUS_BUSY, NULL,
		                 "snapshots take %lld bytes of memory, and this one %lld more: delete some, make the "
		                 "session durable, or start the service with a larger --snapshot-bytes (%lld)",
		                 (long long)all->snapshot_bytes, (long long)e->snapshot_bytes,
		                 (long long)p->snapshot_bytes);
	return STATUS_OK;
}

status sessions_begin_snapshot(sessions *all, session_entry *e, const char *name, const snapshot **out, error *err)
{
	assert(e->busy && !e->adding);
	*out = NULL;
	TRY(check_snapshot_room(all, e, err));
	snapshot *x = snapshots_new(name, e->tokens);
	if (!x)
		return STATUS_NOMEM;
	x->bytes = e->snapshot_bytes;
	const status s = e->options.durable
	                     ? store_session_current(all->parts.store, e->id, &x->version, &x->bytes, err)
	                     : STATUS_OK;
	if (s != STATUS_OK) {
		free(x);
		return s;
	}
	all->snapshot_bytes += x->version ? 0 : x->bytes;
	*out = e->adding = x;
	return STATUS_OK;
}

const snapshot *sessions_adding(const session_entry *e)
{
	return e->adding;
}

void sessions_end_snapshot(sessions *all, session_entry *e, bool keep)
{
	snapshot *x = e->adding;
	e->adding = NULL;
	if (!x)
		return;
	all->snapshot_bytes -= x->version ? 0 : x->bytes;
	if (!keep) {
		free(x);
		return;
	}
	if (!x->version) { /* the session may have read its pending token before */
		x->tokens = e->tokens;
		x->bytes = e->snapshot_bytes;
		all->snapshot_bytes += x->bytes;
	}
	snapshots_add(&e->snapshots, x);
}

void sessions_remove_snapshot(sessions *all, session_entry *e, const char *id)
{
	snapshot *x = snapshots_find(&e->snapshots, id);
	if (!x)
		return;
	all->snapshot_bytes -= x->version ? 0 : x->bytes;
	snapshots_remove(&e->snapshots, x);
}

status sessions_delete_snapshot(sessions *all, session_entry *e, const char *id, error *err)
{
	int64_t version, bytes;
	assert(!e->busy && e->options.durable);
	TRY(store_session_current(all->parts.store, e->id, &version, &bytes, err));
	e->removing = snapshots_find(&e->snapshots, id);
	json_t *document = sessions_document(e);
	e->removing = NULL;
	const status s = document ? store_session_keep(all->parts.store, e->id, version, document, err) : STATUS_NOMEM;
	json_decref(document);
	if (s == STATUS_OK)
		sessions_remove_snapshot(all, e, id);
	return s;
}

void sessions_note_snapshot_damage(session_entry *e, const char *id)
{
	snapshot *x = snapshots_find(&e->snapshots, id);
	if (x)
		x->damaged = true;
}
