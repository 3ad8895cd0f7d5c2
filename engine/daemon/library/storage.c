#include "engine/daemon/library/storage.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/requests/background.h"

enum { STORAGE_TICK_NS = 1000000000, STORAGE_WARN_PERCENT = 90 };
static const uint64_t LOST_SWEEP_NS = UINT64_C(60) * STORAGE_TICK_NS;

struct storage {
	const library *lib;
	lost_limits limits;
	uint64_t ticked_ns, started_ns, lost_swept_ns;
	int64_t started_unix;
	bool warned, expiry_failed;
	uv_work_t lost_sweep;
	bool lost_sweeping;
	int64_t lost, lost_found; /* blobs in lost/; found by the running sweep so far */
};

status storage_new(storage **out, const library *lib, const lost_limits *lost)
{
	storage *x = *out = memory_new(1, sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	x->lib = lib;
	x->limits = *lost;
	x->started_ns = clock_ns();
	x->started_unix = clock_unix();
	return STATUS_OK;
}

void storage_free(storage *x)
{
	free(x);
}

int64_t storage_lost(const storage *x)
{
	return x->lost;
}

json_t *storage_state(const storage *x)
{
	const char *problem = store_problem(x->lib->store);
	return json_pack("{s:b, s:s?, s:i, s:I}", "ok", problem == NULL, "problem", problem, "damaged",
	                 store_damaged_count(x->lib->store), "lost", (json_int_t)x->lost);
}

static void watch_budget(storage *x)
{
	int64_t budget = x->lib->budget, used;
	if (budget <= 0 || store_bytes(x->lib->store, &used, NULL) != STATUS_OK)
		return;
	bool near = used / STORAGE_WARN_PERCENT >= budget / 100;
	if (near && !x->warned)
		log_line(LOG_WARN,
		         "%lld of %lld bytes of the data budget are used: delete checkpoints, files or models",
		         (long long)used, (long long)budget);
	x->warned = near;
}

static void expire_files(storage *x)
{
	error err = ERROR_INIT;
	bool failed = files_expire(x->lib, clock_unix(), &err) != STATUS_OK;
	if (failed && !x->expiry_failed)
		log_line(LOG_WARN, "expired files are kept for now: %s", error_message(&err));
	x->expiry_failed = failed;
}

/* --- lost/ --------------------------------------------------------------------------- */

static void pool_sweep_lost(uv_work_t *work)
{
	storage *x = work->data;
	/* Ages are counted on the monotonic clock, so a jump of the system clock deletes nothing. */
	const int64_t now = x->started_unix + (int64_t)((clock_ns() - x->started_ns) / STORAGE_TICK_NS);
	x->lost_found = store_lost_sweep(x->lib->folder, now, &x->limits);
}

static void lost_swept(uv_work_t *work, int cancelled)
{
	storage *x = work->data;
	(void)cancelled; /* cannot be cancelled */
	x->lost = x->lost_found;
	x->lost_sweeping = false;
}

static void sweep_lost(storage *x, uv_loop_t *loop)
{
	if (x->lost_sweeping || (x->lost_swept_ns && clock_ns() - x->lost_swept_ns < LOST_SWEEP_NS))
		return;
	x->lost_swept_ns = clock_ns();
	x->lost_sweep.data = x;
	x->lost_sweeping = uv_queue_work(loop, &x->lost_sweep, pool_sweep_lost, lost_swept) == 0;
}

void storage_tick(storage *x, uv_loop_t *loop)
{
	if (clock_ns() - x->ticked_ns < STORAGE_TICK_NS)
		return;
	x->ticked_ns = clock_ns();
	catalog_note_damage(x->lib->catalog);
	expire_files(x);
	watch_budget(x);
	sweep_lost(x, loop);
}

/* --- storage.usage -------------------------------------------------------------------- */

typedef struct usage {
	char folder[PATH_MAX];
	int64_t budget;
	json_t *damaged;
} usage;

static json_t *make_usage(void *context, error *err)
{
	usage *u = context;
	json_t *object = store_usage(u->folder, u->budget);
	if (object && json_object_set(object, "damaged", u->damaged) == 0)
		return object;
	json_decref(object);
	error_set(err, STATUS_NOMEM, NULL, "out of memory");
	return NULL;
}

static void usage_free(void *context)
{
	usage *u = context;
	json_decref(u->damaged);
	free(u);
}

void storage_usage(stream *s)
{
	usage *u = memory_new(1, sizeof *u);
	catalog_note_damage(library_of(s)->catalog);
	if (u)
		u->damaged = store_damaged(library_of(s)->store);
	if (!u || !u->damaged) {
		free(u);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	u->budget = library_of(s)->budget;
	snprintf(u->folder, sizeof u->folder, "%s", library_of(s)->folder);
	background_answer(s, &(background_work){make_usage, usage_free, u});
}
