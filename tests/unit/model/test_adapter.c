/* State adapters: a frozen model with other states before the first token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/model/adapter.h"
#include "engine/base/file.h"
#include "engine/model/feed.h"
#include "engine/model/safetensors.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"

enum { B = 3, N = 23, V = 37, SLOTS = 4 };

#include "tests/unit/model/forms.h"

#define KEYS                                                                                                           \
	"\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2, \"vocab_size\": 37,"      \
	" \"intermediate_size\": 31"
#define ADDITIVE                                                                                                       \
	"\"model_type\": \"FastformerForCausalLM\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2, "             \
	"\"vocab_size\": 37,"                                                                                          \
	" \"n_positions\": 32"
static const char *const models[] = {
    "{" KEYS "}",
    "{" KEYS ", \"forget\": \"const\", \"gate\": false}",
    "{" KEYS ", \"forget\": \"none\", \"shift\": false, \"group_norm\": false}",
    "{" KEYS ", \"shift\": false, \"group_norm\": false}",
    "{\"model_type\": \"linear\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2, \"vocab_size\": 37}",
    "{" ADDITIVE ", \"position_embedding\": \"none\", \"use_local_att\": false}",
    "{" ADDITIVE ", \"use_local_att\": true}", /* the first layer has a window */
};
enum { MODELS = sizeof models / sizeof *models, LINEAR_MODEL = MODELS - 3, ADDITIVE_MODEL, SEED = 900 };

static model *base_model(int k)
{
	return fixture_model_as(k < LINEAR_MODEL    ? &architecture_additive2
	                        : k == LINEAR_MODEL ? &architecture_linear
	                                            : &architecture_additive,
	                        models[k], device);
}

static void set_weights(const model *m, const float *x)
{
	const size_t bytes = (size_t)model_arena_floats(m) * sizeof *x;
	assert_int_equal(device->upload(device, model_arena(m), x, bytes), STATUS_OK);
}

static model *new_adapter(model *base)
{
	model *a;
	error err = ERROR_INIT;
	assert_int_equal(model_new_adapter(&a, base, &err), STATUS_OK);
	return a;
}

/* An adapter with random states; padding of the arena stays 0. */
static model *random_adapter(model *base, uint64_t seed)
{
	model *a = new_adapter(base);
	float *x = fixture_weights(a);
	for (int i = 0; i < model_tensor_count(a); i++)
		random_normal(x + model_parameter_offset(a, i), shape_count(model_parameter(a, i)->shape),
		              seed + (uint64_t)i, 0.7);
	set_weights(a, x);
	free(x);
	return a;
}

/* --- reading from a slot -------------------------------------------------------------------------- */

/* A pool and a plan that reads `chunk` tokens of each of B rows. */
typedef struct stepper {
	float *pool;
	plan *plan;
} stepper;

static stepper stepper_new(const model *m, int64_t chunk)
{
	const forward_spec spec = {.phase = PHASE_STEP,
	                           .batch = B,
	                           .length = chunk,
	                           .slots = SLOTS,
	                           .initial_states = true,
	                           .out.logits = LOGITS_ALL};
	stepper s;
	const size_t bytes = (size_t)(SLOTS * model_state_floats(m)) * sizeof *s.pool;
	assert_int_equal(device->allocate(device, bytes, (void **)&s.pool), STATUS_OK);
	memset(s.pool, 0xff, bytes); /* NaN */
	s.plan = fixture_plan(m, &spec, NULL, s.pool);
	return s;
}

static void stepper_free(stepper *s)
{
	plan_free(s->plan);
	device->release(device, s->pool);
}

static void start_from(const stepper *s, const model *adapter, int slot)
{
	const int64_t floats = model_state_floats(adapter);
	assert_int_equal(adapter_slot(adapter, s->pool + slot * floats, NULL), STATUS_OK);
}

/* Read whole chunks of ids [B, N]; row b is in slot b. started: before the first token. */
static void step_through(const stepper *s, const model *m, const int32_t *ids, const int32_t started[B], int64_t chunk,
                         float *logits)
{
	float some[B * N * V];
	int32_t part[B * N];
	for (int64_t at = 0; at + chunk <= N; at += chunk) {
		for (int64_t b = 0; b < B; b++)
			memcpy(part + b * chunk, ids + b * N + at, (size_t)chunk * sizeof *part);
		assert_int_equal(feed_write(s->plan, PORT_TOKENS, part), STATUS_OK);
		assert_int_equal(feed_positions(s->plan, model_dimensions(m), POSITION_ERROR, at), STATUS_OK);
		assert_int_equal(feed_step(s->plan, at, chunk), STATUS_OK);
		if (at == 0)
			assert_int_equal(feed_write(s->plan, PORT_STARTED, started), STATUS_OK);
		assert_int_equal(plan_run(s->plan), STATUS_OK);
		fixture_read(s->plan, "logits", some);
		for (int64_t b = 0; b < B; b++)
			memcpy(logits + (b * N + at) * V, some + b * chunk * V, (size_t)(chunk * V) * sizeof *some);
	}
}

