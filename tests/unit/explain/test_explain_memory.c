/* Every allocation of an explanation fails in turn: the caller gets an error and has nothing to free. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>

#include "engine/cpu/cpu.h"
#include "engine/explain/explain.h"
#include "engine/model/bart/bart.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/parallel_log.h"

enum { TOKENS = 5 };
static const int32_t ids[TOKENS] = {3, 1, 4, 1, 5};
static const bool every[2] = {true, true};
static const explain_selection everything = {every, every, every};

typedef struct fixture {
	backend *backend;
	model *model;
	explain_log log; /* token ids */
	float *data;
	bart_config twice; /* a model that reads its tokens twice */
	explain_logs logs;
	float numbers[400];
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i}", "hidden_size", 8, "n_heads", 2, "n_layer", 2,
	                           "vocab_size", 11, "n_positions", 16);
	assert_int_equal(cpu_open(&f->backend, 1, NULL), STATUS_OK);
	assert_int_equal(model_create(&f->model, architecture_find("additive"), config, 1, f->backend, NULL),
	                 STATUS_OK);
	f->data = parallel_log(f->model, ids, TOKENS, &f->log);
	json_decref(config);
	config =
	    json_pack("{s:s, s:i, s:i, s:i, s:i, s:s}", "model_type", "bart", "d_model", 4, "encoder_attention_heads",
	              2, "encoder_layers", 2, "vocab_size", 11, "encoder_attention", "linear");
	assert_int_equal(architecture_read(&architecture_bart, &f->twice, config, NULL), STATUS_OK);
	explain_logs_init(&f->logs, &architecture_bart, &f->twice, f->numbers, TOKENS, 0);
	assert_true(explain_logs_floats(&f->logs) <= (int64_t)(sizeof f->numbers / sizeof *f->numbers));
	json_decref(config);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	free(f->data);
	model_free(f->model);
	backend_close(f->backend);
	free(f);
	return 0;
}

/* Repeat `attempt` with the first, second, … of the engine's own allocations failing, until none fails. */
static void fail_each(status (*attempt)(const fixture *f, error *err), const fixture *f, int64_t expected)
{
	for (int64_t n = 0;; n++) {
		error err = ERROR_INIT;
		allocations_fail(n, true);
		status s = attempt(f, &err);
		allocations_limit(-1);
		if (!allocations_refused()) {
			assert_int_equal(s, STATUS_OK);
			assert_true(n >= expected);
			return;
		}
		assert_int_equal(s, STATUS_NOMEM);
	}
}

static status mean(const fixture *f, error *err)
{
	(void)err;
	double out[TOKENS];
	return explain_mean(&f->log, &everything, TOKENS - 1, out);
}

static status rollout(const fixture *f, error *err)
{
	(void)err;
	double out[TOKENS];
	return explain_rollout(&f->log, &everything, TOKENS - 1, out);
}

static status mean_of_all(const fixture *f, error *err)
{
	(void)err;
	double out[TOKENS];
	return explain_mean_of_all(&f->log, &everything, out);
}

static status twice(const fixture *f, error *err)
{
	(void)err;
	double out[TOKENS];
	return explain_twice(&f->logs, &everything, TOKENS - 1, true, out);
}

static void scores_are_aggregated_or_an_error_is_returned(void **state)
{
	fail_each(mean, *state, 1);
	fail_each(rollout, *state, 3);
	fail_each(mean_of_all, *state, 3);
	fail_each(twice, *state, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(scores_are_aggregated_or_an_error_is_returned),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
