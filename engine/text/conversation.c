#include "engine/text/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/messages.h"

typedef struct division {
	const chat_template *chat;
	const json_t *messages;
	chat_text whole;
	size_t done;         /* bytes that were handed over */
	size_t passed;       /* trusted ranges of the whole that end before them */
	byte_range *trusted; /* room for those of a piece */
	document_piece each;
	void *to;
} division;

/* Pass on the text before `end`. */
static status hand_over(division *d, size_t end, int kind, error *err)
{
	encode_options how = {.trusted = d->trusted};
	if (end <= d->done && !(kind & DOCUMENT_LAST))
		return STATUS_OK;
	const byte_range *r = d->whole.trusted + d->passed;
	for (; d->passed < d->whole.n_trusted && r->first < end; d->passed++, r++) {
		size_t first = r->first > d->done ? r->first : d->done;
		size_t last = r->first + r->bytes < end ? r->first + r->bytes : end;
		if (first < last)
			d->trusted[how.n_trusted++] = (byte_range){first - d->done, last - first};
		if (r->first + r->bytes > end)
			break; /* the rest of it follows */
	}
	size_t begin = d->done;
	d->done = end > begin ? end : begin;
	return d->each(d->to, d->whole.text + begin, d->done - begin, &how, kind, err);
}

static status divide(division *d, error *err)
{
	const size_t n = json_array_size(d->messages);
	for (size_t i = 1; i < n; i++) {
		if (!messages_is_answer(json_array_get(d->messages, i)))
			continue;
		const byte_range *answer = &d->whole.answers[i];
		TRY(hand_over(d, answer->first, DOCUMENT_PROMPT, err));
		if (i + 1 < n)
			TRY(hand_over(d, answer->first + answer->bytes, 0, err));
	}
	bool answered = n > 1 && messages_is_answer(json_array_get(d->messages, n - 1));
	return hand_over(d, d->whole.bytes, DOCUMENT_LAST | (answered ? 0 : DOCUMENT_PROMPT), err);
}

static status render_and_divide(division *d, const json_t *tools, error *err)
{
	TRY(chat_template_render(d->chat, d->messages, tools, false, false, &d->whole, err));
	d->trusted = memory_new(d->whole.n_trusted, sizeof *d->trusted);
	return d->trusted ? divide(d, err) : STATUS_NOMEM;
}

status conversation_pieces(const void *context, const json_t *messages, const json_t *tools, long line,
                           document_piece each, void *to, error *err)
{
	const conversation_template *t = context;
	error cause = ERROR_INIT;
	if (!t->chat)
		return jsonl_refuse(err, line, "%s", error_message(t->problem));
	division d = {.chat = t->chat, .messages = messages, .each = each, .to = to};
	status s = json_array_size(messages) > 0
	               ? render_and_divide(&d, tools, &cause)
	               : error_set(&cause, STATUS_INVALID, NULL, "\"messages\" must be an array of messages");
	chat_text_fini(&d.whole);
	free(d.trusted);
	if (s == STATUS_INVALID || s == STATUS_UNSUPPORTED)
		return jsonl_refuse(err, line, "%s%s%s", cause.param, cause.param[0] ? ": " : "",
		                    error_message(&cause));
	return s == STATUS_OK ? s : error_set(err, s, cause.param, "%s", error_message(&cause));
}
