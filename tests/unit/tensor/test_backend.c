#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cpu/cpu.h"
#include "tests/unit/support/folder.h"

static void memory_is_aligned_and_zeroed(void **state)
{
	(void)state;
	backend *b;
	assert_int_equal(cpu_reference_open(&b, 0, NULL), STATUS_OK);
	assert_true(b->host_memory);
	static const size_t sizes[] = {0, 1, 63, 64, 65, 100000};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		unsigned char *data;
		assert_int_equal(b->allocate(b, sizes[i], (void **)&data), STATUS_OK);
		assert_non_null(data);
		assert_int_equal((uintptr_t)data % 64, 0);
		for (size_t j = 0; j < sizes[i]; j++)
			assert_int_equal(data[j], 0);
		memset(data, 1, sizes[i]);
		assert_int_equal(b->clear(b, data, sizes[i]), STATUS_OK);
		assert_true(!sizes[i] || (data[0] == 0 && data[sizes[i] - 1] == 0));
		b->release(b, data);
	}
	b->release(b, NULL);
	backend_close(b);
}

static void too_much_memory_is_a_status(void **state)
{
	(void)state;
	backend *b;
	void *data = &b;
	assert_int_equal(cpu_reference_open(&b, 0, NULL), STATUS_OK);
	assert_int_equal(b->allocate(b, SIZE_MAX, &data), STATUS_NOMEM);
	assert_null(data);
	backend_close(b);
	backend_close(NULL);
}

static void downloaded_bytes_equal_the_uploaded_ones(void **state)
{
	(void)state;
	backend *b;
	void *first, *second;
	char back[6];
	assert_int_equal(cpu_reference_open(&b, 0, NULL), STATUS_OK);
	assert_int_equal(b->allocate(b, 6, &first), STATUS_OK);
	assert_int_equal(b->allocate(b, 6, &second), STATUS_OK);
	assert_int_equal(b->upload(b, first, "hello", 6), STATUS_OK);
	assert_int_equal(b->copy(b, second, first, 6), STATUS_OK);
	assert_int_equal(b->synchronize(b), STATUS_OK);
	assert_int_equal(b->download(b, back, second, 6), STATUS_OK);
	assert_string_equal(back, "hello");
	b->release(b, first);
	b->release(b, second);
	backend_close(b);
}

static void reserved_memory_grows_in_place(void **state)
{
	(void)state;
	enum { RESERVED = 1 << 20 };
	backend *b;
	unsigned char *data;
	size_t have = 0, before;
	assert_int_equal(cpu_reference_open(&b, 0, NULL), STATUS_OK);
	assert_int_equal(b->reserve(b, RESERVED, (void **)&data), STATUS_OK);
	for (size_t bytes = 1; bytes <= RESERVED; bytes *= 32) {
		before = have;
		assert_int_equal(b->extend(b, data, bytes, &have), STATUS_OK);
		assert_true(have >= bytes && have >= before);
		for (size_t i = before; i < have && i < RESERVED; i++) {
			assert_int_equal(data[i], 0);
			data[i] = (unsigned char)(i * 7);
		}
	}
	for (size_t i = 0; i < RESERVED; i++)
		assert_int_equal(data[i], (unsigned char)(i * 7));
	assert_int_equal(b->retract(b, data, have, RESERVED / 2, &before), STATUS_OK);
	assert_true(before >= RESERVED / 2 && before < RESERVED);
	assert_int_equal(b->extend(b, data, RESERVED, &have), STATUS_OK);
	for (size_t i = 0; i < RESERVED; i++)
		assert_int_equal(data[i], i < before ? (unsigned char)(i * 7) : 0);
	b->unreserve(b, data, RESERVED);
	b->unreserve(b, NULL, 0);
	assert_int_equal(b->reserve(b, SIZE_MAX / 2, (void **)&data), STATUS_NOMEM);
	assert_null(data);
	backend_close(b);
}

/* --- opening by name --------------------------------------------------------------------- */

static void the_cpu_is_opened_by_its_opener(void **state)
{
	(void)state;
	backend *b;
	assert_int_equal(backend_open(&b, "cpu", NULL, cpu_reference_open, 0, NULL), STATUS_OK);
	assert_string_equal(b->name, "cpu");
	backend_close(b);
}

static void an_unknown_name_is_refused(void **state)
{
	(void)state;
	backend *b;
	error err = ERROR_INIT;
	assert_int_equal(backend_open(&b, "abacus", NULL, cpu_reference_open, 0, &err), STATUS_INVALID);
	assert_null(b);
	assert_string_equal(err.param, "backend");
	assert_non_null(strstr(err.message, "abacus"));
}

/* A folder for this test's plug-ins; path: the plug-in's place. */
static void make_folder(char *folder, char *path)
{
	folder_new(folder);
	sprintf(path, "%s/additive-cuda.so", folder);
	setenv("ADDITIVE_PLUGIN_DIR", folder, 1);
}

