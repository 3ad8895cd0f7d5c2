/* Keywords of JSON Schema and the texts that each one allows. Texts are tried byte by byte, without a constraint. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/clock.h"
#include "engine/base/philox.h"
#include "engine/text/grammar/json_grammar.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/grammar_reader.h"

static grammar *grammar_of(const char *text)
{
	error err = ERROR_INIT;
	grammar *g;
	json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
	assert_non_null(schema);
	if (json_grammar_new(&g, schema, &err) != STATUS_OK)
		fail_msg("%s: %s: %s", text, err.param, error_message(&err));
	json_decref(schema);
	return g;
}

static bool accepts(const grammar *g, const char *text)
{
	return grammar_reader_accepts(g, text, strlen(text));
}

/* --- one keyword after the other -------------------------------------------------------------------- */

typedef struct example {
	const char *schema, *good[8], *bad[8];
} example;

static const example examples[] = {
    /* compact */
    {"true", {"[1,2]", "{\"a\":1}"}, {" 1", "[1, 2]", "[ 1]", "{\"a\": 1}", "{\n}", "{\"a\":1, \"b\":2}"}},
    /* numbers */
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":17}",
     {"3", "9", "10", "17"},
     {"2", "18", "0", "-3", "3.0", "03", "170", ""}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-12,\"exclusiveMaximum\":3}",
     {"-11", "-1", "0", "2"},
     {"-12", "3", "-0", "-100", "12"}},
    {"{\"type\":\"integer\",\"multipleOf\":7}", {"0", "7", "-21", "700", "9999999999999996"}, {"1", "8", "-22", "7.0"}},
    {"{\"type\":\"integer\",\"multipleOf\":3600,\"minimum\":1,\"maximum\":20000}",
     {"3600", "18000"},
     {"0", "3601", "21600"}},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", {"0", "5", "-10"}, {"2", "25.0", "4"}},
    {"{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}",
     {"-9223372036854775808", "9223372036854775807", "0"},
     {"9223372036854775808", "-9223372036854775809"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "1.000", "0.00001"},
     {"1.01", "-0.1", "2", "1e0", "10", "1."}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.1", "0.00001", "7", "12.50"}, {"0", "0.0", "-1", "-0.1"}},
    {"{\"type\":\"number\",\"minimum\":-2.5,\"exclusiveMaximum\":-0.25}",
     {"-2.5", "-0.26", "-1", "-2.49"},
     {"-2.51", "-0.25", "-0.2", "0", "1", "-3"}},
    {"{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":10}",
     {"0.25", "1.5", "-3", "9.75", "10.00"},
     {"0.3", "10.25", "0.125"}},
    {"{\"type\":\"number\",\"maximum\":1e300}", {"999999999999999", "-1"}, {"1e3"}},
    {"{\"minimum\":1,\"exclusiveMinimum\":true,\"maximum\":2}", {"1.1", "2"}, {"1", "1.0", "\"1\""}},
    {"{\"type\":\"integer\",\"minimum\":4,\"exclusiveMinimum\":2}", {"4"}, {"3"}},
    /* strings */
    {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}[0-9]{3}$\"}",
     {"\"AB123\""},
     {"\"AB12\"", "\"AB1234\"", "\"ab123\"", "\"\"", "AB123"}},
    {"{\"pattern\":\"b+c\"}",
     {"\"bc\"", "\"abbbcd\"",
      "\"\xc3\xa9"
      "bc\\n\""},
     {"\"b\"", "\"\"", "\"b\\u0063\""}},
    {"{\"pattern\":\"^(foo|ba?r)*$\"}", {"\"\"", "\"foobr\"", "\"barfoo\""}, {"\"fo\"", "\"baar\""}},
    {"{\"pattern\":\"a$|^b\"}", {"\"xa\"", "\"bx\"", "\"a\""}, {"\"ax\"", "\"xb\"", "\"\""}},
    {"{\"pattern\":\"^.{2,3}$\",\"maxLength\":2}",
     {"\"\xc3\xa9\xe2\x82\xac\"", "\"\\\"\\\\\""},
     {"\"a\"", "\"abc\"", "\"a\\n\""}},
    {"{\"pattern\":\"^(?=.*[0-9])(?!.*x)[a-z0-9]+$\"}", {"\"a1\"", "\"1\""}, {"\"a\"", "\"x1\"", "\"1-\""}},
    {"{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
     {"\"1.5\"", "\"-007\"", "\".5\""},
     {"\"\"", "\"-.\"", "\"1e5\""}},
    {"{\"pattern\":\"^[^\\\\d\\\\s]\\\\w?$\"}",
     {"\"a_\"", "\"-\"", "\"\xc3\xa9\""},
     {"\"1\"", "\" \"", "\"a-\"", "\"\xd9\xa3\""}},
    {"{\"pattern\":\"^\\\\u{1F600}\\\\x41\\\\t\\\\/$\"}",
     {"\"\xf0\x9f\x98\x80"
      "A\\t/\""},
     {"\"\xf0\x9f\x98\x81"
      "A\\t/\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"0000-01-01\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.25+05:30\""},
     {"\"2024-01-31T24:00:00Z\"", "\"2024-01-31 00:00:00Z\"", "\"2024-01-31T00:00:00\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}", {"\"12:30:00Z\""}, {"\"12:30:00\"", "\"12:60:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"duration\"}",
     {"\"P3W\"", "\"P1Y2M3DT4H5M6S\"", "\"PT5M\""},
     {"\"P\"", "\"PT\"", "\"P1Y3D\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-42661417400F\""},
     {"\"123e4567-e89b-12d3-a456-4266141740\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", {"\"0.10.200.255\""}, {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::\"", "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1:2\""},
     {"\"1::2::3\"", "\":1\"", "\"1:2:3:4:5:6:7\""}},
    {"{\"type\":\"string\",\"format\":\"email\",\"minLength\":3}",
     {"\"a.b@c-d.org\""},
     {"\"a@b\"", "\"@c.org\"", "\"a.@c.org\""}},
    {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2083,\"minLength\":1}",
     {"\"https://a.org/b?c=d#e\""},
     {"\"a.org\"", "\"ftp://a.org\""}},
    {"{\"type\":\"string\",\"format\":\"binary\",\"maxLength\":2}", {"\"ab\""}, {"\"abc\""}},
    {"{\"type\":\"string\",\"format\":\"markdown\",\"maxLength\":2,\"x-order\":1}", {"\"*\""}, {"\"abc\"", "1"}},
    {"{\"type\":\"string\",\"contentMediaType\":\"application/json\",\"contentSchema\":{\"not\":{}},"
     "\"contentEncoding\":\"base64\"}",
     {"\"[1]\"", "\"\""},
     {"1"}},
    {"{\"type\":\"string\",\"format\":\"uri-reference\"}",
     {"\"a/b?c=d#e\"", "\"/a\"", "\"https://a.org/b\"", "\"\""},
     {"\"a b\"", "\"//\""}},
    {"{\"type\":\"string\",\"format\":\"uri-template\"}",
     {"\"https://a.org/u/{id}\""},
     {"\"https://a.org/{id\"", "\"/{id}\""}},
    {"{\"type\":\"string\",\"format\":\"json-pointer\"}", {"\"\"", "\"/a/0/b~1c\""}, {"\"a\"", "\"/a~2\""}},
    {"{\"type\":\"string\",\"format\":\"relative-json-pointer\"}",
     {"\"0\"", "\"2/a\"", "\"1#\""},
     {"\"/a\"", "\"01\""}},
    {"{\"type\":\"string\",\"format\":\"regex\"}",
     {"\"^[a-z]+\\\\d?$\"", "\"\"", "\"a-b\""},
     {"\"(\"", "\"a**\"", "\"[\"", "\"*\""}},
    {"{\"type\":\"integer\",\"format\":\"int32\"}", {"12"}, {"\"12\""}},
    /* arrays */
    {"{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"null\"}],\"items\":{\"type\":\"integer\"},\"minItems\":1}",
     {"[true]", "[true,null]", "[true,null,1,2]"},
     {"[]", "[null]", "[true,1]", "[true,null,null]"}},
    {"{\"items\":[{\"type\":\"boolean\"},{\"type\":\"null\"}],\"minItems\":2,\"maxItems\":2}",
     {"[true,null]"},
     {"[true]", "[true,null,1]", "[null,null]"}},
    {"{\"prefixItems\":[true,true],\"items\":false}", {"[]", "[1]", "[1,2]"}, {"[1,2,3]"}},
    {"{\"items\":{\"enum\":[\"x\",\"y\",1,1.0]},\"uniqueItems\":true,\"minItems\":2}",
     {"[\"x\",\"y\"]", "[\"y\",\"x\"]", "[1,\"y\",\"x\"]"},
     {"[\"x\"]", "[\"x\",\"x\"]", "[1,1.0]", "[\"x\",\"y\",1,\"x\"]"}},
    {"{\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":"
     "3}",
     {"[0,9]", "[2,5,7]"},
     {"[1]", "[1,1]", "[0,1,2,3]", "[10,11]"}},
    {"{\"items\":{\"type\":\"integer\",\"minimum\":0.0,\"maximum\":9.0},\"uniqueItems\":true,\"minItems\":2.0,"
     "\"maxItems\":3e0}",
     {"[0,9]", "[2,5,7]"},
     {"[1]", "[1,1]", "[0,1,2,3]", "[10,11]"}},
    {"{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
     {"[]", "[\"\",\"ab\",\"c\"]"},
     {"[\"a\",\"a\"]", "[\"\",\"\"]"}},
    {"{\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"},{\"enum\":[null,[1]]}]},\"uniqueItems\":"
     "true}",
     {"[]", "[-1,2,\"\",\"a\",null,[1]]", "[\"a\",null]"},
     {"[1,1]", "[\"a\",\"a\"]", "[null,null]", "[true]"}},
    {"{\"items\":{\"enum\":[[1],[1.0],{\"a\":2},{\"a\":2.0}]},\"uniqueItems\":true}",
     {"[[1],{\"a\":2}]"},
     {"[[1],[1.0]]", "[[1],[1]]"}},
    {"{\"items\":{\"$ref\":\"#/$defs/c\"},\"uniqueItems\":true,\"$defs\":{\"c\":{\"type\":\"boolean\"}}}",
     {"[false,true]", "[]"},
     {"[true,true]"}},
    /* objects */
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":\"1\"}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"propertyNames\":{\"enum\":[\"p\",\"q\"]},\"additionalProperties\":{\"type\":\"null\"}}",
     {"{}", "{\"q\":null}"},
     {"{\"r\":null}", "{\"p\":1}"}},
    {"{\"patternProperties\":{\"^k[0-9]$\":{\"type\":\"boolean\"}}}",
     {"{\"k1\":true,\"k2\":false}"},
     {"{\"k\":true}", "{\"k1\":1}"}},
    /* combined schemas */
    {"{\"allOf\":[{\"$ref\":\"#/$defs/B\"}],\"title\":\"t\",\"$defs\":{\"B\":{\"type\":\"boolean\"}}}",
     {"true"},
     {"1"}},
    {"{\"$ref\":\"#/$defs/List%5Bint%5D~1a\",\"$defs\":{\"List[int]/a\":{\"type\":\"null\"}}}", {"null"}, {"1"}},
    {"{\"const\":\"v\",\"enum\":[\"v\",\"w\"],\"type\":\"string\"}", {"\"v\""}, {"\"w\""}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1},{\"type\":\"null\"}]}",
     {"1", "\"a\"", "null"},
     {"true", "\"ab\""}},
    {"{\"enum\":[0.1,[0.1,1e-7,\"1.50\\\"1.50\"],3.0,-2.50,0.30000000000000004]}",
     {"0.1", "[0.1,1e-07,\"1.50\\\"1.50\"]", "3.0", "-2.5", "0.30000000000000004"},
     {"0.10000000000000001", "0", "3", "0.3"}},
    {"{\"type\":[\"integer\",\"null\"],\"minimum\":2}", {"2", "null"}, {"1"}},
    {"{\"properties\":{\"a\":{\"const\":1}}}", {"{\"a\":1}", "{}"}, {"{\"a\":1,\"b\":2}", "{\"b\":2}"}},
    {"{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":true}", {"{\"a\":1,\"b\":2}"}, {"{\"a\":2}"}},
    {"{\"discriminator\":{\"propertyName\":\"k\"},\"oneOf\":[{\"$ref\":\"#/$defs/C\"},{\"$ref\":\"#/$defs/"
     "D\"}],\"$defs\":{\"C\":{\"type\":\"object\","
     "\"properties\":{\"k\":{\"const\":\"c\"},\"x\":{\"type\":\"boolean\"}},\"required\":[\"x\"],"
     "\"additionalProperties\":false},\"D\":{\"type\":\"object\","
     "\"properties\":{\"k\":{\"enum\":[\"d\",\"e\"]}},\"additionalProperties\":false}}}",
     {"{\"k\":\"c\",\"x\":true}", "{\"k\":\"d\"}", "{\"k\":\"e\"}"},
     {"{\"x\":true}", "{}", "{\"k\":\"d\",\"x\":true}"}},
};

