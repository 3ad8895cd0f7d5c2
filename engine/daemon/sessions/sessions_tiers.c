/* sessions_tiers.c - where the state of a session is, and how it moves.
 *
 *   in a slot      ──▶ executor: copy   ──▶  in host memory   the session that is idle longest, if a slot is needed
 *   in host memory ──▶ pool: write      ──▶  on the disk      the same, while host memory is over its budget
 *
 * The way back is a request's ticket (session_ticket.h). The stored state of a durable session is its state on the
 * disk, so only the copy in memory is freed.
 *
 * Nothing else uses a session while it moves: requests for it wait and then begin again. A move that fails leaves the
 * session where it was. */
#include "engine/daemon/sessions/sessions_private.h"

#include <assert.h>
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"

enum {
	SPILL_BYTES = 64 << 20, /* that host memory may be over its budget, while they are written to the disk */
	BLOB_BYTES = 72,        /* maximum size of an exported state besides its arrays */
	HELD_BYTES = 640        /* memory of a session besides its arrays, with what malloc adds */
};
#define DISK_RETRY_NS 1000000000u

/* --- counts ------------------------------------------------------------------------------ */

session_away tiers_away(const session_entry *e)
{
	return e->place ? e->place->away : (session_away){.on_disk = e->tier_bytes > 0, .bytes = (size_t)e->tier_bytes};
}

static session_tier tier_of(const session_entry *e)
{
	const bool held = tiers_away(e).blob;
	return e->live || (e->moving && !held) ? TIER_DEVICE : held ? TIER_HOST : TIER_DISK;
}

/* Host memory of the session once it has left its slot. */
static int64_t held_bytes(const session_entry *e)
{
	return e->snapshot_bytes + HELD_BYTES;
}

static int64_t bytes_in(const session_entry *e, session_tier tier)
{
	const session_away a = tiers_away(e);
	return tier == TIER_DEVICE           ? e->state_bytes
	       : tier == TIER_HOST && a.held ? held_bytes(e)
	       : a.blob || a.on_disk         ? (int64_t)a.bytes
	                                     : 0;
}

bool tiers_have_state(const session_entry *e)
{
	const session_away a = tiers_away(e);
	return e->live || e->moving || e->durable || a.blob || a.on_disk;
}

void tiers_leave(sessions *all, session_entry *e)
{
	if (e->tier == TIERS)
		return;
	all->stats.sessions[e->tier]--;
	all->stats.bytes[e->tier] -= e->tier_bytes;
	e->tier = TIERS;
}

static void count_place(sessions *all, session_entry *e)
{
	tiers_leave(all, e);
	e->tier = tier_of(e);
	e->tier_bytes = bytes_in(e, e->tier);
	all->stats.sessions[e->tier]++;
	all->stats.bytes[e->tier] += e->tier_bytes;
}

static status use_place(session_entry *e)
{
	const session_away away = tiers_away(e);
	if (e->place)
		return STATUS_OK;
	e->place = memory_new(1, sizeof *e->place);
	if (!e->place)
		return STATUS_NOMEM;
	e->place->away = away;
	return STATUS_OK;
}

/* Free the place of a counted entry that needs none. */
static void leave_place(session_entry *e)
{
	session_place *p = e->place;
	if (!p || e->busy || e->moving || e->live || p->away.blob || p->away.snapshots || p->waiting)
		return;
	free(p->eviction);
	free(p);
	e->place = NULL;
}

void tiers_set_live(sessions *all, session_entry *e, bool live)
{
	if (live != e->live)
		fleet_count_sessions(all->parts.fleet, e->device, live - e->live);
	e->live = live;
	count_place(all, e);
}

void tiers_set_idle(sessions *all, session_entry *e, bool idle)
{
	session_place *p = e->place;
	if (!p)
		return;
	idle_list *list = p->list;
	if (list) {
		*(p->idle_previous ? &p->idle_previous->place->idle_next : &list->first) = p->idle_next;
		*(p->idle_next ? &p->idle_next->place->idle_previous : &list->last) = p->idle_previous;
	}
	p->list = list = !idle ? NULL : e->live ? &all->idle[e->device] : p->away.blob ? &all->held : NULL;
	if (!list) {
		leave_place(e);
		return;
	}
	p->idle_since = ++all->idle_clock;
	p->idle_next = NULL;
	p->idle_previous = list->last;
	*(list->last ? &list->last->place->idle_next : &list->first) = e;
	list->last = e;
}

