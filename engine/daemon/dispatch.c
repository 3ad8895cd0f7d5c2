/* One row per method. A row says whether the method has an id, whether it is an upload, and which
 * schema the remaining params must fit; handlers then read params without checking types. */
#include "engine/daemon/dispatch.h"

#include <string.h>

#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/explanations.h"
#include "engine/daemon/generation/session_prompts.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/library/models.h"
#include "engine/daemon/library/storage.h"
#include "engine/daemon/metrics.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/daemon/sessions/visits.h"
#include "gen/schemas.h"

enum { HAS_ID = 1, UPLOAD = 2, KEYED = 4 /* takes an idempotency key */ };

typedef struct method {
	const char *name;
	void (*begin)(stream *s);
	const schema *params;
	unsigned flags;
} method;

enum { LIST_LIMIT = 10000 };
static const char *const orders[] = {"asc", "desc", NULL};
static const schema nothing = {"none", (const field[]){{0}}};
static const schema page_params = {
    "page", (const field[]){{.name = "after", .type = FIELD_STRING, .max = 63},
                            {.name = "limit", .type = FIELD_INTEGER, .min = 1, .max = LIST_LIMIT},
                            {0}}};
static const field metadata_value = {.name = "value", .type = FIELD_STRING, .max = 2048};
static const schema job_list_params = {
    "job_list", (const field[]){{.name = "after", .type = FIELD_STRING, .max = 63},
                                {.name = "limit", .type = FIELD_INTEGER, .min = 1, .max = LIST_LIMIT},
                                {.name = "metadata", .type = FIELD_OBJECT, .max = 16, .items = &metadata_value},
                                {0}}};
static const schema watch_params = {"watch", (const field[]){{.name = "after", .type = FIELD_STRING, .max = 63}, {0}}};
static const schema checkpoint_params = {
    "checkpoint",
    (const field[]){{.name = "checkpoint", .type = FIELD_STRING, .required = true, .min = 1, .max = 63}, {0}}};
static const schema file_list_params = {
    "file_list", (const field[]){{.name = "after", .type = FIELD_STRING, .max = 63},
                                 {.name = "limit", .type = FIELD_INTEGER, .min = 1, .max = LIST_LIMIT},
                                 {.name = "order", .type = FIELD_STRING, .choices = orders},
                                 {.name = "purpose", .type = FIELD_STRING, .max = 31},
                                 {0}}};
static const char *const anchors[] = {"created_at", NULL};
static const schema expiry = {
    "expires_after",
    (const field[]){{.name = "anchor", .type = FIELD_STRING, .choices = anchors, .required = true},
                    {.name = "seconds", .type = FIELD_INTEGER, .min = 3600, .max = 2592000, .required = true},
                    {0}}};
static const schema file_create_params = {
    "file_create", (const field[]){{.name = "filename", .type = FIELD_STRING, .required = true, .min = 1, .max = 255},
                                   {.name = "purpose", .type = FIELD_STRING, .required = true, .min = 1, .max = 31},
                                   {.name = "expires_after", .type = FIELD_OBJECT, .nested = &expiry},
                                   {0}}};
static const schema model_file_params = {
    "model_file", (const field[]){{.name = "name", .type = FIELD_STRING, .required = true, .min = 1, .max = 255}, {0}}};
static const schema session_import_params = {
    "session_import",
    (const field[]){{.name = "model", .type = FIELD_STRING, .required = true, .min = 1, .max = 63}, {0}}};

