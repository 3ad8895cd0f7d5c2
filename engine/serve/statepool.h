/* statepool.h - the recurrent states of live sessions, one fixed-size slot each.
 *
 * All slots of a model are in one address range [capacity, floats], because a batched step indexes it. The addresses
 * are reserved once, for the maximum number of slots. Memory is mapped into them as slots are taken, twice as much each
 * time while there is so much, then what is left. It is given up again once 7 of 8 slots are free, from the last slot
 * on. Nothing moves, so plans and recordings stay valid.
 *
 * A cache of keys and values fills token by token, in many places of its slot. On the host such a pool has small pages.
 * With large pages the first token of a GPT-2 would make the kernel clear nearly all of its 75 MB within the request,
 * and the memory would stay in use. Large pages save address look-ups in long contexts, so a slot receives them step by
 * step once a quarter of it is filled.
 *
 * A new slot contains the state of its last session. No token depends on it, because the ops initialise a state at
 * position 0. A copy of the slot would expose it, so the slot of a session that can be exported is cleared first. Other
 * slots are not: most belong to single requests, and clearing the 12 MB of a GPT-2 slot took longer than reading a
 * short prompt. Executor thread only. */
#ifndef ENGINE_SERVE_STATEPOOL_H
#define ENGINE_SERVE_STATEPOOL_H

#include "engine/tensor/backend.h"

typedef struct statepool statepool;

/* Create a pool of up to `limit` slots of `floats` floats on b (borrowed). A session's first token writes `first`
 * floats of its slot. STATUS_INVALID: a size is not positive. STATUS_NOMEM: not enough addresses, or no memory for the
 * first slots. STATUS_DEVICE. */
status statepool_new(statepool **out, backend *b, int64_t floats, int64_t first, int64_t limit);
void statepool_free(statepool *p);

/* Take the lowest free slot; its contents are undefined. STATUS_BUSY: all `limit` are taken. STATUS_NOMEM leaves the
 * pool unchanged. */
status statepool_take(statepool *p, int32_t *slot);
/* Return a slot to the pool; the next session finds its contents, or zeros. */
void statepool_give(statepool *p, int32_t slot);
/* Report that the slot holds this many tokens. True if 2 MB of the slot were moved to large pages, which takes some
 * milliseconds. */
bool statepool_reached(statepool *p, int32_t slot, int64_t tokens);

/* Return the device address of slot 0, which is constant, and the number of slots that have addresses (at least
 * `limit`). */
float *statepool_data(const statepool *p);
int64_t statepool_capacity(const statepool *p);
/* Return the number of slots that have memory. */
int64_t statepool_slots(const statepool *p);
size_t statepool_slot_bytes(const statepool *p);

/* Clear a slot that was just taken. A slot that no session has used costs nothing. */
status statepool_clear(statepool *p, int32_t slot);
/* Copy `bytes` bytes of a slot from byte `from` on: to another slot, to the host, from the host. */
status statepool_copy(statepool *p, int32_t to, int32_t slot, size_t from, size_t bytes);
status statepool_read(statepool *p, int32_t slot, size_t from, void *host, size_t bytes);
status statepool_write(statepool *p, int32_t slot, size_t from, const void *host, size_t bytes);

#endif
