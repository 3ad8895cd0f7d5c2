/* evaluations.c - evaluations of models over the text of a file (loss, perplexity, accuracy), as a kind of jobs.
 *
 * A run reads unit after unit of the text (evaluation_unit.h) as score tasks, which run between the steps of
 * generations. The sums, the carried state and the place in the text are the member `run` of the job's row, which
 * clients do not see. The row and the event of progress are one commit, initially every second. After any stop a job
 * continues from its last commit and gives the same report, bit for bit. */
#include "engine/daemon/evaluations/evaluation_document.h"
#include "engine/daemon/evaluations/evaluation_run.h"
#include "engine/daemon/queue/job_draft.h"

/* --- the request: it is checked and the file tokenized before the job exists ---------------------------- */

typedef struct creation {
	job_draft draft;
	evaluation_settings settings;
	corpus corpus;
	int64_t tokens;
} creation;

static status check_evaluation(job_draft *d, error *err)
{
	creation *c = (creation *)d;
	const job_parts *parts = d->queue->parts;
	const json_t *params = d->stream->params;
	TRY(catalog_open_generative(parts->catalog, json_string_value(json_object_get(params, "model")), &d->model,
	                            err));
	TRY(catalog_check_reads_alone(d->model, "model", err));
	TRY(evaluation_settings_read(&c->settings, params, d->model, err));
	TRY(job_draft_find_file(d, NULL, err));
	evaluation_document_corpus(&c->corpus, parts, d->model, json_string_value(json_object_get(params, "file")));
	return STATUS_OK;
}

static status read_tokens(job_draft *d, error *err)
{
	creation *c = (creation *)d;
	token_cache *text;
	const status s = evaluation_document_open(&c->corpus, &text);
	*err = c->corpus.error;
	if (s == STATUS_OK)
		c->tokens = token_cache_tokens(text);
	token_cache_free(text);
	return s;
}

static void cancel_reading(job_draft *d)
{
	atomic_store(&((creation *)d)->corpus.cancel, true);
}

static json_t *new_document(job_draft *d, const char *id)
{
	const creation *c = (const creation *)d;
	return evaluation_document_new(d->queue, id, d->stream->params, evaluation_settings_write(&c->settings),
	                               c->tokens);
}

static const job_draft_steps draft_steps = {
    .bytes = sizeof(creation),
    .check = check_evaluation,
    .read = read_tokens,
    .cancel = cancel_reading,
    .document = new_document,
};

const job_kind evaluation_jobs = {
    .name = "evaluation",
    .object = "evaluation",
    .noun = "evaluation",
    .prefix = "eval-",
    .use = "a job that has not ended evaluates it",
    .hidden = {"request", "run"},
    .max_active = 100,
    .max_drafts = 8,
    .job_bytes = sizeof(queued_job),
    .draft = &draft_steps,
    .run = &evaluation_run_steps,
    .event = evaluation_document_state_event,
};
