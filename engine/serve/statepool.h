/* statepool.h - the recurrent states of live sessions, one fixed-size slot each.
 *
 * All slots of a model lie in one range of addresses [capacity, floats], because that is what a batched step indexes.
 * The addresses are reserved once, for as many slots as there can ever be, and memory is put behind them as slots are
 * taken, twice as much each time: nothing ever moves, so plans and what was recorded of them stay good.
 *
 * A cache of keys and values fills token by token, in many places of its slot. On the host such a pool has small pages:
 * with large ones the first token of a GPT-2 makes the system clear nearly all of its 75 MB within the request, and the
 * memory stays in use. Large pages save look-ups of addresses in long contexts, so a slot gets
 * them step by step once a quarter of it is filled.
 *
 * A new slot holds the state of its last session. No token depends on it, because the ops initialise a state at
 * position 0, but a copy of the slot would show it: so the slot of a session that can be exported is cleared first.
 * (Most slots are of single requests, which cannot be exported, and a slot of GPT-2 may have 12 MB: clearing it took
 * longer than reading a short prompt.) Executor thread only. */
#ifndef ENGINE_SERVE_STATEPOOL_H
#define ENGINE_SERVE_STATEPOOL_H

#include "engine/tensor/backend.h"

typedef struct statepool statepool;

/* A pool of up to `limit` slots of `floats` floats on b (borrowed). A session's first token writes `first` floats of
 * its slot. STATUS_INVALID (sizes not positive), STATUS_NOMEM (there are not that many addresses, or no memory for the
 * first slots), STATUS_DEVICE. */
status statepool_new(statepool **out, backend *b, int64_t floats, int64_t first, int64_t limit);
void statepool_free(statepool *p);

/* The lowest free slot, contents undefined. STATUS_BUSY when `limit` are taken; STATUS_NOMEM leaves the pool
 * unchanged. */
status statepool_take(statepool *p, int32_t *slot);
void statepool_give(statepool *p, int32_t slot);
/* Report that the slot holds this many tokens. May give 2 MB of the slot large pages, which takes some milliseconds;
 * returns true then. */
bool statepool_reached(statepool *p, int32_t slot, int64_t tokens);

/* Device address of slot 0, which never changes, and the number of slots that have addresses: `limit` or more. */
float *statepool_data(const statepool *p);
int64_t statepool_capacity(const statepool *p);
/* Number of slots that have memory. */
int64_t statepool_slots(const statepool *p);
size_t statepool_slot_bytes(const statepool *p);

/* Clear a slot that was just taken. Takes no time for one that no session has had. */
status statepool_clear(statepool *p, int32_t slot);
/* `bytes` of a slot, from its byte `from` on: to another slot's, to the host, from the host. */
status statepool_copy(statepool *p, int32_t to, int32_t slot, size_t from, size_t bytes);
status statepool_read(statepool *p, int32_t slot, size_t from, void *host, size_t bytes);
status statepool_write(statepool *p, int32_t slot, size_t from, const void *host, size_t bytes);

#endif
