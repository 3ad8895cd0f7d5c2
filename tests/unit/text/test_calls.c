/* Answers that call functions: their grammar, and their text and calls as they stream. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/call_reader.h"
#include "engine/text/grammar/call_grammar.h"
#include "tests/unit/support/grammar_reader.h"

static const chat_call_form hermes = {
    .lead = "", .open = "<tool_call>\n", .close = "\n</tool_call>", .key = "arguments", .between = "\n", .stop = ""};
static const chat_call_form llama = {
    .lead = "", .open = "", .close = "", .key = "parameters", .between = "", .stop = "", .single = true};
static const chat_call_form plain = {.lead = " ",
                                     .open = "<tool_call>",
                                     .close = "</tool_call>",
                                     .key = "arguments",
                                     .between = "\n",
                                     .stop = "\nTool:"};
static const chat_call_form tool_use = {.lead = "",
                                        .open = "<tool_call>\n",
                                        .close = "\n</tool_call>",
                                        .key = "arguments",
                                        .between = "\n",
                                        .stop = "",
                                        .first = true};
static const chat_call_form mistral = {.lead = "",
                                       .open = "[TOOL_CALLS] [",
                                       .close = "",
                                       .key = "arguments",
                                       .between = ", ",
                                       .stop = "",
                                       .first = true,
                                       .array = true,
                                       .end = "]",
                                       .short_ids = true};

static const char *const user_stop[] = {"\nUser:", "\nTool:", "aab"};

static const char weather[] = "[{\"function\": {\"name\": \"now\"}}, {\"function\": {\"name\": \"weather\", "
                              "\"parameters\": {\"type\": \"object\", "
                              "\"properties\": {\"city\": {\"enum\": [\"Bern\", \"Oslo\"]}, \"days\": {\"type\": "
                              "\"array\", \"items\": {\"type\": "
                              "\"integer\"}}}, \"required\": [\"city\"]}}}]";

static json_t *parse(const char *text)
{
	json_t *json = json_loads(text, 0, NULL);
	assert_non_null(json);
	return json;
}

/* --- the grammar ------------------------------------------------------------------------------------- */

static grammar *grammar_of(const chat_call_form *form, const char *tools_text, call_choice choice, bool parallel)
{
	error err = ERROR_INIT;
	grammar *g;
	json_t *tools = parse(tools_text);
	const call_rules rules = {.form = *form,
	                          .tools = tools,
	                          .choice = choice,
	                          .parallel = parallel,
	                          .stops = user_stop,
	                          .n_stops = form == &plain ? 3 : 0};
	if (call_grammar_new(&g, &rules, &err) != STATUS_OK)
		fail_msg("%s: %s", err.param, error_message(&err));
	json_decref(tools);
	return g;
}

/* The answer fits as a whole, or (whole false) is the beginning of one. */
static bool fits(const grammar *g, const char *answer, bool whole)
{
	static grammar_reader r;
	byte_set bytes;
	bool ends = false, good = true;
	grammar_reader_start(&r, g);
	for (const char *p = answer; *p && good; p++)
		good = grammar_reader_push(&r, (unsigned char)*p);
	if (good)
		grammar_reader_next(&r, &bytes, &ends);
	grammar_reader_fini(&r);
	return whole ? good && ends : good;
}

#define NOW "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"
#define BERN "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": [1, 2]}}\n</tool_call>"

