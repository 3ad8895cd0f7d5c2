#include "engine/daemon/requests/event_lines.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 1 << 10 };

size_t event_lines_growth(const event_lines *l, size_t bytes)
{
	const size_t needed = l->bytes + bytes + 1;
	return needed > l->capacity ? needed + needed / 2 + FIRST_BYTES - l->capacity : 0;
}

bool event_lines_add(event_lines *l, const char *json, size_t bytes)
{
	const size_t growth = event_lines_growth(l, bytes);
	char *data = growth ? realloc(l->data, l->capacity + growth) : l->data;
	if (!data)
		return false;
	l->data = data;
	l->capacity += growth;
	memcpy(data + l->bytes, json, bytes);
	data[l->bytes + bytes] = '\n';
	l->bytes += bytes + 1;
	return true;
}

bool event_lines_set(event_lines *l, const char *lines, size_t bytes)
{
	if (bytes == 0)
		return true;
	l->data = malloc(bytes);
	if (!l->data)
		return false;
	memcpy(l->data, lines, bytes);
	l->bytes = l->capacity = bytes;
	return true;
}

size_t event_lines_fit(event_lines *l)
{
	const size_t unused = l->capacity - l->bytes;
	char *fitted = l->bytes > 0 ? realloc(l->data, l->bytes) : NULL;
	if (!fitted)
		return 0;
	l->data = fitted;
	l->capacity = l->bytes;
	return unused;
}

size_t event_lines_send(const event_lines *l, stream *s, size_t at)
{
	while (at < l->bytes && stream_ready(s) > 0) {
		const char *line = l->data + at;
		const size_t n = (size_t)((const char *)memchr(line, '\n', l->bytes - at) - line);
		stream_event_text(s, line, n);
		at += n + 1;
	}
	return at;
}
