#include "engine/daemon/library/storage.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/requests/background.h"

enum { STORAGE_LOOK_NS = 1000000000, STORAGE_WARN_PERCENT = 90 };
static const uint64_t LOST_SWEEP_NS = UINT64_C(60) * STORAGE_LOOK_NS;

json_t *storage_state(engine *e)
{
	const char *problem = store_problem(e->store);
	return json_pack("{s:b, s:s?, s:i, s:I}", "ok", problem == NULL, "problem", problem, "damaged",
	                 store_damaged_count(e->store), "lost", (json_int_t)e->lost);
}

static void watch_budget(engine *e)
{
	int64_t budget = e->options->data_budget, used;
	if (budget <= 0 || store_bytes(e->store, &used, NULL) != STATUS_OK)
		return;
	bool near = used / STORAGE_WARN_PERCENT >= budget / 100;
	if (near && !e->storage_warned)
		log_line(LOG_WARN,
		         "%lld of %lld bytes of the data budget are used: delete checkpoints, files or models",
		         (long long)used, (long long)budget);
	e->storage_warned = near;
}

/* --- lost/ --------------------------------------------------------------------------- */

static void pool_sweep_lost(uv_work_t *work)
{
	engine *e = work->data;
	/* Ages are counted on the monotonic clock, so a jump of the system clock deletes nothing. */
	const int64_t now = e->started_unix + (int64_t)((clock_ns() - e->started_ns) / STORAGE_LOOK_NS);
	e->lost_found = store_lost_sweep(e->options->data, now, &e->options->lost);
}

static void lost_swept(uv_work_t *work, int cancelled)
{
	engine *e = work->data;
	(void)cancelled; /* cannot be cancelled */
	e->lost = e->lost_found;
	e->lost_sweeping = false;
}

static void sweep_lost(engine *e)
{
	if (e->lost_sweeping || (e->lost_swept_ns && clock_ns() - e->lost_swept_ns < LOST_SWEEP_NS))
		return;
	e->lost_swept_ns = clock_ns();
	e->lost_sweep.data = e;
	e->lost_sweeping = uv_queue_work(&e->loop, &e->lost_sweep, pool_sweep_lost, lost_swept) == 0;
}

void storage_tick(engine *e)
{
	if (clock_ns() - e->storage_looked_ns < STORAGE_LOOK_NS)
		return;
	e->storage_looked_ns = clock_ns();
	catalog_note_damage(e->catalog);
	error err = ERROR_INIT;
	bool failed = files_expire(e, clock_unix(), &err) != STATUS_OK;
	if (failed && !e->expiry_failed)
		log_line(LOG_WARN, "expired files are kept for now: %s", error_message(&err));
	e->expiry_failed = failed;
	watch_budget(e);
	sweep_lost(e);
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
	catalog_note_damage(s->engine->catalog);
	if (u)
		u->damaged = store_damaged(s->engine->store);
	if (!u || !u->damaged) {
		free(u);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	u->budget = s->engine->options->data_budget;
	snprintf(u->folder, sizeof u->folder, "%s", s->engine->options->data);
	background_answer(s, &(background_work){make_usage, usage_free, u});
}