static void a_text_is_free_up_to_the_mark_of_a_call(void **state)
{
	(void)state;
	grammar *g = grammar_of(&hermes, weather, CALLS_AUTO, true);
	assert_true(fits(g, "", true));
	assert_true(fits(g, "any <tool> text <tool_cal <<tool_call", true));
	assert_true(fits(g, "\xff\xfe <tool_", true));
	assert_true(fits(g, NOW, true));
	assert_true(fits(g, "x\n" NOW "\n" BERN, true));
	assert_true(fits(g, "<<tool_call>" /* the mark */, false));
	assert_false(fits(g, "<tool_call>", true));
	assert_false(fits(g, "<tool_call>x", false));
	assert_false(fits(g, NOW "x", false));
	assert_false(fits(g, "<tool_call>\n{\"name\": \"later", false));
	assert_false(fits(g, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}", false));
	assert_false(fits(g, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome", false));
	grammar_free(g);
}

static void a_choice_decides_whether_and_how_often_functions_are_called(void **state)
{
	(void)state;
	grammar *g = grammar_of(&hermes, weather, CALLS_AUTO, false);
	assert_true(fits(g, "x" NOW, true));
	assert_false(fits(g, NOW "\n", false));
	grammar_free(g);
	g = grammar_of(&hermes, weather, CALLS_REQUIRED, true);
	assert_true(fits(g, NOW "\n" NOW "\n" NOW, true));
	assert_false(fits(g, "", true));
	assert_false(fits(g, "x", false));
	char many[CALL_GRAMMAR_MOST * sizeof NOW + 64] = NOW;
	for (int i = 1; i < CALL_GRAMMAR_MOST; i++)
		strcat(many, "\n" NOW);
	assert_true(fits(g, many, true));
	strcat(many, "\n");
	assert_false(fits(g, many, false));
	grammar_free(g);
	g = grammar_of(&hermes, weather, CALLS_NONE, true);
	assert_true(fits(g, "text <tool_call", true));
	assert_false(fits(g, "text <tool_call>", false));
	grammar_free(g);
	g = grammar_of(&llama, weather, CALLS_AUTO, true);
	assert_true(fits(g, "{\"name\": \"now\", \"parameters\": {}}", true));
	assert_true(fits(g, " {\"name\": \"n", true));
	assert_true(fits(g, "{\"name\":", true));
	assert_false(fits(g, "{\"name\": \"x", false));
	assert_false(fits(g, "{\"name\": \"now\", \"parameters\": {}}x", false));
	grammar_free(g);
	g = grammar_of(&plain, weather, CALLS_REQUIRED, true);
	assert_true(fits(g, " <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", true));
	assert_true(fits(g, " <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\nTool:", true));
	assert_false(fits(g, " <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\nTool: ", false));
	grammar_free(g);
	g = grammar_of(&plain, weather, CALLS_AUTO, true);
	assert_true(fits(g, " hi\nUser:", true));
	assert_false(fits(g, " hi\nUser: ", false));
	assert_true(fits(g, "aaab", true));
	assert_false(fits(g, "aaab ", false));
	grammar_free(g);
}

static status refusal(const call_rules *rules, error *err)
{
	grammar *g;
	*err = (error)ERROR_INIT;
	const status s = call_grammar_new(&g, rules, err);
	grammar_free(g);
	return s;
}

static void functions_that_cannot_be_called_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *parameters, *param;
		status status;
	} cases[] = {
	    {"{\"type\": \"string\"}", "tools[1].function.parameters.type", STATUS_INVALID},
	    {"{\"anyOf\": []}", "tools[1].function.parameters.type", STATUS_INVALID},
	    {"{\"type\": \"object\", \"if\": {}}", "tools[1].function.parameters.if", STATUS_UNSUPPORTED},
	    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"x\"}}}",
	     "tools[1].function.parameters.properties.a.type", STATUS_INVALID},
	    {"{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": []}}, \"required\": [\"a\"]}",
	     "tools[1].function.parameters", STATUS_INVALID},
	};
	error err;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s, s:o}}]", "function", "name", "f", "function", "name",
		                          "g", "parameters", parse(cases[i].parameters));
		call_rules rules = {.form = hermes, .tools = tools, .choice = CALLS_AUTO};
		assert_int_equal(refusal(&rules, &err), cases[i].status);
		assert_string_equal(err.param, cases[i].param);
		rules.function = "f";
		assert_int_equal(refusal(&rules, &err), STATUS_OK);
		rules.function = "h";
		assert_int_equal(refusal(&rules, &err), STATUS_INVALID);
		assert_string_equal(err.param, "tool_choice");
		json_decref(tools);
	}
}

/* Every function has a large grammar of its own; together they are too large. */
static void hostile_functions_are_bounded_together(void **state)
{
	(void)state;
	json_t *tools = json_array(), *deep = parse("{\"type\": \"integer\"}");
	error err;
	for (int i = 0; i < 80; i++)
		deep = json_pack("{s:s, s:{s:o}}", "type", "object", "properties", "p", deep);
	json_array_append_new(tools, json_pack("{s:{s:s, s:o}}", "function", "name", "f", "parameters", deep));
	call_rules rules = {.form = hermes, .tools = tools, .choice = CALLS_AUTO};
	assert_int_equal(refusal(&rules, &err), STATUS_TOO_LARGE);
	assert_int_equal(strncmp(err.param, "tools[0].function.parameters.", 29), 0);
	json_array_clear(tools);
	for (int i = 0; i < 128; i++) {
		char name[16];
		json_t *properties = json_object();
		for (int k = 0; k < 200; k++) {
			snprintf(name, sizeof name, "p%d", k);
			json_object_set_new(properties, name, parse("{\"type\": \"boolean\"}"));
		}
		snprintf(name, sizeof name, "f%d", i);
		json_array_append_new(tools, json_pack("{s:{s:s, s:{s:s, s:o}}}", "function", "name", name,
		                                       "parameters", "type", "object", "properties", properties));
	}
	if (refusal(&rules, &err) != STATUS_TOO_LARGE)
		fail_msg("%s: %s", err.param, err.message);
	assert_string_equal(err.param, "tools");
	json_decref(tools);
}

