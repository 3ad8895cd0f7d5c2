/* Every allocation of creating, reading, writing and compiling a model fails once in turn. The caller gets an error and
 * has nothing to free, and the next attempt succeeds. Under an address sanitizer this finds double frees and leaks.
 *
 * While a document is parsed, only the engine's own allocations fail, not those of jansson's parser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/model/safetensors.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"

#define TRILINEAR_CONFIG                                                                                               \
	"{\"hidden_size\": 16, \"vocab_size\": 37, \"weight_bits\": 2, \"attentions\":"                                \
	" [[{\"slope\": 0, \"hyper\": 1, \"window\": 4}]]}"
#define GPT2_CONFIG "{\"n_embd\": 16, \"n_head\": 2, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 40}"

static char folder[FOLDER_BYTES];
static backend *device;

static int setup(void **state)
{
	(void)state;
	device = fixture_backend();
	folder_new(folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	backend_close(device);
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

typedef enum failing { OWN_ONCE, ANY_ONCE, ANY_FROM_N } failing;

/* Repeat `attempt` with the first, second, … allocation failing, until none fails. It returns the status of the
 * function under test and frees everything. At least `expected` allocations must have failed. */
static void fail_each(status (*attempt)(void *context, error *err), void *context, failing how, int64_t expected)
{
	for (int64_t n = 0;; n++) {
		error err = ERROR_INIT;
		if (how == ANY_FROM_N)
			allocations_limit(n);
		else
			allocations_fail(n, how == OWN_ONCE);
		status s = attempt(context, &err);
		allocations_limit(-1);
		if (!allocations_refused()) {
			assert_string_equal(err.message, "");
			assert_int_equal(s, STATUS_OK);
			assert_true(n >= expected);
			return;
		}
		/* A library may do without a failed allocation. */
		assert_true(s == STATUS_NOMEM || s == STATUS_IO || (s == STATUS_OK && how == ANY_ONCE));
		assert_true(s == STATUS_OK || err.message[0]);
	}
}

static const char *const names[] = {"additive", "gpt2", "trilinear"};
static const char *const configs[] = {SMALL_CONFIG, GPT2_CONFIG, TRILINEAR_CONFIG};
enum { KINDS = sizeof names / sizeof *names };

typedef struct trial {
	int kind; /* index of names */
	dtype weights;
	json_t *json;
	model *model; /* to be saved or compiled */
	forward_spec spec;
} trial;

/* --- creating, reading, writing --------------------------------------------------------------- */

static status create(void *context, error *err)
{
	const trial *t = context;
	model *m;
	status s = model_create(&m, architecture_find(names[t->kind]), t->json, 1, device, err);
	assert_true((s == STATUS_OK) == (m != NULL));
	model_free(m);
	return s;
}

static void a_model_is_created_or_an_error_is_returned(void **state)
{
	(void)state;
	for (trial t = {0}; t.kind < KINDS; t.kind++) {
		t.json = fixture_json(configs[t.kind]);
		fail_each(create, &t, OWN_ONCE, 6);
		fail_each(create, &t, ANY_FROM_N, 6);
		json_decref(t.json);
	}
}

static void save_one(int kind)
{
	model *m = fixture_model_as(architecture_find(names[kind]), configs[kind], device);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
}

static status open_it(void *context, error *err)
{
	const trial *t = context;
	model *m;
	status s = model_open(&m, folder, t->weights, device, err);
	assert_true((s == STATUS_OK) == (m != NULL));
	model_free(m);
	return s;
}

static status check_it(void *context, error *err)
{
	(void)context;
	return model_check(folder, err);
}

static void a_model_is_opened_or_an_error_is_returned(void **state)
{
	(void)state;
	for (trial t = {0}; t.kind < KINDS; t.kind++) {
		save_one(t.kind);
		t.weights = DTYPE_F32;
		fail_each(open_it, &t, OWN_ONCE, 8);
		t.weights = DTYPE_PANEL_INT8;
		fail_each(open_it, &t, OWN_ONCE, 8);
		fail_each(check_it, &t, OWN_ONCE, 7);
	}
}

static status save_it(void *context, error *err)
{
	const trial *t = context;
	char inside[sizeof folder + 16];
	snprintf(inside, sizeof inside, "%s/saved", folder);
	assert_int_equal(file_make_folders(inside, NULL), STATUS_OK);
	status s = model_save(t->model, inside, err);
	allocations_limit(-1);
	if (s == STATUS_OK) { /* a model reported as saved must be complete */
		error check_error = ERROR_INIT;
		model_check(inside, &check_error);
		assert_string_equal(check_error.message, "");
	}
	assert_int_equal(file_remove_tree(inside, NULL), STATUS_OK);
	return s;
}

