#include "engine/daemon/generation/choice_events.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/daemon/generation/tokens.h"

static json_t *choice_events_number(float logprob)
{
	return json_real(logprob > -9999 ? logprob : -9999); /* OpenAI's value for minus infinity */
}

/* Return the document; NULL, freeing it, if building it failed. */
static json_t *whole_or_none(json_t *document, bool whole)
{
	if (whole)
		return document;
	json_decref(document);
	return NULL;
}

static json_t *top_object(const choice_events *c, const generation_event *e, int token)
{
	json_t *object = json_object();
	bool whole = object;
	for (int j = 0; whole && j < e->n_top; j++) {
		const token_logprob *p = &e->top[token * e->n_top + j];
		if (p->token < 0)
			continue;
		json_t *name = tokens_name(c->tokenizer, p->token), *logprob = choice_events_number(p->logprob);
		const json_t *other = name ? json_object_get(object, json_string_value(name)) : NULL;
		/* If two tokens have the same name, keep the more likely one. */
		if (other && json_real_value(other) >= json_real_value(logprob))
			json_decref(logprob);
		else
			whole = json_object_set_new(object, json_string_value(name), logprob) == 0;
		json_decref(name);
	}
	return whole_or_none(object, whole);
}

/* OpenAI's log-probabilities of completions. */
static json_t *logprobs_object(choice_events *c, const generation_event *e)
{
	json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
	bool whole = true;
	if (c->echo) { /* the first token's; other prompt tokens have events */
		whole &= json_array_append_new(tokens, tokens_name(c->tokenizer, c->echo[0])) == 0;
		whole &= json_array_append_new(values, json_null()) == 0;
		whole &= json_array_append_new(tops, json_null()) == 0;
		whole &= json_array_append_new(offsets, json_integer(0)) == 0;
		tokens_place(c->tokenizer, &c->text, c->echo[0], &c->characters);
	}
	for (int i = 0; i < e->n_tokens; i++) {
		whole &= json_array_append_new(tokens, tokens_name(c->tokenizer, e->tokens[i])) == 0;
		whole &= json_array_append_new(values, choice_events_number(e->logprobs[i].logprob)) == 0;
		whole &= json_array_append_new(tops, top_object(c, e, i)) == 0;
		int64_t place = tokens_place(c->tokenizer, &c->text, e->tokens[i], &c->characters);
		whole &= json_array_append_new(offsets, json_integer(place)) == 0;
	}
	return whole_or_none(json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
	                               "top_logprobs", tops, "text_offset", offsets),
	                     whole);
}

/* One token with its log-probability and bytes, as chat completions have it. */
static json_t *chat_token(const choice_events *c, const token_logprob *p)
{
	char bytes[TOKEN_MAX_BYTES];
	size_t n = tokenizer_token_bytes(c->tokenizer, p->token, bytes, sizeof bytes);
	json_t *numbers = json_array();
	bool whole = numbers;
	for (size_t i = 0; whole && i < n; i++)
		whole = json_array_append_new(numbers, json_integer((unsigned char)bytes[i])) == 0;
	return whole_or_none(json_pack("{s:o, s:o, s:o}", "token", tokens_name(c->tokenizer, p->token), "logprob",
	                               choice_events_number(p->logprob), "bytes", numbers),
	                     whole);
}

static json_t *chat_tops(const choice_events *c, const generation_event *e, int token)
{
	json_t *list = json_array();
	bool whole = list;
	for (int j = 0; whole && j < e->n_top; j++) {
		const token_logprob *p = &e->top[token * e->n_top + j];
		whole = p->token < 0 || json_array_append_new(list, chat_token(c, p)) == 0;
	}
	return whole_or_none(list, whole);
}

static json_t *chat_logprobs(const choice_events *c, const generation_event *e)
{
	json_t *list = json_array();
	bool whole = list;
	for (int i = 0; whole && i < e->n_tokens; i++) {
		json_t *token = chat_token(c, &e->logprobs[i]);
		whole = json_object_set_new(token, "top_logprobs", chat_tops(c, e, i)) == 0;
		whole &= json_array_append_new(list, token) == 0;
	}
	return whole_or_none(json_pack("{s:o}", "content", list), whole);
}

