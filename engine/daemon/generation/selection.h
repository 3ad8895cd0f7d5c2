/* selection.h - the layers, heads and rounds of attention that a request chooses. Any thread. */
#ifndef ENGINE_DAEMON_GENERATION_SELECTION_H
#define ENGINE_DAEMON_GENERATION_SELECTION_H

#include <jansson.h>

#include "engine/daemon/catalog/catalog.h"

typedef struct selection {
	bool *layers, *heads, *rounds; /* owned */
} selection;

/* Read `layers`, `heads` and `rounds` of an object for a model with an explainer; absent or "all" selects all.
 * STATUS_INVALID: the model lacks one; the message lists those it has. STATUS_NOMEM. Call selection_fini also after an
 * error. */
status selection_read(selection *out, const json_t *object, const model_entry *m, error *err);
void selection_fini(selection *s);
/* Return the selection for the engine; its arrays are borrowed from s. */
explain_selection selection_pick(const selection *s);

#endif
