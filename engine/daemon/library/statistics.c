#include "engine/daemon/library/statistics.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/requests/deadline.h"
#include "engine/daemon/requests/owned_file.h"
#include "engine/recipe/file_statistics.h"

/* A request that waits for a reading. */
typedef struct waiter {
	stream *stream;
	struct statistics_reading *reading;
	struct waiter *next;
} waiter;

/* One reading of a file. It has at least one waiter until it has ended: the last one that leaves is answered then. So
 * its client can begin the next reading at once. */
typedef struct statistics_reading {
	uv_work_t work;
	uv_loop_t *loop;
	const library *library;
	waiter *waiters;
	model_entry *model; /* NULL: bytes */
	tokenizer *bytes;
	file_statistics_source source;
	char file[STREAM_TARGET_BYTES], path[PATH_MAX];
	atomic_bool cancel;
	bool counted; /* it reads the file, rather than look for a kept result */
	json_t *found;
	error error;
	struct statistics_reading *next;
} statistics_reading;

static void statistics_free(statistics_reading *r)
{
	if (!r)
		return;
	catalog_release(r->model);
	tokenizer_free(r->bytes);
	json_decref(r->found);
	free(r);
}

/* --- answers -------------------------------------------------------------------------------- */

/* Answer the request, and free the waiter. */
static void statistics_refuse(waiter *w, const error *cause, status result)
{
	stream *s = w->stream;
	store_file f;
	error err = *cause, gone = ERROR_INIT;
	error_settle(&err, result);
	if (owned_file_find(s, s->target, &f, &gone) == STATUS_NOT_FOUND) /* it may have been deleted meanwhile */
		err = gone;
	else if (result == STATUS_STORAGE)
		log_request(LOG_ERROR, s->request_id, "the file \"%s\" is damaged: %s", s->target, error_message(&err));
	free(w);
	stream_error(s, &err, NULL);
}

static void statistics_answer(waiter *w)
{
	stream *s = w->stream;
	const statistics_reading *r = w->reading;
	json_t *object = json_pack("{s:s, s:s, s:s?}", "object", "file.statistics", "id", s->target, "model",
	                           r->model ? r->model->id : NULL);
	json_t *found = json_deep_copy(r->found);
	if (!found || (object && json_object_update(object, found) != 0)) {
		json_decref(object);
		object = NULL;
	}
	json_decref(found);
	free(w);
	stream_result(s, object);
}

/* Answer all requests, whose clients may then begin the next reading. */
static void statistics_end(statistics_reading *r, status result)
{
	statistics_reading **at = r->library->statistics;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	for (waiter *w; (w = r->waiters);) {
		r->waiters = w->next;
		if (r->found)
			statistics_answer(w);
		else
			statistics_refuse(w, &r->error, result);
	}
	statistics_free(r);
}

/* --- reading -------------------------------------------------------------------------------- */

static void pool_count(uv_work_t *work)
{
	statistics_reading *r = work->data;
	reserve_forget();
	error_settle(&r->error, file_statistics_make(&r->found, &r->source, &r->error));
}

static void made(uv_work_t *work, int cancelled)
{
	statistics_reading *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	statistics_end(r, r->error.status);
}

static void pool_find(uv_work_t *work)
{
	statistics_reading *r = work->data;
	reserve_forget();
	error_settle(&r->error, file_statistics_find(&r->found, &r->source, &r->error));
}

/* Number of files that may be read at once. */
static int statistics_limit(const library *lib)
{
	const int half = lib->pool_threads / 2;
	return half < 1 ? 1 : half < STATISTICS_MAX ? half : STATISTICS_MAX;
}

static int statistics_running(const library *lib)
{
	int n = 0;
	for (const statistics_reading *r = *lib->statistics; r; r = r->next)
		n += r->counted;
	return n;
}

