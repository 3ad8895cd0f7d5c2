#include "engine/daemon/faithfulness/faithfulness_creation.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/faithfulness/faithfulness_report.h"
#include "engine/daemon/faithfulness/faithfulness_job.h"
#include "engine/daemon/requests/background.h"

/* WORK: maximum tokens that the readings of a text read; takes minutes. NUMBERS: maximum of a job, about 11 bytes of
 * JSON each; all rows may be one answer, and a frame holds 64 MiB. */
enum { FAITHFULNESS_MAX_WORK = 1 << 23, FAITHFULNESS_MAX_NUMBERS = 4 << 20 };

typedef struct creation {
	job_draft draft;
	faithfulness_settings settings;
	json_t *settings_object;
	char path[PATH_MAX];       /* "": an input, not a file */
	faithfulness_corpus texts; /* or the single input */
	faithfulness_text *text;
	faithfulness_outcome outcome;
} creation;

static void fini_creation(job_draft *d)
{
	creation *c = (creation *)d;
	for (int64_t i = 0; i < c->outcome.n; i++)
		faithfulness_row_fini(&c->outcome.rows[i]);
	free(c->outcome.rows);
	faithfulness_corpus_fini(&c->texts);
	json_decref(c->settings_object);
}

/* --- an input: the answer ---------------------------------------------------------------------------- */

static void free_creation(void *context)
{
	job_draft_free(context);
}

/* Pool thread. */
static json_t *make_evaluation(void *context, error *err)
{
	const creation *c = context;
	const faithfulness_outcome *x = &c->outcome;
	json_t *object =
	    faithfulness_report_make(&c->settings, c->settings_object, c->draft.model, x->rows, x->n, &x->cost);
	(void)err;
	if (!object || !c->settings.rows ||
	    json_object_set_new(object, "rows",
	                        faithfulness_report_rows(&c->settings, c->draft.model, x->rows, x->n)) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static void input_done(void *context, faithfulness_outcome *x)
{
	creation *c = context;
	if (x->result != STATUS_OK) {
		job_draft_refuse(&c->draft, x->result, &x->error);
		return;
	}
	c->outcome = *x;
	x->rows = NULL;
	x->n = 0;
	background_answer(c->draft.stream, &(background_work){make_evaluation, free_creation, c});
}

/* Evaluate an input. False: it is a file, which needs a job. */
static bool evaluate_input(job_draft *d)
{
	creation *c = (creation *)d;
	error err = ERROR_INIT;
	if (c->path[0])
		return false;
	status s = faithfulness_text_begin(&c->text, d->queue->parts, d->stream, d->model, &c->settings, c->texts.texts,
	                                   0, input_done, c);
	if (s != STATUS_OK)
		job_draft_refuse(d, s, &err);
	return true;
}

/* --- a file: the job --------------------------------------------------------------------------------- */

static json_t *new_document(job_draft *d, const char *id)
{
	creation *c = (creation *)d;
	return job_queue_document_new(d->queue, id, d->stream->params,
	                              json_pack("{s:{s:I, s:i}, s:O}", "texts", "total", (json_int_t)c->texts.n, "done",
	                                        0, "settings", c->settings_object));
}

static void hand_over_texts(job_draft *d, queued_job *j)
{
	creation *c = (creation *)d;
	((faithfulness_job *)j)->texts = c->texts;
	c->texts = (faithfulness_corpus){0};
}

/* --- what is evaluated: pool thread -------------------------------------------------------------------- */

/* Read a list of ids. On error the list is empty. */
static status faithfulness_creation_read_tokens(token_list *out, const json_t *tokens, int64_t vocabulary,
                                                const char *param, error *err)
{
	const size_t n = json_array_size(tokens);
	*out = (token_list){.ids = memory_new(n + 1, sizeof *out->ids)};
	for (; out->ids && out->count < n; out->count++) {
		const json_int_t id = json_integer_value(json_array_get(tokens, out->count));
		if (id < 0 || id >= vocabulary) {
			token_list_fini(out);
			return error_set(err, STATUS_INVALID, param, "token %lld is not in the vocabulary of %lld",
			                 (long long)id, (long long)vocabulary);
		}
		out->ids[out->count] = (int32_t)id;
	}
	return out->ids ? STATUS_OK : STATUS_NOMEM;
}

static status faithfulness_creation_check_source(const model_dims *d, int64_t n, error *err)
{
	const int64_t most = scheduler_attribution_source_limit(d);
	return !d->source || (n > 0 && n <= most)
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "source", "is %lld tokens; 1 to %lld of this model are evaluated",
	                       (long long)n, (long long)most);
}

static status check_input(const creation *c, const faithfulness_tokens *t, error *err)
{
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	const int64_t tokens = t->count, most = scheduler_attribution_limit(&c->draft.model->dims);
	TRY(faithfulness_creation_check_source(&c->draft.model->dims, t->n_source, err));
	if (tokens + t->n_source < 2)
		return error_set(err, STATUS_INVALID, "input",
		                 "needs at least two tokens, because the reader is never removed");
	if (tokens > most)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "is %lld tokens; at most %lld of this model are evaluated", (long long)tokens,
		                 (long long)most);
	const int n = faithfulness_settings_positions(&c->settings, t, positions, &missing);
	if (n == 0 && c->settings.n_positions == 0 && c->settings.mask != TOKEN_NONE)
		return error_set(err, STATUS_INVALID, "input", "has no mask; give one, or `positions`");
	if (n == 0 || missing != -2)
		return error_set(err, STATUS_INVALID, "positions", "there are %lld tokens, counted from 0",
		                 (long long)tokens);
	const double work = faithfulness_settings_work(&c->settings, c->draft.model, t);
	return work <= FAITHFULNESS_MAX_WORK ? STATUS_OK
	                                     : error_set(err, STATUS_TOO_LARGE, "input",
	                                                 "about %.0f tokens would be read for a text, at most %d are "
	                                                 "allowed; use fewer positions or methods",
	                                                 work, FAITHFULNESS_MAX_WORK);
}