/* --- the reader --------------------------------------------------------------------------------------- */

/* Text and calls of an answer that was cut at some bytes. */
typedef struct answer {
	char text[512];
	json_t *calls; /* [{"name", "arguments"}] */
	bool called;
} answer;

static void join(answer *a, const json_t *deltas)
{
	size_t i;
	json_t *delta;
	json_array_foreach(deltas, i, delta)
	{
		const size_t index = (size_t)json_integer_value(json_object_get(delta, "index"));
		json_t *name = json_object_get(delta, "name"), *more = json_object_get(delta, "arguments");
		char joined[512];
		if (name) {
			assert_int_equal(json_array_size(a->calls), index);
			json_array_append_new(a->calls, json_pack("{s:O, s:s}", "name", name, "arguments", ""));
		}
		json_t *call = json_array_get(a->calls, index);
		assert_non_null(call);
		snprintf(joined, sizeof joined, "%s%s", json_string_value(json_object_get(call, "arguments")),
		         more ? json_string_value(more) : "");
		json_object_set_new(call, "arguments", json_string(joined));
	}
}

typedef struct reading {
	const chat_call_form *form;
	call_choice choice;
	const char *const *stops;
	int n_stops;
} reading;

static answer read_cut(const reading *how, const char *words, size_t first, size_t second)
{
	call_reader *r;
	answer a = {.calls = json_array()};
	const size_t bytes = strlen(words), cuts[4] = {0, first, second, bytes};
	assert_int_equal(call_reader_new(&r, how->form, how->choice, how->stops, how->n_stops, NULL), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		const char *text;
		size_t n;
		json_t *calls;
		assert_int_equal(call_reader_push(r, words + cuts[i], cuts[i + 1] - cuts[i], i == 2, &text, &n, &calls),
		                 STATUS_OK);
		strncat(a.text, text, n);
		join(&a, calls);
		json_decref(calls);
	}
	a.called = call_reader_called(r);
	call_reader_free(r);
	return a;
}

static void assert_reads_so(const reading *how, const char *words, const char *text, const char *calls)
{
	const size_t bytes = strlen(words);
	json_t *expected = parse(calls);
	for (size_t i = 0; i <= bytes; i++)
		for (size_t k = i; k <= bytes; k++) {
			answer a = read_cut(how, words, i, k);
			if (strcmp(a.text, text) != 0 || !json_equal(a.calls, expected) ||
			    a.called != (json_array_size(expected) > 0))
				fail_msg("%s, cut at %zu and %zu: %s and %s", words, i, k, a.text,
				         json_dumps(a.calls, 0));
			json_decref(a.calls);
		}
	json_decref(expected);
}

static void assert_reads(const chat_call_form *form, call_choice choice, const char *words, const char *text,
                         const char *calls)
{
	assert_reads_so(&(reading){form, choice, user_stop, 3}, words, text, calls);
}

