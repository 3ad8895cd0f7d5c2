/* Training in bf16, on a backend that computes every op in bf16 around the reference kernels. */
#include "engine/tensor/panel.h"
#include "tests/unit/support/bf16_backend.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>

/* The fixture, on a device with bf16. */
static int setup(void **state)
{
	backend *inner;
	if (fixture_setup(state) != 0 || cpu_reference_open(&inner, 1, NULL) != STATUS_OK)
		return -1;
	fixture *f = *state;
	backend_close(f->backend);
	f->backend = bf16_backend_new(inner);
	return 0;
}

static train_options options_in(train_precision precision)
{
	train_options o = fixture_options();
	o.precision = precision;
	o.eval_every = 10;
	return o;
}

static void assert_copied(const fixture *f, const model *m)
{
	int64_t count = model_arena_floats(m);
	float *x = fixture_weights(f, m);
	uint16_t *copy = malloc((size_t)count * sizeof *copy);
	assert_non_null(copy);
	assert_non_null(model_bf16_weights(m));
	assert_int_equal(f->backend->download(f->backend, copy, model_bf16_weights(m), (size_t)count * sizeof *copy),
	                 STATUS_OK);
	for (int64_t i = 0; i < count; i++)
		assert_int_equal(copy[i], panel_bf16(x[i]));
	free(copy);
	free(x);
}

static void twenty_steps_follow_those_in_fp32(void **state)
{
	const fixture *f = *state;
	double losses[2][20], valid[2];
	for (int i = 0; i < 2; i++) {
		train_options o = options_in(i ? PRECISION_BF16 : PRECISION_FP32);
		trainer *t = fixture_trainer(f, 0.1, &o, f->valid);
		const train_progress *p = trainer_progress(t);
		assert_int_equal(!!model_bf16_weights(trainer_model(t)), i);
		for (int step = 1; step <= 20; step++) {
			fixture_run(t, step, 0);
			losses[i][step - 1] = p->train_loss;
			assert_true(isfinite(p->gradient_norm) && p->gradient_norm > 0);
		}
		valid[i] = p->valid_loss;
		if (i)
			assert_copied(f, trainer_model(t));
		trainer_free(t);
	}
	bool differs = false;
	for (int step = 0; step < 20; step++) {
		differs = differs || losses[0][step] != losses[1][step];
		if (!(fabs(losses[1][step] - losses[0][step]) <= 0.02 * losses[0][step]))
			fail_msg("step %d: loss %.6f in bf16, %.6f in fp32", step + 1, losses[1][step],
			         losses[0][step]);
	}
	assert_true(differs); /* it does not compute in fp32 after all */
	assert_true(valid[0] != valid[1] && fabs(valid[1] - valid[0]) <= 0.02 * valid[0]);
	assert_true(losses[1][19] < 0.7 * losses[1][0]);
}

static void a_resumed_run_is_the_same_bit_for_bit(void **state)
{
	const fixture *f = *state;
	train_options o = options_in(PRECISION_BF16);
	char path[128];
	snprintf(path, sizeof path, "%s/bf16", f->folder);
	o.gradient_accumulation = 2;
	trainer *whole = fixture_trainer(f, 0.1, &o, f->valid), *second = fixture_trainer(f, 0.1, &o, f->valid);
	fixture_run(whole, 7, 0);
	assert_int_equal(trainer_save(whole, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	fixture_run(whole, 20, 0);
	assert_int_equal(trainer_resume(second, path, NULL), STATUS_OK);
	assert_copied(f, trainer_model(second));
	fixture_run(second, 20, 0);
	assert_true(trainer_progress(whole)->train_loss == trainer_progress(second)->train_loss);
	assert_same_weights(f, whole, second);
	trainer_free(whole);
	trainer_free(second);
}

static void a_checkpoint_of_another_precision_is_refused_by_name(void **state)
{
	const fixture *f = *state;
	train_options o = options_in(PRECISION_FP32), other = options_in(PRECISION_BF16);
	char path[128];
	snprintf(path, sizeof path, "%s/fp32", f->folder);
	trainer *t = fixture_trainer(f, 0, &o, NULL), *u = fixture_trainer(f, 0, &other, NULL);
	error err = ERROR_INIT;
	assert_int_equal(trainer_save(t, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_resume(u, path, &err), STATUS_INVALID);
	assert_string_equal(err.param, "precision");
	trainer_free(t);
	trainer_free(u);
}

static void the_cpu_refuses_bf16_by_name(void **state)
{
	fixture f = *(const fixture *)*state;
	train_options o = options_in(PRECISION_BF16);
	trainer *t;
	error err = ERROR_INIT;
	assert_int_equal(cpu_open(&f.backend, 1, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&t, fixture_model(&f, 0), &o, f.train, NULL, &err), STATUS_UNSUPPORTED);
	assert_null(t);
	assert_string_equal(err.param, "precision");
	assert_string_equal(err.message, "the cpu backend computes in fp32 only");
	backend_close(f.backend);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(twenty_steps_follow_those_in_fp32),
	    cmocka_unit_test(a_resumed_run_is_the_same_bit_for_bit),
	    cmocka_unit_test(a_checkpoint_of_another_precision_is_refused_by_name),
	    cmocka_unit_test(the_cpu_refuses_bf16_by_name),
	};
	return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
