/* sessions_tree.c - the links between a session and its forks. An entry is linked to its origin while both exist, so a
 * tree is found without a search. Walks use the links alone: a chain of forks may be as long as the table. */
#include <stdio.h>

#include "engine/base/json_read.h"
#include "engine/daemon/requests/listing.h"
#include "engine/daemon/sessions/sessions_private.h"

void sessions_tree_link(sessions *all, session_entry *e)
{
	session_entry *parent = e->origin[0] ? sessions_find(all, e->origin) : NULL;
	if (!parent || parent == e || e->parent)
		return;
	e->parent = parent;
	e->next_fork = parent->forks;
	if (e->next_fork)
		e->next_fork->previous_fork = e;
	parent->forks = e;
}

void sessions_tree_unlink(session_entry *e)
{
	if (e->parent)
		*(e->previous_fork ? &e->previous_fork->next_fork : &e->parent->forks) = e->next_fork;
	if (e->next_fork)
		e->next_fork->previous_fork = e->previous_fork;
	for (session_entry *fork = e->forks, *next; fork; fork = next) {
		next = fork->next_fork;
		fork->parent = fork->next_fork = fork->previous_fork = NULL;
	}
}

json_t *sessions_tree_origin(const session_entry *e)
{
	if (!e->origin[0])
		return json_null();
	return json_pack("{s:s, s:s?, s:I}", "session", e->origin, "snapshot",
	                 e->origin_snapshot[0] ? e->origin_snapshot : NULL, "tokens",
	                 (json_int_t)(e->origin_tokens < 0 ? e->tokens : e->origin_tokens));
}

void sessions_tree_read_origin(session_entry *e, const json_t *document)
{
	const char *origin = json_string_value(json_object_get(document, "session"));
	const char *from = json_string_value(json_object_get(document, "snapshot"));
	snprintf(e->origin, sizeof e->origin, "%s", origin ? origin : "");
	snprintf(e->origin_snapshot, sizeof e->origin_snapshot, "%s", from ? from : "");
	e->origin_tokens = json_integer_value(json_object_get(document, "tokens"));
}

/* Return the entry after e in the tree of `root`: a session, then its forks, each with its own. NULL: e is the last. */
static const session_entry *next_in_tree(const session_entry *e, const session_entry *root)
{
	if (e->forks)
		return e->forks;
	while (e != root && !e->next_fork)
		e = e->parent;
	return e == root ? NULL : e->next_fork;
}

static json_t *snapshots_of(const session_entry *e)
{
	json_t *all = json_array();
	for (const snapshot *x = e->snapshots.newest; all && x; x = x->older)
		if (json_array_append_new(all, snapshots_object(x, e->id)) != 0) {
			json_decref(all);
			return NULL;
		}
	return all;
}

static json_t *branch_object(const session_entry *e)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "id", e->id, "object", "session.branch", "tokens",
	                 (json_int_t)e->tokens, "created", (json_int_t)e->created, "parent", sessions_tree_origin(e),
	                 "snapshots", snapshots_of(e));
}

void sessions_tree(stream *s)
{
	const session_entry *root = sessions_named(s->room, s, s->target), *e = root;
	json_t *data = root ? json_array() : NULL;
	bool complete = data;
	if (!root)
		return;
	for (int64_t n = 0; complete && e && n < LISTING_SESSIONS; e = next_in_tree(e, root)) {
		complete = json_array_append_new(data, branch_object(e)) == 0;
		n += 1 + e->snapshots.count;
	}
	if (!complete) {
		json_decref(data);
		stream_result(s, NULL);
		return;
	}
	stream_result(s, json_pack("{s:s, s:s, s:o, s:b}", "object", "session.tree", "session", root->id, "data", data,
	                           "has_more", e != NULL));
}
