/* kept_constraints.h - the constraints last used with a model, by the format that they were compiled from. What a
 * constraint has learnt about the vocabulary also serves later requests. Zero-initialise. Any thread. */
#ifndef ENGINE_DAEMON_CATALOG_KEPT_CONSTRAINTS_H
#define ENGINE_DAEMON_CATALOG_KEPT_CONSTRAINTS_H

#include "engine/text/grammar/constraint.h"

enum { KEPT_CONSTRAINTS = 4, KEPT_FORMAT_BYTES = 1 << 16 /* longer formats are not kept */ };

typedef struct kept_constraints {
	struct kept_constraint {
		char *format;
		constraint *constraint; /* NULL: free */
	} places[KEPT_CONSTRAINTS];     /* most recent first */
} kept_constraints;

/* Return the constraint of this format, shared with the caller; NULL: not kept. */
constraint *kept_constraints_find(kept_constraints *k, const char *format);
/* Keep c, if memory suffices. */
void kept_constraints_add(kept_constraints *k, const char *format, constraint *c);
void kept_constraints_fini(kept_constraints *k);

#endif
