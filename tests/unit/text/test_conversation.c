#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/text/conversation.h"

/* All pieces concatenated, and the text that was taken for each answer. */
typedef struct collected {
	char all[8000], answers[4][400], before[4][8000];
	size_t n;
	int answered, last;
	size_t trusted; /* bytes */
} collected;

static status collect(void *context, const char *text, size_t bytes, const encode_options *how, int kind, error *err)
{
	collected *h = context;
	(void)err;
	if (!(kind & DOCUMENT_PROMPT)) {
		memcpy(h->before[h->answered], h->all, h->n);
		memcpy(h->answers[h->answered++], text, bytes);
	}
	memcpy(h->all + h->n, text, bytes);
	h->n += bytes;
	h->last += kind & DOCUMENT_LAST ? 1 : 0;
	for (size_t i = 0; i < how->n_trusted; i++) {
		assert_true(how->trusted[i].first + how->trusted[i].bytes <= bytes);
		h->trusted += how->trusted[i].bytes;
	}
	return STATUS_OK;
}

static void check(const char *name, const chat_template *t, const json_t *messages)
{
	collected h = {0};
	error err = ERROR_INIT, none = ERROR_INIT;
	chat_text whole, prompt;
	size_t trusted = 0;
	json_t *first = json_copy((json_t *)(uintptr_t)messages);
	if (conversation_pieces(&(conversation_template){t, &none}, messages, NULL, 7, collect, &h, &err) != STATUS_OK)
		fail_msg("%s: %s", name, error_message(&err));
	assert_int_equal(chat_template_render(t, messages, NULL, false, false, &whole, NULL), STATUS_OK);
	for (size_t i = 0; i < whole.n_trusted; i++)
		trusted += whole.trusted[i].bytes;
	if (strcmp(h.all, whole.text) != 0 || h.answered != 2 || h.last != 1 || h.trusted != trusted)
		fail_msg("%s: %d answers in\n%s\ninstead of\n%s", name, h.answered, h.all, whole.text);
	json_array_remove(first, 3);
	assert_int_equal(chat_template_render(t, first, NULL, false, true, &prompt, NULL), STATUS_OK);
	if (!strstr(h.answers[0], "FIRST") || strstr(h.answers[0], "again") || !strstr(h.answers[1], "SECOND") ||
	    strstr(h.before[1], "SECOND") || strncmp(prompt.text, h.before[1], strlen(h.before[1])) != 0)
		fail_msg("%s: answers \"%s\" and \"%s\" behind \"%s\"", name, h.answers[0], h.answers[1], h.before[1]);
	chat_text_fini(&whole);
	chat_text_fini(&prompt);
	json_decref(first);
}

static void the_answers_of_a_conversation_are_the_texts_after_each_prompt(void **state)
{
	(void)state;
	json_t *templates = json_load_file("tests/data/chat/templates.json", 0, NULL), *template;
	json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "so?",
	                             "role", "assistant", "content", "FIRST", "role", "user", "content", "again?",
	                             "role", "assistant", "content", "SECOND");
	const char *name;
	chat_template *t;
	json_object_foreach(templates, name, template)
	{
		chat_template_source from = {
		    .program = json_string_value(json_object_get(template, "program")), .begin = "<s>", .end = "</s>"};
		assert_int_equal(chat_template_new(&t, &from, NULL), STATUS_OK);
		check(name, t, messages);
		chat_template_free(t);
	}
	assert_int_equal(chat_template_new(&t, &(chat_template_source){0}, NULL), STATUS_OK);
	check("plain", t, messages);
	chat_template_free(t);
	json_decref(templates);
	json_decref(messages);
}

