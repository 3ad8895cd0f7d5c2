#include "engine/daemon/requests/audit.h"

#include <fcntl.h>
#include <pthread.h>
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

typedef struct audit_queue {
	audit_line *first, **last; /* oldest first; last: the end of that list */
} audit_queue;

struct audit {
	uv_async_t wake_loop; /* keeps the loop running while there are lines */
	pthread_t thread;
	pthread_mutex_t mutex; /* for the next four */
	pthread_cond_t wake;
	audit_queue waiting, written;
	bool closing;
	int lines; /* in both queues and on their way between them; loop thread */
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

static void queue_clear(audit_queue *q)
{
	q->first = NULL;
	q->last = &q->first;
}

static void free_audit(audit *a)
{
	pthread_cond_destroy(&a->wake);
	pthread_mutex_destroy(&a->mutex);
	free(a);
}

static void free_closed(uv_handle_t *handle)
{
	free_audit(handle->data);
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

static bool write_lines(const audit *a, const audit_line *first)
{
	const int fd = open_log(a->path);
	bool ok = fd >= 0;
	for (const audit_line *l = first; l && ok; l = l->next)
		ok = append_line(fd, l->text);
	ok = ok && fdatasync(fd) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* Write the lines that wait, all that have gathered at once, until audit_free. */
static void *audit_thread(void *argument)
{
	audit *a = argument;
	pthread_mutex_lock(&a->mutex);
	for (;;) {
		while (!a->waiting.first && !a->closing)
			pthread_cond_wait(&a->wake, &a->mutex);
		if (!a->waiting.first)
			break;
		const audit_queue taken = a->waiting;
		queue_clear(&a->waiting);
		pthread_mutex_unlock(&a->mutex);
		if (!write_lines(a, taken.first))
			log_line(LOG_ERROR, "cannot write the audit log %s", a->path);
		pthread_mutex_lock(&a->mutex);
		*a->written.last = taken.first;
		a->written.last = taken.last;
		uv_async_send(&a->wake_loop);
	}
	pthread_mutex_unlock(&a->mutex);
	return NULL;
}

/* Answer the requests whose lines are written. */
static void on_written(uv_async_t *wake)
{
	audit *a = wake->data;
	pthread_mutex_lock(&a->mutex);
	audit_line *l = a->written.first;
	queue_clear(&a->written);
	pthread_mutex_unlock(&a->mutex);
	for (audit_line *next; l; l = next) {
		next = l->next;
		a->lines--;
		stream_release(l->stream);
		reserve_free(l->text);
		free(l);
	}
	if (a->lines == 0)
		uv_unref((uv_handle_t *)wake);
}

/* --- on the loop thread ---------------------------------------------------------------------- */

status audit_open(audit **out, uv_loop_t *loop, const char *path, error *err)
{
	const int fd = open_log(path);
	if (fd < 0)
		return file_error(err, path, "cannot write the audit log");
	close(fd);
	audit *a = memory_new(1, sizeof *a + strlen(path) + 1);
	if (!a)
		return STATUS_NOMEM;
	strcpy(a->path, path);
	queue_clear(&a->waiting);
	queue_clear(&a->written);
	a->wake_loop.data = a;
	pthread_mutex_init(&a->mutex, NULL);
	pthread_cond_init(&a->wake, NULL);
	if (uv_async_init(loop, &a->wake_loop, on_written) == 0) {
		uv_unref((uv_handle_t *)&a->wake_loop);
		if (pthread_create(&a->thread, NULL, audit_thread, a) == 0) {
			*out = a;
			return STATUS_OK;
		}
		uv_close((uv_handle_t *)&a->wake_loop, free_closed);
	} else {
		free_audit(a);
	}
	return error_set(err, STATUS_NOMEM, NULL, "cannot start the thread of the audit log");
}

void audit_close(audit *a)
{
	if (a)
		uv_close((uv_handle_t *)&a->wake_loop, NULL);
}

void audit_free(audit *a)
{
	if (!a)
		return;
	pthread_mutex_lock(&a->mutex);
	a->closing = true;
	pthread_cond_signal(&a->wake);
	pthread_mutex_unlock(&a->mutex);
	pthread_join(a->thread, NULL);
	free_audit(a);
}

bool audit_is_full(const audit *a, const stream *s)
{
	return a->lines >= AUDIT_MAX_LINES && is_audited(s->method);
}

bool audit_record(audit *a, stream *s, status result, const char *answer)
{
	if (!is_audited(s->method) || s->unaudited)
		return false;
	audit_line *l = memory_new(1, sizeof *l);
	char *text = l ? line_of(s, result, answer) : NULL;
	if (!text) {
		log_line(LOG_ERROR, "cannot write the audit log %s: out of memory", a->path);
		free(l);
		return false;
	}
	*l = (audit_line){.stream = s, .text = text};
	if (a->lines++ == 0)
		uv_ref((uv_handle_t *)&a->wake_loop);
	pthread_mutex_lock(&a->mutex);
	*a->waiting.last = l;
	a->waiting.last = &l->next;
	pthread_cond_signal(&a->wake);
	pthread_mutex_unlock(&a->mutex);
	return true;
}
