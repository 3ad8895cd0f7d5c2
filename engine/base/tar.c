/* A state machine over blocks of 512 bytes: a header, then data and its padding, until a block of zeros. An entry of
 * type x (pax) or L (GNU) describes the next one: its data is kept, up to TAR_MAX_EXTENSION.
 *
 * Rejected: libarchive. It pulls its input, so the archive would have to be on disk beside its files. It also reads
 * dozens of formats that an upload must not be able to choose. */
#include "engine/base/tar.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Places in a header. */
enum {
	NAME = 0,
	NAME_BYTES = 100,
	SIZE = 124,
	NUMBER_BYTES = 12,
	SUM = 148,
	SUM_BYTES = 8,
	TYPE = 156,
	MAGIC = 257,
	PREFIX = 345,
	PREFIX_BYTES = 155
};

static status corrupt(error *err, const char *what)
{
	return error_set(err, STATUS_CORRUPT, NULL, "the archive %s", what);
}

/* --- headers -------------------------------------------------------------------------------------- */

/* Octal digits between spaces and NULs; GNU's binary form has the highest bit set. -1: neither. */
static int64_t read_number(const unsigned char *field, size_t bytes)
{
	int64_t value = 0;
	size_t i = 0;
	if (field[0] & 0x80) {
		if (field[0] != 0x80)
			return -1;
		for (i = 1; i < bytes; i++)
			if (__builtin_mul_overflow(value, 256, &value) ||
			    __builtin_add_overflow(value, field[i], &value))
				return -1;
		return value;
	}
	while (i < bytes && field[i] == ' ')
		i++;
	for (; i < bytes && field[i] >= '0' && field[i] <= '7'; i++)
		value = value * 8 + (field[i] - '0'); /* at most 12 digits */
	for (; i < bytes; i++)
		if (field[i] != ' ' && field[i] != '\0')
			return -1;
	return value;
}

/* The sum of all bytes, with spaces in the place of the sum. */
static bool sum_fits(const unsigned char *block)
{
	int64_t sum = 0;
	for (int i = 0; i < TAR_BLOCK; i++)
		sum += i >= SUM && i < SUM + SUM_BYTES ? ' ' : block[i];
	return read_number(block + SUM, SUM_BYTES) == sum;
}

/* "prefix/name" of a header, each of which may fill its field. */
static void read_path(const unsigned char *block, char *out)
{
	const char *name = (const char *)block + NAME, *prefix = (const char *)block + PREFIX;
	/* GNU's old form has times where ustar ("ustar", NUL) has the prefix. */
	bool ustar = memcmp(block + MAGIC, "ustar", 6) == 0;
	int n = ustar ? (int)strnlen(prefix, PREFIX_BYTES) : 0;
	memcpy(out, prefix, (size_t)n);
	if (n)
		out[n++] = '/';
	size_t length = strnlen(name, NAME_BYTES);
	memcpy(out + n, name, length);
	out[(size_t)n + length] = '\0';
}

static status tar_refuse(error *err, const char *path, const char *reason)
{
	return error_set(err, STATUS_INVALID, NULL, "the archive's entry \"%.100s\" %s", path, reason);
}

/* A path of an entry without the "./" before it. */
static status check_path(const char *path, const char **out, error *err)
{
	*out = path;
	if (path[0] == '/')
		return tar_refuse(err, path, "has an absolute path");
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += *part == '/';
		size_t n = strcspn(part, "/");
		if (n == 2 && part[0] == '.' && part[1] == '.')
			return tar_refuse(err, path, "has \"..\" in its path");
		if (part == *out && n == 1 && part[0] == '.')
			*out = part + n + strspn(part + n, "/");
	}
	return STATUS_OK;
}

/* --- entries that describe the next one ----------------------------------------------------------- */

static status keep_path(tar_reader *t, const char *path, size_t bytes, error *err)
{
	if (bytes >= sizeof t->path || memchr(path, '\0', bytes))
		return corrupt(err, "has a path that is too long");
	memcpy(t->path, path, bytes);
	t->path[bytes] = '\0';
	return STATUS_OK;
}

