/* test_short_slice.c - time slices as the kernel reports them; the tests are skipped before Linux 6.12, which has
 * none. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/short_slice.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's sched_attr, whose header conflicts with pthread.h. */
typedef struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
} attributes;

static uint64_t slice_ns(void)
{
	attributes a = {0};
	return syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 ? a.runtime : 0;
}

static void *report(void *slice)
{
	*(uint64_t *)slice = slice_ns();
	return NULL;
}

static void *take_and_start_another(void *slices)
{
	uint64_t *ns = slices;
	pthread_t other;
	ns[0] = slice_ns();
	short_slice_take();
	ns[1] = slice_ns();
	if (pthread_create(&other, NULL, report, &ns[2]) == 0)
		pthread_join(other, NULL);
	return NULL;
}

static void a_short_slice_is_that_of_its_thread_only(void **state)
{
	(void)state;
	uint64_t ns[3] = {0};
	pthread_t thread;
	if (slice_ns() == 0)
		skip();
	assert_int_equal(pthread_create(&thread, NULL, take_and_start_another, ns), 0);
	pthread_join(thread, NULL);
	assert_true(ns[1] < ns[0]);
	assert_int_equal(ns[2], ns[0]);
	assert_int_equal(slice_ns(), ns[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_short_slice_is_that_of_its_thread_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
