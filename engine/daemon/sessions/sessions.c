/* sessions.c - entries are found by id in a hash table and listed newest first. find_seen decides for every method
 * whether a request sees a session. */
#include "engine/daemon/sessions/sessions_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json_read.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"

#define TICK_NS 20000000u /* time that a tick removes expired sessions */

/* --- the table ------------------------------------------------------------------ */

session_entry *sessions_find(const sessions *all, const char *id)
{
	return STRING_TABLE_OWNER(string_table_find(&all->ids, id), session_entry, node);
}

static status use_model(sessions *all, session_entry *e, const char *of)
{
	model_use *use = STRING_TABLE_OWNER(string_table_find(&all->models, of), model_use, node);
	if (!use) {
		use = memory_new(1, sizeof *use);
		if (!use)
			return STATUS_NOMEM;
		snprintf(use->id, sizeof use->id, "%s", of);
		if (string_table_add(&all->models, &use->node, use->id) != STATUS_OK) {
			free(use);
			return STATUS_NOMEM;
		}
	}
	use->sessions++;
	e->use = use;
	return STATUS_OK;
}

static void leave_model(sessions *all, session_entry *e)
{
	if (--e->use->sessions > 0)
		return;
	string_table_remove(&all->models, &e->use->node);
	free(e->use);
}

static session_options options_of(const session_entry *e)
{
	return (session_options){.policy = e->policy, .explain = e->explain, .durable = e->durable};
}

static void set_options(session_entry *e, const session_options *o)
{
	e->policy = o->policy;
	e->explain = o->explain;
	e->durable = o->durable;
}

/* Create an entry, in no list. NULL: out of memory. */
static session_entry *new_entry(const char *id)
{
	const size_t bytes = strlen(id) + 1;
	session_entry *e = memory_new(1, offsetof(session_entry, id) + bytes);
	if (!e)
		return NULL;
	memcpy(e->id, id, bytes);
	e->expiry = -1;
	e->tier = TIERS;
	return e;
}

/* Free an entry that is in no list. */
static void free_entry(session_entry *e)
{
	if (e->place)
		free(e->place->eviction);
	free(e->place);
	if (e->extra) {
		snapshots_fini(&e->extra->snapshots);
		free(e->extra->origin);
		free(e->extra->adapter);
	}
	free(e->extra);
	free(e);
}

static const session_extra no_extra = {.stored.tokens = -1};

const session_extra *sessions_extra(const session_entry *e)
{
	return e->extra ? e->extra : &no_extra;
}

session_extra *sessions_use_extra(session_entry *e)
{
	if (!e->extra && (e->extra = malloc(sizeof *e->extra)))
		*e->extra = no_extra;
	return e->extra;
}

static bool is_stored(const session_entry *e)
{
	return sessions_extra(e)->stored.tokens >= 0;
}

/* Add an entry to table and lists. It is not freed on failure. */
static status link_entry(sessions *all, session_entry *e, const char *of, const char *project)
{
	if (sessions_find(all, e->id))
		return STATUS_CONFLICT;
	if (!MEMORY_ROOM(all->expiring, all->expiring_room, sessions_count(all) + 1))
		return STATUS_NOMEM;
	TRY(use_model(all, e, of));
	if (sessions_join_project(all, e, project) != STATUS_OK) {
		leave_model(all, e);
		return STATUS_NOMEM;
	}
	if (string_table_add(&all->ids, &e->node, e->id) != STATUS_OK) {
		sessions_leave_project(all, e);
		leave_model(all, e);
		return STATUS_NOMEM;
	}
	e->older = all->newest;
	*(e->older ? &e->older->newer : &all->oldest) = e;
	all->newest = e;
	return STATUS_OK;
}

static void unlink_entry(sessions *all, session_entry *e)
{
	tiers_set_idle(all, e, false);
	tiers_set_live(all, e, false);
	tiers_leave(all, e);
	tiers_forget_away(all, e);
	expiry_remove(all, e);
	*(e->newer ? &e->newer->older : &all->newest) = e->older;
	*(e->older ? &e->older->newer : &all->oldest) = e->newer;
	string_table_remove(&all->ids, &e->node);
	sessions_leave_project(all, e);
	leave_model(all, e);
	sessions_tree_unlink(e);
	sessions_cancel_snapshots(all, e);
	free_entry(e);
}

