/* test_schema.c - the walker on tables of its own, and the API's tables with requests that users send. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "gen/schemas.h"

#include <stdio.h>
#include <string.h>

static schema_error last;

static bool fits(const schema *s, const char *text)
{
	json_error_t where;
	json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);

	if (!json)
		fail_msg("%s: %s", where.text, text);
	memset(&last, 0xa5, sizeof(last));
	bool ok = schema_check(s, json, &last);
	json_decref(json);
	assert_true(ok == (last.code[0] == '\0'));
	assert_true(ok == (last.message[0] == '\0'));
	return ok;
}

static void refuses(const schema *s, const char *text, const char *param, const char *code)
{
	if (fits(s, text))
		fail_msg("accepted: %s", text);
	assert_string_equal(last.param, param);
	assert_string_equal(last.code, code);
	if (*param)
		assert_non_null(strstr(last.message, param));
}

static void accepts(const schema *s, const char *text)
{
	if (!fits(s, text))
		fail_msg("%s: %s", last.message, text);
}

/* --- the walker -------------------------------------------------------------------- */

static const char *const colours[] = {"red", "green", NULL};
static const char *const never[] = {"false", NULL};
static const schema inner = {
    "Inner",
    (const field[]){{.name = "x", .type = FIELD_INTEGER, .min = -3, .max = 3, .required = true}, {.name = NULL}}};
static const field small = {.name = "small", .type = FIELD_INTEGER, .min = 0, .max = 9};
static const field small_list = {.name = "list", .type = FIELD_ARRAY, .min = 1, .max = 2, .items = &small};
static const field word = {.name = "word", .type = FIELD_STRING, .max = 5};
static const field kinds[] = {{.name = "word", .type = FIELD_STRING, .max = 5},
                              {.name = "words", .type = FIELD_ARRAY, .max = 2, .items = &word},
                              {.name = "numbers", .type = FIELD_ARRAY, .max = 3, .items = &small},
                              {.name = "lists", .type = FIELD_ARRAY, .max = 2, .items = &small_list},
                              {.name = NULL}};
static const schema typed = {
    "Typed", (const field[]){{.name = "type", .type = FIELD_STRING, .choices = colours}, {.name = NULL}}};
static const schema all = {"All", (const field[]){{.name = "text", .type = FIELD_STRING, .min = 2, .max = 4},
                                                  {.name = "free", .type = FIELD_STRING},
                                                  {.name = "colour", .type = FIELD_STRING, .choices = colours},
                                                  {.name = "count", .type = FIELD_INTEGER, .min = 1, .max = 16},
                                                  {.name = "any_count", .type = FIELD_INTEGER},
                                                  {.name = "share", .type = FIELD_NUMBER, .max = 1, .exclusive = true},
                                                  {.name = "any_number", .type = FIELD_NUMBER},
                                                  {.name = "flag", .type = FIELD_BOOLEAN},
                                                  {.name = "off", .type = FIELD_BOOLEAN, .choices = never},
                                                  {.name = "inner", .type = FIELD_OBJECT, .nested = &inner},
                                                  {.name = "open", .type = FIELD_OBJECT},
                                                  {.name = "map", .type = FIELD_OBJECT, .max = 2, .items = &small},
                                                  {.name = "inners", .type = FIELD_ARRAY, .max = 2, .nested = &inner},
                                                  {.name = "list", .type = FIELD_ARRAY},
                                                  {.name = "kinds", .type = FIELD_UNION, .items = kinds},
                                                  {.name = "anything", .type = FIELD_ANY},
                                                  {.name = "ignored", .type = FIELD_IGNORED},
                                                  {.name = NULL}}};

static void only_an_object_is_a_request(void **state)
{
	(void)state;
	accepts(&all, "{}");
	refuses(&all, "[]", "", "invalid_type");
	refuses(&all, "null", "", "invalid_type");
	refuses(&all, "\"{}\"", "", "invalid_type");
	assert_non_null(strstr(last.message, "the request must be an object"));
}

