#include "engine/daemon/generation/completions.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/engine.h"
#include "gen/limits.h"

/* --- prompts --------------------------------------------------------------------- */

/* Longer prompts are read on the pool; the way there and back takes as long as reading a few thousand bytes. */
enum { PROMPTS_AT_ONCE = 4096 };

static status read_text(choices_prompt *out, const model_entry *c, const json_t *text, error *err)
{
	return tokenizer_encode(c->tokenizer, json_string_value(text), json_string_length(text), &out->ids, &out->count,
	                        err);
}

static status read_tokens(choices_prompt *out, const model_entry *c, const json_t *tokens, error *err)
{
	size_t n = json_array_size(tokens);
	out->ids = memory_new(n, sizeof *out->ids);
	if (!out->ids)
		return STATUS_NOMEM;
	out->count = n;
	for (size_t i = 0; i < n; i++) {
		json_int_t id = json_integer_value(json_array_get(tokens, i));
		if (id < 0 || id >= c->dims.inputs)
			return error_set(err, STATUS_INVALID, "prompt", "token %lld is not in the vocabulary of %lld",
			                 (long long)id, (long long)c->dims.inputs);
		out->ids[i] = (int32_t)id;
	}
	return STATUS_OK;
}

static status read_prompt(choices_prompt *out, const model_entry *c, const json_t *prompt, error *err)
{
	return json_is_string(prompt) ? read_text(out, c, prompt, err) : read_tokens(out, c, prompt, err);
}

static bool are_several(const json_t *prompt)
{
	const json_t *first = json_array_get(prompt, 0);
	return json_is_string(first) || json_is_array(first);
}

/* Bytes of text and tokens together; from PROMPTS_AT_ONCE on it need not be exact. */
static size_t prompts_size(const json_t *prompt)
{
	size_t size = json_is_string(prompt) ? json_string_length(prompt) : json_array_size(prompt);
	for (size_t i = 0; are_several(prompt) && i < json_array_size(prompt) && size <= PROMPTS_AT_ONCE; i++)
		size += prompts_size(json_array_get(prompt, i));
	return size;
}

static status read_prompts(choices_plan *wanted, error *err)
{
	const json_t *prompt = wanted->unread;
	bool several = are_several(prompt);
	for (int i = 0; i < wanted->n_prompts && prompt; i++)
		TRY(read_prompt(&wanted->prompts[i], wanted->model,
		                several ? json_array_get(prompt, (size_t)i) : prompt, err));
	return STATUS_OK;
}

status completions_read_prompts(choices_plan *wanted, const json_t *prompt, error *err)
{
	size_t n = are_several(prompt) ? json_array_size(prompt) : 1;
	wanted->prompts = memory_new(n, sizeof *wanted->prompts);
	if (!wanted->prompts)
		return STATUS_NOMEM;
	wanted->n_prompts = (int)n;
	wanted->samples = 1;
	wanted->unread = prompt;
	if (prompts_size(prompt) <= PROMPTS_AT_ONCE)
		return read_prompts(wanted, err);
	wanted->read = read_prompts;
	return STATUS_OK;
}

/* --- options --------------------------------------------------------------------- */

/* above: a number that only rounds to 0 stays above it. */
static float real(const json_t *params, const char *key, bool above, float otherwise)
{
	const json_t *found = json_object_get(params, key);
	float x = json_is_number(found) ? (float)json_number_value(found) : otherwise;
	return above && x == 0 ? FLT_MIN : x;
}

static int64_t integer(const json_t *params, const char *key, int64_t otherwise)
{
	const json_t *found = json_object_get(params, key);
	return json_is_integer(found) ? json_integer_value(found) : otherwise;
}

static uint64_t random_seed(void)
{
	uint64_t seed = 0;
	while (getrandom(&seed, sizeof seed, 0) != sizeof seed)
		; /* eight bytes are never cut short, but a signal may interrupt the wait after boot */
	return seed;
}

