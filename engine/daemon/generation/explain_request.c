/* explain_request.c - weights are computed from a log.
 *
 * The executor gives the log of an input, which it reads like a prompt, or a copy of a session's log. The pool computes
 * the weights and their JSON while the executor continues. If no weights are requested, there is no log, and only a
 * scoring reads the input. An answer in pieces is made from the same JSON (explanation_format.h). A request counts as
 * running until its stream ends. */
#include "engine/daemon/generation/explain_request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/attribution_request.h"
#include "engine/daemon/generation/explanation_format.h"
#include "engine/daemon/generation/selection.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/requests/pieces.h"
#include "engine/daemon/sessions/session_task.h"

/* Maximum numbers in one answer: each has about 14 bytes of JSON, and a frame holds 64 MiB. */
enum { EXPLAIN_REQUEST_MAX_NUMBERS = 4 << 20 };

typedef enum aggregate { AGGREGATE_NONE, AGGREGATE_MEAN, AGGREGATE_ROLLOUT } aggregate;

typedef struct explain_request {
	uv_loop_t *loop;
	session_log input;
	explain_logs logs;    /* point into input.data */
	explain_log *log;     /* the log of its tokens */
	score_sequence whole; /* for a model that reads a source, which reads both again to get the weights */
	int64_t position;     /* -1: all */
	selection chosen;
	aggregate aggregate;
	bool weights; /* weights are requested */
	attribution_request attributions;
	score_call task;
	bool made;                        /* for an answer in pieces: its JSON exists */
	json_t *object;                   /* freed with the first piece */
	const explanation_format *format; /* format of the answer; NULL: JSON */
	explanation_writer writer;
	int64_t bytes; /* bytes of the whole answer; -1: unknown */
} explain_request;

static void explanation_free(void *context)
{
	explain_request *x = context;
	explanation_writer_fini(&x->writer);
	background_drop(x->loop, x->object);
	session_log_fini(&x->input);
	attribution_request_fini(&x->attributions);
	selection_fini(&x->chosen);
	free(x);
}

/* --- the selection -------------------------------------------------------------------- */

/* Default position: the first mask token; otherwise the row that the head reads. -1: none. */
static int64_t default_position(const model_entry *c, const attribution_request_input *in)
{
	const int32_t mask = c->dims.form->fills ? catalog_mask(c) : TOKEN_NONE;
	for (int64_t i = 0; in->ids && mask != TOKEN_NONE && i < in->n; i++)
		if (in->ids[i] == mask)
			return i;
	return in->ids ? c->dims.form->row(&c->dims, in->ids, in->n) : in->n - 1;
}

static status read_position(explain_request *x, const json_t *position, const model_entry *c,
                            const attribution_request_input *in, error *err)
{
	x->position = json_is_integer(position) ? json_integer_value(position) : -1;
	if (json_is_string(position) && !(c->explainer && c->explainer->scores))
		return error_set(
		    err, STATUS_INVALID, "position",
		    "this model (%s) has no score per token in every layer; ask for one position at a time",
		    c->architecture->name);
	if (json_is_string(position))
		return x->aggregate == AGGREGATE_NONE
		           ? STATUS_OK
		           : error_set(err, STATUS_INVALID, "aggregate", "needs one position, not all");
	if (x->position < 0)
		x->position = position ? in->n - 1 : default_position(c, in);
	if (x->position < 0)
		return error_set(err, STATUS_INVALID, "input", "lacks the token %lld, at which the model reads a text",
		                 (long long)c->dims.end);
	return x->position < in->n ? STATUS_OK
	                           : error_set(err, STATUS_INVALID, "position", "there are %lld tokens, counted from 0",
	                                       (long long)in->n);
}

static bool wants_weights(const json_t *params)
{
	const char *method = json_string_value(json_object_get(params, "method"));
	return method ? strcmp(method, "alpha") == 0 : !json_object_get(params, "span");
}