static void every_unknown_field_is_named_with_its_path(void **state)
{
	(void)state;
	refuses(&all, "{\"temprature\":1}", "temprature", "unknown_parameter");
	refuses(&all, "{\"inner\":{\"x\":1,\"y\":0}}", "inner.y", "unknown_parameter");
	refuses(&all, "{\"inners\":[{\"x\":1},{\"x\":1,\"z\":1}]}", "inners[1].z", "unknown_parameter");
	refuses(&all, "{\"\":1}", "", "unknown_parameter");
	refuses(&typed, "{\"colour\":1,\"type\":\"grey\"}", "type", "invalid_value");
	refuses(&typed, "{\"colour\":1,\"type\":\"red\"}", "colour", "unknown_parameter");
}

static void a_null_counts_as_absent(void **state)
{
	(void)state;
	accepts(&all, "{\"text\":null,\"count\":null,\"inner\":null,\"kinds\":null,\"off\":null}");
	refuses(&inner, "{\"x\":null}", "x", "missing_parameter");
	refuses(&inner, "{}", "x", "missing_parameter");
	refuses(&all, "{\"kinds\":[null]}", "kinds[0]", "invalid_type");
	accepts(&all, "{\"temprature\":null,\"inner\":{\"x\":1,\"y\":null},\"inners\":[{\"x\":1,\"z\":null}],"
	              "\"map\":{\"a\":null,\"b\":1,\"c\":null}}");
}

static void a_null_is_removed_where_a_table_describes_the_object(void **state)
{
	(void)state;
	json_t *json = json_loads("{\"text\":null,\"none\":null,\"inner\":{\"x\":1,\"y\":null},"
	                          "\"inners\":[{\"x\":2,\"x2\":null}],\"anything\":{\"kept\":null},\"list\":[null]}",
	                          0, NULL);
	json_t *left = json_loads("{\"inner\":{\"x\":1},\"inners\":[{\"x\":2}],\"anything\":{\"kept\":null},"
	                          "\"list\":[null]}",
	                          0, NULL);

	assert_true(schema_check(&all, json, &last));
	assert_true(json_equal(json, left));
	json_decref(json);
	json_decref(left);
}

static void lengths_of_strings_are_in_bytes(void **state)
{
	(void)state;
	accepts(&all, "{\"text\":\"ab\"}");
	accepts(&all, "{\"text\":\"abcd\"}");
	accepts(&all, "{\"text\":\"ää\"}");
	refuses(&all, "{\"text\":\"a\"}", "text", "out_of_range");
	refuses(&all, "{\"text\":\"ääa\"}", "text", "out_of_range");
	refuses(&all, "{\"text\":5}", "text", "invalid_type");
	accepts(&all, "{\"free\":\"\"}");
}

static void an_unbounded_string_has_the_common_limit(void **state)
{
	(void)state;
	size_t bytes = SCHEMA_MAX_STRING + 1;
	char *text = test_malloc(bytes + 1);

	memset(text, 'a', bytes);
	text[bytes] = '\0';
	for (int over = 0; over < 2; over++) {
		json_t *json = json_pack("{s:s#}", "free", text, (int)(bytes - 1) + over);

		assert_non_null(json);
		assert_true(schema_check(&all, json, &last) == !over);
		json_decref(json);
	}
	assert_string_equal(last.code, "out_of_range");
	assert_non_null(strstr(last.message, "16777217 bytes"));
	test_free(text);
}

static void a_choice_is_one_of_its_words(void **state)
{
	(void)state;
	accepts(&all, "{\"colour\":\"red\"}");
	refuses(&all, "{\"colour\":\"Red\"}", "colour", "invalid_value");
	refuses(&all, "{\"colour\":\"\"}", "colour", "invalid_value");
	assert_non_null(strstr(last.message, "\"red\" or \"green\""));
	accepts(&all, "{\"off\":false}");
	refuses(&all, "{\"off\":true}", "off", "invalid_value");
	refuses(&all, "{\"off\":\"false\"}", "off", "invalid_type");
}

static void an_integer_has_no_fraction_and_no_exponent(void **state)
{
	(void)state;
	accepts(&all, "{\"count\":1}");
	accepts(&all, "{\"count\":16}");
	refuses(&all, "{\"count\":1.0}", "count", "invalid_type");
	refuses(&all, "{\"count\":1e1}", "count", "invalid_type");
	refuses(&all, "{\"count\":true}", "count", "invalid_type");
	refuses(&all, "{\"count\":0}", "count", "out_of_range");
	refuses(&all, "{\"count\":17}", "count", "out_of_range");
	refuses(&all, "{\"count\":9223372036854775807}", "count", "out_of_range");
	refuses(&all, "{\"count\":-9223372036854775808}", "count", "out_of_range");
	accepts(&all, "{\"any_count\":9223372036854775807}");
	refuses(&all, "{\"any_count\":1e18}", "any_count", "invalid_type");
	refuses(&all, "{\"any_count\":1e19}", "any_count", "out_of_range");
}

