/* kept_constraints.h - the constraints that were used last with a model, by the format that they were made of: what a
 * constraint has learnt of the vocabulary serves the following requests too. Zero-initialise. Any thread. */
#ifndef ENGINE_DAEMON_CATALOG_KEPT_CONSTRAINTS_H
#define ENGINE_DAEMON_CATALOG_KEPT_CONSTRAINTS_H

#include "engine/text/grammar/constraint.h"

enum { KEPT_CONSTRAINTS = 4, KEPT_FORMAT_BYTES = 1 << 16 /* longer formats are not kept */ };

typedef struct kept_constraints {
	struct kept_constraint {
		char *format;
		constraint *constraint; /* NULL: a free place */
	} places[KEPT_CONSTRAINTS];     /* the latest first */
} kept_constraints;

/* That of this format, shared with the caller; NULL: it is not kept. */
constraint *kept_constraints_find(kept_constraints *k, const char *format);
/* Keep c as well, if memory suffices. */
void kept_constraints_add(kept_constraints *k, const char *format, constraint *c);
void kept_constraints_fini(kept_constraints *k);

#endif
