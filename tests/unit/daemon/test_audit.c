/* test_audit.c - the audit log on a disk that has no room for a line. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/requests/audit.h"
#include "tests/unit/support/folder.h"

enum { MAX_LINES = 1 << 20 };

static bool record(stream *s, status result, const char *text)
{
	return audit_record(s->net->owner, s, result, text);
}

static void answer(net *n, const char *target)
{
	stream *s = stream_new(n, NULL, 1, 0);
	s->method = "key.delete";
	strcpy(s->target, target);
	stream_result(s, json_object());
	uv_run(n->loop, UV_RUN_DEFAULT);
	assert_int_equal(n->streams, 0);
}

static size_t size_of(const char *path)
{
	char *text;
	size_t bytes;
	assert_int_equal(file_read(path, MAX_LINES, &text, &bytes, NULL), STATUS_OK);
	free(text);
	return bytes;
}

static void allow_bytes(rlim_t bytes)
{
	struct rlimit limit;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_line_without_room_leaves_nothing_in_the_file(void **state)
{
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 8], *text;
	uv_loop_t loop;
	audit *a;
	size_t bytes, left;
	(void)state;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/audit", folder);
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(audit_open(&a, &loop, path, NULL), STATUS_OK);
	net *n = memory_new(1, sizeof *n);
	n->loop = &loop;
	n->owner = a;
	n->answered = record;
	answer(n, "first");
	const size_t whole = size_of(path);
	struct rlimit before;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	allow_bytes(whole + 10);
	answer(n, "second");
	left = size_of(path);
	allow_bytes(before.rlim_cur);
	assert_int_equal(left, whole);
	answer(n, "third");
	assert_int_equal(file_read(path, MAX_LINES, &text, &bytes, NULL), STATUS_OK);
	assert_non_null(strstr(text, "\"first\""));
	assert_null(strstr(text, "\"second\""));
	assert_memory_equal(text + whole, "{\"time\"", 7);
	assert_non_null(strstr(text + whole, "\"third\""));
	free(text);
	free(n);
	audit_free(a);
	assert_int_equal(uv_loop_close(&loop), 0);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_line_without_room_leaves_nothing_in_the_file)};
	signal(SIGXFSZ, SIG_IGN);
	log_init("test", LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
