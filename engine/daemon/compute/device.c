#include "engine/daemon/compute/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"

const double device_tick_bounds[DEVICE_TICK_BUCKETS] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                        0.05,   0.1,   0.2,   0.5,   1,    5};

struct device {
	device_options options;
	backend *backend;            /* for serving */
	backend *training_backend;   /* a second stream of the device if it has streams, otherwise equal to `backend` */
	scheduler *scheduler;        /* NULL only while the device cannot be opened */
	adapter_cache adapters;
	device_background *work;     /* work for background turns; NULL: none */
	uint64_t retry_ns, pause_ns; /* while not open and not left: time of the next attempt, and the current delay */
	bool closed;                 /* not counted in *options.n_open */
	uint64_t opened_ns;
	char name[16], description[96];
	bool bf16;
	/* Loading in the current turn: asked: a load was requested; spent: its time is used up; failed_id: the load
	 * that failed. waits: a task waits for another thread. */
	bool asked, spent, waits;
	char failed_id[SCHEDULER_ID_BYTES]; /* "": none */
	char loading[SCHEDULER_ID_BYTES];   /* the model being loaded, as the death log has it; "": none */
	error failed;
	pthread_mutex_t mutex; /* guards shared */
	device_stats stats, shared;
};

#define SECOND_NS 1000000000u
enum { WAIT_NS = 1000000 };
#define LONGEST_PAUSE_NS (300 * (uint64_t)SECOND_NS)

/* --- opening ------------------------------------------------------------------- */

static status open_backends(device *d, error *err)
{
	const device_options *o = &d->options;
	backend_options where = {.device = o->device};
	TRY(backend_open(&d->backend, o->backend, &where, o->cpu, o->threads, err));
	d->training_backend = d->backend;
	if (d->backend->host_memory)
		return STATUS_OK;
	where.background = true;
	TRY(backend_open(&d->training_backend, d->backend->name, &where, o->cpu, o->threads, err));
	if (o->cache_folder && d->training_backend->choose_fastest)
		d->training_backend->choose_fastest(d->training_backend, o->cache_folder);
	return STATUS_OK;
}

static void close_backends(device *d)
{
	if (d->training_backend != d->backend)
		backend_close(d->training_backend);
	backend_close(d->backend);
	d->backend = d->training_backend = NULL;
}

/* Default rows of a step. On a GPU the time of a step hardly depends on the rows; on a CPU it is proportional to
 * them. */
enum { BATCH_ON_CPU = 64, BATCH_ON_DEVICE = 256 };

static void set_closed(device *d, bool closed)
{
	if (d->options.n_open)
		atomic_fetch_add(d->options.n_open, d->closed - closed);
	d->closed = closed;
}

/* True if another device of the process is open. d is not. */
static bool has_others(const device *d)
{
	return d->options.n_open && atomic_load(d->options.n_open) > 0;
}

static status device_start(device *d, error *err)
{
	status s = open_backends(d, err);
	scheduler_limits limits = d->options.limits;
	if (s == STATUS_OK && limits.max_batch == 0)
		limits.max_batch = d->backend->host_memory ? BATCH_ON_CPU : BATCH_ON_DEVICE;
	if (s == STATUS_OK)
		s = scheduler_new(&d->scheduler, d->backend, &limits);
	d->opened_ns = clock_ns();
	set_closed(d, s != STATUS_OK);
	if (s == STATUS_OK)
		return s;
	close_backends(d);
	return error_set(err, s, NULL, "cannot set up the scheduler: %s", status_text(s));
}

/* --- a device that does not open -------------------------------------------------- */

