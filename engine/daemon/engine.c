/* engine.c - to stop, each stage polls its condition every ENGINE_STOP_TICK_MS instead of chaining callbacks. The
 * result does not depend on the order in which streams, jobs and tasks end. */
#include "engine/daemon/engine.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/cache_folder.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/thread_check.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/dispatch.h"
#include "engine/daemon/generation/admission.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/library/storage.h"
#include "engine/daemon/net/connection.h"
#include "engine/daemon/net/listener.h"
#include "engine/daemon/prefix_files.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/queue/trace_outbox.h"
#include "engine/daemon/requests/audit.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/responses.h"
#include "engine/daemon/rooms.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/daemon/spare_memory.h"
#include "engine/daemon/successor.h"
#include "proto/short_slice.h"

enum { ENGINE_STOP_TICK_MS = 10 };
/* Time without work before a device that is lost beside others is worth a new process, which has to load every model
 * again. The device has been retried in this process three times by then. */
#define QUIET_NS 10000000000u

/* The engine with the handles of its loop. */
typedef struct running {
	engine engine;
	uv_timer_t tick; /* every ENGINE_TICK_MS: silent peers, expired sessions, job retries, progress of stopping */
	uv_signal_t terminate, interrupt;
	uv_work_t *first_work;     /* one for each thread of libuv's pool */
	atomic_int guarded;        /* threads of the pool that have started theirs */
	uv_prepare_t before_sleep; /* these two write the gathered frames of connections */
	uv_check_t after_sleep;
	spare_memory spare;
	uint64_t stop_ns; /* deadline for stopping; 0: not stopping */
	bool forced;      /* the deadline passed */
	bool reexecute;   /* re-execute after stopping */
	uint64_t busy_ns; /* time of the last work, or when no device wanted another process */
	uint64_t ticks;   /* sum of all devices' ticks at the last look */
} running;

/* --- stopping ------------------------------------------------------------------ */

static void on_prepare(uv_prepare_t *handle)
{
	connection_flush_all(&((running *)handle->data)->engine.net);
}

static void on_check(uv_check_t *handle)
{
	connection_flush_all(&((running *)handle->data)->engine.net);
}

static void close_loop(running *r)
{
	engine *e = &r->engine;
	fleet_stop(e->fleet);
	audit_close(e->audit);
	uv_close((uv_handle_t *)&r->tick, NULL);
	uv_close((uv_handle_t *)&e->net.deadline, NULL);
	uv_close((uv_handle_t *)&r->before_sleep, NULL);
	uv_close((uv_handle_t *)&r->after_sleep, NULL);
	uv_close((uv_handle_t *)&r->terminate, NULL);
	uv_close((uv_handle_t *)&r->interrupt, NULL);
}

static void poll_stopping(running *r)
{
	engine *e = &r->engine;
	if (clock_ns() > r->stop_ns) {
		log_line(LOG_WARN, "stopping without waiting any longer");
		r->forced = true;
		uv_stop(&e->loop);
	} else if (e->net.streams == 0 && job_machine_stopped(e->job_machine) && fleet_pending(e->fleet) == 0) {
		listener_close(e->listener);
		if (listener_connections(e->listener) == 0)
			close_loop(r);
	}
}

static void on_tick(uv_timer_t *timer);

static void stop(running *r)
{
	engine *e = &r->engine;
	e->net.draining = true;
	r->stop_ns = clock_ns() + (uint64_t)ENGINE_STOP_MS * 1000000;
	job_machine_stop(e->job_machine);
	listener_drain(e->listener);
	sessions_drain(e->sessions);
	idempotency_drain(e->net.idempotency);
	responses_drain(e->net.responses);
	uv_timer_start(&r->tick, on_tick, 0, ENGINE_STOP_TICK_MS);
}

