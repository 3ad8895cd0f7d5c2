#include "engine/text/chat_thinking.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

typedef struct span {
	const char *text;
	size_t bytes;
} span;

static span from(span s, size_t bytes)
{
	return (span){s.text + bytes, s.bytes - bytes};
}

static span without_first_lines(span s)
{
	while (s.bytes > 0 && *s.text == '\n')
		s = from(s, 1);
	return s;
}

static span without_last_lines(span s)
{
	while (s.bytes > 0 && s.text[s.bytes - 1] == '\n')
		s.bytes--;
	return s;
}

/* The part after the last mark; everything if there is none. */
static span after_last(span s, const char *mark)
{
	const size_t bytes = strlen(mark);
	for (const char *at; (at = memmem(s.text, s.bytes, mark, bytes));)
		s = from(s, (size_t)(at - s.text) + bytes);
	return s;
}

static bool is_result(const json_t *content)
{
	static const char opens[] = "<tool_response>", closes[] = "</tool_response>";
	const size_t bytes = json_string_length(content), opened = strlen(opens), closed = strlen(closes);
	const char *text = json_string_value(content);
	return text && bytes >= closed && strncmp(text, opens, opened) == 0 &&
	       memcmp(text + bytes - closed, closes, closed) == 0;
}

size_t chat_thinking_begin(const json_t *messages, bool continues)
{
	const size_t n = json_array_size(messages);
	for (size_t i = n; i > 0; i--) {
		const json_t *message = json_array_get(messages, i - 1);
		const char *role = json_string_value(json_object_get(message, "role"));
		if (role && strcmp(role, "user") == 0 && !is_result(json_object_get(message, "content")))
			return i;
	}
	return continues ? 0 : n;
}

status chat_thinking_rewrite(chat_builder *b, size_t first, bool reasons, bool last, bool *text)
{
	static const char end[] = "</think>";
	const size_t bytes = b->out.bytes - first;
	*text = bytes > 0;
	if (b->failed)
		return STATUS_OK;
	char *copy = memory_new(bytes + 1, 1);
	if (!copy)
		return STATUS_NOMEM;
	if (bytes > 0)
		memcpy(copy, b->out.text + first, bytes);
	b->out.bytes = first;
	b->given -= bytes;
	span reasoning = {copy, 0}, rest = {copy, bytes};
	const char *ended = memmem(copy, bytes, end, strlen(end));
	if (ended) {
		reasoning = without_last_lines((span){copy, (size_t)(ended - copy)});
		reasoning = without_first_lines(after_last(reasoning, "<think>"));
		rest = without_first_lines(after_last(rest, end));
	}
	*text = rest.bytes > 0;
	if (reasons && (last || reasoning.bytes > 0)) {
		chat_builder_markup(b, "<think>\n");
		chat_builder_append(b, reasoning.text, reasoning.bytes, false);
		chat_builder_markup(b, "\n</think>\n\n");
		rest = without_first_lines(rest);
	}
	chat_builder_append(b, rest.text, rest.bytes, false);
	free(copy);
	return STATUS_OK;
}
