/* states.h - the state that a session keeps of the tokens it has read: named tensors, stored one after the other in a
 * slot. Training has a list of its own, for the state that a row of text passes on to the next (STATE_CARRIED).
 * One thread for each list.
 *
 * The mixers of a model's layers list their states. Everything else follows from the list: the size of a slot, the
 * offset of each state, the contents of an exported session. The size never depends on the tokens. */
#ifndef ENGINE_MODEL_STATES_H
#define ENGINE_MODEL_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef enum state_kind {
	STATE_RECURRENT, /* fixed size, summarises all tokens read */
	STATE_CACHE,     /* for single tokens, up to a limit after which the oldest is dropped */
	STATE_SOURCE,    /* an encoded source: written by PHASE_ENCODE, read with every token */
	STATE_CARRIED    /* in training, passed from a row of a batch to the next row; no gradient flows through it */
} state_kind;

/* Name of the sessions' slots in a graph. */
#define STATE_POOL "pool"

enum { STATE_RING_TENSORS = 3, STATE_RANGES = 2 * STATE_RING_TENSORS };

typedef struct state_spec {
	char name[64];
	state_kind kind;
	int64_t floats; /* for one session or row */
	int64_t offset; /* in a slot, in floats */
	/* For a cache that is a ring: `places` is its number of places; token t is in place t mod `places`. `widths`
	 * are the floats of a place in each of its tensors, which are stored one after the other. places 0: any float
	 * may depend on any token. */
	int64_t places, widths[STATE_RING_TENSORS];
	int64_t sums; /* heads whose running sums are its first floats (engine/tensor/ops/forgetting.h); 0: none */
} state_spec;

/* A range of floats of a slot. */
typedef struct state_range {
	int64_t first, count;
} state_range;

/* Floats of a slot that were written: `count` places of `width` floats each. */
typedef struct state_piece {
	int64_t first, width, count;
	bool by_token; /* place t belongs to token t, so later tokens leave it unchanged while they have other places */
} state_piece;

/* List in order of offsets; grows as needed. Starts zeroed; `status` is STATUS_NOMEM once an item could not be
 * added. */
typedef struct state_list {
	state_spec *items;
	int count, capacity;
	int64_t floats; /* total */
	status status;
} state_list;

void state_list_add(state_list *list, state_kind kind, int64_t floats, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Make the last item a ring whose tensors have these floats per place; a width may be 0. */
void state_list_set_ring(state_list *list, int64_t places, int64_t width, int64_t second, int64_t third);
/* Give the last item running sums of that many heads. */
void state_list_set_sums(state_list *list, int64_t heads);
/* True if a state has running sums. They were kept as logarithms l [H] and what their rounding had left [H]. */
bool state_list_has_sums(const state_list *list);
/* Return the floats of a slot with logarithms in place of sums. */
int64_t state_list_slot_with_logs(const state_list *list);
/* Convert such a slot to one of state_list_slot() floats. */
void state_list_convert_logs(const state_list *list, const float *from, float *to);
/* List what changes in a slot when tokens from … to - 1 are read, ascending, into out [STATE_RANGES × list->count].
 * Ranges at most `gap` floats apart are merged. Return their number. */
int state_list_changes(const state_list *list, int64_t from, int64_t to, int64_t gap, state_range *out);
/* List what the first `tokens` tokens have written in a slot and, with `source`, the states of a source, ascending, into
 * out [STATE_RING_TENSORS × list->count]. Return their number. The places by token are those of the longest rings while
 * these hold all tokens. */
int state_list_pieces(const state_list *list, int64_t tokens, bool source, state_piece *out);
/* Return the state with that name, or NULL. Borrowed until the list grows. */
const state_spec *state_list_find(const state_list *list, const char *name);
/* Return the floats of a slot: all states, rounded up to whole cache lines. */
int64_t state_list_slot(const state_list *list);
void state_list_free(state_list *list);

#endif
