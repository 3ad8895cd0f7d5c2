/* fuzz_grammar - JSON Schemas: the text up to the first NUL is a schema, and the bytes after it choose among the tokens
 * that may come next. A refusal has a message; a text can always continue until it is complete, and is JSON then. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/constraint.h"
#include "engine/text/grammar/json_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A vocabulary: every byte, tokens of several, and one that ends a text. */
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

static void require(bool condition)
{
	if (!condition)
		abort();
}

static int32_t choose(const uint32_t *allowed, unsigned choice)
{
	int32_t from = (int32_t)(choice * 37 % VOCABULARY), id = from;
	while (!(allowed[id >> 5] >> (id & 31) & 1)) {
		id = (id + 1) % VOCABULARY;
		require(id != from);
	}
	return id;
}

static void walk(constraint *c, const uint8_t *choices, size_t n)
{
	static char text[1 << 16];
	constrained_text *x;
	size_t bytes = 0, i = 0;
	bool ended = false;
	status s = constrained_text_new(&x, c, NULL, 0, false);
	require(s == STATUS_OK || s == STATUS_TOO_LARGE);
	if (s != STATUS_OK)
		return;
	for (; i < n && i < 2000 && !ended && !constrained_text_done(x); i++) {
		require(constrained_text_continues(x));
		const int32_t id = choose(constrained_text_allowed(x), choices[i]);
		ended = id == END;
		bytes += tokenizer_token_bytes(NULL, id, text + bytes, sizeof text - bytes);
		s = ended ? STATUS_OK : constrained_text_push(x, id);
		require(s == STATUS_OK || s == STATUS_TOO_LARGE);
		if (s != STATUS_OK)
			break;
	}
	if (s == STATUS_OK && (ended || constrained_text_done(x))) {
		json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		require(value != NULL);
		json_decref(value);
	}
	constrained_text_free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static token_trie *trie;
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;
	const size_t bytes = end ? (size_t)(end - data) : size;
	json_t *schema = json_loadb((const char *)data, bytes, 0, NULL);
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	if (!schema)
		return 0;
	if (!trie)
		require(token_trie_new(&trie, NULL, VOCABULARY) == STATUS_OK);
	if (json_grammar_new(&g, schema, &err) == STATUS_OK) {
		require(constraint_new(&c, g, trie) == STATUS_OK);
		walk(c, data + bytes, size - bytes);
		constraint_free(c);
	} else {
		require(err.status != STATUS_OK && err.message[0]);
	}
	json_decref(schema);
	return 0;
}