static status read_bias(sampling *out, const json_t *object, const model_entry *c, error *err)
{
	const char *key;
	json_t *found;
	out->bias = memory_new(json_object_size(object), sizeof *out->bias);
	if (!out->bias)
		return STATUS_NOMEM;
	json_object_foreach((json_t *)(uintptr_t)object, key, found)
	{
		char *end;
		long id = strtol(key, &end, 10);
		if (key[0] < '0' || key[0] > '9' || *end || id >= c->dims.outputs)
			return error_set(err, STATUS_INVALID, "logit_bias",
			                 "\"%.32s\" is not a token of the vocabulary of %lld", key,
			                 (long long)c->dims.outputs);
		out->bias[out->n_bias++] = (sampling_bias){(int32_t)id, (float)json_number_value(found)};
	}
	return STATUS_OK;
}

static status read_sampling(sampling *out, const json_t *params, const model_entry *c, error *err)
{
	const json_t *bias = json_object_get(params, "logit_bias"), *seed = json_object_get(params, "seed");
	sampling_default(out);
#define NUMBER(name, above, min, max, otherwise) out->name = real(params, #name, above, out->name);
#define INTEGER(name, min, max, otherwise) out->name = (int32_t)integer(params, #name, out->name);
#include "gen/sampling.def"
	out->seed = json_is_integer(seed) ? (uint64_t)json_integer_value(seed) : random_seed();
	return json_is_object(bias) ? read_bias(out, bias, c, err) : STATUS_OK;
}

static status add_stop(generation_request *r, const json_t *stop, error *err)
{
	const char *text = json_string_value(stop);
	if (!text || strlen(text) != json_string_length(stop) || !text[0])
		return error_set(err, STATUS_INVALID, "stop",
		                 "a stop sequence is a text without U+0000, and not empty");
	if (r->n_stops == SCHEDULER_MAX_STOPS)
		return error_set(err, STATUS_INVALID, "stop", "at most %d stop sequences", SCHEDULER_MAX_STOPS);
	r->stops[r->n_stops++] = text;
	return STATUS_OK;
}

static status read_stops(generation_request *r, const json_t *stop, error *err)
{
	if (json_is_string(stop))
		return add_stop(r, stop, err);
	for (size_t i = 0; i < json_array_size(stop); i++)
		TRY(add_stop(r, json_array_get(stop, i), err));
	return STATUS_OK;
}

static status read_alpha(choices_plan *wanted, const json_t *alpha, error *err)
{
	generation_request *r = &wanted->request;
	const char *aggregate = json_string_value(json_object_get(alpha, "aggregate"));
	r->n_alpha = (int)integer(alpha, "top", 0);
	if (r->n_alpha == 0)
		return STATUS_OK;
	TRY(catalog_check_explains(wanted->model, true, "alpha", err));
	status s = selection_read(&wanted->alpha, alpha, wanted->model, err);
	if (s == STATUS_INVALID)
		error_prefix(err, "alpha");
	r->alpha = selection_pick(&wanted->alpha);
	r->alpha_rollout = aggregate && strcmp(aggregate, "rollout") == 0;
	return s;
}

/* Everything of a request but its prompts. */
static status read_request(choices_plan *wanted, const json_t *params, error *err)
{
	generation_request *r = &wanted->request;
	const model_entry *c = wanted->model;
	r->max_tokens = integer(params, "max_tokens", COMPLETION_MAX_TOKENS_DEFAULT);
	r->n_logprobs = (int)integer(params, "logprobs", -1);
	TRY(read_alpha(wanted, json_object_get(params, "alpha"), err));
	TRY(read_stops(r, json_object_get(params, "stop"), err));
	return read_sampling(&r->sampling, params, c, err);
}

/* --- the answer ------------------------------------------------------------------ */

static json_t *usage_object(int64_t prompt, int64_t completion)
{
	return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
	                 (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion));
}

static double rate(int64_t tokens, double ms)
{
	return ms > 0 ? (double)tokens * 1000 / ms : 0;
}