/* Read the request for an input. ids NULL: check it only. */
static status read_selection(explain_request *x, const json_t *params, const model_entry *c,
                             const attribution_request_input *in, error *err)
{
	const char *how = json_string_value(json_object_get(params, "aggregate"));
	/* The front end asks twice, unless the body is too large to inspect. */
	if (json_object_get(params, "compare"))
		return error_set(err, STATUS_TOO_LARGE, "compare", "a comparison has a body of less than 64 KiB");
	x->aggregate = !how || strcmp(how, "none") == 0 ? AGGREGATE_NONE
	               : strcmp(how, "mean") == 0       ? AGGREGATE_MEAN
	                                                : AGGREGATE_ROLLOUT;
	TRY(selection_read(&x->chosen, params, c, err));
	TRY(read_position(x, json_object_get(params, "position"), c, in, err));
	x->weights = wants_weights(params);
	if (x->weights && json_object_get(params, "span"))
		return error_set(err, STATUS_INVALID, "span", "does not apply to the method \"alpha\"");
	return attribution_request_asked(params)
	           ? attribution_request_read(&x->attributions, params, c, in, x->position, err)
	           : attribution_request_check_keys(params, "alpha", err);
}

/* --- the answer: pool thread -------------------------------------------------------------- */

/* Return the values, rounded to floats. */
static json_t *floats(const double *values, int64_t n)
{
	json_t *array = json_array();
	for (int64_t i = 0; array && i < n; i++)
		json_array_append_new(array, json_real(isfinite(values[i]) ? (double)(float)values[i] : 0));
	return array;
}

/* α of one row for one position. */
static json_t *row_alpha(const explain_request *x, const explain_log *log, int64_t layer, int64_t round, int64_t head,
                         double *scratch)
{
	explain_range r = explain_reads(log, layer, x->position);
	if (explain_alpha(log, layer, round, head, x->position, scratch) != STATUS_OK)
		return NULL;
	return json_pack("{s:[I, I], s:o}", "window", (json_int_t)r.first, (json_int_t)(r.end - 1), "alpha",
	                 floats(scratch, r.end - r.first));
}

/* Scores and log-normalisers of every position. */
static json_t *row_scores(const explain_request *x, int64_t layer, int64_t round, int64_t head, double *scratch)
{
	const explain_log *l = x->log;
	json_t *arrays[2];
	for (int which = 0; which < 2; which++) {
		explain_scores(l, layer, round, head, which, scratch);
		arrays[which] = floats(scratch, l->tokens);
	}
	explain_range last = explain_reads(l, layer, l->tokens - 1);
	return json_pack("{s:I, s:o, s:o}", "window_size", (json_int_t)(last.end - last.first), "score", arrays[0],
	                 "log_normalizer", arrays[1]);
}

static json_t *one_row(const explain_request *x, const explain_log *log, int64_t l, int64_t r, int64_t h,
                       double *scratch)
{
	json_t *row = json_pack("{s:I, s:I, s:s}", "layer", (json_int_t)l, "head", (json_int_t)h, "round",
	                        log->layer[l].explainer->rounds[r]);
	json_t *weights = x->position < 0 ? row_scores(x, l, r, h, scratch) : row_alpha(x, log, l, r, h, scratch);
	bool whole = weights && json_object_update_new(row, weights) == 0;
	if (whole && log->layer[l].explainer->half_life) {
		const double tokens = explain_half_life(log, l, r, h, x->position < 0 ? log->tokens - 1 : x->position);
		whole = json_object_set_new(row, "half_life", isfinite(tokens) ? json_real(tokens) : json_null()) == 0;
	}
	if (whole)
		return row;
	json_decref(row);
	return NULL;
}

static json_t *all_rows(const explain_request *x, const explain_log *log, double *scratch)
{
	json_t *rows = json_array();
	for (int64_t l = 0; l < log->layers; l++)
		for (int64_t r = 0; r < log->rounds; r++)
			for (int64_t h = 0; h < log->layer[l].heads; h++) {
				if (!x->chosen.layers[l] || !x->chosen.rounds[r] || !x->chosen.heads[h])
					continue;
				if (json_array_append_new(rows, one_row(x, log, l, r, h, scratch)) != 0) {
					json_decref(rows);
					return NULL;
				}
			}
	return rows;
}

