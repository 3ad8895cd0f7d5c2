#include "engine/daemon/requests/audit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"

typedef struct audit_line {
	struct audit_line *next;
	stream *stream;
	char *text;
} audit_line;

struct audit {
	uv_loop_t *loop;
	audit_line *waiting, **last; /* oldest first; last: the end of that list */
	audit_line *writing;         /* used by the pool until `audit_written` */
	uv_work_t work;
	bool failed;
	char path[];
};

static bool is_audited(const char *method)
{
	static const char *const methods[] = {
	    "key.create",          "key.update",        "key.delete",          "model.delete",
	    "model.import",        "job.create",        "job.cancel",          "job.pause",
	    "job.resume",          "job.delete",        "checkpoint.delete",   "evaluation.create",
	    "evaluation.cancel",   "evaluation.delete", "faithfulness.create", "faithfulness.cancel",
	    "faithfulness.delete", "batch.create",      "batch.cancel",        "batch.delete"};
	for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
		if (strcmp(method, methods[i]) == 0)
			return true;
	return false;
}

static int open_log(const char *path)
{
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
}

status audit_open(audit **out, uv_loop_t *loop, const char *path, error *err)
{
	const int fd = open_log(path);
	if (fd < 0)
		return file_error(err, path, "cannot write the audit log");
	close(fd);
	audit *a = *out = memory_new(1, sizeof *a + strlen(path) + 1);
	if (!a)
		return STATUS_NOMEM;
	a->loop = loop;
	a->last = &a->waiting;
	strcpy(a->path, path);
	return STATUS_OK;
}

void audit_free(audit *a)
{
	free(a);
}

/* Return the request's id, with the checkpoint of it that is named, or the id of its answer; NULL: none. New reference.
 */
static json_t *target_of(const stream *s, const json_t *answer)
{
	const char *checkpoint = json_string_value(json_object_get(s->params, "checkpoint"));
	if (!s->target[0])
		return json_incref(json_object_get(answer, "id"));
	return checkpoint && strlen(checkpoint) < STREAM_TARGET_BYTES /* in a refused request it may be any text */
	           ? json_sprintf("%s/%s", s->target, checkpoint)
	           : json_string(s->target);
}

static char *line_of(const stream *s, status result, const char *answer)
{
	char when[32] = "";
	const time_t now = time(NULL);
	struct tm utc;
	if (gmtime_r(&now, &utc))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_t *answered = answer ? json_loads(answer, JSON_ALLOW_NUL, NULL) : NULL;
	const char *code = json_string_value(json_object_get(answered, "code"));
	json_t *object = json_pack("{s:s, s:s, s:s?, s:s, s:o?, s:i, s:s?}", "time", when, "owner", s->owner, "key",
	                           s->access_id[0] ? s->access_id : NULL, "method", s->method, "target",
	                           target_of(s, answered), "status", status_http(result), "code",
	                           result == STATUS_OK ? NULL
	                           : code              ? code
	                                               : status_name(result));
	char *text = json_text_reserve(object, JSON_COMPACT);
	json_decref(object);
	json_decref(answered);
	return text;
}

/* Append a line. The start of one that could not be written whole is removed, so that it does not spoil the next. */
static bool append_line(int fd, const char *text)
{
	struct stat before;
	if (fstat(fd, &before) != 0)
		return false;
	const bool ok = dprintf(fd, "%s\n", text) > 0;
	if (!ok && ftruncate(fd, before.st_size) != 0)
		log_line(LOG_ERROR, "the audit log has an incomplete line");
	return ok;
}

static void audit_pool_write(uv_work_t *work)
{
	audit *a = work->data;
	const int fd = open_log(a->path);
	bool ok = fd >= 0;
	for (const audit_line *l = a->writing; l && ok; l = l->next)
		ok = append_line(fd, l->text);
	a->failed = !ok || fdatasync(fd) != 0;
	if (fd >= 0)
		close(fd);
}

static void audit_write_waiting(audit *a);

static void audit_written(uv_work_t *work, int cancelled)
{
	audit *a = work->data;
	audit_line *l = a->writing;
	(void)cancelled; /* cannot be cancelled */
	if (a->failed)
		log_line(LOG_ERROR, "cannot write the audit log %s", a->path);
	a->writing = NULL;
	for (audit_line *next; l; l = next) {
		next = l->next;
		stream_release(l->stream);
		reserve_free(l->text);
		free(l);
	}
	audit_write_waiting(a);
}

/* Write the lines that wait, unless others are being written. */
static void audit_write_waiting(audit *a)
{
	if (a->writing || !a->waiting)
		return;
	a->writing = a->waiting;
	a->waiting = NULL;
	a->last = &a->waiting;
	a->work.data = a;
	if (uv_queue_work(a->loop, &a->work, audit_pool_write, audit_written) == 0)
		return;
	audit_pool_write(&a->work);
	audit_written(&a->work, 0);
}

bool audit_record(audit *a, stream *s, status result, const char *answer)
{
	if (!is_audited(s->method))
		return false;
	audit_line *l = memory_new(1, sizeof *l);
	char *text = l ? line_of(s, result, answer) : NULL;
	if (!text) {
		log_line(LOG_ERROR, "cannot write the audit log %s: out of memory", a->path);
		free(l);
		return false;
	}
	*l = (audit_line){.stream = s, .text = text};
	*a->last = l;
	a->last = &l->next;
	audit_write_waiting(a);
	return true;
}
