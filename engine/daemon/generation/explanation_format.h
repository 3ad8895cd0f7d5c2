/* explanation_format.h - an explanation as bytes of one of the formats that a client may ask for.
 *
 *   json         the answer itself
 *   csv          a line for each row of the table (explanation_table.h)
 *   arrow        the same rows, as a stream of Apache Arrow's record batches
 *   safetensors  a tensor for each path of the table, [objects of the list that it is in][tokens]
 *
 * All numbers are those of the JSON, as floats. A writer gives the bytes piece by piece, so that no format is ever in
 * memory as a whole but JSON. Any thread. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLANATION_FORMAT_H
#define ENGINE_DAEMON_GENERATION_EXPLANATION_FORMAT_H

#include "engine/daemon/generation/format_buffer.h"
#include "engine/base/error.h"
#include "engine/daemon/generation/explanation_table.h"

enum { EXPLANATION_PIECE = 256 << 10 /* bytes, about */ };

typedef struct explanation_writer {
	const json_t *explanation; /* borrowed until the first piece is made */
	explanation_table table;
	table_cursor at;
	bool begun;
	int64_t bytes; /* of all pieces, once the first is made; -1: not known */
	void *own;     /* the format's, for free() */
} explanation_writer;

typedef struct explanation_format {
	const char *name, *content_type, *filename; /* filename NULL: none */
	/* The next piece into `out`; none: there are no more. */
	status (*piece)(explanation_writer *w, format_buffer *out, error *err);
} explanation_format;

extern const explanation_format explanation_csv, explanation_arrow, explanation_safetensors;

/* The format of that name, NULL for "json" and what is none. */
const explanation_format *explanation_format_find(const char *name);
/* STATUS_NOMEM; explanation_writer_fini is due then, too. */
status explanation_writer_init(explanation_writer *w, const json_t *explanation);
void explanation_writer_fini(explanation_writer *w);
/* The next piece, n bytes, malloc'ed; *n 0 and *data NULL: there are no more. */
status explanation_format_next(const explanation_format *f, explanation_writer *w, char **data, size_t *n, error *err);

#endif
