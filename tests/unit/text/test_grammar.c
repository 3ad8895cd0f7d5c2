/* Texts constrained by the grammar of a JSON Schema: the tokens that may come next. */
#include "tests/unit/support/allocations.h"
#include "tests/unit/text/grammar.h"

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
	    {"{\"minItems\":1.5}", "minItems", STATUS_INVALID},
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
	assert_int_equal(token_trie_new(&v.trie, v.tokenizer, 8000, false), STATUS_OK);
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

/* --- memory ------------------------------------------------------------------------------------------- */

static status write_something(const json_t *schema, const vocabulary *v)
{
	grammar *g = NULL;
	token_trie *trie = NULL;
	constraint *c = NULL;
	constrained_text *x = NULL;
	error err = ERROR_INIT;
	status s = token_trie_new(&trie, v->tokenizer, tokenizer_size(v->tokenizer), false);
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
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, make_vocabularies, free_vocabularies);
}
