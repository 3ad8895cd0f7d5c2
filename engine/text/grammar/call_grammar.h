/* call_grammar.h - the grammar of answers that may call functions.
 *
 * An answer is a text, or a text and calls. Its text may be anything up to the mark of a call; from there on the answer
 * fits a grammar: the calls are of functions that exist, and their arguments fit the schema. Arguments have a space
 * after commas and colons, as templates print them, and are otherwise those of json_grammar.h. An answer may end with a
 * stop. */
#ifndef ENGINE_TEXT_GRAMMAR_CALL_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_CALL_GRAMMAR_H

#include "engine/text/call_search.h"
#include "engine/text/grammar/grammar.h"

enum { CALL_GRAMMAR_MOST = 64 /* calls of an answer */ };

typedef struct call_rules {
	chat_call_form form;
	const json_t *tools; /* as chat_template_render has checked them */
	call_choice choice;
	const char *function; /* the only one that may be called; NULL: any */
	bool parallel;        /* several calls, unless the form allows only one */
	const char *const *stops;
	int n_stops;
} call_rules;

/* Errors as for json_grammar_new, with a parameter "tools[i].function.parameters…"; "tool_choice": there is no such
 * function. */
status call_grammar_new(grammar **out, const call_rules *rules, error *err);

#endif
