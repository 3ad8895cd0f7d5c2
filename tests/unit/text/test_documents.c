#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/manifest.h"
#include "engine/text/documents.h"
#include "engine/text/messages.h"
#include "tests/unit/support/folder.h"

/* All documents as one text: prompts in parentheses, "|" after a document's last piece, conversations as JSON. */
typedef struct collected {
	char all[8000];
	size_t n;
} collected;

static void add(collected *c, const char *text, size_t bytes)
{
	assert_true(c->n + bytes < sizeof c->all);
	memcpy(c->all + c->n, text, bytes);
	c->n += bytes;
	c->all[c->n] = 0;
}

static status collect(void *context, const char *text, size_t bytes, const encode_options *how, int kind, error *err)
{
	collected *c = context;
	(void)how, (void)err;
	add(c, kind & DOCUMENT_PROMPT ? "(" : "", kind & DOCUMENT_PROMPT ? 1 : 0);
	add(c, text, bytes);
	add(c, kind & DOCUMENT_PROMPT ? ")" : "", kind & DOCUMENT_PROMPT ? 1 : 0);
	add(c, "|", kind & DOCUMENT_LAST ? 1 : 0);
	return STATUS_OK;
}

/* Print ROLE=CONTENT, or ROLE:CONTENT for an answer. */
static status chat(const void *context, const json_t *messages, const json_t *tools, long line, document_piece each,
                   void *to, error *err)
{
	size_t i;
	json_t *message;
	(void)context, (void)line;
	if (tools)
		add(to, "tools;", 6);
	json_array_foreach(messages, i, message)
	{
		char turn[400];
		int n = snprintf(turn, sizeof turn, "%s%c%s;", json_string_value(json_object_get(message, "role")),
		                 messages_is_answer(message) ? ':' : '=',
		                 json_string_value(json_object_get(message, "content")));
		TRY(each(to, turn, (size_t)n, NULL, 0, err));
	}
	return each(to, "", 0, NULL, DOCUMENT_LAST, err);
}

/* Read the documents of a file; "text" if it is not structured data. */
static status read_source(byte_source *source, size_t piece_bytes, collected *out, error *err)
{
	corpus_reader *reader;
	corpus_piece piece;
	*out = (collected){0};
	TRY(corpus_reader_new(&reader, source, piece_bytes, corpus_cut_at_line, NULL, err));
	status s;
	do {
		s = corpus_reader_next(reader, &piece, err);
		if (s == STATUS_OK && piece.text && corpus_reader_is_data(reader))
			s = documents_read(&piece, chat, NULL, collect, out, err);
		free(piece.text);
	} while (s == STATUS_OK && piece.text);
	if (!corpus_reader_is_data(reader))
		strcpy(out->all, "text");
	corpus_reader_free(reader);
	return s;
}

static status read_bytes(const char *text, size_t bytes, size_t piece_bytes, collected *out, error *err)
{
	byte_source *source;
	*err = (error)ERROR_INIT;
	TRY(byte_source_memory(&source, text, bytes, err));
	return read_source(source, piece_bytes, out, err);
}

static void reads(const char *text, const char *expected)
{
	static const size_t pieces[] = {1, 17, 40, 1 << 20};
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		collected c;
		error err;
		if (read_bytes(text, strlen(text), pieces[i], &c, &err) != STATUS_OK || strcmp(c.all, expected) != 0)
			fail_msg("pieces of %zu of <%s>: <%s> %s", pieces[i], text, c.all, err.message);
	}
}

static void refuses(const char *text, const char *expected)
{
	static const size_t pieces[] = {1, 17, 40, 1 << 20};
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		collected c;
		error err;
		status s = read_bytes(text, strlen(text), pieces[i], &c, &err);
		if (s != STATUS_INVALID || !strstr(err.message, expected))
			fail_msg("pieces of %zu of <%s>: %d <%s>, not <%s>", pieces[i], text, s, err.message, expected);
	}
}

