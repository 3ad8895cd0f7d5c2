/* test_listing.c - the rows that a list of one project reads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/requests/listing.h"
#include "engine/store/store_private.h"
#include "tests/unit/support/folder.h"

enum { OTHERS = 500, SPARE_STEPS = 200 };

static int rows; /* number in the latest answer */

static bool count_rows(stream *s, status result, const char *text)
{
	json_t *answer = json_loads(text, 0, NULL);
	(void)s;
	assert_int_equal(result, STATUS_OK);
	rows = (int)json_array_size(json_object_get(answer, "data"));
	json_decref(answer);
	return false;
}

static int add_steps(unsigned event, void *context, void *statement, void *time)
{
	(void)event;
	(void)time;
	*(int64_t *)context += sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 0);
	return 0;
}

static void add_rows(store *s, const char *project, int n)
{
	char id[32];
	assert_int_equal(store_begin(s, NULL), STATUS_OK);
	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof id, "%s-%d", project, i);
		json_t *document = json_pack("{s:s, s:s}", "id", id, "project", project);
		assert_int_equal(store_response_put(s, id, document, NULL), STATUS_OK);
		json_decref(document);
	}
	assert_int_equal(store_commit(s, NULL), STATUS_OK);
}

/* Return the steps of SQLite's machine for a list. admin: for one that sees every project. */
static int64_t steps_of_list(net *n, bool admin, const char *filter, int expected)
{
	int64_t steps = 0;
	stream *s = stream_new(n, NULL, 1, 0);
	s->params = json_pack("{s:s*}", "project", filter);
	s->scope.all = admin;
	if (!admin)
		project_set(&s->scope, "small");
	sqlite3_trace_v2(n->store->db, SQLITE_TRACE_PROFILE, add_steps, &steps);
	listing_answer(s, STORE_RESPONSES, NULL, 10, NULL);
	sqlite3_trace_v2(n->store->db, 0, NULL, NULL);
	assert_int_equal(rows, expected);
	return steps;
}

static void a_list_of_one_project_reads_no_rows_of_another(void **state)
{
	char folder[FOLDER_BYTES];
	uv_loop_t loop;
	(void)state;
	folder_new(folder);
	assert_int_equal(uv_loop_init(&loop), 0);
	net *n = memory_new(1, sizeof *n);
	n->loop = &loop;
	n->answered = count_rows;
	assert_int_equal(store_open(&n->store, folder, NULL), STATUS_OK);
	add_rows(n->store, "small", 3);
	const int64_t before = steps_of_list(n, false, NULL, 3);
	add_rows(n->store, "large", OTHERS);
	assert_true(before > 0);
	assert_true(steps_of_list(n, false, NULL, 3) < before + SPARE_STEPS);
	assert_true(steps_of_list(n, false, "large", 0) < before + SPARE_STEPS);
	assert_true(steps_of_list(n, true, "small", 3) < before + SPARE_STEPS);
	assert_true(steps_of_list(n, true, "default", 0) < before + SPARE_STEPS);
	steps_of_list(n, true, NULL, 10);
	store_close(n->store);
	free(n);
	assert_int_equal(uv_loop_close(&loop), 0);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_list_of_one_project_reads_no_rows_of_another)};
	log_init("test", LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
