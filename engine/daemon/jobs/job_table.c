#include "engine/daemon/jobs/job_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/recipe/job_document.h"

job *job_table_find(const jobs *all, const char *id)
{
	job *j = all->first;
	while (j && strcmp(j->id, id) != 0)
		j = j->next;
	return j;
}

void job_table_append(jobs *all, job *j)
{
	job **link = &all->first;
	while (*link)
		link = &(*link)->next;
	j->next = NULL;
	*link = j;
	all->active++;
}

void job_table_take_out(jobs *all, job *j)
{
	job **link = &all->first;
	while (*link != j)
		link = &(*link)->next;
	*link = j->next;
	all->active--;
}

job *job_table_make(const char *id, json_t *document)
{
	job *j = memory_new(1, sizeof *j);
	if (!j)
		return NULL;
	snprintf(j->id, sizeof j->id, "%s", id);
	j->document = json_incref(document);
	j->unwritten = json_array();
	j->state = JOB_QUEUED;
	j->metrics_step = -1;
	j->best_step = json_integer_value(json_object_get(json_object_get(document, "additive"), "step"));
	if (j->document && j->unwritten)
		return j;
	job_table_release(j);
	return NULL;
}

void job_table_release(job *j)
{
	json_decref(j->document);
	json_decref(j->unwritten);
	corpus_free(&j->texts);
	free(j);
}

void job_table_keep_texts(jobs *all, const char *id, corpus_texts *texts)
{
	int64_t bytes = corpus_memory(texts);
	int keeping = 0;
	job *j = job_table_find(all, id);
	for (const job *other = all->first; other; other = other->next) {
		bytes += corpus_memory(&other->texts);
		keeping += other->texts.train != NULL;
	}
	if (!j || bytes > JOB_TABLE_MAX_BYTES || keeping == JOB_TABLE_MAX_KEEPING)
		return;
	j->texts = *texts;
	*texts = (corpus_texts){0};
}

bool job_table_is_run_of(const jobs *all, const char *id)
{
	return all->run && strcmp(job_run_id(all->run), id) == 0;
}

static bool job_table_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

status job_table_stored(const jobs *all, const char *id, json_t **out, error *err)
{
	TRY(store_job_get(all->engine->store, id, out, err));
	if (job_document_is(*out))
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return error_set(err, STATUS_NOT_FOUND, "id", "there is no job \"%.64s\"", id);
}

status job_table_document(const jobs *all, const char *id, json_t **out, bool *ended, error *err)
{
	const job *j = job_table_find(all, id);
	*ended = !j;
	*out = NULL;
	if (!j)
		return job_table_stored(all, id, out, err);
	*out = json_incref(j->document);
	return STATUS_OK;
}

void job_table_discard(jobs *all, const char *id)
{
	job *j = job_table_find(all, id);
	if (!j)
		return;
	job_table_take_out(all, j);
	job_table_release(j);
}

bool job_table_name_taken(const jobs *all, const char *result)
{
	store_model taken;
	for (const job *j = all->first; j; j = j->next)
		if (job_table_same(job_document_text(json_object_get(j->document, "request"), "result"), result))
			return true;
	return store_model_get(all->engine->store, result, &taken, NULL) == STATUS_OK;
}

/* --- what is in use ------------------------------------------------------------------ */

bool job_table_uses_file(const jobs *all, const char *id)
{
	for (const job *j = all->first; j; j = j->next)
		if (job_request_names_file(json_object_get(j->document, "request"), id))
			return true;
	for (const job_reservation *r = all->reservations; r; r = r->next) {
		for (size_t i = 0; i < r->n_training; i++)
			if (job_table_same(r->training[i].id, id))
				return true;
		if (job_table_same(r->validation, id) || job_table_same(r->tokenizer, id))
			return true;
	}
	return false;
}

bool job_table_uses_model(const jobs *all, const char *id)
{
	for (const job *j = all->first; j; j = j->next)
		if (job_table_same(job_document_text(json_object_get(j->document, "request"), "base"), id))
			return true;
	for (const job_reservation *r = all->reservations; r; r = r->next)
		if (job_table_same(r->base, id))
			return true;
	return false;
}

void job_table_reserve(jobs *all, job_reservation *r)
{
	r->next = all->reservations;
	r->link = &all->reservations;
	if (r->next)
		r->next->link = &r->next;
	all->reservations = r;
	all->reserved++;
}

void job_table_end_reservation(jobs *all, job_reservation *r)
{
	*r->link = r->next;
	if (r->next)
		r->next->link = r->link;
	all->reserved--;
}
