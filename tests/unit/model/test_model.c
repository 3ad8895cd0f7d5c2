/* New models and their plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"

/* --- new models --------------------------------------------------------------------------- */

static void a_new_model_is_initialized_as_its_parameters_define(void **state)
{
	(void)state;
	model *m = fixture_created("{\"hidden_size\": 64, \"n_layer\": 2, \"vocab_size\": 999, \"n_positions\": 31,"
	                           " \"initializer_range\": 0.5}",
	                           7, device);
	float *all = fixture_weights(m);
	int64_t total = 0;
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const float *x = all + model_parameter_offset(m, i);
		int64_t n = shape_count(p->shape);
		double sum = 0, squares = 0;
		for (int64_t k = 0; k < n; k++) {
			sum += (double)x[k];
			squares += (double)x[k] * (double)x[k];
			if (p->init != INIT_NORMAL)
				assert_true(x[k] == (p->init == INIT_ONE ? 1.0f : 0.0f));
		}
		if (p->init == INIT_NORMAL) { /* within five standard errors */
			assert_true(fabs(sum / (double)n) <= 5 * 0.5 / sqrt((double)n));
			assert_true(fabs(squares / (double)n - 0.25) <= 5 * 0.25 * sqrt(2 / (double)n));
		}
		total += n;
	}
	assert_int_equal(model_scalar_count(m), total);
	free(all);
	model_free(m);
}

static void a_seed_decides_every_weight(void **state)
{
	(void)state;
	model *a = fixture_created(SMALL_CONFIG, 7, device), *b = fixture_created(SMALL_CONFIG, 7, device),
	      *c = fixture_created(SMALL_CONFIG, 8, device);
	fixture_same_weights(a, b);
	float *x = fixture_weights(a), *y = fixture_weights(c);
	/* Word and position embeddings, and the same parameter with another seed. */
	int64_t place = model_parameter_offset(a, 2);
	assert_true(x[0] != x[place] && x[0] != y[0] && x[1] != y[1]);
	free(x);
	free(y);
	model_free(a);
	model_free(b);
	model_free(c);
}

static void parameters_are_aligned_and_the_padding_is_zero(void **state)
{
	(void)state;
	model *m = fixture_model(SMALL_CONFIG, device);
	float *x = fixture_weights(m);
	int64_t end = 0;
	for (int i = 0; i < model_tensor_count(m); i++) {
		int64_t offset = model_parameter_offset(m, i);
		assert_int_equal(offset % 16, 0);
		assert_true(offset >= end && offset < end + 16);
		for (; end < offset; end++)
			assert_true(x[end] == 0);
		end = offset + shape_count(model_parameter(m, i)->shape);
	}
	assert_true(model_arena_floats(m) >= end && model_arena_floats(m) < end + 16);
	free(x);
	model_free(m);
}

static void a_bad_configuration_creates_no_model(void **state)
{
	(void)state;
	json_t *json = fixture_json("{\"n_heads\": 3}");
	error err = ERROR_INIT;
	model *m = (model *)&err;
	assert_int_equal(model_create(&m, &architecture_additive, json, 1, device, &err), STATUS_INVALID);
	assert_null(m);
	assert_string_equal(err.param, "n_heads");
	json_decref(json);
	model_free(NULL);
}

/* --- plans --------------------------------------------------------------------------------------- */

static void impossible_specs_are_refused(void **state)
{
	(void)state;
	static const forward_spec bad[] = {
	    {.batch = 0, .length = 1},
	    {.batch = 1, .length = 0},
	    {.batch = -1, .length = 1},
	    {.batch = 1, .length = 1, .train.backward = true},
	    {.batch = 1, .length = 1, .train.loss = true, .train.backward = true, .phase = PHASE_STEP, .slots = 1},
	    {.batch = 1, .length = 1, .phase = PHASE_STEP, .slots = 0},
	    {.batch = INT64_MAX / 4, .length = 8},
	    {.batch = 1, .length = 2, .out.rows = 1, .out.logits = LOGITS_ALL},
	    {.batch = 1, .length = 2, .out.rows = 1, .out.logits = LOGITS_LAST, .out.embedding = POOL_MEAN},
	    {.batch = 1,
	     .length = 2,
	     .out.rows = 1,
	     .out.logits = LOGITS_LAST,
	     .explain.attribution = ATTRIBUTION_FROZEN},
	    {.batch = 1, .length = 2, .out.rows = 1, .out.logits = LOGITS_LAST, .phase = PHASE_STEP, .slots = 1},
	};
	model *m = fixture_created(SMALL_CONFIG, 1, device);
	float pool = 0;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		error err = ERROR_INIT;
		plan *p = (plan *)&err;
		assert_int_equal(model_plan(&p, m, &bad[i], NULL, &pool, &err), STATUS_INVALID);
		assert_null(p);
		assert_true(err.message[0]);
	}
	plan *p;
	const forward_spec recurrent = {.batch = 1, .length = 1, .phase = PHASE_STEP, .slots = 1};
	assert_int_equal(model_plan(&p, m, &recurrent, NULL, NULL, NULL), STATUS_INVALID);
	model_free(m);
}

