/* carry.h - what the rows of a batch leave to the rows behind them: model_carried of each row, and how many tokens it
 * has read (at most 2^24 are counted; a row with the state of a session begins anew then).
 *
 * With the option carry_state the rows of all micro-batches of a step are lanes, each a stretch of text that goes on
 * from step to step. R = batch_size · gradient_accumulation lanes divide the n records of a dataset, in their order and
 * repeated without end (pass.h), in pieces of L = ⌊n / R⌋: in epoch e step k of L reads in lane r
 *
 *   record (e·R + r)·L + k        lanes of micro-batch m: m · batch_size …
 *
 * so record and lane follow from the step number alone, and no record is left out for good. An evaluation has as many
 * lanes as its batches have rows, with L = ⌈records / rows⌉. A row begins with nothing, zeros and 0 tokens read, where
 * its lane begins (k = 0) and where its text does not go on (text_record.continues).
 *
 * States lie on the device, in two copies: step s reads what s - 1 left and writes what s + 1 reads. A step that is
 * begun, and thrown away when the run is saved before its end, so leaves its own beginning as it was. */
#ifndef ENGINE_TRAIN_CARRY_H
#define ENGINE_TRAIN_CARRY_H

#include "engine/base/manifest.h"
#include "engine/model/model.h"

typedef struct carry carry;

/* Of a plan with forward_spec.carried over batch rows of `length` tokens, for `sets` micro-batches. Borrows both. */
status carry_new(carry **out, const model *m, plan *p, int64_t batch, int64_t length, int64_t sets, error *err);
void carry_free(carry *c);
/* Before the micro-batch `set` of a step: put in place what its rows carry; those that do not continue begin. */
status carry_load(carry *c, int64_t step, int64_t set, const bool *continues);
/* After it: keep what they leave, for the next step. */
status carry_keep(carry *c, int64_t step, int64_t set);

/* What `step` will read, as a safetensors file: of each state its name, [rows, floats], and "position" [rows]. */
status carry_write(const carry *c, int64_t step, const char *path, error *err);
/* STATUS_CORRUPT: it lacks one of them. STATUS_STORAGE as safetensors_open_verified. */
status carry_read(carry *c, int64_t step, const char *path, const manifest *about, error *err);

#endif
