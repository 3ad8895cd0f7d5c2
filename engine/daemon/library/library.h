/* library.h - the parts of the engine that the methods on files, models and the data folder use. The streams of this
 * folder's methods have it as their room. Loop thread only. */
#ifndef ENGINE_DAEMON_LIBRARY_LIBRARY_H
#define ENGINE_DAEMON_LIBRARY_LIBRARY_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/sessions/sessions.h"

typedef struct library {
	store *store;
	catalog *catalog;
	fleet *fleet;
	sessions *sessions;
	job_machine *jobs;
	const char *folder;                     /* the data folder */
	int64_t budget;                         /* bytes of it; 0: unlimited */
	const char *cache_folder;               /* cached tokens and statistics */
	int64_t cache_budget;                   /* bytes of it that nothing uses */
	struct statistics_reading **statistics; /* files that are being read for file.statistics */
	int pool_threads;                       /* size of libuv's pool */
} library;

static inline const library *library_of(const stream *s)
{
	return s->room;
}

#endif