static void logits_of_chosen_rows_equal_those_of_all_rows(void **state)
{
	(void)state;
	enum { N = 6, WIDTH = 37, ROWS = 3 };
	static const int32_t ids[2 * N] = {1, 5, 9, 36, 2, 7, 30, 3, 3, 8, 21, 4}, rows[ROWS] = {9, 0, 4};
	model *m = fixture_model(SMALL_CONFIG, device);
	float all[2 * N * WIDTH], some[ROWS * WIDTH];
	for (int chosen = 0; chosen < 2; chosen++) {
		plan *p;
		const forward_spec spec = {.batch = 2,
		                           .length = N,
		                           .out.rows = chosen ? ROWS : 0,
		                           .out.logits = chosen ? LOGITS_LAST : LOGITS_ALL};
		assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
		fixture_write(p, "input_ids", ids);
		assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_LAST, rows), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", chosen ? some : all);
		plan_free(p);
	}
	for (int r = 0; r < ROWS; r++)
		for (int k = 0; k < WIDTH; k++)
			assert_true(fabsf(some[r * WIDTH + k] - all[rows[r] * WIDTH + k]) <= 1e-5f);
	model_free(m);
}

/* Run a training forward and backward of some tokens. */
static void train_once(plan *p)
{
	int32_t ids[2 * 11], positions[2 * 11], labels[2 * 11];
	random_integers(ids, 22, 1, 0, 36);
	random_integers(labels, 22, 2, -1, 36);
	for (int i = 0; i < 22; i++)
		positions[i] = i % 11;
	fixture_write(p, "input_ids", ids);
	fixture_write(p, "position_ids", positions);
	fixture_write(p, "labels", labels);
	assert_int_equal(plan_run(p), STATUS_OK);
}

static void gradients_are_written_to_the_given_arena(void **state)
{
	(void)state;
	const forward_spec spec = {.batch = 2, .length = 11, .train.loss = true, .train.backward = true};
	model *m = fixture_model(SMALL_CONFIG, device);
	size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	float *gradients, *flat = malloc(bytes), own[60 * 15];
	assert_non_null(flat);
	assert_int_equal(device->allocate(device, bytes, (void **)&gradients), STATUS_OK);
	plan *into_arena = fixture_plan(m, &spec, gradients, NULL), *into_plan = fixture_plan(m, &spec, NULL, NULL);
	train_once(into_arena);
	train_once(into_plan);
	assert_int_equal(device->download(device, flat, gradients, bytes), STATUS_OK);
	int64_t end = 0;
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		int64_t offset = model_parameter_offset(m, i), count = shape_count(p->shape);
		char name[160];
		snprintf(name, sizeof name, "grad.%s", p->name);
		memset(own, 0xff, sizeof own);
		fixture_read(into_plan, name, own);
		assert_memory_equal(flat + offset, own, (size_t)count * sizeof(float));
		double squares = 0;
		for (int64_t k = 0; k < count; k++)
			squares += (double)own[k] * (double)own[k];
		assert_true(squares > 0 && isfinite(squares));
		for (; end < offset; end++)
			assert_true(flat[end] == 0);
		end = offset + count;
	}
	plan_free(into_arena);
	plan_free(into_plan);
	device->release(device, gradients);
	free(flat);
	model_free(m);
}

/* Largest difference between the gradients of words 0 and 7 when `first` begins the text. Two words with the same row
 * and bias get the same gradient as outputs, so a difference comes from the look-up. */