static void a_string_holds_a_nul_only_where_its_row_says_so(void **state)
{
	static const field both[] = {{.name = "text", .type = FIELD_STRING, .nul = true},
	                             {.name = "name", .type = FIELD_STRING},
	                             {.name = "open", .type = FIELD_OBJECT},
	                             {.name = NULL}};
	const schema s = {"S", both};
	(void)state;
	accepts(&s, "{\"text\":\"a\\u0000b\",\"name\":\"ab\",\"open\":{\"a\":[{\"b\":\"c\"}]}}");
	refuses(&s, "{\"name\":\"a\\u0000b\"}", "name", "invalid_value");
	refuses(&s, "{\"open\":{\"a\":[{\"b\":\"\\u0000\"}]}}", "open", "invalid_value");
}

static void a_number_is_in_range_or_refused(void **state)
{
	(void)state;
	accepts(&all, "{\"share\":1}");
	accepts(&all, "{\"share\":1.0}");
	accepts(&all, "{\"share\":1e-308}");
	refuses(&all, "{\"share\":0}", "share", "out_of_range");
	refuses(&all, "{\"share\":-0.0}", "share", "out_of_range");
	refuses(&all, "{\"share\":1.0000000001}", "share", "out_of_range");
	refuses(&all, "{\"share\":1e308}", "share", "out_of_range");
	refuses(&all, "{\"share\":\"0.5\"}", "share", "invalid_type");
	accepts(&all, "{\"any_number\":-1e308}");
}

static void objects_and_maps_are_checked_member_by_member(void **state)
{
	(void)state;
	accepts(&all, "{\"inner\":{\"x\":-3},\"open\":{\"whatever\":[1,{}]},\"map\":{\"a\":0,\"b\":9}}");
	refuses(&all, "{\"inner\":[]}", "inner", "invalid_type");
	refuses(&all, "{\"inner\":{\"x\":4}}", "inner.x", "out_of_range");
	refuses(&all, "{\"map\":{\"a\":0,\"b\":10}}", "map.b", "out_of_range");
	refuses(&all, "{\"map\":{\"a\":0,\"b\":1,\"c\":2}}", "map", "out_of_range");
}

static void arrays_are_checked_element_by_element(void **state)
{
	(void)state;
	accepts(&all, "{\"inners\":[{\"x\":1},{\"x\":2}],\"list\":[1,\"a\",null]}");
	refuses(&all, "{\"inners\":[{\"x\":1},5]}", "inners[1]", "invalid_type");
	refuses(&all, "{\"inners\":[{\"x\":1},{\"x\":1},{\"x\":1}]}", "inners", "out_of_range");
}

static void a_union_takes_the_intended_alternative(void **state)
{
	(void)state;
	accepts(&all, "{\"kinds\":\"word\"}");
	accepts(&all, "{\"kinds\":[\"a\",\"b\"]}");
	accepts(&all, "{\"kinds\":[1,2,3]}");
	accepts(&all, "{\"kinds\":[[1],[2,3]]}");
	accepts(&all, "{\"kinds\":[]}");
	refuses(&all, "{\"kinds\":5}", "kinds", "invalid_type");
	refuses(&all, "{\"kinds\":\"longer\"}", "kinds", "out_of_range");
	refuses(&all, "{\"kinds\":[1,\"a\"]}", "kinds[1]", "invalid_type");
	refuses(&all, "{\"kinds\":[1,2,3,4]}", "kinds", "out_of_range");
	refuses(&all, "{\"kinds\":[[1],[2,10]]}", "kinds[1][1]", "out_of_range");
	refuses(&all, "{\"kinds\":[[1],[]]}", "kinds[1]", "out_of_range");
	refuses(&all, "{\"kinds\":[true]}", "kinds[0]", "invalid_type");
}

