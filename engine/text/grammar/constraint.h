/* constraint.h - the tokens that may come next in a text that must fit a grammar.
 *
 * They are found by walking the vocabulary's trie with the automaton. The tokens that fit on top of a frame do not
 * depend on the frames below it, up to the bytes with which the frame ends. For each frame that has been on top, the
 * constraint therefore caches the tokens that fit into it, and the trie's nodes at which it may end. Only from these
 * nodes the frames below are walked. A text inside a string, for example, costs the walk over all tokens once, and then
 * only a walk over tokens with a quotation mark.
 *
 * Texts share a constraint, which is reference-counted. References may be taken and released on any thread; everything
 * else is for one thread at a time. */
#ifndef ENGINE_TEXT_GRAMMAR_CONSTRAINT_H
#define ENGINE_TEXT_GRAMMAR_CONSTRAINT_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/grammar/token_trie.h"

typedef struct constraint constraint;
typedef struct constrained_text constrained_text;

/* Takes the finished grammar, also on error; the trie is borrowed. STATUS_NOMEM. */
status constraint_new(constraint **out, grammar *g, const token_trie *t);
constraint *constraint_share(constraint *c); /* one more reference */
void constraint_free(constraint *c);         /* one less; NULL is legal */

/* Start an empty text. ends: tokens that end it, in addition to the tokenizer's unless ignore_end; c is borrowed.
 * STATUS_NOMEM; STATUS_TOO_LARGE: too many alternatives begin alike, so that trying the tokens would take too long. */
status constrained_text_new(constrained_text **out, constraint *c, const int32_t *ends, int n_ends, bool ignore_end);
void constrained_text_free(constrained_text *x); /* NULL is legal */

/* The tokens that may come next, [⌈vocab / 32⌉] bits: the ends only when the text is whole. Valid until the next push.
 */
const uint32_t *constrained_text_allowed(const constrained_text *x);
/* True if any token may come next. If a vocabulary lacks some bytes, there may be none. */
bool constrained_text_continues(const constrained_text *x);
/* True if the text is complete and nothing can follow. */
bool constrained_text_done(const constrained_text *x);
/* Append a token that is allowed and no end. STATUS_INVALID: it is not allowed; else as above. */
status constrained_text_push(constrained_text *x, int32_t token);

#endif
