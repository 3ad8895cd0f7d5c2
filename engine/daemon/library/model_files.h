/* model_files.h - the files of a model: their names, and the conversion of uploaded files to a model's folder.
 *
 * Parts of an upload, or the files of an archive, are written below DATA/tmp as they arrive. Memory holds a few frames
 * whatever the size. The pool compares checksums, joins shards, reads every tensor once and seals the folder.
 * The loop then moves it into the store with one commit. Weights keep their type (f32, f16, bf16), names and
 * orientation; they are converted when they are loaded.
 *
 * Files other than configuration and weights (tokenizers, templates, generation settings) are kept and exported byte
 * for byte. Weights in several files are joined (shards.h). */
#ifndef ENGINE_DAEMON_LIBRARY_MODEL_FILES_H
#define ENGINE_DAEMON_LIBRARY_MODEL_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct model_file {
	const char *name, *type; /* content type */
	int64_t limit;           /* maximum bytes at import */
} model_file;

/* Return the i-th file that a model's folder may contain; NULL past the end. */
const model_file *model_file_at(int i);
/* Find a file by name; NULL: no model has such a file. */
const model_file *model_file_find(const char *name);

/* Return the maximum bytes of an uploaded file with this name; -1: not expected. Besides the files of a model these are
 * shards of weights with their index, and "SHA256SUMS". */
int64_t model_files_accept(const char *name);

/* False for files about the origin of a model (LICENSE, README.md, model_card.json). They do not show that a folder of
 * an archive holds a model, and may be missing although SHA256SUMS lists them. */
bool model_files_decides(const char *name);

/* Convert uploaded files to a model's folder. Pool thread. Files are compared with SHA256SUMS (format of sha256sum(1);
 * files that it does not list are not compared), shards are joined, and the tokenizer's file is named by its content.
 * Errors name the file or the tensor; STATUS_INVALID also if configuration or weights are missing. */
status model_files_prepare(const char *folder, error *err);

#endif