static void calls_are_learned_and_functions_and_results_are_read(void **state)
{
	(void)state;
	json_t *line = json_loads(
	           "{\"tools\": [{\"function\": {\"name\": \"f\"}}], \"messages\": ["
	           "{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": null, "
	           "\"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}, "
	           "{\"id\": \"2\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}]}, "
	           "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"r\"}, "
	           "{\"role\": \"tool\", \"tool_call_id\": \"2\", \"content\": \"s\"}, "
	           "{\"role\": \"assistant\", \"content\": \"DONE\"}]}",
	           0, NULL),
	       *templates = json_load_file("tests/data/chat/templates.json", 0, NULL);
	const char *qwen = json_string_value(json_object_get(json_object_get(templates, "qwen-2.5"), "program"));
	static const char *const calls[] =
	    {" <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
	     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n",
	     "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
	     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n"},
	                         *const done[] = {" DONE\n", "DONE<|im_end|>\n"};
	for (int i = 0; i < 2; i++) {
		collected h = {0};
		error err = ERROR_INIT, none = ERROR_INIT;
		chat_template *t;
		assert_int_equal(chat_template_new(&t, &(chat_template_source){.program = i ? qwen : NULL}, NULL),
		                 STATUS_OK);
		if (conversation_pieces(&(conversation_template){t, &none}, json_object_get(line, "messages"),
		                        json_object_get(line, "tools"), 7, collect, &h, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		assert_int_equal(h.answered, 2);
		assert_string_equal(h.answers[0], calls[i]);
		assert_string_equal(h.answers[1], done[i]);
		assert_non_null(strstr(h.before[0], "{\"function\": {\"name\": \"f\"}}"));
		assert_null(strstr(h.before[0], "\"arguments\": {}"));
		chat_template_free(t);
	}
	json_decref(line);
	json_decref(templates);
}

static void reasoning_is_learned_where_the_template_has_it(void **state)
{
	(void)state;
	json_t *templates = json_load_file("tests/data/chat/templates.json", 0, NULL),
	       *messages =
	           json_loads("[{\"role\": \"user\", \"content\": \"u\"}, "
	                      "{\"role\": \"assistant\", \"content\": \"<think>p</think>FIRST\"}, "
	                      "{\"role\": \"user\", \"content\": \"v\"}, "
	                      "{\"role\": \"assistant\", \"content\": \"<think>q</think>\", \"tool_calls\": [{\"id\": "
	                      "\"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, "
	                      "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"r\"}, "
	                      "{\"role\": \"assistant\", \"content\": \"LAST\"}]",
	                      0, NULL);
	const char *program = json_string_value(json_object_get(json_object_get(templates, "qwen-3"), "program"));
	collected h = {0};
	error err = ERROR_INIT, none = ERROR_INIT;
	chat_template *t;
	assert_int_equal(chat_template_new(&t, &(chat_template_source){.program = program}, NULL), STATUS_OK);
	if (conversation_pieces(&(conversation_template){t, &none}, messages, NULL, 7, collect, &h, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(h.answered, 3);
	assert_string_equal(h.answers[0], "FIRST<|im_end|>\n");
	assert_string_equal(h.answers[1], "<think>\nq\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
	                                  "{}}\n</tool_call><|im_end|>\n");
	assert_string_equal(h.answers[2], "<think>\n\n</think>\n\nLAST<|im_end|>\n");
	chat_template_free(t);
	json_decref(templates);
	json_decref(messages);
}

static void messages_that_a_template_refuses_are_named_with_their_line(void **state)
{
	(void)state;
	collected h = {0};
	error err = ERROR_INIT, none = ERROR_INIT;
	chat_template *t;
	json_t *messages = json_pack("[{s:s}]", "role", "user");
	assert_int_equal(chat_template_new(&t, &(chat_template_source){0}, NULL), STATUS_OK);
	assert_int_equal(conversation_pieces(&(conversation_template){t, &none}, messages, NULL, 7, collect, &h, &err),
	                 STATUS_INVALID);
	assert_non_null(strstr(err.message, "line 7: messages[0]"));
	error unknown = ERROR_INIT;
	err = unknown;
	error_set(&unknown, STATUS_UNSUPPORTED, NULL, "an unknown template");
	assert_int_equal(
	    conversation_pieces(&(conversation_template){NULL, &unknown}, messages, NULL, 8, collect, &h, &err),
	    STATUS_INVALID);
	assert_string_equal(err.message, "line 8: an unknown template");
	chat_template_free(t);
	json_decref(messages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_answers_of_a_conversation_are_the_texts_after_each_prompt),
	    cmocka_unit_test(calls_are_learned_and_functions_and_results_are_read),
	    cmocka_unit_test(reasoning_is_learned_where_the_template_has_it),
	    cmocka_unit_test(messages_that_a_template_refuses_are_named_with_their_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
