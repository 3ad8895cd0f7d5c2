/* Scores come from the executor: a forward over the input, or a copy of a session's log. What is made of them is
 * arithmetic on the host and JSON, which the pool does while the executor goes on. */
#include "engine/daemon/generation/explanations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/sessions/visits.h"

/* Numbers in one answer: each is about 14 bytes of JSON, and a frame holds 64 MiB. */
enum { EXPLANATIONS_MAX_NUMBERS = 4 << 20 };

typedef enum aggregate { AGGREGATE_NONE, AGGREGATE_MEAN, AGGREGATE_ROLLOUT } aggregate;

typedef struct explanation {
	task task;
	stream *stream;
	session_log log; /* the scores, wherever they come from, and what they are of */
	int64_t count;   /* of log.tokens */
	status result;
	error error;
	int64_t position; /* -1: all */
	bool *layers, *heads, *rounds;
	aggregate aggregate;
} explanation;

static void explanation_free(void *context)
{
	explanation *x = context;
	session_log_fini(&x->log);
	free(x->layers);
	free(x->heads);
	free(x->rounds);
	free(x);
}

/* --- the selection -------------------------------------------------------------------- */

static status read_numbers(bool **out, const json_t *chosen, int64_t n, const char *key, error *err)
{
	*out = memory_new((size_t)n, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	memset(*out, !json_is_array(chosen), (size_t)n);
	for (size_t i = 0; i < json_array_size(chosen); i++) {
		json_int_t number = json_integer_value(json_array_get(chosen, i));
		if (number >= n)
			return error_set(err, STATUS_INVALID, key, "the model has %lld %s, counted from 0",
			                 (long long)n, key);
		(*out)[number] = true;
	}
	return STATUS_OK;
}

static status read_rounds(bool **out, const json_t *chosen, const explainer *e, error *err)
{
	*out = memory_new((size_t)e->n_rounds + 1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	memset(*out, !json_is_array(chosen), (size_t)e->n_rounds);
	for (size_t i = 0; i < json_array_size(chosen); i++) {
		const char *name = json_string_value(json_array_get(chosen, i));
		int r = 0;
		while (r < e->n_rounds && strcmp(e->rounds[r], name) != 0)
			r++;
		if (r == e->n_rounds)
			return error_set(err, STATUS_INVALID, "rounds", "the architecture has no round \"%.32s\"",
			                 name);
		(*out)[r] = true;
	}
	return STATUS_OK;
}

static status read_position(explanation *x, const json_t *position, int64_t tokens, error *err)
{
	x->position = json_is_integer(position) ? json_integer_value(position) : -1;
	if (json_is_string(position))
		return x->aggregate == AGGREGATE_NONE
		           ? STATUS_OK
		           : error_set(err, STATUS_INVALID, "aggregate", "needs one position, not all");
	if (x->position < 0)
		x->position = tokens - 1;
	return x->position < tokens ? STATUS_OK
	                            : error_set(err, STATUS_INVALID, "position",
	                                        "there are %lld tokens, counted from 0", (long long)tokens);
}

/* Read the request for a sequence of so many tokens. */
static status read_selection(explanation *x, const json_t *params, const card *c, int64_t tokens, error *err)
{
	const char *how = json_string_value(json_object_get(params, "aggregate"));
	x->aggregate = !how || strcmp(how, "none") == 0 ? AGGREGATE_NONE
	               : strcmp(how, "mean") == 0       ? AGGREGATE_MEAN
	                                                : AGGREGATE_ROLLOUT;
	TRY(read_numbers(&x->layers, json_object_get(params, "layers"), c->dims.layers, "layers", err));
	TRY(read_numbers(&x->heads, json_object_get(params, "heads"), c->dims.heads, "heads", err));
	TRY(read_rounds(&x->rounds, json_object_get(params, "rounds"), c->explainer, err));
	return read_position(x, json_object_get(params, "position"), tokens, err);
}

/* --- the answer: pool thread -------------------------------------------------------------- */

static json_t *floats(const float *values, int64_t n)
{
	json_t *array = json_array();
	for (int64_t i = 0; array && i < n; i++)
		json_array_append_new(array, json_real(isfinite(values[i]) ? values[i] : 0));
	return array;
}

/* α of one row, for one position. */
static json_t *row_alpha(const explanation *x, int64_t layer, int64_t round, int64_t head, float *scratch)
{
	int64_t first = explain_window_first(&x->log.scores, layer, x->position);
	explain_alpha(&x->log.scores, layer, round, head, x->position, scratch);
	return json_pack("{s:[I, I], s:o}", "window", (json_int_t)first, (json_int_t)x->position, "alpha",
	                 floats(scratch, x->position - first + 1));
}

/* Scores and log-normalisers of every position. */
static json_t *row_scores(const explanation *x, int64_t layer, int64_t round, int64_t head, float *scratch)
{
	const explain_scores *s = &x->log.scores;
	json_t *arrays[2];
	for (int which = 0; which < 2; which++) {
		for (int64_t j = 0; j < s->tokens; j++)
			scratch[j] =
			    s->data[(((j * s->layers + layer) * s->rounds + round) * 2 + which) * s->heads + head];
		arrays[which] = floats(scratch, s->tokens);
	}
	return json_pack("{s:o, s:o}", "score", arrays[0], "log_normalizer", arrays[1]);
}

static json_t *all_rows(const explanation *x, float *scratch)
{
	const explain_scores *s = &x->log.scores;
	json_t *rows = json_array();
	for (int64_t l = 0; l < s->layers; l++)
		for (int64_t r = 0; r < s->rounds; r++)
			for (int64_t h = 0; h < s->heads; h++) {
				if (!x->layers[l] || !x->rounds[r] || !x->heads[h])
					continue;
				json_t *row = json_pack("{s:I, s:I, s:s}", "layer", (json_int_t)l, "head",
				                        (json_int_t)h, "round", x->log.card->explainer->rounds[r]);
				json_object_update_new(row, x->position < 0 ? row_scores(x, l, r, h, scratch)
				                                            : row_alpha(x, l, r, h, scratch));
				if (json_array_append_new(rows, row) != 0) {
					json_decref(rows);
					return NULL;
				}
			}
	return rows;
}

static json_t *aggregate_object(const explanation *x, float *scratch, error *err)
{
	explain_selection pick = {x->layers, x->heads, x->rounds};
	bool mean = x->aggregate == AGGREGATE_MEAN;
	if (x->aggregate == AGGREGATE_NONE)
		return json_null();
	status s = (mean ? explain_mean : explain_rollout)(&x->log.scores, &pick, x->position, scratch);
	if (s != STATUS_OK) {
		error_set(err, s, "aggregate", "%s", status_text(s));
		return NULL;
	}
	return json_pack("{s:s, s:o}", "method", mean ? "mean" : "rollout", "alpha", floats(scratch, x->position + 1));
}

static int64_t count_true(const bool *mask, int64_t n)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		count += mask[i];
	return count;
}

static status check_size(const explanation *x, error *err)
{
	const explain_scores *s = &x->log.scores;
	int64_t rows = count_true(x->heads, s->heads) * count_true(x->rounds, s->rounds), numbers = 4 * s->tokens;
	for (int64_t l = 0; l < s->layers; l++) {
		int64_t row =
		    x->position < 0 ? 2 * s->tokens : x->position - explain_window_first(s, l, x->position) + 1;
		numbers += x->layers[l] ? rows * row : 0;
	}
	if (numbers > EXPLANATIONS_MAX_NUMBERS)
		return error_set(err, STATUS_TOO_LARGE, "layers",
		                 "%lld numbers are too many for one answer; choose fewer layers or heads",
		                 (long long)numbers);
	return STATUS_OK;
}

static json_t *make_explanation(void *context, error *err)
{
	explanation *x = context;
	const explain_scores *s = &x->log.scores;
	if (check_size(x, err) != STATUS_OK)
		return NULL;
	float *scratch = memory_new((size_t)s->tokens, sizeof *scratch);
	if (!scratch)
		return NULL;
	json_t *sum = aggregate_object(x, scratch, err);
	json_t *object =
	    !sum ? NULL
	         : json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "object", "explanation", "model", x->log.card->id,
	                     "tokens", tokens_pieces(x->log.card->tokenizer, x->log.tokens, s->tokens), "position",
	                     x->position < 0 ? json_string("all") : json_integer(x->position), "weights",
	                     all_rows(x, scratch), "aggregate", sum);
	free(scratch);
	return object;
}

