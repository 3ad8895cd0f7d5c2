/* One row per method: its handler. Whether the method has an id, whether it is an upload, and which schema the
 * remaining params must fit comes from the contract (gen/schemas.h); handlers then read params without checking types.
 */
#include "engine/daemon/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/reserve.h"
#include "engine/daemon/evaluations/evaluations.h"
#include "engine/daemon/faithfulness/faithfulness_jobs.h"
#include "engine/daemon/generation/chat.h"
#include "engine/daemon/generation/classify.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/embeddings.h"
#include "engine/daemon/generation/explanations.h"
#include "engine/daemon/generation/fill_mask.h"
#include "engine/daemon/generation/session_prompts.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/library/models.h"
#include "engine/daemon/library/storage.h"
#include "engine/daemon/metrics.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/sessions/session_task.h"
#include "engine/daemon/sessions/sessions.h"
#include "gen/schemas.h"

typedef struct method {
	const char *name;
	void (*begin)(stream *s);
} method;

static const method methods[] = {
    {"engine.status", metrics_status},
    {"engine.metrics", metrics_read},
    {"storage.usage", storage_usage},
    {"model.list", models_list},
    {"model.get", models_get},
    {"model.delete", models_delete},
    {"model.load", models_load},
    {"model.unload", models_unload},
    {"model.import", models_import},
    {"model.file", models_file},
    {"model.files", models_files},
    {"file.create", files_create},
    {"file.list", files_list},
    {"file.get", files_get},
    {"file.delete", files_delete},
    {"file.content", files_content},
    {"job.create", jobs_create},
    {"job.list", jobs_list},
    {"job.get", jobs_get},
    {"job.cancel", jobs_cancel},
    {"job.pause", jobs_pause},
    {"job.resume", jobs_resume},
    {"job.delete", jobs_delete},
    {"job.events", jobs_events},
    {"job.watch", jobs_watch},
    {"job.checkpoints", jobs_checkpoints},
    {"checkpoint.delete", jobs_delete_checkpoint},
    {"completion.create", completions_create},
    {"chat.create", chat_create},
    {"response.create", chat_respond},
    {"session.create", session_prompts_create},
    {"session.list", sessions_list},
    {"session.get", sessions_get},
    {"session.delete", sessions_delete},
    {"session.generate", completions_continue},
    {"session.append", session_prompts_append},
    {"session.fork", session_task_fork},
    {"session.export", session_task_export},
    {"session.import", session_task_import},
    {"session.alpha", explanations_session},
    {"explain", explanations_create},
    {"evaluation.create", evaluations_create},
    {"evaluation.list", evaluations_list},
    {"evaluation.get", evaluations_get},
    {"evaluation.cancel", evaluations_cancel},
    {"evaluation.delete", evaluations_delete},
    {"evaluation.events", evaluations_events},
    {"evaluation.watch", evaluations_watch},
    {"faithfulness.create", faithfulness_jobs_create},
    {"faithfulness.list", faithfulness_jobs_list},
    {"faithfulness.get", faithfulness_jobs_get},
    {"faithfulness.cancel", faithfulness_jobs_cancel},
    {"faithfulness.delete", faithfulness_jobs_delete},
    {"faithfulness.rows", faithfulness_jobs_rows},
    {"classify", classify_create},
    {"fill_mask", fill_mask_create},
    {"embed", embeddings_create},
    {"tokenize", tokens_encode},
    {"detokenize", tokens_decode},
};

static const method *find_method(const char *name)
{
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (strcmp(methods[i].name, name) == 0)
			return &methods[i];
	return NULL;
}

/* The contract's row of a method. */
static const schema_method *find_contract(const char *name)
{
	for (const schema_method *m = schema_methods; m->name; m++)
		if (strcmp(m->name, name) == 0)
			return m;
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

/* --- what grows with the params: on the pool when they are large ------------------------------------ */

typedef struct dispatch {
	uv_work_t work;
	stream *stream;
	const method *found;
	const schema_method *contract;
	bool fits;
	schema_error wrong; /* when it does not */
} dispatch;

static void check_params(dispatch *d)
{
	d->fits = schema_check(d->contract->params, d->stream->params, &d->wrong);
	if (d->fits)
		idempotency_hash(d->stream, d->found->name);
}

static void begin(const dispatch *d)
{
	stream *s = d->stream;
	const schema_method *m = d->contract;
	if (s->cancelled) {
		stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
	} else if (!d->fits) {
		stream_refuse(s, STATUS_INVALID, d->wrong.code, d->wrong.param, "%s", d->wrong.message);
	} else if (m->upload && !s->upload) {
		stream_refuse(s, STATUS_INVALID, "missing_parameter", NULL,
		              "the method is an upload, and nothing was sent");
	} else if (idempotency_admit(s, m->upload)) {
		s->upload = m->upload;
		d->found->begin(s);
	}
}

static void pool_check(uv_work_t *work)
{
	reserve_forget();
	check_params(work->data);
}

static void checked(uv_work_t *work, int cancelled)
{
	dispatch *d = work->data;
	(void)cancelled; /* nothing cancels it */
	begin(d);
	free(d);
}

static void check_and_begin(const dispatch *wanted)
{
	stream *s = wanted->stream;
	dispatch now = *wanted, *later = s->large ? malloc(sizeof *later) : NULL;
	if (!s->large) {
		check_params(&now);
		begin(&now);
		return;
	}
	if (later) {
		*later = now;
		later->work.data = later;
		if (uv_queue_work(s->net->loop, &later->work, pool_check, checked) == 0)
			return;
	}
	free(later);
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
}

void dispatch_request(stream *s, const char *name)
{
	const method *found = find_method(name);
	const schema_method *m = find_contract(name);
	if (!s->params) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	} else if (s->net->draining) {
		stream_refuse_stopping(s);
	} else if (!found || !m) {
		stream_refuse(s, STATUS_NOT_FOUND, "unknown_method", NULL, "there is no method \"%.64s\"", name);
	} else if (m->id && !take_id(s)) {
		return;
	} else if (!m->keyed || idempotency_take(s)) {
		check_and_begin(&(dispatch){.stream = s, .found = found, .contract = m});
	}
}
