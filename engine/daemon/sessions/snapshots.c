#include "engine/daemon/sessions/snapshots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json_read.h"
#include "engine/base/memory.h"

snapshot *snapshots_new(const char *name, int64_t tokens)
{
	snapshot *x = memory_new(1, sizeof *x);
	if (!x)
		return NULL;
	store_new_id(x->id, "snap-");
	snprintf(x->name, sizeof x->name, "%s", name ? name : "");
	x->tokens = tokens;
	x->created = clock_unix();
	return x;
}

void snapshots_add(snapshot_list *list, snapshot *x)
{
	x->older = list->newest;
	list->newest = x;
}

int snapshots_count(const snapshot_list *list)
{
	int n = 0;
	for (const snapshot *x = list->newest; x; x = x->older)
		n += !x->leaving;
	return n;
}

int snapshots_count_automatic(const snapshot_list *list)
{
	int n = 0;
	for (const snapshot *x = list->newest; x; x = x->older)
		n += x->automatic && !x->leaving;
	return n;
}

int64_t snapshots_memory(const snapshot_list *list)
{
	int64_t bytes = 0;
	for (const snapshot *x = list->newest; x; x = x->older)
		bytes += x->version || x->automatic ? 0 : x->bytes;
	return bytes;
}

snapshot *snapshots_oldest_automatic(const snapshot_list *list)
{
	snapshot *oldest = NULL;
	for (snapshot *x = list->newest; x; x = x->older)
		if (x->automatic && !x->leaving)
			oldest = x;
	return oldest;
}

/* Unlink a snapshot without freeing it. */
static void unlink_snapshot(snapshot_list *list, snapshot *x)
{
	snapshot **link = &list->newest;
	while (*link != x)
		link = &(*link)->older;
	*link = x->older;
}

void snapshots_move(snapshot_list *list, snapshot_list *from)
{
	while (from->newest) {
		snapshot *oldest = from->newest;
		while (oldest->older)
			oldest = oldest->older;
		unlink_snapshot(from, oldest);
		snapshots_add(list, oldest);
	}
}

snapshot *snapshots_find(const snapshot_list *list, const char *id)
{
	snapshot *x = list->newest;
	while (x && strcmp(x->id, id) != 0)
		x = x->older;
	return x;
}

void snapshots_remove(snapshot_list *list, snapshot *x)
{
	unlink_snapshot(list, x);
	free(x);
}

void snapshots_fini(snapshot_list *list)
{
	while (list->newest)
		snapshots_remove(list, list->newest);
}

json_t *snapshots_object(const snapshot *x, const char *session)
{
	json_t *object =
	    json_pack("{s:s, s:s, s:s, s:s?, s:b, s:I, s:I, s:I}", "id", x->id, "object", "session.snapshot", "session",
	              session, "name", x->name[0] ? x->name : NULL, "automatic", x->automatic, "tokens",
	              (json_int_t)x->tokens, "bytes", (json_int_t)x->bytes, "created_at", (json_int_t)x->created);
	if (object && x->damaged && json_object_set_new(object, "damaged", json_true()) != 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

/* Insert the snapshots of a list at index `at`, oldest first. */
static bool document_add(json_t *all, const snapshot_list *list, size_t at)
{
	bool complete = all;
	for (const snapshot *x = list->newest; complete && x; x = x->older) {
		json_t *row = x->leaving ? NULL
		                         : json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:I}", "id", x->id, "name",
		                                     x->name, "automatic", x->automatic, "tokens",
		                                     (json_int_t)x->tokens, "bytes", (json_int_t)x->bytes, "created",
		                                     (json_int_t)x->created, "version", (json_int_t)x->version);
		complete = x->leaving || json_array_insert_new(all, at, row) == 0;
	}
	return complete;
}

json_t *snapshots_document(const snapshot_list *list, const snapshot_list *newer)
{
	json_t *all = json_array();
	if (document_add(all, list, 0) && document_add(all, newer, json_array_size(all)))
		return all;
	json_decref(all);
	return NULL;
}

static status read_one(snapshot *x, const json_t *row)
{
	const char *id, *name;
	json_int_t tokens, bytes, created, version;
	int automatic = 0;
	TRY(json_read_members(row, "{s:s, s:s, s?b, s:I, s:I, s:I, s:I}", "id", &id, "name", &name, "automatic",
	                      &automatic, "tokens", &tokens, "bytes", &bytes, "created", &created, "version",
	                      &version));
	if (!store_valid_name(id) || version < 1)
		return STATUS_INVALID;
	snprintf(x->id, sizeof x->id, "%s", id);
	snprintf(x->name, sizeof x->name, "%s", name);
	x->tokens = tokens;
	x->bytes = bytes;
	x->created = created;
	x->version = version;
	x->automatic = automatic;
	return STATUS_OK;
}

status snapshots_read(snapshot_list *list, const json_t *document)
{
	size_t i;
	json_t *row;
	json_array_foreach(document, i, row)
	{
		snapshot *x = memory_new(1, sizeof *x);
		const status s = x ? read_one(x, row) : STATUS_NOMEM;
		if (s != STATUS_OK) {
			free(x);
			snapshots_fini(list);
			return s;
		}
		snapshots_add(list, x);
	}
	return STATUS_OK;
}
