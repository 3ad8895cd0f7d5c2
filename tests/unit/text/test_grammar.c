/* Constrained texts: the tokens that may come next, by the grammar of a JSON Schema, a regular expression or GBNF. */
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
#include "tests/unit/support/allocations.h"

/* --- a vocabulary with tokens of one byte and of many ----------------------------------------- */

static const char *const corpus[] = {"{\"name\": \"Ann\", \"age\": 30}, {\"name\": \"Bo\", \"age\": 41}",
                                     "[{\"a\":1},{\"a\":2},{\"a\":-1.5e3}]",
                                     "{\"tags\": [\"red\", \"green\"], \"next\": null, \"ok\": true}",
                                     "\"\\u00e9\\n\", \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
                                     "{\"name\":\"x\",\"children\":[{\"name\":\"y\",\"children\":[]}]}"};

static status next_text(void *context, const char **text, size_t *bytes, error *err)
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

static int make_vocabularies(void **state)
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
		                                tokenizer_size(vocabularies[i].tokenizer) + 5),
		                 STATUS_OK);
	return 0;
}

static int free_vocabularies(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		token_trie_free(vocabularies[i].trie);
		tokenizer_free(vocabularies[i].tokenizer);
	}
	return 0;
}

static bool is_allowed(const constrained_text *x, int32_t token)
{
	return constrained_text_allowed(x)[token >> 5] >> (token & 31) & 1;
}

static constraint *constraint_of(const vocabulary *v, const char *schema_text)
{
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	json_t *schema = schema_text ? json_loads(schema_text, 0, NULL) : NULL;
	assert_true(!schema_text || schema);
	if (json_grammar_new(&g, schema, &err) != STATUS_OK)
		fail_msg("%s: %s: %s", schema_text, err.param, error_message(&err));
	json_decref(schema);
	assert_int_equal(constraint_new(&c, g, v->trie), STATUS_OK);
	return c;
}

static constrained_text *text_of(constraint *c)
{
	constrained_text *x;
	assert_int_equal(constrained_text_new(&x, c, NULL, 0, false), STATUS_OK);
	return x;
}

/* --- an independent check of a value ---------------------------------------------------------- */

static bool fits(const json_t *root, const json_t *schema, const json_t *x);

static bool is_type(const char *type, const json_t *x)
{
	static const char *const names[] = {"object", "array", "string", "integer", "number", "true", "false", "null"};
	const char *is = names[json_typeof(x)];
	return strcmp(type, is) == 0 || (strcmp(type, "boolean") == 0 && json_is_boolean(x)) ||
	       (strcmp(type, "number") == 0 && json_is_integer(x));
}

static bool fits_type(const json_t *type, const json_t *x)
{
	bool any = !type || (json_is_string(type) && is_type(json_string_value(type), x));
	for (size_t i = 0; i < json_array_size(type); i++)
		any |= is_type(json_string_value(json_array_get(type, i)), x);
	return any;
}

static bool within(const json_t *schema, const char *least, const char *most, size_t n)
{
	const json_t *min = json_object_get(schema, least), *max = json_object_get(schema, most);
	return (!min || (json_int_t)n >= json_integer_value(min)) && (!max || (json_int_t)n <= json_integer_value(max));
}

static size_t characters(const json_t *x)
{
	size_t n = 0;
	for (const char *p = json_string_value(x); p < json_string_value(x) + json_string_length(x); p++)
		n += (*p & 0xc0) != 0x80;
	return n;
}

static bool fits_object(const json_t *root, const json_t *schema, json_t *x)
{
	const json_t *properties = json_object_get(schema, "properties"),
	             *extra = json_object_get(schema, "additionalProperties");
	const json_t *required = json_object_get(schema, "required");
	const char *key;
	json_t *value;
	bool all = true;
	for (size_t i = 0; i < json_array_size(required); i++)
		all &= json_object_get(x, json_string_value(json_array_get(required, i))) != NULL;
	json_object_foreach(x, key, value)
	{
		const json_t *own = json_object_get(properties, key);
		all &= own ? fits(root, own, value) : !extra || fits(root, extra, value);
	}
	return all;
}

