/* engine_keys.h - the keys that the engine has.
 *
 * A stream of key.watch brings them when the link comes up and whenever one changes, so a change is effective here
 * within a round trip. Without the link, and until the first event of a connection, they are not current: keys that are
 * known are still recognised, and no request reaches the engine without one. The engine checks each request's key
 * again. */
#ifndef SERVER_ENGINE_KEYS_H
#define SERVER_ENGINE_KEYS_H

#include "server/auth.h"
#include "server/engine_link.h"

/* Zero-initialise. */
typedef struct engine_keys {
	engine_call *call; /* NULL: no stream is open */
	auth *known;       /* keys of the last event; NULL: none has come */
	bool current;      /* `known` is what the engine has */
	bool required;     /* each request needs a key; as of the last event */
} engine_keys;

/* Open the stream, if the link is up and it is not open. */
void engine_keys_open(engine_keys *k, engine_link *l);
void engine_keys_free(engine_keys *k);

#endif
