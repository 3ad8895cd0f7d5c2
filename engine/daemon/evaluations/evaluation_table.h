/* evaluation_table.h - the jobs that have not ended, in the order in which they will run, and their documents. For the
 * files of this folder. Loop thread only. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_TABLE_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_TABLE_H

#include "engine/daemon/evaluations/evaluation_corpus.h"
#include "engine/daemon/requests/engine.h"

#define EVALUATION_OBJECT "explain.evaluation.job"

typedef struct evaluation_job {
	struct evaluation_job *next;
	char id[STORE_ID_BYTES];
	json_t *document; /* the ledger's row */
	int failures;     /* in a row */
	uint64_t retry_ns;
	evaluation_corpus texts; /* as its creation has read them, until its first run; empty: they are read again */
} evaluation_job;

typedef struct evaluations evaluations;
struct evaluations {
	engine *engine;
	evaluation_job *first;
	struct evaluation_run *run; /* NULL: none */
	int active;                 /* jobs */
	int creations;              /* requests under way */
	bool stopping;
};

/* NULL: it has ended, or never was. */
evaluation_job *evaluation_table_find(const evaluations *all, const char *id);
/* A job of this document, which is shared, at the end. NULL: out of memory. */
evaluation_job *evaluation_table_add(evaluations *all, const char *id, json_t *document);
void evaluation_table_remove(evaluations *all, evaluation_job *j);

/* A new job's document; settings are taken over. NULL: out of memory. */
json_t *evaluation_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts);
/* What clients see. New reference. */
json_t *evaluation_document_public(const json_t *document);
/* A copy in another state; `ended`: finished now; why: NULL without. NULL: out of memory. */
json_t *evaluation_document_in_state(const json_t *document, const char *state, bool ended, const error *why);
/* Write it to the ledger, in a commit of its own or the one that is open. */
status evaluation_document_put(const evaluations *all, const json_t *document, error *err);
/* Write it and make it the job's (taken over also on failure; NULL is STATUS_NOMEM). */
status evaluation_table_change(evaluations *all, evaluation_job *j, json_t *next, error *err);

#endif
