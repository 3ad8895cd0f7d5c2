/* file_statistics.h - count the contents of a training file, before a job reads it.
 *
 * A job's readers read the file once, in pieces. So documents and tokens are those that a job would count. A line that
 * a job would refuse is refused with the same message. Bytes that are not UTF-8 are the exception: they are replaced by
 * '?', and their lines are counted. Memory: that of the reader, and up to
 * 96 MiB for hashes, whatever the file's size.
 *
 * A job reads running text as one document. Here each of its lines that is not blank is one, since a text that is
 * copied twice into a file has equal lines. A token belongs to the line in which it begins.
 *
 * The result is kept in the folder of cached tokens, under a hash of the text, the tokenizer and the chat template. It
 * is renamed into place, so a crash leaves nothing half-written; a damaged one is made again. All functions read files:
 * pool threads. */
#ifndef ENGINE_RECIPE_FILE_STATISTICS_H
#define ENGINE_RECIPE_FILE_STATISTICS_H

#include <stdatomic.h>

#include "engine/recipe/corpus.h"

/* Documents whose hashes are kept; with more different ones the number of duplicates is an estimate. */
enum { FILE_STATISTICS_DOCUMENTS = 1 << 20 };

typedef struct file_statistics_source {
	const char *path, *id; /* the stored file */
	const tokenizer *tokenizer;
	const json_t *config; /* the model's; NULL: none */
	corpus_cache cache;
	const atomic_bool *cancel; /* set: end with STATUS_CANCELLED */
} file_statistics_source;

/* *out: the kept result, a new reference; NULL: there is none, or the file must be read to find it, since its manifest
 * has no hash. */
status file_statistics_find(json_t **out, const file_statistics_source *from, error *err);
/* Read the file, unless a result is kept for its hash, and keep the result if there is room. *out: a new reference,
 * {"kind", "tokenizer", "bytes", "documents", "characters", "tokens", "lengths", "duplicates", "invalid_utf8_lines",
 * "scripts"} as in the API. param: "id", or "model" if its chat template cannot be used. STATUS_STORAGE: the stored
 * file is damaged. */
status file_statistics_make(json_t **out, const file_statistics_source *from, error *err);

#endif