static void looked_up(uv_work_t *work, int cancelled)
{
	statistics_reading *r = work->data;
	const int limit = statistics_limit(r->library);
	(void)cancelled;
	if (r->found || r->error.status != STATUS_OK) {
		statistics_end(r, r->error.status);
	} else if (atomic_load(&r->cancel)) {
		statistics_end(r, STATUS_CANCELLED);
	} else if (statistics_running(r->library) == limit) {
		error_set(&r->error, STATUS_BUSY, NULL,
		          "statistics are being made for %d other requests, the most at once", limit);
		statistics_end(r, STATUS_BUSY);
	} else {
		r->counted = true;
		if (uv_queue_work(r->loop, &r->work, pool_count, made) != 0)
			statistics_end(r, STATUS_NOMEM);
	}
}

/* --- requests ------------------------------------------------------------------------------- */

/* Set what the pool reads. */
static status statistics_prepare(statistics_reading *r, stream *s, error *err)
{
	const library *lib = r->library;
	const char *name = json_string_value(json_object_get(s->params, "model"));
	store_file f;
	TRY(owned_file_use(s, s->target, "id", &f, err));
	TRY(name ? catalog_open(lib->catalog, name, &r->model, err) : tokenizer_new(&r->bytes, NULL, err));
	store_blob_path(lib->store, f.id, r->path);
	r->source = (file_statistics_source){.path = r->path,
	                                     .id = r->file,
	                                     .tokenizer = r->model ? r->model->tokenizer : r->bytes,
	                                     .config = r->model ? r->model->config : NULL,
	                                     .cache = {lib->cache_folder, lib->cache_budget, 0},
	                                     .cancel = &r->cancel};
	if (!r->source.tokenizer)
		return error_set(err, STATUS_INVALID, "model", "the model has no tokenizer");
	return store_cache_room(lib->store, &r->source.cache.room, err);
}

/* Return a reading of the same file for the same model that has not been cancelled; NULL: there is none. */
static statistics_reading *statistics_find(const statistics_reading *like)
{
	statistics_reading *r = *like->library->statistics;
	while (r && (atomic_load(&r->cancel) || r->model != like->model || strcmp(r->file, like->file) != 0))
		r = r->next;
	return r;
}

static void statistics_cancelled(stream *s)
{
	waiter *w = s->context, **at = &w->reading->waiters;
	if (w == *at && !w->next) {
		atomic_store(&w->reading->cancel, true);
		return;
	}
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	statistics_refuse(w, &(error)ERROR_INIT, STATUS_CANCELLED);
}

/* Let w wait for a reading of this file. Takes r, which an equal reading may replace. */
static status statistics_join(waiter *w, statistics_reading *r)
{
	statistics_reading *found = statistics_find(r);
	if (!found && uv_queue_work(r->loop, &r->work, pool_find, looked_up) != 0) {
		statistics_free(r);
		return STATUS_NOMEM;
	}
	if (found) {
		statistics_free(r);
		r = found;
	} else {
		r->next = *r->library->statistics;
		*r->library->statistics = r;
	}
	w->reading = r;
	w->next = r->waiters;
	r->waiters = w;
	return STATUS_OK;
}

void statistics_read(stream *s)
{
	static const stream_watch watch = {.cancel = statistics_cancelled};
	waiter *w = memory_new(1, sizeof *w);
	statistics_reading *r = memory_new(1, sizeof *r);
	if (!w || !r) {
		free(w);
		free(r);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*w = (waiter){.stream = s};
	*r = (statistics_reading){.loop = s->net->loop, .error = ERROR_INIT};
	r->library = library_of(s);
	r->work.data = r;
	snprintf(r->file, sizeof r->file, "%s", s->target);
	error err = ERROR_INIT;
	status result = statistics_prepare(r, s, &err);
	if (result != STATUS_OK)
		statistics_free(r);
	else
		result = statistics_join(w, r);
	if (result != STATUS_OK) {
		statistics_refuse(w, &err, result);
		return;
	}
	s->context = w;
	s->watch = &watch;
	deadline_begin(s);
}
