/* safetensors.c - opening walks the parsed header twice: once per tensor (dtype, shape, offsets), then over the tensors
 * sorted by offset, where each must begin exactly where the one before ends. That single rule excludes overlaps and
 * holes. Names and metadata are borrowed from the JSON tree, which exists as long as the file is open.
 *
 * A verified file is read through windows of a chunk each. Each thread has two, because the data of tied tensors is
 * compared from two places of the file at once. A thread fills or copies from one window at a time, so one is always
 * free. If another thread is reading the chunk that a thread needs, that thread first reads a later chunk, then waits.
 * So each chunk is read and verified once, and several at a time.
 *
 * Rejected: a hand-written JSON parser, since jansson limits depth and rejects duplicate names, invalid UTF-8 and
 * numbers beyond 64 bits. Also rejected: reading all data into memory, which doubles the memory for the largest
 * files. */
#include "engine/model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "file data is used in host order");

enum { LENGTH_BYTES = 8, WINDOWS_PER_THREAD = 2, PIECE_BYTES = 1 << 16 };

/* A chunk of the file in memory. */
typedef struct window {
	unsigned char *data; /* NULL before first use */
	int64_t index;       /* -1: none */
	size_t bytes;
	uint64_t used; /* the file's clock at its last use */
	int users;     /* threads that fill it or copy from it */
	bool filling;
} window;

struct safetensors {
	file_map map; /* mapped */
	int fd;       /* verified files; -1: mapped */
	const manifest *manifest;
	const char *name; /* for the file */
	char *path;
	window windows[WINDOWS_PER_THREAD * SAFETENSORS_MAX_THREADS];
	int n_windows;
	uint64_t clock;
	pthread_mutex_t mutex; /* guards clock and windows, except the data of one that has users */
	pthread_cond_t filled;
	size_t bytes; /* for the file */
	json_t *header;
	safetensors_entry *entries;
	int count;
};

/* --- element types ---------------------------------------------------------------- */

/* Data may be at any address, hence memcpy. */
#define LOADER(function, type)                                                                                         \
	static type function(const unsigned char *p)                                                                   \
	{                                                                                                              \
		type element;                                                                                          \
		memcpy(&element, p, sizeof element);                                                                   \
		return element;                                                                                        \
	}
LOADER(load_f64, double)
LOADER(load_f32, float)
LOADER(load_u16, uint16_t)
LOADER(load_i64, int64_t)
LOADER(load_i32, int32_t)
LOADER(load_i16, int16_t)