static void an_answer_is_divided_alike_wherever_it_is_cut(void **state)
{
	(void)state;
	assert_reads(&hermes, CALLS_AUTO, "Let me \t look.\n" NOW "\n" BERN, "Let me \t look.",
	             "[{\"name\": \"now\", \"arguments\": \"{}\"}, {\"name\": \"weather\", \"arguments\": "
	             "\"{\\\"city\\\": \\\"Bern\\\", \\\"days\\\": [1, 2]}\"}]");
	assert_reads(&hermes, CALLS_AUTO, "a <tool_cal \n <tool_call", "a <tool_cal \n <tool_call", "[]");
	assert_reads(&hermes, CALLS_AUTO,
	             "<<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\\\\\"{\"}}\n</tool_call>\nTool:",
	             "<", "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"}\\\\\\\\\\\\\\\"{\\\"}\"}]");
	assert_reads(&hermes, CALLS_AUTO, "\xc3\xa9 \nUser", "\xc3\xa9 \nUser", "[]");
	assert_reads(&hermes, CALLS_AUTO, " hi\nUser:", " hi", "[]");
	assert_reads(&hermes, CALLS_AUTO, "aaab", "a", "[]");
	assert_reads(&hermes, CALLS_NONE, "{} <tool_call ", "{} <tool_call ", "[]");
	assert_reads(&plain, CALLS_AUTO, " <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\nTool:", "",
	             "[{\"name\": \"f\", \"arguments\": \"{}\"}]");
	assert_reads(&llama, CALLS_AUTO, "{\"name\": \"f\", \"parameters\": {\"a\": [{}]}}", "",
	             "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [{}]}\"}]");
	assert_reads(&llama, CALLS_AUTO, " {\"name\": \"f\"", " {\"name\": \"f\"", "[]");
	assert_reads(&llama, CALLS_AUTO, "{\"name\": ", "{\"name\": ", "[]");
	assert_reads(&mistral, CALLS_AUTO,
	             "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"], \"}}, {\"name\": \"g\", "
	             "\"arguments\": {}}]",
	             "",
	             "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"], \\\"}\"}, {\"name\": \"g\", "
	             "\"arguments\": \"{}\"}]");
	assert_reads(&tool_use, CALLS_AUTO, NOW "\n" NOW, "",
	             "[{\"name\": \"now\", \"arguments\": \"{}\"}, {\"name\": \"now\", \"arguments\": \"{}\"}]");
	assert_reads(&tool_use, CALLS_AUTO, "x\n" NOW, "x\n" NOW, "[]");
	assert_reads(&mistral, CALLS_AUTO, " [TOOL_CALLS] [{\"name\"", " [TOOL_CALLS] [{\"name\"", "[]");
}

#define M_NOW "{\"name\": \"now\", \"arguments\": {}}"
#define M_BERN "{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": [1]}}"

static void the_calls_of_an_array_are_the_whole_answer(void **state)
{
	(void)state;
	static const struct {
		const char *words;
		bool whole, begins;
	} cases[] = {{"[TOOL_CALLS] [" M_NOW "]", true, true},
	             {"[TOOL_CALLS] [" M_NOW ", " M_BERN ", " M_NOW "]", true, true},
	             {"[TOOL_CALLS] [" M_NOW, false, true},
	             {"[TOOL_CALLS] [" M_NOW "," M_NOW "]", false, false},
	             {"[TOOL_CALLS] [" M_NOW "]x", false, false},
	             {"[TOOL_CALLS] []", false, false},
	             {"[TOOL_CALLS] [" M_NOW ", ]", false, false},
	             {"[TOOL_CALLS] [[TOOL_CALLS] [" M_NOW "]]", false, false},
	             {"x [TOOL_CALLS] [", true, true}, /* not at the beginning: a text */
	             {"[TOOL_CALLS]", true, true}};
	grammar *g = grammar_of(&mistral, weather, CALLS_AUTO, true);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(fits(g, cases[i].words, true), cases[i].whole);
		assert_int_equal(fits(g, cases[i].words, false), cases[i].begins);
	}
	grammar_free(g);
	g = grammar_of(&tool_use, weather, CALLS_AUTO, true);
	assert_true(fits(g, NOW "\n" BERN, true));
	assert_false(fits(g, NOW BERN, false));
	assert_true(fits(g, "x" NOW "x", true)); /* a text */
	grammar_free(g);
	g = grammar_of(&mistral, weather, CALLS_REQUIRED, false);
	assert_true(fits(g, "[TOOL_CALLS] [" M_NOW "]", true));
	assert_false(fits(g, "[TOOL_CALLS] [" M_NOW ", ", false));
	assert_false(fits(g, "x", false));
	grammar_free(g);
}

static void ids_are_short_if_the_form_has_short_ones(void **state)
{
	(void)state;
	const chat_call_form *forms[] = {&mistral, &hermes};
	const char *words[] = {"[TOOL_CALLS] [" M_NOW ", " M_NOW "]", NOW "\n" NOW};
	for (int i = 0; i < 2; i++) {
		call_reader *r;
		json_t *calls, *call;
		const char *text;
		size_t bytes, k;
		assert_int_equal(call_reader_new(&r, forms[i], CALLS_AUTO, NULL, 0, NULL), STATUS_OK);
		assert_int_equal(call_reader_push(r, words[i], strlen(words[i]), true, &text, &bytes, &calls),
		                 STATUS_OK);
		json_array_foreach(calls, k, call) assert_int_equal(json_is_true(json_object_get(call, "short_id")),
		                                                    i == 0 && json_object_get(call, "name"));
		assert_int_equal(k, 4);
		json_decref(calls);
		call_reader_free(r);
	}
}