/* True if nothing has run for QUIET_NS, and a new process would lose nothing. */
static bool is_quiet(running *r)
{
	const engine *e = &r->engine;
	device_stats all;
	fleet_snapshot(e->fleet, &all);
	const bool busy = all.scheduler.ticks != r->ticks || e->net.streams > 0 || fleet_pending(e->fleet) > 0 ||
	                  !job_machine_stopped(e->job_machine) || !sessions_are_stored(e->sessions);
	r->ticks = all.scheduler.ticks;
	r->busy_ns = busy ? clock_ns() : r->busy_ns;
	return clock_ns() - r->busy_ns >= QUIET_NS;
}

static void poll_device(running *r)
{
	engine *e = &r->engine;
	const bool wants = fleet_wants_process(e->fleet);
	if (!wants)
		r->busy_ns = clock_ns();
	if (!fleet_is_left(e->fleet) && !(wants && is_quiet(r)))
		return;
	log_line(LOG_WARN, "stopping to re-execute the engine%s",
	         wants ? ", because a device is lost and nothing runs" : "");
	r->reexecute = e->net.device_lost = true;
	stop(r);
}

static void on_tick(uv_timer_t *timer)
{
	running *r = timer->data;
	engine *e = &r->engine;
	death_log_alive(e->deaths, clock_ns());
	listener_tick(e->listener);
	sessions_tick(e->sessions);
	keys_tick(e->keys);
	store_tick(e->store);
	storage_tick(e->storage, &e->loop);
	idempotency_tick(e->net.idempotency, e->store);
	responses_tick(e->net.responses);
	job_machine_tick(e->job_machine);
	spare_memory_tick(&r->spare, &e->net);
	if (e->net.draining)
		poll_stopping(r);
	else
		poll_device(r);
}

static void on_signal(uv_signal_t *handle, int number)
{
	running *r = handle->data;
	engine *e = &r->engine;
	(void)number;
	if (e->net.draining && !r->reexecute) { /* a second stop request */
		r->stop_ns = 0;
		return;
	}
	log_line(LOG_INFO, "stopping");
	r->reexecute = false;
	if (!e->net.draining)
		stop(r);
}

/* --- starting ------------------------------------------------------------------- */

/* Threads of libuv's pool: its default, or the number in the environment. */
static int pool_threads(void)
{
	enum { POOL_DEFAULT = 4, POOL_MAX = 1024 };
	const char *text = getenv("UV_THREADPOOL_SIZE");
	int n = text ? atoi(text) : POOL_DEFAULT;
	return n < 1 ? 1 : n > POOL_MAX ? POOL_MAX : n;
}

/* First work of each pool thread. It waits for the others, so no thread runs two of them. */
static void guard_pool_thread(uv_work_t *work)
{
	enum { WAIT_MS = 200 };
	running *r = work->data;
	death_log_guard_thread();
	atomic_fetch_add(&r->guarded, 1);
	for (int ms = 0; atomic_load(&r->guarded) < r->engine.pool_threads && ms < WAIT_MS; ms++)
		uv_sleep(1);
}

static status start_pool(running *r, error *err)
{
	engine *e = &r->engine;
	const int n = e->pool_threads;
	r->first_work = memory_new((size_t)n, sizeof *r->first_work);
	if (!r->first_work)
		return STATUS_NOMEM;
	for (int i = 0; i < n; i++) {
		r->first_work[i].data = r;
		if (uv_queue_work(&e->loop, &r->first_work[i], guard_pool_thread, NULL) != 0)
			return error_set(err, STATUS_NOMEM, NULL, "cannot start the threads of the event loop");
	}
	return STATUS_OK;
}

/* Create all threads before the engine is ready; that of prefix_disk.h runs already. libuv and the OpenMP runtime end
 * the process if they cannot create a thread, which would otherwise happen during the first request. */
static status start_threads(running *r, error *err)
{
	engine *e = &r->engine;
	e->pool_threads = pool_threads();
	TRY(thread_check(fleet_threads(e->fleet) + e->pool_threads, err));
	TRY(fleet_start(e->fleet, &e->loop, err));
	return start_pool(r, err);
}