/* Decide whether this process is to be replaced, and when. */
static bool device_leave_process(device *d)
{
	device_history *h = &d->options.history;
	d->stats.wants_process = strcmp(d->name, "cpu") != 0 && h->in_vain < DEVICE_MAX_PROCESSES;
	if (!d->stats.wants_process || has_others(d))
		return false;
	const uint64_t wait = h->in_vain ? (uint64_t)SECOND_NS << (h->in_vain - 1) : 0;
	d->stats.left_ns = clock_ns() + wait;
	log_line(
	    LOG_ERROR,
	    "compute device %d does not open in this process: %s; the engine re-executes itself%s (attempt %d of %d)",
	    d->options.device, d->stats.problem, wait ? " after a pause" : "", h->in_vain + 1, DEVICE_MAX_PROCESSES);
	return true;
}

static void note_problem(device *d, const error *err)
{
	snprintf(d->stats.problem, sizeof d->stats.problem, "%.319s", error_message(err));
	if (d->stats.left_ns || device_leave_process(d))
		return;
	d->pause_ns = !d->pause_ns                         ? SECOND_NS
	              : d->pause_ns < LONGEST_PAUSE_NS / 2 ? 2 * d->pause_ns
	                                                   : LONGEST_PAUSE_NS;
	d->retry_ns = clock_ns() + d->pause_ns;
	log_line(LOG_ERROR, "compute device %d cannot be used and is tried again in %d s%s: %s", d->options.device,
	         (int)(d->pause_ns / SECOND_NS),
	         d->stats.wants_process ? ", and by a new process as soon as nothing would be lost" : "",
	         d->stats.problem);
}

/* --- opening and closing ------------------------------------------------------------ */

status device_open(device **out, const device_options *options, error *err)
{
	*out = NULL;
	device *d = memory_new(1, sizeof *d);
	if (!d)
		return STATUS_NOMEM;
	d->options = *options;
	d->adapters.limit = ADAPTER_CACHE_BYTES;
	if (!d->options.cpu)
		d->options.cpu = cpu_open;
	pthread_mutex_init(&d->mutex, NULL);
	d->stats.restarts = options->history.restarts;
	d->stats.processes = options->history.processes;
	if (d->options.history.name[0])
		d->options.backend = d->options.history.name;
	error reason = ERROR_INIT;
	status s = device_start(d, &reason);
	if (s != STATUS_OK && !d->options.history.processes) {
		device_close(d);
		return error_set(err, s, reason.param, "%s", error_message(&reason));
	}
	/* Store what is constant during the engine's life. */
	const device_history *h = &d->options.history;
	d->bf16 = d->backend ? d->backend->bf16 : h->bf16;
	snprintf(d->name, sizeof d->name, "%s", d->backend ? d->backend->name : h->name);
	snprintf(d->description, sizeof d->description, "%s", d->backend ? d->backend->device : h->description);
	d->options.backend = d->name; /* a device that fails later must not be replaced by another kind */
	if (s != STATUS_OK)
		note_problem(d, &reason);
	d->shared = d->stats;
	*out = d;
	return STATUS_OK;
}

void device_close(device *d)
{
	if (!d)
		return;
	scheduler_free(d->scheduler);
	adapter_cache_fini(&d->adapters);
	close_backends(d);
	pthread_mutex_destroy(&d->mutex);
	free(d);
}

const char *device_backend_name(const device *d)
{
	return d->name;
}

const char *device_description(const device *d)
{
	return d->description;
}

int device_number(const device *d)
{
	return d->options.device;
}

bool device_bf16(const device *d)
{
	return d->bf16;
}

/* --- the snapshot ---------------------------------------------------------------- */

void device_snapshot(device *d, device_stats *out)
{
	pthread_mutex_lock(&d->mutex);
	*out = d->shared;
	pthread_mutex_unlock(&d->mutex);
}

bool device_is_open(device *d)
{
	pthread_mutex_lock(&d->mutex);
	const bool is = d->shared.problem[0] == 0;
	pthread_mutex_unlock(&d->mutex);
	return is;
}

bool device_has_loaded(device *d, const char *id)
{
	bool found = false;
	pthread_mutex_lock(&d->mutex);
	for (int i = 0; i < d->shared.n_loaded; i++)
		found |= strcmp(d->shared.loaded[i], id) == 0;
	pthread_mutex_unlock(&d->mutex);
	return found;
}