static void a_call_that_is_cut_off_is_not_whole(void **state)
{
	(void)state;
	const char *words = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1";
	answer a = read_cut(&(reading){&hermes, CALLS_AUTO, user_stop, 3}, words, 5, 20);
	assert_false(a.called);
	assert_string_equal(json_string_value(json_object_get(json_array_get(a.calls, 0), "arguments")), "{\"a\": 1");
	json_decref(a.calls);
}

#define PLAIN_NOW "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"
#define IS_NOW "{\"name\": \"now\", \"arguments\": \"{}\"}"

static void stops_count_in_text_only_for_the_grammar_and_the_reader(void **state)
{
	(void)state;
	static const char *const stops[] = {
	    "\n", " ", "<", "tool", "{", "\n<tool_call>", "<tool_call>\n{\"name\": \"now"};
	static const struct {
		const chat_call_form *form;
		call_choice choice;
		int first_stop, n_stops;
		const char *words, *text, *calls;
	} cases[] = {
	    {&hermes, CALLS_AUTO, 0, 1, NOW "\n" NOW "\n" NOW, "", "[" IS_NOW ", " IS_NOW ", " IS_NOW "]"},
	    {&hermes, CALLS_AUTO, 5, 1, "x" NOW "\n" NOW "\n<tool_call>", "x", "[" IS_NOW ", " IS_NOW "]"},
	    {&hermes, CALLS_AUTO, 0, 1, "x" NOW "\n", "x", "[" IS_NOW "]"},
	    {&hermes, CALLS_AUTO, 2, 1, "x<", "x", "[]"},
	    {&hermes, CALLS_AUTO, 5, 1, "x\n<tool_call>", "x", "[]"},
	    {&plain, CALLS_AUTO, 0, 1, " " PLAIN_NOW "\n" PLAIN_NOW, "", "[" IS_NOW ", " IS_NOW "]"},
	    {&plain, CALLS_REQUIRED, 0, 7, " " PLAIN_NOW "\n" PLAIN_NOW, "", "[" IS_NOW ", " IS_NOW "]"},
	    {&plain, CALLS_REQUIRED, 0, 7, " " PLAIN_NOW "tool", "", "[" IS_NOW "]"},
	    {&hermes, CALLS_REQUIRED, 0, 7, NOW "\n" NOW "<", "", "[" IS_NOW ", " IS_NOW "]"},
	    {&mistral, CALLS_REQUIRED, 0, 7, "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}]{", "",
	     "[" IS_NOW "]"},
	    {&llama, CALLS_REQUIRED, 0, 7, "{\"name\": \"now\", \"parameters\": {}}{", "", "[" IS_NOW "]"},
	};
	const size_t unended = 1; /* a stop that contains the mark, after a call */
	json_t *tools = parse(weather);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const reading how = {cases[i].form, cases[i].choice, stops + cases[i].first_stop, cases[i].n_stops};
		const call_rules rules = {.form = *how.form,
		                          .tools = tools,
		                          .choice = how.choice,
		                          .parallel = true,
		                          .stops = how.stops,
		                          .n_stops = how.n_stops};
		grammar *g;
		assert_int_equal(call_grammar_new(&g, &rules, NULL), STATUS_OK);
		assert_true(fits(g, cases[i].words, false));
		assert_int_equal(fits(g, cases[i].words, true), i != unended);
		grammar_free(g);
		assert_reads_so(&how, cases[i].words, cases[i].text, cases[i].calls);
	}
	json_decref(tools);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_text_is_free_up_to_the_mark_of_a_call),
	    cmocka_unit_test(a_choice_decides_whether_and_how_often_functions_are_called),
	    cmocka_unit_test(functions_that_cannot_be_called_are_refused_by_name),
	    cmocka_unit_test(hostile_functions_are_bounded_together),
	    cmocka_unit_test(an_answer_is_divided_alike_wherever_it_is_cut),
	    cmocka_unit_test(the_calls_of_an_array_are_the_whole_answer),
	    cmocka_unit_test(ids_are_short_if_the_form_has_short_ones),
	    cmocka_unit_test(a_call_that_is_cut_off_is_not_whole),
	    cmocka_unit_test(stops_count_in_text_only_for_the_grammar_and_the_reader),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
