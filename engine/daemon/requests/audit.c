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
#include "engine/base/reserve.h"

static bool is_audited(const char *method)
{
	static const char *const methods[] = {"key.create",          "key.update",         "key.delete",
	                                      "model.delete",        "model.import",       "job.create",
	                                      "job.cancel",          "job.pause",          "job.resume",
	                                      "job.delete",          "checkpoint.delete",  "evaluation.create",
	                                      "evaluation.cancel",   "evaluation.delete",  "faithfulness.create",
	                                      "faithfulness.cancel", "faithfulness.delete", "batch.create",
	                                      "batch.cancel",        "batch.delete"};
	for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
		if (strcmp(method, methods[i]) == 0)
			return true;
	return false;
}

static int open_log(const char *path)
{
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
}

status audit_open(const char *path, error *err)
{
	const int fd = open_log(path);
	if (fd < 0)
		return file_error(err, path, "cannot write the audit log");
	close(fd);
	return STATUS_OK;
}

/* Return the request's id, with the checkpoint of it that is named, or the id of its answer; NULL: none. New reference. */
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
	json_t *object =
	    json_pack("{s:s, s:s, s:s?, s:s, s:o?, s:i, s:s?}", "time", when, "owner", s->owner, "key",
	              s->access_id[0] ? s->access_id : NULL, "method", s->method, "target", target_of(s, answered),
	              "status", status_http(result), "code",
	              result == STATUS_OK ? NULL
	              : code              ? code
	                                  : status_name(result));
	char *text = json_text_reserve(object, JSON_COMPACT);
	json_decref(object);
	json_decref(answered);
	return text;
}

void audit_write(const char *path, const stream *s, status result, const char *answer)
{
	if (!path || !is_audited(s->method))
		return;
	char *text = line_of(s, result, answer);
	const int fd = text ? open_log(path) : -1;
	const bool ok = fd >= 0 && dprintf(fd, "%s\n", text) > 0 && fdatasync(fd) == 0;
	if (!ok)
		log_line(LOG_ERROR, "cannot write the audit log %s", path);
	if (fd >= 0)
		close(fd);
	reserve_free(text);
}