static float float_of_bits(uint32_t bits)
{
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

static float float_of_f64(const unsigned char *p)
{
	return (float)load_f64(p);
}

/* IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. Every value is exact in f32. */
static float float_of_f16(const unsigned char *p)
{
	uint32_t half = load_u16(p), sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
	if (exponent == 31) /* infinity, NaN */
		return float_of_bits(sign | 0x7f800000 | mantissa << 13);
	if (exponent == 0) { /* zero, subnormal: mantissa · 2^-24 */
		float magnitude = (float)mantissa * 0x1p-24f;
		return sign ? -magnitude : magnitude;
	}
	return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* The upper half of an f32. */
static float float_of_bf16(const unsigned char *p)
{
	return float_of_bits((uint32_t)load_u16(p) << 16);
}

static int64_t integer_of_i32(const unsigned char *p)
{
	return load_i32(p);
}

static int64_t integer_of_i16(const unsigned char *p)
{
	return load_i16(p);
}

static int64_t integer_of_i8(const unsigned char *p)
{
	return (int8_t)*p;
}

static int64_t integer_of_u8(const unsigned char *p)
{
	return *p;
}

static int64_t integer_of_bool(const unsigned char *p)
{
	return *p != 0;
}

/* Each type has one of the two conversions. */
static const struct {
	const char *name;
	size_t bytes;
	float (*real)(const unsigned char *p);
	int64_t (*integer)(const unsigned char *p);
} types[] = {
    [ST_F64] = {"F64", 8, float_of_f64, NULL},   [ST_F32] = {"F32", 4, load_f32, NULL},
    [ST_F16] = {"F16", 2, float_of_f16, NULL},   [ST_BF16] = {"BF16", 2, float_of_bf16, NULL},
    [ST_I64] = {"I64", 8, NULL, load_i64},       [ST_I32] = {"I32", 4, NULL, integer_of_i32},
    [ST_I16] = {"I16", 2, NULL, integer_of_i16}, [ST_I8] = {"I8", 1, NULL, integer_of_i8},
    [ST_U8] = {"U8", 1, NULL, integer_of_u8},    [ST_BOOL] = {"BOOL", 1, NULL, integer_of_bool},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const char *safetensors_type_name(safetensors_type type)
{
	return types[type].name;
}

size_t safetensors_type_bytes(safetensors_type type)
{
	return types[type].bytes;
}

static status check_numeric(const safetensors_entry *e, error *err)
{
	if (e->type == ST_BOOL)
		return error_set(err, STATUS_INVALID, e->name, "tensor \"%.100s\" holds BOOL, not numbers", e->name);
	return STATUS_OK;
}

static void convert(safetensors_type type, const unsigned char *from, int64_t count, float *out)
{
	if (type == ST_F32 && count)
		memcpy(out, from, (size_t)count * sizeof *out);
	for (int64_t i = 0; i < count && type != ST_F32; i++, from += types[type].bytes)
		out[i] = types[type].real ? types[type].real(from) : (float)types[type].integer(from);
}

status safetensors_read_f32(const safetensors_entry *e, float *out, error *err)
{
	assert(e->data);
	TRY(check_numeric(e, err));
	convert(e->type, e->data, e->count, out);
	return STATUS_OK;
}

status safetensors_read_i32(const safetensors_entry *e, int32_t *out, error *err)
{
	assert(e->data);
	if (!types[e->type].integer)
		return error_set(err, STATUS_INVALID, e->name, "tensor \"%.100s\" holds %s, not integers", e->name,
		                 types[e->type].name);
	for (int64_t i = 0; i < e->count; i++) {
		int64_t x = types[e->type].integer(e->data + (size_t)i * types[e->type].bytes);
		if (x < INT32_MIN || x > INT32_MAX)
			return error_set(err, STATUS_INVALID, e->name,
			                 "tensor \"%.100s\" holds %" PRId64 ", which is out of range", e->name, x);
		out[i] = (int32_t)x;
	}
	return STATUS_OK;
}

/* --- reading ------------------------------------------------------------------ */

/* Fill a window with chunk `index`, verified. */
static status safetensors_read_chunk(const safetensors *st, window *w, int64_t index, error *err)
{
	size_t from = (size_t)index * MANIFEST_CHUNK_BYTES, left = st->bytes - from, used = 0;
	size_t bytes = left < MANIFEST_CHUNK_BYTES ? left : MANIFEST_CHUNK_BYTES;
	if (!w->data && !(w->data = malloc(MANIFEST_CHUNK_BYTES)))
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for a part of %.100s", st->name);
	while (used < bytes) {
		ssize_t n = pread(st->fd, w->data + used, bytes - used, (off_t)(from + used));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(err, st->path, "cannot read");
		if (n == 0)
			return error_set(err, st->manifest ? STATUS_STORAGE : STATUS_IO, NULL,
			                 "%.100s was truncated while it was read", st->name);
		used += (size_t)n;
	}
	TRY(manifest_check_chunk(st->manifest, st->name, index, w->data, bytes, err));
	w->bytes = bytes;
	(void)posix_fadvise(st->fd, (off_t)(from + bytes), MANIFEST_CHUNK_BYTES, POSIX_FADV_WILLNEED);
	return STATUS_OK;
}

/* Return the window of chunk `index`, otherwise the least recently used one without users; NULL: all have users. */
static window *find_window(safetensors *st, int64_t index)
{
	window *found = NULL;
	for (window *w = st->windows; w < st->windows + st->n_windows; w++) {
		if (w->index == index)
			return w;
		if (w->users == 0 && (!found || w->used < found->used))
			found = w;
	}
	return found;
}

/* Fill a window of which the caller is the user. The mutex is released meanwhile. After an error the window has no
 * chunk, and a thread that waits for the chunk tries itself. */
static status fill_window(safetensors *st, window *w, int64_t index, error *err)
{
	w->index = index;
	w->filling = true;
	pthread_mutex_unlock(&st->mutex);
	status s = safetensors_read_chunk(st, w, index, err);
	pthread_mutex_lock(&st->mutex);
	w->filling = false;
	if (s != STATUS_OK)
		w->index = -1;
	pthread_cond_broadcast(&st->filled);
	return s;
}

/* Read the first chunk after `index` that is in no window, while another thread reads that one. */
static void read_ahead(safetensors *st, int64_t index)
{
	const int64_t chunks = (int64_t)((st->bytes + MANIFEST_CHUNK_BYTES - 1) / MANIFEST_CHUNK_BYTES);
	window *w;
	do
		w = find_window(st, ++index);
	while (index < chunks && w && w->index == index);
	if (index >= chunks || !w)
		return;
	w->users++;
	w->used = ++st->clock;
	(void)fill_window(st, w, index, NULL); /* the thread that needs the chunk gets the error */
	w->users--;
}

/* Return the window of chunk `index` with the caller as a user. */
static status take_window(safetensors *st, int64_t index, window **out, error *err)
{
	status s = STATUS_OK;
	window *w;
	pthread_mutex_lock(&st->mutex);
	for (bool ahead = false; (w = find_window(st, index))->filling; ahead = true)
		if (ahead)
			pthread_cond_wait(&st->filled, &st->mutex);
		else
			read_ahead(st, index);
	w->users++;
	w->used = ++st->clock;
	if (w->index != index)
		s = fill_window(st, w, index, err);
	w->users -= s != STATUS_OK;
	pthread_mutex_unlock(&st->mutex);
	*out = w;
	return s;
}

static void give_window(safetensors *st, window *w)
{
	pthread_mutex_lock(&st->mutex);
	w->users--;
	pthread_mutex_unlock(&st->mutex);
}

void safetensors_use_threads(safetensors *st, int threads)
{
	assert(threads >= 1 && threads <= SAFETENSORS_MAX_THREADS);
	st->n_windows = WINDOWS_PER_THREAD * threads;
}

/* Copy bytes `offset` to `offset + bytes`, which must be inside the file. */
static status copy_bytes(safetensors *st, size_t offset, size_t bytes, unsigned char *out, error *err)
{
	if (st->fd < 0 && bytes)
		memcpy(out, st->map.data + offset, bytes);
	while (st->fd >= 0 && bytes) {
		window *w;
		TRY(take_window(st, (int64_t)(offset / MANIFEST_CHUNK_BYTES), &w, err));
		size_t at = offset % MANIFEST_CHUNK_BYTES, n = w->bytes - at < bytes ? w->bytes - at : bytes;
		memcpy(out, w->data + at, n);
		give_window(st, w);
		offset += n;
		out += n;
		bytes -= n;
	}
	return STATUS_OK;
}

status safetensors_load_f32(safetensors *st, const safetensors_entry *e, int64_t first, int64_t count, float *out,
                            error *err)
{
	unsigned char piece[PIECE_BYTES];
	size_t element = types[e->type].bytes, offset = e->offset + (size_t)first * element;
	assert(first >= 0 && count >= 0 && count <= e->count - first);
	TRY(check_numeric(e, err));
	if (e->type == ST_F32)
		return copy_bytes(st, offset, (size_t)count * element, (unsigned char *)out, err);
	while (count) {
		int64_t most = (int64_t)(sizeof piece / element), n = count < most ? count : most;
		TRY(copy_bytes(st, offset, (size_t)n * element, piece, err));
		convert(e->type, piece, n, out);
		offset += (size_t)n * element;
		out += n;
		count -= n;
	}
	return STATUS_OK;
}

/* --- opening ------------------------------------------------------------------ */

static bool find_type(const char *name, safetensors_type *out)
{
	for (int i = 0; name && i < TYPE_COUNT; i++) {
		if (strcmp(name, types[i].name) == 0) {
			*out = (safetensors_type)i;
			return true;
		}
	}
	return false;
}

__attribute__((format(printf, 3, 4))) static status corrupt(error *err, const char *name, const char *what, ...)
{
	char words[320];
	va_list arguments;
	va_start(arguments, what);
	vsnprintf(words, sizeof words, what, arguments);
	va_end(arguments);
	return error_set(err, STATUS_CORRUPT, name, "tensor \"%.100s\": %s", name, words);
}

/* Return a value of the header as text. */
static const char *quote(const json_t *value, char *out, size_t size)
{
	size_t n = value ? json_dumpb(value, out, size - 1, JSON_ENCODE_ANY | JSON_COMPACT) : 0;
	if (n >= size)
		return "too long to show";
	out[n] = '\0';
	return n ? out : "missing";
}

static bool read_shape(const json_t *shape, safetensors_entry *e)
{
	if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_RANK)
		return false;
	e->rank = (int)json_array_size(shape);
	e->count = 1;
	for (int i = 0; i < e->rank; i++) {
		const json_t *dim = json_array_get(shape, (size_t)i);
		if (!json_is_integer(dim))
			return false;
		e->dim[i] = json_integer_value(dim);
		if (!memory_product(e->count, e->dim[i], &e->count))
			return false;
	}
	return true;
}

/* Parse an entry; the data of all tensors is data_bytes bytes from `data` on. */
static status read_entry(safetensors_entry *e, const char *name, const json_t *json, size_t data, size_t data_bytes,
                         error *err)
{
	e->name = name;
	if (!json_is_object(json))
		return corrupt(err, name, "its header entry is not an object");
	char found[192];
	const json_t *type = json_object_get(json, "dtype"), *shape = json_object_get(json, "shape");
	if (!find_type(json_string_value(type), &e->type))
		return corrupt(err, name,
		               "dtype is %s, expected one of F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL",
		               quote(type, found, sizeof found));
	if (!read_shape(shape, e))
		return corrupt(err, name, "shape is %s, expected up to %d dimensions of at least 0",
		               quote(shape, found, sizeof found), SAFETENSORS_MAX_RANK);
	const json_t *offsets = json_object_get(json, "data_offsets");
	const json_t *begin_json = json_array_get(offsets, 0), *end_json = json_array_get(offsets, 1);
	if (json_array_size(offsets) != 2 || !json_is_integer(begin_json) || !json_is_integer(end_json))
		return corrupt(err, name, "data_offsets are %s, expected two integers",
		               quote(offsets, found, sizeof found));
	int64_t begin = json_integer_value(begin_json), end = json_integer_value(end_json), bytes = 0;
	if (begin < 0 || begin > end || (uint64_t)end > data_bytes)
		return corrupt(err, name,
		               "data_offsets [%" PRId64 ", %" PRId64
		               "] lie outside the file's %zu bytes of data (truncated?)",
		               begin, end, data_bytes);
	if (!memory_product(e->count, (int64_t)types[e->type].bytes, &bytes))
		return corrupt(err, name, "shape %s is too large", quote(shape, found, sizeof found));
	if (bytes != end - begin)
		return corrupt(err, name, "data_offsets hold %" PRId64 " bytes, %s of shape %s needs %" PRId64,
		               end - begin, types[e->type].name, quote(shape, found, sizeof found), bytes);
	if (json_object_size(json) != 3)
		return corrupt(err, name, "its header entry has an unknown field");
	e->offset = data + (size_t)begin;
	e->bytes = (size_t)bytes;
	return STATUS_OK;
}

static status check_metadata(json_t *metadata, error *err)
{
	const char *key;
	json_t *text;
	if (!json_is_object(metadata))
		return error_set(err, STATUS_CORRUPT, "__metadata__", "the metadata is not an object");
	json_object_foreach(metadata, key, text) if (!json_is_string(text)) return error_set(
	    err, STATUS_CORRUPT, "__metadata__", "the metadata holds more than strings");
	return STATUS_OK;
}

/* Empty tensors sort before the tensor that begins at the same place. */
static int by_offset(const void *a, const void *b)
{
	const safetensors_entry *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const safetensors_entry *)a)->name, ((const safetensors_entry *)b)->name);
}

