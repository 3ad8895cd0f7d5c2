/* sse.c - lines first, then fields, then events; each level holds what is not complete. */
#include "clients/cli/sse.h"

#include <string.h>

/* "field: value" with at most one space after the colon; NULL when the line is another field. */
static const char *value_of(const char *line, const char *field)
{
	size_t n = strlen(field);

	if (strncmp(line, field, n) != 0 || (line[n] != ':' && line[n] != '\0'))
		return NULL;
	line += n;
	line += *line == ':';
	return line + (*line == ' ');
}

static bool take_line(sse *s)
{
	const char *line = text_get(&s->line), *value;

	if (!s->started && strncmp(line, "\xef\xbb\xbf", 3) == 0)
		line += 3;
	s->started = true;
	if ((value = value_of(line, "data"))) {
		if (s->has_data && !text_append(&s->data, "\n", 1))
			return false;
		s->has_data = true;
		return text_string(&s->data, value);
	}
	if ((value = value_of(line, "id")) && strlen(value) < SSE_ID_BYTES)
		strcpy(s->id, value);
	return true;
}

static sse_result end_line(sse *s, sse_event each, void *context)
{
	bool go_on = true;

	if (s->line.used > 0) {
		if (!take_line(s) || s->data.used > SSE_MAX_BYTES)
			return SSE_TOO_LARGE;
	} else if (s->has_data) {
		go_on = each(context, s->id, text_get(&s->data), s->data.used);
		s->has_data = false;
		text_clear(&s->data);
	}
	text_clear(&s->line);
	return go_on ? SSE_OK : SSE_STOPPED;
}

sse_result sse_feed(sse *s, const char *bytes, size_t n, sse_event each, void *context)
{
	for (size_t at = 0; at < n;) {
		size_t length = 0;

		if (s->after_cr && bytes[at] == '\n')
			at++;
		s->after_cr = false;
		while (at + length < n && bytes[at + length] != '\n' && bytes[at + length] != '\r')
			length++;
		if (s->line.used + length > SSE_MAX_BYTES || !text_append(&s->line, bytes + at, length))
			return SSE_TOO_LARGE;
		at += length;
		if (at == n)
			break;
		s->after_cr = bytes[at++] == '\r';

		sse_result r = end_line(s, each, context);

		if (r != SSE_OK)
			return r;
	}
	return SSE_OK;
}

void sse_free(sse *s)
{
	text_free(&s->line);
	text_free(&s->data);
}
