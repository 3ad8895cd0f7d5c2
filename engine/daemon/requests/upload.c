#include "engine/daemon/requests/upload.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/requests/received.h"
#include "engine/daemon/requests/unpack.h"
#include "proto/json_memory.h"

typedef struct upload {
	stream *stream;
	const upload_plan *plan;
	const upload_part *part; /* being received; NULL before the first */
	int64_t bytes;           /* bytes of this part */
	digest_stream *digest;   /* digest of all bytes so far */
	bool seen[UPLOAD_MAX_PARTS];
	received files;
	unpack *archive; /* set if the part is an archive */
	uv_work_t work;
	error error;
	store_file sealed;
	char *content; /* with in_memory */
	size_t content_bytes;
} upload;

static void end_archive(upload *u)
{
	if (u->archive)
		unpack_fini(u->archive);
	free(u->archive);
	u->archive = NULL;
}

static void upload_free(upload *u)
{
	end_archive(u);
	received_remove(&u->files);
	digest_stream_free(u->digest);
	free(u->content);
	free(u);
}

static void upload_fail(upload *u, const char *code)
{
	stream *s = u->stream;
	s->watch = NULL;
	stream_error(s, &u->error, code);
	upload_free(u);
}

/* --- the pool's part ----------------------------------------------------------- */

static status read_content(upload *u, error *err)
{
	char path[PATH_MAX + 64];
	const upload_part *part = u->plan->parts;
	snprintf(path, sizeof path, "%s/%s", u->files.folder, part->file);
	return file_read(path, (size_t)part->limit, &u->content, &u->content_bytes, err);
}

static void pool_check(uv_work_t *work)
{
	upload *u = work->data;
	status s = STATUS_OK;
	if (u->plan->in_memory)
		s = read_content(u, &u->error);
	if (s == STATUS_OK && u->plan->check)
		s = u->plan->check(u->stream, u->files.folder, &u->error);
	if (s == STATUS_OK && u->plan->seal)
		s = u->plan->seal(u->stream, u->files.folder, &u->sealed, &u->error);
	if (s != STATUS_OK)
		error_set(&u->error, s, NULL, "%s", status_text(s));
}

static void checked(uv_work_t *work, int cancelled)
{
	upload *u = work->data;
	if (cancelled || u->stream->cancelled) {
		u->error = (error)ERROR_INIT;
		error_set(&u->error, STATUS_CANCELLED, NULL, "cancelled");
	}
	if (u->error.status != STATUS_OK) {
		upload_fail(u, NULL);
		return;
	}
	u->plan->finished(u->stream, u->files.folder);
	upload_free(u);
}

/* Finish the current part. */
static status end_part(upload *u)
{
	received_end(&u->files);
	status s = u->archive ? unpack_finish(u->archive, &u->error) : STATUS_OK;
	end_archive(u);
	return s;
}

static void upload_complete(upload *u)
{
	if (stream_count_deaths(u->stream, "upload", digest_stream_value(u->digest), &u->error) != STATUS_OK ||
	    end_part(u) != STATUS_OK) {
		upload_fail(u, NULL);
		return;
	}
	for (int i = 0; u->plan->parts[i].name; i++) {
		if (u->plan->parts[i].required && !u->seen[i]) {
			error_set(&u->error, STATUS_INVALID, u->plan->parts[i].name, "the part \"%s\" is missing",
			          u->plan->parts[i].name);
			upload_fail(u, "missing_parameter");
			return;
		}
	}
	u->stream->watch = NULL;
	u->work.data = u;
	if (uv_queue_work(u->stream->net->loop, &u->work, pool_check, checked) != 0) {
		error_set(&u->error, STATUS_NOMEM, NULL, "out of memory");
		upload_fail(u, NULL);
	}
}

/* --- frames -------------------------------------------------------------------- */

static status begin_archive(upload *u)
{
	u->archive = memory_new(1, sizeof *u->archive);
	if (!u->archive)
		return error_set(&u->error, STATUS_NOMEM, NULL, "out of memory");
	unpack_begin(u->archive, &u->files, u->plan->accepts, u->plan->decides);
	return STATUS_OK;
}