static status read_entries(safetensors *st, size_t header_bytes, error *err)
{
	size_t data = LENGTH_BYTES + header_bytes, data_bytes = st->bytes - data;
	const char *name;
	json_t *json;
	json_object_foreach(st->header, name, json)
	{
		if (strcmp(name, "__metadata__") == 0)
			TRY(check_metadata(json, err));
		else
			TRY(read_entry(&st->entries[st->count++], name, json, data, data_bytes, err));
	}
	if (st->count > 1)
		qsort(st->entries, (size_t)st->count, sizeof *st->entries, by_offset);
	size_t expected = data;
	for (int i = 0; i < st->count; i++) {
		if (st->entries[i].offset != expected)
			return corrupt(err, st->entries[i].name, "its data begins at %zu, %s at %zu",
			               st->entries[i].offset - data,
			               i ? "that of the tensor before it ends" : "the first tensor's is expected",
			               expected - data);
		expected += st->entries[i].bytes;
		st->entries[i].data = st->map.data ? st->map.data + st->entries[i].offset : NULL;
	}
	if (expected != data + data_bytes)
		return error_set(err, STATUS_CORRUPT, NULL, "the file holds %zu bytes of data, its tensors %zu",
		                 data_bytes, expected - data);
	if (st->count > 1)
		qsort(st->entries, (size_t)st->count, sizeof *st->entries, by_name);
	return STATUS_OK;
}