static void data_is_read_in_every_unambiguous_layout(void **state)
{
	(void)state;
	static const char *const texts[] = {
	    "{\"text\": \"a]\"}\n{\"text\": \"b\\\"}\"}\n",
	    "{\"text\": \"a]\"}\r\n\r\n{\"text\": \"b\\\"}\"}",
	    "{\"text\": \"a]\"}\r{\"text\": \"b\\\"}\"}\r",
	    "\n \t\n{\"text\": \"a]\"}\n{\"text\": \"b\\\"}\"}\n",
	    "\xEF\xBB\xBF{\"text\": \"a]\"}\n{\"text\": \"b\\\"}\"}\n",
	    "{\"text\": \"a]\"}{\"text\": \"b\\\"}\"}",
	    "{\"text\": \"a]\"} {\"text\": \"b\\\"}\"}\n",
	    "{\n  \"text\": \"a]\"\n}\n{\n  \"text\": \"b\\\"}\"\n}\n",
	    "[{\"text\": \"a]\"}, {\"text\": \"b\\\"}\"}]",
	    "[{\"text\": \"a]\"}]\n[{\"text\": \"b\\\"}\"}]\n",
	    "[\n  {\n    \"text\": \"a]\"\n  },\n  {\n    \"text\": \"b\\\"}\"\n  }\n]\n",
	    "[]\n[{\"text\": \"a]\"},{\"text\": \"b\\\"}\", \"more\": [1, {\"x\": [2, 3]}, \"\\\\\"]}\n]",
	    "{\"text\": \"a]\", \"id\": 123456789012345678901234567890}\n{\"text\": \"b\\\"}\", \"prompt\": null}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		reads(texts[i], "a]|b\"}|");
}

