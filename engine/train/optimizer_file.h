/* optimizer_file.h - optimizer.safetensors: what an optimiser keeps between steps, in a checkpoint or beside a model.
 *
 *   a tensor [n] f32 for each state, with the name and layout of its kind (optimizer_kind.h)
 *   metadata: "optimizer" (the kind), "updates" (made so far) and, where the kind has one, "measure"
 *
 * A checkpoint has the file for every kind, and its run continues from it. A model has it for kinds with a measure. A
 * job that starts from the model takes the states over if its optimiser has the same kind and measure. The states are
 * those of the last step, also if the model's weights are an average or from an earlier step. */
#ifndef ENGINE_TRAIN_OPTIMIZER_FILE_H
#define ENGINE_TRAIN_OPTIMIZER_FILE_H

#include "engine/train/optimizer.h"

#define OPTIMIZER_FILE "optimizer.safetensors"

/* Write to an existing folder. */
status optimizer_file_write(const char *folder, const optimizer *o, error *err);
/* Read all states from a checkpoint; updates are unchanged. The folder's manifest, if there is one, verifies the data.
 * STATUS_CORRUPT: a state is missing or has another length. */
status optimizer_file_read(const char *folder, optimizer *o, error *err);
/* Read states and updates from the folder of a model or checkpoint, if it has the file for o's kind and measure;
 * otherwise change nothing. STATUS_STORAGE: the file is damaged. STATUS_INVALID "model": it does not fit. */
status optimizer_file_continue(const char *folder, optimizer *o, error *err);

#endif