void tiers_count_return(sessions *all, session_entry *e)
{
	sessions_stats *s = &all->stats;
	session_place *p = e->place;
	const double seconds = (double)p->away.returned_ns * 1e-9;
	int bucket = 0;
	if (!p->away.returned_ns)
		return;
	p->away.returned_ns = 0;
	while (bucket < DEVICE_TICK_BUCKETS && seconds > device_tick_bounds[bucket])
		bucket++;
	s->returns[bucket]++;
	s->return_seconds += seconds;
	s->moves[p->from][TIER_DEVICE]++;
}

static session_transfer state_of(const session_entry *e)
{
	const session_away *a = &e->place->away;
	return (session_transfer){.blob = a->blob, .bytes = a->bytes, .held = a->held};
}

/* Free the state in host memory. */
static void free_state(session_entry *e)
{
	session_transfer t = state_of(e);
	scheduler_transfer_fini(&t);
	e->place->away.blob = NULL;
	e->place->away.held = NULL;
}

void tiers_forget_away(sessions *all, session_entry *e)
{
	char path[PATH_MAX];
	if (tiers_away(e).on_disk) {
		store_session_away_path(all->parts.store, e->id, path);
		store_session_discard(path);
	}
	if (!e->place)
		return;
	free_state(e);
	scheduler_snapshots_free(e->place->away.snapshots);
	e->place->away = (session_away){0};
}

/* --- requests that wait for a move ---------------------------------------------------------- */

void sessions_wait(session_entry *e, stream *s)
{
	stream **link = &e->place->waiting;
	while (*link)
		link = &(*link)->next_waiting;
	s->next_waiting = NULL;
	*link = s;
}

static bool is_awaited(const session_entry *e)
{
	return e->place && e->place->waiting;
}

/* Begin the requests that wait for the session again. One of them may remove it. */
static void wake(session_entry *e)
{
	if (!is_awaited(e))
		return;
	stream *s = e->place->waiting;
	e->place->waiting = NULL;
	leave_place(e);
	for (stream *next; s; s = next) {
		next = s->next_waiting;
		if (s->cancelled && !stream_detached(s))
			stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
		else
			s->begin(s);
	}
}

/* --- from a slot to host memory --------------------------------------------------------------- */

static void run_discard(task *t, device *d)
{
	const eviction *x = (eviction *)t;
	session *live = device_scheduler(d) ? scheduler_session_find(device_scheduler(d), x->id) : NULL;
	if (live)
		scheduler_session_delete(device_scheduler(d), live, NULL);
}

static void discarded(task *t)
{
	free(t);
}

/* The executor runs tasks in order, so the next task that uses the session does not find it on the device. */
void tiers_discard(sessions *all, session_entry *e)
{
	eviction *x = e->place->eviction;
	e->place->eviction = NULL;
	x->task = (task){.run = run_discard, .done = discarded};
	snprintf(x->id, sizeof x->id, "%s", e->id);
	executor_control(fleet_executor(all->parts.fleet, e->device), &x->task);
	tiers_set_idle(all, e, false);
	tiers_set_live(all, e, false);
	leave_place(e);
}

/* Copy the next step. Executor thread. */
static bool prepare_move(task *t, device *d)
{
	eviction *x = (eviction *)t;
	scheduler *s = device_scheduler(d);
	session *live = s ? scheduler_session_find(s, x->id) : NULL;
	x->result = live ? scheduler_session_leave_step(s, live, &x->out, &x->snapshots, NULL) : STATUS_NOT_FOUND;
	return x->result != STATUS_OK || x->out.done;
}

static void run_move(task *t, device *d)
{
	eviction *x = (eviction *)t;
	(void)d;
	if (x->result != STATUS_OK)
		scheduler_transfer_fini(&x->out);
}

static void moved(task *t)
{
	eviction *x = (eviction *)t;
	sessions *all = x->all;
	session_entry *e = x->entry;
	e->moving = false;
	all->moving_bytes -= x->expected;
	if (x->result == STATUS_OK) {
		e->place->away = (session_away){
		    .blob = x->out.blob, .held = x->out.held, .bytes = x->out.bytes, .snapshots = x->snapshots};
		all->stats.moves[TIER_DEVICE][TIER_HOST]++;
	}
	const bool stays = x->result != STATUS_OK && x->result != STATUS_NOT_FOUND;
	e->place->eviction = stays ? x : NULL;
	if (!stays)
		free(x);
	tiers_set_live(all, e, stays);
	tiers_set_idle(all, e, true);
	if (!tiers_have_state(e) && !is_awaited(e))
		sessions_remove(all, e, NULL);
	else
		wake(e); /* a request that finds the session lost removes it */
	tiers_spill(all);
}

