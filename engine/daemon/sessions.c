/* The table is a list; a few hundred string comparisons per request do not show. */
#include "engine/daemon/sessions.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/device.h"

struct sessions {
	engine *engine;
	session_entry *first;
	int count;
	uint64_t clock;
};

static const char *const policies[] = {
    [POSITION_ERROR] = "error", [POSITION_CLAMP] = "clamp", [POSITION_WRAP] = "wrap"};

/* --- objects ------------------------------------------------------------------- */

json_t *sessions_object(const session_entry *e)
{
	json_t *object =
	    json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:n, s:b, s:b, s:s}", "id", e->id, "object", "session", "model",
	              e->model, "tokens", (json_int_t)e->tokens, "state_bytes", (json_int_t)e->state_bytes, "created",
	              (json_int_t)e->created, "expires_at", "durable", e->options.durable, "explain",
	              e->options.explain, "position_policy", policies[e->options.policy]);
	if (object && e->expires)
		json_object_set_new(object, "expires_at", json_integer(e->expires));
	return object;
}

json_t *sessions_position(const session_entry *e)
{
	return json_pack("{s:s, s:I}", "id", e->id, "tokens", (json_int_t)e->tokens);
}

position_policy sessions_policy(const char *name)
{
	for (int i = 0; name && i <= POSITION_WRAP; i++)
		if (strcmp(policies[i], name) == 0)
			return (position_policy)i;
	return POSITION_ERROR;
}

/* --- the table ------------------------------------------------------------------ */

static session_entry *find(const sessions *all, const char *id)
{
	session_entry *e = all->first;
	while (e && strcmp(e->id, id) != 0)
		e = e->next;
	return e;
}

static void unlink_entry(sessions *all, session_entry *e)
{
	session_entry **link = &all->first;
	while (*link != e)
		link = &(*link)->next;
	*link = e->next;
	all->count--;
	free(e);
}

static void touch(sessions *all, session_entry *e)
{
	int64_t ttl = e->ttl < 0 && !e->options.durable ? SESSIONS_TTL_SECONDS : e->ttl;
	e->used = ++all->clock;
	e->expires = ttl >= 0 ? clock_unix() + ttl : 0;
}

bool sessions_use_model(const sessions *all, const char *id)
{
	for (const session_entry *e = all->first; e; e = e->next)
		if (strcmp(e->model, id) == 0)
			return true;
	return false;
}

int sessions_count(const sessions *all)
{
	return all->count;
}

/* --- slots: whoever is durable and idle can give his ----------------------------- */

typedef struct dismissal {
	task task;
	char id[STORE_ID_BYTES];
} dismissal;

static void run_dismissal(task *t, device *d)
{
	const dismissal *x = (dismissal *)t;
	session *live = device_scheduler(d) ? scheduler_session_find(device_scheduler(d), x->id) : NULL;
	if (live)
		scheduler_session_delete(device_scheduler(d), live, NULL);
}

static void dismissed(task *t)
{
	free(t);
}

static void dismiss(sessions *all, session_entry *e)
{
	dismissal *x = memory_new(1, sizeof *x);
	if (!x)
		return; /* the slot stays taken until the device is restarted */
	x->task = (task){.run = run_dismissal, .done = dismissed};
	snprintf(x->id, sizeof x->id, "%s", e->id);
	executor_control(all->engine->executor, &x->task);
	e->live = false;
}

/* Before a session becomes live: when all slots are taken, dismiss the one that has been idle longest. */
static void make_room(sessions *all)
{
	int live = 0;
	session_entry *oldest = NULL;
	for (session_entry *e = all->first; e; e = e->next) {
		live += e->live;
		if (e->live && !e->busy && e->options.durable && (!oldest || e->used < oldest->used))
			oldest = e;
	}
	if (live >= all->engine->options->limits.max_sessions && oldest)
		dismiss(all, oldest);
}

/* --- on the executor --------------------------------------------------------------- */