static void slots_with_the_state_give_the_parallel_logits_in_chunks_of_any_size(void **state)
{
	(void)state;
	static const int64_t chunks[] = {23, 5, 1};
	const int32_t started[B] = {1, 1, 1};
	for (int k = 0; k < MODELS; k++) {
		model *base = base_model(k), *a = random_adapter(base, SEED);
		float parallel[B * N * V], plain[B * N * V], stepped[B * N * V];
		int32_t ids[B * N];
		random_ids(ids, B * N, 1);
		parallel_logits(base, ids, plain);
		parallel_logits(a, ids, parallel);
		assert_true(distance(plain, parallel, V) > 1e-2f); /* the first token of the first sequence */
		for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
			stepper s = stepper_new(base, chunks[i]);
			for (int b = 0; b < B; b++)
				start_from(&s, a, b);
			step_through(&s, base, ids, started, chunks[i], stepped);
			stepper_free(&s);
			for (int64_t b = 0; b < B; b++)
				assert_true(distance(stepped + b * N * V, parallel + b * N * V,
				                     N / chunks[i] * chunks[i] * V) < 1e-4f);
		}
		model_free(a);
		model_free(base);
	}
}

/* Row 0 has no adapter, and its slot holds NaN. */
static void rows_of_one_batch_start_from_states_of_their_own(void **state)
{
	(void)state;
	const int32_t started[B] = {0, 1, 1};
	for (int k = 0; k < MODELS; k++) {
		model *base = base_model(k), *first = random_adapter(base, SEED), *second = random_adapter(base, 7);
		const model *const of[B] = {base, first, second};
		float together[B * N * V], alone[B * N * V];
		int32_t ids[B * N];
		for (int i = 0; i < B * N; i++)
			ids[i] = i % N * 5 % V;
		stepper s = stepper_new(base, N);
		start_from(&s, first, 1);
		start_from(&s, second, 2);
		step_through(&s, base, ids, started, N, together);
		stepper_free(&s);
		for (int b = 0; b < B; b++) {
			parallel_logits(of[b], ids, alone);
			assert_true(distance(together + b * N * V, alone, N * V) < 1e-4f);
			assert_true(b == 0 || distance(together + b * N * V, together, V) > 1e-2f);
		}
		model_free(first);
		model_free(second);
		model_free(base);
	}
}

/* Without token shift, attention is all that a model keeps of a token. */
static void the_state_after_a_token_makes_an_adapter_that_predicts_as_after_that_token(void **state)
{
	(void)state;
	enum { HEADS = 5, D = 20 };
	const int32_t none[B] = {0};
	for (int k = 2; k < LINEAR_MODEL; k++) {
		model *base = base_model(k), *a = new_adapter(base);
		float whole[B * N * V], later[B * N * V], *x = fixture_weights(a);
		int32_t ids[B * N], rest[B * N] = {0};
		for (int i = 0; i < B * N; i++)
			ids[i] = i % N * 5 % V;
		stepper s = stepper_new(base, 1);
		step_through(&s, base, ids, none, 1, whole);
		stepper_free(&s);
		s = stepper_new(base, 1);
		for (int b = 0; b < B; b++)
			memcpy(rest + b * N, ids + b * N + 1, (N - 1) * sizeof *ids);
		assert_int_equal(feed_write(s.plan, PORT_TOKENS, (int32_t[B]){ids[0], ids[0], ids[0]}), STATUS_OK);
		assert_int_equal(feed_step(s.plan, 0, 1), STATUS_OK);
		assert_int_equal(feed_write(s.plan, PORT_STARTED, none), STATUS_OK);
		assert_int_equal(plan_run(s.plan), STATUS_OK);
		for (int l = 0; l < 2; l++) {
			char name[32];
			snprintf(name, sizeof name, "layers.%d.pooled", l);
			const float *sums = s.pool + state_list_find(model_states(base), name)->offset;
			for (int h = 0; h < HEADS; h++) /* m, s and the rest of s */
				x[model_parameter_offset(a, 2 * l) + h] =
				    (float)((double)sums[h] * log(2) +
				            log((double)sums[HEADS + h] + (double)sums[2 * HEADS + h]));
			memcpy(x + model_parameter_offset(a, 2 * l + 1), sums + 3 * HEADS, D * sizeof *x);
		}
		stepper_free(&s);
		set_weights(a, x);
		parallel_logits(a, rest, later);
		assert_true(distance(later, whole + V, (N - 1) * V) < 1e-4f);
		free(x);
		model_free(a);
		model_free(base);
	}
}