static void every_keyword_allows_the_texts_of_the_standard(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
		grammar *g = grammar_of(examples[i].schema);
		for (int k = 0; k < 8 && examples[i].good[k]; k++)
			if (!accepts(g, examples[i].good[k]))
				fail_msg("%s must be accepted by %s", examples[i].good[k], examples[i].schema);
		for (int k = 0; k < 8 && examples[i].bad[k]; k++)
			if (accepts(g, examples[i].bad[k]))
				fail_msg("%s must not be accepted by %s", examples[i].bad[k], examples[i].schema);
		grammar_free(g);
	}
}

/* --- random bounds ----------------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *at, uint32_t below)
{
	return philox(17, 3, 0, (*at)++).word[0] % below;
}

/* Bounds and numbers are in hundredths, so that all comparisons are of integers. */
static void number_bounds_are_exact(void **state)
{
	(void)state;
	uint64_t at = 0;
	int accepted = 0;
	for (int round = 0; round < 300; round++) {
		static const int steps[] = {1, 5, 10, 20, 25, 50, 75, 100, 250, 300, 975, 1000};
		const int low = (int)draw(&at, 4000) - 2000, high = low + (int)draw(&at, 3000),
		          step = steps[draw(&at, sizeof steps / sizeof *steps)];
		const bool integer = draw(&at, 2), above = draw(&at, 2), below = draw(&at, 2), divides = draw(&at, 2);
		char schema[256], divisor[64] = "";
		if (divides)
			snprintf(divisor, sizeof divisor, ",\"multipleOf\":%d.%02d", step / 100, step % 100);
		snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%.2f,\"%s\":%.2f%s}",
		         integer ? "integer" : "number", above ? "exclusiveMinimum" : "minimum", low / 100.0,
		         below ? "exclusiveMaximum" : "maximum", high / 100.0, divisor);
		json_t *parsed = json_loads(schema, 0, NULL);
		grammar *g = NULL;
		const status s = json_grammar_new(&g, parsed, NULL);
		json_decref(parsed);
		assert_true(s == STATUS_OK || s == STATUS_INVALID); /* STATUS_INVALID: no value fits */
		for (int i = 0; i < 40; i++) {
			const int x = integer ? 100 * ((int)draw(&at, 60) - 30) : (int)draw(&at, 6000) - 3000;
			const bool fits = (above ? x > low : x >= low) && (below ? x < high : x <= high) &&
			                  (!divides || x % step == 0);
			char text[32];
			snprintf(text, sizeof text, integer ? "%.0f" : "%.2f", x / 100.0);
			for (size_t n = strlen(text); strchr(text, '.') && strchr("0.", text[n - 1]); n--)
				text[n - 1] = '\0'; /* multiples have no more decimals than their divisor */
			if (x == 0)
				strcpy(text, "0");
			if (s == STATUS_OK ? accepts(g, text) != fits : fits)
				fail_msg("%s: %s must%s be accepted", schema, text, fits ? "" : " not");
			accepted += fits;
		}
		grammar_free(g);
	}
	assert_true(accepted > 500);
}

