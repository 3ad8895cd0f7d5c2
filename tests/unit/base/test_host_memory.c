#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>

#include "engine/base/host_memory.h"

/* Return the number at the start of a file; 0: none. */
static double number_in(const char *path, const char *format)
{
	double number = 0;
	FILE *f = fopen(path, "re");
	if (f && fscanf(f, format, &number) != 1)
		number = 0;
	if (f)
		fclose(f);
	return number;
}

static void it_is_the_machines_or_the_limit_of_a_group(void **state)
{
	const double bytes = host_memory_bytes(), machine = 1024 * number_in("/proc/meminfo", "MemTotal: %lf");
	const double limits[] = {number_in("/sys/fs/cgroup/memory.max", "%lf"),
	                         number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%lf")};
	(void)state;
	assert_true(bytes > 0 && machine > 0 && bytes <= machine * 1.01);
	for (int i = 0; i < 2; i++)
		assert_true(limits[i] == 0 || bytes <= limits[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_the_machines_or_the_limit_of_a_group)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