/* Parse the `bytes` bytes of JSON after the header's length. */
static status parse_header(safetensors *st, size_t bytes, error *err)
{
	json_error_t reason;
	char *copy = st->fd >= 0 ? memory_new(bytes, 1) : NULL;
	const char *text = copy ? copy : (const char *)st->map.data + LENGTH_BYTES;
	if (st->fd >= 0) {
		status read = copy ? copy_bytes(st, LENGTH_BYTES, bytes, (unsigned char *)copy, err)
		                   : error_no_memory(err, "a safetensors header");
		if (read != STATUS_OK) {
			free(copy);
			return read;
		}
	}
	status s = json_read(&st->header, text, bytes, JSON_REJECT_DUPLICATES, &reason);
	free(copy);
	if (s == STATUS_NOMEM)
		return error_no_memory(err, "a safetensors header");
	if (s != STATUS_OK)
		return error_set(err, STATUS_CORRUPT, NULL, "the header is not valid JSON: %.100s", reason.text);
	if (!json_is_object(st->header))
		return error_set(err, STATUS_CORRUPT, NULL, "the header is not a JSON object");
	return STATUS_OK;
}

static status read_header(safetensors *st, error *err)
{
	uint64_t header_bytes;
	if (st->bytes < sizeof header_bytes)
		return error_set(err, STATUS_CORRUPT, NULL, "the file is too short to be a safetensors file");
	TRY(copy_bytes(st, 0, sizeof header_bytes, (unsigned char *)&header_bytes, err));
	if (header_bytes > st->bytes - LENGTH_BYTES)
		return error_set(err, STATUS_CORRUPT, NULL,
		                 "the header is longer than the file: %" PRIu64 " of %zu bytes (truncated?)",
		                 header_bytes, st->bytes - LENGTH_BYTES);
	if (header_bytes > SAFETENSORS_MAX_HEADER)
		return error_set(err, STATUS_CORRUPT, NULL, "the header has %" PRIu64 " bytes, the limit is %d",
		                 header_bytes, SAFETENSORS_MAX_HEADER);
	TRY(parse_header(st, (size_t)header_bytes, err));
	st->entries = memory_new(json_object_size(st->header), sizeof *st->entries);
	if (!st->entries)
		return error_no_memory(err, "a safetensors header");
	return read_entries(st, (size_t)header_bytes, err);
}

