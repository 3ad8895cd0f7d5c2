/* Sums over processes on the device: with one rank on a machine with one GPU and NCCL, and with several on the emulated
 * device. The emulated NCCL adds in the order of ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/tensor/ops.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/random.h"

enum { N = 700001, SECONDS = 30 }; /* pieces of several sizes */

static backend *open_alone(void)
{
	backend *b = open_device();
	join_alone(b);
	return b;
}

/* Numbers that include zeros of both signs, infinities, NaN and subnormal numbers. */
static float *numbers_new(uint64_t seed)
{
	static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -3e38f};
	float *x = malloc(N * sizeof *x);
	assert_non_null(x);
	random_normal(x, N, seed, 1);
	memcpy(x, odd, sizeof odd);
	return x;
}

static float *upload_new(backend *b, const float *x)
{
	void *device;
	assert_int_equal(b->allocate(b, N * sizeof *x, &device), STATUS_OK);
	assert_int_equal(b->upload(b, device, x, N * sizeof *x), STATUS_OK);
	return device;
}

static status wait_for_sums(backend *b)
{
	const uint64_t began = clock_ns();
	for (bool complete = false; !complete;) {
		status s = b->collective_poll(b, &complete);
		if (s != STATUS_OK)
			return s;
		if (clock_ns() - began > SECONDS * (uint64_t)1000000000)
			return STATUS_BUSY;
	}
	return STATUS_OK;
}

/* --- one rank -------------------------------------------------------------------------------- */

static void a_sum_over_one_rank_changes_no_bit(void **state)
{
	(void)state;
	backend *b = open_alone();
	float *x = numbers_new(1), *got = malloc(N * sizeof *got), *device = upload_new(b, x);
	assert_non_null(got);
	assert_int_equal(b->collective_sum(b, device, N / 2, 1), STATUS_OK);
	assert_int_equal(b->collective_sum(b, device + N / 2, N - N / 2, 1), STATUS_OK);
	assert_int_equal(wait_for_sums(b), STATUS_OK);
	assert_int_equal(b->download(b, got, device, N * sizeof *got), STATUS_OK);
	assert_memory_equal(got, x, N * sizeof *got);
	b->collective_close(b, false);
	b->release(b, device);
	backend_close(b);
	free(got);
	free(x);
}

static void a_share_is_multiplied_before_the_sum(void **state)
{
	(void)state;
	backend *b = open_alone();
	float *x = numbers_new(2), *got = malloc(N * sizeof *got), *device = upload_new(b, x);
	const float share = 1.0f / 3;
	assert_non_null(got);
	assert_int_equal(b->collective_sum(b, device, N, share), STATUS_OK);
	assert_int_equal(wait_for_sums(b), STATUS_OK);
	assert_int_equal(b->download(b, got, device, N * sizeof *got), STATUS_OK);
	for (int i = 0; i < N; i++)
		assert_true(got[i] == x[i] * share || (isnan(got[i]) && isnan(x[i])));
	b->collective_close(b, false);
	b->release(b, device);
	backend_close(b);
	free(got);
	free(x);
}

/* The sum follows the work issued before it, which has not run yet when the sum is issued. Work issued after the poll
 * sees the sum. */
static void a_sum_is_ordered_with_work_issued_before_and_after_it(void **state)
{
	(void)state;
	backend *b = open_alone();
	float *x = numbers_new(3), *got = malloc(N * sizeof *got), *device = upload_new(b, x);
	void *copy;
	const scale_params twice = {2};
	assert_non_null(got);
	assert_int_equal(b->allocate(b, N * sizeof *x, &copy), STATUS_OK);
	op_call call = {.params = &twice, .n_in = 1, .n_out = 1};
	call.in[0] = call.out[0] = (tensor){device, DTYPE_F32, SHAPE1(N)};
	for (int step = 1; step <= 3; step++) {
		assert_int_equal(b->kernel[OP_scale](b, &call), STATUS_OK);
		assert_int_equal(b->collective_sum(b, device, N, 0.5f), STATUS_OK);
		assert_int_equal(b->clear(b, copy, N * sizeof *x), STATUS_OK); /* concurrent with the sum */
		assert_int_equal(wait_for_sums(b), STATUS_OK);
		assert_int_equal(b->copy(b, copy, device, N * sizeof *x), STATUS_OK);
	}
	assert_int_equal(b->download(b, got, copy, N * sizeof *got), STATUS_OK);
	for (int i = 7; i < N; i++)
		assert_true(got[i] == x[i]);
	b->release(b, copy);
	b->release(b, device);
	backend_close(b); /* closing leaves the group */
	free(got);
	free(x);
}

static void a_group_is_left_and_another_one_joined(void **state)
{
	(void)state;
	backend *b = open_alone();
	bool complete;
	assert_int_equal(b->collective_open(b, (unsigned char[BACKEND_GROUP_BYTES]){0}, 0, 1, 1, NULL),
	                 STATUS_INTERNAL); /* it is already in a group */
	assert_int_equal(b->collective_poll(b, &complete), STATUS_OK);
	assert_true(complete);
	b->collective_close(b, true);
	b->collective_close(b, true);
	assert_int_equal(b->collective_sum(b, NULL, 1, 1), STATUS_INTERNAL);
	assert_int_equal(b->collective_poll(b, &complete), STATUS_INTERNAL);
	join_alone(b);
	b->collective_close(b, false);
	backend_close(b);
}

