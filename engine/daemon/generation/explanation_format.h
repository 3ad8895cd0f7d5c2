/* explanation_format.h - an explanation in one of the formats that a client may request.
 *
 *   json         the answer itself
 *   csv          a line for each row of the table (explanation_table.h)
 *   safetensors  a tensor for each path of the table, [objects of its list][tokens]
 *
 * All numbers are those of the JSON, as floats. A writer produces the bytes piece by piece, so only JSON is ever whole
 * in memory. Any thread. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLANATION_FORMAT_H
#define ENGINE_DAEMON_GENERATION_EXPLANATION_FORMAT_H

#include "engine/daemon/generation/format_buffer.h"
#include "engine/base/error.h"
#include "engine/daemon/generation/explanation_table.h"

enum { EXPLANATION_PIECE = 256 << 10 /* approximate bytes */ };

typedef struct explanation_writer {
	const json_t *explanation; /* borrowed until the first piece is made */
	explanation_table table;
	table_cursor at;
	bool started;
	int64_t bytes; /* bytes of all pieces, known after the first; -1: unknown */
	void *own;     /* private to the format; freed with free() */
} explanation_writer;

typedef struct explanation_format {
	const char *name, *content_type, *filename; /* filename NULL: none */
	/* Append the next piece to `out`; append nothing at the end. */
	status (*piece)(explanation_writer *w, format_buffer *out, error *err);
} explanation_format;

extern const explanation_format explanation_safetensors;

/* Return the format called `name`; NULL for "json" and unknown names. */
const explanation_format *explanation_format_find(const char *name);
/* STATUS_NOMEM; call explanation_writer_fini also then. */
status explanation_writer_init(explanation_writer *w, const json_t *explanation);
void explanation_writer_fini(explanation_writer *w);
/* Return the next piece: n bytes from malloc. At the end *n is 0 and *data NULL. */
status explanation_format_next(const explanation_format *f, explanation_writer *w, char **data, size_t *n, error *err);

#endif