static status map_file(safetensors *st, const char *path, error *err)
{
	TRY(file_map_open(&st->map, path, err));
	st->bytes = st->map.bytes;
	return STATUS_OK;
}

/* Open the file and get its length. A file listed in its manifest must exist with that length. */
static status open_file(safetensors *st, const char *path, error *err)
{
	struct stat about;
	error reason = ERROR_INIT;
	status s = STATUS_OK;
	const char *slash = strrchr(path, '/');
	st->path = strdup(path);
	if (!st->path)
		return error_no_memory(err, "a safetensors header");
	st->name = st->path + (slash ? slash + 1 - path : 0);
	st->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (st->fd < 0 || fstat(st->fd, &about) != 0)
		s = file_error(&reason, path, "cannot open");
	else if (!S_ISREG(about.st_mode))
		s = error_set(&reason, STATUS_IO, NULL, "not a regular file");
	int64_t written = st->manifest ? manifest_file_bytes(st->manifest, st->name) : -1;
	if (s == STATUS_NOT_FOUND && written >= 0)
		return error_set(err, STATUS_STORAGE, NULL, "%.100s is missing", st->name);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", reason.message);
	if (st->manifest && written != about.st_size)
		return error_set(err, STATUS_STORAGE, NULL, "%.100s is damaged: it has another length than was written",
		                 st->name);
	st->bytes = (size_t)about.st_size;
	return STATUS_OK;
}

