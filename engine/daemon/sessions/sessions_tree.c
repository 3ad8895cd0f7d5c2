/* sessions_tree.c - the links between a session and its forks. An entry is linked to its origin while both exist, so a
 * tree is found without a search. Walks use the links alone: a chain of forks may be as long as the table. */
#include <stdio.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/listing.h"
#include "engine/daemon/sessions/sessions_private.h"

session_origin *sessions_tree_new_origin(const char *id, const char *from, int64_t tokens)
{
	session_origin *o = memory_new(1, sizeof *o);
	if (!o)
		return NULL;
	snprintf(o->session, sizeof o->session, "%s", id);
	snprintf(o->snapshot, sizeof o->snapshot, "%s", from ? from : "");
	o->tokens = tokens;
	return o;
}

void sessions_tree_link(sessions *all, session_entry *e)
{
	session_origin *o = e->extra->origin;
	session_entry *parent = o ? sessions_find(all, o->session) : NULL;
	if (!parent || parent == e || o->parent)
		return;
	o->parent = parent;
	o->next_fork = parent->extra->forks;
	if (o->next_fork)
		o->next_fork->extra->origin->previous_fork = e;
	parent->extra->forks = e;
}

void sessions_tree_unlink(session_entry *e)
{
	session_origin *o = sessions_extra(e)->origin;
	if (o && o->parent)
		*(o->previous_fork ? &o->previous_fork->extra->origin->next_fork : &o->parent->extra->forks) =
		    o->next_fork;
	if (o && o->next_fork)
		o->next_fork->extra->origin->previous_fork = o->previous_fork;
	for (session_entry *fork = sessions_extra(e)->forks; fork;) {
		o = fork->extra->origin;
		fork = o->next_fork;
		o->parent = o->next_fork = o->previous_fork = NULL;
	}
}

json_t *sessions_tree_origin(const session_entry *e)
{
	const session_origin *o = sessions_extra(e)->origin;
	if (!o)
		return json_null();
	return json_pack("{s:s, s:s?, s:I}", "session", o->session, "snapshot", o->snapshot[0] ? o->snapshot : NULL,
	                 "tokens", (json_int_t)(o->tokens < 0 ? e->tokens : o->tokens));
}

status sessions_tree_read_origin(session_entry *e, const json_t *document)
{
	const char *origin = json_string_value(json_object_get(document, "session"));
	if (!origin || !origin[0])
		return STATUS_OK;
	session_origin *o = sessions_tree_new_origin(origin, json_string_value(json_object_get(document, "snapshot")),
	                                             json_integer_value(json_object_get(document, "tokens")));
	e->extra->origin = o;
	return o ? STATUS_OK : STATUS_NOMEM;
}

/* Return the entry after e in the tree of `root`: a session, then its forks, each with its own. NULL: e is the last. */
static const session_entry *next_in_tree(const session_entry *e, const session_entry *root)
{
	if (sessions_extra(e)->forks)
		return e->extra->forks;
	while (e != root && !e->extra->origin->next_fork)
		e = e->extra->origin->parent;
	return e == root ? NULL : e->extra->origin->next_fork;
}

static json_t *snapshots_of(const session_entry *e)
{
	json_t *all = json_array();
	for (const snapshot *x = sessions_snapshots(e)->newest; all && x; x = x->older)
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
		n += 1 + snapshots_count(sessions_snapshots(e));
	}
	if (!complete) {
		json_decref(data);
		stream_result(s, NULL);
		return;
	}
	stream_result(s, json_pack("{s:s, s:s, s:o, s:b}", "object", "session.tree", "session", root->id, "data", data,
	                           "has_more", e != NULL));
}
