/* faithfulness_table.h - the jobs that have not ended, in the order in which they will run, and their documents. For
 * the files of this folder. Loop thread only. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H

#include "engine/daemon/faithfulness/faithfulness_corpus.h"
#include "engine/daemon/requests/engine.h"

#define FAITHFULNESS_OBJECT "explain.evaluation.job"

typedef struct faithfulness_job {
	struct faithfulness_job *next;
	char id[STORE_ID_BYTES];
	json_t *document; /* the ledger's row */
	int failures;     /* in a row */
	uint64_t retry_ns;
	faithfulness_corpus texts; /* as its creation has read them, until its first run; empty: they are read again */
} faithfulness_job;

typedef struct faithfulness_jobs faithfulness_jobs;
struct faithfulness_jobs {
	engine *engine;
	faithfulness_job *first;
	struct faithfulness_run *run; /* NULL: none */
	int active;                   /* jobs */
	int creations;                /* requests under way */
	bool stopping;
};

/* NULL: it has ended, or never was. */
faithfulness_job *faithfulness_table_find(const faithfulness_jobs *all, const char *id);
/* A job of this document, which is shared, at the end. NULL: out of memory. */
faithfulness_job *faithfulness_table_add(faithfulness_jobs *all, const char *id, json_t *document);
void faithfulness_table_remove(faithfulness_jobs *all, faithfulness_job *j);

/* A new job's document; settings are taken over. NULL: out of memory. */
json_t *faithfulness_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts);
/* What clients see. New reference. */
json_t *faithfulness_document_public(const json_t *document);
/* A copy in another state; `ended`: finished now; why: NULL without. NULL: out of memory. */
json_t *faithfulness_document_in_state(const json_t *document, const char *state, bool ended, const error *why);
/* Write it to the ledger, in a commit of its own or the one that is open. */
status faithfulness_document_put(const faithfulness_jobs *all, const json_t *document, error *err);
/* Write it and make it the job's (taken over also on failure; NULL is STATUS_NOMEM). */
status faithfulness_table_change(faithfulness_jobs *all, faithfulness_job *j, json_t *next, error *err);

#endif