static double look_up_gradient(const model *m, int32_t first)
{
	const forward_spec spec = {.batch = 1, .length = 3, .train.loss = true, .train.backward = true};
	const int32_t ids[3] = {first, 5, 5}, positions[3] = {0, 1, 2}, labels[3] = {5, 5, -1};
	float gradient[37][15];
	double largest = 0;
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	fixture_write(p, "input_ids", ids);
	fixture_write(p, "position_ids", positions);
	fixture_write(p, "labels", labels);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "grad.word_embedding.weight", gradient);
	plan_free(p);
	for (int k = 0; k < 15; k++)
		largest = fmax(largest, fabs((double)gradient[0][k] - (double)gradient[7][k]));
	return largest;
}

static void the_padding_token_has_no_gradient_from_its_look_up(void **state)
{
	(void)state;
	model *m = fixture_model(SMALL_CONFIG, device);
	float *x = model_arena(m), *bias = x + model_parameter_offset(m, 1);
	assert_int_equal(device->copy(device, x + 7 * 15, x, 15 * sizeof *x), STATUS_OK);
	assert_int_equal(device->copy(device, bias + 7, bias, sizeof *x), STATUS_OK);
	double padding = look_up_gradient(m, 0), other = look_up_gradient(m, 7);
	assert_true(padding <= 1e-6);
	assert_true(other > 1e-3);
	model_free(m);
}

static void the_flags_of_a_spec_decide_the_values_of_a_plan(void **state)
{
	(void)state;
	static const struct {
		forward_spec spec;
		const char *present, *absent; /* names, each followed by a space */
	} cases[] = {
	    {{.batch = 1, .length = 2},
	     "input_ids position_ids ",
	     "attention_mask labels rng last logits loss hidden pool "},
	    {{.batch = 1, .length = 2, .masked = true, .train.dropout = true, .train.loss = true},
	     "attention_mask rng labels loss count ",
	     "logits last grad.proj_logits.bias "},
	    {{.batch = 1, .length = 2, .train.loss = true, .train.backward = true, .out.logits = LOGITS_ALL},
	     "logits grad.proj_logits.bias grad.word_embedding.weight ",
	     "grad.proj_logits.weight rng hidden "},
	    {{.batch = 1, .length = 2, .phase = PHASE_STEP, .slots = 2, .out.logits = LOGITS_LAST},
	     "slot position length pool last logits hidden ",
	     "labels layers.0.query.score "},
	    {{.batch = 1, .length = 2, .explain.log = true},
	     "layers.0.query.score layers.2.key.log_normalizer ",
	     "layers.0.query.pooled layers.3.query.score "},
	    {{.batch = 1, .length = 2, .out.activations = true},
	     "layers.0.query.pooled layers.2.key.pooled ",
	     "layers.0.query.score "},
	};
	model *m = fixture_created(SMALL_CONFIG, 1, device);
	float *pool;
	assert_int_equal(device->allocate(device, (size_t)(2 * model_state_floats(m)) * sizeof *pool, (void **)&pool),
	                 STATUS_OK);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		plan *p = fixture_plan(m, &cases[i].spec, NULL, pool);
		for (int absent = 0; absent < 2; absent++) {
			const char *names = absent ? cases[i].absent : cases[i].present;
			char name[64];
			for (int n; sscanf(names, "%63s %n", name, &n) == 1; names += n) {
				if ((graph_find(plan_graph(p), name) == VALUE_NONE) != absent)
					print_error("case %zu: %s\n", i, name);
				assert_int_equal(graph_find(plan_graph(p), name) == VALUE_NONE, absent);
			}
		}
		plan_free(p);
	}
	device->release(device, pool);
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_new_model_is_initialized_as_its_parameters_define),
	    cmocka_unit_test(a_seed_decides_every_weight),
	    cmocka_unit_test(parameters_are_aligned_and_the_padding_is_zero),
	    cmocka_unit_test(a_bad_configuration_creates_no_model),
	    cmocka_unit_test(impossible_specs_are_refused),
	    cmocka_unit_test(logits_of_chosen_rows_equal_those_of_all_rows),
	    cmocka_unit_test(gradients_are_written_to_the_given_arena),
	    cmocka_unit_test(the_padding_token_has_no_gradient_from_its_look_up),
	    cmocka_unit_test(the_flags_of_a_spec_decide_the_values_of_a_plan),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
