/* batch_output.h - joins the results of a batch, which are events of its job, to its two files. The loop reads one
 * event at a time, and the pool writes it. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_OUTPUT_H
#define ENGINE_DAEMON_BATCHES_BATCH_OUTPUT_H

#include <limits.h>
#include <stdio.h>

#include "engine/store/store.h"

enum { BATCH_OUTPUT, BATCH_ERRORS, BATCH_FILES };

/* Zero-initialise; free with batch_output_fini. */
typedef struct batch_output {
	store *store;
	const char *job;
	char after[STORE_ID_BYTES]; /* the latest event */
	json_t *texts[BATCH_FILES]; /* its texts */
	FILE *streams[BATCH_FILES];
	char paths[BATCH_FILES][PATH_MAX];
	store_file files[BATCH_FILES]; /* after batch_output_seal; without id: that file has no lines */
} batch_output;

/* Loop thread: choose the temporary files. project: of the files. */
void batch_output_begin(batch_output *o, store *s, const char *job, const char *project);
/* Loop thread: read the next event. *more: there was one. */
status batch_output_next(batch_output *o, bool *more, error *err);
/* Pool thread: append its texts. */
status batch_output_write(batch_output *o, error *err);
/* Pool thread, after the last event: make the files durable. */
status batch_output_seal(batch_output *o, error *err);
/* Loop thread, in a commit: add the files. */
status batch_output_commit(batch_output *o, error *err);
void batch_output_fini(batch_output *o);

#endif
