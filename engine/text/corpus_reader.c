/* `text` holds bytes that were read and not returned yet. It doubles until a cut is found, and only new bytes are
 * searched, so a text without cuts takes time proportional to its length. */
#include "engine/text/corpus_reader.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/text/json_scan.h"

struct corpus_reader {
	byte_source *source;
	corpus_cut cut;
	const void *context;
	char *text;
	size_t have, room, piece;
	size_t valid;     /* bytes of `text` that are whole characters; of plain text, and of text that is repaired */
	size_t offset;    /* where `text` begins in the whole */
	json_place place; /* the first byte of `text`; of data */
	json_scan scan;   /* finds the values of `text` */
	corpus_form form;
	bool ended, records;
	bool broken;        /* as in corpus_piece; of the piece that is handed over */
	int64_t *repaired;  /* lines with bytes that were replaced; NULL: such bytes are refused */
	bool line_repaired; /* the line at `repaired_at` has been counted */
	size_t repaired_at; /* offset in `text`, not after the last byte that was replaced */
};

size_t corpus_cut_at_line(const void *context, const char *text, size_t bytes)
{
	(void)context;
	const char *newline = memrchr(text, '\n', bytes);
	return newline ? (size_t)(newline - text) + 1 : 0;
}

/* Forget the repaired line if it ends before the offset. */
static void pass_repaired(corpus_reader *r, size_t end)
{
	if (r->line_repaired && memchr(r->text + r->repaired_at, '\n', end - r->repaired_at))
		r->line_repaired = false;
	r->repaired_at = end;
}

static void repair_byte(corpus_reader *r)
{
	pass_repaired(r, r->valid);
	*r->repaired += !r->line_repaired;
	r->line_repaired = true;
	r->text[r->valid] = '?';
}

static status check_utf8(corpus_reader *r, error *err)
{
	for (;;) {
		size_t bytes;
		r->valid += utf8_valid_prefix(r->text + r->valid, r->have - r->valid);
		if (r->valid == r->have)
			return STATUS_OK;
		utf8_kind kind = utf8_next((const unsigned char *)r->text + r->valid, r->have - r->valid, &bytes);
		if (kind == UTF8_PARTIAL && !r->ended)
			return STATUS_OK;
		if (!r->repaired)
			return error_set(err, STATUS_INVALID, NULL, "invalid UTF-8 at byte %zu", r->offset + r->valid);
		repair_byte(r);
	}
}

/* Double what is held. */
static status read_more(corpus_reader *r, error *err)
{
	size_t target = r->have < r->piece ? r->piece : 2 * r->have, bytes;
	if (target > r->room) {
		char *grown = realloc(r->text, target);
		if (!grown)
			return error_no_memory(err, "a piece of the text");
		r->text = grown;
		r->room = target;
	}
	TRY(byte_source_read(r->source, r->text + r->have, target - r->have, &bytes, err));
	r->have += bytes;
	r->ended = r->have < target;
	return STATUS_OK;
}

static status corpus_reader_begin(corpus_reader *r, corpus_hint hint, error *err)
{
	TRY(read_more(r, err));
	if (r->have >= 3 && memcmp(r->text, "\xEF\xBB\xBF", 3) == 0) {
		memmove(r->text, r->text + 3, r->have - 3);
		r->have -= 3;
		r->offset += 3;
		r->valid = r->valid > 3 ? r->valid - 3 : 0;
	}
	for (;;) {
		TRY(corpus_form_find(&r->form, hint, r->text, r->have, r->ended, err));
		if (r->form != CORPUS_FORM_UNKNOWN)
			return STATUS_OK;
		TRY(read_more(r, err));
	}
}

static status open_reader(corpus_reader **out, byte_source *source, corpus_hint hint, size_t piece_bytes,
                          corpus_cut cut, const void *context, error *err)
{
	*out = NULL;
	corpus_reader *r = memory_new(1, sizeof *r);
	if (!r) {
		byte_source_free(source);
		return error_no_memory(err, "a piece of the text");
	}
	*r = (corpus_reader){.source = source,
	                     .piece = piece_bytes < 16 ? 16 : piece_bytes,
	                     .cut = cut,
	                     .context = context,
	                     .place = JSON_PLACE_BEGIN};
	status s = corpus_reader_begin(r, hint, err);
	if (s == STATUS_OK)
		*out = r;
	else
		corpus_reader_free(r);
	return s;
}

status corpus_reader_new(corpus_reader **out, byte_source *source, size_t piece_bytes, corpus_cut cut,
                         const void *context, error *err)
{
	return open_reader(out, source, byte_source_hint(source), piece_bytes, cut, context, err);
}

