#include "engine/daemon/faithfulness/faithfulness_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/faithfulness/faithfulness_job.h"
#include "engine/daemon/faithfulness/faithfulness_report.h"

typedef struct faithfulness_run {
	queued_run base;
	json_t *request, *settings_object; /* borrowed from the document */
	faithfulness_settings settings;
	faithfulness_corpus texts;
	char path[PATH_MAX];
	faithfulness_row *rows; /* rows of completed texts */
	int64_t n_rows, n_done;
	faithfulness_cost cost;
	faithfulness_text *text; /* NULL: none in progress */
	/* pool */
	uv_work_t work;
	json_t *made; /* the event of a text, or the evaluation */
	int64_t n_new;
	faithfulness_cost spent;
	status result;
	error error;
} faithfulness_run;

static void fini_run(queued_run *base)
{
	faithfulness_run *r = (faithfulness_run *)base;
	for (int64_t i = 0; i < r->n_rows; i++)
		faithfulness_row_fini(&r->rows[i]);
	free(r->rows);
	json_decref(r->request);
	json_decref(r->settings_object);
	json_decref(r->made);
	faithfulness_corpus_fini(&r->texts);
}

static void cancel_run(queued_run *base)
{
	faithfulness_run *r = (faithfulness_run *)base;
	if (r->text)
		faithfulness_text_cancel(r->text);
}

/* --- texts ----------------------------------------------------------------------------------------- */

static void faithfulness_run_step(faithfulness_run *r);

static void pool_make(uv_work_t *work)
{
	faithfulness_run *r = work->data;
	reserve_forget();
	r->made = r->n_new
	              ? faithfulness_report_rows(&r->settings, r->base.model, r->rows + r->n_rows - r->n_new, r->n_new)
	              : faithfulness_report_make(&r->settings, r->settings_object, r->base.model, r->rows, r->n_rows,
	                                         &r->cost);
}

static json_t *done_document(const queued_job *j, int64_t done)
{
	json_t *next = json_copy(j->document), *texts = json_deep_copy(json_object_get(j->document, "texts"));
	bool whole = json_object_set_new(texts, "done", json_integer(done)) == 0;
	whole = json_object_set_new(next, "texts", texts) == 0 && whole;
	if (whole)
		return next;
	json_decref(next);
	return NULL;
}

/* Store the text's numbers and the job's row that counts it. */
static status keep_text(faithfulness_run *r, queued_job *j, error *err)
{
	json_t *event =
	    json_pack("{s:I, s:I, s:O, s:f, s:I, s:I}", "text", (json_int_t)r->n_done, "tokens",
	              (json_int_t)r->texts.texts[r->n_done].count, "rows", r->made, "seconds", r->spent.seconds,
	              "readings", (json_int_t)r->spent.readings, "tokens_read", (json_int_t)r->spent.tokens);
	return job_queue_progress(r->base.queue, j, done_document(j, r->n_done + 1), event, err);
}

static void add_cost(faithfulness_cost *sum, const faithfulness_cost *x)
{
	sum->seconds += x->seconds;
	sum->readings += x->readings;
	sum->tokens += x->tokens;
}

static void faithfulness_run_made(uv_work_t *work, int cancelled)
{
	faithfulness_run *r = work->data;
	error err = ERROR_INIT;
	queued_job *j = job_queue_find(r->base.queue, r->base.id);
	const bool text = r->n_new > 0;
	(void)cancelled; /* cannot be cancelled */
	status s = !j || r->base.cancelled ? STATUS_CANCELLED : !r->made ? STATUS_NOMEM : STATUS_OK;
	if (s == STATUS_OK)
		s = text ? keep_text(r, j, &err)
		         : job_queue_succeed(r->base.queue, j, json_incref(j->document), r->made, &err);
	json_decref(r->made);
	r->made = NULL;
	r->n_new = 0;
	if (s != STATUS_OK || !text) {
		job_queue_end_run(&r->base, s, &err);
		return;
	}
	r->n_done++;
	add_cost(&r->cost, &r->spent);
	faithfulness_run_step(r);
}

static void faithfulness_run_make(faithfulness_run *r)
{
	error err = ERROR_INIT;
	r->work.data = r;
	if (uv_queue_work(r->base.queue->parts->loop, &r->work, pool_make, faithfulness_run_made) != 0)
		job_queue_end_run(&r->base, STATUS_NOMEM, &err);
}

static bool faithfulness_run_add_rows(faithfulness_run *r, faithfulness_row *rows, int64_t n)
{
	faithfulness_row *more = realloc(r->rows, (size_t)(r->n_rows + n) * sizeof *more);
	if (!more)
		return false;
	memcpy(more + r->n_rows, rows, (size_t)n * sizeof *more);
	r->rows = more;
	r->n_rows += n;
	return true;
}

