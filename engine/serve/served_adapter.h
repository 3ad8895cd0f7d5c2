/* served_adapter.h - the adapter that sessions name.
 *
 * A state adapter (engine/model/adapter.h) is in host memory, as large as a slot, and is copied into the slot before a
 * session's first token. From there on the session is like any other. A low-rank adapter (engine/model/lora.h) is in
 * host memory too, and in an entry of the model's bank while live sessions use it (lora_bank.h). Sessions share it by
 * count. Its hash is a part of what a session's state belongs to, so a kept or exported state is never continued for
 * another adapter. Any thread may share and free it, as it may a held session; the rest is for the executor thread. */
#ifndef ENGINE_SERVE_SERVED_ADAPTER_H
#define ENGINE_SERVE_SERVED_ADAPTER_H

#include "engine/model/lora.h"
#include "engine/serve/served_model.h"

struct served_adapter {
	char id[SCHEDULER_ID_BYTES];
	atomic_int users;
	uint64_t hash, model; /* hashes of the contents and of its model */
	size_t bytes;         /* host memory that it has */
	lora_image *lora;     /* a low-rank adapter; NULL: a state adapter */
	float slot[];         /* [model_state_floats], of a state adapter */
};

/* Return the hash of an adapter; 0: none. */
uint64_t served_adapter_hash(const served_adapter *a);
/* Copy the state to a slot. STATUS_DEVICE. */
status served_adapter_start(const served_adapter *a, const served_model *m, int32_t slot);

#endif