static status read_input(creation *c, error *err)
{
	const json_t *input = json_object_get(c->draft.stream->params, "input");
	const json_t *source = json_object_get(c->draft.stream->params, "source");
	const model_entry *m = c->draft.model;
	token_list tokens;
	c->texts = (faithfulness_corpus){1, memory_new(1, sizeof *c->texts.texts)};
	faithfulness_tokens *t = c->texts.texts;
	if (!t) {
		c->texts.n = 0;
		return STATUS_NOMEM;
	}
	if (json_is_string(source)) {
		TRY(faithfulness_tokens_read_source(t, m, &c->settings, json_string_value(source),
		                                    json_string_length(source), err));
	} else if (source) {
		TRY(faithfulness_creation_read_tokens(&tokens, source, m->dims.source_inputs, "source", err));
		t->source = tokens.ids;
		t->n_source = (int64_t)tokens.count;
	}
	if (json_is_string(input))
		return faithfulness_tokens_read(t, m, &c->settings, json_string_value(input), json_string_length(input),
		                                err);
	TRY(faithfulness_creation_read_tokens(&tokens, input, m->dims.inputs, "input", err));
	return faithfulness_tokens_take(t, m, &tokens, err);
}

static status read_texts(job_draft *d, error *err)
{
	creation *c = (creation *)d;
	if (c->path[0])
		return faithfulness_corpus_read(&c->texts, c->path,
		                                json_string_value(json_object_get(d->stream->params, "file")), d->model,
		                                &c->settings, err);
	TRY(read_input(c, err));
	return check_input(c, c->texts.texts, err);
}

/* --- the request ---------------------------------------------------------------------------------------- */

/* Check the bounds of a job, which hold for any texts. */
static status check_job(const creation *c, error *err)
{
	const faithfulness_settings *s = &c->settings;
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	const int64_t source = c->draft.model->dims.source;
	const faithfulness_tokens longest = {.count = s->max_tokens,
	                                     .n_source = source < s->max_tokens ? source : s->max_tokens};
	const int n = faithfulness_settings_positions(s, &longest, positions, &missing);
	const double work = faithfulness_settings_work(s, c->draft.model, &longest);
	if (s->rows)
		return error_set(err, STATUS_INVALID, "rows", "a job gives its numbers under `rows`");
	const int64_t numbers = n * s->texts * faithfulness_row_numbers(s);
	if (numbers > FAITHFULNESS_MAX_NUMBERS)
		return error_set(err, STATUS_TOO_LARGE, "texts",
		                 "%lld texts of %d positions have %lld numbers; a job has at most %d",
		                 (long long)s->texts, n, (long long)numbers, FAITHFULNESS_MAX_NUMBERS);
	if (work > FAITHFULNESS_MAX_WORK)
		return error_set(err, STATUS_TOO_LARGE, "max_tokens",
		                 "about %.0f tokens would be read for a text, at most %d are allowed", work,
		                 FAITHFULNESS_MAX_WORK);
	return STATUS_OK;
}

/* A model that reads a source needs one beside an input; in a file each text has its own. */
static status check_sources(const model_entry *m, const char *file, const json_t *source, error *err)
{
	if (m->dims.form->source && !m->dims.source)
		return catalog_check_reads_alone(m, "model", err);
	if (file && source)
		return error_set(err, STATUS_INVALID, "source", "applies to an input; a file has sources in its lines");
	return !file && !m->dims.source != !source
	           ? error_set(err, STATUS_INVALID, "source",
	                       m->dims.source ? "this model reads a source: it must not be missing"
	                                      : "this model reads no source")
	           : STATUS_OK;
}

static status check_creation(job_draft *d, error *err)
{
	creation *c = (creation *)d;
	const json_t *params = d->stream->params;
	const char *file = json_string_value(json_object_get(params, "file"));
	const json_t *input = json_object_get(params, "input");
	if (!file == !input)
		return error_set(err, STATUS_INVALID, file ? "file" : "input", "give an input or a file%s",
		                 file ? ", not both" : "");
	TRY(catalog_open(d->queue->parts->catalog, json_string_value(json_object_get(params, "model")), &d->model,
	                 err));
	TRY(check_sources(d->model, file, json_object_get(params, "source"), err));
	TRY(faithfulness_settings_read(&c->settings, params, d->model, err));
	c->settings_object = faithfulness_settings_write(&c->settings, params);
	if (!c->settings_object)
		return STATUS_NOMEM;
	if (!file)
		return STATUS_OK;
	TRY(check_job(c, err));
	return job_draft_find_file(d, c->path, err);
}

const job_draft_steps faithfulness_creation_steps = {
    .bytes = sizeof(creation),
    .check = check_creation,
    .read = read_texts,
    .answer = evaluate_input,
    .document = new_document,
    .hand_over = hand_over_texts,
    .fini = fini_creation,
};