static void a_model_is_saved_completely_or_an_error_is_returned(void **state)
{
	(void)state;
	for (trial t = {0}; t.kind < KINDS; t.kind++) {
		t.model = fixture_model_as(architecture_find(names[t.kind]), configs[t.kind], device);
		fail_each(save_it, &t, ANY_ONCE, 50);
		model_free(t.model);
	}
}

static status narrow(void *context, error *err)
{
	return model_update_bf16_copy(((trial *)context)->model, err);
}

static void the_bf16_copy_is_made_or_an_error_is_returned(void **state)
{
	(void)state;
	trial t = {.model = fixture_model(SMALL_CONFIG, device)};
	fail_each(narrow, &t, OWN_ONCE, 10);
	assert_non_null(model_bf16_weights(t.model));
	model_free(t.model);
}

/* --- compiling --------------------------------------------------------------------------------- */

static status compile(void *context, error *err)
{
	const trial *t = context;
	plan *p;
	float pool[1]; /* only compiled, never run */
	status s = model_plan(&p, t->model, &t->spec, NULL, forward_recurrent(&t->spec) ? pool : NULL, err);
	assert_true((s == STATUS_OK) == (p != NULL));
	plan_free(p);
	return s;
}

static void a_plan_is_compiled_or_an_error_is_returned(void **state)
{
	(void)state;
	static const forward_spec specs[] = {
	    {.batch = 2, .length = 5, .train.dropout = true, .train.loss = true, .train.backward = true},
	    {.batch = 2,
	     .length = 5,
	     .train.dropout = true,
	     .train.loss = true,
	     .train.backward = true,
	     .train.recompute = true},
	    {.batch = 2, .length = 1, .phase = PHASE_STEP, .slots = 2, .out.logits = LOGITS_LAST},
	    {.batch = 1, .length = 4, .out.logits = LOGITS_ALL},
	};
	for (trial t = {0}; t.kind < KINDS; t.kind++) {
		t.model = fixture_model_as(architecture_find(names[t.kind]), configs[t.kind], device);
		for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
			t.spec = specs[i];
			fail_each(compile, &t, OWN_ONCE, 50);
		}
		model_free(t.model);
	}
}

/* --- weight files -------------------------------------------------------------------------------- */

static const float values[6] = {1, 2, 3, 4, 5, 6};
static const safetensors_item items[] = {{"matrix", ST_F32, 2, {2, 3}, values}, {"vector", ST_F32, 1, {4}, values}};

static void weights_path(char out[sizeof folder + 16])
{
	snprintf(out, sizeof folder + 16, "%s/file", folder);
}

static void assert_written(const char *path)
{
	safetensors *st;
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), 2);
	assert_int_equal(safetensors_find(st, "matrix")->dim[1], 3);
	assert_string_equal(safetensors_metadata(st, "format"), "pt");
	safetensors_close(st);
}

static status write_file(void *context, error *err)
{
	char path[sizeof folder + 16];
	weights_path(path);
	status s = safetensors_write(path, items, 2, context, err);
	allocations_limit(-1);
	if (s == STATUS_OK)
		assert_written(path);
	return s;
}

static void a_weight_file_is_written_completely_or_an_error_is_returned(void **state)
{
	(void)state;
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	fail_each(write_file, metadata, ANY_ONCE, 20);
	fail_each(write_file, metadata, ANY_FROM_N, 20);
	json_decref(metadata);
}

static status open_file(void *context, error *err)
{
	(void)context;
	char path[sizeof folder + 16];
	safetensors *st;
	weights_path(path);
	status s = safetensors_open(&st, path, err);
	assert_true((s == STATUS_OK) == (st != NULL));
	safetensors_close(st);
	return s;
}

static void a_weight_file_is_opened_or_an_error_is_returned(void **state)
{
	(void)state;
	char path[sizeof folder + 16];
	weights_path(path);
	assert_int_equal(safetensors_write(path, items, 2, NULL, NULL), STATUS_OK);
	fail_each(open_file, NULL, OWN_ONCE, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_model_is_created_or_an_error_is_returned),
	    cmocka_unit_test(a_model_is_opened_or_an_error_is_returned),
	    cmocka_unit_test(a_model_is_saved_completely_or_an_error_is_returned),
	    cmocka_unit_test(the_bf16_copy_is_made_or_an_error_is_returned),
	    cmocka_unit_test(a_plan_is_compiled_or_an_error_is_returned),
	    cmocka_unit_test(a_weight_file_is_written_completely_or_an_error_is_returned),
	    cmocka_unit_test(a_weight_file_is_opened_or_an_error_is_returned),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
