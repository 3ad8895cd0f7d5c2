/* grammar_walk.h - a small vocabulary in place of a tokenizer, and texts of allowed tokens. */
#ifndef TESTS_FUZZ_GRAMMAR_WALK_H
#define TESTS_FUZZ_GRAMMAR_WALK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/constraint.h"

/* Every byte, tokens of several bytes, and one that ends a text. */
static const char *const several[] = {"\":",   "\": \"",   "\",\"", "},{", "]]", "null",
                                      "\\u00", "\xc3\xa9", "ab",    "12",  ", ", "{}"};
enum { SEVERAL = sizeof several / sizeof *several, END = 256 + SEVERAL, VOCABULARY };

size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size)
{
	const char byte = (char)id;
	const char *bytes = id < 256 ? &byte : id < END ? several[id - 256] : "";
	const size_t n = id < 256 ? 1 : strlen(bytes);
	(void)t;
	memcpy(out, bytes, n < size ? n : size);
	return n;
}

bool tokenizer_ends(const tokenizer *t, int32_t id)
{
	(void)t;
	return id == END;
}

bool tokenizer_is_mark(const tokenizer *t, int32_t id)
{
	(void)t;
	(void)id;
	return false;
}

static void require(bool condition)
{
	if (!condition)
		abort();
}

static const token_trie *walk_trie(void)
{
	static token_trie *trie;
	if (!trie)
		require(token_trie_new(&trie, NULL, VOCABULARY, false) == STATUS_OK);
	return trie;
}

static bool walk_allowed(const constrained_text *x, int32_t id)
{
	return constrained_text_allowed(x)[id >> 5] >> (id & 31) & 1;
}

static int32_t walk_choose(const constrained_text *x, unsigned choice)
{
	int32_t from = (int32_t)(choice * 37 % VOCABULARY), id = from;
	while (!walk_allowed(x, id)) {
		id = (id + 1) % VOCABULARY;
		require(id != from);
	}
	return id;
}

/* Choose tokens until the text ends: true, and the text; false: it was cut, by the choices or a bound. */
static bool walk_text(constraint *c, const uint8_t *choices, size_t n, const char **out, size_t *bytes)
{
	static char text[1 << 16];
	constrained_text *x;
	size_t i = 0;
	bool ended = false;
	*out = text;
	*bytes = 0;
	status s = constrained_text_new(&x, c, NULL, 0, false);
	require(s == STATUS_OK || s == STATUS_TOO_LARGE);
	if (s != STATUS_OK)
		return false;
	for (; i < n && i < 2000 && !ended && !constrained_text_done(x); i++) {
		require(constrained_text_continues(x));
		const int32_t id = walk_choose(x, choices[i]);
		ended = id == END;
		*bytes += tokenizer_token_bytes(NULL, id, text + *bytes, sizeof text - *bytes);
		s = ended ? STATUS_OK : constrained_text_push(x, id);
		require(s == STATUS_OK || s == STATUS_TOO_LARGE);
		if (s != STATUS_OK)
			break;
	}
	ended = s == STATUS_OK && (ended || constrained_text_done(x));
	constrained_text_free(x);
	return ended;
}

#endif
