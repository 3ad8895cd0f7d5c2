#include "engine/daemon/library/files.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/manifest.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/requests/download.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/listing.h"
#include "engine/daemon/requests/owned_file.h"
#include "engine/daemon/requests/upload.h"

#define FILES_MAX_BYTES ((int64_t)64 << 30)

/* digest, sha256: NULL for a file stored before these existed. */
static json_t *file_object(const char *id, const char *filename, const char *purpose, const char *format,
                           json_int_t bytes, json_int_t created, const char *digest, const char *sha256,
                           json_int_t expires, const char *project)
{
	json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:s?, s:s?, s:s*}", "id", id, "object",
	                           "file", "bytes", bytes, "created_at", created, "filename", filename, "purpose",
	                           purpose, "format", format, "status", "processed", "xxh3", digest, "sha256", sha256,
	                           "project", project_member(project));
	if (expires == 0 || (object && json_object_set_new(object, "expires_at", json_integer(expires)) == 0))
		return object;
	json_decref(object);
	return NULL;
}

static json_t *from_file(const store_file *f)
{
	return file_object(f->id, f->filename, f->purpose, f->format, f->bytes, f->created,
	                   f->digest[0] ? f->digest : NULL, f->sha256[0] ? f->sha256 : NULL, f->expires, f->project);
}

static json_t *files_from_row(stream *s, const json_t *row)
{
	const char *id, *filename, *purpose, *format = "auto", *digest = NULL, *sha256 = NULL;
	json_int_t bytes, created, expires = 0;
	(void)s;
	if (json_unpack((json_t *)(uintptr_t)row, "{s:s, s:s, s:s, s?s, s:I, s:I, s?s, s?s, s?I}", "id", &id,
	                "filename", &filename, "purpose", &purpose, "format", &format, "bytes", &bytes, "created",
	                &created, "xxh3", &digest, "sha256", &sha256, "expires", &expires) != 0)
		return NULL;
	return file_object(id, filename, purpose, format, bytes, created, digest, sha256, expires, project_of(row));
}

/* --- file.create --------------------------------------------------------------- */

static status seal(const stream *s, const char *folder, store_file *out, error *err)
{
	const json_t *params = s->params;
	char path[PATH_MAX + 8];
	snprintf(out->project, sizeof out->project, "%s", s->scope.project);
	snprintf(path, sizeof path, "%s/file", folder);
	snprintf(out->filename, sizeof out->filename, "%s", json_string_value(json_object_get(params, "filename")));
	snprintf(out->purpose, sizeof out->purpose, "%s", json_string_value(json_object_get(params, "purpose")));
	const char *format = json_string_value(json_object_get(params, "format"));
	snprintf(out->format, sizeof out->format, "%s", format ? format : "auto");
	out->lifetime = json_integer_value(json_object_get(json_object_get(params, "expires_after"), "seconds"));
	TRY(store_file_seal(out, path, err));
	const char *given = json_string_value(json_object_get(params, "checksum"));
	char expected[CHECKSUM_TEXT_BYTES];
	if (!given || (checksum_read(given, expected, NULL) && strcmp(expected, out->sha256) == 0))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "checksum", "the file's SHA-256 is %s, not as \"checksum\" says",
	                 out->sha256);
}

/* STATUS_RATE_LIMITED: the project may not have that many bytes more. */
static status check_quota(const stream *s, int64_t bytes, error *err)
{
	int64_t has;
	if (s->scope.quotas[QUOTA_FILE_BYTES] == 0)
		return STATUS_OK;
	TRY(store_file_bytes(library_of(s)->store, s->scope.project, &has, err));
	return project_check_quota(&s->scope, QUOTA_FILE_BYTES, has, bytes, err);
}

static void received(stream *s, const char *folder)
{
	error err = ERROR_INIT;
	store_file *f = upload_sealed(s);
	char path[PATH_MAX + 8];
	json_t *result = NULL;
	snprintf(path, sizeof path, "%s/file", folder);
	status ended = check_quota(s, f->bytes, &err);
	if (ended == STATUS_OK)
		ended = idempotency_begin(s, &err);
	if (ended == STATUS_OK) {
		ended = store_file_add(library_of(s)->store, f, path, &err);
		result = ended == STATUS_OK ? from_file(f) : NULL;
		ended = idempotency_commit(s, ended, result, &err);
	}
	if (ended == STATUS_OK) {
		stream_result(s, result);
		return;
	}
	json_decref(result);
	stream_error(s, &err, NULL);
}

void files_create(stream *s)
{
	static const upload_part parts[] = {
	    {.name = "file", .file = "file", .limit = FILES_MAX_BYTES, .required = true}, {0}};
	static const upload_plan what = {.parts = parts, .seal = seal, .finished = received};
	const char *given = json_string_value(json_object_get(s->params, "checksum")), *end;
	char expected[CHECKSUM_TEXT_BYTES];
	error err = ERROR_INIT;
	if (given && (!checksum_read(given, expected, &end) || *end))
		stream_refuse(s, STATUS_INVALID, "invalid_value", "checksum",
		              "'checksum' must be 64 hex digits, the SHA-256 of the file");
	else if (check_quota(s, 1, &err) != STATUS_OK) /* the size is not known yet */
		stream_error(s, &err, NULL);
	else
		upload_begin(s, &what);
}

/* --- the others ------------------------------------------------------------------ */

void files_list(stream *s)
{
	listing_answer(s, STORE_FILES, NULL, LISTING_FILES, files_from_row);
}

void files_get(stream *s)
{
	error err = ERROR_INIT;
	store_file f;
	if (owned_file_find(s, s->target, &f, &err) == STATUS_OK)
		stream_result(s, from_file(&f));
	else
		stream_error(s, &err, NULL);
}

void files_delete(stream *s)
{
	error err = ERROR_INIT;
	store_file f;
	/* A damaged row does not tell its project: an admin can delete it. */
	if (!s->scope.all && owned_file_find(s, s->target, &f, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else if (job_machine_uses_file(library_of(s)->jobs, s->target))
		stream_refuse(s, STATUS_CONFLICT, "file_in_use", "id", "a job that has not ended reads this file");
	else if (store_file_delete(library_of(s)->store, s->target, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_result(s, json_pack("{s:s, s:s, s:b}", "id", s->target, "object", "file", "deleted", 1));
}

void files_content(stream *s)
{
	error err = ERROR_INIT;
	store_file f;
	manifest *about = NULL;
	char path[PATH_MAX];
	status result = owned_file_find(s, s->target, &f, &err);
	if (result == STATUS_OK)
		result = store_manifest(library_of(s)->store, STORE_FILES, f.id, &about, &err);
	if (result != STATUS_OK) {
		stream_error(s, &err, NULL);
		return;
	}
	store_blob_path(library_of(s)->store, f.id, path);
	download_file(s, path, f.filename, "application/octet-stream", STORE_FILES, about);
}

status files_expire(const library *lib, int64_t now, error *err)
{
	json_t *ids = json_array(), *id;
	size_t i;
	status result = ids ? store_files_expired(lib->store, now, ids, err) : error_settle(err, STATUS_NOMEM);
	json_array_foreach(ids, i, id)
	{
		const char *name = json_string_value(id);
		if (result != STATUS_OK || job_machine_uses_file(lib->jobs, name))
			continue; /* deleted once the job has ended */
		result = store_file_delete(lib->store, name, err);
		if (result == STATUS_OK)
			log_line(LOG_INFO, "the file %s has expired", name);
	}
	json_decref(ids);
	return result;
}
