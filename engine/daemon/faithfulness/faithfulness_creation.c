#include "engine/daemon/faithfulness/faithfulness_creation.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/faithfulness/faithfulness_report.h"
#include "engine/daemon/faithfulness/faithfulness_run.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/requests/idempotency.h"

/* WORK: maximum tokens that the readings of a text read; takes minutes. NUMBERS: maximum of a job, about 11 bytes of
 * JSON each; all rows may be one answer, and a frame holds 64 MiB. */
enum { FAITHFULNESS_MAX_WORK = 1 << 23, FAITHFULNESS_MAX_NUMBERS = 4 << 20 };

typedef struct creation {
	stream *stream;
	faithfulness_jobs *all;
	model_entry *model;
	faithfulness_settings settings;
	json_t *settings_object;
	char path[PATH_MAX]; /* "": an input, not a file */
	uv_work_t work;
	status result;
	error error;
	faithfulness_corpus texts; /* or the single input */
	faithfulness_text *text;
	faithfulness_outcome outcome;
} creation;

static void creation_free(void *context)
{
	creation *c = context;
	for (int64_t i = 0; i < c->outcome.n; i++)
		faithfulness_row_fini(&c->outcome.rows[i]);
	free(c->outcome.rows);
	faithfulness_corpus_fini(&c->texts);
	json_decref(c->settings_object);
	catalog_release(c->model);
	c->all->creations--;
	free(c);
}

static void faithfulness_creation_refuse(creation *c, status result, error *err)
{
	error_settle(err, result);
	stream_error(c->stream, err, NULL);
	creation_free(c);
}

/* --- an input: the answer ---------------------------------------------------------------------------- */

