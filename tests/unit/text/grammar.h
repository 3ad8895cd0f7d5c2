/* grammar.h - vocabularies and random walks for the tests of constrained texts. */
#ifndef TESTS_UNIT_TEXT_GRAMMAR_H
#define TESTS_UNIT_TEXT_GRAMMAR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/philox.h"
#include "engine/base/utf8.h"
#include "engine/text/grammar/constraint.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/json_grammar.h"
#include "engine/text/grammar/plain_grammar.h"

/* --- a vocabulary with tokens of one byte and of many ----------------------------------------- */

static const char *const corpus[] = {"{\"name\": \"Ann\", \"age\": 30}, {\"name\": \"Bo\", \"age\": 41}",
                                     "[{\"a\":1},{\"a\":2},{\"a\":-1.5e3}]",
                                     "{\"tags\": [\"red\", \"green\"], \"next\": null, \"ok\": true}",
                                     "\"\\u00e9\\n\", \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
                                     "{\"name\":\"x\",\"children\":[{\"name\":\"y\",\"children\":[]}]}"};

static inline status next_text(void *context, const char **text, size_t *bytes, error *err)
{
	size_t *at = context;
	(void)err;
	*text = *at < 4 * sizeof corpus / sizeof *corpus ? corpus[*at % (sizeof corpus / sizeof *corpus)] : NULL;
	*bytes = *text ? strlen(*text) : 0;
	(*at)++;
	return STATUS_OK;
}

typedef struct vocabulary {
	tokenizer *tokenizer;
	token_trie *trie;
} vocabulary;

static vocabulary vocabularies[2];

static inline int make_vocabularies(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i}", "type", "bpe", "vocab_size", 320);
	size_t at = 0;
	assert_int_equal(tokenizer_new(&vocabularies[0].tokenizer, NULL, NULL), STATUS_OK);
	error err = ERROR_INIT;
	if (tokenizer_train(&vocabularies[1].tokenizer, spec, &(text_source){next_text, &at}, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(spec);
	for (int i = 0; i < 2; i++) /* models may have more ids than their tokenizers */
		assert_int_equal(token_trie_new(&vocabularies[i].trie, vocabularies[i].tokenizer,
		                                tokenizer_size(vocabularies[i].tokenizer) + 5, false),
		                 STATUS_OK);
	return 0;
}

static inline int free_vocabularies(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		token_trie_free(vocabularies[i].trie);
		tokenizer_free(vocabularies[i].tokenizer);
	}
	return 0;
}

static inline bool is_allowed(const constrained_text *x, int32_t token)
{
	return constrained_text_allowed(x)[token >> 5] >> (token & 31) & 1;
}

static inline constrained_text *text_of(constraint *c)
{
	constrained_text *x;
	assert_int_equal(constrained_text_new(&x, c, NULL, 0, false), STATUS_OK);
	return x;
}

/* --- walks --- */

typedef struct written {
	char text[8192];
	size_t bytes;
	int32_t tokens[4096];
	int n;
	bool in_string, escaped;
} written;

static inline void append(written *w, const vocabulary *v, int32_t token)
{
	const size_t from = w->bytes;
	w->bytes += tokenizer_token_bytes(v->tokenizer, token, w->text + w->bytes, sizeof w->text - w->bytes - 1);
	assert_true(w->bytes < sizeof w->text - 1);
	w->text[w->bytes] = '\0';
	w->tokens[w->n++] = token;
	for (size_t i = from; i < w->bytes; i++) {
		const bool escape = w->in_string && !w->escaped && w->text[i] == '\\';
		w->in_string ^= w->text[i] == '"' && !w->escaped;
		w->escaped = escape;
	}
}

/* Choose an allowed token: a random one, or one that leads closer to the end. */
static inline int32_t choose(const constrained_text *x, const vocabulary *v, const written *w, uint64_t seed, bool end)
{
	const int32_t n = v->trie->vocab;
	if (end) {
		for (const char *p = w->in_string ? "\"nu0" : "}]ntf\"0"; *p; p++)
			for (int32_t id = 0; id < n; id++) {
				char byte;
				if (is_allowed(x, id) &&
				    (tokenizer_ends(v->tokenizer, id) ||
				     (tokenizer_token_bytes(v->tokenizer, id, &byte, 1) == 1 && byte == *p)))
					return id;
			}
	}
	const int32_t from = (int32_t)(philox(seed, 5, 0, (uint64_t)w->n).word[0] % (uint32_t)n);
	for (int32_t i = 0; i < n; i++)
		if (is_allowed(x, (from + i) % n))
			return (from + i) % n;
	fail_msg("nothing may follow \"%s\"", w->text);
	return -1;
}

/* Check for each token of the vocabulary that pushing it agrees with the mask. */
static inline void assert_mask(constraint *c, const constrained_text *x, const vocabulary *v, const written *w)
{
	for (int32_t id = 0; id < v->trie->vocab; id++) {
		if (tokenizer_ends(v->tokenizer, id))
			continue;
		constrained_text *again = text_of(c);
		for (int i = 0; i < w->n; i++)
			assert_int_equal(constrained_text_push(again, w->tokens[i]), STATUS_OK);
		const status s = constrained_text_push(again, id);
		constrained_text_free(again);
		if ((s == STATUS_OK) != is_allowed(x, id))
			fail_msg("token %d behind \"%s\": %s, and %d", id, w->text, status_name(s), is_allowed(x, id));
	}
}

#endif
