#include "engine/daemon/generation/completions.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/daemon/generation/carried_state.h"
#include "engine/daemon/generation/conversation.h"
#include "engine/daemon/generation/mask_text.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/generation/tool_calls.h"
#include "engine/daemon/generation/generation.h"
#include "gen/limits.h"

/* --- prompts --------------------------------------------------------------------- */

/* Longer prompts are read on the pool; handing them over takes as long as reading a few thousand bytes. */
enum { PROMPTS_AT_ONCE = 4096 };

static status completions_read_tokens(token_list *out, const json_t *tokens, int64_t vocab, const char *param,
                                      error *err)
{
	size_t n = json_array_size(tokens);
	*out = (token_list){.ids = memory_new(n, sizeof *out->ids), .count = n};
	if (!out->ids)
		return STATUS_NOMEM;
	for (size_t i = 0; i < n; i++) {
		json_int_t id = json_integer_value(json_array_get(tokens, i));
		if (id < 0 || id >= vocab)
			return error_set(err, STATUS_INVALID, param, "token %lld is not in the vocabulary of %lld",
			                 (long long)id, (long long)vocab);
		out->ids[i] = (int32_t)id;
	}
	return STATUS_OK;
}

/* Put the start token of a model that reads a source before any text. */
static status put_start(choices_prompt *out, int32_t start)
{
	int32_t *ids = memory_new(out->count + 1, sizeof *ids);
	if (!ids)
		return STATUS_NOMEM;
	ids[0] = start;
	if (out->count > 0)
		memcpy(ids + 1, out->ids, out->count * sizeof *ids);
	free(out->ids);
	out->ids = ids;
	out->count++;
	return STATUS_OK;
}

/* A text with its masks. */
static status read_masked(token_list *out, const model_entry *m, const json_t *text, encode_options how, error *err)
{
	return mask_text_read(m, json_string_value(text), json_string_length(text), how, out, err);
}

static status read_prompt(choices_prompt *out, const choices_plan *spec, const json_t *prompt, error *err)
{
	const model_entry *m = spec->model;
	const bool begins = spec->prompt.begins && !m->dims.source; /* a decoder's target has its own start token */
	token_list tokens = {0};
	status s = STATUS_OK;
	out->text = json_is_string(prompt) ? prompt : NULL;
	/* A short prompt may be read before its session is known; it costs little. */
	if (out->text && json_string_length(prompt) > PROMPTS_AT_ONCE)
		TRY(choices_check_bytes(spec, json_string_length(prompt), err));
	if (out->text && spec->prompt.masks)
		s = read_masked(&tokens, m, prompt, (encode_options){.begin = begins}, err);
	else if (out->text)
		s = tokens_of_text(&tokens, m, json_string_value(prompt), json_string_length(prompt), begins, err);
	else if (prompt)
		s = completions_read_tokens(&tokens, prompt, m->dims.inputs,
		                            spec->prompt.field ? spec->prompt.field : "prompt", err);
	out->ids = tokens.ids;
	out->count = tokens.count;
	return s == STATUS_OK && spec->prompt.start != TOKEN_NONE ? put_start(out, spec->prompt.start) : s;
}

/* Read a text with the tokens that the tokenizer puts around one, as encoders are trained. */
static status read_source(choices_prompt *out, const choices_plan *spec, const json_t *source, error *err)
{
	const model_entry *m = spec->model;
	const encode_options how = {.begin = spec->prompt.begins, .end = spec->prompt.begins};
	token_list tokens;
	status s = json_is_string(source)
	               ? read_masked(&tokens, m, source, how, err)
	               : completions_read_tokens(&tokens, source, m->dims.source_inputs,
	                                         spec->prompt.source_field ? spec->prompt.source_field : "source", err);
	out->source = tokens.ids;
	out->n_source = tokens.count;
	return s;
}

static bool are_several(const json_t *prompt)
{
	const json_t *first = json_array_get(prompt, 0);
	return json_is_string(first) || json_is_array(first);
}

/* Bytes of text and tokens together; inexact from PROMPTS_AT_ONCE on. */
static size_t prompts_size(const json_t *prompt)
{
	size_t size = json_is_string(prompt) ? json_string_length(prompt) : json_array_size(prompt);
	for (size_t i = 0; are_several(prompt) && i < json_array_size(prompt) && size <= PROMPTS_AT_ONCE; i++)
		size += prompts_size(json_array_get(prompt, i));
	return size;
}

