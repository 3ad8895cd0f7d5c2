/* jsonl.h - consecutive JSON values, as a corpus_reader returns them: JSON lines, arrays, or values separated by white
 * space. */
#ifndef ENGINE_TEXT_JSONL_H
#define ENGINE_TEXT_JSONL_H

#include <jansson.h>

#include "engine/text/corpus_reader.h"

/* Receive a value; line: where it begins. */
typedef status (*jsonl_object)(void *context, const json_t *object, long line, error *err);

/* Pass on every value of a piece of data. An error of `each` stops the reading and is returned unchanged.
 * STATUS_INVALID: a text that is not JSON, with its line and column. An integer that does not fit in 64 bits is read as
 * a real number. */
status jsonl_walk(const corpus_piece *piece, jsonl_object each, void *context, error *err);
/* STATUS_INVALID: "line N: …". */
status jsonl_refuse(error *err, long line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* STATUS_INVALID for an object without a required member: "line N: needs …; its keys are …". */
status jsonl_refuse_keys(error *err, long line, const json_t *object, const char *needs);
/* STATUS_INVALID for a member that is not a string. */
status jsonl_refuse_member(error *err, long line, const json_t *object, const char *key);
/* The member of an object; NULL if it is absent or null. */
const json_t *jsonl_member(const json_t *object, const char *key);

#endif