/* Over the tokens, or over those of a source. */
static json_t *aggregate_object(const explain_request *x, bool source, double *scratch, error *err)
{
	explain_selection pick = selection_pick(&x->chosen);
	const explain_logs *l = &x->logs;
	const int64_t i = x->position;
	bool mean = x->aggregate == AGGREGATE_MEAN;
	if (x->aggregate == AGGREGATE_NONE)
		return json_null();
	status s = source ? (mean ? explain_source_mean : explain_source_rollout)(l, &pick, i, scratch)
	                  : (mean ? explain_mean : explain_rollout)(x->log, &pick, i, scratch);
	if (s == STATUS_TOO_LARGE)
		error_set(err, s, "aggregate", "rollout of the architecture %s follows at most %lld tokens",
		          x->input.model->architecture->name, (long long)explain_pull_tokens(x->log));
	if (s != STATUS_OK) {
		error_set(err, s, "aggregate", "%s", status_text(s));
		return NULL;
	}
	return json_pack("{s:s, s:o}", "method", mean ? "mean" : "rollout", "alpha",
	                 floats(scratch, source ? l->at[ATTENTION_TO_SOURCE].sources : explain_reach(x->log, i)));
}

/* Return how the position attends to the source, which may be the tokens themselves. */
static json_t *source_object(const explain_request *x, double *scratch, error *err)
{
	const session_log *in = &x->input;
	json_t *tokens = in->n_source > 0 ? tokens_pieces(in->model->tokenizer, in->source, in->n_source)
	                                  : tokens_pieces(in->model->tokenizer, in->tokens, in->count);
	json_t *object = json_pack("{s:o}", "tokens", tokens);
	if (!object || !x->weights)
		return object;
	const explain_log *cross = &x->logs.at[ATTENTION_TO_SOURCE];
	if (json_object_set_new(object, "weights", all_rows(x, cross, scratch)) == 0 &&
	    json_object_set_new(object, "aggregate", aggregate_object(x, true, scratch, err)) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static int64_t count_true(const bool *mask, int64_t n)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		count += mask[i];
	return count;
}

static status check_size(const explain_request *x, error *err)
{
	const explain_log *log = x->log, *cross = &x->logs.at[ATTENTION_TO_SOURCE];
	int64_t rows = count_true(x->chosen.heads, log->heads) * count_true(x->chosen.rounds, log->rounds),
	        numbers = 4 * log->tokens + cross->layers * cross->heads * cross->sources;
	for (int64_t l = 0; l < log->layers; l++) {
		explain_range r = explain_reads(log, l, x->position < 0 ? 0 : x->position);
		numbers += x->chosen.layers[l] ? rows * (x->position < 0 ? 2 * log->tokens : r.end - r.first) : 0;
	}
	if (numbers > EXPLAIN_REQUEST_MAX_NUMBERS)
		return error_set(err, STATUS_TOO_LARGE, "layers",
		                 "%lld numbers are too many for one answer; choose fewer layers or heads",
		                 (long long)numbers);
	return STATUS_OK;
}

static status check_weights(const explain_request *x, error *err)
{
	TRY(check_size(x, err));
	for (int p = 0; p < ATTENTION_PLACES; p++)
		if (!explain_finite(&x->logs.at[p]))
			return error_set(err, STATUS_INVALID, "model", "the model's importance weights are not finite");
	return STATUS_OK;
}

static json_t *explanation_object(const explain_request *x, error *err)
{
	const session_log *in = &x->input;
	if (x->weights && check_weights(x, err) != STATUS_OK)
		return NULL;
	double *scratch = memory_new((size_t)(in->count + in->n_source), sizeof *scratch);
	if (!scratch)
		return NULL;
	json_t *sum = x->weights ? aggregate_object(x, false, scratch, err) : json_null();
	json_t *object =
	    !sum ? NULL
	         : json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "object", "explanation", "model", in->model->id,
	                     "tokens", tokens_pieces(in->model->tokenizer, in->tokens, in->count), "position",
	                     x->position < 0 ? json_string("all") : json_integer(x->position), "weights",
	                     x->weights ? all_rows(x, x->log, scratch) : json_array(), "aggregate", sum);
	bool whole = object;
	if (in->n_source > 0 || (x->weights && in->model->dims.shifted))
		whole = whole && json_object_set_new(object, "source", source_object(x, scratch, err)) == 0;
	free(scratch);
	if (x->attributions.requested)
		whole = whole && json_object_set_new(object, attribution_request_key(&x->attributions),
		                                     attribution_request_object(&x->attributions, in->model, err)) == 0;
	if (whole)
		return object;
	json_decref(object);
	return NULL;
}

