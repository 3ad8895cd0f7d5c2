/* `text` holds what was read and not handed over. It grows until a cut is found, to twice its size each time, and only
 * what is new is searched, so a text without cuts takes time in proportion to its length. */
#include "engine/text/corpus_reader.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/text/jsonl.h"

struct corpus_reader {
	byte_source *source;
	corpus_cut cut;
	const void *context;
	char *text;
	size_t have, room, piece;
	size_t valid;  /* bytes of `text` that are whole characters; of plain text */
	size_t offset; /* of `text` in the whole */
	long line;
	bool lines, ended;
};

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory for a piece of the text");
}

size_t corpus_cut_at_line(const void *context, const char *text, size_t bytes)
{
	(void)context;
	const char *newline = memrchr(text, '\n', bytes);
	return newline ? (size_t)(newline - text) + 1 : 0;
}

static status check_utf8(corpus_reader *r, error *err)
{
	size_t bytes;
	r->valid += utf8_valid_prefix(r->text + r->valid, r->have - r->valid);
	if (r->valid == r->have)
		return STATUS_OK;
	utf8_kind kind = utf8_next((const unsigned char *)r->text + r->valid, r->have - r->valid, &bytes);
	if (kind == UTF8_PARTIAL && !r->ended)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, NULL, "invalid UTF-8 at byte %zu", r->offset + r->valid);
}

/* Double what is held. */
static status read_more(corpus_reader *r, error *err)
{
	size_t wanted = r->have < r->piece ? r->piece : 2 * r->have, bytes;
	if (wanted > r->room) {
		char *grown = realloc(r->text, wanted);
		if (!grown)
			return no_memory(err);
		r->text = grown;
		r->room = wanted;
	}
	TRY(byte_source_read(r->source, r->text + r->have, wanted - r->have, &bytes, err));
	r->have += bytes;
	r->ended = r->have < wanted;
	return STATUS_OK;
}

/* What cannot be JSON lines is known from its first character; else the first line decides. */
static status detect(corpus_reader *r, error *err)
{
	for (;;) {
		size_t at = 0;
		while (at < r->have && strchr(" \t\r\n", r->text[at]) && r->text[at])
			at++;
		bool data = at < r->have && (r->text[at] == '{' || r->text[at] == '[');
		if (r->ended || (data && memchr(r->text + at, '\n', r->have - at))) {
			r->lines = data && jsonl_detect(r->text, r->have);
			return STATUS_OK;
		}
		if (at < r->have && !data)
			return STATUS_OK;
		TRY(read_more(r, err));
	}
}

static void drop(corpus_reader *r, size_t bytes)
{
	memmove(r->text, r->text + bytes, r->have - bytes);
	r->have -= bytes;
	r->offset += bytes;
	r->valid = r->valid > bytes ? r->valid - bytes : 0;
}

static status begin(corpus_reader *r, error *err)
{
	TRY(read_more(r, err));
	if (r->have >= 3 && memcmp(r->text, "\xEF\xBB\xBF", 3) == 0)
		drop(r, 3);
	return detect(r, err);
}

status corpus_reader_new(corpus_reader **out, byte_source *source, size_t piece_bytes, corpus_cut cut,
                         const void *context, error *err)
{
	*out = NULL;
	corpus_reader *r = memory_new(1, sizeof *r);
	if (!r) {
		byte_source_free(source);
		return no_memory(err);
	}
	*r = (corpus_reader){
	    .source = source, .piece = piece_bytes < 16 ? 16 : piece_bytes, .cut = cut, .context = context, .line = 1};
	status s = begin(r, err);
	if (s == STATUS_OK)
		*out = r;
	else
		corpus_reader_free(r);
	return s;
}

bool corpus_reader_lines(const corpus_reader *r)
{
	return r->lines;
}

/* Where the piece that is held ends; 0: not known yet. */
static size_t find_end(const corpus_reader *r, size_t searched)
{
	size_t end;
	if (r->lines) {
		end = r->have > searched ? corpus_cut_at_line(NULL, r->text + searched, r->have - searched) : 0;
		return end ? searched + end : r->ended ? r->have : 0;
	}
	if (r->ended)
		return r->have;
	return r->valid ? r->cut(r->context, r->text, r->valid) : 0;
}

static long count_lines(const char *text, size_t bytes)
{
	long count = 0;
	for (const char *at = text; (at = memchr(at, '\n', bytes - (size_t)(at - text))); at++)
		count++;
	return count;
}

/* The first `bytes` of what is held; the rest goes on in memory of its own. */
static status hand_over(corpus_reader *r, size_t bytes, corpus_piece *out, error *err)
{
	size_t rest = r->have - bytes, room = rest > r->piece ? rest : r->piece;
	char *next = malloc(room);
	if (!next)
		return no_memory(err);
	memcpy(next, r->text + bytes, rest);
	*out = (corpus_piece){r->text, bytes, r->line};
	r->line += count_lines(r->text, bytes);
	r->valid = r->valid > bytes ? r->valid - bytes : 0;
	r->offset += bytes;
	r->text = next;
	r->have = rest;
	r->room = room;
	return STATUS_OK;
}

status corpus_reader_next(corpus_reader *r, corpus_piece *out, error *err)
{
	size_t end = 0, searched = 0;
	*out = (corpus_piece){0};
	if (r->have < r->piece && !r->ended)
		TRY(read_more(r, err));
	while (!end) {
		if (!r->lines)
			TRY(check_utf8(r, err));
		if (r->have == 0 && r->ended)
			return STATUS_OK;
		end = find_end(r, searched);
		searched = r->have;
		if (!end)
			TRY(read_more(r, err));
	}
	return hand_over(r, end, out, err);
}

void corpus_reader_free(corpus_reader *r)
{
	if (!r)
		return;
	byte_source_free(r->source);
	free(r->text);
	free(r);
}
