/* safetensors.h - the weight file format: an 8-byte little-endian header length,
 * a JSON header {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …,
 * "__metadata__": {string: string}}, then raw little-endian data.
 *
 * A file is hostile until proven otherwise. Opening checks: header length against
 * file size and SAFETENSORS_MAX_HEADER, JSON depth and uniqueness of names, every
 * dtype, every shape (rank ≤ 8, no negative dimension, product without overflow),
 * begin ≤ end, end - begin = bytes of the shape, offsets inside the data, regions
 * neither overlapping nor leaving holes. The limit on the header bounds the memory
 * that parsing can take (at worst about 75 bytes per byte of header) and is several
 * times what a model of ARCHITECTURE_MAX_LAYERS layers needs.
 *
 * There are two ways to the data. safetensors_open maps the file and never copies; a mapping has one hazard that no
 * check can remove: reading a page that another process has truncated away raises SIGBUS. It is for files that the
 * caller alone uses. safetensors_open_verified reads with pread(2) in chunks, each verified by the manifest of the
 * file's folder before a byte of it is used; a file that is truncated, changed or damaged meanwhile is an error. It is
 * for what a daemon keeps. */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include <jansson.h>

#include "engine/base/manifest.h"

enum { SAFETENSORS_MAX_HEADER = 4 << 20, SAFETENSORS_MAX_RANK = 8 };

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
	const unsigned char *data; /* into the mapping; may be unaligned. NULL when the file is not mapped */
	size_t offset, bytes;      /* in the file */
} safetensors_entry;

typedef struct safetensors safetensors;

/* STATUS_CORRUPT with the reason for a malformed file; err->param is the tensor to
 * blame, if it is one. On error *out is NULL. */
status safetensors_open(safetensors **out, const char *path, error *err);
/* The same without a mapping: for safetensors_load_f32. m: the manifest of the file's folder, borrowed until the file
 * is closed; NULL: nothing to verify. STATUS_STORAGE when the file differs from what was written. */
status safetensors_open_verified(safetensors **out, const char *path, const manifest *m, error *err);
void safetensors_close(safetensors *st);
/* Entries are in the order of their names. */
int safetensors_count(const safetensors *st);
const safetensors_entry *safetensors_at(const safetensors *st, int index);
/* NULL when there is no such tensor. */
const safetensors_entry *safetensors_find(const safetensors *st, const char *name);
/* The "__metadata__" value of a key, or NULL. */
const char *safetensors_metadata(const safetensors *st, const char *key);
/* Convert elements first … first + count - 1 into `out`, as safetensors_read_f32 does. Works on either kind of file; of
 * a verified one at most two chunks are in memory, so go through a file in the order of its offsets. STATUS_STORAGE:
 * damage. STATUS_IO: the file was truncated. */
status safetensors_load_f32(safetensors *st, const safetensors_entry *e, int64_t first, int64_t count, float *out,
                            error *err);
/* Of a mapped file. Convert element-wise into `out` (count elements) from any float or integer type;
 * f64 and i64 are rounded to nearest, NaN stays NaN. STATUS_INVALID for bool. */
status safetensors_read_f32(const safetensors_entry *e, float *out, error *err);
/* The same (mapped) from integer and bool (0 or 1) types. STATUS_INVALID naming the tensor for a
 * float type or a value that does not fit. */
status safetensors_read_i32(const safetensors_entry *e, int32_t *out, error *err);

/* One tensor to be written; data in host order of `type`. */
typedef struct safetensors_item {
	const char *name;
	safetensors_type type;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
	const void *data;
} safetensors_item;

/* Write atomically and durably; items keep their order, the header is padded with
 * spaces to a multiple of 8. metadata: a JSON object of strings, or NULL. */
status safetensors_write(const char *path, const safetensors_item *items, int count, const json_t *metadata,
                         error *err);

/* The parts of which it is made, for a writer that copies its data from elsewhere. Add the item (without data) to a
 * header at offset *end of the data, and advance it. The name must not be in the header yet. */
status safetensors_add(json_t *header, const safetensors_item *item, int64_t *end, error *err);
/* What stands before the data: the header's length and its text; malloc'ed. NULL when out of memory. */
unsigned char *safetensors_header(const json_t *header, size_t *bytes);

const char *safetensors_type_name(safetensors_type type);
size_t safetensors_type_bytes(safetensors_type type);

#endif