/* One "KEY=VALUE" of a pax header. */
static status read_record(tar_reader *t, const char *record, size_t bytes, error *err)
{
	const char *equals = memchr(record, '=', bytes);
	if (!equals)
		return corrupt(err, "has a malformed extended header");
	size_t key = (size_t)(equals - record), n = bytes - key - 1;
	if (key == 4 && memcmp(record, "path", key) == 0)
		return keep_path(t, equals + 1, n, err);
	if (key >= 10 && memcmp(record, "GNU.sparse", 10) == 0)
		return error_set(err, STATUS_INVALID, NULL, "the archive holds a sparse file");
	if (key != 4 || memcmp(record, "size", key) != 0)
		return STATUS_OK;
	t->bytes = n > 0 && n <= 18 ? 0 : -2;
	for (size_t i = 0; i < n && t->bytes >= 0; i++)
		t->bytes = equals[1 + i] >= '0' && equals[1 + i] <= '9' ? t->bytes * 10 + (equals[1 + i] - '0') : -2;
	return t->bytes >= 0 ? STATUS_OK : corrupt(err, "has a malformed size");
}

/* "LENGTH KEY=VALUE\n" after each other, where LENGTH counts all of a record. */
static status read_extension(tar_reader *t, error *err)
{
	size_t at = 0;
	while (at < t->extension_used) {
		size_t length = 0, digits = 0, left = t->extension_used - at;
		const char *record = t->extension + at;
		for (; digits < left && digits < 6 && record[digits] >= '0' && record[digits] <= '9'; digits++)
			length = length * 10 + (size_t)(record[digits] - '0');
		if (!digits || length > left || length < digits + 3 || record[digits] != ' ' ||
		    record[length - 1] != '\n')
			return corrupt(err, "has a malformed extended header");
		TRY(read_record(t, record + digits + 1, length - digits - 2, err));
		at += length;
	}
	return STATUS_OK;
}

/* --- entries ---------------------------------------------------------------------------------------- */

/* Kind of data that follows a header: 'f' a file, 'L', 'x' a description, 's' data to be skipped. */
static status tar_kind_of(const unsigned char *block, const char *path, char *out, error *err)
{
	switch (block[TYPE]) {
	case '\0':
	case '0':
	case '7':
		*out = 'f';
		return STATUS_OK;
	case 'L':
	case 'x':
		*out = (char)block[TYPE];
		return STATUS_OK;
	case '5': /* a folder */
	case 'g': /* pax, of all files: times, comments */
		*out = 's';
		return STATUS_OK;
	case '1':
	case '2':
	case 'K':
		return tar_refuse(err, path, "is a link");
	default:
		return tar_refuse(err, path, "is not a regular file");
	}
}

static status begin_file(tar_reader *t, const unsigned char *block, const char *path, error *err)
{
	size_t n = strlen(path);
	/* Old archives mark folders by their names alone. */
	if (t->kind == 's' || !n || path[n - 1] == '/') {
		t->kind = 's';
		return block[TYPE] == '5' && t->left ? tar_refuse(err, path, "is a folder with data") : STATUS_OK;
	}
	return t->events.begin(t->context, path, t->left, err);
}

static status read_header(tar_reader *t, error *err)
{
	const unsigned char *block = t->block;
	const char *relative;
	if (!sum_fits(block))
		return corrupt(err, t->entries ? "has a damaged header"
		                    : block[0] == 0x1f || memcmp(block, "\x28\xb5\x2f\xfd", 4) == 0
		                        ? "is compressed; a plain tar archive is needed"
		                        : "is not a tar archive");
	if (++t->entries > TAR_MAX_ENTRIES)
		return corrupt(err, "has too many entries");
	char path[TAR_MAX_PATH];
	read_path(block, path);
	if (t->path[0])
		memcpy(path, t->path, sizeof path);
	t->left = t->bytes >= 0 ? t->bytes : read_number(block + SIZE, NUMBER_BYTES);
	if (t->left < 0 || t->left > INT64_MAX - TAR_BLOCK)
		return corrupt(err, "has an impossible size");
	t->padding = (TAR_BLOCK - t->left % TAR_BLOCK) % TAR_BLOCK;
	TRY(check_path(path, &relative, err));
	TRY(tar_kind_of(block, path, &t->kind, err));
	if (t->kind == 'L' || t->kind == 'x') {
		t->extension_used = 0;
		if (t->left > TAR_MAX_EXTENSION)
			return corrupt(err, "has an extended header that is too long");
		if (!t->extension && !(t->extension = malloc(TAR_MAX_EXTENSION)))
			return error_set(err, STATUS_NOMEM, NULL, "out of memory");
		return STATUS_OK;
	}
	t->path[0] = '\0';
	t->bytes = -1;
	return begin_file(t, block, relative, err);
}