static void a_field_without_checks_is_accepted(void **state)
{
	(void)state;
	accepts(&all, "{\"anything\":[{}],\"ignored\":{\"a\":[1]}}");
	accepts(&all, "{\"anything\":false,\"ignored\":1e300}");
}

static bool whole_utf8(const char *text)
{
	json_t *json = json_string(text);

	json_decref(json);
	return json != NULL;
}

static void texts_are_cut_between_characters(void **state)
{
	(void)state;
	static const char *const characters[] = {"a", "ä", "☃", "🙂"};

	for (int c = 0; c < 4; c++) {
		for (int shift = 0; shift < 4; shift++) {
			char key[1024] = "";

			for (int i = 0; i < shift; i++)
				strcat(key, "x");
			while (strlen(key) < 600)
				strcat(key, characters[c]);
			json_t *member = json_pack("{s:{s:i}}", "inner", key, 1);
			assert_non_null(member);
			assert_false(schema_check(&all, member, &last));
			json_decref(member);
			assert_true(whole_utf8(last.param) && whole_utf8(last.message));
			assert_true(strlen(last.param) > 120 && strncmp(last.param, "inner.", 6) == 0);
			assert_non_null(strstr(last.message, "is not a parameter of this request"));
		}
	}
}

static void a_mistyped_word_or_name_gets_the_nearest_as_a_suggestion(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	    {"{\"colour\":\"gren\"}", "'colour' must be \"red\" or \"green\", not \"gren\" (did you mean \"green\"?)"},
	    {"{\"colour\":\"violet\"}", "'colour' must be \"red\" or \"green\", not \"violet\""},
	    {"{\"color\":\"red\"}", "'color' is not a parameter of this request (did you mean \"colour\"?)"},
	    {"{\"elephant\":\"red\"}", "'elephant' is not a parameter of this request"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_false(fits(&all, cases[i].text));
		assert_string_equal(last.message, cases[i].message);
	}
}

/* --- the tables -------------------------------------------------------------------- */

static void walk(const schema *s, int depth);

static void walk_field(const field *f, int depth)
{
	assert_true(depth < 8);
	assert_true(f->min <= f->max);
	assert_true(!f->exclusive || f->type == FIELD_NUMBER);
	assert_true(!f->choices || f->type == FIELD_STRING || f->type == FIELD_BOOLEAN);
	assert_true(!f->nested || f->type == FIELD_OBJECT || f->type == FIELD_ARRAY);
	assert_true(f->type != FIELD_UNION || f->items);
	if (f->nested)
		walk(f->nested, depth + 1);
	if (f->items)
		walk_field(f->items, depth + 1);
	for (const field *a = f->items; f->type == FIELD_UNION && a->name; a++)
		walk_field(a, depth + 1);
}

static void walk(const schema *s, int depth)
{
	assert_true(s->name && *s->name);
	for (const field *f = s->fields; f->name; f++) {
		walk_field(f, depth);
		for (const field *g = s->fields; g != f; g++)
			assert_string_not_equal(f->name, g->name);
	}
}

static void every_table_is_well_formed(void **state)
{
	(void)state;
	int n = 0;

	for (; schema_all[n]; n++) {
		walk(schema_all[n], 0);
		for (int i = 0; i < n; i++)
			assert_string_not_equal(schema_all[i]->name, schema_all[n]->name);
	}
	assert_int_equal(n, 23);
}

/* A field that every message must name, with values to try. */
static void every_field_of_every_table_is_named_when_it_is_wrong(void **state)
{
	(void)state;
	static const char *const values[] = {"1.5e308",  "-9223372036854775808", "\"\\u0001\"",
	                                     "[[[{}]]]", "{\"?\":{}}",           "true"};
	int refused = 0;

	for (int i = 0; schema_all[i]; i++) {
		for (const field *f = schema_all[i]->fields; f->name; f++) {
			/* Only required fields before this one could be missing first. */
			for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
				json_t *json = json_object();
				json_t *value = json_loads(values[v], JSON_DECODE_ANY, NULL);

				for (const field *g = schema_all[i]->fields; g != f; g++)
					if (g->required)
						json_object_set_new(json, g->name,
						                    g->type == FIELD_ARRAY
						                        ? json_pack("[{s:s}]", "role", "user")
						                        : json_string(g->choices ? g->choices[0] : "aa"));
				json_object_set_new(json, f->name, value);
				if (!schema_check(schema_all[i], json, &last) &&
				    strncmp(last.param, f->name, strlen(f->name)) == 0)
					refused++;
				else if (f->type != FIELD_IGNORED && last.code[0] &&
				         strcmp(last.code, "missing_parameter") != 0)
					fail_msg("%s.%s: %s of %s", schema_all[i]->name, f->name, last.code, last.param);
				json_decref(json);
			}
		}
	}
	assert_true(refused > 300);
}