static status choice_events_remember_token(choice_events *c, int32_t id)
{
	if (c->n_ids + 1 >= c->ids_capacity) {
		size_t capacity = 2 * (size_t)c->ids_capacity + 256;
		int32_t *ids = realloc(c->ids, capacity * sizeof *ids);
		if (ids)
			c->ids = ids;
		int64_t *offsets = ids ? realloc(c->offsets, capacity * sizeof *offsets) : NULL;
		if (!offsets)
			return STATUS_NOMEM;
		c->offsets = offsets;
		c->ids_capacity = (int64_t)capacity;
		c->offsets[0] = 0;
	}
	c->ids[c->n_ids] = id;
	c->offsets[c->n_ids + 1] = c->offsets[c->n_ids] + tokens_advance(c->tokenizer, &c->sequence, id);
	c->n_ids++;
	return STATUS_OK;
}

status choice_events_remember(choice_events *c, const int32_t *ids, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		TRY(choice_events_remember_token(c, ids[i]));
	return STATUS_OK;
}

static json_t *alpha_array(const choice_events *c, const generation_event *e)
{
	json_t *all = json_array();
	bool whole = all;
	for (int i = 0; whole && i < e->n_alpha; i++) {
		const alpha_weight *a = &e->alpha[i];
		bool known = a->position < c->n_ids;
		json_int_t offset = known ? c->offsets[a->position] : -1;
		json_t *text = known ? tokens_text(c->tokenizer, c->ids, a->position + 1)
		                     : tokens_text(c->tokenizer, &a->token, 1);
		whole = json_array_append_new(all, json_pack("{s:{s:i, s:o, s:I}, s:f}", "token", "id", (int)a->token,
		                                             "text", text, "offset", offset, "weight",
		                                             (double)a->weight)) == 0;
	}
	return whole_or_none(all, whole);
}

/* Text of an event. The first event starts with the prompt, or with its first token if its tokens are scored. */
static json_t *choice_events_text_of(const choice_events *c, const generation_event *e)
{
	if (!c->echo)
		return json_stringn(e->text, e->text_bytes);
	json_t *prompt = !e->logprobs && c->echo_text
	                     ? json_incref((json_t *)(uintptr_t)c->echo_text)
	                     : tokens_join(c->tokenizer, c->echo, e->logprobs ? 1 : c->n_echo, !e->logprobs);
	size_t n = json_string_length(prompt);
	char *text = prompt ? malloc(n + e->text_bytes + 1) : NULL;
	if (text) {
		memcpy(text, json_string_value(prompt), n);
		memcpy(text + n, e->text, e->text_bytes);
	}
	json_decref(prompt);
	json_t *joined = text ? json_stringn(text, n + e->text_bytes) : NULL;
	free(text);
	return joined;
}

json_t *choice_events_object(choice_events *c, const generation_event *e)
{
	json_t *tokens = json_array();
	bool whole = true;
	for (int i = 0; i < e->n_tokens; i++)
		whole &= json_array_append_new(tokens, json_integer(e->tokens[i])) == 0;
	json_t *object = json_pack("{s:i, s:o, s:o, s:f}", "index", c->index, "text", choice_events_text_of(c, e),
	                           "tokens", tokens, "time_ms", e->time_ms);
	if (c->model)
		whole &= json_object_set_new(object, "model", json_string(c->model)) == 0;
	c->model = NULL;
	if (e->logprobs)
		whole &=
		    json_object_set_new(object, "logprobs", c->chat ? chat_logprobs(c, e) : logprobs_object(c, e)) == 0;
	if (e->n_alpha)
		whole &= json_object_set_new(object, "alpha", alpha_array(c, e)) == 0;
	c->echo = NULL;
	return whole_or_none(object, whole);
}

/* --- plain events ----------------------------------------------------------------------- */

bool choice_events_plain(const choice_events *c, const generation_event *e)
{
	return e->text_bytes <= PLAIN_EVENT_TEXT && e->n_tokens <= PLAIN_EVENT_TOKENS && !e->logprobs && !e->n_alpha &&
	       !c->model && !c->echo;
}

size_t choice_events_write(const choice_events *c, const generation_event *e, char json[PLAIN_EVENT_BYTES])
{
	return plain_event_write(&(plain_event){c->index, e->text, e->text_bytes, e->tokens, e->n_tokens, e->time_ms},
	                         json);
}

void choice_events_fini(choice_events *c)
{
	free(c->ids);
	free(c->offsets);
}
