/* An archive's files are the same however its bytes are split; entries that would leave the folder are refused. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/tar.h"

enum { MOST = 64 * TAR_BLOCK };

typedef struct archive {
	unsigned char bytes[MOST];
	size_t used;
} archive;

/* Append a header with its checksum; with type x or L, `data` describes the next entry. */
static void add(archive *a, char type, const char *name, const char *data)
{
	unsigned char *block = a->bytes + a->used;
	unsigned sum = 0;
	size_t bytes = strlen(data);
	char field[32];
	memset(block, 0, TAR_BLOCK);
	memcpy(block, name, strlen(name));
	snprintf(field, sizeof field, "%011zo", bytes);
	memcpy(block + 124, field, 12);
	block[156] = (unsigned char)type;
	memcpy(block + 257,
	       "ustar\0"
	       "00",
	       8);
	memset(block + 148, ' ', 8);
	for (int i = 0; i < TAR_BLOCK; i++)
		sum += block[i];
	snprintf(field, sizeof field, "%06o", sum);
	memcpy(block + 148, field, 7);
	a->used += TAR_BLOCK;
	memcpy(a->bytes + a->used, data, bytes);
	a->used += (bytes + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
	assert_true(a->used < MOST - 2 * TAR_BLOCK);
}

static status begin(void *context, const char *path, int64_t bytes, error *err)
{
	char *log = context;
	(void)err;
	sprintf(log + strlen(log), "%s %d:", path, (int)bytes);
	return STATUS_OK;
}

static status data(void *context, const void *bytes, size_t count, error *err)
{
	(void)err;
	strncat(context, bytes, count);
	return STATUS_OK;
}

static status end(void *context, error *err)
{
	(void)err;
	strcat(context, ";");
	return STATUS_OK;
}

/* Unpack the archive in pieces of `piece` bytes and record the files, or the error's message. */
static status unpack(const archive *a, size_t piece, char *log, error *err)
{
	tar_reader t = {.events = {begin, data, end}, .context = log};
	status s = STATUS_OK;
	log[0] = '\0';
	for (size_t at = 0; at < a->used && s == STATUS_OK; at += piece)
		s = tar_feed(&t, a->bytes + at, a->used - at < piece ? a->used - at : piece, err);
	if (s == STATUS_OK)
		s = tar_finish(&t, err);
	tar_fini(&t);
	return s;
}

static void the_files_are_the_same_however_the_archive_is_split(void **state)
{
	(void)state;
	static archive a;
	char log[4096];
	a.used = 0;
	add(&a, 'g', "pax_global_header", "20 comment=whatever\n");
	add(&a, '5', "folder/", "");
	add(&a, '0', "./config.json", "{}");
	add(&a, 'x', "PaxHeaders/x", "18 path=long/name\n13 mtime=1.5\n");
	add(&a, '0', "short", "abc");
	add(&a, 'L', "././@LongLink", "gnu/long");
	add(&a, '\0', "gnu", "");
	add(&a, '0', "plain", "x");
	add(&a, '0', ".//./etc/passwd", "y");
	memset(a.bytes + a.used, 0, TAR_BLOCK);
	a.used += TAR_BLOCK;
	for (size_t piece = 1; piece <= a.used; piece += piece < 1100 ? 1 : 511) {
		assert_int_equal(unpack(&a, piece, log, NULL), STATUS_OK);
		assert_string_equal(log, "config.json 2:{};long/name 3:abc;gnu/long 0:;plain 1:x;etc/passwd 1:y;");
	}
	for (size_t used = 0; used < a.used; used++) {
		archive cut = {.used = used};
		error err = ERROR_INIT;
		memcpy(cut.bytes, a.bytes, used);
		assert_int_equal(unpack(&cut, 4096, log, &err), STATUS_CORRUPT);
	}
}

static void entries_that_leave_the_folder_or_are_no_files_are_refused(void **state)
{
	(void)state;
	static const struct {
		char type;
		const char *name, *data, *words;
	} cases[] = {
	    {'0', "/etc/passwd", "", "absolute"},
	    {'0', "a/../../b", "", "\"..\""},
	    {'0', "..", "", "\"..\""},
	    {'5', "a/..", "", "\"..\""},
	    {'x', "p", "13 path=/etc\n", "absolute"},
	    {'L', "l", "../x", "\"..\""},
	    {'1', "hard", "", "link"},
	    {'2', "soft", "", "link"},
	    {'3', "device", "", "not a regular file"},
	    {'6', "pipe", "", "not a regular file"},
	    {'S', "sparse", "", "not a regular file"},
	    {'x', "p", "25 GNU.sparse.major=1.00\n", "sparse"},
	    {'x', "p", "99 path=x\n", "malformed"},
	    {'x', "p", "11 size=-1\n", "malformed"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		archive a = {.used = 0};
		char log[256];
		error err = ERROR_INIT;
		add(&a, cases[i].type, cases[i].name, cases[i].data);
		if (strchr("xL", cases[i].type))
			add(&a, '0', "next", "");
		a.used += TAR_BLOCK;
		assert_int_not_equal(unpack(&a, 100, log, &err), STATUS_OK);
		assert_non_null(strstr(err.message, cases[i].words));
		assert_string_equal(log, "");
	}
}

static void a_written_header_is_read(void **state)
{
	(void)state;
	archive a = {.used = 0};
	char log[256];
	tar_header((unsigned char *)a.bytes, "one.json", 3);
	memcpy(a.bytes + TAR_BLOCK, "abc", 3);
	assert_int_equal(tar_padding(3), TAR_BLOCK - 3);
	assert_int_equal(tar_padding(0), 0);
	assert_int_equal(tar_padding(TAR_BLOCK), 0);
	tar_header((unsigned char *)a.bytes + 2 * TAR_BLOCK, "empty", 0);
	a.used = 3 * TAR_BLOCK + TAR_END;
	assert_int_equal(unpack(&a, 100, log, NULL), STATUS_OK);
	assert_string_equal(log, "one.json 3:abc;empty 0:;");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_files_are_the_same_however_the_archive_is_split),
	    cmocka_unit_test(a_written_header_is_read),
	    cmocka_unit_test(entries_that_leave_the_folder_or_are_no_files_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