/* Bytes of the state on the disk. */
static int64_t away_bytes(const session_entry *e)
{
	return e->place->export_bytes + BLOB_BYTES;
}

static void move(sessions *all, session_entry *e)
{
	eviction *x = e->place->eviction;
	e->place->eviction = NULL;
	*x = (eviction){.task = {.prepare = prepare_move, .run = run_move, .done = moved},
	                .all = all,
	                .entry = e,
	                .expected = held_bytes(e)};
	snprintf(x->id, sizeof x->id, "%s", e->id);
	executor_control(fleet_executor(all->parts.fleet, e->device), &x->task);
	e->moving = true;
	all->moving_bytes += x->expected;
	tiers_set_idle(all, e, false);
	tiers_set_live(all, e, false);
}

static bool disk_fails(const sessions *all)
{
	return all->disk_error.status != STATUS_OK && clock_ns() < all->disk_retry_ns;
}

/* Return how many bytes a session may have that moves to host memory or to the disk, when `coming` leaves its place.
 * *unwritten: how many it may have in host memory if no other session is written to the disk. */
static int64_t find_room(const sessions *all, const session_entry *coming, int64_t *unwritten)
{
	const session_parts *p = &all->parts;
	int64_t bytes[] = {all->stats.bytes[TIER_DEVICE], all->stats.bytes[TIER_HOST], all->stats.bytes[TIER_DISK]};
	if (coming->tier < TIERS)
		bytes[coming->tier] -= coming->tier_bytes;
	*unwritten = p->memory_bytes - bytes[TIER_HOST] - all->moving_bytes;
	if (coming->tier == TIER_HOST) /* they change places, and may differ in size */
		*unwritten += SPILL_BYTES;
	if (*unwritten < -SPILL_BYTES || disk_fails(all))
		return *unwritten;
	return *unwritten + p->disk_bytes - bytes[TIER_DISK];
}

/* Return the session that has been idle longest on an open device and may move, or on any device if none is open.
 * NULL: there is none. room, unwritten: of find_room. */
static session_entry *find_longest_idle(const sessions *all, int64_t room, int64_t unwritten)
{
	const fleet *f = all->parts.fleet;
	const bool open = fleet_is_open(f);
	session_entry *best = NULL;
	for (int i = 0; i < fleet_count(f); i++) {
		session_entry *e = !open || device_is_open(fleet_device(f, i)) ? all->idle[i].first : NULL;
		while (e && !e->durable && held_bytes(e) > unwritten && away_bytes(e) > room)
			e = e->place->idle_next;
		if (e && (!best || e->place->idle_since < best->place->idle_since))
			best = e;
	}
	return best;
}

/* Free a slot for `coming`, if one can be. */
static status free_slot(sessions *all, session_entry *coming, error *err)
{
	int64_t unwritten;
	const int64_t room = find_room(all, coming, &unwritten);
	session_entry *e = find_longest_idle(all, room, unwritten);
	if (!e && all->idle[coming->device].first && all->disk_error.status != STATUS_OK &&
	    (disk_fails(all) || unwritten < -SPILL_BYTES))
		return error_set(err, all->disk_error.status, NULL, "a session would have to move to the disk: %s",
		                 error_message(&all->disk_error));
	if (!e)
		return STATUS_OK;
	coming->device = e->device;
	if (e->durable && held_bytes(e) > unwritten) {
		all->stats.moves[TIER_DEVICE][TIER_DISK]++;
		tiers_discard(all, e);
	} else {
		move(all, e);
	}
	return STATUS_OK;
}

/* Choose the device of a new slot: `preferred` if it is open and has a free one, otherwise the one with most free
 * slots. */
static status place_session(sessions *all, session_entry *e, int preferred, error *err)
{
	fleet *f = all->parts.fleet;
	const int most = all->parts.max_live;
	const bool stays =
	    preferred != FLEET_ANY && fleet_sessions(f, preferred) < most && device_is_open(fleet_device(f, preferred));
	e->device = (int8_t)(stays ? preferred : fleet_emptiest(f));
	return fleet_sessions(f, e->device) < most ? STATUS_OK : free_slot(all, e, err);
}

