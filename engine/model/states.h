/* states.h - what a session keeps of the tokens it has read: named tensors that lie one behind the other in a slot;
 * and, in a list of its own, what a row of text carries from block to block in training.
 *
 * The mixers of a model's layers list their states, and everything else follows from the list: the size of a slot,
 * where each state lies in it, what an exported session holds. Which tokens were read never changes a size. */
#ifndef ENGINE_MODEL_STATES_H
#define ENGINE_MODEL_STATES_H

#include <stdint.h>

#include "engine/base/error.h"

typedef enum state_kind {
	STATE_RECURRENT, /* of fixed size: all tokens read, folded together */
	STATE_CACHE,     /* of single tokens, up to a bound after which the oldest goes */
	STATE_SOURCE,    /* an encoded source: written by PHASE_ENCODE, read with every token */
	STATE_CARRIED    /* in training, from a row of a batch to the row behind it; no gradient flows through it */
} state_kind;

/* What the slots of sessions are called in a graph. */
#define STATE_POOL "pool"

enum { STATE_RING_TENSORS = 3, STATE_RANGES = 2 * STATE_RING_TENSORS };

typedef struct state_spec {
	char name[64];
	state_kind kind;
	int64_t floats; /* of a session, or of a row */
	int64_t offset; /* in a slot, in floats */
	/* Of a cache that is a ring: its places, of which token t has number t mod `places`, and the floats of a place
	 * in each of its tensors, which lie one behind the other. places 0: any float may depend on any token. */
	int64_t places, widths[STATE_RING_TENSORS];
} state_spec;

/* Floats of a slot. */
typedef struct state_range {
	int64_t first, count;
} state_range;

/* In the order of their offsets; grows as needed. Starts zeroed; `status` is STATUS_NOMEM once an item could not be
 * added. */
typedef struct state_list {
	state_spec *items;
	int count, capacity;
	int64_t floats; /* of all */
	status status;
} state_list;

void state_list_add(state_list *list, state_kind kind, int64_t floats, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The item that was added last is a ring; a width may be 0. */
void state_list_set_ring(state_list *list, int64_t places, int64_t width, int64_t second, int64_t third);
/* What of a slot reading the tokens from … to - 1 changes, ascending, into out [STATE_RANGES × list->count]; ranges at
 * most `gap` floats apart are one. Returns how many. */
int state_list_changes(const state_list *list, int64_t from, int64_t to, int64_t gap, state_range *out);
/* The state of that name, or NULL. */
const state_spec *state_list_find(const state_list *list, const char *name);
/* Floats of a slot: those of all states, in whole cache lines. */
int64_t state_list_slot(const state_list *list);
void state_list_free(state_list *list);

#endif
