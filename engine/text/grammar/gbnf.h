/* gbnf.h - grammars in llama.cpp's notation, GBNF.
 *
 * A rule is NAME ::= BODY on one line; the text begins at `root`. A body has literals in quotation marks, classes such as
 * [a-z] and [^x], any character (.), names of rules, groups in parentheses, and alternatives (|). Repetitions are * + ?
 * {m} {m,} {m,n}. Escapes are those of a quotation mark, backslash, [, ], n, r, t, xXX, uXXXX and UXXXXXXXX. The sign #
 * begins a comment. Lines may be broken within parentheses, and after | and ::=. Tokens as symbols (<…>) are
 * STATUS_UNSUPPORTED. A rule that begins with itself, also through others, is STATUS_INVALID.
 *
 * What is not recursive becomes a deterministic automaton over bytes, if that is small enough; the rest is a pushdown
 * automaton (grammar.h). Where a part may be empty, the grammar has an alternative without it. */
#ifndef ENGINE_TEXT_GRAMMAR_GBNF_H
#define ENGINE_TEXT_GRAMMAR_GBNF_H

#include "engine/text/grammar/grammar.h"

/* The text is UTF-8, up to GBNF_MAX_BYTES bytes. STATUS_NOMEM; STATUS_INVALID, UNSUPPORTED and TOO_LARGE have words in
 * err, without a parameter. */
status gbnf_grammar_new(grammar **out, const char *text, size_t bytes, error *err);

#endif