static void requests_of_openai_clients_are_accepted(void **state)
{
	(void)state;
	accepts(&schema_completion,
	        "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"max_tokens\":16,\"temperature\":1,\"top_p\":1,\"n\":2,"
	        "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false},"
	        "\"logprobs\":5,\"echo\":false,\"stop\":[\"\\n\"],\"presence_penalty\":0.5,"
	        "\"frequency_penalty\":-2,\"best_of\":1,\"logit_bias\":{\"50256\":-100},\"user\":\"u\","
	        "\"seed\":-1,\"suffix\":null}");
	accepts(&schema_completion, "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"stop\":\"x\",\"user\":{\"any\":1}}");
	accepts(&schema_chat_completion,
	        "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[],"
	        "\"function_call\":null,\"audio\":null}],\"tools\":[],\"tool_choice\":\"none\",\"functions\":[],"
	        "\"function_call\":\"auto\",\"reasoning_effort\":\"low\",\"verbosity\":\"low\",\"audio\":null,"
	        "\"web_search_options\":null}");
	accepts(
	    &schema_response,
	    "{\"model\":\"m\",\"input\":\"p\",\"tools\":[],\"tool_choice\":\"auto\",\"reasoning\":{\"effort\":\"low\"},"
	    "\"text\":{\"verbosity\":\"low\"},\"previous_response_id\":null,\"prompt\":null,\"conversation\":null}");
	accepts(&schema_fine_tuning_job,
	        "{\"model\":\"m\",\"training_file\":\"file-1\",\"validation_file\":null,\"suffix\":\"s\","
	        "\"seed\":1,\"hyperparameters\":{\"n_epochs\":\"auto\",\"batch_size\":4,"
	        "\"learning_rate_multiplier\":0.1},\"integrations\":[{\"type\":\"wandb\"}],"
	        "\"metadata\":{\"k\":\"v\"},\"method\":{\"type\":\"supervised\",\"supervised\":"
	        "{\"hyperparameters\":{\"n_epochs\":3}}}}");
	accepts(&schema_fine_tuning_job,
	        "{\"model\":\"additive\",\"training_file\":\"f\",\"additive\":{\"config\":{\"n_heads\":4},"
	        "\"tokenizer\":{\"type\":\"bytes\"},\"sequence_length\":256,\"batch_size\":8,"
	        "\"gradient_accumulation\":1,\"max_steps\":10,\"learning_rate\":5e-4,"
	        "\"schedule\":\"cosine\",\"warmup_steps\":0,\"weight_decay\":0.01,\"betas\":[0.9,0.999],"
	        "\"clip\":1,\"label_smoothing\":0,\"precision\":\"fp32\",\"recompute\":true,\"eval_every\":5,"
	        "\"checkpoint_every\":5,\"keep_checkpoints\":2}}");
}

static void unsupported_fields_that_would_change_the_result_are_refused(void **state)
{
	(void)state;
	refuses(&schema_chat_completion,
	        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}],\"response_format\":{\"type\":\"xml\"}}",
	        "response_format.type", "invalid_value");
	refuses(&schema_response, "{\"model\":\"m\",\"input\":\"p\",\"tools\":[{}]}", "tools[0].type",
	        "missing_parameter");
	refuses(&schema_chat_completion,
	        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}],\"functions\":[{}]}", "functions",
	        "out_of_range");
	assert_string_equal(last.message, "'functions' must be an empty array, not an array of length 1");
	refuses(&schema_response, "{\"model\":\"m\",\"input\":\"p\",\"tool_choice\":\"any\"}", "tool_choice",
	        "invalid_value");
	refuses(&schema_response, "{\"model\":\"m\",\"input\":\"p\",\"truncation\":\"auto\"}", "truncation", "invalid_value");
	refuses(&schema_completion, "{\"model\":\"m\",\"prompt\":\"p\",\"suffix\":\"end\"}", "suffix", "invalid_value");
	refuses(&schema_fine_tuning_job, "{\"model\":\"m\",\"training_file\":\"f\",\"method\":{\"type\":\"reinforcement\"}}",
	        "method.type", "invalid_value");
	refuses(&schema_model_load, "{\"dtype\":\"fp16\"}", "dtype", "invalid_value");
	refuses(&schema_fine_tuning_job,
	        "{\"model\":\"m\",\"training_file\":\"f\",\"additive\":{\"precision\":\"fp8\"}}", "additive.precision",
	        "invalid_value");
}

