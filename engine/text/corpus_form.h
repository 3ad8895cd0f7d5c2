/* corpus_form.h - decide whether a file is running text or data in JSON. This is the only place that decides.
 *
 * In this order:
 *   1. UTF-16, UTF-32, and archives, tables and documents in binary formats are refused by their first bytes.
 *   2. The format that the upload declares: "text" or "json".
 *   3. The name: .json, .jsonl and .ndjson are data; .csv, .tsv and other tables are refused. A compressed file has
 *      the name without .gz or .zst.
 *   4. The content: data begins with an object ({" or {' or {word: or {}) or with an array of objects or strings.
 *      White space and lines of comments (// or #) may come first. Everything else is text.
 *
 * Data that is not JSON is refused later, with its line and column. It is never read as text. */
#ifndef ENGINE_TEXT_CORPUS_FORM_H
#define ENGINE_TEXT_CORPUS_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

/* Declared properties of a file, without its content. */
typedef enum corpus_hint {
	CORPUS_HINT_NONE,
	CORPUS_HINT_TEXT, /* declared */
	CORPUS_HINT_DATA, /* declared, or by the name */
	CORPUS_HINT_TABLE /* by the name */
} corpus_hint;

/* format: "auto", "text" or "json"; NULL: "auto". filename may be NULL. */
corpus_hint corpus_hint_of(const char *format, const char *filename);
/* The hint for a stored file, whose manifest has its format and name, or for any other file by its own name. */
corpus_hint corpus_hint_of_file(const char *path);

typedef enum corpus_form {
	CORPUS_FORM_UNKNOWN, /* more bytes are needed */
	CORPUS_FORM_TEXT,
	CORPUS_FORM_LINES, /* JSON, and no value extends over several lines */
	CORPUS_FORM_VALUES /* JSON: arrays of values, or values one after another */
} corpus_form;

/* Decide from the first bytes of the text, without a byte order mark. ended: these bytes are the whole text. The result
 * is never unknown then, nor from CORPUS_FORM_BYTES bytes on. STATUS_INVALID: the file is refused; a tar archive, if the
 * first CORPUS_FORM_TAR_BYTES are given. */
enum { CORPUS_FORM_BYTES = 64 << 20, CORPUS_FORM_TAR_BYTES = 262 };
status corpus_form_find(corpus_form *out, corpus_hint hint, const char *text, size_t bytes, bool ended, error *err);

#endif