static void a_state_without_weight_changes_nothing(void **state)
{
	(void)state;
	for (int k = 0; k < MODELS; k++) {
		model *base = base_model(k), *a = random_adapter(base, SEED);
		float plain[B * N * V], with[B * N * V], *x = fixture_weights(a);
		int32_t ids[B * N];
		random_ids(ids, B * N, 3);
		for (int i = 0; i < model_tensor_count(a); i += 2)
			for (int64_t j = 0; j < shape_count(model_parameter(a, i)->shape); j++)
				x[model_parameter_offset(a, i) + j] = -1e5f;
		set_weights(a, x);
		parallel_logits(base, ids, plain);
		parallel_logits(a, ids, with);
		assert_true(distance(plain, with, B * N * V) < 1e-5f);
		free(x);
		model_free(a);
		model_free(base);
	}
}

/* The first mean is 0, and the norm of each head takes the weight of the state away. */
static void a_new_adapter_of_a_model_with_norms_changes_nothing(void **state)
{
	(void)state;
	model *base = base_model(0), *a = new_adapter(base);
	float plain[B * N * V], with[B * N * V];
	int32_t ids[B * N];
	random_ids(ids, B * N, 4);
	parallel_logits(base, ids, plain);
	parallel_logits(a, ids, with);
	assert_true(distance(plain, with, B * N * V) < 1e-3f);
	model_free(a);
	model_free(base);
}

/* --- gradients ------------------------------------------------------------------------------------ */

static plan *loss_plan(const model *m, bool backward, bool recompute, float *gradients)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .masked = true,
	                           .train = {.loss = true, .backward = backward, .recompute = recompute}};
	plan *p = fixture_plan(m, &spec, gradients, NULL);
	int32_t ids[B * N], labels[B * N], mask[B * N];
	random_ids(ids, B * N, 5);
	random_ids(labels, B * N, 6);
	for (int i = 0; i < B * N; i++) {
		mask[i] = i != 0 && i != N + 4; /* a first token, and one in between */
		labels[i] = mask[i] ? labels[i] : -1;
	}
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, mask), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	return p;
}

static double loss_of(plan *p)
{
	float loss;
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &loss);
	return (double)loss;
}

static void gradients_are_those_of_finite_differences_and_the_base_has_none(void **state)
{
	(void)state;
	const double step = 2e-2;
	for (int k = 0; k < MODELS; k++) {
		model *base = base_model(k), *a = random_adapter(base, SEED);
		const int64_t floats = model_arena_floats(a);
		float *x = fixture_weights(a), *gradient = calloc((size_t)floats, sizeof *gradient);
		float *again = calloc((size_t)floats, sizeof *again), *frozen = fixture_weights(base);
		plan *p = loss_plan(a, true, false, gradient), *q = loss_plan(a, true, true, again);
		assert_true(loss_of(p) == loss_of(q));
		assert_memory_equal(gradient, again, (size_t)floats * sizeof *gradient);
		for (int i = 0; i < model_tensor_count(base); i++) {
			char name[160];
			snprintf(name, sizeof name, "grad.%s", model_parameter(base, i)->name);
			assert_int_equal(graph_find(plan_graph(p), name), VALUE_NONE);
		}
		plan_free(p);
		plan_free(q);
		p = loss_plan(a, false, false, NULL);
		double most = 0;
		for (int64_t i = 0; i < floats; i++) {
			const float at = x[i];
			double difference[2];
			for (int far = 0; far < 2; far++) {
				x[i] = at + (float)(step * (1 + far));
				set_weights(a, x);
				difference[far] = loss_of(p);
				x[i] = at - (float)(step * (1 + far));
				set_weights(a, x);
				difference[far] -= loss_of(p);
			}
			x[i] = at;
			/* The error of central differences is of the fourth order this way. */
			const double want = (8 * difference[0] - difference[1]) / (12 * step);
			assert_true(fabs(want - (double)gradient[i]) < 2e-4);
			most = fmax(most, fabs((double)gradient[i]));
		}
		assert_true(most > 1e-2);
		float *after = fixture_weights(base);
		assert_memory_equal(frozen, after, (size_t)model_arena_floats(base) * sizeof *after);
		plan_free(p);
		free(after);
		free(frozen);
		free(again);
		free(gradient);
		free(x);
		model_free(a);
		model_free(base);
	}
}

