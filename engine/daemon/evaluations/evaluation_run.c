#include "engine/daemon/evaluations/evaluation_run.h"

#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/evaluations/evaluation_document.h"
#include "engine/daemon/generation/score_call.h"

/* Interval of commits: the larger of a second and a 2000th of the run's time, so they become rarer. */
#define COMMIT_NS UINT64_C(1000000000)
enum { COMMIT_SHARE = 2000 };

typedef struct evaluation_run {
	queued_run base;
	json_t *kept; /* the document's `run`; NULL: start at the beginning */
	evaluation_settings settings;
	corpus corpus;
	token_cache *text;
	evaluation_unit unit;
	evaluation_cursor next, before; /* after the unit; before the unit */
	evaluation_sums sums;
	void *state; /* state of a carried context */
	size_t state_bytes;
	state_list states; /* the states in it */
	int64_t from;      /* tokens that were settled when the run started */
	uint64_t started_ns, committed_ns;
	score_call task;
	bool reading, read; /* read: the unit has scores that are not added */
	/* pool */
	uv_work_t work;
	json_t *report;
	status result;
	error error;
} evaluation_run;

static void fini_run(queued_run *base)
{
	evaluation_run *r = (evaluation_run *)base;
	evaluation_unit_fini(&r->unit);
	token_cache_free(r->text);
	json_decref(r->kept);
	json_decref(r->report);
	free(r->state);
	state_list_free(&r->states);
}

static void cancel_run(queued_run *base)
{
	evaluation_run *r = (evaluation_run *)base;
	atomic_store(&r->corpus.cancel, true);
	if (r->reading)
		score_call_cancel(&r->task);
}

/* --- what is kept ------------------------------------------------------------------------------------------ */

static json_t *write_state(const evaluation_run *r)
{
	if (!r->state || r->before.done == r->before.start)
		return json_null();
	char *text = memory_new(BASE64_ENCODE_RAW_LENGTH(r->state_bytes) + 1, 1);
	if (!text)
		return NULL;
	base64_encode_raw(text, r->state_bytes, r->state);
	json_t *string = json_stringn(text, BASE64_ENCODE_RAW_LENGTH(r->state_bytes));
	free(text);
	return string;
}

/* Name of the member that has the state. If that has running sums the name is another one than in earlier versions,
 * which kept logarithms (engine/model/states.h). */
static const char *state_name(const evaluation_run *r)
{
	return state_list_has_sums(&r->states) ? "state_with_sums" : "state";
}

/* Decode exactly `bytes` bytes. NULL: damaged, or out of memory. */
static void *decode(const json_t *written, size_t bytes)
{
	struct base64_decode_ctx decoding;
	size_t chars = json_string_length(written), decoded = BASE64_DECODE_LENGTH(chars);
	unsigned char *out = chars == BASE64_ENCODE_RAW_LENGTH(bytes) ? memory_new(decoded + 1, 1) : NULL;
	if (!out)
		return NULL;
	base64_decode_init(&decoding);
	if (base64_decode_update(&decoding, &decoded, out, chars, json_string_value(written)) &&
	    base64_decode_final(&decoding) && decoded == bytes)
		return out;
	free(out);
	return NULL;
}

static bool read_state(evaluation_run *r, const json_t *kept)
{
	const json_t *written = json_object_get(kept, state_name(r)), *logs = json_object_get(kept, "state");
	if (!r->state || r->next.done == r->next.start)
		return written ? json_is_null(written) : json_is_null(logs);
	const bool converts = !written && logs;
	const size_t bytes = converts ? (size_t)state_list_slot_with_logs(&r->states) * sizeof(float) : r->state_bytes;
	void *decoded = decode(converts ? logs : written, bytes);
	if (decoded && converts)
		state_list_convert_logs(&r->states, decoded, r->state);
	else if (decoded)
		memcpy(r->state, decoded, bytes);
	const bool complete = decoded != NULL;
	free(decoded);
	return complete;
}

