/* pattern.h - regular expressions of JSON Schema as automata over the characters of JSON strings.
 *
 * The syntax is that of ECMA-262 with its flag u: characters, classes, groups, alternatives, repetitions, ^ and $.
 * Look-ahead is understood directly after the ^ at the beginning. Back-references, word boundaries, other look-around,
 * flags and \p are STATUS_UNSUPPORTED. As JSON Schema says, a pattern may match anywhere in a string.
 *
 * Dialects disagree about characters outside ASCII. So \d, \w and \s are ASCII; \D, \W, \S and the negated forms leave
 * out what any dialect may count as a digit, a word character or white space.
 *
 * A string is spelled in one way: an escape only where JSON needs one, and then its shortest form, in lower case. */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_H

#include "engine/base/error.h"
#include "engine/text/grammar/automaton.h"

/* The content of JSON strings, without quotation marks, that a pattern matches. STATUS_NOMEM; STATUS_INVALID,
 * UNSUPPORTED and TOO_LARGE have words in err, without a parameter. */
status pattern_automaton(automaton **out, const char *pattern, size_t bytes, int64_t *budget, error *err);

#endif
