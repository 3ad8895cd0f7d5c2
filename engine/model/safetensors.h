/* safetensors.h - the weight file format: an 8-byte little-endian header length, a JSON header {"name": {"dtype",
 * "shape", "data_offsets": [begin, end]}, …, "__metadata__": {string: string}}, then raw little-endian data.
 *
 * Files are untrusted. Opening checks: header length against file size and SAFETENSORS_MAX_HEADER, JSON depth and
 * uniqueness of names, every dtype, every shape (rank ≤ 8, no negative dimension, product without overflow), begin ≤
 * end, end - begin = bytes of the shape, offsets inside the data, and regions without overlaps or holes. The limit on
 * the header bounds the memory for parsing (at worst about 75 bytes per byte of header); it is several times what a
 * model of ARCHITECTURE_MAX_LAYERS layers needs.
 *
 * Data can be accessed in two ways. safetensors_open maps the file and never copies. No check can remove the hazard of
 * a mapping: reading a page that another process has truncated raises SIGBUS. Use it for files that only the caller
 * uses. safetensors_open_verified reads with pread(2) in chunks, and verifies each against the manifest of the file's
 * folder before using it. A file that is truncated, changed or damaged is an error. Use it for files that a daemon
 * keeps. */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include <jansson.h>

#include "engine/base/manifest.h"

enum { SAFETENSORS_MAX_HEADER = 4 << 20, SAFETENSORS_MAX_RANK = 8, SAFETENSORS_MAX_THREADS = 16 };

typedef enum safetensors_type {
	ST_F64,
	ST_F32,
	ST_F16,
	ST_BF16,
	ST_I64,
	ST_I32,
	ST_I16,
	ST_I8,
	ST_U8,
	ST_BOOL
} safetensors_type;

typedef struct safetensors_entry {
	const char *name;
	safetensors_type type;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	int64_t count;
	const unsigned char *data; /* in the mapping, possibly unaligned; NULL: the file is not mapped */
	size_t offset, bytes;      /* in the file */
} safetensors_entry;

typedef struct safetensors safetensors;

/* Open a file by mapping. STATUS_CORRUPT, with the reason: malformed; err->param is the tensor at fault, if any. On
 * error *out is NULL. */
status safetensors_open(safetensors **out, const char *path, error *err);
/* Open without mapping, for safetensors_load_f32. m: the manifest of the file's folder, borrowed until the file is
 * closed; NULL: do not verify. STATUS_STORAGE: the file differs from what was written. */
status safetensors_open_verified(safetensors **out, const char *path, const manifest *m, error *err);
/* Let up to `threads` threads call safetensors_load_f32 at a time, instead of one. A verified file has at most
 * two chunks for each in memory. No call may be in progress. */
void safetensors_use_threads(safetensors *st, int threads);
void safetensors_close(safetensors *st);
/* Return the number of entries, which are in order of names. */
int safetensors_count(const safetensors *st);
const safetensors_entry *safetensors_at(const safetensors *st, int index);
/* NULL: no such tensor. */
const safetensors_entry *safetensors_find(const safetensors *st, const char *name);
/* Return the "__metadata__" value of a key, or NULL. */
const char *safetensors_metadata(const safetensors *st, const char *key);
/* Convert elements first … first + count - 1 to `out`, like safetensors_read_f32, for either kind of file. Memory
 * holds few chunks of a verified file, so read a file in the order of its offsets. STATUS_STORAGE: damage. STATUS_IO:
 * the file was truncated. */
status safetensors_load_f32(safetensors *st, const safetensors_entry *e, int64_t first, int64_t count, float *out,
                            error *err);
/* Convert an entry of a mapped file to `out` (count elements) from any float or integer type. f64 and i64 are rounded
 * to nearest, NaN stays NaN. STATUS_INVALID for bool. */
status safetensors_read_f32(const safetensors_entry *e, float *out, error *err);
/* Convert an entry of a mapped file from an integer type or bool (0 or 1). STATUS_INVALID names the tensor: a float
 * type, or a value that does not fit. */
status safetensors_read_i32(const safetensors_entry *e, int32_t *out, error *err);

/* A tensor to write; data in host order of `type`. */
typedef struct safetensors_item {
	const char *name;
	safetensors_type type;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	const void *data;
} safetensors_item;

/* Write atomically and durably. Items keep their order; the header is padded with spaces to a multiple of 8. metadata:
 * a JSON object of strings, or NULL. */
status safetensors_write(const char *path, const safetensors_item *items, int count, const json_t *metadata,
                         error *err);

/* For a writer that copies its data from elsewhere: add an item (without data) to a header at offset *end of the data,
 * and advance *end. The name must not be in the header. */
status safetensors_add(json_t *header, const safetensors_item *item, int64_t *end, error *err);
/* Return the bytes before the data, from malloc: the header's length and text. NULL: out of memory. */
unsigned char *safetensors_header(const json_t *header, size_t *bytes);

const char *safetensors_type_name(safetensors_type type);
size_t safetensors_type_bytes(safetensors_type type);

#endif