json_t *explain_request_classified(const model_entry *m, const int32_t *ids, int64_t n, const float *log, error *err)
{
	explain_logs logs;
	explain_logs_init(&logs, m->architecture, m->parsed, log, n, 0);
	const explain_log *l = &logs.at[ATTENTION_OF_TOKENS];
	const bool all_rows = m->dims.pool == POOL_MEAN;
	const int64_t row = m->dims.form->row(&m->dims, ids, n);
	int64_t most = l->layers > l->heads ? l->layers : l->heads;
	most = most > l->rounds ? most : l->rounds;
	bool *all = memory_new((size_t)most, sizeof *all);
	double *alpha = memory_new((size_t)n, sizeof *alpha);
	json_t *object = NULL;
	if (all && alpha) {
		memset(all, true, (size_t)most);
		explain_selection pick = {all, all, all};
		status s = explain_prediction_weights(&logs, &m->dims, &pick, row, false, NULL, alpha);
		if (s == STATUS_OK)
			object = json_pack("{s:o, s:o, s:o}", "tokens", tokens_pieces(m->tokenizer, ids, n), "position",
			                   all_rows ? json_string("all") : json_integer(row), "aggregate",
			                   json_pack("{s:s, s:o}", "method", "mean", "alpha", floats(alpha, n)));
		else if (s != STATUS_NOMEM)
			error_set(err, s, "explain",
			          s == STATUS_TOO_LARGE ? "a text of %lld tokens is too long"
			                                : "%lld weights are not finite",
			          (long long)n);
	}
	free(all);
	free(alpha);
	return object;
}

/* A long log is freed here too, because unmapping its pages takes time. */
static json_t *make_explanation(void *context, error *err)
{
	explain_request *x = context;
	json_t *object = explanation_object(x, err);
	free(x->input.data);
	x->input.data = NULL;
	return object;
}

/* Set *data to the whole text of a JSON answer. */
static status make_text(explain_request *x, char **data, size_t *bytes)
{
	if (!x->object)
		return STATUS_OK; /* already sent */
	*data = json_text(x->object, PROTO_JSON);
	*bytes = *data ? strlen(*data) : 0;
	x->bytes = (int64_t)*bytes;
	return *data ? STATUS_OK : STATUS_NOMEM;
}

/* Make the next piece of the answer. The first call also frees the inputs, which may be large. */
static status next_piece(void *context, char **data, size_t *bytes, error *err)
{
	explain_request *x = context;
	if (!x->made) {
		x->made = true;
		x->object = make_explanation(x, err);
		attribution_request_fini(&x->attributions);
		if (!x->object || reserve_failed())
			return err->status != STATUS_OK ? err->status : STATUS_NOMEM;
		if (x->format)
			TRY(explanation_writer_init(&x->writer, x->object));
	}
	if (x->format) {
		TRY(explanation_format_next(x->format, &x->writer, data, bytes, err));
		x->bytes = x->writer.bytes;
	} else {
		TRY(make_text(x, data, bytes));
	}
	json_decref(x->object);
	x->object = NULL;
	return STATUS_OK;
}

static pieces_head head_of(const void *context)
{
	const explain_request *x = context;
	if (x->format)
		return (pieces_head){x->format->content_type, x->format->filename, x->bytes, false};
	return (pieces_head){"application/json", NULL, x->bytes, true};
}

static void explain_request_answer(stream *s, explain_request *x)
{
	const char *format = json_string_value(json_object_get(s->params, "format"));
	if (!format) {
		background_answer(s, &(background_work){make_explanation, explanation_free, x});
		return;
	}
	x->format = explanation_format_find(format);
	pieces_send(s, &(pieces_source){next_piece, head_of, explanation_free, x});
}

/* Answer with the error, and free. A failed explanation gives back the tokens that its key has reserved for it. */
static void explain_request_fail(stream *s, explain_request *x, const error *err)
{
	keys_count_tokens(s, 0);
	stream_error(s, err, NULL);
	explanation_free(x);
}

static void attribute(stream *s, explain_request *x);