static void remove_folder(const char *folder, const char *path)
{
	unlink(path);
	assert_int_equal(rmdir(folder), 0);
	unsetenv("ADDITIVE_PLUGIN_DIR");
}

static void expect_unavailable(const char *words)
{
	backend *b;
	error err = ERROR_INIT;
	assert_int_equal(backend_open(&b, "cuda", NULL, cpu_reference_open, 0, &err), STATUS_UNAVAILABLE);
	assert_null(b);
	if (!strstr(err.message, words) || strstr(err.message, getenv("ADDITIVE_PLUGIN_DIR")))
		fail_msg("%s", err.message);
	assert_int_equal(backend_open(&b, "auto", NULL, cpu_reference_open, 0, NULL), STATUS_OK);
	assert_string_equal(b->name, "cpu");
	backend_close(b);
}

static void a_missing_plugin_is_reported_and_auto_uses_the_cpu(void **state)
{
	(void)state;
	char folder[64], path[96];
	make_folder(folder, path);
	expect_unavailable("there is no additive-cuda.so");
	remove_folder(folder, path);
}

static void a_broken_plugin_is_reported_and_auto_uses_the_cpu(void **state)
{
	(void)state;
	char folder[64], path[96];
	make_folder(folder, path);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs("not a shared object", f);
	assert_int_equal(fclose(f), 0);
	expect_unavailable("cannot be loaded");
	remove_folder(folder, path);
}

static void an_installed_plugin_is_found_from_the_programs_folder(void **state)
{
	(void)state;
	backend *b;
	error err = ERROR_INIT;
	char folder[PATH_MAX], path[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
	assert_true(n > 0);
	folder[n] = '\0';
	*strrchr(folder, '/') = '\0';
	snprintf(path, sizeof path, "%s/../lib/additive/additive-cuda.so", folder);
	for (char *slash = strstr(path, "/lib/") + 4; slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0777);
		*slash = '/';
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(backend_open(&b, "cuda", NULL, cpu_reference_open, 0, &err), STATUS_UNAVAILABLE);
	assert_int_equal(unlink(path), 0);
	assert_non_null(strstr(err.message, "cannot be loaded"));
}

/* Compile a plug-in of one line. */
static void compile_plugin(const char *path, const char *source)
{
	char command[1024];
	const char *compiler = getenv("CC");
	snprintf(command, sizeof command, "%s -shared -fPIC -x c - -o %s", compiler ? compiler : "cc", path);
	FILE *cc = popen(command, "w");
	assert_non_null(cc);
	fputs(source, cc);
	assert_int_equal(pclose(cc), 0);
}

static void a_plugin_of_another_interface_is_refused(void **state)
{
	(void)state;
	char folder[64], path[96];
	make_folder(folder, path);
	compile_plugin(path,
	               "struct { int abi; char *name; void *open; } additive_backend_plugin = {999, \"cuda\", 0};");
	char words[96];
	snprintf(words, sizeof words, "built for interface 000003e7 and this program for %08x: build both",
	         (unsigned)BACKEND_ABI);
	expect_unavailable(words);
	remove_folder(folder, path);
}

static void a_library_that_is_no_plugin_is_refused(void **state)
{
	(void)state;
	char folder[64], path[96];
	make_folder(folder, path);
	compile_plugin(path, "int something_else;");
	expect_unavailable("not a plug-in");
	remove_folder(folder, path);
}

static void without_a_device_for_its_plugin_auto_uses_the_cpu(void **state)
{
	(void)state;
	char folder[64], path[96], source[256];
	make_folder(folder, path);
	snprintf(source, sizeof source,
	         "static int none(void **out, void *err) { return *out = 0, %d; }"
	         "struct { int abi; char *name; int (*open)(); } additive_backend_plugin = {%d, \"cuda\", none};",
	         STATUS_UNAVAILABLE, BACKEND_ABI);
	compile_plugin(path, source);
	expect_unavailable("the cuda backend cannot be opened");
	remove_folder(folder, path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(memory_is_aligned_and_zeroed),
	    cmocka_unit_test(too_much_memory_is_a_status),
	    cmocka_unit_test(downloaded_bytes_equal_the_uploaded_ones),
	    cmocka_unit_test(reserved_memory_grows_in_place),
	    cmocka_unit_test(the_cpu_is_opened_by_its_opener),
	    cmocka_unit_test(an_unknown_name_is_refused),
	    cmocka_unit_test(an_installed_plugin_is_found_from_the_programs_folder),
	    cmocka_unit_test(a_missing_plugin_is_reported_and_auto_uses_the_cpu),
	    cmocka_unit_test(a_broken_plugin_is_reported_and_auto_uses_the_cpu),
	    cmocka_unit_test(a_plugin_of_another_interface_is_refused),
	    cmocka_unit_test(a_library_that_is_no_plugin_is_refused),
	    cmocka_unit_test(without_a_device_for_its_plugin_auto_uses_the_cpu),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