/* Tokens are summed over the choices, which run side by side; durations are those of the slowest. */
static json_t *timings_object(const choices *c, int64_t prompt, int64_t completion)
{
	double queue = 0, reading = 0, predicting = 0;
	for (int i = 0; i < choices_count(c); i++) {
		const generation_result *r = choices_result(c, i);
		queue = r->queue_ms > queue ? r->queue_ms : queue;
		reading = r->prompt_ms > reading ? r->prompt_ms : reading;
		predicting = r->predicted_ms > predicting ? r->predicted_ms : predicting;
	}
	return json_pack("{s:I, s:f, s:f, s:I, s:f, s:f, s:f}", "prompt_n", (json_int_t)prompt, "prompt_ms", reading,
	                 "prompt_per_second", rate(prompt, reading), "predicted_n", (json_int_t)completion,
	                 "predicted_ms", predicting, "predicted_per_second", rate(completion, predicting), "queue_ms",
	                 queue);
}

static json_t *list_object(const choices *c, int64_t *prompt, int64_t *completion)
{
	int samples = choices_get_plan((choices *)(uintptr_t)c)->samples;
	json_t *list = json_array();
	bool whole = list;
	for (int i = 0; whole && i < choices_count(c); i++) {
		const generation_result *r = choices_result(c, i);
		*prompt += i % samples == 0 ? r->prompt_tokens : 0; /* OpenAI counts a prompt once */
		*completion += r->completion_tokens;
		whole = json_array_append_new(list, json_pack("{s:i, s:s}", "index", i, "finish_reason",
		                                              r->finish == FINISH_STOP ? "stop" : "length")) == 0;
	}
	if (whole)
		return list;
	json_decref(list);
	return NULL;
}

static json_t *result_object(choices *c)
{
	const choices_plan *wanted = choices_get_plan(c);
	int64_t prompt = 0, completion = 0;
	json_t *list = list_object(c, &prompt, &completion);
	json_t *result = json_pack("{s:o, s:o, s:o, s:s}", "choices", list, "usage", usage_object(prompt, completion),
	                           "timings", timings_object(c, prompt, completion), "model", wanted->model->id);
	if (!result || !wanted->session ||
	    json_object_set_new(result, "session", sessions_position(wanted->session)) == 0)
		return result;
	json_decref(result);
	return NULL;
}

/* --- the methods ----------------------------------------------------------------- */

static void refuse(stream *s, choices *c, status why, error *err)
{
	choices_free(c);
	error_set(err, why, NULL, "%s", status_text(why));
	stream_error(s, err, NULL);
}

static status prepare_completion(stream *s, choices_plan *wanted, error *err)
{
	const json_t *params = s->params;
	TRY(catalog_open_generative(s->engine->catalog, json_string_value(json_object_get(params, "model")),
	                            &wanted->model, err));
	TRY(completions_read_prompts(wanted, json_object_get(params, "prompt"), err));
	TRY(read_request(wanted, params, err));
	wanted->samples = (int)integer(params, "n", 1);
	if (wanted->n_prompts * wanted->samples > s->engine->options->limits.max_generations)
		return error_set(err, STATUS_INVALID, "n", "prompts times n must be at most %d",
		                 s->engine->options->limits.max_generations);
	return STATUS_OK;
}

void completions_create(stream *s)
{
	error err = ERROR_INIT;
	choices *c = choices_new(s);
	status why = c ? prepare_completion(s, choices_get_plan(c), &err) : STATUS_NOMEM;
	if (why != STATUS_OK) {
		refuse(s, c, why, &err);
		return;
	}
	choices_get_plan(c)->result = result_object;
	choices_begin(c);
}

static status prepare_continuation(choices_plan *wanted, const json_t *params, error *err)
{
	const json_t *prompt = json_object_get(params, "prompt");
	TRY(completions_read_prompts(wanted, json_is_null(prompt) ? NULL : prompt, err));
	return read_request(wanted, params, err);
}

void completions_continue(stream *s)
{
	error err = ERROR_INIT;
	sessions *all = s->engine->sessions;
	choices *c = choices_new(s);
	if (!c) {
		refuse(s, NULL, STATUS_NOMEM, &err);
		return;
	}
	choices_plan *wanted = choices_get_plan(c);
	wanted->session = sessions_take(all, s, s->target, &wanted->ticket, &wanted->model);
	if (!wanted->session) {
		choices_free(c);
		return;
	}
	status why = prepare_continuation(wanted, s->params, &err);
	if (why != STATUS_OK) {
		sessions_release(all, wanted->session);
		refuse(s, c, why, &err);
		return;
	}
	wanted->result = result_object;
	choices_begin(c);
}