bool device_is_left(device *d)
{
	pthread_mutex_lock(&d->mutex);
	const uint64_t left_ns = d->shared.left_ns;
	pthread_mutex_unlock(&d->mutex);
	return left_ns && clock_ns() >= left_ns;
}

bool device_wants_process(device *d)
{
	pthread_mutex_lock(&d->mutex);
	const bool wants = d->shared.wants_process;
	pthread_mutex_unlock(&d->mutex);
	return wants;
}

void device_hand_over(device *d, device_history *out)
{
	device_stats now;
	device_snapshot(d, &now);
	*out = (device_history){.restarts = now.restarts,
	                        .processes = now.processes + 1,
	                        .in_vain = d->options.history.in_vain + 1,
	                        .bf16 = d->bf16};
	memcpy(out->name, d->name, sizeof out->name);
	memcpy(out->description, d->description, sizeof out->description);
}

/* Remove from the snapshot the models that the scheduler has unloaded. */
static void prune_loaded(device *d)
{
	int kept = 0;
	for (int i = 0; i < d->stats.n_loaded; i++)
		if (d->scheduler && scheduler_model_loaded(d->scheduler, d->stats.loaded[i]))
			memmove(d->stats.loaded[kept++], d->stats.loaded[i], SCHEDULER_ID_BYTES);
	d->stats.n_loaded = kept;
}

static void publish(device *d)
{
	if (d->scheduler)
		scheduler_stats_read(d->scheduler, &d->stats.scheduler);
	pthread_mutex_lock(&d->mutex);
	d->shared = d->stats;
	pthread_mutex_unlock(&d->mutex);
}

static void publish_loaded(device *d)
{
	prune_loaded(d);
	publish(d);
}

/* --- models and training ------------------------------------------------------- */

backend *device_training_backend(device *d)
{
	return d->training_backend;
}

scheduler *device_scheduler(const device *d)
{
	return d->scheduler;
}

/* Any fault in a stored model's folder is reported as damage, because the request itself is valid. */
static status blame_storage(const char *id, status s, error *err)
{
	if (s == STATUS_OK || s == STATUS_BUSY || s == STATUS_CONFLICT || s == STATUS_NOMEM || s == STATUS_DEVICE)
		return s;
	error reason = ERROR_INIT;
	error_set(&reason, STATUS_STORAGE, "model", "the model \"%s\" cannot be loaded: %.250s", id,
	          err->message[0] ? err->message : status_text(s));
	log_line(LOG_ERROR, "%s", reason.message);
	*err = reason;
	return STATUS_STORAGE;
}

/* Update the snapshot: the scheduler has loaded the model, or has unloaded it to reload it with other weights. */
static void note_models(device *d, const char *id, bool loaded)
{
	prune_loaded(d);
	bool known = false;
	for (int i = 0; i < d->stats.n_loaded; i++)
		known |= strcmp(d->stats.loaded[i], id) == 0;
	if (loaded && !known && d->stats.n_loaded < DEVICE_MAX_MODELS)
		snprintf(d->stats.loaded[d->stats.n_loaded++], SCHEDULER_ID_BYTES, "%s", id);
	publish(d);
}

/* Store the result for the other tasks of this turn that wait for this model. */
static void keep_failure(device *d, const char *id, status s, const error *err)
{
	snprintf(d->failed_id, sizeof d->failed_id, "%s", id);
	d->failed = *err;
	error_set(&d->failed, s, NULL, "%s", status_text(s));
}

static void load_name(const char *id, char *out, size_t size)
{
	snprintf(out, size, "load %s", id);
}

