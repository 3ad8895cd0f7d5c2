#include "engine/daemon/faithfulness/faithfulness_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/faithfulness/faithfulness_creation.h"
#include "engine/daemon/faithfulness/faithfulness_run.h"
#include "engine/daemon/requests/listing.h"

enum {
	FAITHFULNESS_JOBS_MAX_ACTIVE = 100,
	FAITHFULNESS_JOBS_MAX_CREATIONS = 64,
	FAITHFULNESS_JOBS_LISTED = 20,
	FAITHFULNESS_JOBS_PAGE = 50
};
/* Numbers of a page of texts, about 11 bytes of JSON each: the loop reads them from the ledger. */
enum { FAITHFULNESS_JOBS_PAGE_NUMBERS = 50000 };

static const char *text_of(const json_t *document, const char *key)
{
	return json_string_value(json_object_get(document, key));
}

static bool same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

/* --- opening, closing ---------------------------------------------------------------------------------- */

typedef struct opening {
	faithfulness_jobs *all;
	bool failed;
} opening;

static bool read_job(void *context, const json_t *document)
{
	opening *o = context;
	const char *id = text_of(document, "id");
	if (!same(text_of(document, "object"), FAITHFULNESS_OBJECT) || !id || !store_valid_name(id))
		return true;
	json_t *copy = json_deep_copy(document);
	o->failed = !copy || !faithfulness_table_add(o->all, id, copy);
	json_decref(copy);
	return !o->failed;
}

status faithfulness_jobs_new(faithfulness_jobs **out, engine *e, error *err)
{
	static const char *const states[] = {"running", "queued"};
	faithfulness_jobs *all = *out = memory_new(1, sizeof *all);
	bool more;
	if (!all)
		return STATUS_NOMEM;
	all->engine = e;
	opening o = {.all = all};
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		store_page page = {.filter = states[i], .ascending = true};
		TRY(store_list(e->store, STORE_JOBS, &page, read_job, &o, &more, err));
		if (o.failed)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

void faithfulness_jobs_free(faithfulness_jobs *all)
{
	if (!all)
		return;
	while (all->first)
		faithfulness_table_remove(all, all->first);
	free(all);
}

void faithfulness_jobs_tick(faithfulness_jobs *all)
{
	faithfulness_run_next(all);
}

void faithfulness_jobs_stop(faithfulness_jobs *all)
{
	all->stopping = true;
	if (all->run)
		faithfulness_run_cancel(all);
}

bool faithfulness_jobs_stopped(const faithfulness_jobs *all)
{
	return !all->run && all->creations == 0;
}

static bool uses(const faithfulness_jobs *all, const char *key, const char *id)
{
	for (const faithfulness_job *j = all->first; j; j = j->next)
		if (same(text_of(j->document, key), id))
			return true;
	return false;
}

bool faithfulness_jobs_use_file(const faithfulness_jobs *all, const char *id)
{
	return uses(all, "file", id);
}

bool faithfulness_jobs_use_model(const faithfulness_jobs *all, const char *id)
{
	return uses(all, "model", id);
}

/* --- the methods ----------------------------------------------------------------------------------------- */

void faithfulness_jobs_create(stream *s)
{
	const faithfulness_jobs *all = s->engine->faithfulness;
	if (all->active >= FAITHFULNESS_JOBS_MAX_ACTIVE || all->creations >= FAITHFULNESS_JOBS_MAX_CREATIONS)
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many evaluations are waiting");
	else
		faithfulness_creation_begin(s);
}

/* The document of a job, ended or not; new reference. */
static status find(const stream *s, json_t **out, error *err)
{
	const faithfulness_job *j = faithfulness_table_find(s->engine->faithfulness, s->target);
	*out = j ? json_incref(j->document) : NULL;
	if (j)
		return STATUS_OK;
	TRY(store_job_get(s->engine->store, s->target, out, err));
	if (same(text_of(*out, "object"), FAITHFULNESS_OBJECT))
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return error_set(err, STATUS_NOT_FOUND, "id", "there is no evaluation \"%.64s\"", s->target);
}

static json_t *from_row(stream *s, const json_t *row)
{
	const faithfulness_job *j = faithfulness_table_find(s->engine->faithfulness, text_of(row, "id"));
	return faithfulness_document_public(j ? j->document : row);
}

/* Let the request ask for no more rows than that. */
static bool limit_page(stream *s, json_int_t most)
{
	const json_int_t asked = json_integer_value(json_object_get(s->params, "limit"));
	if (asked <= most || json_object_set_new(s->params, "limit", json_integer(most)) == 0)
		return true;
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	return false;
}

/* The rows hold their results. */
void faithfulness_jobs_list(stream *s)
{
	if (limit_page(s, FAITHFULNESS_JOBS_PAGE))
		listing_answer_of(s, STORE_JOBS, NULL, FAITHFULNESS_OBJECT, FAITHFULNESS_JOBS_LISTED, from_row);
}

void faithfulness_jobs_get(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	if (find(s, &document, &err) == STATUS_OK)
		stream_result(s, faithfulness_document_public(document));
	else
		stream_error(s, &err, NULL);
	json_decref(document);
}

/* Texts of a page, at most. */
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
	status found = find(s, &document, &err);
	const json_int_t most = most_texts(document);
	json_decref(document);
	if (found != STATUS_OK)
		stream_error(s, &err, NULL);
	else if (limit_page(s, most))
		listing_answer(s, STORE_EVENTS, s->target,
		               most < FAITHFULNESS_JOBS_LISTED ? most : FAITHFULNESS_JOBS_LISTED, NULL);
}

