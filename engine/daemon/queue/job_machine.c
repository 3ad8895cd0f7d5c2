#include "engine/daemon/queue/job_machine.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/queue/job_draft.h"
#include "engine/daemon/requests/listing.h"

struct job_machine {
	job_parts parts;
	int n;
	job_queue *queues[];
};

status job_machine_new(job_machine **out, const job_parts *parts, const job_kind *const kinds[], error *err)
{
	size_t n = 0;
	while (kinds[n])
		n++;
	job_machine *m = *out = memory_new(1, sizeof *m + n * sizeof *m->queues);
	if (!m)
		return STATUS_NOMEM;
	m->parts = *parts;
	for (status s; m->n < (int)n;) {
		s = job_queue_new(&m->queues[m->n], &m->parts, kinds[m->n], err);
		m->n++;
		TRY(s);
		m->queues[m->n - 1]->sibling = m->parts.queues;
		m->parts.queues = m->queues[m->n - 1];
	}
	return STATUS_OK;
}

void job_machine_free(job_machine *m)
{
	for (int i = 0; m && i < m->n; i++)
		job_queue_free(m->queues[i]);
	free(m);
}

void job_machine_tick(job_machine *m)
{
	for (int i = 0; i < m->n; i++) {
		job_queue *q = m->queues[i];
		(q->kind->tick ? q->kind->tick : job_queue_run_next)(q);
	}
}

void job_machine_stop(job_machine *m)
{
	for (int i = 0; i < m->n; i++)
		job_queue_stop(m->queues[i]);
}

bool job_machine_stopped(const job_machine *m)
{
	for (int i = 0; i < m->n; i++)
		if (m->queues[i]->run || m->queues[i]->drafts > 0)
			return false;
	return true;
}

bool job_machine_uses_file(const job_machine *m, const char *id)
{
	for (int i = 0; i < m->n; i++)
		if (job_queue_uses_file(m->queues[i], id))
			return true;
	return false;
}

const char *job_machine_use_of_model(const job_machine *m, const char *id)
{
	for (int i = 0; i < m->n; i++)
		if (job_queue_uses_model(m->queues[i], id))
			return m->queues[i]->kind->use;
	return NULL;
}

job_queue *job_machine_queue(const job_machine *m, const job_kind *kind)
{
	for (int i = 0; i < m->n; i++)
		if (m->queues[i]->kind == kind)
			return m->queues[i];
	return NULL;
}

/* --- the methods ----------------------------------------------------------------------------------------- */

static json_t *object_from_row(stream *s, const json_t *row)
{
	const job_queue *q = s->context;
	const queued_job *j = job_queue_find(q, json_string_value(json_object_get(row, "id")));
	return job_queue_public(q, j ? j->document : row);
}

static void job_machine_list(stream *s, job_queue *q)
{
	if (q->kind->max_page && !listing_limit(s, q->kind->max_page))
		return;
	s->context = q;
	listing_answer_of(s, STORE_JOBS, NULL, q->kind->object, JOB_QUEUE_LISTED, object_from_row);
}

json_t *job_machine_find_document(stream *s, const job_queue *q)
{
	error err = ERROR_INIT;
	json_t *document;
	if (job_queue_document(q, s->target, &document, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	return document;
}

void job_machine_refuse_state(stream *s, const job_queue *q, const char *verb)
{
	json_t *document = job_machine_find_document(s, q);
	if (document)
		stream_refuse(s, STATUS_CONFLICT, "invalid_job_state", "id", "a job that is %s cannot be %s",
		              json_string_value(json_object_get(document, "status")), verb);
	json_decref(document);
}

static void job_machine_get(stream *s, job_queue *q)
{
	json_t *document = job_machine_find_document(s, q);
	if (document)
		stream_result(s, job_queue_public(q, document));
	json_decref(document);
}

static void job_machine_cancel(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	json_t *answer;
	queued_job *j = job_queue_find(q, s->target);
	if (!j)
		job_machine_refuse_state(s, q, "cancelled");
	else if (job_queue_cancel(q, j, &answer, &err) == STATUS_OK)
		stream_result(s, answer);
	else
		stream_error(s, &err, NULL);
}

static void job_machine_delete(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	json_t *document = job_machine_find_document(s, q);
	json_decref(document);
	if (!document)
		return;
	if (job_queue_find(q, s->target) || job_queue_runs(q, s->target))
		job_machine_refuse_state(s, q, "deleted before it has ended");
	else if (store_job_delete(q->parts->store, s->target, &err) == STATUS_OK)
		stream_result(s,
		              json_pack("{s:s, s:s, s:b}", "id", s->target, "object", q->kind->object, "deleted", 1));
	else
		stream_error(s, &err, NULL);
}

static void job_machine_events(stream *s, job_queue *q)
{
	json_t *document = job_machine_find_document(s, q);
	if (document)
		listing_answer(s, STORE_EVENTS, s->target, JOB_QUEUE_LISTED, NULL);
	json_decref(document);
}

static status find_watched(const void *context, const char *id, json_t **answer, bool *ended, error *err)
{
	const job_queue *q = context;
	json_t *document;
	*answer = NULL;
	TRY(job_queue_document(q, id, &document, err));
	*ended = !job_queue_find(q, id);
	*answer = *ended ? job_queue_public(q, document) : NULL;
	json_decref(document);
	return STATUS_OK;
}

static void job_machine_watch(stream *s, job_queue *q)
{
	job_watch_begin(s, &q->watches, find_watched, q);
}

static const job_method common[] = {
    {"create", job_draft_begin, true},     {"list", job_machine_list, false},     {"get", job_machine_get, false},
    {"cancel", job_machine_cancel, false}, {"delete", job_machine_delete, false}, {"events", job_machine_events, false},
    {"watch", job_machine_watch, false},
};

static status check_project(const stream *s, const job_queue *q, error *err)
{
	json_t *document;
	if (s->scope.all || !s->target[0])
		return STATUS_OK;
	TRY(job_queue_document(q, s->target, &document, err));
	const bool seen = project_sees(&s->scope, project_of(document));
	json_decref(document);
	return seen ? STATUS_OK : job_queue_no_job(q, s->target, err);
}

void job_machine_begin(stream *s, const job_method *m, job_queue *q)
{
	error err = ERROR_INIT;
	if (check_project(s, q, &err) == STATUS_OK)
		m->begin(s, q);
	else
		stream_error(s, &err, NULL);
}

const job_method *job_machine_method(const job_machine *m, const char *name, job_queue **queue)
{
	for (int i = 0; i < m->n; i++) {
		const job_kind *kind = m->queues[i]->kind;
		const size_t prefix = strlen(kind->name);
		*queue = m->queues[i];
		for (const job_method *k = kind->methods; k && k->name; k++)
			if (strcmp(k->name, name) == 0)
				return k;
		if (strncmp(name, kind->name, prefix) != 0 || name[prefix] != '.')
			continue;
		for (size_t k = 0; k < sizeof common / sizeof *common; k++)
			if (strcmp(common[k].name, name + prefix + 1) == 0)
				return &common[k];
	}
	return NULL;
}
