/* A kernel that accesses memory outside the device's, in a process of its own. The program executes itself as
 * `test_fault lose` and `test_fault use`, before any call of CUDA. On a GPU the fault is real. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/device.h"

extern char **environ;

/* Exit statuses of a child. */
enum { WORKS = 0, MUST_RESTART = 10, WRONG = 20 };

enum { N = 1000 };

/* --- in a child ------------------------------------------------------------------------------ */

/* True if 2 x + x is right, by kernels that run one by one, recorded and replayed. */
static bool computes(backend *b)
{
	graph *g = graph_new();
	plan *p;
	float x[N], y[N];
	value in = graph_input(g, "x", DTYPE_F32, SHAPE1(N));
	graph_output(g, op_add(g, op_scale(g, in, 2), in), "y");
	bool right = plan_new(&p, g, b, NULL, 0, NULL) == STATUS_OK;
	for (int run = 0; run < 4 && right; run++) {
		for (int i = 0; i < N; i++)
			x[i] = (float)(i + run);
		right &= plan_write(p, in, x) == STATUS_OK && plan_run(p) == STATUS_OK &&
		         plan_read(p, graph_find(g, "y"), y) == STATUS_OK;
		for (int i = 0; i < N && right; i++)
			right &= y[i] == 3 * x[i];
	}
	if (p)
		plan_free(p);
	return right;
}

static status plant_fault(backend *b)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/additive-cuda.so", getenv("ADDITIVE_PLUGIN_DIR"));
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	status (*plant)(backend * b) = NULL;
	if (plugin)
		*(void **)&plant = dlsym(plugin, "additive_cuda_plant_fault");
	if (device_is_emulated(b)) /* a real fault would end the process */
		setenv("ADDITIVE_EMULATOR_FAULT", "launch:1", 1);
	status s = plant ? plant(b) : STATUS_INTERNAL;
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	return s == STATUS_OK ? b->synchronize(b) : s;
}

static int open_and_use(void)
{
	backend *b;
	error err = ERROR_INIT;
	if (backend_open(&b, "cuda", NULL, cpu_open, 0, &err) != STATUS_OK) {
		printf("cannot be opened: %s\n", error_message(&err));
		return err.status == STATUS_DEVICE && strstr(err.message, "restart the process")
		           ? MUST_RESTART
		           : WRONG;
	}
	bool right = computes(b);
	backend_close(b);
	printf("%s\n", right ? "computes" : "computes something wrong");
	return right ? WORKS : WRONG;
}

/* reopening: a fault planted when the emulated device is opened again, or NULL. */
static int lose_and_open_again(const char *reopening)
{
	backend *b;
	if (backend_open(&b, "cuda", NULL, cpu_open, 0, NULL) != STATUS_OK || !computes(b))
		return WRONG;
	if (plant_fault(b) != STATUS_DEVICE || b->synchronize(b) != STATUS_DEVICE || computes(b)) {
		printf("the fault does not lose the device\n");
		return WRONG;
	}
	backend_close(b);
	if (reopening)
		setenv("ADDITIVE_EMULATOR_FAULT", reopening, 1);
	return open_and_use();
}

/* --- in the parent ------------------------------------------------------------------------------ */

static int run_child(const char *what)
{
	char *arguments[] = {"test_fault", (char *)(uintptr_t)what, NULL};
	pid_t child;
	int how = 0;
	assert_int_equal(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
	assert_int_equal(waitpid(child, &how, 0), child);
	if (!WIFEXITED(how))
		fail_msg("`%s` was ended by signal %d", what, WTERMSIG(how));
	return WEXITSTATUS(how);
}

static void after_a_fault_the_device_works_or_needs_a_new_process(void **state)
{
	(void)state;
	const int end = run_child("lose");
	assert_true(end == WORKS || end == MUST_RESTART);
}

static void a_new_process_works_on_a_device_that_another_has_lost(void **state)
{
	(void)state;
	assert_int_not_equal(run_child("lose"), WRONG);
	assert_int_equal(run_child("use"), WORKS);
}

/* After this reset every call succeeds until a kernel runs. */
static void a_device_is_open_only_after_it_has_computed_something(void **state)
{
	(void)state;
	if (!getenv("ADDITIVE_EMULATOR"))
		skip();
	assert_int_equal(run_child("lose and fail"), MUST_RESTART);
}

/* Both ways are tried on the emulated device; a real one decides by itself. */
static void the_result_of_a_reset_decides_if_the_process_continues(void **state)
{
	(void)state;
	if (!getenv("ADDITIVE_EMULATOR"))
		skip();
	assert_int_equal(run_child("lose"), WORKS);
	setenv("ADDITIVE_EMULATOR_RESET", "0", 1);
	assert_int_equal(run_child("lose"), MUST_RESTART);
	unsetenv("ADDITIVE_EMULATOR_RESET");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(after_a_fault_the_device_works_or_needs_a_new_process),
	    cmocka_unit_test(a_new_process_works_on_a_device_that_another_has_lost),
	    cmocka_unit_test(a_device_is_open_only_after_it_has_computed_something),
	    cmocka_unit_test(the_result_of_a_reset_decides_if_the_process_continues),
	};
	find_plugin();
	if (argc > 1 && strcmp(argv[1], "use") == 0)
		return open_and_use();
	if (argc > 1)
		return lose_and_open_again(strcmp(argv[1], "lose") == 0 ? NULL : "launch:1:cudaErrorLaunchFailure");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
