/* shards.h - weights in several files, as the Hugging Face ecosystem divides large models:
 *
 *   model.safetensors.index.json   {"weight_map": {TENSOR: FILE, …}, …}
 *   model-00001-of-00002.safetensors, …
 *
 * The engine keeps a model's weights in one file, so these are joined when a model is imported. */
#ifndef ENGINE_MODEL_SHARDS_H
#define ENGINE_MODEL_SHARDS_H

#include "engine/base/error.h"

#define SHARDS_INDEX "model.safetensors.index.json"
enum { SHARDS_MAX_INDEX = 16 << 20, SHARDS_MAX_FILES = 1000 };

/* Join the files of a folder that its index names into model.safetensors, which replaces them; without an index do
 * nothing. Data is copied unchanged in a few pieces, and each file is unlinked once it is copied, so at most one of
 * them is on disk twice. Any thread; blocks. Only the caller may use the folder, which is not synced.
 *
 * STATUS_INVALID: the index is wrong (with the reason), or a file is missing. Also if a tensor (the param) is missing,
 * in two files, in another file than the index states, or not in the index. STATUS_CORRUPT names the file. */
status shards_join(const char *folder, error *err);

#endif