static const json_t *one_of(const json_t *prompts, int i)
{
	return are_several(prompts) ? json_array_get(prompts, (size_t)i) : prompts;
}

static status read_prompts(choices_plan *spec, error *err)
{
	for (int i = 0; i < spec->prompt.n; i++) {
		if (spec->prompt.sources)
			TRY(read_source(&spec->prompt.list[i], spec, one_of(spec->prompt.sources, i), err));
		if (spec->prompt.unread || spec->prompt.start != TOKEN_NONE)
			TRY(read_prompt(&spec->prompt.list[i], spec, one_of(spec->prompt.unread, i), err));
	}
	return STATUS_OK;
}

/* Find the start token of a new sequence, for a model that reads a source. With a prefix it may be missing. */
static status find_start(choices_plan *spec, const json_t *prefix, error *err)
{
	const model_entry *m = spec->model;
	if (!m->dims.source || choices_continue(spec))
		return STATUS_OK;
	spec->prompt.start = catalog_start(m);
	return spec->prompt.start != TOKEN_NONE || json_string_length(prefix) > 0 || json_array_size(prefix) > 0
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "model", "neither the model nor its tokenizer has a start token");
}

status completions_read_prompts(choices_plan *spec, const json_t *params, const json_t *prompt, error *err)
{
	const json_t *leads = spec->prompt.sources ? spec->prompt.sources : prompt;
	size_t n = are_several(leads) ? json_array_size(leads) : 1;
	TRY(find_start(spec, prompt, err));
	spec->prompt.list = memory_new(n, sizeof *spec->prompt.list);
	if (!spec->prompt.list)
		return STATUS_NOMEM;
	spec->prompt.n = (int)n;
	spec->sampling.samples = 1;
	spec->prompt.unread = prompt;
	spec->prompt.begins = tokens_begin(params) && !choices_continue(spec);
	if (prompts_size(prompt) + prompts_size(spec->prompt.sources) <= PROMPTS_AT_ONCE)
		return read_prompts(spec, err);
	spec->prompt.read = read_prompts;
	return STATUS_OK;
}

/* --- options --------------------------------------------------------------------- */

