/* shards.c - the data of a safetensors file has neither holes nor overlaps. The joined data is therefore the files'
 * data one after the other, and the joined header is their headers with shifted offsets. All files are checked before
 * the first byte is copied. */
#include "engine/model/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/model/safetensors.h"

enum { PIECE = 1 << 20 };

typedef struct shards {
	const char *folder;
	json_t *index;
	const json_t *map; /* tensor to file, borrowed from the index */
	json_t *files;     /* file to its bytes of data, in the order of the data */
	json_t *header;
	int64_t end; /* end of the data so far */
	int fd;      /* the joined file */
	char *piece;
} shards;

static status shards_no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory to join files of weights");
}

/* --- the index ------------------------------------------------------------------------------------ */

/* *found false: there is no index. */
static status read_index(shards *s, bool *found, error *err)
{
	char path[PATH_MAX], *text;
	size_t bytes;
	json_error_t reason;
	error failure = ERROR_INIT;
	TRY(path_join(path, s->folder, SHARDS_INDEX, err));
	status result = file_read(path, SHARDS_MAX_INDEX, &text, &bytes, &failure);
	*found = result != STATUS_NOT_FOUND;
	if (!*found)
		return STATUS_OK;
	if (result != STATUS_OK)
		return error_set(err, result, NULL, "%s", error_message(&failure));
	result = json_read(&s->index, text, bytes, JSON_REJECT_DUPLICATES, &reason);
	free(text);
	if (result == STATUS_NOMEM)
		return shards_no_memory(err);
	s->map = json_object_get(s->index, "weight_map");
	if (json_is_object(s->map) && json_object_size(s->map) > 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "weight_map", SHARDS_INDEX " %s%.100s",
	                 s->index ? "has no object \"weight_map\" of tensors and their files" : "is not valid JSON: ",
	                 s->index ? "" : reason.text);
}

static bool plain_name(const char *name)
{
	return name && name[0] && name[0] != '.' && strlen(name) < NAME_MAX && !strchr(name, '/');
}

static status collect_files(shards *s, error *err)
{
	const char *tensor;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)s->map, tensor, value)
	{
		const char *file = json_string_value(value);
		if (!plain_name(file))
			return error_set(err, STATUS_INVALID, tensor,
			                 SHARDS_INDEX " names no file for tensor \"%.100s\"", tensor);
		if (!json_object_get(s->files, file) && json_object_set_new(s->files, file, json_integer(0)) != 0)
			return shards_no_memory(err);
	}
	if (json_object_size(s->files) > SHARDS_MAX_FILES)
		return error_set(err, STATUS_INVALID, "weight_map", SHARDS_INDEX " names more than %d files",
		                 SHARDS_MAX_FILES);
	return STATUS_OK;
}

/* --- headers --------------------------------------------------------------------------------------- */

static status add_entry(shards *s, const char *file, const safetensors_entry *e, int64_t data, error *err)
{
	const char *expected = json_string_value(json_object_get(s->map, e->name));
	if (!expected)
		return error_set(err, STATUS_INVALID, e->name, "tensor \"%.100s\" of %.64s is not in " SHARDS_INDEX,
		                 e->name, file);
	if (strcmp(expected, file) != 0)
		return error_set(err, STATUS_INVALID, e->name,
		                 "tensor \"%.100s\" is in %.64s, " SHARDS_INDEX " says %.64s", e->name, file, expected);
	safetensors_item item = {.name = e->name, .type = e->type, .rank = e->rank};
	memcpy(item.dim, e->dim, sizeof item.dim);
	int64_t begin = s->end + ((int64_t)e->offset - data), end = begin;
	return safetensors_add(s->header, &item, &end, err);
}

/* Add the tensors of one file to the header; nothing is copied yet. */
static status shards_add_file(shards *s, const char *file, error *err)
{
	char path[PATH_MAX];
	safetensors *st;
	error reason = ERROR_INIT;
	TRY(path_join(path, s->folder, file, err));
	status result = safetensors_open_verified(&st, path, NULL, &reason);
	if (result == STATUS_NOT_FOUND)
		return error_set(err, STATUS_INVALID, file, "%.64s is missing, which " SHARDS_INDEX " names", file);
	if (result != STATUS_OK)
		return error_set(err, result, reason.param, "%.64s: %s", file, error_message(&reason));
	int64_t bytes = 0, data = INT64_MAX;
	for (int i = 0; i < safetensors_count(st); i++) {
		const safetensors_entry *e = safetensors_at(st, i);
		bytes += (int64_t)e->bytes;
		data = (int64_t)e->offset < data ? (int64_t)e->offset : data;
	}
	for (int i = 0; i < safetensors_count(st) && result == STATUS_OK; i++)
		result = add_entry(s, file, safetensors_at(st, i), data, err);
	safetensors_close(st);
	if (result == STATUS_OK && __builtin_add_overflow(s->end, bytes, &s->end))
		result = error_set(err, STATUS_INVALID, file, "the weights are too large");
	if (result == STATUS_OK && json_object_set_new(s->files, file, json_integer(bytes)) != 0)
		result = shards_no_memory(err);
	return result;
}