/* State at the border before the unit. */
static json_t *write_run(const evaluation_run *r)
{
	return json_pack("{s:I, s:I, s:o, s:o}", "start", (json_int_t)r->before.start, "done",
	                 (json_int_t)r->before.done, "sums", evaluation_sums_write(&r->sums), state_name(r),
	                 write_state(r));
}

static status read_run(evaluation_run *r, error *err)
{
	if (!r->kept)
		return STATUS_OK;
	r->next = (evaluation_cursor){json_integer_value(json_object_get(r->kept, "start")),
	                              json_integer_value(json_object_get(r->kept, "done"))};
	TRY(evaluation_sums_read(&r->sums, json_object_get(r->kept, "sums"), err));
	const int64_t tokens = token_cache_tokens(r->text);
	return r->next.start >= 0 && r->next.start <= r->next.done && r->next.done <= tokens && read_state(r, r->kept)
	           ? STATUS_OK
	           : error_set(err, STATUS_CORRUPT, NULL, "the evaluation's place in the text is damaged");
}

static evaluation_progress progress_of(const evaluation_run *r)
{
	return (evaluation_progress){.tokens = r->before.done,
	                             .total = token_cache_tokens(r->text),
	                             .from = r->from,
	                             .seconds = (double)(clock_ns() - r->started_ns) * 1e-9,
	                             .nats = evaluation_sums_nats(&r->sums)};
}

/* Commit the job's row with the place in the text, and the event that reports it. */
static status commit(evaluation_run *r, queued_job *j, const evaluation_progress *p, error *err)
{
	json_t *run = write_run(r);
	json_t *next = run ? evaluation_document_at(j->document, evaluation_document_progress(p), run) : NULL;
	TRY(job_queue_progress(r->base.queue, j, next, evaluation_document_progress_event(p), err));
	r->committed_ns = clock_ns();
	return STATUS_OK;
}

static bool is_due(const evaluation_run *r)
{
	const uint64_t now = clock_ns(), share = (now - r->started_ns) / COMMIT_SHARE;
	return now - r->committed_ns >= (share > COMMIT_NS ? share : COMMIT_NS);
}

/* Report the progress, and commit it at intervals. */
static status report_progress(evaluation_run *r, queued_job *j, error *err)
{
	const evaluation_progress p = progress_of(r);
	if (is_due(r))
		return commit(r, j, &p, err);
	json_t *progress = evaluation_document_progress(&p);
	if (progress) /* otherwise the last one remains valid */
		json_object_set_new(j->document, "progress", progress);
	return STATUS_OK;
}

static status keep_report(evaluation_run *r, queued_job *j, error *err)
{
	const evaluation_progress p = progress_of(r);
	json_t *next = evaluation_document_at(j->document, evaluation_document_progress(&p), NULL);
	return job_queue_succeed(r->base.queue, j, next, r->report, err);
}

/* --- units --------------------------------------------------------------------------------------------------- */

static void evaluation_run_step(evaluation_run *r);

static status plan_unit(evaluation_run *r, error *err)
{
	r->before = r->next;
	return evaluation_unit_plan(&r->unit, &r->settings, r->text, &r->next, r->state, err);
}

static status open_text(evaluation_run *r, error *err)
{
	status s = evaluation_document_open(&r->corpus, &r->text);
	if (s != STATUS_OK) {
		*err = r->corpus.error;
		return s;
	}
	if (r->settings.context == EVALUATION_CARRIED) {
		const size_t bytes = (size_t)r->base.model->state_bytes;
		r->state_bytes = bytes > sizeof(float) ? bytes : sizeof(float);
		r->state = memory_new(r->state_bytes, 1);
		architecture_states(r->base.model->architecture, r->base.model->parsed, &r->states);
		if (!r->state || r->states.status != STATUS_OK)
			return STATUS_NOMEM;
	}
	TRY(evaluation_unit_init(&r->unit, &r->settings));
	TRY(read_run(r, err));
	r->from = r->next.done;
	return STATUS_OK;
}