static void the_bounds_of_generation_are_those_of_the_api(void **state)
{
	(void)state;
	static const struct {
		const char *field, *good[2], *bad[2];
	} cases[] = {
	    {"max_tokens", {"0", "1000000"}, {"-1", "1000001"}},
	    {"n", {"1", "128"}, {"0", "129"}},
	    {"best_of", {"0", "128"}, {"-1", "129"}},
	    {"temperature", {"0", "2"}, {"-0.001", "2.001"}},
	    {"top_p", {"0.001", "1"}, {"0", "1.001"}},
	    {"logprobs", {"0", "20"}, {"-1", "21"}},
	    {"top_k", {"0", "40"}, {"-1", "16777217"}},
	    {"min_p", {"0", "1"}, {"-0.1", "1.1"}},
	    {"top_a", {"0", "1"}, {"-0.1", "1.1"}},
	    {"top_a_power", {"0", "10"}, {"-0.1", "10.1"}},
	    {"repetition_penalty", {"0.1", "10"}, {"0", "10.1"}},
	    {"presence_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
	    {"frequency_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
	    {"alpha", {"{\"top\":1}", "{\"top\":1000}"}, {"{\"top\":0}", "{\"top\":1001}"}},
	    {"stop", {"[]", "[\"1\",\"2\",\"3\",\"4\"]"}, {"\"\"", "[\"1\",\"2\",\"3\",\"4\",\"5\"]"}},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int k = 0; k < 4; k++) {
			char text[200];
			const char *value = k < 2 ? cases[i].good[k] : cases[i].bad[k - 2];

			snprintf(text, sizeof(text), "{\"model\":\"m\",\"prompt\":\"p\",\"%s\":%s}", cases[i].field,
			         value);
			assert_true(fits(&schema_completion, text) == (k < 2));
			assert_true(k < 2 || strncmp(last.param, cases[i].field, strlen(cases[i].field)) == 0);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_mistyped_word_or_name_gets_the_nearest_as_a_suggestion),
	    cmocka_unit_test(only_an_object_is_a_request),
	    cmocka_unit_test(every_unknown_field_is_named_with_its_path),
	    cmocka_unit_test(a_null_counts_as_absent),
	    cmocka_unit_test(a_null_is_removed_where_a_table_describes_the_object),
	    cmocka_unit_test(lengths_of_strings_are_in_bytes),
	    cmocka_unit_test(an_unbounded_string_has_the_common_limit),
	    cmocka_unit_test(a_choice_is_one_of_its_words),
	    cmocka_unit_test(an_integer_has_no_fraction_and_no_exponent),
	    cmocka_unit_test(a_string_holds_a_nul_only_where_its_row_says_so),
	    cmocka_unit_test(a_number_is_in_range_or_refused),
	    cmocka_unit_test(objects_and_maps_are_checked_member_by_member),
	    cmocka_unit_test(arrays_are_checked_element_by_element),
	    cmocka_unit_test(a_union_takes_the_intended_alternative),
	    cmocka_unit_test(a_field_without_checks_is_accepted),
	    cmocka_unit_test(texts_are_cut_between_characters),
	    cmocka_unit_test(every_table_is_well_formed),
	    cmocka_unit_test(every_field_of_every_table_is_named_when_it_is_wrong),
	    cmocka_unit_test(requests_of_openai_clients_are_accepted),
	    cmocka_unit_test(unsupported_fields_that_would_change_the_result_are_refused),
	    cmocka_unit_test(the_bounds_of_generation_are_those_of_the_api),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