/* Pool thread. */
static json_t *make_evaluation(void *context, error *err)
{
	const creation *c = context;
	const faithfulness_outcome *x = &c->outcome;
	json_t *object = faithfulness_report_make(&c->settings, c->settings_object, c->model, x->rows, x->n, &x->cost);
	(void)err;
	if (!object || !c->settings.rows ||
	    json_object_set_new(object, "rows", faithfulness_report_rows(&c->settings, c->model, x->rows, x->n)) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static void input_done(void *context, faithfulness_outcome *x)
{
	creation *c = context;
	if (x->result != STATUS_OK) {
		faithfulness_creation_refuse(c, x->result, &x->error);
		return;
	}
	c->outcome = *x;
	x->rows = NULL;
	x->n = 0;
	background_answer(c->stream, &(background_work){make_evaluation, creation_free, c});
}

static void evaluate_input(creation *c)
{
	const faithfulness_tokens *t = c->texts.texts;
	error err = ERROR_INIT;
	status s = faithfulness_text_begin(&c->text, c->stream->engine, c->stream, c->model, &c->settings, t, 0,
	                                   input_done, c);
	if (s != STATUS_OK)
		faithfulness_creation_refuse(c, s, &err);
}

/* --- a file: the job --------------------------------------------------------------------------------- */

/* The job and the stored answer are one commit. */
static status add_job(creation *c, char id[STORE_ID_BYTES], json_t **document, json_t **answer, error *err)
{
	stream *s = c->stream;
	store_file file;
	store_new_id(id, "evaluation-");
	*document = faithfulness_document_new(id, s->params, json_incref(c->settings_object), c->texts.n);
	*answer = *document ? job_queue_public(&c->all->queue, *document) : NULL;
	TRY(idempotency_begin(s, err));
	status result = *answer ? store_file_get(s->engine->store,
	                                         json_string_value(json_object_get(s->params, "file")), &file, err)
	                        : STATUS_NOMEM;
	if (result == STATUS_OK)
		result = job_queue_put(&c->all->queue, *document, err);
	return idempotency_commit(s, result, *answer, err);
}

static void create_job(creation *c)
{
	char id[STORE_ID_BYTES];
	json_t *document = NULL, *answer = NULL;
	error err = ERROR_INIT;
	faithfulness_jobs *all = c->all;
	status s = add_job(c, id, &document, &answer, &err);
	queued_job *j = s == STATUS_OK ? job_queue_add(&all->queue, id, document) : NULL;
	faithfulness_corpus *kept = j ? j->kept = memory_new(1, sizeof *kept) : NULL;
	if (kept) { /* otherwise the run reads them again */
		*kept = c->texts;
		c->texts = (faithfulness_corpus){0};
	}
	json_decref(document);
	if (s != STATUS_OK) {
		json_decref(answer);
		faithfulness_creation_refuse(c, s, &err);
		return;
	}
	stream_result(c->stream, answer); /* without memory for j it starts at the next restart */
	creation_free(c);
	faithfulness_run_next(all);
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
	const int64_t tokens = t->count, most = scheduler_attribution_limit(&c->model->dims);
	TRY(faithfulness_creation_check_source(&c->model->dims, t->n_source, err));
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
	const double work = faithfulness_settings_work(&c->settings, c->model, t);
	return work <= FAITHFULNESS_MAX_WORK ? STATUS_OK
	                                     : error_set(err, STATUS_TOO_LARGE, "input",
	                                                 "about %.0f tokens would be read for a text, at most %d are "
	                                                 "allowed; use fewer positions or methods",
	                                                 work, FAITHFULNESS_MAX_WORK);
}

static status read_input(creation *c, error *err)
{
	const json_t *input = json_object_get(c->stream->params, "input");
	const json_t *source = json_object_get(c->stream->params, "source");
	const model_entry *m = c->model;
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

static status read_texts(creation *c, error *err)
{
	if (c->path[0])
		return faithfulness_corpus_read(&c->texts, c->path,
		                                json_string_value(json_object_get(c->stream->params, "file")), c->model,
		                                &c->settings, err);
	TRY(read_input(c, err));
	return check_input(c, c->texts.texts, err);
}

static void faithfulness_creation_pool_read(uv_work_t *work)
{
	creation *c = work->data;
	reserve_forget();
	c->result = read_texts(c, &c->error);
}

static void texts_read(uv_work_t *work, int cancelled)
{
	creation *c = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (c->result == STATUS_OK && c->stream->cancelled)
		c->result = STATUS_CANCELLED;
	if (c->result != STATUS_OK)
		faithfulness_creation_refuse(c, c->result, &c->error);
	else if (c->path[0])
		create_job(c);
	else
		evaluate_input(c);
}

/* --- the request ---------------------------------------------------------------------------------------- */

/* Check the bounds of a job, which hold for any texts. */
static status check_job(const creation *c, error *err)
{
	const faithfulness_settings *s = &c->settings;
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	const int64_t source = c->model->dims.source;
	const faithfulness_tokens longest = {.count = s->max_tokens,
	                                     .n_source = source < s->max_tokens ? source : s->max_tokens};
	const int n = faithfulness_settings_positions(s, &longest, positions, &missing);
	const double work = faithfulness_settings_work(s, c->model, &longest);
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

static status begin_job(creation *c, const char *id, error *err)
{
	engine *e = c->stream->engine;
	store_file file;
	TRY(check_job(c, err));
	status s = store_file_use(e->store, id, &file, err);
	if (s == STATUS_NOT_FOUND)
		strcpy(err->param, "file");
	TRY(s);
	TRY(store_check_room(e->store, 1, err));
	store_blob_path(e->store, file.id, c->path);
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

static status faithfulness_creation_start(creation *c, error *err)
{
	const json_t *params = c->stream->params;
	const char *file = json_string_value(json_object_get(params, "file"));
	const json_t *input = json_object_get(params, "input");
	if (!file == !input)
		return error_set(err, STATUS_INVALID, file ? "file" : "input", "give an input or a file%s",
		                 file ? ", not both" : "");
	TRY(catalog_open(c->stream->engine->catalog, json_string_value(json_object_get(params, "model")), &c->model,
	                 err));
	TRY(check_sources(c->model, file, json_object_get(params, "source"), err));
	TRY(faithfulness_settings_read(&c->settings, params, c->model, err));
	c->settings_object = faithfulness_settings_write(&c->settings, params);
	if (!c->settings_object)
		return STATUS_NOMEM;
	if (file)
		TRY(begin_job(c, file, err));
	c->work.data = c;
	return uv_queue_work(&c->stream->engine->loop, &c->work, faithfulness_creation_pool_read, texts_read) == 0
	           ? STATUS_OK
	           : STATUS_NOMEM;
}

void faithfulness_creation_begin(stream *s)
{
	error err = ERROR_INIT;
	creation *c = memory_new(1, sizeof *c);
	if (!c) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	c->stream = s;
	c->all = s->engine->faithfulness;
	c->all->creations++;
	status result = faithfulness_creation_start(c, &err);
	if (result != STATUS_OK)
		faithfulness_creation_refuse(c, result, &err);
}