static void touch(sessions *all, session_entry *e)
{
	expiry_set(all, e, e->ttl < 0 && !e->durable ? SESSIONS_TTL_SECONDS : e->ttl);
}

/* Mark an entry as used by no request. */
static void set_free(sessions *all, session_entry *e)
{
	e->busy = false;
	tiers_set_idle(all, e, true);
}

/* Return the session if the request sees it. */
static session_entry *find_seen(const sessions *all, const stream *s, const char *id)
{
	session_entry *e = sessions_find(all, id);
	return e && !e->hidden && project_sees(&s->scope, e->project->name) ? e : NULL;
}

session_entry *sessions_named(sessions *all, stream *s, const char *id)
{
	session_entry *e = find_seen(all, s, id);
	if (e)
		return e;
	stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no session \"%.64s\"", id);
	return NULL;
}

const char *sessions_model(const sessions *all, const stream *s, const char *id)
{
	const session_entry *e = find_seen(all, s, id);
	return e ? e->use->id : NULL;
}

bool sessions_is_busy(const session_entry *e)
{
	return e->busy;
}

bool sessions_use_model(const sessions *all, const char *id)
{
	return string_table_find(&all->models, id) != NULL;
}

int sessions_count(const sessions *all)
{
	return (int)all->ids.count;
}

void sessions_stats_read(const sessions *all, sessions_stats *out)
{
	*out = all->stats;
}

/* True if the session's device is closed while another one is open. */
static bool was_lost(const sessions *all, const session_entry *e)
{
	const fleet *f = all->parts.fleet;
	return e->live && !device_is_open(fleet_device(f, e->device)) && fleet_is_open(f);
}

bool sessions_are_stored(const sessions *all)
{
	const session_entry *e = all->newest;
	while (e && !e->busy && (e->durable || was_lost(all, e) || !tiers_have_state(e)))
		e = e->older;
	return !e;
}

/* --- taking and giving back ------------------------------------------------------------ */

static status begin_entry(sessions *all, session_entry *e, const char *of, const char *project, int preferred,
                          error *err)
{
	TRY(tiers_make_live(all, e, preferred, err));
	status s = link_entry(all, e, of, project);
	if (s == STATUS_OK)
		return s;
	tiers_set_live(all, e, false);
	tiers_leave(all, e);
	return error_set(err, s, NULL, "%s", status_text(s));
}

/* s: the request that the session counts for; NULL: it is hidden. extra: it needs extra members. */
static status add(sessions *all, const model_entry *c, const session_options *o, int64_t ttl, bool extra,
                  const char *project, const stream *s, int preferred, session_entry **out, error *err)
{
	*out = NULL;
	if (s)
		TRY(sessions_check_quota(all, &s->scope, project, err));
	int most = all->parts.max_known;
	if (sessions_count(all) >= most)
		return error_set(
		    err, STATUS_BUSY, NULL,
		    "all %d sessions are in use: delete some, give sessions a ttl_seconds, or start the service "
		    "with a larger --max-known-sessions",
		    most);
	char id[STORE_ID_BYTES];
	store_new_id(id, "sess-");
	session_entry *e = new_entry(id);
	if (!e)
		return STATUS_NOMEM;
	set_options(e, o);
	e->state_bytes = c->state_bytes;
	e->created = clock_unix();
	e->ttl = (int32_t)ttl;
	e->busy = true;
	e->hidden = !s;
	extra |= c->dims.source > 0;
	const status added =
	    extra && !sessions_use_extra(e) ? STATUS_NOMEM : begin_entry(all, e, c->id, project, preferred, err);
	if (added != STATUS_OK) {
		free_entry(e);
		return added;
	}
	touch(all, e);
	*out = e;
	return STATUS_OK;
}

static status set_adapter(session_extra *x, const char *id)
{
	x->adapter = id && id[0] ? strdup(id) : NULL;
	return !id || !id[0] || x->adapter ? STATUS_OK : STATUS_NOMEM;
}

status sessions_add(sessions *all, const model_entry *c, const session_options *o, const session_traits *traits,
                    const stream *s, session_entry **out, error *err)
{
	const automatic_snapshots *a = &traits->automatic;
	const bool some = a->every > 0 || a->before_calls || (traits->adapter && traits->adapter[0]);
	TRY(add(all, c, o, traits->ttl, some, s->scope.project, s, FLEET_ANY, out, err));
	if (!some)
		return STATUS_OK;
	(*out)->extra->automatic = *a;
	if (set_adapter((*out)->extra, traits->adapter) == STATUS_OK)
		return STATUS_OK;
	unlink_entry(all, *out);
	*out = NULL;
	return STATUS_NOMEM;
}