/* file: the name in the frame, or NULL. */
static status begin_file(upload *u, const upload_part *part, const char *file)
{
	int64_t limit = part->limit;
	if (part->kind == UPLOAD_NAMED) {
		limit = file && received_valid_name(file) ? u->plan->accepts(file) : -1;
		if (limit < 0)
			return error_set(&u->error, STATUS_INVALID, part->name,
			                 "\"%.64s\" is not one of the expected files", file ? file : "");
	}
	return received_begin(&u->files, part->kind == UPLOAD_NAMED ? file : part->file, limit, &u->error);
}

static status begin_part(upload *u, const char *name, const char *file)
{
	const upload_part *parts = u->plan->parts;
	int i = 0;
	while (name && parts[i].name && strcmp(parts[i].name, name) != 0)
		i++;
	if (!name || !parts[i].name || (u->seen[i] && parts[i].kind != UPLOAD_NAMED))
		return error_set(&u->error, STATUS_INVALID, "part",
		                 "\"%.64s\" is not a part of this upload, or came twice", name ? name : "");
	if (u->part)
		TRY(end_part(u));
	if (u->stream->record)
		u->stream->record->part(u->stream, parts[i].kind == UPLOAD_NAMED && file ? file : parts[i].name);
	u->part = &parts[i];
	u->seen[i] = true;
	u->bytes = 0;
	return parts[i].kind == UPLOAD_ARCHIVE ? begin_archive(u) : begin_file(u, u->part, file);
}

/* Parse the JSON of a part's first frame. */
static status read_part(upload *u, const char *json, size_t bytes)
{
	reserve_forget();
	json_t *object = json_memory_parse(json, bytes, JSON_REJECT_DUPLICATES, NULL);
	if (!object && json_memory_failed())
		return error_set(&u->error, STATUS_NOMEM, NULL, "out of memory");
	status s = begin_part(u, json_string_value(json_object_get(object, "part")),
	                      json_string_value(json_object_get(object, "file")));
	json_decref(object);
	return s;
}

static status write_part(upload *u, const char *data, size_t bytes)
{
	u->bytes += (int64_t)bytes;
	digest_stream_add(u->digest, data, bytes);
	if (u->stream->record)
		u->stream->record->bytes(u->stream, data, bytes);
	if (u->archive && u->bytes > u->part->limit)
		return error_set(&u->error, STATUS_TOO_LARGE, u->part->name,
		                 "the archive is over the limit of %lld bytes", (long long)u->part->limit);
	return u->archive ? unpack_feed(u->archive, data, bytes, &u->error)
	                  : received_write(&u->files, data, bytes, &u->error);
}

static void on_data(stream *s, const frame *f)
{
	upload *u = s->context;
	status result = STATUS_OK;
	if (f->json_bytes)
		result = read_part(u, f->json, f->json_bytes);
	else if (!u->part)
		result = error_set(&u->error, STATUS_INVALID, "part", "the first frame of a part names it");
	if (result == STATUS_OK)
		result = write_part(u, f->payload, f->payload_bytes);
	if (result != STATUS_OK)
		upload_fail(u, NULL);
	else if (f->flags & FRAME_FLAG_END)
		upload_complete(u);
	else
		stream_grant(s, 1);
}

static void upload_on_cancel(stream *s)
{
	upload *u = s->context;
	error_set(&u->error, STATUS_CANCELLED, NULL, "cancelled");
	upload_fail(u, NULL);
}

store_file *upload_sealed(stream *s)
{
	return &((upload *)s->context)->sealed;
}

void *upload_take(stream *s, size_t *bytes)
{
	upload *u = s->context;
	char *content = u->content;
	u->content = NULL;
	*bytes = u->content_bytes;
	return content;
}

void upload_begin(stream *s, const upload_plan *what)
{
	static const stream_watch watch = {.data = on_data, .cancel = upload_on_cancel};
	upload *u = memory_new(1, sizeof *u);
	if (!u) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	u->stream = s;
	u->plan = what;
	s->context = u;
	u->digest = digest_stream_new();
	store_temporary_path(s->net->store, u->files.folder);
	status opened = received_open(&u->files, &u->error);
	if (error_settle(&u->error, u->digest ? opened : STATUS_NOMEM) != STATUS_OK) {
		upload_fail(u, NULL);
		return;
	}
	s->watch = &watch;
	stream_grant(s, UPLOAD_WINDOW);
}