/* The weights are complete, or the attributions, which come last. */
static void scored(score_call *t)
{
	explain_request *x = TASK_OWNER(t, explain_request, task);
	const bool logged = t->request.explain.method == EXPLAIN_WEIGHTS;
	if (t->result == STATUS_OK) {
		(logged ? attribute : explain_request_answer)(t->stream, x);
		return;
	}
	explain_request_fail(t->stream, x, &t->error);
}

static void attribute(stream *s, explain_request *x)
{
	if (!x->attributions.requested) {
		explain_request_answer(s, x);
		return;
	}
	x->task = (score_call){.device = x->input.device, .finished = scored};
	attribution_request_submit(&x->attributions, s, x->input.model, &x->task);
}

/* Allocate all logs of a sequence and its source. */
static status make_logs(explain_request *x, error *err)
{
	session_log *in = &x->input;
	const architecture *a = in->model->architecture;
	explain_logs_init(&x->logs, a, in->model->parsed, NULL, in->count, in->n_source);
	const int64_t floats = explain_logs_floats(&x->logs);
	if (floats > EXPLAIN_MAX_BYTES / (int64_t)sizeof *in->data)
		return error_set(err, STATUS_TOO_LARGE, "input", "%lld tokens with a source of %lld are too many",
		                 (long long)in->count, (long long)in->n_source);
	in->data = memory_new((size_t)floats, sizeof *in->data);
	return in->data ? STATUS_OK : STATUS_NOMEM;
}

/* Read a sequence with its source. */
static void read_weights(stream *s, explain_request *x)
{
	const session_log *in = &x->input;
	x->whole = (score_sequence){
	    .ids = in->tokens, .count = in->count, .source = in->source, .n_source = in->n_source, .log = in->data};
	x->task =
	    (score_call){.stream = s,
	                 .fleet = generation_room_of(s)->fleet,
	                 .device = in->device,
	                 .model = in->model,
	                 .request = {.sequences = &x->whole, .n_sequences = 1, .explain = {.method = EXPLAIN_WEIGHTS}},
	                 .finished = scored};
	score_call_submit(&x->task);
}

static status explain_request_prepare(explain_request *x, const json_t *params, error *err)
{
	const session_log *in = &x->input;
	const attribution_request_input what = {in->tokens, in->source, in->count, in->n_source};
	TRY(read_selection(x, params, in->model, &what, err));
	if (x->weights && in->n_source > 0)
		TRY(make_logs(x, err));
	explain_logs_init(&x->logs, in->model->architecture, in->model->parsed, in->data, in->count, in->n_source);
	x->log = &x->logs.at[ATTENTION_OF_TOKENS];
	return STATUS_OK;
}

/* Explain a log. Takes over its contents, also on an error, and frees them once the answer is made. */
static void explain_request_explain(stream *s, session_log *log)
{
	explain_request *x = memory_new(1, sizeof *x);
	if (!x) {
		session_log_fini(log);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	x->loop = s->net->loop;
	x->input = *log;
	error err = ERROR_INIT;
	status result = explain_request_prepare(x, s->params, &err);
	if (result == STATUS_OK) {
		(x->weights && x->input.n_source > 0 ? read_weights : attribute)(s, x);
		return;
	}
	error_set(&err, result, NULL, "%s", status_text(result));
	explain_request_fail(s, x, &err);
}

/* --- how many at once ------------------------------------------------------------------------ */

static void explain_request_leave(stream *s)
{
	generation_room_of(s)->explanations--;
}

static void ignore_json(stream *s, const char *json)
{
	(void)s;
	(void)json;
}

static void ignore_event(stream *s, const char *json, size_t bytes)
{
	(void)bytes;
	ignore_json(s, json);
}

static bool never_detached(const stream *s)
{
	(void)s;
	return false;
}

/* Count the request until its stream ends. False: too many are running; the stream has been answered. */
static bool enter(stream *s)
{
	static const stream_record record = {
	    .event = ignore_event, .result = ignore_json, .detached = never_detached, .end = explain_request_leave};
	const int most = generation_room_of(s)->max_explanations;
	if (s->record == &record) /* it begins again */
		return true;
	if (generation_room_of(s)->explanations >= most) {
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "%d explanations are being made; try again shortly", most);
		return false;
	}
	generation_room_of(s)->explanations++;
	s->record = &record;
	return true;
}

