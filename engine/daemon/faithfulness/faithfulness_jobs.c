#include "engine/daemon/faithfulness/faithfulness_jobs.h"

#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/daemon/faithfulness/faithfulness_creation.h"
#include "engine/daemon/faithfulness/faithfulness_run.h"
#include "engine/daemon/requests/listing.h"

enum { FAITHFULNESS_JOBS_MAX_ACTIVE = 100, FAITHFULNESS_JOBS_MAX_CREATIONS = 64, FAITHFULNESS_JOBS_PAGE = 50 };
/* Maximum numbers on a page of texts, about 11 bytes of JSON each; the loop reads them from the ledger. */
enum { FAITHFULNESS_JOBS_PAGE_NUMBERS = 50000 };

/* --- opening, closing ---------------------------------------------------------------------------------- */

static void release_texts(void *kept)
{
	faithfulness_corpus_fini(kept);
	free(kept);
}

static bool runs(const void *owner, const char *id)
{
	return faithfulness_run_is_of(owner, id);
}

static void stop_run(void *owner)
{
	faithfulness_run_cancel(owner);
}

status faithfulness_jobs_new(faithfulness_jobs **out, engine *e, error *err)
{
	static const job_queue_kind kind = {.object = FAITHFULNESS_OBJECT,
	                                    .name = "evaluation",
	                                    .hidden = {"request"},
	                                    .release = release_texts,
	                                    .runs = runs,
	                                    .stop_run = stop_run};
	faithfulness_jobs *all = *out = memory_new(1, sizeof *all);
	return all ? job_queue_init(&all->queue, e, &kind, all, err) : STATUS_NOMEM;
}

void faithfulness_jobs_free(faithfulness_jobs *all)
{
	if (!all)
		return;
	job_queue_fini(&all->queue);
	free(all);
}

void faithfulness_jobs_tick(faithfulness_jobs *all)
{
	faithfulness_run_next(all);
}

void faithfulness_jobs_stop(faithfulness_jobs *all)
{
	all->queue.stopping = true;
	if (all->run)
		faithfulness_run_cancel(all);
}

bool faithfulness_jobs_stopped(const faithfulness_jobs *all)
{
	return !all->run && all->creations == 0;
}

bool faithfulness_jobs_use_file(const faithfulness_jobs *all, const char *id)
{
	return job_queue_uses(&all->queue, "file", id);
}

bool faithfulness_jobs_use_model(const faithfulness_jobs *all, const char *id)
{
	return job_queue_uses(&all->queue, "model", id);
}

/* --- the methods ----------------------------------------------------------------------------------------- */

void faithfulness_jobs_create(stream *s)
{
	const faithfulness_jobs *all = s->engine->faithfulness;
	if (all->queue.active >= FAITHFULNESS_JOBS_MAX_ACTIVE || all->creations >= FAITHFULNESS_JOBS_MAX_CREATIONS)
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many evaluations are waiting");
	else
		faithfulness_creation_begin(s);
}

static json_t *faithfulness_jobs_from_row(stream *s, const json_t *row)
{
	return job_queue_row(&s->engine->faithfulness->queue, row);
}

/* Lower the page size of the request to `most`. */
static bool limit_page(stream *s, json_int_t most)
{
	const json_int_t asked = json_integer_value(json_object_get(s->params, "limit"));
	if (asked <= most || json_object_set_new(s->params, "limit", json_integer(most)) == 0)
		return true;
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	return false;
}

/* Rows contain their results, so pages are short. */
void faithfulness_jobs_list(stream *s)
{
	if (limit_page(s, FAITHFULNESS_JOBS_PAGE))
		listing_answer_of(s, STORE_JOBS, NULL, FAITHFULNESS_OBJECT, JOB_QUEUE_LISTED,
		                  faithfulness_jobs_from_row);
}

void faithfulness_jobs_get(stream *s)
{
	job_queue_get(s, &s->engine->faithfulness->queue);
}

/* Maximum texts on a page. */
static json_int_t most_texts(const json_t *document)
{
	const json_t *settings = json_object_get(document, "settings");
	const json_int_t orders = 2 + (json_int_t)json_array_size(json_object_get(settings, "methods"));
	const json_int_t metrics = 8 + 2 * (json_int_t)json_array_size(json_object_get(settings, "fractions"));
	const json_int_t points = metrics + json_integer_value(json_object_get(settings, "grid"));
	const json_int_t positions = json_integer_value(json_object_get(settings, "spread")) +
	                             (json_int_t)json_array_size(json_object_get(settings, "positions"));
	const json_int_t numbers = 2 * orders * points * positions;
	return numbers > 0 && numbers < FAITHFULNESS_JOBS_PAGE_NUMBERS ? FAITHFULNESS_JOBS_PAGE_NUMBERS / numbers : 1;
}

void faithfulness_jobs_rows(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	status found = job_queue_document(&s->engine->faithfulness->queue, s->target, &document, &err);
	const json_int_t most = most_texts(document);
	json_decref(document);
	if (found != STATUS_OK)
		stream_error(s, &err, NULL);
	else if (limit_page(s, most))
		listing_answer(s, STORE_EVENTS, s->target, most < JOB_QUEUE_LISTED ? most : JOB_QUEUE_LISTED, NULL);
}

void faithfulness_jobs_cancel(stream *s)
{
	job_queue_cancel(s, &s->engine->faithfulness->queue);
}

void faithfulness_jobs_delete(stream *s)
{
	job_queue_delete(s, &s->engine->faithfulness->queue);
}
