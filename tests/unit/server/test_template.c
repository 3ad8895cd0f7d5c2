#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/template.h"

static void write_name(buffer *out, const void *context)
{
	buffer_string(out, context);
}

static void write_mark(buffer *out, const void *context)
{
	(void)context;
	buffer_string(out, "{{name}}");
}

static const template_part parts[] = {{"name", write_name}, {"mark", write_mark}, {NULL, NULL}};

static void parts_replace_their_marks_and_are_not_expanded_again(void **state)
{
	(void)state;
	static const struct {
		const char *file, *page;
	} cases[] = {
	    {"", ""}, {"a{{name}}b{{name}}", "aXbX"}, {"{{mark}}{{name}}", "{{name}}X"}, {"{ {} }} {{", "{ {} }} {{"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		embedded_file file = {cases[i].file, strlen(cases[i].file)};
		buffer out = {0};
		template_write(&out, &file, parts, "X");
		buffer_append(&out, "", 1);
		assert_string_equal(out.data, cases[i].page);
		buffer_fini(&out);
	}
}

static void every_embedded_file_exists(void **state)
{
	(void)state;
	const embedded_file *files[] = {&embedded_openapi_yaml.plain, &embedded_saved_html, &embedded_saved_js, &embedded_style_css};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		assert_true(files[i]->bytes > 0);
		assert_int_equal(strlen(files[i]->data), files[i]->bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(parts_replace_their_marks_and_are_not_expanded_again),
	    cmocka_unit_test(every_embedded_file_exists),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
