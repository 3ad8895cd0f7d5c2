/* sessions_methods.c - sessions as JSON, and the methods that need no device. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/daemon/sessions/sessions_private.h"

enum { NS_PER_SECOND = 1000000000 };

static const char *const policies[] = {
    [POSITION_ERROR] = "error", [POSITION_CLAMP] = "clamp", [POSITION_WRAP] = "wrap"};

static int64_t expires_at(const session_entry *e)
{
	int64_t left = (int64_t)(e->expires_ns - clock_ns());
	return (clock_unix_ns() + left) / NS_PER_SECOND;
}

json_t *sessions_object(const session_entry *e)
{
	const session_extra *x = sessions_extra(e);
	json_t *object = json_pack(
	    "{s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:b, s:b, s:s, s:o, s:b, s:s*, s:s*}", "id", e->id, "object",
	    "session", "model", e->use->id, "tokens", (json_int_t)e->tokens, "state_bytes", (json_int_t)e->state_bytes,
	    "created", (json_int_t)e->created, "expires_at", e->expires_ns ? json_integer(expires_at(e)) : json_null(),
	    "durable", e->durable, "explain", e->explain, "position_policy", policies[e->policy], "snapshot_every",
	    x->automatic.every ? json_integer(x->automatic.every) : json_null(), "snapshot_before_calls",
	    x->automatic.before_calls, "adapter", x->adapter, "project", project_member(e->project->name));
	if (object && x->source_tokens &&
	    json_object_set_new(object, "source_tokens", json_integer(x->source_tokens)) != 0) {
		json_decref(object);
		return NULL;
	}
	if (object && e->damaged && json_object_set_new(object, "damaged", json_true()) != 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

json_t *sessions_document(const session_entry *e)
{
	const session_extra *x = sessions_extra(e);
	json_t *object = sessions_object(e);
	bool complete = object && json_object_set_new(object, "ttl_seconds", json_integer(e->ttl)) == 0 &&
	                json_object_set_new(object, "stored_bytes", json_integer(x->stored.state_bytes)) == 0;
	if (complete && (x->snapshots.newest || x->adding.newest))
		complete = json_object_set_new(object, "snapshots", snapshots_document(&x->snapshots, &x->adding)) == 0;
	if (complete && x->origin)
		complete = json_object_set_new(object, "origin", sessions_tree_origin(e)) == 0;
	if (!complete) {
		json_decref(object);
		return NULL;
	}
	json_object_del(object, "damaged"); /* the stored state is intact now */
	return object;
}

json_t *sessions_position(const session_entry *e, const char *made)
{
	return json_pack("{s:s, s:I, s:s*}", "id", e->id, "tokens", (json_int_t)e->tokens, "snapshot",
	                 made[0] ? made : NULL);
}

position_policy sessions_policy(const char *name)
{
	for (int i = 0; name && i <= POSITION_WRAP; i++)
		if (strcmp(policies[i], name) == 0)
			return (position_policy)i;
	return POSITION_ERROR;
}

/* --- methods --- */

void sessions_get(stream *s)
{
	const session_entry *e = sessions_named(s->room, s, s->target);
	if (e)
		stream_result(s, sessions_object(e));
}

void sessions_delete(stream *s)
{
	error err = ERROR_INIT;
	session_entry *e = sessions_named(s->room, s, s->target);
	if (!e)
		return;
	if (e->moving)
		sessions_wait(e, s);
	else if (e->busy)
		stream_refuse(s, STATUS_CONFLICT, "session_busy", "id", "another request uses the session");
	else if (sessions_remove(s->room, e, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_result(s, json_pack("{s:s, s:s, s:b}", "id", s->target, "object", "session", "deleted", 1));
}
