/* fuzz_grammar - JSON Schemas: the text up to the first NUL is a schema, and the bytes after it choose among the tokens
 * that may come next. A refusal has a message; a text can always continue until it is complete, and is JSON then. */
#include "engine/text/grammar/json_grammar.h"
#include "tests/fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;
	const size_t bytes = end ? (size_t)(end - data) : size;
	json_t *schema = json_loadb((const char *)data, bytes, 0, NULL);
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	const char *text;
	size_t n;
	if (!schema)
		return 0;
	if (json_grammar_new(&g, schema, &err) == STATUS_OK) {
		require(constraint_new(&c, g, walk_trie()) == STATUS_OK);
		if (walk_text(c, data + bytes, size - bytes, &text, &n)) {
			json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
			require(value != NULL);
			json_decref(value);
		}
		constraint_free(c);
	} else {
		require(err.status != STATUS_OK && err.message[0]);
	}
	json_decref(schema);
	return 0;
}
