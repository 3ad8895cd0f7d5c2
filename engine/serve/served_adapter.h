/* served_adapter.h - the state from which sessions start that name an adapter (engine/model/adapter.h).
 *
 * It is in host memory, as large as a slot, and is copied into the slot before a session's first token. From there on
 * the session is like any other. Sessions share it by count. Its hash is a part of what a session's state belongs to,
 * so a kept or exported state is never continued for another adapter. Any thread may share and free it, as it may a held
 * session; the rest is for the executor thread. */
#ifndef ENGINE_SERVE_SERVED_ADAPTER_H
#define ENGINE_SERVE_SERVED_ADAPTER_H

#include "engine/serve/served_model.h"

struct served_adapter {
	char id[SCHEDULER_ID_BYTES];
	atomic_int users;
	uint64_t hash, model; /* hashes of the state and of its model */
	float slot[];         /* [model_state_floats] */
};

/* Return the hash of an adapter; 0: none. */
uint64_t served_adapter_hash(const served_adapter *a);
/* Copy the state to a slot. STATUS_DEVICE. */
status served_adapter_start(const served_adapter *a, const served_model *m, int32_t slot);

#endif
