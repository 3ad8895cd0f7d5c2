/* batch_document.h - the ledger's row of a batch, and what clients see of it: OpenAI's batch object.
 *
 * The row has the members of every job (job_queue.h). Beside them it has OpenAI's times and files, and `run`: how far
 * the latest commit has come. The public status follows from the row: a running job is validating, in_progress, finalizing or
 * cancelling. Loop thread. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_DOCUMENT_H
#define ENGINE_DAEMON_BATCHES_BATCH_DOCUMENT_H

#include "engine/daemon/queue/job_queue.h"

/* Place of a run: lines whose results are committed. */
typedef struct batch_progress {
	int64_t done, failed; /* failed: error lines */
	int64_t bytes;        /* all results */
	bool expired;         /* some lines have expired */
} batch_progress;

/* Seconds of a completion window such as "24h"; 0: malformed, or not between a second and 30 days. */
int64_t batch_window_seconds(const char *text);

json_t *batch_document_new(const job_queue *q, const char *id, json_t *params);
json_t *batch_document_public(const json_t *document);
batch_progress batch_document_progress(const json_t *document);

/* Return a copy with members replaced (new reference). members is taken over. NULL: out of memory. */
json_t *batch_document_with(const json_t *document, json_t *members);
/* Return a copy with the progress. */
json_t *batch_document_at(const json_t *document, const batch_progress *p);
/* Return a copy that has ended in this state: "succeeded", "failed", "cancelled" or "expired". */
json_t *batch_document_ended(const json_t *document, const char *state);
/* Return the id of the API key that created it. A batch created without one has all rights, as its client had. */
const char *batch_document_key(const json_t *document);
/* True if the time under this key has been set. */
bool batch_document_has(const json_t *document, const char *key);

#endif