static status restore(const session_ticket *t, scheduler *s, served_model *m, session **out, error *err)
{
	void *blob;
	size_t bytes;
	TRY(store_session_read(t->state, t->id, &blob, &bytes, err));
	status result = scheduler_session_import(s, m, t->id, blob, bytes, out, err);
	free(blob);
	return result;
}

status sessions_redeem(const session_ticket *t, device *d, served_model *m, session **out, error *err)
{
	scheduler *s = device_scheduler(d);
	*out = scheduler_session_find(s, t->id);
	if (*out)
		return STATUS_OK;
	if (t->create)
		return scheduler_session_new(s, m, t->id, &t->options, out, err);
	if (t->state[0])
		return restore(t, s, m, out, err);
	return error_set(err, STATUS_NOT_FOUND, "id", "the session was lost when the compute device failed");
}

void sessions_look(session_change *out, device *d, const char *id, bool export)
{
	scheduler *s = device_scheduler(d);
	session *x = s ? scheduler_session_find(s, id) : NULL;
	*out = (session_change){.live = x != NULL};
	if (!x)
		return;
	scheduler_session_info(x, &out->info);
	if (!export || !out->info.options.durable)
		return;
	status why = scheduler_session_export(s, x, &out->blob, &out->bytes, &out->error);
	if (why != STATUS_OK)
		error_set(&out->error, why, NULL, "%s", status_text(why));
}

/* --- taking and settling ------------------------------------------------------------ */

status sessions_add(sessions *all, const card *c, const session_options *o, int64_t ttl, session_entry **out,
                    error *err)
{
	*out = NULL;
	if (all->count >= SESSIONS_MAX_KNOWN)
		return error_set(err, STATUS_BUSY, NULL, "all %d sessions are in use", SESSIONS_MAX_KNOWN);
	session_entry *e = memory_new(1, sizeof *e);
	if (!e)
		return STATUS_NOMEM;
	make_room(all);
	store_new_id(e->id, "sess-");
	snprintf(e->model, sizeof e->model, "%s", c->id);
	e->options = *o;
	e->state_bytes = c->state_bytes;
	e->created = clock_unix();
	e->ttl = ttl;
	e->busy = e->live = true;
	touch(all, e);
	e->next = all->first;
	all->first = e;
	all->count++;
	*out = e;
	return STATUS_OK;
}

session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, card **c)
{
	error err = ERROR_INIT;
	session_entry *e = find(all, id);
	if (!e) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no session \"%.64s\"", id);
		return NULL;
	}
	if (e->busy) {
		stream_refuse(s, STATUS_CONFLICT, "session_busy", "id", "another request uses the session");
		return NULL;
	}
	if (cards_open(all->engine->cards, e->model, c, &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return NULL;
	}
	if (!e->live)
		make_room(all);
	e->busy = e->live = true;
	*ticket = (session_ticket){.options = e->options};
	snprintf(ticket->id, sizeof ticket->id, "%s", e->id);
	if (e->options.durable)
		store_session_path(all->engine->store, e->id, ticket->state);
	return e;
}

void sessions_release(sessions *all, session_entry *e)
{
	e->busy = false;
	touch(all, e);
}

static status store_entry(sessions *all, const session_entry *e, const session_change *change, error *err)
{
	json_t *object = sessions_object(e);
	status s =
	    object && json_object_set_new(object, "ttl_seconds", json_integer(e->ttl)) == 0 ? STATUS_OK : STATUS_NOMEM;
	char path[PATH_MAX];
	int64_t version = store_session_next(all->engine->store, e->id, path);
	if (s == STATUS_OK)
		s = store_session_write(path, e->id, object, change->blob, change->bytes, err);
	if (s == STATUS_OK)
		s = store_session_keep(all->engine->store, e->id, version, object, err);
	if (s != STATUS_OK)
		store_session_discard(path);
	json_decref(object);
	return s;
}

