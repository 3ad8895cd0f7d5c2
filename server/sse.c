/* LF, CR LF and CR all end a line for a client, so all three split the data; the client joins the pieces with LF. */
#include "server/sse.h"

#include <string.h>

static size_t sse_line_bytes(const char *data, size_t bytes)
{
	size_t n = 0;
	while (n < bytes && data[n] != '\n' && data[n] != '\r')
		n++;
	return n;
}

void sse_event(buffer *out, const char *id, const char *data, size_t bytes)
{
	if (id)
		buffer_format(out, "id: %s\n", id);
	for (;;) {
		size_t line = sse_line_bytes(data, bytes);
		buffer_string(out, "data: ");
		buffer_append(out, data, line);
		buffer_string(out, "\n");
		if (line == bytes)
			break;
		size_t end = data[line] == '\r' && line + 1 < bytes && data[line + 1] == '\n' ? 2 : 1;
		data += line + end;
		bytes -= line + end;
	}
	buffer_string(out, "\n");
}