static void answer(explanation *x)
{
	background_answer(x->stream, &(background_work){make_explanation, explanation_free, x});
}

static void refuse(explanation *x, status why)
{
	stream *s = x->stream;
	error_set(&x->error, why, NULL, "%s", status_text(why));
	stream_error(s, &x->error, NULL);
	explanation_free(x);
}

static explanation *explanation_new(stream *s)
{
	explanation *x = memory_new(1, sizeof *x);
	if (x)
		x->stream = s;
	else
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	return x;
}

/* --- of a session -------------------------------------------------------------------------- */

static void fetched(stream *s, session_log *log)
{
	explanation *x = explanation_new(s);
	if (!x) {
		session_log_fini(log);
		return;
	}
	x->log = *log;
	status why = read_selection(x, s->params, x->log.card, x->log.scores.tokens, &x->error);
	if (why == STATUS_OK)
		answer(x);
	else
		refuse(x, why);
}

void explanations_session(stream *s)
{
	visits_log(s, s->target, fetched);
}

/* --- of an input ---------------------------------------------------------------------------- */

static bool prepare_forward(task *t, device *d)
{
	return cards_prepare(((explanation *)t)->log.card, d);
}

static void run_forward(task *t, device *d)
{
	explanation *x = (explanation *)t;
	served_model *m;
	x->result = cards_model(x->log.card, d, &m, &x->error);
	if (x->result == STATUS_OK)
		x->result = explain_run(served_model_model(m), x->log.tokens, x->count, &x->log.scores, &x->log.data,
		                        &x->error);
}

