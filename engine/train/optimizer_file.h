/* optimizer_file.h - optimizer.safetensors: what an optimiser keeps between steps, in a checkpoint or beside a model.
 *
 *   a tensor [n] f32 for each state, under the name that its kind gives and laid out as that says (optimizer_kind.h)
 *   metadata: "optimizer" (the kind), "updates" (made so far) and, where the kind has one, "measure"
 *
 * A checkpoint has the file of any kind, and its run goes on from it. A model has it of kinds with a measure: a job
 * that begins with the model takes the states over where its optimiser is of the same kind and measure. They are
 * those of the last step, also where the model's weights are an average or of an earlier one. */
#ifndef ENGINE_TRAIN_OPTIMIZER_FILE_H
#define ENGINE_TRAIN_OPTIMIZER_FILE_H

#include "engine/train/optimizer.h"

#define OPTIMIZER_FILE "optimizer.safetensors"

/* Into an existing folder. */
status optimizer_file_write(const char *folder, const optimizer *o, error *err);
/* All states from a checkpoint; updates are left as they are. What is read is verified by the folder's manifest, where
 * there is one. STATUS_CORRUPT: a state is missing or has another length. */
status optimizer_file_read(const char *folder, optimizer *o, error *err);
/* States and updates from the folder of a model or checkpoint, where it has the file and that is of o's kind and
 * measure; else nothing changes. STATUS_STORAGE: the file is damaged; STATUS_INVALID ("model"): it does not fit. */
status optimizer_file_continue(const char *folder, optimizer *o, error *err);

#endif
