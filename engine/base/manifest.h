/* manifest.h - the description stored with each blob of the data folder.
 *
 * A blob is one file (an upload) or a folder of files (a model, a checkpoint). Its manifest is a JSON file beside or
 * inside it:
 *
 *    {"format": "additive-manifest", "version": 1,
 *     "kind": "model", "id": "ft:…",       what it is
 *     "about": {…},                        what the ledger's row says about it
 *     "chunk_bytes": 4194304,
 *     "files": [{"name": "model.safetensors", "bytes": 123, "xxh3": "<16 hex digits per chunk>"}, …],
 *     "seal": "<16 hex digits>"}           hash of all the text before `,"seal"`
 *
 * A reader uses it to detect damage, chunk by chunk, before it uses a byte. A lost ledger can be rebuilt from the
 * manifests. A manifest is immutable; it is written after the files and before the blob gets its name.
 *
 * Damage is STATUS_STORAGE with the file's name in the message. All functions block on the disk; a manifest may be read
 * by several threads. */
#ifndef ENGINE_BASE_MANIFEST_H
#define ENGINE_BASE_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/checksum.h"
#include "engine/base/error.h"

#define MANIFEST_NAME "manifest.json" /* in a folder */
#define MANIFEST_SUFFIX ".manifest"   /* suffix to the name of a single file */
enum { MANIFEST_CHUNK_BYTES = 4 << 20, MANIFEST_MAX_BYTES = 16 << 20 };

typedef struct manifest manifest;

/* Hash every regular file of `folder` except the manifest, and write folder/manifest.json durably. about: an object, or
 * NULL for an empty one. */
status manifest_write(const char *folder, const char *kind, const char *id, const json_t *about, error *err);
/* Write path.manifest for the single file `path`; `name` is the name that the file will have in its folder. */
status manifest_write_file(const char *path, const char *name, const char *kind, const char *id, const json_t *about,
                           error *err);
/* Write a manifest without files to `path`: `about` alone. */
status manifest_write_document(const char *path, const char *kind, const char *id, const json_t *about, error *err);

/* Read the manifest at `path`. STATUS_NOT_FOUND; STATUS_STORAGE when it is damaged. On error *out is NULL. */
status manifest_open(manifest **out, const char *path, error *err);
/* Read the manifest of a folder. STATUS_OK with *out NULL if it has none: there is nothing to verify. */
status manifest_open_folder(manifest **out, const char *folder, error *err);
/* Parse the `bytes` bytes of a manifest's text; `name` is for messages. */
status manifest_parse(manifest **out, const char *text, size_t bytes, const char *name, error *err);
void manifest_free(manifest *m); /* NULL is legal */

const char *manifest_kind(const manifest *m);
const char *manifest_id(const manifest *m);
const json_t *manifest_about(const manifest *m); /* borrowed */
/* The text as stored in the file, NUL-terminated. */
const char *manifest_text(const manifest *m);
/* Total bytes of the listed files. */
int64_t manifest_bytes(const manifest *m);
/* Bytes of one file; -1 if it is not listed. */
int64_t manifest_file_bytes(const manifest *m, const char *name);
/* Hash of one file's contents; false if it is not listed. */
bool manifest_file_digest(const manifest *m, const char *name, uint64_t *out);

/* Verify chunk `index` of a file, which starts at index * MANIFEST_CHUNK_BYTES; the last one may be shorter. m NULL:
 * nothing to verify. STATUS_STORAGE if the contents or the length differ, or the manifest lists no such file or
 * chunk. */
status manifest_check_chunk(const manifest *m, const char *name, int64_t index, const void *data, size_t bytes,
                            error *err);
/* Verify a whole file that is in memory. m NULL: nothing to verify. */
status manifest_check_data(const manifest *m, const char *name, const void *data, size_t bytes, error *err);
/* Read a small file of `folder` with file_read and verify it. A file that m lists is STATUS_STORAGE when it is missing
 * or differs. m NULL: nothing to verify. A missing file that m does not list is STATUS_NOT_FOUND. */
status manifest_read(const manifest *m, const char *folder, const char *name, size_t limit, char **out, size_t *bytes,
                     error *err);
/* Read all files below `folder` and compare. STATUS_STORAGE if one is missing, damaged or of another size. */
status manifest_check(const manifest *m, const char *folder, error *err);
/* SHA-256 of a file of `folder`, verified as it is read. STATUS_STORAGE if the file is missing or differs;
 * STATUS_NOT_FOUND if m does not list it. */
status manifest_checksum(const manifest *m, const char *folder, const char *name, char out[CHECKSUM_TEXT_BYTES],
                         error *err);
/* Check presence and sizes only. */
status manifest_check_sizes(const manifest *m, const char *folder, error *err);

#endif
