/* adapter_cache.h - the adapters that a device has read last, so that a request need not read the file again.
 *
 * An adapter never changes, so an entry stays valid. Executor thread. */
#ifndef ENGINE_DAEMON_COMPUTE_ADAPTER_CACHE_H
#define ENGINE_DAEMON_COMPUTE_ADAPTER_CACHE_H

#include "engine/serve/scheduler.h"

/* More than the texts of a usual batch. */
enum { ADAPTER_CACHE_ITEMS = 128, ADAPTER_CACHE_BYTES = 256 << 20 };

typedef struct adapter_cache {
	served_adapter *items[ADAPTER_CACHE_ITEMS]; /* NULL: empty */
	unsigned next;                              /* the entry that is replaced next */
	size_t limit;                               /* bytes of all entries; a single one may have more */
} adapter_cache;

/* Return the adapter `id` of a loaded model; the caller frees it. folder: its folder. STATUS_STORAGE, logged: it is
 * damaged or missing. Other errors are those of served_adapter_open. */
status adapter_cache_get(adapter_cache *c, const served_model *m, const char *id, const char *folder,
                         served_adapter **out, error *err);
void adapter_cache_fini(adapter_cache *c);

#endif