/* Count deaths of the engine during this load. False: there were too many, which becomes the result of the load. */
static bool begin_load(device *d, const char *id)
{
	char work[SCHEDULER_ID_BYTES + 8];
	error err = ERROR_INIT;
	load_name(id, work, sizeof work);
	if (death_log_refuses(d->options.deaths, work)) {
		error_set(&err, STATUS_UNAVAILABLE, NULL,
		          "the engine died %d times while it loaded %.64s; the model is refused for %d minutes",
		          DEATH_LOG_LIMIT, id, DEATH_LOG_PAUSE_SECONDS / 60);
		keep_failure(d, id, err.status, &err);
		return false;
	}
	if (strcmp(d->loading, id) != 0) {
		snprintf(d->loading, sizeof d->loading, "%s", id);
		death_log_begin(d->options.deaths, work);
	}
	return true;
}

static void end_load(device *d, const char *id)
{
	char work[SCHEDULER_ID_BYTES + 8];
	if (strcmp(d->loading, id) != 0)
		return;
	d->loading[0] = 0;
	load_name(id, work, sizeof work);
	death_log_forget(d->options.deaths, work);
	death_log_end(d->options.deaths, work);
}

bool device_prepare(device *d, const char *id, const char *folder, dtype weights)
{
	if (!d->scheduler || strcmp(d->failed_id, id) == 0)
		return true;
	bool loaded = scheduler_model_loaded(d->scheduler, id);
	if (d->spent && !loaded)
		return false;
	if (!loaded && !begin_load(d, id))
		return true;
	for (uint64_t began = clock_ns(); clock_ns() - began < DEVICE_LOAD_NS; loaded = false) {
		served_model *m;
		error err = ERROR_INIT;
		status s = scheduler_model_step(d->scheduler, id, folder, weights, &m, &err);
		s = blame_storage(id, s, &err);
		if (s != STATUS_OK)
			keep_failure(d, id, s, &err);
		if ((m && !loaded) || s != STATUS_OK)
			note_models(d, id, m != NULL);
		if (m || s != STATUS_OK)
			end_load(d, id);
		if (m || s != STATUS_OK)
			return true;
		if (!scheduler_model_loading(d->scheduler, id))
			return false; /* another model is being loaded */
		d->asked = true;
	}
	d->spent = true;
	return false;
}

status device_model(device *d, const char *id, const char *folder, dtype weights, served_model **out, error *err)
{
	*out = NULL;
	if (!d->scheduler)
		return error_set(err, STATUS_DEVICE, NULL, "the compute device cannot be used%s: %.250s",
		                 d->stats.left_ns ? " until the engine has restarted" : "", d->stats.problem);
	if (strcmp(d->failed_id, id) == 0)
		return error_set(err, d->failed.status, d->failed.param, "%s", d->failed.message);
	error reason = ERROR_INIT;
	bool loaded = scheduler_model_loaded(d->scheduler, id);
	status s = blame_storage(id, scheduler_model(d->scheduler, id, folder, weights, out, &reason), &reason);
	if (s != STATUS_OK || !loaded)
		note_models(d, id, s == STATUS_OK);
	return s == STATUS_OK ? s : error_set(err, s, reason.param, "%s", error_message(&reason));
}

adapter_cache *device_adapters(device *d)
{
	return &d->adapters;
}

void device_wait(device *d, const char *id)
{
	d->waits = true;
	d->asked |= d->scheduler && scheduler_model_loading(d->scheduler, id);
}

status device_check_idle(device *d, const char *id, error *err)
{
	return d->scheduler ? scheduler_model_check_idle(d->scheduler, id, err) : STATUS_OK;
}

status device_unload(device *d, const char *id, error *err)
{
	if (!d->scheduler)
		return STATUS_OK;
	status s = scheduler_model_unload(d->scheduler, id, err);
	publish_loaded(d);
	return s;
}

void device_enter_background(device *d, device_background *b)
{
	d->work = b;
	publish(d);
}

void device_leave_background(device *d, const device_background *b)
{
	if (d->work != b)
		return;
	d->work = NULL;
	d->stats.training_tokens_per_second = 0;
	publish(d);
}