static void data_that_is_not_json_is_refused_with_line_and_column(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	    {"{\"text\": \"a\"},\n{\"text\": \"b\"},\n", "line 1, column 14: a value is expected"},
	    {"{\"text\": \"a\"}\n{\"text\": \"b\"},\n", "line 2, column 14: not JSON"},
	    {"{'text': 'a'}\n{'text': 'b'}\n", "line 1, column 2: not JSON"},
	    {"{\"text\": \"a\", \"n\": NaN}\n", "line 1, column 22: not JSON"},
	    {"{\"text\": \"a\", \"n\": None}\n", "line 1"},
	    {"{\"text\": \"cut \\ud83d \"}\n", "line 1"},
	    {"{\"text\": \"a\"}\n{\"text\": \"cut \\ud83d \"}\n", "line 2"},
	    {"// exported\n{\"text\": \"a\"}\n", "line 1, column 1: not JSON"},
	    {"# exported\n{\"text\": \"a\"}\n", "line 1, column 1: not JSON"},
	    {"{text: \"a\"}\n", "line 1"},
	    {"{\"text\": \"a\", \"text\": \"a\"}\n", "line 1"},
	    {"{\"text\": \"a\"\n{\"text\": \"b\"}\n", "line 2, column 1: not JSON"},
	    {"{\"text\": \"a\"}\n{\"text\": \"b\"\n{\"text\": \"c\"}\n", "line 2, column 12: not JSON"},
	    {"{\"text\": \"a\nb\"}\n", "line 1"},
	    {"{\n \"text\": \"a\"\n", "line 2"},
	    {"[\n{\"text\": \"a\"}\n", "the array does not end"},
	    {"[\n{\"text\": \"a\"},\n]\n", "line 3, column 1: a value is expected after the comma"},
	    {"[\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n]\n", "line 3, column 1: a comma or ] is expected"},
	    {"[{\"text\": \"a\"}] x\n", "line 1, column 17"},
	    {"[\r{\"text\": \"a\"},\r,]", "line 3, column 1"},
	    {"{\"text\": \"a\"}\r{\"text\": x}\r", "line 2, column 10: not JSON"},
	    {"[\"one\", \"two\"]", "line 1: not a JSON object"},
	    {"{\"data\": [{\"text\": \"a\"}]}", "its keys are \"data\""},
	    {"{\"text\": \"a\", \"n\": 1e999}", "line 1"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		refuses(cases[i][0], cases[i][1]);
}

static void text_that_begins_with_a_bracket_is_text(void **state)
{
	(void)state;
	static const char *const texts[] = {"[Illustration: a house]\n",
	                                    "[1] A footnote",
	                                    "{{Infobox}}\n",
	                                    "{\\rtf1 text}",
	                                    "[[Category:x]]",
	                                    "{ int i; }",
	                                    "# Title\n\nText\n",
	                                    "// int i;\n",
	                                    "{name} says",
	                                    "[",
	                                    "{",
	                                    "",
	                                    "[[[[[[[[",
	                                    "a {\"text\": 1}",
	                                    "[[1, 2], [3]]"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		reads(texts[i], "text");
}

static void conversations_are_read_in_the_layouts_of_openai_sharegpt_and_alpaca(void **state)
{
	(void)state;
	reads("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", "
	      "\"tool_calls\": null, \"refusal\": null}], \"tools\": [], \"parallel_tool_calls\": false}",
	      "user=q;assistant:a;|");
	reads("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": [{\"type\": \"function\"}]}",
	      "tools;user=q;|");
	reads("{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", \"value\": \"q\"}, "
	      "{\"from\": \"gpt\", \"value\": \"a\"}]}",
	      "system=s;user=q;assistant:a;|");
	reads("{\"system\": \"s\", \"conversations\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
	      "\"assistant\", \"content\": \"a\"}]}",
	      "system=s;user=q;assistant:a;|");
	reads(
	    "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}\n{\"instruction\": \"i\", \"output\": \"o\", "
	    "\"input\": \"x\"}\n{\"instruction\": \"i\", \"input\": null, \"output\": \"o\", \"text\": \"all\"}",
	    "user=i;assistant:o;|user=i\n\nx;assistant:o;|user=i;assistant:o;|");
	reads("{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"q\", \"a\"]], \"system\": \"s\"}",
	      "system=s;user=q;assistant:a;user=i;assistant:o;|");
}

#define MESSAGE(more)                                                                                                  \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", " more "}]}\n"

static void an_answer_of_weight_0_is_part_of_the_prompt(void **state)
{
	(void)state;
	reads(MESSAGE("\"content\": \"a\", \"weight\": 0"), "user=q;assistant=a;|");
	reads(MESSAGE("\"content\": \"a\", \"weight\": 1"), "user=q;assistant:a;|");
	reads(MESSAGE("\"content\": \"a\", \"weight\": null"), "user=q;assistant:a;|");
	refuses(MESSAGE("\"content\": \"a\", \"weight\": 0.5"), "line 1: messages[1].weight");
	refuses("\n" MESSAGE("\"content\": \"a\", \"weight\": \"x\""), "line 2: messages[1].weight");
	refuses("{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"weight\": 1}]}", "messages[0].weight");
}

static void unsupported_members_are_refused_by_name(void **state)
{
	(void)state;
	refuses(MESSAGE("\"content\": \"a\", \"function_call\": {\"name\": \"f\"}"), "messages[1].function_call");
	refuses(MESSAGE("\"content\": \"a\", \"refusal\": \"no\""), "messages[1].refusal");
	refuses(MESSAGE("\"content\": \"a\", \"audio\": {\"id\": \"x\"}"), "messages[1].audio");
	refuses("{\"tools\": {\"type\": \"function\"}, \"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}",
	        "line 1: \"tools\" must be an array");
	refuses("{\"functions\": [{\"name\": \"f\"}], \"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}",
	        "line 1: functions");
	refuses("{\"conversations\": [{\"from\": \"tool\", \"value\": \"q\"}]}", "conversations[0].from: \"tool\"");
	refuses("{\"conversations\": [{\"from\": \"human\"}]}", "conversations[0].value");
	refuses("{\"conversations\": [7]}", "conversations[0]");
	refuses("{\"conversations\": []}", "conversations");
	refuses("{\"instruction\": \"i\"}", "\"output\" must be a string");
	refuses("{\"instruction\": \"i\", \"output\": \"o\", \"input\": 3}", "\"input\" must be a string");
	refuses("{\"instruction\": \"i\", \"output\": \"o\", \"messages\": []}", "two of");
	refuses("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"text\": \"a\"}", "in one object");
}

static void files_in_other_formats_are_refused_by_their_name(void **state)
{
	(void)state;
	static const struct {
		const char *bytes;
		size_t n;
		const char *name;
	} cases[] = {{"\xFF\xFE{\0\"\0", 6, "UTF-16"},
	             {"\xFE\xFF\0{", 4, "UTF-16"},
	             {"{\0\"\0t\0", 6, "UTF-16"},
	             {"PK\x03\x04....", 8, "zip"},
	             {"PAR1....", 8, "Parquet"},
	             {"%PDF-1.7\n", 9, "PDF"},
	             {"\xFD"
	              "7zXZ\0",
	              6, "compressed by xz"},
	             {"BZh91AY", 7, "bzip2"},
	             {"\xEF\xBB\xBF"
	              "SQLite format 3\0{",
	              20, "SQLite"}};
	static const size_t pieces[] = {16, 64};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
			collected c;
			error err;
			assert_int_equal(read_bytes(cases[i].bytes, cases[i].n, pieces[k], &c, &err), STATUS_INVALID);
			assert_non_null(strstr(err.message, cases[i].name));
		}
	char tar[512] = "a.txt";
	memcpy(tar + 257, "ustar", 5);
	collected c;
	error err;
	assert_int_equal(read_bytes(tar, sizeof tar, 1 << 20, &c, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "tar archive"));
}

static void a_name_and_a_declared_format_decide_before_the_content(void **state)
{
	(void)state;
	static const struct {
		const char *format, *name;
		corpus_hint hint;
	} cases[] = {
	    {NULL, "a.txt", CORPUS_HINT_NONE},       {"auto", "a.jsonl", CORPUS_HINT_DATA},
	    {NULL, "a.JSON", CORPUS_HINT_DATA},      {NULL, "a.ndjson.gz", CORPUS_HINT_DATA},
	    {NULL, "a.jsonl.zst", CORPUS_HINT_DATA}, {NULL, ".json", CORPUS_HINT_NONE},
	    {NULL, "a.csv", CORPUS_HINT_TABLE},      {NULL, "a.tsv.gz", CORPUS_HINT_TABLE},
	    {"text", "a.jsonl", CORPUS_HINT_TEXT},   {"json", "a.csv", CORPUS_HINT_DATA},
	    {"text", NULL, CORPUS_HINT_TEXT},        {NULL, NULL, CORPUS_HINT_NONE},
	    {NULL, "json", CORPUS_HINT_NONE},        {NULL, "gz", CORPUS_HINT_NONE},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(corpus_hint_of(cases[i].format, cases[i].name), cases[i].hint);
}

/* Write a file and, with a format, its manifest; then read it. */
static status read_file(const char *folder, const char *name, const char *format, const char *text, collected *out,
                        error *err)
{
	char path[500];
	byte_source *source;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	if (format) {
		json_t *about = json_pack("{s:s, s:s}", "filename", name, "format", format);
		assert_int_equal(manifest_write_file(path, name, "file", name, about, NULL), STATUS_OK);
		json_decref(about);
	}
	*err = (error)ERROR_INIT;
	TRY(byte_source_open(&source, path, err));
	return read_source(source, 64, out, err);
}

static void a_stored_file_is_read_in_the_format_of_its_manifest(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	collected c;
	error err;
	folder_new(folder);
	assert_int_equal(read_file(folder, "a", "text", "{\"text\": \"a\"}\n", &c, &err), STATUS_OK);
	assert_string_equal(c.all, "text");
	assert_int_equal(read_file(folder, "b", "json", "plain\n", &c, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "line 1, column 5: not JSON"));
	assert_int_equal(read_file(folder, "c", "auto", "{\"text\": \"a\"}\n", &c, &err), STATUS_OK);
	assert_string_equal(c.all, "a|");
	assert_int_equal(read_file(folder, "d.jsonl", NULL, "plain\n", &c, &err), STATUS_INVALID);
	assert_int_equal(read_file(folder, "e.csv", NULL, "a,b\n", &c, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "table"));
	assert_int_equal(read_file(folder, "f.csv", "text", "a,b\n", &c, &err), STATUS_OK);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(data_is_read_in_every_unambiguous_layout),
	    cmocka_unit_test(data_that_is_not_json_is_refused_with_line_and_column),
	    cmocka_unit_test(text_that_begins_with_a_bracket_is_text),
	    cmocka_unit_test(conversations_are_read_in_the_layouts_of_openai_sharegpt_and_alpaca),
	    cmocka_unit_test(an_answer_of_weight_0_is_part_of_the_prompt),
	    cmocka_unit_test(unsupported_members_are_refused_by_name),
	    cmocka_unit_test(files_in_other_formats_are_refused_by_their_name),
	    cmocka_unit_test(a_name_and_a_declared_format_decide_before_the_content),
	    cmocka_unit_test(a_stored_file_is_read_in_the_format_of_its_manifest),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
