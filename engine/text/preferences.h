/* preferences.h - datasets of prompts with two completions, of which one is preferred.
 *
 * JSON lines in one of the layouts
 *
 *   {"prompt": "…", "chosen": "…", "rejected": "…"}
 *   {"prompt": [messages], "chosen": [message], "rejected": [message]}                                   TRL's
 *   {"input": {"messages": […], "tools": […]}, "preferred_output": [message],
 *    "non_preferred_output": [message]}                                                                  OpenAI's
 *
 * A completion of messages is one message of the assistant. It is rendered after the prompt by the model's chat
 * template. Further keys are ignored, blank lines skipped.
 *
 * A record is two sequences of at most `length` tokens: the prompt and what was chosen, then the same prompt and what
 * was rejected. Texts become tokens as in document_tokens.h. A longer sequence loses its end.
 *
 * A cached text is a record_text.h with two entries for each line. Their number is that of the prompt's tokens. */
#ifndef ENGINE_TEXT_PREFERENCES_H
#define ENGINE_TEXT_PREFERENCES_H

#include "engine/text/dataset.h"
#include "engine/text/record_text.h"

enum { PREFERENCE_SEQUENCES = 2 };

/* The two documents of a line. `each` receives the pieces of the chosen one, then those of the rejected one; each ends
 * with a piece DOCUMENT_LAST. STATUS_INVALID names the line. */
status preferences_pieces(const conversation_template *chat, const json_t *object, long line, document_piece each,
                          void *context, error *err);

/* Source, options and errors as for record_text_build; o->chat is used. length: at least 2. STATUS_INVALID: a bad line
 * (by its number). */
status preferences_build(record_text *out, byte_source *source, const tokenizer *t, int64_t length,
                         const corpus_tokens_options *o, error *err);
/* Build datasets from a cached text that was built with this tokenizer and length; fraction as for labelled_make. */
status preferences_make(dataset **train, dataset **valid, const tokenizer *t, const record_text *x, int64_t length,
                        double fraction, error *err);

#endif
