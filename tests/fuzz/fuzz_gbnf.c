/* fuzz_gbnf - grammars in llama.cpp's notation and, after a first byte "/", regular expressions. The text up to the first
 * NUL is one; the bytes after it choose among the tokens that may come next. A refusal has a message. A text can always
 * continue until it is complete. It is UTF-8 then, and also fits when it is read byte by byte. */
#include "engine/base/utf8.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/plain_grammar.h"
#include "tests/fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_again(constraint *c, const char *text, size_t n)
{
	constrained_text *x;
	status s = constrained_text_new(&x, c, NULL, 0, false);
	for (size_t i = 0; i < n && s == STATUS_OK; i++)
		s = constrained_text_push(x, (unsigned char)text[i]);
	require(s == STATUS_TOO_LARGE || (s == STATUS_OK && walk_allowed(x, END)));
	constrained_text_free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;
	const size_t bytes = end ? (size_t)(end - data) : size;
	const char *source = (const char *)data, *text;
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	size_t n;
	if (utf8_valid_prefix(source, bytes) < bytes)
		return 0;
	const status s = bytes > 0 && data[0] == '/' ? regex_grammar_new(&g, source + 1, bytes - 1, &err)
	                                             : gbnf_grammar_new(&g, source, bytes, &err);
	if (s != STATUS_OK) {
		require(err.status != STATUS_OK && err.message[0] && !g);
		return 0;
	}
	require(constraint_new(&c, g, walk_trie()) == STATUS_OK);
	if (walk_text(c, data + bytes, size - bytes, &text, &n)) {
		require(utf8_valid_prefix(text, n) == n);
		read_again(c, text, n);
	}
	constraint_free(c);
	return 0;
}
