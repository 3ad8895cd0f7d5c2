#include "engine/daemon/evaluations/evaluation_creation.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/evaluations/evaluation_document.h"
#include "engine/daemon/evaluations/evaluation_run.h"
#include "engine/daemon/requests/idempotency.h"

typedef struct creation {
	stream *stream;
	evaluations *all;
	model_entry *model;
	evaluation_settings settings;
	corpus corpus;
	uv_work_t work;
	status result;
	int64_t tokens;
} creation;

static void creation_free(creation *c)
{
	catalog_release(c->model);
	c->all->creations--;
	free(c);
}

static void evaluation_creation_refuse(creation *c, status result, error *err)
{
	error_settle(err, result);
	stream_error(c->stream, err, NULL);
	creation_free(c);
}

/* The job, its first event and the stored answer are one commit. */
static status add_job(creation *c, char id[STORE_ID_BYTES], json_t **document, json_t **answer, error *err)
{
	const stream *s = c->stream;
	store_file file;
	store_new_id(id, "eval-");
	*document = evaluation_document_new(id, s->params, evaluation_settings_write(&c->settings), c->tokens);
	*answer = *document ? job_queue_public(&c->all->queue, *document) : NULL;
	TRY(idempotency_begin(c->stream, err));
	json_t *event = evaluation_document_state_event("queued", NULL);
	status result =
	    !*answer || !event ? STATUS_NOMEM : store_file_get(s->engine->store, c->corpus.training[0].id, &file, err);
	if (result == STATUS_OK)
		result = job_queue_put(&c->all->queue, *document, err);
	if (result == STATUS_OK)
		result = store_event_add(s->engine->store, id, event, err);
	json_decref(event);
	return idempotency_commit(c->stream, result, *answer, err);
}

static void create_job(creation *c)
{
	char id[STORE_ID_BYTES];
	json_t *document = NULL, *answer = NULL;
	error err = ERROR_INIT;
	evaluations *all = c->all;
	status s = add_job(c, id, &document, &answer, &err);
	if (s == STATUS_OK)
		job_queue_add(&all->queue, id, document); /* without memory for it, it starts at the next restart */
	json_decref(document);
	if (s != STATUS_OK) {
		json_decref(answer);
		evaluation_creation_refuse(c, s, &err);
		return;
	}
	stream_result(c->stream, answer);
	creation_free(c);
	evaluation_run_next(all);
}

static void evaluation_creation_pool_read(uv_work_t *work)
{
	creation *c = work->data;
	token_cache *text;
	reserve_forget();
	c->result = evaluation_document_open(&c->corpus, &text);
	if (c->result == STATUS_OK)
		c->tokens = token_cache_tokens(text);
	token_cache_free(text);
}

static void text_read(uv_work_t *work, int cancelled)
{
	creation *c = work->data;
	(void)cancelled; /* cannot be cancelled */
	c->stream->watch = NULL;
	if (c->result == STATUS_OK && c->stream->cancelled)
		c->result = STATUS_CANCELLED;
	if (c->result != STATUS_OK)
		evaluation_creation_refuse(c, c->result, &c->corpus.error);
	else
		create_job(c);
}

static void evaluation_creation_on_cancel(stream *s)
{
	creation *c = s->context;
	atomic_store(&c->corpus.cancel, true);
}

static status evaluation_creation_start(creation *c, error *err)
{
	static const stream_watch watch = {.cancel = evaluation_creation_on_cancel};
	stream *s = c->stream;
	engine *e = s->engine;
	const char *id = json_string_value(json_object_get(s->params, "file"));
	store_file file;
	TRY(catalog_open_generative(e->catalog, json_string_value(json_object_get(s->params, "model")), &c->model,
	                            err));
	TRY(catalog_check_reads_alone(c->model, "model", err));
	TRY(evaluation_settings_read(&c->settings, s->params, c->model, err));
	status found = store_file_use(e->store, id, &file, err);
	if (found == STATUS_NOT_FOUND)
		strcpy(err->param, "file");
	TRY(found);
	TRY(store_check_room(e->store, 1, err));
	evaluation_document_corpus(&c->corpus, e, c->model, id);
	c->work.data = c;
	if (uv_queue_work(&e->loop, &c->work, evaluation_creation_pool_read, text_read) != 0)
		return STATUS_NOMEM;
	s->context = c;
	s->watch = &watch;
	return STATUS_OK;
}

void evaluation_creation_begin(stream *s)
{
	error err = ERROR_INIT;
	creation *c = memory_new(1, sizeof *c);
	if (!c) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	c->stream = s;
	c->all = s->engine->evaluations;
	c->all->creations++;
	status result = evaluation_creation_start(c, &err);
	if (result != STATUS_OK)
		evaluation_creation_refuse(c, result, &err);
}