/* True if the data folder must exist; a successor's does. */
static bool must_exist(const engine_options *o)
{
	return o->data_must_exist || o->data_identity || o->before->address[0];
}

static status open_fleet(engine *e, error *err)
{
	const engine_options *o = e->options;
	device_options on[FLEET_MAX];
	for (int i = 0; i < o->n_devices; i++) {
		on[i] = (device_options){.backend = o->backend,
		                         .device = o->devices[i],
		                         .threads = o->threads,
		                         .limits = o->limits,
		                         .history = o->before->devices[i],
		                         .deaths = e->deaths,
		                         .cache_folder = e->cache_folder};
		on[i].limits.max_generations = admission_limit(o->limits.max_generations);
		on[i].limits.automatic_used = &e->automatic_used;
		on[i].limits.snapshot_used = &e->snapshot_used;
		on[i].limits.prefix_disk = e->prefix_disk;
	}
	return fleet_open(&e->fleet, on, o->n_devices, err);
}

static status open_parts(running *r, error *err)
{
	engine *e = &r->engine;
	const engine_options *o = e->options;
	TRY(admission_new(&e->admission, o->limits.max_generations));
	TRY(must_exist(o) ? store_open_existing(&e->store, o->data, o->data_identity, err)
	                  : store_open(&e->store, o->data, err));
	TRY(keys_new(&e->keys, e->store, err));
	e->net.store = e->store;
	e->net.loop = &e->loop;
	char path[PATH_MAX];
	store_death_log_path(e->store, path);
	TRY(death_log_open(&e->deaths, path, err));
	e->net.deaths = e->deaths;
	store_set_budget(e->store, o->data_budget);
	store_cache_folder(e->store, e->cache_folder);
	e->cache_budget = o->corpus_cache_bytes;
	cache_folder_collect(e->cache_folder, e->cache_budget);
	prefix_files_open(e);
	TRY(open_fleet(e, err));
	TRY(start_threads(r, err));
	TRY(idempotency_new(&e->net.idempotency));
	TRY(responses_new(&e->net.responses, &e->net, &o->responses, err));
	TRY(catalog_new(&e->catalog, e->store));
	catalog_set_prefix_disk(e->catalog, e->prefix_disk);
	const session_parts for_sessions = rooms_sessions(e);
	TRY(sessions_new(&e->sessions, &for_sessions, err));
	if (!(e->traces = trace_outbox_new()))
		return STATUS_NOMEM;
	const job_parts for_jobs = rooms_jobs(e);
	TRY(job_machine_new(&e->job_machine, &for_jobs, dispatch_job_kinds, err));
	rooms_connect(e);
	if (o->audit_log)
		TRY(audit_open(&e->audit, &e->loop, o->audit_log, err));
	if (o->state_key_file)
		TRY(seal_key_read(&e->generation.state_key, o->state_key_file, err));
	return storage_new(&e->storage, &e->library, &o->lost);
}