static status check_complete(const shards *s, error *err)
{
	const char *tensor;
	json_t *file;
	json_object_foreach((json_t *)(uintptr_t)s->map, tensor, file)
	{
		if (!json_object_get(s->header, tensor))
			return error_set(err, STATUS_INVALID, tensor,
			                 "tensor \"%.100s\" is missing in %.64s, where " SHARDS_INDEX " says it is",
			                 tensor, json_string_value(file));
	}
	return STATUS_OK;
}

static status read_headers(shards *s, error *err)
{
	const char *file;
	json_t *bytes;
	s->header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	if (!s->header)
		return shards_no_memory(err);
	json_object_foreach(s->files, file, bytes) TRY(shards_add_file(s, file, err));
	return check_complete(s, err);
}

/* --- data -------------------------------------------------------------------------------------------- */

static status shards_append(shards *s, const void *data, size_t bytes, error *err)
{
	for (const char *at = data; bytes;) {
		ssize_t n = write(s->fd, at, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(err, s->folder, "cannot join files of weights");
		at += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

/* Copy the last `bytes` bytes of a file, then unlink it. */
static status copy_file(shards *s, const char *file, int64_t bytes, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, s->folder, file, err));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	status result =
	    fd < 0 || lseek(fd, (off_t)-bytes, SEEK_END) < 0 ? file_error(err, path, "cannot read") : STATUS_OK;
	while (result == STATUS_OK && bytes) {
		ssize_t n = read(fd, s->piece, bytes < PIECE ? (size_t)bytes : PIECE);
		if (n < 0 && errno == EINTR)
			continue;
		result = n <= 0 ? file_error(err, path, "cannot read") : shards_append(s, s->piece, (size_t)n, err);
		bytes -= n;
	}
	if (fd >= 0)
		close(fd);
	if (result == STATUS_OK && unlink(path) != 0)
		result = file_error(err, path, "cannot remove");
	return result;
}

static status copy_files(shards *s, error *err)
{
	const char *file;
	json_t *bytes;
	size_t header_bytes;
	unsigned char *header = safetensors_header(s->header, &header_bytes);
	s->piece = malloc(PIECE);
	status result = header && s->piece ? shards_append(s, header, header_bytes, err) : shards_no_memory(err);
	free(header);
	json_object_foreach(s->files, file, bytes)
	{
		if (result == STATUS_OK)
			result = copy_file(s, file, json_integer_value(bytes), err);
	}
	return result;
}

/* Write under a temporary name, because one of the files may be called model.safetensors. */
static status write_whole(shards *s, error *err)
{
	char temporary[PATH_MAX], path[PATH_MAX];
	TRY(path_join(temporary, s->folder, "model.safetensors" FILE_TEMPORARY "joined", err));
	TRY(path_join(path, s->folder, "model.safetensors", err));
	s->fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (s->fd < 0)
		return file_error(err, path, "cannot write");
	TRY(copy_files(s, err));
	if (rename(temporary, path) != 0)
		return file_error(err, path, "cannot write");
	TRY(path_join(path, s->folder, SHARDS_INDEX, err));
	return unlink(path) == 0 ? STATUS_OK : file_error(err, path, "cannot remove");
}

static status shards_join_files(shards *s, error *err)
{
	bool found;
	TRY(read_index(s, &found, err));
	if (!found)
		return STATUS_OK;
	s->files = json_object();
	if (!s->files)
		return shards_no_memory(err);
	TRY(collect_files(s, err));
	TRY(read_headers(s, err));
	return write_whole(s, err);
}

status shards_join(const char *folder, error *err)
{
	shards s = {.folder = folder, .fd = -1};
	status result = shards_join_files(&s, err);
	if (s.fd >= 0)
		close(s.fd);
	free(s.piece);
	json_decref(s.header);
	json_decref(s.files);
	json_decref(s.index);
	return result;
}