static status finish_opening(safetensors **out, safetensors *st, status s, error *err)
{
	if (s == STATUS_OK)
		s = read_header(st, err);
	if (s == STATUS_OK)
		*out = st;
	else
		safetensors_close(st);
	return s;
}

static safetensors *safetensors_new(const manifest *m)
{
	safetensors *st = memory_new(1, sizeof *st);
	if (!st)
		return NULL;
	st->fd = -1;
	st->manifest = m;
	for (size_t i = 0; i < sizeof st->windows / sizeof *st->windows; i++)
		st->windows[i].index = -1;
	st->n_windows = WINDOWS_PER_THREAD;
	pthread_mutex_init(&st->mutex, NULL);
	pthread_cond_init(&st->filled, NULL);
	return st;
}

status safetensors_open(safetensors **out, const char *path, error *err)
{
	*out = NULL;
	safetensors *st = safetensors_new(NULL);
	return st ? finish_opening(out, st, map_file(st, path, err), err)
	          : error_no_memory(err, "a safetensors header");
}

status safetensors_open_verified(safetensors **out, const char *path, const manifest *m, error *err)
{
	*out = NULL;
	safetensors *st = safetensors_new(m);
	return st ? finish_opening(out, st, open_file(st, path, err), err)
	          : error_no_memory(err, "a safetensors header");
}

void safetensors_close(safetensors *st)
{
	if (!st)
		return;
	if (st->fd >= 0)
		close(st->fd);
	for (int i = 0; i < st->n_windows; i++)
		free(st->windows[i].data);
	pthread_mutex_destroy(&st->mutex);
	pthread_cond_destroy(&st->filled);
	free(st->path);
	free(st->entries);
	json_decref(st->header);
	file_map_close(&st->map);
	free(st);
}

/* --- looking up ----------------------------------------------------------------- */

int safetensors_count(const safetensors *st)
{
	return st->count;
}

const safetensors_entry *safetensors_at(const safetensors *st, int index)
{
	return &st->entries[index];
}

const safetensors_entry *safetensors_find(const safetensors *st, const char *name)
{
	const safetensors_entry key = {.name = name};
	return st->count ? bsearch(&key, st->entries, (size_t)st->count, sizeof key, by_name) : NULL;
}

const char *safetensors_metadata(const safetensors *st, const char *key)
{
	return json_string_value(json_object_get(json_object_get(st->header, "__metadata__"), key));
}