static status end_entry(tar_reader *t, error *err)
{
	char kind = t->kind;
	t->kind = 0;
	if (kind == 'f')
		return t->events.end(t->context, err);
	if (kind == 'x')
		return read_extension(t, err);
	if (kind == 'L')
		return keep_path(t, t->extension, strnlen(t->extension, t->extension_used), err);
	return STATUS_OK;
}

/* --- bytes ------------------------------------------------------------------------------------------ */

static size_t least(size_t a, int64_t b)
{
	return (uint64_t)b < a ? (size_t)b : a;
}

/* Consume the bytes of an entry's data; *n: the number consumed. */
static status take_data(tar_reader *t, const unsigned char *data, size_t bytes, size_t *n, error *err)
{
	*n = least(bytes, t->left ? t->left : t->padding);
	if (!t->left) {
		t->padding -= (int64_t)*n;
	} else {
		t->left -= (int64_t)*n;
		if (t->kind == 'f')
			TRY(t->events.data(t->context, data, *n, err));
		if (t->kind == 'L' || t->kind == 'x') {
			memcpy(t->extension + t->extension_used, data, *n);
			t->extension_used += *n;
		}
	}
	return t->left || t->padding ? STATUS_OK : end_entry(t, err);
}

static status take_block(tar_reader *t, error *err)
{
	static const unsigned char zeros[TAR_BLOCK];
	t->used = 0;
	if (memcmp(t->block, zeros, TAR_BLOCK) == 0) {
		t->ended = true;
		return STATUS_OK;
	}
	TRY(read_header(t, err));
	return t->left ? STATUS_OK : end_entry(t, err);
}

status tar_feed(tar_reader *t, const void *data, size_t bytes, error *err)
{
	const unsigned char *at = data;
	if (!t->entries && !t->used)
		t->bytes = -1;
	while (bytes && !t->ended) {
		size_t n;
		if (t->kind) {
			TRY(take_data(t, at, bytes, &n, err));
		} else {
			n = least(bytes, (int64_t)(TAR_BLOCK - t->used));
			memcpy(t->block + t->used, at, n);
			t->used += n;
			if (t->used == TAR_BLOCK)
				TRY(take_block(t, err));
		}
		at += n;
		bytes -= n;
	}
	return STATUS_OK;
}

status tar_finish(tar_reader *t, error *err)
{
	return t->ended && !t->path[0] ? STATUS_OK : corrupt(err, "is not whole: its end is missing");
}

int64_t tar_padding(int64_t bytes)
{
	return -bytes & (TAR_BLOCK - 1);
}

void tar_header(unsigned char block[TAR_BLOCK], const char *name, int64_t bytes)
{
	enum { MODE = 100, OWNER = 108, GROUP = 116, TIME = 136 };
	char *const at = (char *)block;
	unsigned sum = 0;
	assert(strlen(name) < NAME_BYTES && bytes >= 0 && bytes < (int64_t)1 << 33);
	memset(block, 0, TAR_BLOCK);
	memcpy(at + NAME, name, strlen(name));
	memcpy(at + MODE, "0000644", 8);
	memcpy(at + OWNER, "0000000", 8);
	memcpy(at + GROUP, "0000000", 8);
	snprintf(at + SIZE, NUMBER_BYTES, "%011" PRIo64, (uint64_t)bytes);
	memcpy(at + TIME, "00000000000", NUMBER_BYTES);
	memset(block + SUM, ' ', SUM_BYTES);
	block[TYPE] = '0';
	memcpy(at + MAGIC,
	       "ustar\0"
	       "00",
	       8);
	for (int i = 0; i < TAR_BLOCK; i++)
		sum += block[i];
	snprintf(at + SUM, SUM_BYTES, "%06o", sum);
}

void tar_fini(tar_reader *t)
{
	free(t->extension);
	t->extension = NULL;
}