static void forward_done(task *t)
{
	explanation *x = (explanation *)t;
	if (x->result == STATUS_OK)
		answer(x);
	else
		refuse(x, x->result);
}

static status read_input(explanation *x, const json_t *params, error *err)
{
	choices_plan prompts = {0};
	TRY(cards_open(x->stream->engine->cards, json_string_value(json_object_get(params, "model")), &x->log.card,
	               err));
	TRY(cards_check_explains(x->log.card, "model", err));
	prompts.card = x->log.card;
	status s = completions_read_prompts(&prompts, json_object_get(params, "input"), err);
	if (prompts.prompts) {
		x->log.tokens = prompts.prompts[0].ids;
		x->count = (int64_t)prompts.prompts[0].count;
		free(prompts.prompts);
	}
	if (err->param[0] && s != STATUS_OK)
		strcpy(err->param, "input");
	TRY(s);
	TRY(explain_check_length(&x->log.card->dims, x->count, err));
	return read_selection(x, params, x->log.card, x->count, err);
}

static void explain_input(stream *s)
{
	explanation *x = explanation_new(s);
	if (!x)
		return;
	status why = read_input(x, s->params, &x->error);
	if (why == STATUS_OK) {
		x->task = (task){.prepare = prepare_forward, .run = run_forward, .done = forward_done};
		if (executor_submit(s->engine->executor, &x->task))
			return;
		why = error_set(&x->error, STATUS_BUSY, NULL, "too many requests are waiting");
	}
	refuse(x, why);
}

static bool has(const json_t *params, const char *key)
{
	const json_t *given = json_object_get(params, key);
	return given && !json_is_null(given);
}

void explanations_create(stream *s)
{
	bool by_model = has(s->params, "model"), by_input = has(s->params, "input"),
	     by_session = has(s->params, "session");
	if (by_session && (by_model || by_input))
		stream_refuse(s, STATUS_INVALID, "invalid_value", "session",
		              "give a session, or a model and an input, not both");
	else if (by_session)
		visits_log(s, json_string_value(json_object_get(s->params, "session")), fetched);
	else if (!by_model || !by_input)
		stream_refuse(s, STATUS_INVALID, "missing_parameter", by_model ? "input" : "model",
		              "give a model and an input, or a session");
	else
		explain_input(s);
}