static bool fits(const json_t *root, const json_t *schema, const json_t *x)
{
	if (json_is_boolean(schema))
		return json_is_true(schema);
	const json_t *ref = json_object_get(schema, "$ref"), *any = json_object_get(schema, "anyOf");
	const json_t *values = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
	if (ref) {
		const char *name = strrchr(json_string_value(ref), '/');
		return fits(root, name ? json_object_get(json_object_get(root, "$defs"), name + 1) : root, x);
	}
	bool good = fits_type(json_object_get(schema, "type"), x) && (!constant || json_equal(constant, x)), one = !any,
	     listed = !values;
	for (size_t i = 0; i < json_array_size(any); i++)
		one |= fits(root, json_array_get(any, i), x);
	for (size_t i = 0; i < json_array_size(values); i++)
		listed |= json_equal(json_array_get(values, i), x);
	good &= one && listed;
	if (json_is_string(x))
		good &= within(schema, "minLength", "maxLength", characters(x));
	if (json_is_array(x))
		good &= within(schema, "minItems", "maxItems", json_array_size(x));
	for (size_t i = 0; i < json_array_size(x) && json_object_get(schema, "items"); i++)
		good &= fits(root, json_object_get(schema, "items"), json_array_get(x, i));
	return good && (!json_is_object(x) || fits_object(root, schema, (json_t *)(uintptr_t)x));
}

/* --- walks --------------------------------------------------------------------------------------- */

