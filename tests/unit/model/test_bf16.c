/* Models in bf16: the copy of the weights, and forwards and backwards of both architectures compared with fp32. The
 * backend computes every op in bf16 around the reference kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "engine/tensor/panel.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/bf16_backend.h"

#define GPT2_CONFIG                                                                                                    \
	"{\"n_embd\": 15, \"n_head\": 3, \"n_layer\": 3, \"vocab_size\": 37, \"n_positions\": 40,"                     \
	" \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1}"

enum { BATCH = 2, LENGTH = 17, VOCAB = 37, WIDTH = 15, LAYERS = 3 };

static backend *device; /* the backend with bf16 */

static int setup(void **state)
{
	(void)state;
	backend *inner;
	if (cpu_reference_open(&inner, 1, NULL) != STATUS_OK)
		return -1;
	device = bf16_backend_new(inner);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

typedef model *(*model_maker)(void);

static model *additive(void)
{
	return fixture_model_as(&architecture_additive, SMALL_CONFIG, device);
}

static model *gpt2(void)
{
	return fixture_model_as(&architecture_gpt2, GPT2_CONFIG, device);
}

static const model_maker makers[] = {additive, gpt2};
enum { MAKERS = sizeof makers / sizeof makers[0] };

static void write_tokens(plan *p, const forward_spec *spec)
{
	int32_t ids[BATCH * LENGTH], positions[BATCH * LENGTH], labels[BATCH * LENGTH], rng[] = {1, 2, 3, 0};
	random_integers(ids, BATCH * LENGTH, 5, 0, VOCAB - 1);
	random_integers(labels, BATCH * LENGTH, 6, -1, VOCAB - 1);
	for (int i = 0; i < BATCH * LENGTH; i++)
		positions[i] = i % LENGTH;
	fixture_write(p, "input_ids", ids);
	fixture_write(p, "position_ids", positions);
	if (spec->train.loss)
		fixture_write(p, "labels", labels);
	if (spec->train.dropout)
		fixture_write(p, "rng", rng);
	if (spec->out.logits == LOGITS_LAST)
		fixture_write(p, "last", (int32_t[BATCH]){LENGTH - 1, 2 * LENGTH - 1});
}

/* ‖a - b‖ / ‖b‖; NaN if any element is. */
static double distance(const float *a, const float *b, int64_t count)
{
	double difference = 0, norm = 0;
	for (int64_t i = 0; i < count; i++) {
		difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		norm += (double)b[i] * (double)b[i];
	}
	return sqrt(difference / norm);
}

static model *narrowed(model_maker make)
{
	model *m = make();
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	return m;
}

/* --- the copy --------------------------------------------------------------------------------- */

static void assert_copied(const model *m)
{
	int64_t count = model_arena_floats(m);
	float *x = fixture_weights(m);
	uint16_t *copy = calloc((size_t)count, sizeof *copy);
	backend *b = model_backend(m);
	assert_non_null(copy);
	assert_int_equal(b->download(b, copy, model_bf16_weights(m), (size_t)count * sizeof *copy), STATUS_OK);
	for (int64_t i = 0; i < count; i++)
		assert_int_equal(copy[i], panel_bf16(x[i]));
	free(copy);
	free(x);
}

static void the_copy_has_the_rounded_weights_and_can_be_updated(void **state)
{
	(void)state;
	model *m = additive();
	assert_null(model_bf16_weights(m));
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	assert_copied(m);
	uint16_t *at = model_bf16_weights(m);
	float changed[] = {1.5f, -2.003f};
	assert_int_equal(device->upload(device, model_arena(m), changed, sizeof changed), STATUS_OK);
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	assert_ptr_equal(model_bf16_weights(m), at);
	assert_copied(m);
	model_free(m);
}

/* A backend that computes only in fp32 still makes the copy, and refuses the plan. */
static void the_cpu_makes_the_copy_and_refuses_the_plan(void **state)
{
	(void)state;
	backend *cpu = fixture_backend();
	model *m = fixture_model(SMALL_CONFIG, cpu);
	const forward_spec spec = {.batch = 1, .length = 4, .train.loss = true, .bf16 = true};
	plan *p;
	error err = ERROR_INIT;
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	assert_copied(m);
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.message, "the cpu backend computes in f32 only");
	model_free(m);
	backend_close(cpu);
}