static void text_done(void *context, faithfulness_outcome *x)
{
	faithfulness_run *r = context;
	error err = x->error;
	r->text = NULL;
	if (x->result == STATUS_OK && !faithfulness_run_add_rows(r, x->rows, x->n))
		x->result = error_settle(&err, STATUS_NOMEM);
	if (x->result != STATUS_OK) {
		job_queue_end_run(&r->base, x->result, &err);
		return;
	}
	r->n_new = x->n;
	r->spent = x->cost;
	x->n = 0;
	faithfulness_run_make(r);
}

static void faithfulness_run_step(faithfulness_run *r)
{
	error err = ERROR_INIT;
	if (r->base.cancelled || r->base.queue->stopping) {
		job_queue_end_run(&r->base, STATUS_CANCELLED, &err);
	} else if (r->n_done >= r->texts.n) {
		faithfulness_run_make(r);
	} else {
		const faithfulness_tokens *t = &r->texts.texts[r->n_done];
		status s = faithfulness_text_begin(&r->text, r->base.queue->parts, NULL, r->base.model, &r->settings, t,
		                                   r->n_done, text_done, r);
		if (s != STATUS_OK)
			job_queue_end_run(&r->base, s, &err);
	}
}

/* --- beginning ------------------------------------------------------------------------------------- */

static void faithfulness_run_pool_read(uv_work_t *work)
{
	faithfulness_run *r = work->data;
	const char *file = json_string_value(json_object_get(r->request, "file"));
	reserve_forget();
	r->result = faithfulness_corpus_read(&r->texts, r->path, file, r->base.model, &r->settings, &r->error);
}

static void faithfulness_run_read_file(uv_work_t *work, int cancelled)
{
	faithfulness_run *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (r->result == STATUS_OK)
		faithfulness_run_step(r);
	else
		job_queue_end_run(&r->base, r->result, &r->error);
}

/* Restore a completed text. False: the remaining texts are evaluated again. */
static bool take_event(void *context, const json_t *event)
{
	faithfulness_run *r = context;
	const json_t *rows = json_object_get(event, "rows");
	if (json_integer_value(json_object_get(event, "text")) != r->n_done)
		return false;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		faithfulness_row row = {.text = r->n_done};
		r->result = faithfulness_report_read(&r->settings, json_array_get(rows, i), &row);
		if (r->result == STATUS_OK && !faithfulness_run_add_rows(r, &row, 1))
			r->result = STATUS_NOMEM;
		if (r->result != STATUS_OK) {
			faithfulness_row_fini(&row);
			return false;
		}
	}
	add_cost(&r->cost, &(faithfulness_cost){json_number_value(json_object_get(event, "seconds")),
	                                        json_integer_value(json_object_get(event, "readings")),
	                                        json_integer_value(json_object_get(event, "tokens_read"))});
	r->n_done++;
	return true;
}

static status open_run(queued_run *base, queued_job *j, error *err)
{
	faithfulness_run *r = (faithfulness_run *)base;
	store *s = base->queue->parts->store;
	bool more;
	r->request = json_incref(json_object_get(j->document, "request"));
	r->settings_object = json_incref(json_object_get(j->document, "settings"));
	const char *file = json_string_value(json_object_get(r->request, "file"));
	if (!file)
		return error_set(err, STATUS_CORRUPT, NULL, "the evaluation's record is damaged");
	TRY(faithfulness_settings_read(&r->settings, r->request, base->model, err));
	store_blob_path(s, file, r->path);
	store_page page = {.parent = j->id, .ascending = true};
	TRY(store_list(s, STORE_EVENTS, &page, take_event, r, &more, err));
	if (r->result != STATUS_OK)
		return error_set(err, r->result, NULL, "the numbers of text %lld cannot be read", (long long)r->n_done);
	return STATUS_OK;
}

static status start_run(queued_run *base, queued_job *j)
{
	faithfulness_run *r = (faithfulness_run *)base;
	faithfulness_corpus *texts = &((faithfulness_job *)j)->texts;
	r->texts = *texts;
	*texts = (faithfulness_corpus){0};
	r->work.data = r;
	if (r->texts.n > 0)
		faithfulness_run_step(r);
	else if (uv_queue_work(base->queue->parts->loop, &r->work, faithfulness_run_pool_read,
	                       faithfulness_run_read_file) != 0)
		return STATUS_NOMEM;
	return STATUS_OK;
}

const queued_run_steps faithfulness_run_steps = {sizeof(faithfulness_run), open_run, start_run, cancel_run, fini_run};
