#include "engine/text/text_reader.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/documents.h"

enum { PIECE_BYTES = 1 << 20 };

struct text_reader {
	const char *const *paths;
	size_t count, at;
	corpus_reader *file; /* NULL: none is open */
	corpus_piece piece;
	char *text; /* text of a piece of JSON lines */
	size_t bytes, room;
};

status text_reader_new(text_reader **out, const char *const *paths, size_t count)
{
	*out = memory_new(1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	(*out)->paths = paths;
	(*out)->count = count;
	return STATUS_OK;
}

void text_reader_free(text_reader *r)
{
	if (!r)
		return;
	corpus_reader_free(r->file);
	free(r->piece.text);
	free(r->text);
	free(r);
}

static status text_reader_append(void *context, const char *text, size_t bytes, const encode_options *how, int kind,
                                 error *err)
{
	(void)how;
	text_reader *r = context;
	if (!MEMORY_ROOM(r->text, r->room, r->bytes + bytes + 1))
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	memcpy(r->text + r->bytes, text, bytes);
	r->bytes += bytes;
	if (kind & DOCUMENT_LAST)
		r->text[r->bytes++] = '\n';
	return STATUS_OK;
}

/* The contents of a conversation. */
static status read_chat(const void *context, const json_t *messages, const json_t *tools, long line,
                        document_piece each, void *to, error *err)
{
	size_t i;
	json_t *message;
	(void)context, (void)tools;
	(void)line;
	json_array_foreach(messages, i, message)
	{
		const json_t *content = json_object_get(message, "content");
		if (json_is_string(content))
			TRY(each(to, json_string_value(content), json_string_length(content), NULL, DOCUMENT_LAST,
			         err));
	}
	return STATUS_OK;
}

/* The next piece of some file; text NULL: there is none. */
static status next_piece(text_reader *r, error *err)
{
	free(r->piece.text);
	r->piece = (corpus_piece){0};
	while (!r->piece.text) {
		byte_source *source;
		if (!r->file && r->at == r->count)
			return STATUS_OK;
		if (!r->file) {
			TRY(byte_source_open(&source, r->paths[r->at++], err));
			TRY(corpus_reader_new(&r->file, source, PIECE_BYTES, corpus_cut_at_line, NULL, err));
		}
		TRY(corpus_reader_next(r->file, &r->piece, err));
		if (r->piece.text)
			return STATUS_OK;
		corpus_reader_free(r->file);
		r->file = NULL;
	}
	return STATUS_OK;
}

static status next(void *context, const char **text, size_t *bytes, error *err)
{
	text_reader *r = context;
	TRY(next_piece(r, err));
	*text = r->piece.text;
	*bytes = r->piece.bytes;
	if (!*text || !corpus_reader_is_data(r->file))
		return STATUS_OK;
	r->bytes = 0;
	TRY(text_reader_append(r, "", 0, NULL, 0, err));
	TRY(documents_read(&r->piece, read_chat, NULL, text_reader_append, r, err));
	*text = r->text;
	*bytes = r->bytes;
	return STATUS_OK;
}

text_source text_reader_source(text_reader *r)
{
	return (text_source){next, r};
}
