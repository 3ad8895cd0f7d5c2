/* job_store.h - provides the engine's store, catalog and device to job creation (engine/recipe/job_sources.h). */
#ifndef ENGINE_DAEMON_JOBS_JOB_STORE_H
#define ENGINE_DAEMON_JOBS_JOB_STORE_H

#include "engine/daemon/queue/job_queue.h"
#include "engine/recipe/job_sources.h"

/* Return where the store keeps its files. */
corpus_paths job_store_paths(const store *s);
typedef struct job_store_view {
	const job_parts *parts;
	const stream *request; /* finds the files that it sees; NULL: all files, for a stored job */
} job_store_view;

/* Return sources that borrow the view. Each call has its own name for unfinished files. Loop thread. */
job_sources job_store_sources(const job_store_view *view);

#endif