/* above: a number that rounds to 0 stays above 0. */
static float real(const json_t *params, const char *key, bool above, float fallback)
{
	const float x = (float)json_read_real(params, key, fallback);
	return above && x == 0 ? FLT_MIN : x;
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
#define NUMBER(name, above, min, max, fallback) out->name = real(params, #name, above, out->name);
#define INTEGER(name, min, max, fallback) out->name = (int32_t)json_read_integer(params, #name, out->name);
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
	if (r->n_stops == COMPLETION_STOP_MAX_ITEMS)
		return error_set(err, STATUS_INVALID, "stop", "at most %d stop sequences", COMPLETION_STOP_MAX_ITEMS);
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

static status read_alpha(choices_plan *spec, const json_t *alpha, error *err)
{
	generation_request *r = &spec->sampling.request;
	const char *aggregate = json_string_value(json_object_get(alpha, "aggregate"));
	r->n_alpha = (int)json_read_integer(alpha, "top", 0);
	if (r->n_alpha == 0)
		return STATUS_OK;
	TRY(catalog_check_explains(spec->model, true, "alpha", err));
	status s = selection_read(&spec->sampling.alpha, alpha, spec->model, err);
	if (s == STATUS_INVALID)
		error_prefix(err, "alpha");
	r->alpha = selection_pick(&spec->sampling.alpha);
	r->alpha_rollout = aggregate && strcmp(aggregate, "rollout") == 0;
	return s;
}

status completions_read_options(choices_plan *spec, const json_t *params, error *err)
{
	generation_request *r = &spec->sampling.request;
	TRY(read_alpha(spec, json_object_get(params, "alpha"), err));
	TRY(read_stops(r, json_object_get(params, "stop"), err));
	TRY(response_format_read(&spec->sampling.format, params, err));
	r->reads_all = json_is_false(json_object_get(params, "cache_prompt"));
	spec->sampling.seeded = json_is_integer(json_object_get(params, "seed"));
	return read_sampling(&r->sampling, params, spec->model, err);
}

status completions_read_adapter(const stream *s, choices_plan *spec, error *err)
{
	const char *id = json_string_value(json_object_get(s->params, "adapter"));
	if (!id)
		return STATUS_OK;
	if (spec->sampling.request.n_alpha > 0)
		return error_set(err, STATUS_UNSUPPORTED, "alpha", "the share of an adapter is not explained");
	return adapters_find(s->net->store, id, s->scope.all ? NULL : s->scope.project, spec->model->id, &spec->adapter,
	                     err);
}

static status read_request(choices_plan *spec, const json_t *params, error *err)
{
	spec->sampling.request.max_tokens = json_read_integer(params, "max_tokens", COMPLETION_MAX_TOKENS_DEFAULT);
	spec->answer.n_logprobs = (int)json_read_integer(params, "logprobs", -1);
	spec->answer.n_prompt_logprobs = (int)json_read_integer(params, "prompt_logprobs", -1);
	choices_ask_logprobs(spec);
	return completions_read_options(spec, params, err);
}

/* --- the answer ------------------------------------------------------------------ */

static double rate(int64_t tokens, double ms)
{
	return ms > 0 ? (double)tokens * 1000 / ms : 0;
}

/* Raise *longest to the milliseconds between two times. */
static void note_longest(double *longest, uint64_t from, uint64_t to)
{
	const double ms = to > from ? (double)(to - from) * 1e-6 : 0;
	*longest = ms > *longest ? ms : *longest;
}

/* Sum the tokens of the choices, which run in parallel; durations are those of the slowest. */
static json_t *timings_object(const choices *c, int64_t prompt, int64_t completion)
{
	double queue = 0, reading = 0, predicting = 0;
	for (int i = 0; i < choices_count(c); i++) {
		const generation_result *r = choices_result(c, i);
		const uint64_t started = r->started_ns ? r->started_ns : r->ended_ns;
		const uint64_t prompted = r->prompted_ns ? r->prompted_ns : r->ended_ns;
		note_longest(&queue, r->accepted_ns, started);
		note_longest(&reading, started, prompted);
		note_longest(&predicting, prompted, r->ended_ns);
	}
	return json_pack("{s:I, s:f, s:f, s:I, s:f, s:f, s:f}", "prompt_n", (json_int_t)prompt, "prompt_ms", reading,
	                 "prompt_per_second", rate(prompt, reading), "predicted_n", (json_int_t)completion,
	                 "predicted_ms", predicting, "predicted_per_second", rate(completion, predicting), "queue_ms",
	                 queue);
}

static json_t *choice_object(choices *c, int i, int index)
{
	json_t *last;
	bool whole = choices_take_last(c, i, &last);
	const finish_reason finish = choices_result(c, i)->finish;
	const char *reason = finish == FINISH_TIMEOUT ? "timeout"
	                     : finish != FINISH_STOP  ? "length"
	                     : choices_called(c, i)   ? "tool_calls"
	                                              : "stop";
	json_t *object = json_pack("{s:i, s:s}", "index", index, "finish_reason", reason);
	if (index != i)
		whole &= json_object_set_new(object, "sample", json_integer(i)) == 0;
	if (last)
		whole &= json_object_set_new(object, "event", last) == 0;
	if (whole)
		return object;
	json_decref(object);
	return NULL;
}

/* Return the sample with this rank among those of a prompt, by score; ties by index. */
static int find_ranked(const choices *c, int first, int samples, int rank)
{
	for (int i = first; i < first + samples; i++) {
		int better = 0;
		for (int k = first; k < first + samples; k++)
			better += choices_score(c, k) > choices_score(c, i) ||
			          (k < i && choices_score(c, k) == choices_score(c, i));
		if (better == rank)
			return i;
	}
	return first;
}

static json_t *list_object(choices *c, int64_t *prompt, int64_t *cached, int64_t *completion)
{
	const choices_plan *p = choices_get_plan(c);
	int kept = p->answer.best ? p->answer.best : p->sampling.samples;
	json_t *list = json_array();
	bool whole = list;
	for (int i = 0; i < choices_count(c); i++) {
		const generation_result *r = choices_result(c, i);
		if (i % p->sampling.samples == 0) { /* OpenAI counts a prompt once */
			*prompt += r->prompt_tokens;
			*cached += r->cached_tokens;
		}
		*completion += r->completion_tokens;
	}
	for (int i = 0; whole && i < p->prompt.n * kept; i++) {
		int first = i / kept * p->sampling.samples;
		int from = p->answer.best ? find_ranked(c, first, p->sampling.samples, i % kept) : i;
		whole = json_array_append_new(list, choice_object(c, from, i)) == 0;
	}
	if (whole)
		return list;
	json_decref(list);
	return NULL;
}

/* The session's position, and the snapshots of this request that it has. */
static json_t *session_object(choices *c)
{
	const choices_plan *p = choices_get_plan(c);
	const int64_t before = choices_result(c, 0)->call_snapshot;
	char id[STORE_ID_BYTES];
	json_t *object = sessions_position(p->session, p->snapshot);
	snprintf(id, sizeof id, "call-%lld", (long long)before);
	if (before < 0 || !sessions_has_snapshot(p->session, id) ||
	    json_object_set_new(object, "call_snapshot", json_string(id)) == 0)
		return object;
	json_decref(object);
	return NULL;
}

json_t *completions_result(choices *c)
{
	const choices_plan *spec = choices_get_plan(c);
	int64_t prompt = 0, cached = 0, completion = 0;
	json_t *list = list_object(c, &prompt, &cached, &completion);
	json_t *usage = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
	                          (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion),
	                          "prompt_tokens_details", "cached_tokens", (json_int_t)cached);
	json_t *result = json_pack("{s:o, s:o, s:o, s:s}", "choices", list, "usage", usage, "timings",
	                           timings_object(c, prompt, completion), "model", spec->model->id);
	bool complete = result && carried_state_add(spec, result);
	const char *adapter = spec->session && !spec->state.hidden ? sessions_adapter(spec->session) : spec->adapter.id;
	if (complete && adapter[0])
		complete = json_object_set_new(result, "adapter", json_string(adapter)) == 0;
	if (complete && spec->session && !spec->state.hidden)
		complete = json_object_set_new(result, "session", session_object(c)) == 0;
	if (complete)
		return result;
	json_decref(result);
	return NULL;
}

