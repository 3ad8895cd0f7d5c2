#include "engine/daemon/generation/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/generation/tool_calls.h"

/* Longer conversations are read on the pool. */
enum { CONVERSATION_AT_ONCE = 4096 };

static size_t conversation_size(const json_t *messages)
{
	size_t size = 0;
	for (size_t i = 0; i < json_array_size(messages) && size <= CONVERSATION_AT_ONCE; i++) {
		const json_t *content = json_object_get(json_array_get(messages, i), "content");
		size += 32 + json_string_length(content);
		for (size_t k = 0; k < json_array_size(content); k++)
			size += json_string_length(json_object_get(json_array_get(content, k), "text"));
		const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
		for (size_t k = 0; k < json_array_size(calls); k++)
			size += 32 + json_string_length(json_object_get(
			                 json_object_get(json_array_get(calls, k), "function"), "arguments"));
	}
	return size;
}

/* Tokenize a part of a rendered text. */
static status conversation_encode(const choices_plan *p, const chat_text *x, size_t first, size_t end,
                                  choices_prompt *out, error *err)
{
	token_list list;
	size_t n = 0;
	TRY(choices_check_bytes(p, end - first, err));
	byte_range *trusted = memory_new(x->n_trusted, sizeof *trusted);
	if (!trusted)
		return STATUS_NOMEM;
	for (size_t i = 0; i < x->n_trusted; i++) {
		size_t from = x->trusted[i].first, to = from + x->trusted[i].bytes;
		from = from < first ? first : from;
		to = to > end ? end : to;
		if (from < to)
			trusted[n++] = (byte_range){from - first, to - from};
	}
	const encode_options o = {.trusted = trusted, .n_trusted = n};
	status s = tokenizer_encode(p->model->tokenizer, x->text + first, end - first, &o, &list, err);
	free(trusted);
	out->ids = list.ids;
	out->count = list.count;
	return s;
}

/* Find the tokens that other conversations with this system message also begin with, excluding its last token, which
 * may differ there. */
static status find_shared(choices_plan *p, const chat_text *x, error *err)
{
	choices_prompt shared;
	size_t n = 0;
	TRY(conversation_encode(p, x, 0, x->shared, &shared, err));
	while (n < shared.count && n < p->prompt.list[0].count && shared.ids[n] == p->prompt.list[0].ids[n])
		n++;
	p->sampling.request.n_shared = (int64_t)n;
	free(shared.ids);
	return STATUS_OK;
}

/* Add what ends an answer: the token if it is the name of a special one; otherwise a text, unless the answer has a
 * format, which may contain that text. In an answer that may call functions it ends the text before a call. */
static status add_stop(choices_plan *p, const char *stop, error *err)
{
	generation_request *r = &p->sampling.request;
	const tokenizer *t = p->model->tokenizer;
	const byte_range all = {0, strlen(stop)};
	token_list list;
	status s = STATUS_OK;
	TRY(tokenizer_encode(t, stop, all.bytes, &(encode_options){.trusted = &all, .n_trusted = 1}, &list, err));
	if (list.count == 1 && tokenizer_token_bytes(t, list.ids[0], NULL, 0) == 0)
		r->stop_tokens[r->n_stop_tokens++] = list.ids[0];
	else if (!p->sampling.format.constrains)
		r->stops[r->n_stops++] = stop;
	else if (p->sampling.format.calls.tools)
		s = tool_calls_add_stop(&p->sampling.format, stop, err);
	token_list_fini(&list);
	return s;
}

/* True if the session ends with what p->prompt.closed omits. */
static bool is_closed(const choices_plan *p, const session *x)
{
	enum { MOST = CHAT_TEMPLATE_STOP_BYTES };
	int32_t ids[MOST];
	session_info info;
	scheduler_session_info(x, &info);
	int64_t n = scheduler_session_tokens(x, info.tokens > MOST ? info.tokens - MOST : 0, MOST, ids);
	bool closed = p->prompt.closed_by[0] && tokens_end_with(p->model->tokenizer, ids, n, p->prompt.closed_by);
	for (int i = 0; n > 0 && i < p->sampling.request.n_stop_tokens; i++)
		closed |= ids[n - 1] == p->sampling.request.stop_tokens[i];
	return closed;
}

static void choose_prompt(choices_plan *p, const session *x)
{
	if (!is_closed(p, x))
		return;
	choices_prompt other = p->prompt.list[0];
	p->prompt.list[0] = p->prompt.closed;
	p->prompt.closed = other;
}

static status encode_all(choices_plan *p, const chat_text *x, error *err)
{
	TRY(conversation_encode(p, x, 0, x->bytes, &p->prompt.list[0], err));
	if (!p->prompt.continues)
		return x->shared > 0 ? find_shared(p, x, err) : STATUS_OK;
	size_t spaces = strspn(x->text, " ");
	if (x->closing > spaces && x->closing - spaces < sizeof p->prompt.closed_by)
		memcpy(p->prompt.closed_by, x->text + spaces, x->closing - spaces);
	p->prompt.choose = choose_prompt;
	return conversation_encode(p, x, x->closing, x->bytes, &p->prompt.closed, err);
}

/* Add what ends an answer of the model. */
static status add_stops(choices_plan *p, error *err)
{
	const char *after_calls = p->sampling.format.calls.form.stop;
	for (const char *const *stop = chat_template_stops(p->model->chat); *stop; stop++)
		TRY(add_stop(p, *stop, err));
	return after_calls && after_calls[0] ? add_stop(p, after_calls, err) : STATUS_OK;
}

static status read_messages(choices_plan *p, error *err)
{
	chat_text x;
	status rendered =
	    chat_template_render(p->model->chat, p->prompt.unread, p->prompt.tools, p->prompt.continues, true, &x, err);
	if (rendered != STATUS_OK && p->prompt.rename)
		p->prompt.rename(p->prompt.unread, err);
	TRY(rendered);
	status s = encode_all(p, &x, err);
	chat_text_fini(&x);
	return s == STATUS_OK ? add_stops(p, err) : s;
}

static status read_nothing(choices_plan *p, error *err)
{
	TRY(chat_template_check_tools(p->model->chat, p->prompt.tools, err));
	return add_stops(p, err);
}

/* Make the plan's only prompt. */
static status begin_prompt(choices_plan *p, error *err)
{
	const error *reason = &p->model->chat_problem;
	if (p->model->dims.source)
		return error_set(err, STATUS_INVALID, "model", "a model that reads a source supports no conversations");
	if (!p->model->chat)
		return error_set(err, STATUS_UNSUPPORTED, "model", "%s", error_message(reason));
	p->prompt.list = memory_new(1, sizeof *p->prompt.list);
	p->prompt.n = p->sampling.samples = 1;
	return p->prompt.list ? STATUS_OK : STATUS_NOMEM;
}

status conversation_resume(choices_plan *p, error *err)
{
	p->prompt.read = read_nothing;
	return begin_prompt(p, err);
}

status conversation_read(choices_plan *p, const json_t *messages, bool continues, error *err)
{
	TRY(begin_prompt(p, err));
	p->prompt.unread = messages;
	p->prompt.continues = continues;
	if (!p->prompt.field)
		p->prompt.field = "messages";
	if (!p->prompt.tools && conversation_size(messages) <= CONVERSATION_AT_ONCE)
		return read_messages(p, err);
	p->prompt.read = read_messages;
	return STATUS_OK;
}