status sessions_add_hidden(sessions *all, const model_entry *c, const session_options *o, session_entry **out,
                           error *err)
{
	return add(all, c, o, -1, false, "", NULL, FLEET_ANY, out, err);
}

status sessions_check_automatic(const sessions *all, const model_entry *c, const session_options *o,
                                automatic_snapshots automatic, error *err)
{
	const char *name = automatic.every > 0 ? "snapshot_every" : "snapshot_before_calls";
	if (automatic.every == 0 && !automatic.before_calls)
		return STATUS_OK;
	if (all->parts.max_snapshots == 0)
		return error_set(err, STATUS_INVALID, name, "needs a service with --max-snapshots above 0");
	if (o->explain)
		return error_set(err, STATUS_INVALID, name,
		                 "does not go with explain: each snapshot would copy a log that grows with the text");
	if (c->state_bytes > SCHEDULER_AUTOMATIC_BYTES)
		return error_set(err, STATUS_INVALID, name, "needs a state of at most %d bytes; this model's has %lld",
		                 SCHEDULER_AUTOMATIC_BYTES, (long long)c->state_bytes);
	return STATUS_OK;
}

status sessions_add_like(sessions *all, const model_entry *c, session_entry *other, const char *from, const stream *s,
                         session_entry **out, error *err)
{
	const session_extra *x = sessions_use_extra(other);
	session_origin *origin = x ? sessions_tree_new_origin(other->id, from, -1) : NULL;
	if (!origin)
		return STATUS_NOMEM;
	const session_options o = options_of(other);
	const status added = add(all, c, &o, other->ttl, true, other->project->name, s, other->device, out, err);
	if (added != STATUS_OK) {
		free(origin);
		return added;
	}
	(*out)->extra->automatic = x->automatic;
	(*out)->extra->origin = origin;
	if (set_adapter((*out)->extra, x->adapter) != STATUS_OK) {
		unlink_entry(all, *out);
		*out = NULL;
		return STATUS_NOMEM;
	}
	sessions_tree_link(all, *out);
	return STATUS_OK;
}

const char *sessions_id(const session_entry *e)
{
	return e->id;
}

int sessions_device(const session_entry *e)
{
	return e->device;
}

int64_t sessions_tokens(const session_entry *e)
{
	return e->tokens;
}

bool sessions_is_bounded(const session_entry *e)
{
	return e->policy == POSITION_ERROR;
}

bool sessions_is_durable(const session_entry *e)
{
	return e->durable;
}

const char *sessions_adapter(const session_entry *e)
{
	const char *id = sessions_extra(e)->adapter;
	return id ? id : "";
}

bool sessions_use_adapter(const sessions *all, const char *id)
{
	const session_entry *e = all->newest;
	while (e && strcmp(sessions_adapter(e), id) != 0)
		e = e->older;
	return e != NULL;
}

automatic_snapshots sessions_automatic(const session_entry *e)
{
	return sessions_extra(e)->automatic;
}

void sessions_note_damage(session_entry *e, bool damaged)
{
	e->damaged = damaged;
}

