/* A program that re-executes itself: this one, in a child process whose exit status reports what it found. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/daemon/successor.h"

enum { HANDED_OVER = 42, SOMETHING_ELSE = 43, DESCRIPTOR = 77 };

static const successor given = {.devices = {{.restarts = 5000000000u,
                                             .processes = 3,
                                             .in_vain = 2,
                                             .name = "cuda",
                                             .description = "NVIDIA H100 80GB HBM3, 79 GiB, sm_90",
                                             .bf16 = true},
                                            {.restarts = 2,
                                             .processes = 3,
                                             .in_vain = 1,
                                             .name = "cuda",
                                             .description = "4 devices may begin with a number"}},
                                .n_devices = 2,
                                .address = "127.0.0.1:7000"};

static bool same_device(const device_history *x, const device_history *y)
{
	return x->restarts == y->restarts && x->processes == y->processes && x->in_vain == y->in_vain &&
	       x->bf16 == y->bf16 && strcmp(x->name, y->name) == 0 && strcmp(x->description, y->description) == 0;
}

static bool same(const successor *a, const successor *b)
{
	bool equal = a->n_devices == b->n_devices && strcmp(a->address, b->address) == 0;
	for (int i = 0; i < FLEET_MAX; i++)
		equal &= same_device(&a->devices[i], &b->devices[i]);
	return equal;
}

/* `parent` is the process id before re-execution. */
static int look_at_what_came(const char *parent)
{
	successor got, again;
	successor_read(&got);
	successor_read(&again); /* removed from the environment, so that children do not see it */
	return same(&got, &given) && !again.n_devices && getpid() == atoi(parent) && fcntl(DESCRIPTOR, F_GETFD) < 0
	           ? HANDED_OVER
	           : SOMETHING_ELSE;
}

static void data_is_handed_over_to_the_same_process_without_its_descriptors(void **state)
{
	(void)state;
	int how;
	if (getenv("RUN_UNIT")) /* a program under an emulator of another processor cannot re-execute itself */
		skip();
	pid_t child = fork();
	if (child == 0) {
		char id[16];
		snprintf(id, sizeof id, "%d", (int)getpid());
		char *arguments[] = {"test_successor", id, NULL};
		dup2(STDERR_FILENO, DESCRIPTOR);
		successor_execute(&given, arguments);
		_exit(SOMETHING_ELSE);
	}
	assert_int_equal(waitpid(child, &how, 0), child);
	assert_true(WIFEXITED(how));
	assert_int_equal(WEXITSTATUS(how), HANDED_OVER);
}

static void without_a_handover_all_fields_are_zero(void **state)
{
	static const char *const texts[] = {NULL, "", "1 2 3", "1 2 3 1\ncuda\n", "x y z w\ncuda\na\nb"};
	successor got;
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		if (texts[i])
			setenv("ADDITIVE_SUCCESSOR", texts[i], 1);
		successor_read(&got);
		assert_true(same(&got, &(successor){0}));
		assert_null(getenv("ADDITIVE_SUCCESSOR"));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(data_is_handed_over_to_the_same_process_without_its_descriptors),
	    cmocka_unit_test(without_a_handover_all_fields_are_zero),
	};
	return argc > 1 ? look_at_what_came(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