status tiers_make_live(sessions *all, session_entry *e, int preferred, error *err)
{
	status s = use_place(e);
	if (s == STATUS_OK && !e->place->eviction)
		e->place->eviction = memory_new(1, sizeof *e->place->eviction);
	if (s != STATUS_OK || !e->place->eviction)
		s = error_set(err, STATUS_NOMEM, NULL, "out of memory");
	else
		s = place_session(all, e, preferred, err);
	if (s == STATUS_OK)
		tiers_set_live(all, e, true);
	else
		leave_place(e);
	return s;
}

/* --- from host memory to the disk ---------------------------------------------------------------- */

static void pool_spill(uv_work_t *work)
{
	sessions *all = work->data;
	spill *x = &all->spill;
	for (x->written = 0; x->written < x->n; x->written++) {
		char path[PATH_MAX];
		void *whole = NULL;
		const session_entry *e = x->entries[x->written];
		session_transfer t = state_of(e);
		store_session_away_path(all->parts.store, e->id, path);
		if (t.held && scheduler_transfer_whole(&t, &whole) != STATUS_OK)
			x->result = error_set(&x->error, STATUS_NOMEM, NULL, "out of memory");
		else
			x->result = store_session_put_away(path, whole ? whole : t.blob, t.bytes, &x->error);
		free(whole);
		if (x->result != STATUS_OK)
			return;
	}
}

/* Record whether the disk could be written. */
static void note_disk(sessions *all)
{
	const spill *x = &all->spill;
	if (x->result == STATUS_OK) {
		all->disk_error = (error)ERROR_INIT;
		return;
	}
	if (all->disk_error.status == STATUS_OK)
		log_line(LOG_ERROR, "idle sessions stay in memory: %s", error_message(&x->error));
	all->disk_error = (error)ERROR_INIT;
	error_set(&all->disk_error, x->result == STATUS_FULL ? STATUS_FULL : STATUS_STORAGE, NULL, "%s",
	          error_message(&x->error));
	all->disk_retry_ns = clock_ns() + DISK_RETRY_NS;
}

static void spilled(uv_work_t *work, int cancelled)
{
	sessions *all = work->data;
	spill now = all->spill;
	(void)cancelled; /* cannot be cancelled */
	note_disk(all);
	all->spill.n = 0;
	for (int i = 0; i < now.n; i++) {
		session_entry *e = now.entries[i];
		e->moving = false;
		if (i < now.written) {
			free_state(e);
			e->place->away.on_disk = true;
			all->stats.moves[TIER_HOST][TIER_DISK]++;
		}
		count_place(all, e);
		tiers_set_idle(all, e, true);
	}
	for (int i = 0; i < now.n; i++)
		wake(now.entries[i]);
	tiers_spill(all);
}

/* Collect the sessions to be written next, longest idle first. Return their number. */
static int gather_spilled(sessions *all)
{
	int n = 0;
	int64_t over = all->stats.bytes[TIER_HOST] - all->parts.memory_bytes,
	        room = all->parts.disk_bytes - all->stats.bytes[TIER_DISK];
	for (session_entry *e = all->held.first, *next; e && over > 0 && n < SPILL_MOST; e = next) {
		next = e->place->idle_next;
		const int64_t bytes = (int64_t)e->place->away.bytes, memory = e->tier_bytes;
		if (!e->durable && bytes > STORE_SESSION_BYTES)
			continue;
		if (!e->durable && bytes > room)
			break;
		over -= memory;
		tiers_set_idle(all, e, false);
		if (e->durable) {
			tiers_forget_away(all, e);
			count_place(all, e);
			leave_place(e);
			all->stats.moves[TIER_HOST][TIER_DISK]++;
			continue;
		}
		room -= bytes;
		e->moving = true;
		all->spill.entries[n++] = e;
	}
	return n;
}

void tiers_spill(sessions *all)
{
	spill *x = &all->spill;
	if (x->n || all->draining || disk_fails(all))
		return;
	x->n = gather_spilled(all);
	x->result = STATUS_OK;
	x->error = (error)ERROR_INIT;
	x->work.data = all;
	if (!x->n || uv_queue_work(all->parts.loop, &x->work, pool_spill, spilled) == 0)
		return;
	x->written = 0;
	x->result = error_set(&x->error, STATUS_NOMEM, NULL, "out of memory");
	note_disk(all);
	for (int i = 0; i < x->n; i++) {
		x->entries[i]->moving = false;
		tiers_set_idle(all, x->entries[i], true);
	}
	x->n = 0;
}
