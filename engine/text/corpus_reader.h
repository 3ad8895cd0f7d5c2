/* corpus_reader.h - a text of any size, one piece at a time.
 *
 * A text is plain UTF-8 or data in JSON (corpus_form.h), uncompressed or compressed (byte_source.h). A byte order mark
 * at the beginning is dropped. A piece of data is one or more whole values; a piece of plain text ends where the caller
 * allows a cut. The concatenated pieces are the text; for data, without the brackets and commas of an array at the top
 * level. Memory: a few pieces, or the longest stretch without a cut, which is bounded. One thread. */
#ifndef ENGINE_TEXT_CORPUS_READER_H
#define ENGINE_TEXT_CORPUS_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/byte_source.h"
#include "engine/text/corpus_form.h"
#include "engine/text/json_scan.h"

/* Most bytes of a value of data, and of plain text without a cut. */
enum { CORPUS_VALUE_BYTES = CORPUS_FORM_BYTES, CORPUS_STRETCH_BYTES = 256 << 20 };

typedef struct corpus_reader corpus_reader;

/* The largest offset of plain text, at most `bytes`, where it may be cut; 0: none. The reader keeps a character that is
 * cut in half at the end of `text` for the next piece. */
typedef size_t (*corpus_cut)(const void *context, const char *text, size_t bytes);

/* The offset after the last newline. */
size_t corpus_cut_at_line(const void *context, const char *text, size_t bytes);

typedef struct corpus_piece {
	char *text; /* NULL: the text has ended; must be freed */
	size_t bytes;
	json_place place; /* data: the place of its first byte */
	bool by_line;     /* no value extends over several lines */
	bool records;     /* from corpus_reader_new_data: cannot be running text */
	bool broken;      /* its last value is longer than CORPUS_VALUE_BYTES, or never ends */
} corpus_piece;

/* Takes ownership of the source, even on failure. piece_bytes: the least size of a piece, except for the last. */
status corpus_reader_new(corpus_reader **out, byte_source *source, size_t piece_bytes, corpus_cut cut,
                         const void *context, error *err);
/* Like corpus_reader_new, for a text that is data whatever it begins with. */
status corpus_reader_new_data(corpus_reader **out, byte_source *source, size_t piece_bytes, error *err);
/* True if the text is data in JSON. */
bool corpus_reader_is_data(const corpus_reader *r);
/* STATUS_INVALID: bytes of plain text that are not UTF-8, with their offset in the decompressed text; or characters
 * between values of data that do not belong there, with line and column; or plain text that is too long without a cut.
 */
status corpus_reader_next(corpus_reader *r, corpus_piece *out, error *err);
/* Before the first piece: from here on, replace each byte that is not UTF-8 by '?' instead of failing, also in data.
 * *lines counts the lines with such bytes. A line ends with a newline. */
void corpus_reader_repair(corpus_reader *r, int64_t *lines);
void corpus_reader_free(corpus_reader *r); /* NULL is legal */

#endif
