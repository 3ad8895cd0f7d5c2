/* jsonl.h - documents out of JSON lines.
 *
 * One object per line: {"text": "…"}, {"prompt": "…", "completion": "…"} or {"messages": [{"role": "…", "content":
 * "…"}, …]}; further keys are ignored, blank lines skipped. */
#ifndef ENGINE_TEXT_JSONL_H
#define ENGINE_TEXT_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "engine/text/tokenizer.h"

/* Whether the first non-blank line is a JSON object, or an array that begins with one: data and no prose, which is read
 * as documents or refused, whatever its keys are. */
bool jsonl_detect(const char *text, size_t bytes);

/* A line's object. */
typedef status (*jsonl_object)(void *context, const json_t *object, long number, error *err);

/* Hand over the value of every line that is not blank, with its number; the first line's is `first`. Errors name the
 * line and stop the reading; an error of `each` is returned as it is. */
status jsonl_walk(const char *text, size_t bytes, long first, jsonl_object each, void *context, error *err);
/* STATUS_INVALID: "line N: …". */
status jsonl_refuse(error *err, long number, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* What a piece of a document is. */
enum {
	JSONL_LAST = 1,  /* the document ends with it */
	JSONL_PROMPT = 2 /* what is given to the model, not what it should write */
};
/* A piece of a document, in order. how: of tokenizer_encode; NULL: plain text. */
typedef status (*jsonl_piece)(void *context, const char *text, size_t bytes, const encode_options *how, int kind,
                              error *err);
/* Hand over a conversation's pieces; `line` is for messages of errors. */
typedef status (*jsonl_chat)(const void *context, const json_t *messages, long line, jsonl_piece each, void *to,
                             error *err);

/* Hand over every document. Errors as of jsonl_walk. */
status jsonl_read(const char *text, size_t bytes, long first, jsonl_chat chat, const void *chat_context,
                  jsonl_piece each, void *context, error *err);

#endif