/* --- the methods ----------------------------------------------------------------- */

void completions_refuse(stream *s, choices *c, status result, error *err)
{
	choices_free(c);
	error_set(err, result, NULL, "%s", status_text(result));
	stream_error(s, err, NULL);
}

status completions_check_count(const stream *s, const choices_plan *spec, error *err)
{
	const char *param = spec->sampling.search.beams > 1 ? "num_beams" : "n";
	int most = generation_room_of(s)->max_generations;
	if (choices_generations(spec) <= most)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, param, "prompts times %s must be at most %d", param, most);
}

static status read_count(choices_plan *spec, const json_t *params, error *err)
{
	int n = (int)json_read_integer(params, "n", 1), of = (int)json_read_integer(params, "best_of", 0);
	spec->sampling.samples = of > 0 ? of : n;
	if (of == 0 || of == n)
		return STATUS_OK;
	if (of < n)
		return error_set(err, STATUS_INVALID, "best_of", "must be at least n, which is %d", n);
	spec->answer.best = n;
	return STATUS_OK;
}

/* The scheduler refuses other fields that a search does not support. */
static status read_search(choices_plan *spec, const json_t *params, error *err)
{
	const json_t *penalty = json_object_get(params, "length_penalty");
	const beam_options o = {.beams = (int)json_read_integer(params, "num_beams", 1),
	                        .length_penalty = json_is_number(penalty) ? json_number_value(penalty) : 1,
	                        .early_stopping = json_is_true(json_object_get(params, "early_stopping"))};
	spec->sampling.search = o;
	if (o.beams > 1 && spec->answer.best)
		return error_set(err, STATUS_INVALID, "best_of", "is for samples: a beam search has num_beams");
	if (o.beams > 1 && spec->answer.n_prompt_logprobs >= 0)
		return error_set(err, STATUS_INVALID, "prompt_logprobs", "a beam search cannot score its prompt");
	if (o.beams == 1 && o.length_penalty != 1)
		return error_set(err, STATUS_INVALID, "length_penalty", "needs a beam search: num_beams above 1");
	if (o.beams == 1 && o.early_stopping)
		return error_set(err, STATUS_INVALID, "early_stopping", "needs a beam search: num_beams above 1");
	return STATUS_OK;
}

/* A prompt is repeated in one event, which must fit into a frame. */
static status check_echo(const choices_plan *spec, error *err)
{
	enum { ECHO_BYTES = 1 << 20 };
	for (int i = 0; spec->answer.echo && i < spec->prompt.n; i++) {
		const json_t *one = one_of(spec->prompt.unread, i);
		if (json_string_length(one) > ECHO_BYTES || json_array_size(one) > ECHO_BYTES / 16)
			return error_set(err, STATUS_INVALID, "echo", "of prompts of up to %d bytes or %d tokens only",
			                 ECHO_BYTES, ECHO_BYTES / 16);
	}
	return STATUS_OK;
}