void explain_request_session(stream *s)
{
	if (enter(s))
		session_task_log(s, generation_room_of(s)->sessions, s->target, explain_request_explain);
}

/* --- of an input ---------------------------------------------------------------------------- */

/* The input, or only its text, has been read. */
static void input_read(choices *c)
{
	choices_plan *read = choices_get_plan(c);
	choices_prompt *input = &read->prompt.list[0];
	session_log log = {.model = read->model,
	                   .device = FLEET_ANY,
	                   .tokens = input->ids,
	                   .count = (int64_t)input->count,
	                   .data = choices_take_log(c, 0),
	                   .source = input->source,
	                   .n_source = (int64_t)input->n_source};
	read->model = NULL;
	input->ids = NULL;
	input->source = NULL;
	explain_request_explain(choices_stream(c), &log);
}

/* Check the request before the model reads anything. */
static status check_input(const choices_plan *spec, const json_t *params, error *err)
{
	explain_request *x = memory_new(1, sizeof *x);
	const choices_prompt *input = &spec->prompt.list[0];
	const attribution_request_input what = {NULL, NULL, (int64_t)input->count, (int64_t)input->n_source};
	if (!x)
		return STATUS_NOMEM;
	status result = explain_check_length(spec->model->architecture, spec->model->parsed, what.n, err);
	if (result == STATUS_OK)
		result = form_check_source(&spec->model->dims, what.n_source, err);
	if (result == STATUS_OK)
		result = read_selection(x, params, spec->model, &what, err);
	explanation_free(x);
	return result;
}

static status prepare_input(stream *s, choices_plan *spec, error *err)
{
	TRY(catalog_open(generation_room_of(s)->catalog, json_string_value(json_object_get(s->params, "model")),
	                 &spec->model, err));
	const model_dims *d = &spec->model->dims;
	if (d->form->source && !d->source)
		TRY(catalog_check_reads_alone(spec->model, "model", err));
	spec->prompt.sources = json_object_get(s->params, "source");
	if (!d->form->source != !spec->prompt.sources)
		return error_set(err, STATUS_INVALID, "source",
		                 d->form->source ? "this model reads a source: it must not be missing"
		                                 : "this model reads no source");
	spec->prompt.masks = d->form->fills && catalog_mask(spec->model) != TOKEN_NONE;
	if (wants_weights(s->params))
		TRY(catalog_check_explains(spec->model, false, "model", err));
	status result = completions_read_prompts(spec, s->params, json_object_get(s->params, "input"), err);
	if (err->param[0] && result != STATUS_OK && strcmp(err->param, "source") != 0)
		strcpy(err->param, "input");
	TRY(result);
	if (spec->prompt.read)
		spec->prompt.check = check_input;
	else
		TRY(check_input(spec, s->params, err));
	sampling_default(&spec->sampling.request.sampling);
	spec->sampling.request.n_logprobs = -1;
	spec->sampling.request.explain = true;
	spec->prompts_only = d->form->source || !wants_weights(s->params);
	spec->prompt.field = "input";
	spec->answer.send = input_read;
	return STATUS_OK;
}

/* Read an input like a prompt in a temporary session and explain its log. If no log is needed, only its text is
 * read. */
static void explain_input(stream *s)
{
	error err = ERROR_INIT;
	choices *c = choices_new(s);
	status result = c ? prepare_input(s, choices_get_plan(c), &err) : STATUS_NOMEM;
	if (result == STATUS_OK) {
		choices_begin(c);
		return;
	}
	choices_free(c);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

void explain_request_create(stream *s)
{
	if (!enter(s))
		return;
	bool by_model = json_object_get(s->params, "model"), by_input = json_object_get(s->params, "input"),
	     by_session = json_object_get(s->params, "session");
	if (by_session && (by_model || by_input))
		stream_refuse(s, STATUS_INVALID, "invalid_value", "session",
		              "give a session, or a model and an input, not both");
	else if (by_session)
		session_task_log(s, generation_room_of(s)->sessions,
		                 json_string_value(json_object_get(s->params, "session")), explain_request_explain);
	else if (!by_model || !by_input)
		stream_refuse(s, STATUS_INVALID, "missing_parameter", by_model ? "input" : "model",
		              "give a model and an input, or a session");
	else
		explain_input(s);
}
