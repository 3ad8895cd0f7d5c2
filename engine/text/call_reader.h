/* call_reader.h - the text and the calls of an answer, as it streams.
 *
 * For answers that fit a grammar of calls (call_grammar.h). Text that may be the beginning of a call or of a stop is
 * held back until more decides, as is white space, which is dropped before a call. The result does not depend on how
 * the answer was cut. */
#ifndef ENGINE_TEXT_CALL_READER_H
#define ENGINE_TEXT_CALL_READER_H

#include "engine/text/call_search.h"

typedef struct call_reader call_reader;

/* Copies the form and the stops. choice and stops: those of the grammar. STATUS_NOMEM; STATUS_INVALID as for
 * call_search_init. */
status call_reader_new(call_reader **out, const chat_call_form *form, call_choice choice, const char *const *stops,
                       int n_stops, error *err);
void call_reader_free(call_reader *r); /* NULL is legal */

/* Append a part of the answer; last: no more follows. *text [*text_bytes] is the text that is final now, valid until
 * the next call. *calls: parts of calls, a new reference: an array of {"index", "name"?, "short_id"?, "arguments"?};
 * NULL: none. The first one of an index has the name, with short_id true if the form has short ids. Arguments are
 * concatenated. STATUS_NOMEM. */
status call_reader_push(call_reader *r, const char *part, size_t bytes, bool last, const char **text,
                        size_t *text_bytes, json_t **calls);
/* True if the answer has a whole call. */
bool call_reader_called(const call_reader *r);

#endif
