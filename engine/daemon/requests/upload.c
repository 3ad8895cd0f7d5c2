#include "engine/daemon/requests/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/requests/engine.h"
#include "proto/json_memory.h"

typedef struct upload {
	stream *stream;
	const upload_plan *plan;
	const upload_part *part; /* being received, NULL before the first */
	int fd;
	int64_t bytes; /* of this part */
	bool seen[UPLOAD_MAX_PARTS];
	uv_work_t work;
	error error;
	store_file sealed;
	char *content; /* in memory */
	size_t content_bytes;
	char folder[PATH_MAX];
} upload;

static void upload_free(upload *u)
{
	if (u->fd >= 0)
		close(u->fd);
	file_remove_tree(u->folder, NULL);
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

static status sync_part(const upload *u, const upload_part *part, error *err)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof path, "%s/%s", u->folder, part->file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int rc = fd < 0 ? -1 : fsync(fd);
	status s = rc == 0 ? STATUS_OK : file_error(err, path, "cannot sync the upload");
	if (fd >= 0)
		close(fd);
	return s;
}

static status read_content(upload *u, error *err)
{
	char path[PATH_MAX + 64];
	const upload_part *part = u->plan->parts;
	snprintf(path, sizeof path, "%s/%s", u->folder, part->file);
	return file_read(path, (size_t)part->limit, &u->content, &u->content_bytes, err);
}

static void pool_check(uv_work_t *work)
{
	upload *u = work->data;
	status s = STATUS_OK;
	if (u->plan->in_memory)
		s = read_content(u, &u->error);
	for (int i = 0; s == STATUS_OK && !u->plan->in_memory && u->plan->parts[i].name; i++)
		if (u->seen[i])
			s = sync_part(u, &u->plan->parts[i], &u->error);
	if (s == STATUS_OK && u->plan->check)
		s = u->plan->check(u->stream, u->folder, &u->error);
	if (s == STATUS_OK && u->plan->seal)
		s = u->plan->seal(u->stream->params, u->folder, &u->sealed, &u->error);
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
	u->plan->finished(u->stream, u->folder);
	upload_free(u);
}

static void complete(upload *u)
{
	for (int i = 0; u->plan->parts[i].name; i++) {
		if (u->plan->parts[i].required && !u->seen[i]) {
			error_set(&u->error, STATUS_INVALID, u->plan->parts[i].name, "the part \"%s\" is missing",
			          u->plan->parts[i].name);
			upload_fail(u, "missing_parameter");
			return;
		}
	}
	close(u->fd);
	u->fd = -1;
	u->stream->watch = NULL;
	u->work.data = u;
	if (uv_queue_work(&u->stream->engine->loop, &u->work, pool_check, checked) != 0) {
		error_set(&u->error, STATUS_NOMEM, NULL, "out of memory");
		upload_fail(u, NULL);
	}
}

/* --- frames -------------------------------------------------------------------- */

static status begin_part(upload *u, const char *json, size_t bytes)
{
	char path[PATH_MAX + 64];
	reserve_forget();
	json_t *object = json_memory_parse(json, bytes, JSON_REJECT_DUPLICATES, NULL);
	if (!object && json_memory_failed())
		return error_set(&u->error, STATUS_NOMEM, NULL, "out of memory");
	const char *name = json_string_value(json_object_get(object, "part"));
	const upload_part *parts = u->plan->parts;
	int i = 0;
	while (name && parts[i].name && strcmp(parts[i].name, name) != 0)
		i++;
	status s = STATUS_OK;
	if (!name || !parts[i].name || u->seen[i])
		s = error_set(&u->error, STATUS_INVALID, "part",
		              "\"%.64s\" is not a part of this upload, or came twice", name ? name : "");
	json_decref(object);
	TRY(s);
	if (u->fd >= 0)
		close(u->fd);
	if (u->stream->record)
		u->stream->record->part(u->stream, parts[i].name);
	u->part = &parts[i];
	u->seen[i] = true;
	u->bytes = 0;
	snprintf(path, sizeof path, "%s/%s", u->folder, parts[i].file);
	u->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return u->fd >= 0 ? STATUS_OK : file_error(&u->error, u->folder, "cannot keep the upload");
}

static status write_part(upload *u, const char *data, size_t bytes)
{
	u->bytes += (int64_t)bytes;
	if (u->stream->record)
		u->stream->record->bytes(u->stream, data, bytes);
	if (u->bytes > u->part->limit)
		return error_set(&u->error, STATUS_TOO_LARGE, u->part->name, "the part is over the limit of %lld bytes",
		                 (long long)u->part->limit);
	while (bytes) {
		ssize_t n = write(u->fd, data, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(&u->error, u->folder, "cannot keep the upload");
		data += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

static void on_data(stream *s, const frame *f)
{
	upload *u = s->context;
	status result = STATUS_OK;
	if (f->json_bytes)
		result = begin_part(u, f->json, f->json_bytes);
	else if (!u->part)
		result = error_set(&u->error, STATUS_INVALID, "part", "the first frame of a part names it");
	if (result == STATUS_OK)
		result = write_part(u, f->payload, f->payload_bytes);
	if (result != STATUS_OK)
		upload_fail(u, NULL);
	else if (f->flags & FRAME_FLAG_END)
		complete(u);
	else
		stream_grant(s, 1);
}

static void on_cancel(stream *s)
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
	static const stream_watch watch = {.data = on_data, .cancel = on_cancel};
	upload *u = memory_new(1, sizeof *u);
	if (!u) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	u->stream = s;
	u->plan = what;
	u->fd = -1;
	s->context = u;
	store_temporary_path(s->engine->store, u->folder);
	if (mkdir(u->folder, 0700) != 0) {
		file_error(&u->error, u->folder, "cannot keep the upload");
		upload_fail(u, NULL);
		return;
	}
	s->watch = &watch;
	stream_grant(s, UPLOAD_WINDOW);
}
