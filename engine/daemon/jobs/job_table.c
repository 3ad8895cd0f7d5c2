#include "engine/daemon/jobs/job_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/recipe/job_document.h"

static bool job_table_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

job *job_table_find(const jobs *all, const char *id)
{
	return (job *)job_queue_find(&all->queue, id);
}

job *job_table_first(const jobs *all)
{
	return (job *)all->queue.first;
}

job *job_table_next(const job *j)
{
	return (job *)j->base.next;
}

bool job_table_load(queued_job *base)
{
	job *j = (job *)base;
	const json_t *additive = json_object_get(base->document, "additive");
	j->unwritten = json_array();
	j->metrics_step = -1;
	j->best_step = json_integer_value(json_object_get(additive, "step"));
	j->device_failures = job_document_device_failures(base->document);
	if (!job_table_same(job_document_text(base->document, "status"), "paused"))
		return j->unwritten;
	j->state = JOB_PAUSED;
	/* The time is in the past, so the job is retried at once. */
	base->retry_ns = json_is_integer(json_object_get(json_object_get(additive, "paused_reason"), "retry_at"));
	return j->unwritten;
}

void job_table_release(queued_job *base)
{
	job *j = (job *)base;
	json_decref(j->unwritten);
	corpus_free(&j->texts);
}

void job_table_keep_texts(jobs *all, const char *id, corpus_texts *texts)
{
	int64_t bytes = corpus_memory(texts);
	int keeping = 0;
	job *j = job_table_find(all, id);
	for (const job *other = job_table_first(all); other; other = job_table_next(other)) {
		bytes += corpus_memory(&other->texts);
		keeping += other->texts.train != NULL;
	}
	if (!j || bytes > JOB_TABLE_MAX_BYTES || keeping == JOB_TABLE_MAX_KEEPING)
		return;
	j->texts = *texts;
	*texts = (corpus_texts){0};
}

void job_table_discard(jobs *all, const char *id)
{
	job *j = job_table_find(all, id);
	if (!j)
		return;
	job_queue_take_out(&all->queue, &j->base);
	job_queue_release(&all->queue, &j->base);
}

bool job_table_name_taken(const jobs *all, const char *result)
{
	store_model taken;
	for (const job *j = job_table_first(all); j; j = job_table_next(j))
		if (job_table_same(job_document_text(json_object_get(j->base.document, "request"), "result"), result))
			return true;
	return store_model_get(all->queue.parts->store, result, &taken, NULL) == STATUS_OK;
}

/* --- what is in use ------------------------------------------------------------------ */

bool job_table_uses_file(const jobs *all, const char *id)
{
	for (const job *j = job_table_first(all); j; j = job_table_next(j))
		if (job_request_names_file(json_object_get(j->base.document, "request"), id))
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
	for (const job *j = job_table_first(all); j; j = job_table_next(j))
		if (job_table_same(job_document_text(json_object_get(j->base.document, "request"), "base"), id))
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
	all->queue.drafts++;
}

void job_table_end_reservation(jobs *all, job_reservation *r)
{
	*r->link = r->next;
	if (r->next)
		r->next->link = r->link;
	all->queue.drafts--;
}