/* --- what it is ----------------------------------------------------------------------------------- */

static void an_adapter_has_a_score_of_each_head_and_a_mean_of_each_channel(void **state)
{
	(void)state;
	model *base = base_model(0), *a = random_adapter(base, SEED), *copy;
	assert_ptr_equal(model_base(a), base);
	assert_null(model_base(base));
	assert_int_equal(model_tensor_count(a), 4);
	assert_int_equal(model_scalar_count(a), 2 * (5 + 20));
	assert_string_equal(model_parameter(a, 2)->name, "layers.1.initial.score");
	assert_int_equal(parameter_stored_shape(model_parameter(a, 2)).rank, 1);
	assert_int_equal(shape_count(model_parameter(a, 3)->shape), 20);
	assert_int_equal(model_copy(&copy, a, NULL), STATUS_OK);
	assert_ptr_equal(model_base(copy), base);
	fixture_same_weights(copy, a);
	model_free(copy);
	model_free(a);
	model_free(base);
}

/* Write a file of the first `count` items and return the status of reading it as an adapter. */
static status read_items(model *a, const char *path, const safetensors_item *items, int count, error *err)
{
	*err = (error)ERROR_INIT;
	assert_int_equal(safetensors_write(path, items, count, NULL, NULL), STATUS_OK);
	return adapter_read(a, path, NULL, err);
}

