/* token_trie.h - the bytes of a vocabulary's tokens, as a tree: tokens with a common beginning share its nodes. Tokens
 * without bytes (the special ones) are not in it; the marks of calls are in that of a grammar of calls. Immutable and thread-safe. */
#ifndef ENGINE_TEXT_GRAMMAR_TOKEN_TRIE_H
#define ENGINE_TEXT_GRAMMAR_TOKEN_TRIE_H

#include "engine/text/tokenizer.h"

/* Nodes are in preorder: the first child of node i is i + 1 (if that is before its end), the next sibling of node i is
 * its end. Node 0 is the empty text. */
typedef struct token_trie_node {
	int32_t end;     /* the node after its last descendant */
	int32_t tokens;  /* index of its first token in token_trie.tokens; the next node's follows its last */
	uint16_t height; /* bytes of the longest token below it, from the node on */
	unsigned char byte;
} token_trie_node;

typedef struct token_trie {
	const tokenizer *tokenizer; /* borrowed */
	int32_t vocab;              /* ids below it, as the model has them */
	int32_t longest;            /* bytes of a token */
	bool marks;                 /* with the marks of calls */
	token_trie_node *nodes;     /* [n_nodes], and one more for `tokens` */
	int32_t *tokens;            /* ids, those of one node ascending */
	int32_t *ends;              /* [n_ends] tokens that end a text */
	int32_t n_nodes, n_ends;
} token_trie;

/* marks: with the marks of calls. Takes some 20 ms for 50,000 tokens. STATUS_NOMEM. */
status token_trie_new(token_trie **out, const tokenizer *t, int64_t vocab, bool marks);
void token_trie_free(token_trie *t); /* NULL is legal */

#endif
