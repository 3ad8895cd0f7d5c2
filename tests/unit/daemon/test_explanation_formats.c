/* Every allocation fails in turn while an explanation is written: its bytes are complete, or there is an error. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/base/reserve.h"
#include "engine/daemon/generation/explanation_format.h"
#include "proto/json_memory.h"
#include "tests/unit/support/allocations.h"

static const char *const names[] = {"csv", "safetensors"};
enum { ROOM = 1 << 20, FORMATS = sizeof names / sizeof *names };

typedef struct output {
	char bytes[ROOM];
	size_t used;
} output;

/* Write all pieces of a format one after another. */
static status write_all(const explanation_format *f, const json_t *explanation, output *out)
{
	explanation_writer w;
	error err = ERROR_INIT;
	size_t bytes = 0;
	out->used = 0;
	reserve_forget();
	status s = explanation_writer_init(&w, explanation);
	while (s == STATUS_OK) {
		char *data = NULL;
		s = explanation_format_next(f, &w, &data, &bytes, &err);
		if (bytes == 0)
			break;
		assert_true(s == STATUS_OK && out->used + bytes <= ROOM);
		memcpy(out->bytes + out->used, data, bytes);
		out->used += bytes;
		free(data);
	}
	explanation_writer_fini(&w);
	return s;
}

static json_t *tokens(int n)
{
	json_t *list = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(list,
		                      json_pack("{s:i, s:s, s:i}", "id", i, "text", i % 7 ? "x" : "\"", "offset", i));
	return list;
}

static json_t *numbers(int n)
{
	json_t *list = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(list, json_real((double)(float)(0.1 * i - 1)));
	return list;
}

/* More rows than fit into a piece. */
static json_t *large_explanation(void)
{
	enum { TOKENS = 3000 };
	json_t *rows = json_pack("[{s:i, s:o}, {s:i, s:o}]", "position", 1, "top", json_pack("[[i, f]]", 1, 0.5),
	                         "position", 2, "top", json_pack("[[i, f], [i, f]]", 0, -2.0, 2, 1.0));
	return json_pack(
	    "{s:s, s:s, s:i, s:o, s:[{s:i, s:i, s:s, s:[i, i], s:o}, {s:i, s:i, s:s, s:[i, i], s:o}], s:{s:o, s:b}}",
	    "object", "explanation", "model", "m", "position", TOKENS - 1, "tokens", tokens(TOKENS), "weights", "layer",
	    0, "head", 0, "round", "query", "window", 0, TOKENS - 1, "alpha", numbers(TOKENS), "layer", 1, "head", 1,
	    "round", "key", "window", 8, TOKENS - 1, "alpha", numbers(TOKENS - 8), "span", "rows", rows, "has_more", 1);
}

static void an_explanation_is_written_completely_or_not_at_all(void **state)
{
	output *expected = malloc(sizeof *expected), *found = malloc(sizeof *found);
	json_t *explanation = large_explanation();
	(void)state;
	assert_non_null(explanation);
	for (int i = 0; i < FORMATS; i++) {
		const explanation_format *f = explanation_format_find(names[i]);
		assert_int_equal(write_all(f, explanation, expected), STATUS_OK);
		assert_true(expected->used > 1000);
		int64_t n = 0;
		for (bool refused = true; refused; n++) {
			allocations_fail(n, false);
			status s = write_all(f, explanation, found);
			allocations_limit(-1);
			refused = allocations_refused();
			if (s == STATUS_OK)
				assert_true(found->used == expected->used &&
				            memcmp(found->bytes, expected->bytes, found->used) == 0);
			else
				assert_int_equal(s, STATUS_NOMEM);
			assert_true(refused || s == STATUS_OK);
		}
		assert_true(n > 6);
	}
	json_decref(explanation);
	free(expected);
	free(found);
}

static void an_unknown_format_is_not_found(void **state)
{
	(void)state;
	assert_null(explanation_format_find("json"));
	assert_null(explanation_format_find("arrow"));
	assert_null(explanation_format_find(""));
}

int main(void)
{
	json_memory_install(reserve_malloc, reserve_free);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_explanation_is_written_completely_or_not_at_all),
	    cmocka_unit_test(an_unknown_format_is_not_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
