/* call_search.h - find, byte by byte, where an answer calls a function or ends.
 *
 * The texts of a search are the mark of a call and the stops. The grammar of answers (call_grammar.h) and the reader of
 * calls (call_reader.h) use the same search, so they agree about every text. Stops are searched in text: not where a
 * call is required, and not between calls. */
#ifndef ENGINE_TEXT_CALL_SEARCH_H
#define ENGINE_TEXT_CALL_SEARCH_H

#include <stdint.h>

#include "engine/text/chat_template.h"

enum { CALL_SEARCH_TEXTS = 12, CALL_SEARCH_BYTES = 256 };

/* Calls of an answer: none, any, or nothing but calls. */
typedef enum call_choice { CALLS_NONE, CALLS_AUTO, CALLS_REQUIRED } call_choice;

typedef struct call_search {
	char text[CALL_SEARCH_TEXTS][CALL_SEARCH_BYTES];
	uint16_t bytes[CALL_SEARCH_TEXTS];
	/* fail[i][n]: bytes of the longest proper end of the first n bytes of text i that is also its beginning */
	uint16_t fail[CALL_SEARCH_TEXTS][CALL_SEARCH_BYTES + 1];
	int n;      /* text 0 is the mark of a call */
	bool first; /* the mark counts only at the beginning of an answer */
} call_search;

/* Bytes of each text that the answer ends with; UINT16_MAX: the text cannot follow any more. */
typedef struct call_search_state {
	uint16_t at[CALL_SEARCH_TEXTS];
} call_search_state;

/* stops: texts without U+0000, of up to CALL_SEARCH_BYTES bytes. STATUS_INVALID "stop": there are too many. */
status call_search_init(call_search *s, const chat_call_form *form, const char *const *stops, int n_stops, error *err);
/* Read a byte. Return the text that is complete: of several the longest; -1: none. Zero is the state of an answer's
 * beginning. After a complete text the state is undefined. */
int call_search_step(const call_search *s, call_search_state *state, unsigned char byte);
/* Bytes at the end of the answer that may begin a text. */
size_t call_search_held(const call_search *s, const call_search_state *state);

/* Get the text between the mark of a call and the function's name: the rest of form->open, and the beginning of the
 * JSON. Freed by the caller. STATUS_NOMEM. */
status call_search_rest(const call_search *s, const chat_call_form *form, char **out);

/* The beginning of a call's JSON. */
#define CALL_JSON "{\"name\": \""

#endif
