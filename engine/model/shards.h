/* shards.h - weights in several files, as the Hugging Face ecosystem divides large models:
 *
 *   model.safetensors.index.json   {"weight_map": {TENSOR: FILE, …}, …}
 *   model-00001-of-00002.safetensors, …
 *
 * The engine keeps a model's weights as one file, so these are joined when a model is imported. */
#ifndef ENGINE_MODEL_SHARDS_H
#define ENGINE_MODEL_SHARDS_H

#include "engine/base/error.h"

#define SHARDS_INDEX "model.safetensors.index.json"
enum { SHARDS_MAX_INDEX = 16 << 20, SHARDS_MAX_FILES = 1000 };

/* Join the files of a folder that its index names into model.safetensors, which takes their place; without an index
 * nothing happens. Data is copied as it is, in a few pieces, and each file is unlinked when it has been copied, so the
 * disk holds one of them twice at most. Any thread; blocks. The folder belongs to the caller alone and is not synced.
 *
 * STATUS_INVALID: the index, with what is wrong; a file that is missing; a tensor (the param) that is missing, in two
 * files, in another file than the index says, or not in the index. STATUS_CORRUPT: a file, with its name. */
status shards_join(const char *folder, error *err);

#endif