/* If there are fewer devices than ranks; devices are compared by their bytes. */
static void device_numbers_wrap_around(void **state)
{
	(void)state;
	backend_site first, other;
	backend *b = open_alone();
	backend *again = open_device_as(&(backend_options){
	    .device = 64 * 9 * 5 * 7, .wrap = true}); /* gives the same device if there are 1 … 10 devices */
	assert_int_equal(b->collective_find(b, &first, NULL), STATUS_OK);
	assert_int_equal(again->collective_find(again, &other, NULL), STATUS_OK);
	assert_memory_equal(&first, &other, sizeof first);
	assert_non_null(strstr(first.summed_by, "NCCL 2."));
	backend_close(again);
	backend_close(b);
}

static void an_unusable_library_is_named(void **state)
{
	(void)state;
	static const struct {
		const char *file, *words;
	} rows[] = {{"/nowhere/libnccl.so.2", "libnccl.so.2 cannot be loaded: cannot open shared object file"},
	            {"libm.so.6", "libnccl.so.2 is older than NCCL 2.14"},
	            {"0", "ADDITIVE_NCCL is 0"}};
	find_nccl();
	const char *set = getenv("ADDITIVE_NCCL");
	char *kept = set ? strdup(set) : NULL;
	backend *b = open_device();
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		backend_site site;
		error err = ERROR_INIT;
		setenv("ADDITIVE_NCCL", rows[i].file, 1);
		assert_int_equal(b->collective_find(b, &site, &err), STATUS_UNAVAILABLE);
		if (!strstr(error_message(&err), rows[i].words))
			fail_msg("%s", error_message(&err));
	}
	backend_close(b);
	if (kept)
		setenv("ADDITIVE_NCCL", kept, 1);
	else
		unsetenv("ADDITIVE_NCCL");
	free(kept);
}

/* --- several: processes of their own ------------------------------------------------------------ */

enum { MOST = 3 };

typedef struct member {
	int rank, count, seconds;
	unsigned char id[BACKEND_GROUP_BYTES];
	backend *backend;
} member;

/* Exit with a status on failure: cmocka's asserts work only in the process of the test. */
#define NEED(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "rank %d, line %d: not so: %s\n", m->rank, __LINE__, #condition);              \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static void open_member(member *m)
{
	char device[16];
	error err = ERROR_INIT;
	const backend_options options = {.device = m->rank};
	snprintf(device, sizeof device, "%d", MOST);
	setenv("ADDITIVE_EMULATOR_DEVICES", device, 1);
	NEED(backend_open(&m->backend, "cuda", &options, cpu_open, 0, &err) == STATUS_OK);
	status s = m->backend->collective_open(m->backend, m->id, m->rank, m->count, m->seconds, &err);
	if (s != STATUS_OK) {
		fprintf(stderr, "rank %d: %s\n", m->rank, error_message(&err));
		_exit(s == STATUS_UNAVAILABLE ? 2 : 1);
	}
}

/* Run `rank` in one process for each of `n_ranks` ranks of a group of `count`, and get their exit statuses. */
static void run_ranks(int count, int n_ranks, int seconds, void (*rank)(member *m), int *exits)
{
	member m = {.count = count, .seconds = seconds};
	pid_t pids[MOST];
	find_nccl();
	/* The forking process has not opened a device; the group's name is chosen for the emulated NCCL. */
	snprintf((char *)m.id, sizeof m.id, "/additive-test-%d-%llx", (int)getpid(), (unsigned long long)clock_ns());
	fflush(NULL);
	for (m.rank = 0; m.rank < n_ranks; m.rank++) {
		pids[m.rank] = fork();
		assert_true(pids[m.rank] >= 0);
		if (pids[m.rank] == 0) {
			alarm(2 * SECONDS);
			open_member(&m);
			rank(&m);
			_exit(0);
		}
	}
	for (int i = 0; i < n_ranks; i++) {
		int how;
		assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
		exits[i] = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
	}
}

static void skip_unless_emulator(void)
{
	if (!getenv("ADDITIVE_EMULATOR"))
		skip();
}

static void sum_and_compare(member *m)
{
	backend *b = m->backend;
	float *x[MOST], *got = malloc(N * sizeof *got);
	const float share = 0.75f;
	for (int i = 0; i < m->count; i++)
		x[i] = numbers_new(100 + (uint64_t)i);
	float *device = upload_new(b, x[m->rank]);
	/* First one after another on the same numbers, then several at once. */
	NEED(b->collective_sum(b, device, 1000, share) == STATUS_OK);
	NEED(b->collective_sum(b, device + 1000, N - 1000, share) == STATUS_OK);
	NEED(wait_for_sums(b) == STATUS_OK);
	NEED(b->download(b, got, device, N * sizeof *got) == STATUS_OK);
	for (int i = 0; i < N; i++) {
		float want = x[0][i] * share;
		for (int r = 1; r < m->count; r++) {
			const float part = x[r][i] * share;
			want += part;
		}
		NEED(memcmp(&got[i], &want, sizeof want) == 0 || (isnan(got[i]) && isnan(want)));
	}
	b->collective_close(b, false);
	b->release(b, device);
	backend_close(b);
}

