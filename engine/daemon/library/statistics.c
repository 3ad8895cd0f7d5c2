#include "engine/daemon/library/statistics.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/requests/deadline.h"
#include "engine/daemon/requests/owned_file.h"
#include "engine/recipe/file_statistics.h"

typedef struct statistics_request {
	uv_work_t work;
	stream *stream;
	model_entry *model; /* NULL: bytes */
	tokenizer *bytes;
	file_statistics_source source;
	char path[PATH_MAX];
	atomic_bool cancel;
	bool counted; /* in library.statistics */
	json_t *found;
	error error;
} statistics_request;

static void statistics_free(statistics_request *r)
{
	*library_of(r->stream)->statistics -= r->counted;
	catalog_release(r->model);
	tokenizer_free(r->bytes);
	json_decref(r->found);
	free(r);
}

static void statistics_refuse(statistics_request *r, status result)
{
	stream *s = r->stream;
	store_file f;
	error err = r->error, gone = ERROR_INIT;
	error_settle(&err, result);
	if (owned_file_find(s, s->target, &f, &gone) == STATUS_NOT_FOUND) /* it may have been deleted meanwhile */
		err = gone;
	else if (result == STATUS_STORAGE)
		log_request(LOG_ERROR, s->request_id, "the file \"%s\" is damaged: %s", s->target, error_message(&err));
	statistics_free(r);
	stream_error(s, &err, NULL);
}

static void statistics_answer(statistics_request *r)
{
	stream *s = r->stream;
	json_t *object = json_pack("{s:s, s:s, s:s?}", "object", "file.statistics", "id", s->target, "model",
	                           r->model ? r->model->id : NULL);
	if (object && json_object_update(object, r->found) != 0) {
		json_decref(object);
		object = NULL;
	}
	statistics_free(r);
	stream_result(s, object);
}

static void pool_count(uv_work_t *work)
{
	statistics_request *r = work->data;
	reserve_forget();
	error_settle(&r->error, file_statistics_make(&r->found, &r->source, &r->error));
}

static void made(uv_work_t *work, int cancelled)
{
	statistics_request *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (r->found)
		statistics_answer(r);
	else
		statistics_refuse(r, r->error.status);
}

static void pool_find(uv_work_t *work)
{
	statistics_request *r = work->data;
	reserve_forget();
	error_settle(&r->error, file_statistics_find(&r->found, &r->source, &r->error));
}

/* Number of files that may be read at once. */
static int statistics_limit(const library *lib)
{
	const int half = lib->pool_threads / 2;
	return half < 1 ? 1 : half < STATISTICS_MAX ? half : STATISTICS_MAX;
}

static void looked_up(uv_work_t *work, int cancelled)
{
	statistics_request *r = work->data;
	const library *lib = library_of(r->stream);
	const int limit = statistics_limit(lib);
	(void)cancelled;
	if (r->found) {
		statistics_answer(r);
	} else if (r->error.status != STATUS_OK) {
		statistics_refuse(r, r->error.status);
	} else if (r->stream->cancelled) {
		statistics_refuse(r, STATUS_CANCELLED);
	} else if (*lib->statistics == limit) {
		error_set(&r->error, STATUS_BUSY, NULL,
		          "statistics are being made for %d other requests, the most at once", limit);
		statistics_refuse(r, STATUS_BUSY);
	} else {
		r->counted = true;
		++*lib->statistics;
		if (uv_queue_work(r->stream->net->loop, &r->work, pool_count, made) != 0)
			statistics_refuse(r, STATUS_NOMEM);
	}
}

/* Set what the pool reads. */
static status statistics_prepare(statistics_request *r, error *err)
{
	const library *lib = library_of(r->stream);
	const char *name = json_string_value(json_object_get(r->stream->params, "model"));
	store_file f;
	TRY(owned_file_use(r->stream, r->stream->target, "id", &f, err));
	TRY(name ? catalog_open(lib->catalog, name, &r->model, err) : tokenizer_new(&r->bytes, NULL, err));
	store_blob_path(lib->store, f.id, r->path);
	r->source = (file_statistics_source){.path = r->path,
	                                     .id = r->stream->target,
	                                     .tokenizer = r->model ? r->model->tokenizer : r->bytes,
	                                     .config = r->model ? r->model->config : NULL,
	                                     .cache = {lib->cache_folder, lib->cache_budget, 0},
	                                     .cancel = &r->cancel};
	if (!r->source.tokenizer)
		return error_set(err, STATUS_INVALID, "model", "the model has no tokenizer");
	return store_cache_room(lib->store, &r->source.cache.room, err);
}

static void statistics_cancelled(stream *s)
{
	statistics_request *r = s->context;
	atomic_store(&r->cancel, true);
}

void statistics_read(stream *s)
{
	static const stream_watch watch = {.cancel = statistics_cancelled};
	statistics_request *r = memory_new(1, sizeof *r);
	if (!r) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*r = (statistics_request){.work.data = r, .stream = s};
	s->context = r;
	s->watch = &watch;
	deadline_begin(s);
	status result = statistics_prepare(r, &r->error);
	if (result == STATUS_OK)
		result = uv_queue_work(s->net->loop, &r->work, pool_find, looked_up) == 0 ? STATUS_OK : STATUS_NOMEM;
	if (result != STATUS_OK)
		statistics_refuse(r, result);
}