void device_count_training(device *d, int64_t steps, int64_t tokens, double tokens_per_second)
{
	d->stats.training_steps += (uint64_t)steps;
	d->stats.training_tokens += (uint64_t)tokens;
	d->stats.training_tokens_per_second = tokens_per_second;
	publish(d);
}

/* --- turns --------------------------------------------------------------------- */

static void open_again(device *d)
{
	error err = ERROR_INIT;
	if (device_start(d, &err) == STATUS_OK) {
		log_line(LOG_WARN, "compute device %d failed and was opened again", d->options.device);
		d->stats.problem[0] = 0;
		d->stats.wants_process = false;
		d->pause_ns = 0;
	} else {
		note_problem(d, &err);
	}
	publish_loaded(d);
}

/* The device's memory is lost; the scheduler has ended the generations. */
static void restart(device *d)
{
	if (d->work)
		d->work->lose(d->work, d);
	scheduler_free(d->scheduler);
	d->scheduler = NULL;
	close_backends(d);
	d->stats.restarts++;
	if (clock_ns() - d->opened_ns >= DEVICE_STEADY_NS)
		d->options.history.in_vain = 0;
	open_again(d);
}

static bool foreground(device *d)
{
	/* End a turn: the next task that needs a model starts a new one. */
	const bool asked = d->asked, only_waits = d->waits && !asked;
	if (d->scheduler && !asked)
		scheduler_model_abandon(d->scheduler);
	d->asked = d->spent = d->waits = false;
	d->failed_id[0] = 0;
	d->failed = (error)ERROR_INIT;
	if (!d->scheduler) {
		/* Between attempts the executor runs tasks, which receive an error. */
		const struct timespec pause = {0, 10000000};
		if (d->stats.left_ns && has_others(d)) { /* one was opened meanwhile */
			d->stats.left_ns = 0;
			publish(d);
		}
		if (!d->stats.left_ns && clock_ns() >= d->retry_ns)
			open_again(d);
		else
			nanosleep(&pause, NULL);
		return true;
	}
	if (!scheduler_runnable(d->scheduler)) {
		if (d->backend->lost && d->backend->lost(d->backend)) { /* while a model was loaded, for example */
			scheduler_lose(d->scheduler);
			restart(d);
			return true;
		}
		publish(d); /* includes changes of the previous tasks, such as a deleted session */
		if (!asked && scheduler_prepare(d->scheduler))
			return true;
		if (only_waits)
			nanosleep(&(struct timespec){0, WAIT_NS}, NULL);
		return false;
	}
	uint64_t began = clock_ns();
	status s = scheduler_tick(d->scheduler);
	const double seconds = (double)(clock_ns() - began) * 1e-9;
	int bucket = 0;
	while (bucket < DEVICE_TICK_BUCKETS && seconds > device_tick_bounds[bucket])
		bucket++;
	d->stats.tick_count[bucket]++;
	d->stats.tick_seconds += seconds;
	if (s == STATUS_DEVICE)
		restart(d);
	else
		publish(d);
	return true;
}

static bool background(device *d, uint64_t budget_ns)
{
	if (!d->work || d->work->waits(d->work))
		return false;
	if (d->work->advance(d->work, d, budget_ns) == STATUS_DEVICE && backend_is_lost(d->training_backend))
		restart(d);
	return true;
}

static status no_part(void *context, int i)
{
	(void)context, (void)i;
	return STATUS_OK;
}

/* Start the threads of the OpenMP team now. The runtime would start them with the first loop, and ends the process if
 * it cannot. */
static void create_threads(device *d)
{
	backend *b = d->backend;
	if (b && b->host_memory && b->side_by_side && b->threads > 1)
		b->side_by_side(b, b->threads, no_part, NULL);
}

int device_threads(const device *d)
{
	return d->backend && d->backend->host_memory ? d->backend->threads : 1;
}

const executor_work device_work = {create_threads, foreground, background};