static void ranks_get_the_sum_of_their_numbers(void **state)
{
	(void)state;
	int exits[MOST];
	skip_unless_emulator();
	for (int count = 2; count <= MOST; count++) {
		run_ranks(count, count, SECONDS, sum_and_compare, exits);
		for (int i = 0; i < count; i++)
			assert_int_equal(exits[i], 0);
	}
}

/* Parts of several pieces, and empty ones; each rank knows only its own before. */
static void gather_and_compare(member *m)
{
	backend *b = m->backend;
	int64_t at[MOST + 1] = {0, 3, 3 + (m->count > 2 ? 0 : N - 3), N};
	float *want = numbers_new(7), *own = calloc(N, sizeof *own), *got = malloc(N * sizeof *got);
	at[m->count] = N;
	memcpy(own + at[m->rank], want + at[m->rank], (size_t)(at[m->rank + 1] - at[m->rank]) * sizeof *own);
	float *device = upload_new(b, own);
	for (int i = 0; i < 2; i++) {
		NEED(b->collective_gather(b, device, at) == STATUS_OK);
		NEED(wait_for_sums(b) == STATUS_OK);
		NEED(b->download(b, got, device, N * sizeof *got) == STATUS_OK);
		NEED(memcmp(got, want, N * sizeof *got) == 0);
	}
	b->collective_close(b, false);
	b->release(b, device);
	backend_close(b);
}

static void ranks_get_each_others_numbers(void **state)
{
	(void)state;
	int exits[MOST];
	skip_unless_emulator();
	for (int count = 2; count <= MOST; count++) {
		run_ranks(count, count, SECONDS, gather_and_compare, exits);
		for (int i = 0; i < count; i++)
			assert_int_equal(exits[i], 0);
	}
}

/* The last rank is killed; its sum is never complete, and the other ranks get an error. */
static void lose_the_last(member *m)
{
	backend *b = m->backend;
	float *x = numbers_new(5), *got = malloc(N * sizeof *got), *device = upload_new(b, x);
	NEED(b->collective_sum(b, device, 1000, 1) == STATUS_OK && wait_for_sums(b) == STATUS_OK);
	if (m->rank == m->count - 1)
		kill(getpid(), SIGKILL);
	NEED(b->collective_sum(b, device + 1000, 1000, 1) == STATUS_OK);
	NEED(wait_for_sums(b) == STATUS_UNAVAILABLE);
	/* The device continues to work, first with a sum that never ends, then without it. */
	NEED(b->download(b, got, device + 2000, sizeof *got) == STATUS_OK && got[0] == x[2000]);
	b->collective_close(b, true);
	NEED(b->download(b, got, device + 2000, sizeof *got) == STATUS_OK && got[0] == x[2000]);
	b->release(b, device);
	backend_close(b);
}

static void a_lost_rank_is_detected_and_the_device_keeps_working(void **state)
{
	(void)state;
	int exits[MOST];
	skip_unless_emulator();
	run_ranks(3, 3, SECONDS, lose_the_last, exits);
	assert_int_equal(exits[0], 0);
	assert_int_equal(exits[1], 0);
	assert_int_equal(exits[2], -1);
}

static void do_nothing(member *m)
{
	(void)m;
}

static void waiting_for_missing_ranks_ends_after_a_timeout(void **state)
{
	(void)state;
	int exits[MOST];
	skip_unless_emulator();
	const uint64_t began = clock_ns();
	run_ranks(3, 2, 1, do_nothing, exits);
	assert_int_equal(exits[0], 2);
	assert_int_equal(exits[1], 2);
	assert_true(clock_ns() - began < SECONDS * (uint64_t)1000000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    /* first, because a process that has opened a device must not fork */
	    cmocka_unit_test(ranks_get_the_sum_of_their_numbers),
	    cmocka_unit_test(ranks_get_each_others_numbers),
	    cmocka_unit_test(a_lost_rank_is_detected_and_the_device_keeps_working),
	    cmocka_unit_test(waiting_for_missing_ranks_ends_after_a_timeout),
	    cmocka_unit_test(a_sum_over_one_rank_changes_no_bit),
	    cmocka_unit_test(a_share_is_multiplied_before_the_sum),
	    cmocka_unit_test(a_sum_is_ordered_with_work_issued_before_and_after_it),
	    cmocka_unit_test(a_group_is_left_and_another_one_joined),
	    cmocka_unit_test(device_numbers_wrap_around),
	    cmocka_unit_test(an_unusable_library_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
