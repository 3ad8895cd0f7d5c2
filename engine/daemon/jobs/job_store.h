/* job_store.h - the engine's store, catalogue and device as the sources of jobs (engine/recipe/job_sources.h). */
#ifndef ENGINE_DAEMON_JOBS_JOB_STORE_H
#define ENGINE_DAEMON_JOBS_JOB_STORE_H

#include "engine/daemon/requests/engine.h"
#include "engine/recipe/job_sources.h"

/* Where the store keeps its files. */
corpus_paths job_store_paths(const store *s);
/* Borrows the engine. Each has a name of its own for unfinished files. Loop thread. */
job_sources job_store_sources(engine *e);

#endif
