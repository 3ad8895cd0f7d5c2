/* adapters.h - the adapters of the store (engine/model/adapter.h): their documents, and the models that they belong to.
 *
 *   {"id", "object": "adapter", "created_at", "base", "base_digest", "kind": "state", "parameters", "job", "project"}
 *
 * A low-rank adapter has "kind": "lora", "rank" and "alpha", and "targets" if it leaves out linear layers.
 *
 * The document is the ledger's row, equal to the manifest's description. An adapter never changes, and its id is never
 * used again. */
#ifndef ENGINE_DAEMON_CATALOG_ADAPTERS_H
#define ENGINE_DAEMON_CATALOG_ADAPTERS_H

#include "engine/daemon/compute/device.h"
#include "engine/model/model.h"
#include "engine/store/store.h"

#define ADAPTER_ID_PREFIX "adapter-"

typedef struct adapter_origin {
	const char *id, *base, *job; /* ids of the adapter, of its model and of the job that made it (NULL: imported) */
	const char *project;         /* "": the default */
} adapter_origin;

/* Write the adapter to an existing folder, with its manifest. Any thread that may use its backend. */
status adapters_write(const model *adapter, const adapter_origin *from, const char *folder, error *err);
/* Check the files of an adapter in an existing folder, ADAPTER_FILE or those of PEFT (engine/model/lora.h), against the
 * stored model from->base, and write the manifest. STATUS_INVALID names the file, the key or the tensor.
 * STATUS_UNSUPPORTED: the model can have no such adapter. STATUS_NOT_FOUND "model". Any thread. */
status adapters_check(const store *s, const adapter_origin *from, const char *folder, error *err);
/* True if requests of the project (NULL: all) may use the adapter: it is theirs or of the default project. */
bool adapters_are_of(const json_t *adapter, const char *project);

/* An adapter that a request names. */
typedef struct adapter_ref {
	const store *store;      /* used for its path only, which is legal on any thread */
	char id[STORE_ID_BYTES]; /* "": none */
	uint64_t base;           /* hash of its model's weights */
} adapter_ref;

/* Find an adapter that requests of the project (NULL: all) may use with the model `base`. STATUS_NOT_FOUND "adapter".
 * STATUS_INVALID "adapter": it belongs to another model. */
status adapters_find(store *s, const char *id, const char *project, const char *base, adapter_ref *out, error *err);
/* Return its state for the loaded model; the caller frees it. STATUS_INVALID "adapter": the model has other weights
 * than the adapter's. STATUS_NOT_FOUND "adapter": it has been deleted since it was found. Others as for
 * adapter_cache_get. Executor thread. */
status adapters_open(const adapter_ref *a, const served_model *m, device *d, served_adapter **out, error *err);
/* Set *found if the model has an adapter. */
status adapters_of_model(store *s, const char *id, bool *found, error *err);
/* Move such a folder into the store. STATUS_CONFLICT: the id exists. */
status adapters_add(store *s, const char *folder, error *err);

#endif