static const method methods[] = {
    {"engine.status", metrics_status, &nothing, 0},
    {"engine.metrics", metrics_read, &nothing, 0},
    {"storage.usage", storage_usage, &nothing, 0},
    {"model.list", models_list, &nothing, 0},
    {"model.get", models_get, &nothing, HAS_ID},
    {"model.delete", models_delete, &nothing, HAS_ID},
    {"model.load", models_load, &schema_model_load, HAS_ID},
    {"model.unload", models_unload, &nothing, HAS_ID},
    {"model.import", models_import, &nothing, HAS_ID | UPLOAD | KEYED},
    {"model.file", models_file, &model_file_params, HAS_ID},
    {"file.create", files_create, &file_create_params, UPLOAD | KEYED},
    {"file.list", files_list, &file_list_params, 0},
    {"file.get", files_get, &nothing, HAS_ID},
    {"file.delete", files_delete, &nothing, HAS_ID},
    {"file.content", files_content, &nothing, HAS_ID},
    {"job.create", jobs_create, &schema_fine_tuning_job, KEYED},
    {"job.list", jobs_list, &job_list_params, 0},
    {"job.get", jobs_get, &nothing, HAS_ID},
    {"job.cancel", jobs_cancel, &nothing, HAS_ID},
    {"job.pause", jobs_pause, &nothing, HAS_ID},
    {"job.resume", jobs_resume, &nothing, HAS_ID},
    {"job.delete", jobs_delete, &nothing, HAS_ID},
    {"job.events", jobs_events, &page_params, HAS_ID},
    {"job.watch", jobs_watch, &watch_params, HAS_ID},
    {"job.checkpoints", jobs_checkpoints, &page_params, HAS_ID},
    {"checkpoint.delete", jobs_delete_checkpoint, &checkpoint_params, HAS_ID},
    {"completion.create", completions_create, &schema_completion, 0},
    {"session.create", session_prompts_create, &schema_session_create, KEYED},
    {"session.list", sessions_list, &nothing, 0},
    {"session.get", sessions_get, &nothing, HAS_ID},
    {"session.delete", sessions_delete, &nothing, HAS_ID},
    {"session.generate", completions_continue, &schema_session_generate, HAS_ID | KEYED},
    {"session.append", session_prompts_append, &schema_session_append, HAS_ID | KEYED},
    {"session.fork", visits_fork, &nothing, HAS_ID | KEYED},
    {"session.export", visits_export, &nothing, HAS_ID},
    {"session.import", visits_import, &session_import_params, UPLOAD | KEYED},
    {"session.alpha", explanations_session, &schema_session_alpha, HAS_ID},
    {"explain", explanations_create, &schema_explain, 0},
    {"tokenize", tokens_encode, &schema_tokenize, 0},
    {"detokenize", tokens_decode, &schema_detokenize, 0},
};

static const method *find_method(const char *name)
{
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (strcmp(methods[i].name, name) == 0)
			return &methods[i];
	return NULL;
}

/* Move "id" from the params to s->target. False: the stream has been answered. */
static bool take_id(stream *s)
{
	const json_t *id = json_object_get(s->params, "id");
	const char *text = json_string_value(id);
	if (!text) {
		stream_refuse(s, STATUS_INVALID, id ? "invalid_type" : "missing_parameter", "id",
		              "id must be a string");
		return false;
	}
	if (json_string_length(id) >= sizeof s->target || strlen(text) != json_string_length(id)) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is nothing of this id");
		return false;
	}
	strcpy(s->target, text);
	json_object_del(s->params, "id");
	return true;
}

void dispatch_request(stream *s, const char *name)
{
	schema_error wrong;
	const method *m = find_method(name);
	if (!s->params) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	} else if (s->net->draining) {
		stream_refuse(s, STATUS_UNAVAILABLE, "shutting_down", NULL, "the engine is shutting down");
	} else if (!m) {
		stream_refuse(s, STATUS_NOT_FOUND, "unknown_method", NULL, "there is no method \"%.64s\"", name);
	} else if (m->flags & HAS_ID && !take_id(s)) {
		return;
	} else if (m->flags & KEYED && !idempotency_take(s)) {
		return;
	} else if (m->params && !schema_check(m->params, s->params, &wrong)) {
		stream_refuse(s, STATUS_INVALID, wrong.code, wrong.param, "%s", wrong.message);
	} else if (m->flags & UPLOAD && !s->upload) {
		stream_refuse(s, STATUS_INVALID, "missing_parameter", NULL,
		              "the method is an upload, and nothing was sent");
	} else if (idempotency_admit(s, name, m->flags & UPLOAD)) {
		s->upload = m->flags & UPLOAD;
		m->begin(s);
	}
}
