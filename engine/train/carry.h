/* carry.h - the states that rows of a batch pass on to the rows that follow them.
 *
 * They are model_carried of each row, and the number of tokens that it has read. At most 2^24 tokens are counted; a row
 * with the state of a session restarts then.
 *
 * With the option carry_state the rows of all micro-batches of a step are lanes. A lane is a stretch of text that
 * continues from step to step. R = batch_size · gradient_accumulation lanes divide the n records of a dataset, in order
 * and repeated without end (pass.h), into pieces of L = ⌊n / R⌋. In epoch e, step k of L reads in lane r
 *
 *   record (e·R + r)·L + k        lanes of micro-batch m: m · batch_size …
 *
 * so record and lane follow from the step number alone, and no record is left out permanently. An evaluation has as
 * many lanes as its batches have rows, with L = ⌈records / rows⌉. A row starts with zeros and 0 tokens at the start of
 * its lane (k = 0) and where its text does not continue (text_record.continues).
 *
 * No gradient flows through a carried state. Where it is the state of a session (model_dims.carries_states), a row has
 * a slot and is read in the form that serves sessions. The gradient takes earlier tokens as a constant. That form needs
 * fp32 without recompute. tests/bench/RESULTS.md has measurements: carrying helps `additive`, but `linear` only
 * where documents reset its state.
 *
 * States are on the device in two copies: step s reads what s - 1 has written and writes what s + 1 reads. A step that
 * is discarded, because the run is saved before its end, therefore leaves its own inputs unchanged. */
#ifndef ENGINE_TRAIN_CARRY_H
#define ENGINE_TRAIN_CARRY_H

#include "engine/base/manifest.h"
#include "engine/model/model.h"

typedef struct carry carry;

/* Create the states of a plan with forward_spec.train.carried over batch rows of `length` tokens, for `sets`
 * micro-batches. Borrows both. */
status carry_new(carry **out, const model *m, plan *p, int64_t batch, int64_t length, int64_t sets, error *err);
void carry_free(carry *c);
/* Before micro-batch `set` of a step: load the states of its rows; rows that do not continue start empty. */
status carry_load(carry *c, int64_t step, int64_t set, const bool *continues);
/* After it: store the states of its rows for the next step. */
status carry_keep(carry *c, int64_t step, int64_t set);

/* Write what `step` will read to a safetensors file: each state by name, [rows, floats], and "position" [rows]. */
status carry_write(const carry *c, int64_t step, const char *path, error *err);
/* STATUS_CORRUPT: a state is missing. STATUS_STORAGE as for safetensors_open_verified. */
status carry_read(carry *c, int64_t step, const char *path, const manifest *about, error *err);

#endif