/* --- refusals ------------------------------------------------------------------------------------------ */

static void unsupported_schemas_are_refused_by_their_path(void **state)
{
	(void)state;
	static const struct {
		const char *schema, *param;
		status status;
	} cases[] = {
	    {"{\"pattern\":\"a(?=b)\"}", "pattern", STATUS_UNSUPPORTED},
	    {"{\"pattern\":\"(a)\\\\1\"}", "pattern", STATUS_UNSUPPORTED},
	    {"{\"pattern\":\"\\\\bword\"}", "pattern", STATUS_UNSUPPORTED},
	    {"{\"pattern\":\"\\\\p{L}\"}", "pattern", STATUS_UNSUPPORTED},
	    {"{\"pattern\":\"(a\"}", "pattern", STATUS_INVALID},
	    {"{\"pattern\":\"a{3,2}\"}", "pattern", STATUS_INVALID},
	    {"{\"pattern\":\"[z-a]\"}", "pattern", STATUS_INVALID},
	    {"{\"pattern\":\"*\"}", "pattern", STATUS_INVALID},
	    {"{\"pattern\":3}", "pattern", STATUS_INVALID},
	    {"{\"properties\":{\"a\":{\"format\":3}}}", "properties.a.format", STATUS_INVALID},
	    {"{\"uniqueItems\":true,\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"enum\":[1]}]}}", "uniqueItems",
	     STATUS_UNSUPPORTED},
	    {"{\"minimum\":\"1\"}", "minimum", STATUS_INVALID},
	    {"{\"multipleOf\":0}", "multipleOf", STATUS_INVALID},
	    {"{\"allOf\":[true,true]}", "allOf", STATUS_UNSUPPORTED},
	    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf", STATUS_UNSUPPORTED},
	    {"{\"oneOf\":[{\"minLength\":3},{\"type\":\"integer\"}]}", "oneOf", STATUS_UNSUPPORTED},
	    {"{\"discriminator\":{\"propertyName\":\"k\"}}", "discriminator", STATUS_UNSUPPORTED},
	    {"{\"uniqueItems\":true}", "uniqueItems", STATUS_UNSUPPORTED},
	    {"{\"uniqueItems\":true,\"items\":{\"type\":\"array\"}}", "uniqueItems", STATUS_UNSUPPORTED},
	    {"{\"uniqueItems\":true,\"items\":{\"enum\":[1],\"not\":{}}}", "items.not", STATUS_UNSUPPORTED},
	    {"{\"type\":\"object\",\"minProperties\":2}", "minProperties", STATUS_UNSUPPORTED},
	    {"{\"propertyNames\":{\"type\":\"integer\"}}", "propertyNames", STATUS_UNSUPPORTED},
	    {"{\"enum\":[1],\"minimum\":1}", "enum", STATUS_UNSUPPORTED},
	    {"{\"if\":true}", "if", STATUS_UNSUPPORTED},
	    {"{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "", STATUS_INVALID},
	    {"{\"pattern\":\"^a$\",\"minLength\":2}", "", STATUS_INVALID},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *schema = json_loads(cases[i].schema, 0, NULL);
		error err = ERROR_INIT;
		grammar *g;
		const status s = json_grammar_new(&g, schema, &err);
		if (s != cases[i].status || strcmp(err.param, cases[i].param) != 0 || !err.message[0])
			fail_msg("%s: %s \"%s\" %s", cases[i].schema, status_name(s), err.param, err.message);
		json_decref(schema);
	}
}

/* Each of these needs more states than allowed; the limits together keep the time short. */
static void hostile_schemas_are_refused_in_time(void **state)
{
	(void)state;
	static const char *const hostile[] = {
	    "{\"pattern\":\"(a|b)*a(a|b){30}\"}",
	    "{\"pattern\":\"^(((((a{100}){100}){100}){100}){100})$\"}",
	    "{\"pattern\":\"(.{0,500}x){50}\"}",
	    "{\"pattern\":\"(((()*)*){99999}){99999}b{99999}\"}",
	    "{\"type\":\"integer\",\"multipleOf\":99991}",
	    "{\"pattern\":\"^[a-z]+(-[a-z]+)*$\",\"minLength\":30000,\"maxLength\":90000}"};
	for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
		json_t *one = json_loads(hostile[i], 0, NULL), *schema = json_pack("{s:{}}", "properties");
		error err = ERROR_INIT;
		grammar *g;
		for (int k = 0; k < 100; k++) {
			char name[16];
			snprintf(name, sizeof name, "p%d", k);
			json_object_set(json_object_get(schema, "properties"), name, one);
		}
		const uint64_t before = clock_ns();
		const status s = json_grammar_new(&g, schema, &err);
		const double seconds = (double)(clock_ns() - before) / 1e9;
		if (s != STATUS_TOO_LARGE || seconds > 5)
			fail_msg("%s: %s after %.1f s", hostile[i], status_name(s), seconds);
		json_decref(schema);
		json_decref(one);
	}
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof examples / sizeof *examples; i += 3) {
		json_t *schema = json_loads(examples[i].schema, JSON_DECODE_ANY, NULL);
		status s = STATUS_NOMEM;
		for (int64_t n = 0; s == STATUS_NOMEM; n++) {
			grammar *g = NULL;
			allocations_fail(n, true);
			s = json_grammar_new(&g, schema, NULL);
			if (s == STATUS_OK && allocations_refused())
				s = STATUS_NOMEM; /* jansson retries with a smaller block */
			allocations_limit(-1);
			grammar_free(g);
		}
		if (s != STATUS_OK)
			fail_msg("%s: %s", examples[i].schema, status_name(s));
		json_decref(schema);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_keyword_allows_the_texts_of_the_standard),
	    cmocka_unit_test(number_bounds_are_exact),
	    cmocka_unit_test(unsupported_schemas_are_refused_by_their_path),
	    cmocka_unit_test(hostile_schemas_are_refused_in_time),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
