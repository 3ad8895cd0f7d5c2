/* pattern.h - regular expressions as automata, over the characters of JSON strings or of plain text.
 *
 * The syntax is that of ECMA-262 with its flag u: characters, classes, groups, alternatives, repetitions, ^ and $.
 * Look-ahead is understood directly after the ^ at the beginning. Back-references, word boundaries, other look-around,
 * flags and \p are STATUS_UNSUPPORTED.
 *
 * Dialects disagree about characters outside ASCII. So \d, \w and \s are ASCII; \D, \W, \S and the negated forms leave
 * out what any dialect may count as a digit, a word character or white space.
 *
 * A JSON string is spelled in one way: an escape only where JSON needs one, and then its shortest form, in lower case.
 * Plain text is UTF-8. */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_H

#include "engine/base/error.h"
#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/pattern_tree.h"

/* The content of JSON strings, without quotation marks, in which the pattern matches somewhere, as JSON Schema says.
 * STATUS_NOMEM; STATUS_INVALID, UNSUPPORTED and TOO_LARGE have words in err, without a parameter. */
status pattern_automaton(automaton **out, const char *pattern, size_t bytes, int64_t *budget, error *err);
/* The plain texts that the pattern matches as a whole, like Python's re.fullmatch. Errors as above. */
status pattern_text_automaton(automaton **out, const char *pattern, size_t bytes, int64_t *budget, error *err);
/* The plain texts that a tree matches as a whole. STATUS_NOMEM; STATUS_TOO_LARGE. */
status pattern_tree_automaton(automaton **out, const pattern_tree *t, int64_t *budget);

#endif