static status prepare_completion(stream *s, choices_plan *spec, error *err)
{
	const json_t *params = s->params;
	TRY(catalog_open_generative(generation_room_of(s)->catalog, json_string_value(json_object_get(params, "model")),
	                            &spec->model, err));
	const json_t *prompt = json_object_get(params, "prompt"), *prefix = json_object_get(params, "prefix");
	if (spec->model->dims.source) {
		spec->prompt.sources = prompt;
		spec->prompt.source_field = "prompt";
		spec->prompt.field = "prefix";
		prompt = prefix;
	} else if (prefix) {
		return error_set(err, STATUS_INVALID, "prefix", "is only for models that read a source");
	}
	TRY(carried_state_read(spec, params, err));
	TRY(completions_read_prompts(spec, params, prompt, err));
	TRY(read_request(spec, params, err));
	TRY(completions_read_adapter(s, spec, err));
	TRY(read_count(spec, params, err));
	spec->answer.echo = json_is_true(json_object_get(params, "echo"));
	choices_ask_logprobs(spec);
	TRY(check_echo(spec, err));
	TRY(read_search(spec, params, err));
	TRY(completions_check_count(s, spec, err));
	return carried_state_begin(s, spec, err);
}

void completions_create(stream *s)
{
	error err = ERROR_INIT;
	choices *c = choices_new(s);
	status ended = c ? prepare_completion(s, choices_get_plan(c), &err) : STATUS_NOMEM;
	if (ended != STATUS_OK) {
		completions_refuse(s, c, ended, &err);
		return;
	}
	choices_get_plan(c)->answer.result = completions_result;
	choices_begin(c);
}

static status prepare_continuation(choices_plan *spec, const json_t *params, error *err)
{
	const json_t *prompt = json_object_get(params, "prompt"), *messages = json_object_get(params, "messages");
	if (prompt && json_is_array(messages))
		return error_set(err, STATUS_INVALID, "messages", "a request has a prompt or messages, not both");
	TRY(carried_state_read(spec, params, err));
	TRY(read_request(spec, params, err));
	TRY(tool_calls_read(spec, params, err));
	if (spec->sampling.format.calls.tools && spec->answer.n_logprobs >= 0)
		return error_set(err, STATUS_INVALID, "logprobs",
		                 "log-probabilities are of a text: not with functions that may be called");
	if (json_is_array(messages))
		return conversation_read(spec, messages, sessions_tokens(spec->session) > 0, err);
	if (spec->prompt.tools && (prompt || sessions_tokens(spec->session) == 0))
		return error_set(err, STATUS_INVALID, "tools",
		                 "are for messages, or for an answer that the session has begun");
	if (spec->prompt.tools)
		return conversation_resume(spec, err);
	return completions_read_prompts(spec, params, prompt, err);
}

bool completions_begin_snapshot(stream *s, choices *c)
{
	error err = ERROR_INIT;
	choices_plan *spec = choices_get_plan(c);
	sessions *all = generation_room_of(s)->sessions;
	const json_t *requested = json_object_get(s->params, "snapshot");
	const snapshot *x;
	if (!requested || json_is_false(requested))
		return true;
	const status result = sessions_begin_snapshot(all, spec->session, json_string_value(requested), &x, &err);
	if (result == STATUS_OK) {
		snprintf(spec->snapshot, sizeof spec->snapshot, "%s", x->id);
		return true;
	}
	error_set(&err, result, NULL, "%s", status_text(result));
	snprintf(err.param, sizeof err.param, "snapshot");
	sessions_release(all, spec->session);
	choices_free(c);
	stream_error(s, &err, result == STATUS_CONFLICT ? "too_many_snapshots" : NULL);
	return false;
}

void completions_continue(stream *s)
{
	error err = ERROR_INIT;
	sessions *all = generation_room_of(s)->sessions;
	choices *c = choices_new(s);
	if (!c) {
		completions_refuse(s, NULL, STATUS_NOMEM, &err);
		return;
	}
	choices_plan *spec = choices_get_plan(c);
	spec->session = sessions_take(all, s, s->target, &spec->ticket, &spec->model);
	if (!spec->session) {
		choices_free(c);
		return;
	}
	status ended = prepare_continuation(spec, s->params, &err);
	if (ended != STATUS_OK) {
		sessions_release(all, spec->session);
		completions_refuse(s, c, ended, &err);
		return;
	}
	spec->answer.result = completions_result;
	if (completions_begin_snapshot(s, c))
		choices_begin(c);
}
