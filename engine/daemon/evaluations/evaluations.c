#include "engine/daemon/evaluations/evaluations.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/evaluations/evaluation_creation.h"
#include "engine/daemon/evaluations/evaluation_document.h"
#include "engine/daemon/evaluations/evaluation_run.h"
#include "engine/daemon/requests/listing.h"

enum { EVALUATIONS_MAX_ACTIVE = 100, EVALUATIONS_MAX_CREATIONS = 8 };

/* --- opening, closing ---------------------------------------------------------------------------------- */

static bool runs(const void *owner, const char *id)
{
	return evaluation_run_is_of(owner, id);
}

static void stop_run(void *owner)
{
	evaluation_run_cancel(owner);
}

status evaluations_new(evaluations **out, engine *e, error *err)
{
	static const job_queue_kind kind = {.object = EVALUATION_OBJECT,
	                                    .name = "evaluation",
	                                    .hidden = {"request", "run"},
	                                    .runs = runs,
	                                    .stop_run = stop_run,
	                                    .event = evaluation_document_state_event};
	evaluations *all = *out = memory_new(1, sizeof *all);
	return all ? job_queue_init(&all->queue, e, &kind, all, err) : STATUS_NOMEM;
}

void evaluations_free(evaluations *all)
{
	if (!all)
		return;
	job_queue_fini(&all->queue);
	free(all);
}

void evaluations_tick(evaluations *all)
{
	evaluation_run_next(all);
}

void evaluations_stop(evaluations *all)
{
	all->queue.stopping = true;
	if (all->run)
		evaluation_run_cancel(all);
}

bool evaluations_stopped(const evaluations *all)
{
	return !all->run && all->creations == 0;
}

bool evaluations_use_file(const evaluations *all, const char *id)
{
	return job_queue_uses(&all->queue, "file", id);
}

bool evaluations_use_model(const evaluations *all, const char *id)
{
	return job_queue_uses(&all->queue, "model", id);
}

/* --- the methods ----------------------------------------------------------------------------------------- */

void evaluations_create(stream *s)
{
	const evaluations *all = s->engine->evaluations;
	if (all->queue.active >= EVALUATIONS_MAX_ACTIVE || all->creations >= EVALUATIONS_MAX_CREATIONS)
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many evaluations are waiting");
	else
		evaluation_creation_begin(s);
}

static json_t *evaluations_from_row(stream *s, const json_t *row)
{
	return job_queue_row(&s->engine->evaluations->queue, row);
}

void evaluations_list(stream *s)
{
	listing_answer_of(s, STORE_JOBS, NULL, EVALUATION_OBJECT, JOB_QUEUE_LISTED, evaluations_from_row);
}

void evaluations_get(stream *s)
{
	job_queue_get(s, &s->engine->evaluations->queue);
}

void evaluations_cancel(stream *s)
{
	job_queue_cancel(s, &s->engine->evaluations->queue);
}

void evaluations_delete(stream *s)
{
	job_queue_delete(s, &s->engine->evaluations->queue);
}

void evaluations_events(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	status found = job_queue_document(&s->engine->evaluations->queue, s->target, &document, &err);
	json_decref(document);
	if (found == STATUS_OK)
		listing_answer(s, STORE_EVENTS, s->target, JOB_QUEUE_LISTED, NULL);
	else
		stream_error(s, &err, NULL);
}

static status find_watched(const engine *e, const char *id, json_t **answer, bool *ended, error *err)
{
	return job_queue_find_watched(&e->evaluations->queue, id, answer, ended, err);
}

void evaluations_watch(stream *s)
{
	job_queue_watch(s, &s->engine->evaluations->queue, find_watched);
}
