/* test_audit.c - the audit log on a disk that has no room for a line, and on one that hangs. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void close_log(uv_loop_t *loop, audit *a)
{
	audit_close(a);
	uv_run(loop, UV_RUN_DEFAULT);
	audit_free(a);
	assert_int_equal(uv_loop_close(loop), 0);
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
	close_log(&loop, a);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void change(net *n, int number)
{
	stream *s = stream_new(n, NULL, 1, 0);
	s->method = "key.delete";
	snprintf(s->target, sizeof s->target, "key-%d", number);
	stream_result(s, json_object());
}

static void count_work(uv_work_t *work)
{
	++*(int *)work->data;
}

static void work_done(uv_work_t *work, int cancelled)
{
	(void)cancelled;
	work->data = NULL;
}

/* Opening a pipe that has no reader hangs. */
static void a_disk_that_hangs_holds_answers_in_order_and_nothing_else(void **state)
{
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 8], text[4096];
	uv_loop_t loop;
	audit *a;
	int pooled = 0;
	(void)state;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/audit", folder);
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(audit_open(&a, &loop, path, NULL), STATUS_OK);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	net *n = memory_new(1, sizeof *n);
	n->loop = &loop;
	n->owner = a;
	n->answered = record;
	stream changing = {.method = "key.delete"}, reading = {.method = "key.list"};
	for (int i = 0; i < AUDIT_MAX_LINES; i++) {
		assert_false(audit_is_full(a, &changing));
		change(n, i);
	}
	assert_true(audit_is_full(a, &changing));
	assert_false(audit_is_full(a, &reading));
	uv_work_t work = {.data = &pooled}; /* the pool has one thread */
	assert_int_equal(uv_queue_work(&loop, &work, count_work, work_done), 0);
	while (work.data)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(pooled, 1);
	assert_int_equal(n->streams, AUDIT_MAX_LINES);

	const int in = open(path, O_RDONLY | O_NONBLOCK);
	size_t used = 0, lines = 0;
	char name[40];
	while (n->streams > 0 || lines < AUDIT_MAX_LINES) {
		const ssize_t got = read(in, text + used, sizeof text - 1 - used);
		used += got > 0 ? (size_t)got : 0;
		text[used] = 0;
		for (char *end; (end = strchr(text, '\n'));) {
			*end = 0;
			snprintf(name, sizeof name, "\"target\":\"key-%zu\"", lines++);
			assert_non_null(strstr(text, name));
			used -= (size_t)(end + 1 - text);
			memmove(text, end + 1, used + 1);
		}
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_false(audit_is_full(a, &changing));
	close(in);
	free(n);
	close_log(&loop, a);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_without_room_leaves_nothing_in_the_file),
	    cmocka_unit_test(a_disk_that_hangs_holds_answers_in_order_and_nothing_else),
	};
	signal(SIGXFSZ, SIG_IGN);
	setenv("UV_THREADPOOL_SIZE", "1", 1);
	log_init("test", LOG_ERROR + 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
