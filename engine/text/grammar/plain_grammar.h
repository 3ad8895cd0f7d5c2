/* plain_grammar.h - grammars of plain texts: those that a regular expression matches, and listed ones. */
#ifndef ENGINE_TEXT_GRAMMAR_PLAIN_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_PLAIN_GRAMMAR_H

#include <jansson.h>

#include "engine/text/grammar/grammar.h"

/* The texts that the pattern (pattern.h) matches as a whole. STATUS_NOMEM; STATUS_INVALID, UNSUPPORTED and TOO_LARGE
 * have words in err, without a parameter. */
status regex_grammar_new(grammar **out, const char *pattern, size_t bytes, error *err);
/* The texts of a list of strings. Errors as above. */
status choice_grammar_new(grammar **out, const json_t *texts, error *err);

#endif