static void files_are_read_back_and_refused_by_the_tensor_at_fault(void **state)
{
	(void)state;
	char folder[64], path[128];
	error err;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/" ADAPTER_FILE, folder);
	model *base = base_model(0), *a = random_adapter(base, SEED), *b = new_adapter(base);
	assert_int_equal(model_save(a, folder, NULL), STATUS_OK);
	assert_int_equal(adapter_read(b, path, NULL, NULL), STATUS_OK);
	fixture_same_weights(a, b);
	float numbers[20] = {0}, bad[20] = {0, 0, 0, NAN};
	const safetensors_item good[] = {{"layers.0.initial.score", ST_F32, 1, {5}, numbers},
	                                 {"layers.0.initial.mean", ST_F32, 1, {20}, numbers},
	                                 {"layers.1.initial.score", ST_F32, 1, {5}, numbers},
	                                 {"layers.1.initial.mean", ST_F32, 1, {20}, numbers},
	                                 {"extra", ST_F32, 1, {1}, numbers}};
	safetensors_item items[5];
	static const struct {
		int item, count;
		const char *name;
		int64_t dim;
	} cases[] = {{0, 3, "layers.1.initial.mean", 5},
	             {3, 4, "layers.1.initial.mean", 19},
	             {2, 4, "layers.1.initial.score", 0},
	             {0, 5, "extra", 5}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		memcpy(items, good, sizeof items);
		if (cases[i].dim)
			items[cases[i].item].dim[0] = cases[i].dim;
		else
			items[cases[i].item].data = bad;
		assert_int_equal(read_items(b, path, items, cases[i].count, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].name);
		fixture_same_weights(a, b);
	}
	assert_int_equal(read_items(b, path, good, 4, &err), STATUS_OK);
	assert_int_equal(file_write(path, &(file_part){"not a file", 10}, 1, NULL), STATUS_OK);
	assert_int_equal(adapter_read(b, path, NULL, NULL), STATUS_CORRUPT);
	model_free(b);
	model_free(a);
	model_free(base);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_layer_with_a_window_has_no_initial_state(void **state)
{
	(void)state;
	model *all = base_model(ADDITIVE_MODEL), *windowed = base_model(MODELS - 1);
	model *a = new_adapter(all), *b = new_adapter(windowed);
	assert_int_equal(model_tensor_count(a), 8);
	assert_string_equal(model_parameter(a, 0)->name, "layers.0.query.initial.score");
	assert_string_equal(model_parameter(a, 3)->name, "layers.0.key.initial.mean");
	assert_int_equal(model_tensor_count(b), 4);
	assert_string_equal(model_parameter(b, 0)->name, "layers.1.query.initial.score");
	model_free(b);
	model_free(a);
	model_free(windowed);
	model_free(all);
}

static void models_whose_attention_has_no_initial_state_are_refused_by_its_kind(void **state)
{
	(void)state;
	static const struct {
		const architecture *architecture;
		const char *config, *named;
	} cases[] = {
	    {&architecture_additive2, "{" KEYS ", \"window_layers\": [1], \"window_heads\": 2}", "layer 1"},
	    {&architecture_additive, "{" ADDITIVE ", \"window_sizes\": [4, 8]}", "all layers have a window"},
	    {&architecture_gpt2,
	     "{\"model_type\": \"gpt2\", \"n_embd\": 20, \"n_head\": 4, \"n_layer\": 2, \"vocab_size\": 37}",
	     "layer 0"},
	    {&architecture_rwkv,
	     "{\"model_type\": \"rwkv\", \"hidden_size\": 20, \"num_hidden_layers\": 1,"
	     " \"vocab_size\": 37, \"intermediate_size\": 31}",
	     "rwkv"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		model *base = fixture_created_as(cases[i].architecture, cases[i].config, 1, device), *a;
		error err = ERROR_INIT;
		assert_int_equal(model_new_adapter(&a, base, &err), STATUS_UNSUPPORTED);
		assert_null(a);
		assert_non_null(strstr(error_message(&err), cases[i].named));
		const forward_spec spec = {
		    .phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1, .initial_states = true};
		float pool;
		plan *p;
		assert_int_equal(model_plan(&p, base, &spec, NULL, &pool, NULL), STATUS_UNSUPPORTED);
		model_free(base);
	}
	model *base = base_model(0), *a = new_adapter(base), *second;
	assert_int_equal(model_new_adapter(&second, a, NULL), STATUS_UNSUPPORTED);
	model_free(a);
	model_free(base);
}

static void forwards_that_would_ignore_an_adapter_are_refused(void **state)
{
	(void)state;
	model *base = base_model(0), *a = new_adapter(base);
	float *pool = calloc((size_t)model_state_floats(a), sizeof *pool);
	const struct {
		forward_spec spec;
		status status;
	} cases[] = {
	    {{.phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1, .out.logits = LOGITS_LAST}, STATUS_INVALID},
	    {{.batch = 1, .length = 8, .train = {.loss = true, .carried = true}}, STATUS_UNSUPPORTED},
	    {{.batch = 1, .length = 8, .explain.log = true}, STATUS_UNSUPPORTED},
	    {{.batch = 1, .length = 8, .out.logits = LOGITS_LAST, .explain.attribution = ATTRIBUTION_FROZEN},
	     STATUS_UNSUPPORTED},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		plan *p;
		assert_int_equal(model_plan(&p, a, &cases[i].spec, NULL, pool, NULL), cases[i].status);
		assert_null(p);
	}
	free(pool);
	model_free(a);
	model_free(base);
}

static void without_memory_there_is_no_adapter_and_no_slot(void **state)
{
	(void)state;
	model *base = base_model(0), *a = NULL;
	float *slot = calloc((size_t)model_state_floats(base), sizeof *slot);
	status s = STATUS_NOMEM;
	int64_t calls = 0;
	for (; s != STATUS_OK; calls++) {
		allocations_limit(calls);
		s = model_new_adapter(&a, base, NULL);
		allocations_limit(-1);
		assert_true(s == STATUS_OK || (s == STATUS_NOMEM && !a));
	}
	assert_true(calls > 5);
	for (calls = 0, s = STATUS_NOMEM; s != STATUS_OK; calls++) {
		allocations_limit(calls);
		s = adapter_slot(a, slot, NULL);
		allocations_limit(-1);
		assert_true(s == STATUS_OK || s == STATUS_NOMEM);
	}
	assert_int_equal(calls, 3);
	free(slot);
	model_free(a);
	model_free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(slots_with_the_state_give_the_parallel_logits_in_chunks_of_any_size),
	    cmocka_unit_test(rows_of_one_batch_start_from_states_of_their_own),
	    cmocka_unit_test(the_state_after_a_token_makes_an_adapter_that_predicts_as_after_that_token),
	    cmocka_unit_test(a_state_without_weight_changes_nothing),
	    cmocka_unit_test(a_new_adapter_of_a_model_with_norms_changes_nothing),
	    cmocka_unit_test(gradients_are_those_of_finite_differences_and_the_base_has_none),
	    cmocka_unit_test(files_are_read_back_and_refused_by_the_tensor_at_fault),
	    cmocka_unit_test(an_adapter_has_a_score_of_each_head_and_a_mean_of_each_channel),
	    cmocka_unit_test(a_layer_with_a_window_has_no_initial_state),
	    cmocka_unit_test(models_whose_attention_has_no_initial_state_are_refused_by_its_kind),
	    cmocka_unit_test(forwards_that_would_ignore_an_adapter_are_refused),
	    cmocka_unit_test(without_memory_there_is_no_adapter_and_no_slot),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
