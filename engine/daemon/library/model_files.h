/* model_files.h - the files of a model: which names they have, and how those of an upload become a model's folder.
 *
 * What comes in beside configuration and weights (tokenizers, templates, generation settings) is kept and exported byte
 * for byte. Weights in several files are joined (shards.h). */
#ifndef ENGINE_DAEMON_LIBRARY_MODEL_FILES_H
#define ENGINE_DAEMON_LIBRARY_MODEL_FILES_H

#include <stdint.h>

#include "engine/base/error.h"

typedef struct model_file {
	const char *name, *type; /* content type */
	int64_t limit;           /* bytes at import */
} model_file;

/* The i-th file that a model's folder may hold; NULL past the end. */
const model_file *model_file_at(int i);
/* NULL: no model has such a file. */
const model_file *model_file_find(const char *name);

/* The most bytes that an uploaded file of that name may have; -1: it is not expected. Beside the files of a model these
 * are shards of weights with their index, and "SHA256SUMS". */
int64_t model_files_accept(const char *name);

/* Pool thread. Make a model's folder of one of uploaded files: compare them with SHA256SUMS (in the form of
 * sha256sum(1); files that it does not list are not compared), join shards, name the tokenizer's file by its content.
 * Errors name the file or the tensor; STATUS_INVALID also when configuration or weights are missing. */
status model_files_prepare(const char *folder, error *err);

#endif
