/* statepool.h - the recurrent states of live sessions, one fixed-size slot each.
 *
 * All slots of a model lie in one device allocation [slots, floats], because that is
 * what a batched step indexes. It grows by doubling: a new allocation, a copy, the old
 * one released. Plans are bound to its address, so whoever holds plans compares
 * statepool_data before and after statepool_take and drops them when it moved; that happens
 * at most log2(limit) times in a pool's life. (Allocating `limit` slots at once would be simpler, but a
 * slot may take megabytes; a list of chunks would need one plan per chunk.)
 *
 * A slot is zeroed when it is taken: nobody's state, nor an export of it, ever shows
 * what an earlier session left there. Executor thread only. */
#ifndef ENGINE_SERVE_STATEPOOL_H
#define ENGINE_SERVE_STATEPOOL_H

#include "engine/tensor/backend.h"

typedef struct statepool statepool;

/* A pool of up to `limit` slots of `floats` floats on b (borrowed).
 * STATUS_INVALID (sizes not positive, or overflowing), STATUS_NOMEM, STATUS_DEVICE. */
status statepool_new(statepool **out, backend *b, int64_t floats, int64_t limit);
void statepool_free(statepool *p);

/* A zeroed slot, the lowest that is free. STATUS_BUSY when `limit` are taken; STATUS_NOMEM
 * or STATUS_DEVICE leave the pool as it was. */
status statepool_take(statepool *p, int32_t *slot);
void statepool_give(statepool *p, int32_t slot);

/* Device address of slot 0 and slots allocated: a power of two, so that a batch of n
 * states can be padded with other slots to the next power of two. */
float *statepool_data(const statepool *p);
int64_t statepool_slots(const statepool *p);
size_t statepool_slot_bytes(const statepool *p);

status statepool_copy(statepool *p, int32_t to, int32_t from);
status statepool_read(statepool *p, int32_t slot, void *host);
status statepool_write(statepool *p, int32_t slot, const void *host);

#endif
