#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/header_value.h"
#include "server/multipart.h"

/* --- parameters of a header ------------------------------------------------------------- */

static void parameters_are_tokens_or_quoted_strings_in_any_order(void **state)
{
	(void)state;
	static const struct {
		const char *header, *name, *value; /* NULL: absent */
	} cases[] = {
	    {"form-data; name=\"file\"; filename=\"a.txt\"", "name", "file"},
	    {"form-data; name=\"file\"; filename=\"a.txt\"", "filename", "a.txt"},
	    {"form-data; filename=a.txt;name=file", "name", "file"},
	    {"form-data;name=file", "name", "file"},
	    {"form-data ; Name = \"file\" ", "name", "file"},
	    {"form-data; NAME=file;", "name", "file"},
	    {"form-data;; ;name=file;;", "name", "file"},
	    {"form-data; name=expires_after[anchor]", "name", "expires_after[anchor]"},
	    {"form-data; name=\"a;b\\\"c\\\\d\"", "name", "a;b\"c\\d"},
	    {"form-data; name=\"\"", "name", ""},
	    {"form-data; filename=\"C:\\dir\\a.txt\"", "filename", "C:\\dir\\a.txt"},
	    {"form-data; filename=\"; name=x\"; name=y", "name", "y"},
	    {"form-data; name=first; name=second", "name", "first"},
	    {"multipart/form-data; boundary=a=b", "boundary", "a=b"},
	    {"multipart/form-data; charset=UTF-8; boundary=\"a b\"", "boundary", "a b"},
	    {"form-data; names=file", "name", NULL},
	    {"form-data", "name", NULL},
	    {"", "name", NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char out[64];
		header_found found = header_parameter(cases[i].header, cases[i].name, out, sizeof out);
		assert_int_equal(found, cases[i].value ? HEADER_PRESENT : HEADER_ABSENT);
		if (cases[i].value)
			assert_string_equal(out, cases[i].value);
	}
}

static void malformed_and_absent_parameters_are_distinguished(void **state)
{
	(void)state;
	static const char *const headers[] = {
	    "x; name=\"file",         "x; name",        "x; name=",       "x; name=a b",
	    "x; name=a\"b\"",         "x; =a; name=b",  "x; name=\"a\"b", "x; name=aaaaaaaaaa",
	    "x; name=\"aaaaaaaaaa\"", "x; a=b, name=c", "x; name=b; y"};
	char out[8];
	for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
		assert_int_equal(header_parameter(headers[i], "name", out, sizeof out), HEADER_MALFORMED);
}

static void an_extended_value_is_decoded(void **state)
{
	(void)state;
	char out[32];
	assert_true(header_decode_extended("UTF-8''caf%C3%A9.jsonl", out, sizeof out));
	assert_string_equal(out, "caf\xc3\xa9.jsonl");
	assert_true(header_decode_extended("utf-8'en'a%20b", out, sizeof out));
	assert_string_equal(out, "a b");
	assert_true(header_decode_extended("iso-8859-1''caf%E9", out, sizeof out));
	assert_string_equal(out, "caf\xc3\xa9");
	static const char *const wrong[] = {
	    "caf",        "UTF-8'caf",    "UTF-8''%C3", "UTF-8''%", "UTF-8''%4",
	    "UTF-8''%0g", "UTF-8''a%00b", "KOI8-R''a",  "UTF-8''",  "UTF-8''0123456789012345678901234567890123"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(header_decode_extended(wrong[i], out, sizeof out));
}

/* --- forms ------------------------------------------------------------------------------------ */

typedef struct log {
	char text[4096];
	size_t parts;
	size_t stops_at; /* a part; 0: none */
} log;

static bool on_part(void *context, const char *name, const char *file_name)
{
	log *l = context;
	size_t used = strlen(l->text);
	snprintf(l->text + used, sizeof l->text - used, "%s%s,%s=", used ? "|" : "", name ? name : "-",
	         file_name ? file_name : "-");
	return ++l->parts != l->stops_at;
}

static bool on_data(void *context, const char *data, size_t bytes)
{
	log *l = context;
	assert_true(bytes > 0);
	strncat(l->text, data, bytes);
	return true;
}

static const multipart_handler handler = {on_part, on_data};

/* Parse the form in pieces; returns an error message, or NULL. */
static const char *parse(log *l, const char *type, const char *form, size_t piece)
{
	multipart m;
	bool ok = true;
	*l = (log){.stops_at = l->stops_at};
	assert_true(multipart_init(&m, type, &handler, l));
	for (size_t at = 0, bytes = strlen(form); ok && at < bytes; at += piece)
		ok = multipart_feed(&m, form + at, bytes - at < piece ? bytes - at : piece);
	const char *wrong = !ok ? (m.wrong ? m.wrong : "stopped") : multipart_whole(&m) ? NULL : "too short";
	multipart_fini(&m);
	return wrong;
}

static void reads(const char *type, const char *form, const char *expected)
{
	log l = {0};
	for (size_t piece = 1; piece <= strlen(form); piece++) {
		const char *wrong = parse(&l, type, form, piece);
		if (wrong)
			fail_msg("%s: %s", wrong, form);
		assert_string_equal(l.text, expected);
	}
}

#define TYPE "multipart/form-data; boundary=XX"
#define NAMED "Content-Disposition: form-data; name=\"f\"\r\n"

static void forms_of_common_clients_are_read_however_they_are_split(void **state)
{
	(void)state;
	reads(TYPE, "--XX\r\n" NAMED "\r\nabc\r\n--XX--\r\n", "f,-=abc");
	reads(TYPE, "--XX\r\n" NAMED "\r\nabc\r\n--XX--", "f,-=abc");
	reads(TYPE,
	      "--XX\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=f; filename=t; "
	      "filename*=utf-8''t\r\n\r\nabc\r\n--XX--\r\n",
	      "f,t=abc");
	reads(TYPE, "--XX\r\ncontent-disposition:form-data;Name=\"f\"\r\n\r\nabc\r\n--XX--\r\n", "f,-=abc");
	reads(TYPE, "--XX\r\n" NAMED "\r\nabc\r\n--XX--\r\n\r\nmore\r\n--XX\r\n", "f,-=abc");
	reads(TYPE, "A preamble\r\n--XX\r\n" NAMED "\r\nabc\r\n--XX--\r\n", "f,-=abc");
	reads(TYPE, "\r\n--XX\r\n" NAMED "\r\nabc\r\n--XX--\r\n", "f,-=abc");
	reads(TYPE, "--XX \t\r\n" NAMED "\r\nabc\r\n--XX  \r\n" NAMED "\r\n\r\n--XX-- \r\n", "f,-=abc|f,-=");
	reads(TYPE, "--XX\r\nContent-Disposition: form-data;\r\n\tname=f;\r\n filename=\"g h\"\r\n\r\n abc\r\n--XX--",
	      "f,g h= abc");
	reads("multipart/form-data; boundary=X", "--X\r\n" NAMED "\r\nabc\r\n--X--", "f,-=abc");
	reads("multipart/form-data; Boundary=\"X Y\"; charset=UTF-8", "--X Y\r\n" NAMED "\r\nabc\r\n--X Y--",
	      "f,-=abc");
}

static void content_is_not_changed(void **state)
{
	(void)state;
	static const char *const contents[] = {"",
	                                       "\r",
	                                       "\n",
	                                       "\r\n",
	                                       "\r\n-",
	                                       "\r\n--",
	                                       "\r\n--X",
	                                       "\r\n--XY",
	                                       "\r\n--XXY",
	                                       "\r\n--XX-",
	                                       "\r\n--XX\n",
	                                       "\r\n--XX \r",
	                                       "--XXY",
	                                       "--XX-\r\n",
	                                       "\r\r\n--X\r\n",
	                                       "\r\n\r\n\r\n",
	                                       " a",
	                                       "\t"};
	char form[256], expected[128];
	for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
		snprintf(form, sizeof form, "--XX\r\n" NAMED "\r\n%s\r\n--XX--\r\n", contents[i]);
		snprintf(expected, sizeof expected, "f,-=%s", contents[i]);
		reads(TYPE, form, expected);
	}
}

static void a_part_may_have_no_content_and_no_headers(void **state)
{
	(void)state;
	reads(TYPE, "--XX\r\n" NAMED "\r\n--XX\r\n" NAMED "\r\n\r\n--XX\r\n\r\n\r\n--XX\r\n\r\nx\r\n--XX--",
	      "f,-=|f,-=|-,-=|-,-=x");
	reads(TYPE, "--XX--", "");
}

static void a_file_has_the_name_of_the_extended_parameter(void **state)
{
	(void)state;
#define FILE_FORM(names) "--XX\r\nContent-Disposition: form-data; name=f; " names "\r\n\r\n\r\n--XX--"
	reads(TYPE, FILE_FORM("filename*=UTF-8''caf%C3%A9"), "f,caf\xc3\xa9=");
	reads(TYPE, FILE_FORM("filename*=UTF-8''caf%C3%A9; filename=cafe"), "f,caf\xc3\xa9=");
	reads(TYPE, FILE_FORM("filename=cafe; filename*=KOI8-R''caf"), "f,cafe=");
	reads(TYPE, FILE_FORM("filename=cafe; filename*=UTF-8''%"), "f,cafe=");
	reads(TYPE, FILE_FORM("filename=\"caf\xc3\xa9\""), "f,caf\xc3\xa9=");
}

static void refuses(const char *form, const char *problem)
{
	log l = {0};
	for (size_t piece = 1; piece <= strlen(form); piece += 1 + piece / 8) {
		const char *wrong = parse(&l, TYPE, form, piece);
		assert_non_null(wrong);
		if (!strstr(wrong, problem))
			fail_msg("\"%s\" is not \"%s\"", wrong, problem);
	}
}

static void malformed_forms_are_refused(void **state)
{
	(void)state;
	static char head[MULTIPART_HEAD_BYTES + 200] = "--XX\r\nX: ";
	memset(head + strlen(head), 'x', MULTIPART_HEAD_BYTES);
	refuses(head, "longer than 8 KiB");
	refuses("--XX\r\nContent-Disposition: form-data; name=\"f\r\n\r\n\r\n--XX--", "malformed");
	refuses(
	    "--XX\r\nContent-Disposition: form-data; name=f\r\nContent-Transfer-Encoding: base64\r\n\r\nYWJj\r\n--XX--",
	    "encoded");
	refuses("--XX\r\n" NAMED "Content-Type: multipart/mixed; boundary=Y\r\n\r\n--Y--\r\n--XX--", "holds parts");
	refuses("--XX\r\nno header\r\n\r\n\r\n--XX--", "no header");
	refuses("--XX\r\nX: \x01\r\n\r\n\r\n--XX--", "control character");
	refuses("--XX\r\nX: a\rb\r\n\r\n\r\n--XX--", "control character");
	refuses("--XX\r\n" NAMED "\r\nabc", "too short");
	refuses("--XX\r\n" NAMED "\r\nabc\r\n--XX", "too short");
	refuses("--XX\r\n" NAMED "\r\nabc\r\n--XX-", "too short");
	refuses("--XY\r\n" NAMED "\r\nabc\r\n--XY--", "too short");
	refuses("--XX\n" NAMED "\r\nabc\r\n--XX", "too short");
}

static void a_handler_can_stop_the_parser(void **state)
{
	(void)state;
	log l = {.stops_at = 2};
	assert_string_equal(parse(&l, TYPE, "--XX\r\n" NAMED "\r\na\r\n--XX\r\n" NAMED "\r\nb\r\n--XX--", 1000),
	                    "stopped");
	assert_string_equal(l.text, "f,-=a|f,-=");
}

static void a_boundary_has_1_to_70_characters(void **state)
{
	(void)state;
	multipart m;
	char type[128];
	for (int n = 0; n <= 72; n++) {
		snprintf(type, sizeof type, "multipart/form-data; boundary=\"%.*s\"", n,
		         "0123456789012345678901234567890123456789012345678901234567890123456789xx");
		bool ok = multipart_init(&m, type, &handler, NULL);
		assert_true(ok == (n >= 1 && n <= 70));
		if (ok)
			multipart_fini(&m);
	}
	static const char *const wrong[] = {"multipart/form-data",
	                                    "multipart/form-data; boundary",
	                                    "multipart/form-data; boundary=\"a\tb\"",
	                                    "multipart/form-data; boundary=\"a \"",
	                                    "multipart/form-data; boundary=\"a",
	                                    "multipart/form-data; boundary=<a>"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(multipart_init(&m, wrong[i], &handler, NULL));
	assert_false(multipart_init(&m, NULL, &handler, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(parameters_are_tokens_or_quoted_strings_in_any_order),
	    cmocka_unit_test(malformed_and_absent_parameters_are_distinguished),
	    cmocka_unit_test(an_extended_value_is_decoded),
	    cmocka_unit_test(forms_of_common_clients_are_read_however_they_are_split),
	    cmocka_unit_test(content_is_not_changed),
	    cmocka_unit_test(a_part_may_have_no_content_and_no_headers),
	    cmocka_unit_test(a_file_has_the_name_of_the_extended_parameter),
	    cmocka_unit_test(malformed_forms_are_refused),
	    cmocka_unit_test(a_handler_can_stop_the_parser),
	    cmocka_unit_test(a_boundary_has_1_to_70_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