static void refuse_state(stream *s, const json_t *document, const char *verb)
{
	stream_refuse(s, STATUS_CONFLICT, "invalid_job_state", "id", "a job that is %s cannot be %s",
	              text_of(document, "status"), verb);
}

static void cancel(stream *s, faithfulness_job *j)
{
	faithfulness_jobs *all = s->engine->faithfulness;
	error err = ERROR_INIT;
	json_t *next = faithfulness_document_in_state(j->document, "cancelled", true, NULL);
	json_t *answer = next ? faithfulness_document_public(next) : NULL;
	if (!answer) {
		json_decref(next);
		next = NULL;
	}
	if (faithfulness_table_change(all, j, next, &err) != STATUS_OK) {
		json_decref(answer);
		stream_error(s, &err, NULL);
		return;
	}
	faithfulness_table_remove(all, j);
	if (faithfulness_run_is_of(all, s->target))
		faithfulness_run_cancel(all);
	stream_result(s, answer);
}

void faithfulness_jobs_cancel(stream *s)
{
	error err = ERROR_INIT;
	faithfulness_job *j = faithfulness_table_find(s->engine->faithfulness, s->target);
	json_t *document = NULL;
	if (j)
		cancel(s, j);
	else if (find(s, &document, &err) == STATUS_OK)
		refuse_state(s, document, "cancelled");
	else
		stream_error(s, &err, NULL);
	json_decref(document);
}

void faithfulness_jobs_delete(stream *s)
{
	error err = ERROR_INIT;
	const faithfulness_jobs *all = s->engine->faithfulness;
	json_t *document;
	status found = find(s, &document, &err);
	if (found == STATUS_OK && (faithfulness_table_find(all, s->target) || faithfulness_run_is_of(all, s->target)))
		refuse_state(s, document, "deleted before it has ended");
	else if (found == STATUS_OK && store_job_delete(s->engine->store, s->target, &err) == STATUS_OK)
		stream_result(
		    s, json_pack("{s:s, s:s, s:b}", "id", s->target, "object", FAITHFULNESS_OBJECT, "deleted", 1));
	else
		stream_error(s, &err, NULL);
	json_decref(document);
}