status corpus_reader_new_data(corpus_reader **out, byte_source *source, size_t piece_bytes, error *err)
{
	const corpus_hint hint = byte_source_hint(source);
	*out = NULL;
	if (hint == CORPUS_HINT_TEXT) {
		byte_source_free(source);
		return error_set(err, STATUS_INVALID, NULL,
		                 "the file has the format \"text\"; records are read from JSON lines only");
	}
	TRY(open_reader(out, source, hint == CORPUS_HINT_TABLE ? hint : CORPUS_HINT_DATA, piece_bytes,
	                corpus_cut_at_line, NULL, err));
	(*out)->records = true;
	return STATUS_OK;
}

bool corpus_reader_is_data(const corpus_reader *r)
{
	return r->form != CORPUS_FORM_TEXT;
}

static status refuse_values(corpus_reader *r, const char *wrong, error *err)
{
	json_place_pass(&r->place, r->text, r->scan.at);
	return error_set(err, STATUS_INVALID, NULL, "line %ld, column %ld: %s", r->place.line, r->place.column, wrong);
}

/* Values before a mistake are handed over first: what is wrong with one of them is the first error. */
static status find_values_end(corpus_reader *r, size_t *end, error *err)
{
	const char *wrong = json_scan_run(&r->scan, r->text, r->have);
	*end = r->scan.cut;
	if (*end == 0 && wrong)
		return refuse_values(r, wrong, err);
	if (*end == 0 && r->ended)
		*end = r->have;
	return STATUS_OK;
}

/* A stretch of text or a value has no end yet. A value that is too long is handed over broken: its parser finds the
 * mistake if it has one, such as a bracket that is not closed. */
static status check_length(corpus_reader *r, size_t *end, error *err)
{
	if (r->form == CORPUS_FORM_TEXT && r->have >= CORPUS_STRETCH_BYTES)
		return error_set(
		    err, STATUS_INVALID, NULL,
		    "from byte %zu on, %zu bytes have no place to cut the text, such as a line end; the most is "
		    "%d MiB",
		    r->offset, r->have, CORPUS_STRETCH_BYTES >> 20);
	r->broken = corpus_reader_is_data(r) && r->have >= CORPUS_VALUE_BYTES;
	if (r->broken)
		*end = r->have;
	return STATUS_OK;
}

/* Find where the piece that is held ends. *end: 0 if that is not known yet. */
static status find_end(corpus_reader *r, size_t searched, size_t *end, error *err)
{
	*end = 0;
	if (r->form == CORPUS_FORM_VALUES)
		return find_values_end(r, end, err);
	if (r->form == CORPUS_FORM_LINES && r->have > searched)
		*end = corpus_cut_at_line(NULL, r->text + searched, r->have - searched);
	if (*end)
		*end += searched;
	else if (r->ended)
		*end = r->have;
	else if (r->form == CORPUS_FORM_TEXT && r->valid)
		*end = r->cut(r->context, r->text, r->valid);
	return STATUS_OK;
}

/* Return the first `bytes` bytes held; the rest moves to new memory. */
static status hand_over(corpus_reader *r, size_t bytes, corpus_piece *out, error *err)
{
	size_t rest = r->have - bytes, room = rest > r->piece ? rest : r->piece;
	char *next = malloc(room);
	if (!next)
		return error_no_memory(err, "a piece of the text");
	memcpy(next, r->text + bytes, rest);
	if (r->repaired_at < bytes)
		pass_repaired(r, bytes);
	r->repaired_at -= bytes;
	*out = (corpus_piece){r->text, bytes, r->place, r->form == CORPUS_FORM_LINES, r->records, r->broken};
	if (corpus_reader_is_data(r))
		json_place_pass(&r->place, r->text, bytes);
	if (r->form == CORPUS_FORM_VALUES)
		json_scan_drop(&r->scan, bytes);
	r->valid = r->valid > bytes ? r->valid - bytes : 0;
	r->offset += bytes;
	r->broken = false;
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
		if (!corpus_reader_is_data(r) || r->repaired)
			TRY(check_utf8(r, err));
		if (r->have == 0 && r->ended) {
			const char *wrong = json_scan_end(&r->scan);
			return wrong ? refuse_values(r, wrong, err) : STATUS_OK;
		}
		TRY(find_end(r, searched, &end, err));
		searched = r->have;
		if (!end)
			TRY(check_length(r, &end, err));
		if (!end)
			TRY(read_more(r, err));
	}
	return hand_over(r, end, out, err);
}

void corpus_reader_repair(corpus_reader *r, int64_t *lines)
{
	r->repaired = lines;
}

void corpus_reader_free(corpus_reader *r)
{
	if (!r)
		return;
	byte_source_free(r->source);
	free(r->text);
	free(r);
}