static const char *const schemas[] = {
    NULL,
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":3},\"age\":{"
    "\"type\":"
    "\"integer\"}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
    "{\"properties\":{\"a\":{\"type\":\"number\"},\"ab\":{\"type\":\"boolean\"},\"\\u00e9\\\"\":{\"const\":[1,{\"x\":"
    "null}]},"
    "\"\\u20ac\":{\"type\":[\"null\",\"array\"],\"maxItems\":0}},\"required\":[\"ab\",\"z\"]}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"x\",\"y\",\"xy\",1,12]},\"children\":{\"type\":"
    "\"array\",\"items\":"
    "{\"$ref\":\"#\"},\"maxItems\":2}},\"required\":[\"name\"],\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"$defs\":{\"list\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"number\"},\"next\":{\"anyOf\":[{\"$"
    "ref\":"
    "\"#/$defs/list\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":"
    "\"#/$defs/list\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2},\"minItems\":1,"
    "\"maxItems\":3},"
    "\"minItems\":2}",
    "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":["
    "\"k\"]},"
    "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"ab\"},\"m\":false},\"required\":[\"k\"],"
    "\"additionalProperties\":true}]}",
};
enum { SCHEMAS = sizeof schemas / sizeof *schemas };

typedef struct written {
	char text[8192];
	size_t bytes;
	int32_t tokens[4096];
	int n;
	bool in_string, escaped;
} written;

static void append(written *w, const vocabulary *v, int32_t token)
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
static int32_t choose(const constrained_text *x, const vocabulary *v, const written *w, uint64_t seed, bool end)
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

static void assert_fits(const char *schema_text, const written *w)
{
	json_error_t e;
	json_t *schema = schema_text ? json_loads(schema_text, 0, NULL) : json_pack("{s:s}", "type", "object");
	json_t *value = json_loads(w->text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (!value)
		fail_msg("%s: \"%s\"", e.text, w->text);
	if (!fits(schema, schema, value))
		fail_msg("\"%s\" does not fit %s", w->text, schema_text);
	json_decref(value);
	json_decref(schema);
}

/* Check for each token of the vocabulary that pushing it agrees with the mask. */
static void assert_mask(constraint *c, const constrained_text *x, const vocabulary *v, const written *w)
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

static void every_text_of_allowed_tokens_ends_and_fits_its_schema(void **state)
{
	(void)state;
	int most = 0;
	for (int i = 0; i < 2 * SCHEMAS; i++) {
		const vocabulary *v = &vocabularies[i % 2];
		constraint *c = constraint_of(v, schemas[i / 2]);
		for (uint64_t seed = 0; seed < 40; seed++) {
			constrained_text *x = text_of(c);
			static written w;
			memset(&w, 0, sizeof w);
			const int length = 2 + (int)(seed * 3);
			while (!constrained_text_done(x)) {
				assert_true(constrained_text_continues(x) && w.n < length + 400);
				if (seed == 20 && w.n % 16 == 0 && w.n < 40)
					assert_mask(c, x, v, &w);
				const int32_t token = choose(x, v, &w, seed * 1000 + (uint64_t)i, w.n >= length);
				if (tokenizer_ends(v->tokenizer, token))
					break;
				append(&w, v, token);
				assert_int_equal(constrained_text_push(x, token), STATUS_OK);
			}
			assert_fits(schemas[i / 2], &w);
			most = w.n > most ? w.n : most;
			constrained_text_free(x);
		}
		constraint_free(c);
	}
	assert_true(most > 100);
}

/* --- JSON ------------------------------------------------------------------------------------------- */

/* True if the text is accepted byte by byte to its end. */
static bool accepts(constraint *c, const char *text)
{
	constrained_text *x = text_of(c);
	bool good = true;
	for (; *text && good; text++)
		good = constrained_text_push(x, 3 + (unsigned char)*text) == STATUS_OK;
	good = good && (constrained_text_done(x) || is_allowed(x, tokenizer_end(vocabularies[0].tokenizer)));
	constrained_text_free(x);
	return good;
}

static void json_follows_the_standard(void **state)
{
	(void)state;
	static const char *const good[] = {"0",
	                                   "-0",
	                                   "10.25e-7",
	                                   "\"\"",
	                                   "\" \\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u00eF\"",
	                                   "\"\\uD83d\\uDE00\"",
	                                   "\"\\ud7ff\\ue000\"",
	                                   "\"\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\xed\x9f\xbf\"",
	                                   "[]",
	                                   "{}",
	                                   "[1,2,[true,false,null]]",
	                                   "{\"a\":{\"a\":[{}]},\"\":1}"};
	static const char *const bad[] = {"",
	                                  "01",
	                                  "+1",
	                                  ".5",
	                                  "1.",
	                                  "1e",
	                                  "-",
	                                  "NaN",
	                                  "'a'",
	                                  "\"\n\"",
	                                  "\"\\x\"",
	                                  "\"\\u12g4\"",
	                                  "\"\\ud800\"",
	                                  "\"\\ud800\\u0041\"",
	                                  "\"\\udc00\"",
	                                  "\"\xff\"",
	                                  "\"\xc0\x80\"",
	                                  "\"\xed\xa0\x80\"",
	                                  "\"\xf4\x90\x80\x80\"",
	                                  "\"\xe2\x82\"",
	                                  "[1,]",
	                                  "[,1]",
	                                  "{,}",
	                                  "{\"a\"}",
	                                  "{\"a\":1,}",
	                                  "{a:1}",
	                                  "[1 2]",
	                                  "{} {}",
	                                  "[",
	                                  "tru",
	                                  "nulll",
	                                  "\"a",
	                                  "1 ",
	                                  " 1",
	                                  "[1, 2]",
	                                  "{\"a\": 1}",
	                                  "[\n]"};
	constraint *c = constraint_of(&vocabularies[0], "{}");
	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		if (!accepts(c, good[i]))
			fail_msg("%s must be accepted", good[i]);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (accepts(c, bad[i]))
			fail_msg("%s must not be accepted", bad[i]);
	constraint_free(c);
	c = constraint_of(&vocabularies[0], NULL);
	assert_true(accepts(c, "{\"a\":[1]}") && !accepts(c, "[1]"));
	constraint_free(c);
}

static void the_text_ends_when_no_token_can_follow(void **state)
{
	(void)state;
	const vocabulary *v = &vocabularies[0];
	constraint *c = constraint_of(v, "{\"type\":\"integer\"}");
	constrained_text *x = text_of(c), *stopped, *endless;
	const int32_t end = tokenizer_end(v->tokenizer), stop = 'q' + 3;
	assert_int_equal(constrained_text_new(&stopped, c, &stop, 1, false), STATUS_OK);
	assert_int_equal(constrained_text_new(&endless, c, NULL, 0, true), STATUS_OK);
	assert_false(is_allowed(x, end) || is_allowed(stopped, stop));
	for (int i = 0; i < 16; i++) {
		assert_false(constrained_text_done(x));
		assert_int_equal(constrained_text_push(x, '7' + 3), STATUS_OK);
		assert_int_equal(constrained_text_push(stopped, '7' + 3), STATUS_OK);
		assert_int_equal(constrained_text_push(endless, '7' + 3), STATUS_OK);
		assert_true(is_allowed(x, end) && !is_allowed(x, stop));
		assert_true(is_allowed(stopped, end) && is_allowed(stopped, stop));
		assert_false(is_allowed(endless, end));
	}
	assert_true(constrained_text_done(x) && constrained_text_done(endless));
	assert_int_equal(constrained_text_push(x, '7' + 3), STATUS_INVALID);
	assert_int_equal(constrained_text_push(endless, end), STATUS_INVALID);
	constrained_text_free(x);
	constrained_text_free(stopped);
	constrained_text_free(endless);
	constraint_free(c);
}

/* --- refusals ----------------------------------------------------------------------------------------- */

static void unsupported_keywords_are_refused_by_their_path(void **state)
{
	(void)state;
	static const struct {
		const char *schema, *param;
		status status;
	} cases[] = {
	    {"{\"type\":\"string\",\"contentEncodin\":\"a\"}", "contentEncodin", STATUS_UNSUPPORTED},
	    {"{\"properties\":{\"a\":{\"items\":{\"contains\":1}}}}", "properties.a.items.contains",
	     STATUS_UNSUPPORTED},
	    {"{\"anyOf\":[true,{\"not\":{}}]}", "anyOf[1].not", STATUS_UNSUPPORTED},
	    {"{\"$defs\":{\"x\":{\"not\":[]}},\"items\":{\"$ref\":\"#/$defs/x\"}}", "#/$defs/x.not",
	     STATUS_UNSUPPORTED},
	    {"{\"additionalProperties\":{\"not\":{}}}", "additionalProperties.not", STATUS_UNSUPPORTED},
	    {"{\"anyOf\":[true],\"minLength\":1}", "anyOf", STATUS_UNSUPPORTED},
	    {"{\"$ref\":\"#\",\"enum\":[1]}", "enum", STATUS_UNSUPPORTED},
	    {"{\"type\":\"text\"}", "type", STATUS_INVALID},
	    {"{\"items\":3}", "items", STATUS_INVALID},
	    {"{\"minItems\":-1}", "minItems", STATUS_INVALID},
	    {"{\"minItems\":2,\"maxItems\":1}", "maxItems", STATUS_INVALID},
	    {"{\"$ref\":\"#/$defs/x\"}", "$ref", STATUS_INVALID},
	    {"{\"$ref\":\"http://a/b\"}", "$ref", STATUS_INVALID},
	    {"{\"required\":[1]}", "required", STATUS_INVALID},
	    {"{\"enum\":[]}", "", STATUS_INVALID},
	    {"{\"enum\":[1],\"type\":\"string\"}", "", STATUS_INVALID},
	    {"{\"$ref\":\"#\"}", "", STATUS_INVALID},
	    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "", STATUS_INVALID},
	    {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "", STATUS_INVALID},
	    {"{\"required\":[\"a\"],\"additionalProperties\":false}", "", STATUS_INVALID},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *schema = json_loads(cases[i].schema, 0, NULL);
		error err = ERROR_INIT;
		grammar *g;
		const status s = json_grammar_new(&g, schema, &err);
		if (s != cases[i].status || strcmp(err.param, cases[i].param) != 0)
			fail_msg("%s: %s \"%s\"", cases[i].schema, status_name(s), err.param);
		assert_null(g);
		assert_true(err.message[0]);
		json_decref(schema);
	}
}

static void schemas_that_are_too_large_are_refused(void **state)
{
	(void)state;
	json_t *schema = json_true();
	error err = ERROR_INIT;
	grammar *g;
	for (int i = 0; i < 100; i++)
		schema = json_pack("{s:o}", "items", schema);
	assert_int_equal(json_grammar_new(&g, schema, &err), STATUS_TOO_LARGE);
	json_decref(schema);
	json_t *properties = json_object();
	for (int i = 0; i < 1000; i++) {
		char name[128];
		snprintf(name, sizeof name, "%03d-%0100d", i, i);
		json_object_set_new(properties, name, json_object());
	}
	err = (error)ERROR_INIT;
	schema = json_pack("{s:o, s:b}", "properties", properties, "additionalProperties", 1);
	assert_int_equal(json_grammar_new(&g, schema, &err),
	                 STATUS_TOO_LARGE); /* the names of other properties need 100,000 nodes */
	json_object_del(schema, "additionalProperties");
	assert_int_equal(json_grammar_new(&g, schema, &err), STATUS_OK);
	grammar_free(g);
	json_decref(schema);
}

/* Optional properties whose names have a common beginning. */
static void many_properties_may_begin_alike(void **state)
{
	(void)state;
	const vocabulary *v = &vocabularies[0];
	grammar *g;
	constraint *c;
	json_t *schema = json_pack("{s:{}, s:b}", "properties", "additionalProperties", 0);
	for (int i = 0; i < 300; i++) {
		char name[16];
		snprintf(name, sizeof name, "name%d", i);
		json_object_set_new(json_object_get(schema, "properties"), name, json_object());
	}
	assert_int_equal(json_grammar_new(&g, schema, NULL), STATUS_OK);
	assert_int_equal(constraint_new(&c, g, v->trie), STATUS_OK);
	assert_true(accepts(c, "{\"name3\":1,\"name27\":[2],\"name299\":null}"));
	assert_false(accepts(c, "{\"name300\":1}") || accepts(c, "{\"name4\":1,\"name3\":1}"));
	constraint_free(c);
	json_decref(schema);
}

static status next_words(void *context, const char **text, size_t *bytes, error *err)
{
	static char words[4096];
	int *left = context;
	(void)err;
	*text = (*left)-- > 0 ? words : NULL;
	*bytes = sizeof words;
	for (uint64_t i = 0; i < sizeof words; i++)
		words[i] = "abcdefghijklmnop    "[philox(9, 6, (uint64_t)*left, i).word[0] % 20];
	return STATUS_OK;
}

/* Strings that differ in their largest lengths: each alternative tries all tokens of a vocabulary that is not small. */
static void alternatives_that_take_too_long_are_refused(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i}", "type", "bpe", "vocab_size", 8000), *all = json_array();
	json_t *schema = json_pack("{s:O}", "anyOf", all);
	int left = 60;
	vocabulary v;
	constrained_text *x;
	error err = ERROR_INIT;
	if (tokenizer_train(&v.tokenizer, spec, &(text_source){next_words, &left}, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(token_trie_new(&v.trie, v.tokenizer, 8000), STATUS_OK);
	for (int n = 16; n <= 256; n += 240) {
		grammar *g;
		constraint *c;
		char quote;
		int32_t id = 0;
		while (json_array_size(all) < (size_t)n)
			json_array_append_new(all, json_pack("{s:i}", "maxLength", 5000 + (int)json_array_size(all)));
		while (tokenizer_token_bytes(v.tokenizer, id, &quote, 1) != 1 || quote != '"')
			id++;
		assert_int_equal(json_grammar_new(&g, schema, NULL), STATUS_OK);
		assert_int_equal(constraint_new(&c, g, v.trie), STATUS_OK);
		assert_int_equal(constrained_text_new(&x, c, NULL, 0, false), STATUS_OK);
		assert_int_equal(constrained_text_push(x, id), n == 16 ? STATUS_OK : STATUS_TOO_LARGE);
		constrained_text_free(x);
		constraint_free(c);
	}
	token_trie_free(v.trie);
	tokenizer_free(v.tokenizer);
	json_decref(spec);
	json_decref(all);
	json_decref(schema);
}

/* --- plain texts -------------------------------------------------------------------------------------- */

static constraint *plain_constraint(const vocabulary *v, const char *gbnf, const char *regex)
{
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	if ((gbnf ? gbnf_grammar_new(&g, gbnf, strlen(gbnf), &err)
	          : regex_grammar_new(&g, regex, strlen(regex), &err)) != STATUS_OK)
		fail_msg("%s: %s", gbnf ? gbnf : regex, error_message(&err));
	assert_int_equal(constraint_new(&c, g, v->trie), STATUS_OK);
	return c;
}

/* Texts of 2 to 4 of these characters in quotation marks, with tokens that are parts of characters. */
static void tokens_may_be_parts_of_characters(void **state)
{
	(void)state;
	static const char *const grammars[][2] = {
	    {"root ::= \"\\\"\" any{2,4} \"\\\"\"\nany ::= [\u00e9\u20ac] | \"\\U0001f600\"", NULL},
	    {"root ::= [\"] rest\nrest ::= [\u00e9\u20ac\xf0\x9f\x98\x80] next\nnext ::= "
	     "[^\\x00-\\xe8\\xea-\\u20ab\\u20ad-\\U0001f5ff"
	     "\\U0001f601-\\U0010ffff] ([\u00e9\u20ac\xf0\x9f\x98\x80]{0,2} | next{0}) \"\\x22\"",
	     NULL},
	    {NULL, "\"[\u00e9\u20ac\xf0\x9f\x98\x80]{2,4}\""}};
	for (uint64_t seed = 0; seed < 120; seed++) {
		const vocabulary *v = &vocabularies[seed % 2];
		constraint *c = plain_constraint(v, grammars[seed % 3][0], grammars[seed % 3][1]);
		constrained_text *x = text_of(c);
		static written w;
		memset(&w, 0, sizeof w);
		while (!constrained_text_done(x)) {
			assert_true(constrained_text_continues(x) && w.n < 30);
			if (seed < 6)
				assert_mask(c, x, v, &w);
			const int32_t token = choose(x, v, &w, seed, false);
			assert_false(tokenizer_ends(v->tokenizer, token));
			append(&w, v, token);
			assert_int_equal(constrained_text_push(x, token), STATUS_OK);
		}
		size_t n = 0;
		const char *p = w.text + 1;
		for (; *p != '"'; n++) {
			static const char *const characters[] = {"\u00e9", "\u20ac", "\xf0\x9f\x98\x80"};
			int k = 0;
			while (k < 3 && strncmp(p, characters[k], strlen(characters[k])) != 0)
				k++;
			assert_true(k < 3);
			p += strlen(characters[k]);
		}
		assert_true(n >= 2 && n <= 4 && w.text[0] == '"' && !p[1]);
		constrained_text_free(x);
		constraint_free(c);
	}
}

static void a_text_may_end_where_it_is_whole(void **state)
{
	(void)state;
	const vocabulary *v = &vocabularies[0];
	const int32_t end = tokenizer_end(v->tokenizer);
	static const struct {
		const char *gbnf, *regex, *text;
		bool ends[6], done; /* ends: after each byte */
	} cases[] = {{NULL, "a|abc?", "abc", {false, true, true, true}, true},
	             {NULL, "(ab)*", "abab", {true, false, true, false, true}, false},
	             {NULL, "", "", {true}, true},
	             {"root ::= \"a\" root? \"b\"?", NULL, "aab", {false, true, true, true}, false},
	             {"root ::= (\"a\"? \"b\"?)*", NULL, "bab", {true, true, true, true}, false},
	             {"root ::= \"\" | \"x\" root \"y\"", NULL, "xxyy", {true, false, false, false, true}, true}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		constraint *c = plain_constraint(v, cases[i].gbnf, cases[i].regex);
		constrained_text *x = text_of(c);
		for (size_t k = 0; k <= strlen(cases[i].text); k++) {
			assert_int_equal(is_allowed(x, end), cases[i].ends[k]);
			if (cases[i].text[k])
				assert_int_equal(constrained_text_push(x, 3 + (unsigned char)cases[i].text[k]),
				                 STATUS_OK);
		}
		assert_int_equal(constrained_text_done(x), cases[i].done);
		assert_int_equal(constrained_text_push(x, 3 + 'z'), STATUS_INVALID);
		constrained_text_free(x);
		constraint_free(c);
	}
}

/* Push a byte until it fails or there are `most`. */
static status push_many(constraint *c, char byte, int most, int *pushed)
{
	constrained_text *x;
	status s = constrained_text_new(&x, c, NULL, 0, false);
	for (*pushed = 0; s == STATUS_OK && *pushed < most; ++*pushed)
		s = constrained_text_push(x, 3 + (unsigned char)byte);
	constrained_text_free(x);
	return s;
}

/* Grammars whose stacks multiply or get deep: they are followed as far as the bounds allow. */
static void ambiguous_grammars_are_bounded(void **state)
{
	(void)state;
	static const struct {
		const char *gbnf;
		int most;
		status ends;
	} cases[] = {
	    {"root ::= \"a\" (root \"x\"? | root \"y\"?)?", 100, STATUS_TOO_LARGE},
	    {"root ::= \"a\" root? \"b\"?", 20000, STATUS_TOO_LARGE},
	    {"root ::= \"a\" root \"b\" | \"c\"", 3000, STATUS_OK},
	    {"root ::= \"a\" root?", 3000, STATUS_OK},
	    {"root ::= r | r\nr ::= s | s\ns ::= t | t\nt ::= \"a\" root? root?", 1000, STATUS_TOO_LARGE},
	    {"root ::= x* \"b\"\nx ::= \"a\" | \"aa\" | [a]{3} | \"(\" root \")\"", 3000, STATUS_OK},
	    {"root ::= [ab]* \"a\" [ab]{3000}", 400, STATUS_OK},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		constraint *c = plain_constraint(&vocabularies[0], cases[i].gbnf, NULL);
		int pushed;
		const status s = push_many(c, 'a', cases[i].most, &pushed);
		if (s != cases[i].ends)
			fail_msg("%s: %s after %d", cases[i].gbnf, status_name(s), pushed);
		constraint_free(c);
	}
}

/* 2^18 ways to a node, each through a hundred repetitions. */
static void an_expansion_is_bounded(void **state)
{
	(void)state;
	char text[2048], *at = text + sprintf(text, "root ::= r1 | r1\n");
	for (int i = 1; i < 18; i++)
		at += sprintf(at, "r%d ::= r%d | r%d\n", i, i + 1, i + 1);
	at += sprintf(at, "r18 ::= (\"x\" root | \"x\")");
	for (int i = 0; i < 100; i++)
		at += sprintf(at, "{1}");
	grammar *g;
	grammar_stacks stacks = {0};
	bool ends = false;
	assert_int_equal(gbnf_grammar_new(&g, text, strlen(text), NULL), STATUS_OK);
	const int32_t top = grammar_push(&stacks, grammar_root(g), 0, FRAME_NONE);
	assert_int_equal(grammar_expand(g, &stacks, top, &ends), STATUS_TOO_LARGE);
	assert_true(stacks.work <= GRAMMAR_MOST_WORK + 1);
	grammar_stacks_fini(&stacks);
	grammar_free(g);
}

/* --- memory ------------------------------------------------------------------------------------------- */

static status write_something(const json_t *schema, const vocabulary *v)
{
	grammar *g = NULL;
	token_trie *trie = NULL;
	constraint *c = NULL;
	constrained_text *x = NULL;
	error err = ERROR_INIT;
	status s = token_trie_new(&trie, v->tokenizer, tokenizer_size(v->tokenizer));
	if (s == STATUS_OK)
		s = json_grammar_new(&g, schema, &err);
	if (s == STATUS_OK)
		s = constraint_new(&c, g, trie);
	if (s == STATUS_OK)
		s = constrained_text_new(&x, c, NULL, 0, false);
	for (const char *p = "{\"name\":\"x\",\"children\":[{\"n"; s == STATUS_OK && *p; p++)
		s = constrained_text_push(x, 3 + (unsigned char)*p);
	constrained_text_free(x);
	constraint_free(c);
	token_trie_free(trie);
	return s;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	json_t *schema = json_loads(schemas[3], 0, NULL);
	status s = STATUS_NOMEM;
	int64_t n = 0;
	for (; s == STATUS_NOMEM; n++) {
		allocations_fail(n, true);
		s = write_something(schema, &vocabularies[0]);
		if (s == STATUS_OK && allocations_refused())
			s = STATUS_NOMEM; /* jansson retries with a smaller block */
		allocations_limit(-1);
	}
	assert_int_equal(s, STATUS_OK);
	assert_true(n > 50);
	json_decref(schema);
}

static status make_plain(int kind, const json_t *listed)
{
	static const char gbnf[] = "root ::= \"a\" root [b-\u20ac] | [x] [y]? | (\"ab\" | \"c\"){2,3}",
	                  regex[] = "^(?=a)[a-z\u20ac]*";
	grammar *g = NULL;
	error err = ERROR_INIT;
	const status s = kind == 0   ? gbnf_grammar_new(&g, gbnf, strlen(gbnf), &err)
	                 : kind == 1 ? regex_grammar_new(&g, regex, strlen(regex), &err)
	                             : choice_grammar_new(&g, listed, &err);
	grammar_free(g);
	return s;
}

static void every_allocation_of_a_plain_grammar_may_fail(void **state)
{
	(void)state;
	json_t *listed = json_pack("[s, s, s]", "a", "ab", "\u20ac");
	for (int kind = 0; kind < 3; kind++) {
		status s = STATUS_NOMEM;
		int64_t n = 0;
		for (; s == STATUS_NOMEM; n++) {
			allocations_fail(n, true);
			s = make_plain(kind, listed);
			allocations_limit(-1);
		}
		assert_int_equal(s, STATUS_OK);
		assert_true(n > 8);
	}
	json_decref(listed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_text_of_allowed_tokens_ends_and_fits_its_schema),
	    cmocka_unit_test(json_follows_the_standard),
	    cmocka_unit_test(the_text_ends_when_no_token_can_follow),
	    cmocka_unit_test(unsupported_keywords_are_refused_by_their_path),
	    cmocka_unit_test(schemas_that_are_too_large_are_refused),
	    cmocka_unit_test(many_properties_may_begin_alike),
	    cmocka_unit_test(alternatives_that_take_too_long_are_refused),
	    cmocka_unit_test(tokens_may_be_parts_of_characters),
	    cmocka_unit_test(a_text_may_end_where_it_is_whole),
	    cmocka_unit_test(ambiguous_grammars_are_bounded),
	    cmocka_unit_test(an_expansion_is_bounded),
	    cmocka_unit_test(every_allocation_may_fail),
	    cmocka_unit_test(every_allocation_of_a_plain_grammar_may_fail),
	};
	return cmocka_run_group_tests(tests, make_vocabularies, free_vocabularies);
}
