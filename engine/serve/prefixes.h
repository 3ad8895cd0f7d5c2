/* prefixes.h - states after beginnings that prompts share, such as a system message.
 *
 * A model keeps a few; the least recently used is replaced first. A beginning is recorded with the first prompt that
 * has it, and read into a state of its own with the second. Later prompts start from a copy of that state. Where bits
 * depend on the pieces of a prompt (served_model.any_pieces), only whole pieces are kept, so tokens never depend on
 * this cache. Kept states do not count as users of their model. Executor thread only. */
#ifndef ENGINE_SERVE_PREFIXES_H
#define ENGINE_SERVE_PREFIXES_H

#include "engine/serve/session.h"

enum {
	PREFIXES_LEAST = 16,           /* minimum tokens; reading fewer is as fast */
	PREFIXES_STATE_BYTES = 4 << 20 /* maximum; copying a larger state exceeds a turn */
};

/* Create a session for one request. If a kept state matches the beginning of its prompt, the session starts from a copy
 * and *r keeps only the rest. */
status prefixes_begin(scheduler *s, served_model *m, generation_request *r, session **out, error *err);
/* Free the states of a model without users. */
void prefixes_free(served_model *m);

#endif