static void unsupported_uses_of_bf16_are_refused(void **state)
{
	(void)state;
	plan *p;
	error err = ERROR_INIT;
	forward_spec spec = {.batch = 1, .length = 4, .train.loss = true, .bf16 = true};
	model *m = additive();
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "bf16 copy"));
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	spec.phase = PHASE_STEP;
	spec.slots = 1;
	float pool;
	err = (error)ERROR_INIT;
	assert_int_equal(model_plan(&p, m, &spec, NULL, &pool, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.message, "there is no recurrent form in bf16");
	model_free(m);
}

/* --- beside fp32 ----------------------------------------------------------------------------------- */

static const char *const outputs[] = {"logits", "layers.0.query.score", "layers.2.key.log_normalizer",
                                      "layers.0.query.pooled", "layers.2.key.pooled"};
enum { OUTPUTS = sizeof outputs / sizeof outputs[0] };

/* Every output is f32. Its distance from fp32 is that of dozens of roundings of 2^-9 in three layers, whose weights
 * (0.3) amplify it. The worst is 0.023, in the logits of additive; a wrong or missing term is far beyond the bound. */
static void a_forward_is_close_to_fp32_and_gives_f32(void **state)
{
	(void)state;
	for (int i = 0; i < MAKERS; i++) {
		model *m = narrowed(makers[i]);
		bool rounds = model_explainer(m)->scores;
		forward_spec spec = {.batch = BATCH, .length = LENGTH, .train.loss = true, .out.logits = LOGITS_ALL};
		spec.explain.log = spec.out.activations = rounds;
		plan *wide = fixture_plan(m, &spec, NULL, NULL);
		spec.bf16 = true;
		plan *p = fixture_plan(m, &spec, NULL, NULL);
		write_tokens(wide, &spec);
		write_tokens(p, &spec);
		assert_int_equal(plan_run(wide), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		for (int k = 0; k < (rounds ? OUTPUTS : 1); k++) {
			const value_info *info = graph_value(plan_graph(p), graph_find(plan_graph(p), outputs[k]));
			float got[BATCH * LENGTH * VOCAB], want[BATCH * LENGTH * VOCAB];
			assert_int_equal(info->type, DTYPE_F32);
			assert_true(shape_count(info->shape) <= BATCH * LENGTH * VOCAB);
			fixture_read(wide, outputs[k], want);
			fixture_read(p, outputs[k], got);
			double far = distance(got, want, shape_count(info->shape));
			if (!(far > 0 && far <= 0.05))
				fail_msg("%s of %s is %.3g from fp32's", outputs[k], model_architecture(m)->name, far);
		}
		float got, want;
		fixture_read(wide, "loss", &want);
		fixture_read(p, "loss", &got);
		assert_true(got != want && fabs((double)got - (double)want) <= 0.01 * (double)want);
		plan_free(wide);
		plan_free(p);
		model_free(m);
	}
}

static void the_last_rows_equal_those_of_all_rows(void **state)
{
	(void)state;
	for (int i = 0; i < MAKERS; i++) {
		model *m = narrowed(makers[i]);
		forward_spec spec = {.batch = BATCH, .length = LENGTH, .out.logits = LOGITS_ALL, .bf16 = true};
		plan *all = fixture_plan(m, &spec, NULL, NULL);
		write_tokens(all, &spec);
		spec.out.logits = LOGITS_LAST;
		plan *last = fixture_plan(m, &spec, NULL, NULL);
		write_tokens(last, &spec);
		assert_int_equal(plan_run(all), STATUS_OK);
		assert_int_equal(plan_run(last), STATUS_OK);
		float every[BATCH * LENGTH * VOCAB], few[BATCH * VOCAB], hidden[BATCH * WIDTH];
		fixture_read(all, "logits", every);
		fixture_read(last, "logits", few);
		fixture_read(last, "hidden", hidden);
		for (int b = 0; b < BATCH; b++)
			assert_memory_equal(few + b * VOCAB, every + ((b + 1) * LENGTH - 1) * VOCAB,
			                    VOCAB * sizeof *few);
		for (int k = 0; k < BATCH * WIDTH; k++)
			assert_true(isfinite(hidden[k]));
		plan_free(all);
		plan_free(last);
		model_free(m);
	}
}

/* Gradients of a training pass in a flat f32 arena; the caller frees them. */
static float *gradients_of(const model *m, bool bf16, bool recompute)
{
	forward_spec spec = {.batch = BATCH,
	                     .length = LENGTH,
	                     .train.dropout = true,
	                     .train.loss = true,
	                     .train.backward = true,
	                     .train.recompute = recompute,
	                     .bf16 = bf16};
	size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	void *arena;
	float *out = malloc(bytes);
	assert_non_null(out);
	assert_int_equal(device->allocate(device, bytes, &arena), STATUS_OK);
	plan *p = fixture_plan(m, &spec, arena, NULL);
	write_tokens(p, &spec);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(device->download(device, out, arena, bytes), STATUS_OK);
	plan_free(p);
	device->release(device, arena);
	return out;
}

/* The worst distance is 0.080, a LayerNorm's bias in the middle of additive. */
static void every_gradient_is_close_to_fp32(void **state)
{
	(void)state;
	for (int i = 0; i < MAKERS; i++) {
		model *m = narrowed(makers[i]);
		float *want = gradients_of(m, false, false), *got = gradients_of(m, true, false);
		for (int k = 0; k < model_tensor_count(m); k++) {
			const parameter_spec *p = model_parameter(m, k);
			int64_t at = model_parameter_offset(m, k);
			double far = distance(got + at, want + at, shape_count(p->shape));
			if (!(far > 0 && far <= 0.15))
				fail_msg("the gradient of %s is %.3g from fp32's", p->name, far);
		}
		free(want);
		free(got);
		model_free(m);
	}
}

static void recomputing_gives_the_same_bits(void **state)
{
	(void)state;
	for (int i = 0; i < MAKERS; i++) {
		model *m = narrowed(makers[i]);
		float *kept = gradients_of(m, true, false), *again = gradients_of(m, true, true);
		assert_memory_equal(kept, again, (size_t)model_arena_floats(m) * sizeof *kept);
		free(kept);
		free(again);
		model_free(m);
	}
}

/* In the graph, no tensor of an activation's size is f32, and no gradient of a weight is bf16. */
static void matrices_are_bf16_and_vectors_are_not(void **state)
{
	(void)state;
	for (int i = 0; i < MAKERS; i++) {
		model *m = narrowed(makers[i]);
		const forward_spec spec = {
		    .batch = BATCH, .length = LENGTH, .train.loss = true, .train.backward = true, .bf16 = true};
		plan *p = fixture_plan(m, &spec, NULL, NULL);
		const graph *g = plan_graph(p);
		for (int k = 0; k < model_tensor_count(m); k++) {
			value v = graph_find(g, model_parameter(m, k)->name);
			bool matrix = graph_value(g, v)->shape.rank >= 2;
			assert_int_equal(graph_value(g, v)->type, matrix ? DTYPE_BF16 : DTYPE_F32);
			assert_int_equal(graph_value(g, graph_gradient(g, v))->type, DTYPE_F32);
		}
		for (value v = 0; v < graph_value_count(g); v++) {
			const value_info *info = graph_value(g, v);
			if (info->shape.rank == 3 && shape_count(info->shape) > 0 && info->shape.dim[2] % WIDTH == 0 &&
			    info->role == ROLE_TEMPORARY)
				assert_int_equal(info->type, DTYPE_BF16);
		}
		plan_free(p);
		model_free(m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_copy_has_the_rounded_weights_and_can_be_updated),
	    cmocka_unit_test(the_cpu_makes_the_copy_and_refuses_the_plan),
	    cmocka_unit_test(unsupported_uses_of_bf16_are_refused),
	    cmocka_unit_test(a_forward_is_close_to_fp32_and_gives_f32),
	    cmocka_unit_test(the_last_rows_equal_those_of_all_rows),
	    cmocka_unit_test(every_gradient_is_close_to_fp32),
	    cmocka_unit_test(recomputing_gives_the_same_bits),
	    cmocka_unit_test(matrices_are_bf16_and_vectors_are_not),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