static status compute(evaluation_run *r, error *err)
{
	if (!r->text)
		TRY(open_text(r, err));
	if (r->read)
		TRY(evaluation_sums_add(&r->sums, &r->settings, &r->unit, r->base.model->tokenizer, err));
	r->read = false;
	TRY(plan_unit(r, err));
	if (r->unit.n_windows > 0)
		return STATUS_OK;
	r->report = evaluation_sums_report(&r->sums, r->base.model->tokenizer, r->text, err);
	return r->report ? STATUS_OK : error_settle(err, err->status ? err->status : STATUS_NOMEM);
}

static void pool_compute(uv_work_t *work)
{
	evaluation_run *r = work->data;
	reserve_forget();
	r->result = compute(r, &r->error);
}

static void unit_computed(uv_work_t *work, int cancelled)
{
	evaluation_run *r = work->data;
	error err = r->error;
	queued_job *j = job_queue_find(r->base.queue, r->base.id);
	(void)cancelled; /* cannot be cancelled */
	status s = !j || r->base.cancelled ? STATUS_CANCELLED : r->result;
	if (s == STATUS_OK)
		s = r->report ? keep_report(r, j, &err) : report_progress(r, j, &err);
	if (s != STATUS_OK || r->report)
		job_queue_end_run(&r->base, s, &err);
	else
		evaluation_run_step(r);
}

static bool queue_computing(evaluation_run *r)
{
	r->work.data = r;
	return uv_queue_work(r->base.queue->parts->loop, &r->work, pool_compute, unit_computed) == 0;
}

static void begin_computing(evaluation_run *r)
{
	error err = ERROR_INIT;
	if (!queue_computing(r))
		job_queue_end_run(&r->base, STATUS_NOMEM, &err);
}

/* All numbers must come from one type of weights. */
static status check_weights(const evaluation_run *r, error *err)
{
	const dtype now = r->base.model->weights;
	return now == r->settings.weights
	           ? STATUS_OK
	           : error_set(err, STATUS_CONFLICT, "model",
	                       "the model was loaded with %s weights while it was evaluated with %s",
	                       catalog_dtype_name(now), catalog_dtype_name(r->settings.weights));
}

static void read_done(score_call *t)
{
	evaluation_run *r = TASK_OWNER(t, evaluation_run, task);
	error err = t->error;
	r->reading = false;
	status s = t->result == STATUS_OK ? check_weights(r, &err) : t->result;
	r->read = true;
	if (s == STATUS_OK)
		begin_computing(r);
	else
		job_queue_end_run(&r->base, s, &err);
}

static void evaluation_run_step(evaluation_run *r)
{
	if (r->unit.n_sequences == 0) { /* a single token has none before it and is not scored */
		r->read = true;
		begin_computing(r);
		return;
	}
	r->task = (score_call){.fleet = r->base.queue->parts->fleet,
	                       .device = FLEET_ANY,
	                       .model = r->base.model,
	                       .request = {.sequences = r->unit.sequences,
	                                   .n_sequences = r->unit.n_sequences,
	                                   .width = r->base.model->dims.outputs},
	                       .finished = read_done};
	r->reading = true;
	score_call_submit(&r->task);
}

/* --- beginning ----------------------------------------------------------------------------------------------- */

static status open_run(queued_run *base, queued_job *j, error *err)
{
	evaluation_run *r = (evaluation_run *)base;
	json_t *kept = json_object_get(j->document, "run");
	r->kept = json_is_object(kept) ? json_incref(kept) : NULL;
	r->started_ns = r->committed_ns = clock_ns();
	TRY(evaluation_settings_restore(&r->settings, json_object_get(j->document, "settings"), err));
	TRY(check_weights(r, err));
	evaluation_document_corpus(&r->corpus, base->queue->parts, base->model,
	                           json_string_value(json_object_get(j->document, "file")));
	return STATUS_OK;
}

static status start_run(queued_run *base, queued_job *j)
{
	(void)j;
	return queue_computing((evaluation_run *)base) ? STATUS_OK : STATUS_NOMEM;
}

const queued_run_steps evaluation_run_steps = {sizeof(evaluation_run), open_run, start_run, cancel_run, fini_run};
