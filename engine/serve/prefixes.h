/* prefixes.h - the states behind beginnings that prompts share, such as a system's message.
 *
 * A model keeps a few of them, the least recently used goes first. A beginning is noted when a prompt has it, read into
 * a state of its own when a second one has it, and later prompts begin with a copy of that state. Where
 * bits depend on the pieces in which a prompt is read (served_model.any_pieces) only whole pieces are kept, so no token
 * depends on whether a beginning was known. Kept states do not count as users of their model. Executor thread only. */
#ifndef ENGINE_SERVE_PREFIXES_H
#define ENGINE_SERVE_PREFIXES_H

#include "engine/serve/session.h"

enum {
	PREFIXES_LEAST = 16,           /* tokens; fewer are read as fast */
	PREFIXES_STATE_BYTES = 4 << 20 /* larger states take too long to copy within a turn */
};

/* A session for one request, which has read the beginning of its prompt if that is known; r is left with the rest. */
status prefixes_begin(scheduler *s, served_model *m, generation_request *r, session **out, error *err);
/* Free those of a model without users. */
void prefixes_free(served_model *m);

#endif