status sessions_settle(sessions *all, session_entry **taken, session_change *change, error *err)
{
	session_entry *e = *taken;
	status s = STATUS_OK;
	assert(e->busy);
	e->busy = false;
	e->live = change->live;
	if (change->live) {
		e->tokens = change->info.tokens;
		e->state_bytes = change->info.state_bytes;
		e->options = change->info.options;
	}
	touch(all, e);
	if (change->error.status != STATUS_OK)
		s = error_set(err, change->error.status, NULL, "%s", change->error.message);
	else if (change->blob)
		s = store_entry(all, e, change, err);
	free(change->blob);
	change->blob = NULL;
	if (!e->live && !e->options.durable) {
		unlink_entry(all, e);
		*taken = NULL;
		return error_set(err, STATUS_NOT_FOUND, "id", "the session was lost when the compute device failed");
	}
	return s;
}

status sessions_remove(sessions *all, session_entry *e, error *err)
{
	status s = e->options.durable ? store_session_delete(all->engine->store, e->id, err) : STATUS_OK;
	if (s != STATUS_OK && s != STATUS_NOT_FOUND) /* one that failed before it was first stored */
		return s;
	if (e->live)
		dismiss(all, e);
	unlink_entry(all, e);
	return STATUS_OK;
}

void sessions_tick(sessions *all)
{
	int64_t now = clock_unix();
	for (session_entry *e = all->first, *next; e; e = next) {
		next = e->next;
		if (!e->busy && e->expires && now >= e->expires)
			sessions_remove(all, e, NULL); /* a failing disk is tried again at the next tick */
	}
}

/* --- opening -------------------------------------------------------------------- */

static bool read_entry(void *context, const json_t *row)
{
	sessions *all = context;
	const char *id, *of, *policy;
	json_int_t tokens, state_bytes, created, ttl;
	int explain;
	session_entry *e = memory_new(1, sizeof *e);
	if (!e || json_unpack((json_t *)(uintptr_t)row, "{s:s, s:s, s:I, s:I, s:I, s:b, s:s, s:I}", "id", &id, "model",
	                      &of, "tokens", &tokens, "state_bytes", &state_bytes, "created", &created, "explain",
	                      &explain, "position_policy", &policy, "ttl_seconds", &ttl) != 0) {
		log_line(LOG_WARN, "a stored session cannot be read");
		free(e);
		return true;
	}
	snprintf(e->id, sizeof e->id, "%s", id);
	snprintf(e->model, sizeof e->model, "%s", of);
	e->options = (session_options){sessions_policy(policy), explain, true};
	e->tokens = tokens;
	e->state_bytes = state_bytes;
	e->created = created;
	e->ttl = ttl;
	e->expires = json_integer_value(json_object_get(row, "expires_at"));
	e->next = all->first;
	all->first = e;
	all->count++;
	return true;
}

status sessions_new(sessions **out, engine *e, error *err)
{
	bool more;
	sessions *all = *out = memory_new(1, sizeof *all);
	if (!all)
		return STATUS_NOMEM;
	all->engine = e;
	return store_list(e->store, STORE_SESSIONS, &(store_page){.ascending = true}, read_entry, all, &more, err);
}

void sessions_free(sessions *all)
{
	if (!all)
		return;
	while (all->first)
		unlink_entry(all, all->first);
	free(all);
}

/* --- the methods that only read the table ------------------------------------------- */

void sessions_list(stream *s)
{
	json_t *data = json_array();
	for (const session_entry *e = s->engine->sessions->first; data && e; e = e->next)
		json_array_append_new(data, sessions_object(e));
	stream_result(s, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

void sessions_get(stream *s)
{
	const session_entry *e = find(s->engine->sessions, s->target);
	if (e)
		stream_result(s, sessions_object(e));
	else
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no session \"%.64s\"", s->target);
}

void sessions_delete(stream *s)
{
	error err = ERROR_INIT;
	session_entry *e = find(s->engine->sessions, s->target);
	if (!e)
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no session \"%.64s\"", s->target);
	else if (e->busy)
		stream_refuse(s, STATUS_CONFLICT, "session_busy", "id", "another request uses the session");
	else if (sessions_remove(s->engine->sessions, e, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_result(s, json_pack("{s:s, s:s, s:b}", "id", s->target, "object", "session", "deleted", 1));
}