static status listen_and_watch(running *r, error *err)
{
	engine *e = &r->engine;
	char address[LISTENER_ADDRESS_BYTES];
	const char *before = e->options->before->address, *given = before[0] ? before : e->options->socket;
	snprintf(address, sizeof address, "unix:%s/engine.sock", e->options->data);
	r->busy_ns = clock_ns();
	e->net.request = dispatch_request;
	e->net.answered = dispatch_answered;
	e->net.owner = e;
	e->net.backend = fleet_backend_name(e->fleet);
	e->net.device = fleet_description(e->fleet);
	TRY(listener_open(&e->listener, &e->net, given ? given : address, e->options->allow_remote, err));
	r->tick.data = r->terminate.data = r->interrupt.data = r->before_sleep.data = r->after_sleep.data = r;
	uv_prepare_init(&e->loop, &r->before_sleep);
	uv_check_init(&e->loop, &r->after_sleep);
	uv_prepare_start(&r->before_sleep, on_prepare);
	uv_check_start(&r->after_sleep, on_check);
	uv_timer_init(&e->loop, &r->tick);
	uv_timer_init(&e->loop, &e->net.deadline);
	e->net.deadline.data = &e->net;
	uv_signal_init(&e->loop, &r->terminate);
	uv_signal_init(&e->loop, &r->interrupt);
	if (uv_timer_start(&r->tick, on_tick, ENGINE_TICK_MS, ENGINE_TICK_MS) != 0 ||
	    uv_signal_start(&r->terminate, on_signal, SIGTERM) != 0 ||
	    uv_signal_start(&r->interrupt, on_signal, SIGINT) != 0)
		return error_set(err, STATUS_IO, NULL, "cannot watch clock and signals");
	return STATUS_OK;
}

static void announce(const engine *e)
{
	if (e->options->before->devices[0].processes)
		log_line(LOG_WARN, "the engine has re-executed itself because a device failed (%d times so far)",
		         e->options->before->devices[0].processes);
	log_line(LOG_INFO, "%s on %s, listening on %s", fleet_backend_name(e->fleet), fleet_description(e->fleet),
	         listener_address(e->listener));
	printf("ready %s\n", listener_address(e->listener));
	fflush(stdout);
}

/* Collect what the next process must know. */
static void hand_over(const running *r, engine_end *end)
{
	const engine *e = &r->engine;
	end->forced = r->forced;
	death_log_pardon(e->deaths);
	end->reexecute = r->reexecute;
	if (!r->reexecute)
		return;
	end->next->n_devices = fleet_count(e->fleet);
	fleet_hand_over(e->fleet, end->next->devices);
	snprintf(end->next->address, sizeof end->next->address, "%s", listener_address(e->listener));
}

static void close_handle(uv_handle_t *handle, void *unused)
{
	(void)unused;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

static void close_parts(engine *e)
{
	audit_free(e->audit);
	storage_free(e->storage);
	job_machine_free(e->job_machine);
	trace_outbox_free(e->traces);
	sessions_free(e->sessions);
	catalog_free(e->catalog);
	idempotency_free(e->net.idempotency);
	responses_free(e->net.responses);
	admission_free(e->admission);
	listener_free(e->listener);
	fleet_free(e->fleet);
	prefix_disk_close(e->prefix_disk);
	death_log_close(e->deaths);
	keys_free(e->keys);
	store_close(e->store);
}

status engine_run(const engine_options *options, engine_end *end, error *err)
{
	end->forced = end->reexecute = end->no_data = false;
	running *r = memory_new(1, sizeof *r);
	if (!r)
		return STATUS_NOMEM;
	engine *e = &r->engine;
	e->options = options;
	e->started_ns = clock_ns();
	if (uv_loop_init(&e->loop) != 0) {
		free(r);
		return error_set(err, STATUS_IO, NULL, "cannot set up the event loop");
	}
	status s = open_parts(r, err);
	if (s == STATUS_OK)
		s = listen_and_watch(r, err);
	if (s == STATUS_OK) {
		announce(e);
		job_machine_tick(e->job_machine);
		short_slice_take(); /* sends a token at once, also on the core that computes the next one */
		uv_run(&e->loop, UV_RUN_DEFAULT);
	} else {
		if (e->fleet)
			fleet_stop(e->fleet);
		uv_walk(&e->loop, close_handle, NULL);
		uv_run(&e->loop, UV_RUN_DEFAULT);
	}
	end->no_data = s != STATUS_OK && !e->store && must_exist(options);
	hand_over(r, end);
	if (end->forced)
		return s; /* threads may still use what would be freed */
	close_parts(e);
	uv_loop_close(&e->loop);
	free(r->first_work);
	free(r);
	return s;
}
