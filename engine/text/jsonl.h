/* jsonl.h - documents out of JSON lines.
 *
 * One object per line: {"text": "…"} or {"prompt": "…", "completion": "…"}; further keys
 * are ignored, blank lines skipped. */
#ifndef ENGINE_TEXT_JSONL_H
#define ENGINE_TEXT_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "engine/base/error.h"

/* Whether the first non-blank line is a JSON object, or an array that begins with one: data and no prose, which is read
 * as documents or refused, whatever its keys are. */
bool jsonl_detect(const char *text, size_t bytes);

/* A line's object. */
typedef status (*jsonl_object)(void *context, const json_t *object, long number, error *err);

/* Hand over the value of every line that is not blank, with its number, from 1. Errors name the line and stop the
 * reading; an error of `each` is returned as it is. */
status jsonl_walk(const char *text, size_t bytes, jsonl_object each, void *context, error *err);
/* STATUS_INVALID: "line N: …". */
status jsonl_refuse(error *err, long number, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A piece of a document, in order; last: the document ends here. */
typedef status (*jsonl_piece)(void *context, const char *text, size_t bytes, bool last, error *err);

/* Hand over every document. Errors as of jsonl_walk. */
status jsonl_read(const char *text, size_t bytes, jsonl_piece each, void *context, error *err);

#endif