session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, model_entry **c)
{
	error err = ERROR_INIT;
	session_entry *e = sessions_named(all, s, id);
	if (!e)
		return NULL;
	if (e->moving) {
		sessions_wait(e, s);
		return NULL;
	}
	if (e->busy) {
		stream_refuse(s, STATUS_CONFLICT, "session_busy", "id", "another request uses the session");
		return NULL;
	}
	if (!e->use->id[0]) {
		stream_refuse(s, STATUS_STORAGE, NULL, NULL, "the row of %s is damaged", e->id);
		return NULL;
	}
	if (catalog_open(all->parts.catalog, e->use->id, c, &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return NULL;
	}
	adapter_ref adapter = {0};
	if (sessions_adapter(e)[0] &&
	    adapters_find(all->parts.store, sessions_adapter(e), NULL, e->use->id, &adapter, &err) != STATUS_OK) {
		catalog_release(*c);
		*c = NULL;
		stream_error(s, &err, NULL);
		return NULL;
	}
	char state[PATH_MAX] = "";
	if (e->durable && store_session_path(all->parts.store, e->id, state, &err) != STATUS_OK) {
		catalog_release(*c);
		*c = NULL;
		stream_error(s, &err, NULL);
		return NULL;
	}
	if (tiers_away(e).on_disk)
		store_session_away_path(all->parts.store, e->id, state);
	if (e->durable && was_lost(all, e)) {
		tiers_set_idle(all, e, false);
		tiers_set_live(all, e, false);
	}
	const bool was_live = e->live;
	const uint8_t from = e->tier;
	if (!e->live && tiers_make_live(all, e, FLEET_ANY, &err) != STATUS_OK) {
		catalog_release(*c);
		*c = NULL;
		stream_error(s, &err, NULL);
		return NULL;
	}
	session_place *place = e->place;
	place->was_live = was_live;
	place->from = from;
	e->busy = true;
	tiers_set_idle(all, e, false);
	*ticket = (session_ticket){.options = options_of(e),
	                           .adapter = adapter,
	                           .away = &place->away,
	                           .taken_ns = clock_ns(),
	                           .fetch = !was_live && !place->away.blob && state[0]};
	snprintf(ticket->id, sizeof ticket->id, "%s", e->id);
	snprintf(ticket->state, sizeof ticket->state, "%s", state);
	return e;
}

void sessions_release(sessions *all, session_entry *e)
{
	sessions_cancel_snapshots(all, e);
	tiers_set_live(all, e, e->place->was_live);
	touch(all, e);
	set_free(all, e);
}

static void adopt_info(session_entry *e, const session_info *info)
{
	session_extra *x = e->extra;
	e->tokens = info->tokens;
	if (x && x->origin && x->origin->tokens < 0)
		x->origin->tokens = e->tokens;
	if (x) /* otherwise the model reads no source */
		x->source_tokens = info->source;
	e->state_bytes = info->state_bytes;
	e->snapshot_bytes = info->snapshot_bytes;
	e->place->export_bytes = info->export_bytes;
	set_options(e, &info->options);
	if (!e->durable)
		sessions_sync_snapshots(e, info);
}

void sessions_adopt(sessions *all, session_entry *e, const session_change *change)
{
	assert(e->busy);
	tiers_count_return(all, e);
	tiers_set_live(all, e, change->live);
	if (change->live)
		adopt_info(e, &change->info);
	touch(all, e);
}

status sessions_return(sessions *all, session_entry **taken, const session_ticket *ticket, const session_change *change,
                       error *err)
{
	session_entry *e = *taken;
	sessions_adopt(all, e, change);
	if (ticket->read)
		e->damaged = ticket->damaged;
	if (e->durable)
		sessions_cancel_snapshots(all, e);
	set_free(all, e);
	if (tiers_have_state(e))
		return STATUS_OK;
	unlink_entry(all, e);
	*taken = NULL;
	return error_set(err, STATUS_NOT_FOUND, "id", "the session was lost when the compute device failed");
}

void sessions_settled(sessions *all, session_entry *e, int64_t bytes)
{
	e->extra->stored.tokens = e->tokens;
	e->extra->stored.state_bytes = bytes;
	e->damaged = false;
	sessions_keep_snapshots(all, e);
	sessions_count_bytes(e);
	set_free(all, e);
}

void sessions_forget_away(sessions *all, session_entry *e, session_ticket *ticket)
{
	assert(e->durable);
	tiers_forget_away(all, e);
	ticket->away = NULL;
}

void sessions_revert(sessions *all, session_entry *e)
{
	assert(e->durable && is_stored(e));
	if (e->live)
		tiers_discard(all, e);
	e->tokens = e->extra->stored.tokens;
	sessions_cancel_snapshots(all, e);
	sessions_count_bytes(e);
	set_free(all, e);
}

status sessions_remove(sessions *all, session_entry *e, error *err)
{
	if (is_stored(e)) {
		status s = store_session_delete(all->parts.store, e->id, err);
		if (s != STATUS_OK && s != STATUS_NOT_FOUND)
			return s;
	}
	if (e->live)
		tiers_discard(all, e);
	unlink_entry(all, e);
	return STATUS_OK;
}

void sessions_tick(sessions *all)
{
	const uint64_t end = clock_ns() + TICK_NS;
	for (session_entry *e; (e = expiry_due(all)) && clock_ns() < end;)
		if (e->busy || e->moving || sessions_remove(all, e, NULL) != STATUS_OK)
			expiry_set(all, e, 1); /* try again */
	tiers_spill(all);
}

void sessions_drain(sessions *all)
{
	all->draining = true;
}

/* --- opening -------------------------------------------------------------------- */

/* Remaining seconds of a lifetime of e->ttl seconds that ends at wall-clock time `at`, which may have jumped. */
static int64_t remaining(const session_entry *e, int64_t at)
{
	int64_t left = at - clock_unix(), least = e->ttl < SESSIONS_GRACE_SECONDS ? e->ttl : SESSIONS_GRACE_SECONDS;
	return left < least ? least : left > e->ttl ? e->ttl : left;
}

static status fill_entry(session_entry *e, const json_t *row, const char **of)
{
	const char *policy;
	json_int_t tokens, source_tokens = 0, state_bytes, created, ttl;
	int explain;
	session_extra *x = e->extra;
	TRY(json_read_members(row, "{s:s, s:I, s?I, s:I, s:I, s:b, s:s, s:I}", "model", of, "tokens", &tokens,
	                      "source_tokens", &source_tokens, "state_bytes", &state_bytes, "created", &created,
	                      "explain", &explain, "position_policy", &policy, "ttl_seconds", &ttl));
	set_options(e, &(session_options){.policy = sessions_policy(policy), .explain = explain, .durable = true});
	e->tokens = x->stored.tokens = tokens;
	x->source_tokens = source_tokens;
	e->state_bytes = state_bytes;
	e->created = created;
	e->ttl = (int32_t)ttl;
	x->automatic = (automatic_snapshots){json_integer_value(json_object_get(row, "snapshot_every")),
	                                     json_is_true(json_object_get(row, "snapshot_before_calls"))};
	const json_t *stored = json_object_get(row, "stored_bytes"); /* earlier versions did not write it */
	x->stored.state_bytes = stored ? json_integer_value(stored) : state_bytes;
	TRY(set_adapter(x, json_string_value(json_object_get(row, "adapter"))));
	TRY(sessions_tree_read_origin(e, json_object_get(row, "origin")));
	return snapshots_read(&x->snapshots, json_object_get(row, "snapshots"));
}

/* A row that cannot be read becomes a session that can only be deleted. */
static bool read_entry(void *context, const json_t *row)
{
	sessions *all = context;
	const char *id = json_string_value(json_object_get(row, "id"));
	if (!id || !store_valid_name(id)) {
		log_line(LOG_ERROR, "a stored session is left out: its row is damaged");
		return true;
	}
	const char *of = "";
	session_entry *e = new_entry(id);
	status s = e && sessions_use_extra(e) ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = fill_entry(e, row, &of);
	if (s == STATUS_NOMEM) {
		if (e)
			free_entry(e);
		all->opened = s;
		return false;
	}
	if (s != STATUS_OK) {
		log_line(LOG_ERROR, "the row of the stored session %s is damaged", id);
		e->durable = e->damaged = true;
		e->extra->stored.tokens = 0; /* it is in the store, which removes it with the session */
		of = "";
		e->ttl = -1;
	}
	s = link_entry(all, e, of, project_of(row));
	if (s == STATUS_OK) {
		sessions_count_bytes(e);
		tiers_set_live(all, e, false);
		if (e->ttl >= 0)
			expiry_set(all, e, remaining(e, json_integer_value(json_object_get(row, "expires_at"))));
		return true;
	}
	free_entry(e);
	all->opened = s == STATUS_NOMEM ? s : all->opened;
	return all->opened == STATUS_OK;
}

const session_parts *sessions_parts(const sessions *all)
{
	return &all->parts;
}

status sessions_new(sessions **out, const session_parts *parts, error *err)
{
	bool more;
	sessions *all = *out = memory_new(1, sizeof *all);
	if (!all)
		return STATUS_NOMEM;
	all->parts = *parts;
	TRY(store_list(parts->store, STORE_SESSIONS, &(store_page){.ascending = true}, read_entry, all, &more, err));
	for (session_entry *e = all->oldest; e; e = e->newer)
		sessions_tree_link(all, e);
	return all->opened;
}

void sessions_free(sessions *all)
{
	if (!all)
		return;
	while (all->newest)
		unlink_entry(all, all->newest);
	string_table_fini(&all->ids);
	string_table_fini(&all->models);
	string_table_fini(&all->projects);
	free(all->expiring);
	free(all);
}
