/* Uploaded files: blob first, then row; to delete, row first, then blob. So a row always has its blob. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status no_file(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "id", "there is no file \"%.64s\"", id);
}

/* Files stored by earlier versions have none. */
static const char *format_of(const char *format)
{
	return format && format[0] ? format : "auto";
}

static json_t *document_of(const store_file *f)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:I, s:s*}", "id", f->id, "filename", f->filename,
	                 "purpose", f->purpose, "format", format_of(f->format), "bytes", (json_int_t)f->bytes, "created",
	                 (json_int_t)f->created, "xxh3", f->digest, "sha256", f->sha256, "expires",
	                 (json_int_t)f->expires, "project", store_project_member(f->project));
}

static status hash_blob(store_file *f, int fd, const char *path, error *err)
{
	enum { PIECE = 256 << 10 };
	digest_stream *d = digest_stream_new();
	checksum *c = checksum_new();
	char *piece = malloc(PIECE);
	ssize_t n = 0;
	while (d && c && piece && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR))) {
		if (n > 0) {
			digest_stream_add(d, piece, (size_t)n);
			checksum_add(c, piece, (size_t)n);
		}
	}
	status result = !d || !c || !piece ? error_settle(err, STATUS_NOMEM)
	                : n < 0            ? file_error(err, path, "cannot read")
	                                   : STATUS_OK;
	if (result == STATUS_OK) {
		digest_write(digest_stream_value(d), f->digest);
		checksum_end(c, f->sha256);
	}
	digest_stream_free(d);
	checksum_free(c);
	free(piece);
	return result;
}

static status sync_blob(store_file *f, const char *path, error *err)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	status result =
	    fd < 0 || fstat(fd, &st) != 0 || fsync(fd) != 0 ? file_error(err, path, "cannot sync") : STATUS_OK;
	f->bytes = result == STATUS_OK ? st.st_size : 0;
	if (result == STATUS_OK)
		result = hash_blob(f, fd, path, err);
	if (fd >= 0)
		close(fd);
	return result;
}

status store_file_seal(store_file *f, const char *temporary, error *err)
{
	store_new_id(f->id, "file-");
	f->created = clock_unix();
	f->expires = f->lifetime > 0 ? f->created + f->lifetime : 0;
	TRY(sync_blob(f, temporary, err));
	json_t *about = document_of(f);
	status result =
	    about ? manifest_write_file(temporary, f->id, store_kind(STORE_FILES), f->id, about, err) : STATUS_NOMEM;
	json_decref(about);
	return result;
}

/* Give the blob and its manifest their names. */
static status move_in(store *s, const char *temporary, const char *blob, error *err)
{
	char from[PATH_MAX + 16], to[PATH_MAX + 16], folder[PATH_MAX];
	snprintf(from, sizeof from, "%s" MANIFEST_SUFFIX, temporary);
	snprintf(to, sizeof to, "%s" MANIFEST_SUFFIX, blob);
	TRY(commit_rename(s, from, to, err));
	TRY(commit_rename(s, temporary, blob, err));
	snprintf(folder, sizeof folder, "%s/blobs", s->folder);
	return file_sync_folder(folder, err);
}

static status put_row(store *s, const store_file *f, const char *blob, error *err)
{
	char path[PATH_MAX + 16];
	manifest *m;
	store_row row = {.bytes = f->bytes, .number = f->expires};
	snprintf(path, sizeof path, "%s" MANIFEST_SUFFIX, blob);
	TRY(manifest_open(&m, path, err));
	snprintf(row.id, sizeof row.id, "%s", f->id);
	snprintf(row.state, sizeof row.state, "%s", f->purpose);
	row.document = document_of(f);
	row.manifest = strdup(manifest_text(m));
	manifest_free(m);
	status result =
	    row.document && row.manifest ? row_put(s, STORE_FILES, &row, err) : error_settle(err, STATUS_NOMEM);
	row_fini(&row);
	return result;
}

status store_file_add(store *s, store_file *f, const char *temporary, error *err)
{
	char blob[PATH_MAX];
	if (!f->id[0])
		TRY(store_file_seal(f, temporary, err));
	TRY(store_check_room(s, f->bytes, err));
	store_blob_path(s, f->id, blob);
	TRY(store_begin(s, err));
	status result = move_in(s, temporary, blob, err);
	if (result == STATUS_OK)
		result = put_row(s, f, blob, err);
	return store_end(s, result, err);
}

status store_file_get(store *s, const char *id, store_file *out, error *err)
{
	store_row row;
	*out = (store_file){0};
	status result = row_find(s, STORE_FILES, id, &row, err);
	if (result == STATUS_OK) {
		const char *filename = json_string_value(json_object_get(row.document, "filename"));
		const char *digest = json_string_value(json_object_get(row.document, "xxh3"));
		snprintf(out->id, sizeof out->id, "%s", row.id);
		snprintf(out->filename, sizeof out->filename, "%s", filename ? filename : "");
		snprintf(out->purpose, sizeof out->purpose, "%s", row.state);
		const char *format = json_string_value(json_object_get(row.document, "format"));
		snprintf(out->format, sizeof out->format, "%s", format_of(format));
		const char *sha256 = json_string_value(json_object_get(row.document, "sha256"));
		snprintf(out->digest, sizeof out->digest, "%s", digest ? digest : "");
		snprintf(out->sha256, sizeof out->sha256, "%s", sha256 ? sha256 : "");
		store_read_project(row.document, out->project);
		out->bytes = row.bytes;
		out->created = json_integer_value(json_object_get(row.document, "created"));
		out->expires = row.number;
	}
	row_fini(&row);
	return result == STATUS_NOT_FOUND ? no_file(err, id) : result;
}

status store_file_use(store *s, const char *id, store_file *out, error *err)
{
	TRY(store_file_get(s, id, out, err));
	return store_check_blob(s, STORE_FILES, id, false, err);
}

status store_file_check(store *s, const char *id, error *err)
{
	return store_check_blob(s, STORE_FILES, id, true, err);
}

static status delete_file(store *s, const char *id, int64_t number, error *err)
{
	(void)number;
	char path[STORE_ID_BYTES + 24];
	bool found = false;
	if (!store_valid_name(id))
		return no_file(err, id);
	TRY(store_begin(s, err));
	status result = row_delete(s, STORE_FILES, id, &found, err);
	if (result == STATUS_OK && !found)
		result = no_file(err, id);
	snprintf(path, sizeof path, "blobs/%s", id);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	strcat(path, MANIFEST_SUFFIX);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	return store_end(s, result, err);
}

status store_file_delete(store *s, const char *id, error *err)
{
	return store_with_reserve(s, delete_file, id, 0, err);
}

status store_file_bytes(store *s, const char *project, int64_t *out, error *err)
{
	sqlite3_stmt *sum;
	status result;
	*out = 0;
	TRY(ledger_prepare(s->db, &sum, err, "SELECT sum(bytes) FROM objects WHERE kind=? AND project=?", "tt",
	                   store_kind(STORE_FILES), project));
	if (ledger_step(s->db, sum, &result, err))
		*out = sqlite3_column_int64(sum, 0);
	sqlite3_finalize(sum);
	return result;
}

status store_files_expired(store *s, int64_t now, json_t *ids, error *err)
{
	sqlite3_stmt *rows;
	status result;
	TRY(ledger_prepare(s->db, &rows, err,
	                   "SELECT id FROM objects WHERE kind=? AND parent='' AND number>0 AND number<=?", "ti",
	                   store_kind(STORE_FILES), now));
	while (ledger_step(s->db, rows, &result, err)) {
		char id[STORE_ID_BYTES];
		ledger_text(rows, 0, id, sizeof id);
		if (json_array_append_new(ids, json_string(id)) != 0) {
			result = error_set(err, STATUS_NOMEM, NULL, "out of memory");
			break;
		}
	}
	sqlite3_finalize(rows);
	return result;
}
