/* Options beyond plain training: an average of the weights, the gradient noise, a range test, and statistics taken over
 * from a model. */
#include "engine/model/safetensors.h"
#include "engine/train/optimizer_kind.h"
#include "engine/train/range_test.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>
#include <unistd.h>

static int64_t floats_of(const trainer *t)
{
	return model_trained_floats(trainer_model(t));
}

/* The validation loss with these weights. */
static double loss_of(const fixture *f, const float *weights)
{
	train_options o = fixture_options();
	o.max_steps = 1;
	o.learning_rate = 1e-12;
	model *m = fixture_model(f, 0);
	trainer *t;
	unsigned events = 0;
	assert_int_equal(
	    f->backend->upload(f->backend, model_arena(m), weights, (size_t)model_arena_floats(m) * sizeof *weights),
	    STATUS_OK);
	assert_int_equal(trainer_new(&t, m, &o, f->train, f->valid, NULL), STATUS_OK);
	while (!(events & TRAIN_EVAL))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	const double loss = trainer_progress(t)->valid_loss;
	trainer_free(t);
	return loss;
}

static void an_average_follows_the_weights_and_is_used_for_evaluations(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.max_steps = 12;
	o.learning_rate = 0.05;
	trainer *plain = fixture_trainer(f, 0.1, &o, f->valid);
	o.ema_decay = 0.4; /* the bound on d_n applies in the first steps, this value later */
	trainer *averaged = fixture_trainer(f, 0.1, &o, f->valid);
	const int64_t n = floats_of(plain);
	double *want = malloc((size_t)n * sizeof *want);
	float *w = fixture_weights(f, trainer_model(plain)), *got;
	for (int64_t i = 0; i < n; i++)
		want[i] = w[i];
	free(w);
	for (int step = 1; step <= 12; step++) {
		fixture_run(plain, step, 0);
		fixture_run(averaged, step, 0);
		assert_true(trainer_progress(plain)->train_loss == trainer_progress(averaged)->train_loss);
		const double bound = (1.0 + step) / (10.0 + step), d = bound < 0.4 ? bound : 0.4;
		w = fixture_weights(f, trainer_model(plain));
		got = fixture_weights(f, trainer_model(averaged));
		double apart = 0;
		for (int64_t i = 0; i < n; i++) {
			want[i] = d * want[i] + (1 - d) * w[i];
			assert_true(fabs(got[i] - want[i]) <= 1e-6);
			apart = fmax(apart, fabs(got[i] - w[i]));
		}
		assert_true(apart > 1e-3);
		free(w);
		free(got);
	}
	got = fixture_weights(f, trainer_model(averaged));
	for (unsigned events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(averaged, 0, &events, NULL), STATUS_OK);
	assert_true(fabs(trainer_progress(averaged)->valid_loss - loss_of(f, got)) <= 1e-6);
	free(got);
	free(want);
	trainer_free(plain);
	trainer_free(averaged);
}

/* All options of a recipe at once. */
static train_options every_option(void)
{
	train_options o = fixture_options();
	o.ema_decay = 0.9;
	o.gradient_accumulation = 2;
	o.gradient_noise = true;
	o.keep_best = true;
	o.patience = 50;
	o.eval_every = 3;
	o.decayed = DECAYED_MATRICES;
	return o;
}

/* Run to the end; records the noise and the losses of every step. */
static void finish(trainer *t, double numbers[20][3])
{
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		const train_progress *p = trainer_progress(t);
		const double now[] = {p->train_loss, p->valid_loss, p->gradient_noise};
		if (events & (TRAIN_STEP | TRAIN_EVAL))
			memcpy(numbers[p->step - 1], now, sizeof now);
	}
	assert_int_equal(trainer_conclude(t, NULL), STATUS_OK);
}

static void a_run_with_an_average_resumes_bit_for_bit_in_the_middle_of_a_step(void **state)
{
	const fixture *f = *state;
	train_options o = every_option();
	double unbroken[20][3], parts[20][3];
	trainer *a = fixture_trainer(f, 0.1, &o, f->valid), *b = fixture_trainer(f, 0.1, &o, f->valid);
	finish(a, unbroken);
	char path[128];
	snprintf(path, sizeof path, "%s/average", f->folder);
	for (int nodes = 0; nodes < 200; nodes += 29) {
		unsigned events;
		trainer *first = fixture_trainer(f, 0.1, &o, f->valid);
		fixture_run(first, 7, 0);
		for (int i = 0; i < nodes; i++)
			assert_int_equal(trainer_advance(first, 1, &events, NULL), STATUS_OK);
		const int64_t step = trainer_progress(first)->step;
		assert_int_equal(trainer_save(first, f->tokenizer, path, "id", NULL, NULL), STATUS_OK);
		assert_int_equal(trainer_resume(b, path, NULL), STATUS_OK);
		memcpy(parts, unbroken, (size_t)step * sizeof *parts);
		finish(b, parts);
		assert_memory_equal(unbroken, parts, sizeof unbroken);
		assert_same_weights(f, a, b);
		trainer_free(first);
	}
	trainer_free(a);
	trainer_free(b);
}

static void a_checkpoint_holds_the_average_as_its_model_and_the_trained_weights_beside_it(void **state)
{
	const fixture *f = *state;
	train_options o = every_option();
	trainer *t = fixture_trainer(f, 0, &o, f->valid);
	fixture_run(t, 5, 0);
	char path[128], file[160];
	error err = ERROR_INIT;
	model *m;
	snprintf(path, sizeof path, "%s/both", f->folder);
	snprintf(file, sizeof file, "%s/trained.safetensors", path);
	assert_int_equal(trainer_save(t, f->tokenizer, path, "id", NULL, NULL), STATUS_OK);
	assert_int_equal(model_open(&m, path, DTYPE_F32, f->backend, NULL), STATUS_OK);
	float *saved = fixture_weights(f, m), *own = fixture_weights(f, trainer_model(t));
	assert_memory_equal(saved, own, (size_t)model_arena_floats(m) * sizeof *saved);
	free(saved);
	free(own);
	model_free(m);
	assert_int_equal(remove(file), 0);
	assert_int_equal(trainer_resume(t, path, &err), STATUS_STORAGE);
	assert_non_null(strstr(err.message, "trained.safetensors"));
	trainer_free(t);
}

/* At a rate near 0, a step of k batches has the gradients of k steps of one batch. */
static void the_noise_scale_is_computed_from_the_gradients_of_a_step(void **state)
{
	enum { K = 4 };
	const fixture *f = *state;
	train_options o = fixture_options();
	o.learning_rate = 1e-12;
	trainer *single = fixture_trainer(f, 0, &o, NULL);
	double small = 0;
	for (int step = 1; step <= K; step++) {
		fixture_run(single, step, 0);
		small += pow(trainer_progress(single)->gradient_norm, 2) / K;
		assert_true(isnan(trainer_progress(single)->gradient_noise));
	}
	o.gradient_accumulation = K;
	o.gradient_noise = true;
	trainer *gathered = fixture_trainer(f, 0, &o, NULL);
	fixture_run(gathered, 1, 0);
	const train_progress *p = trainer_progress(gathered);
	const double large = pow(p->gradient_norm, 2), batch = (double)o.batch_size;
	const double noise = (small - large) / (1 / batch - 1 / (K * batch));
	const double gradient = (K * batch * large - batch * small) / (K * batch - batch);
	assert_true(noise > 0 && gradient > 0);
	assert_true(fabs(p->gradient_noise - noise / gradient) <= 1e-4 * noise / gradient);
	trainer_free(single);
	trainer_free(gathered);
}

static void a_range_test_finds_where_the_loss_falls_fastest_and_ends_where_it_rises(void **state)
{
	(void)state;
	range_test t = {0};
	int step = 0;
	for (; step < 400 && t.ended == 0; step++) {
		/* falls from 5 to 2 around step 100, rises from step 200 on */
		const double loss = 5 - 3 / (1 + exp(-(step - 100) / 8.0)) + (step > 200 ? 0.2 * (step - 200) : 0);
		range_test_take(&t, step + 1, 1e-6 * pow(1.05, step), loss);
	}
	const double at = log(t.rate / 1e-6) / log(1.05);
	assert_true(at >= 100 && at <= 125); /* smoothing delays it */
	assert_true(step > 205 && step < 240);
	const range_test before = t;
	range_test_take(&t, step + 1, 1, 0);
	assert_memory_equal(&before, &t, sizeof t);
	range_test bad = {0};
	range_test_take(&bad, 1, 1, NAN);
	assert_true(bad.ended != 0 && bad.rate == 0);
}

static train_options range_options(void)
{
	train_options o = fixture_options();
	o.schedule = SCHEDULE_RANGE_TEST;
	o.max_steps = 120;
	o.range_from = 1e-5;
	o.learning_rate = 1;
	return o;
}

static void a_range_test_raises_the_rate_by_equal_factors_and_resumes(void **state)
{
	const fixture *f = *state;
	train_options o = range_options();
	trainer *t = fixture_trainer(f, 0, &o, f->valid), *again = fixture_trainer(f, 0, &o, f->valid);
	char path[128];
	snprintf(path, sizeof path, "%s/range", f->folder);
	for (int step = 1; step <= 40; step++) {
		fixture_run(t, step, 0);
		assert_true(fabs(trainer_progress(t)->learning_rate / (1e-5 * pow(1e5, (step - 1) / 119.0)) - 1) <=
		            1e-9);
	}
	assert_int_equal(trainer_save(t, f->tokenizer, path, "id", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_resume(again, path, NULL), STATUS_OK);
	trainer *both[] = {t, again};
	for (int i = 0; i < 2; i++)
		for (unsigned events = 0; !(events & TRAIN_FINISHED);)
			assert_int_equal(trainer_advance(both[i], 0, &events, NULL), STATUS_OK);
	const train_progress *p = trainer_progress(t), *q = trainer_progress(again);
	assert_true(p->step > 40 && p->step < 120); /* a rate of 1 is far too high */
	assert_true(p->suggested_rate > 1e-5 && p->suggested_rate < p->learning_rate);
	assert_true(p->step == q->step && p->suggested_rate == q->suggested_rate && p->train_loss == q->train_loss);
	trainer_free(t);
	trainer_free(again);
}

/* A step reads all records, so that the order of a run's data does not matter. */
static train_options whole_text_options(const fixture *f)
{
	train_options o = fixture_options();
	o.optimizer = optimizer_kind_find("normalized_sgd");
	o.schedule = SCHEDULE_CONSTANT;
	o.warmup_steps = 0;
	o.weight_decay = 0;
	o.learning_rate = 0.02;
	o.batch_size = dataset_records(f->train);
	o.max_steps = 20;
	return o;
}

/* A run that starts with the model of a folder, after its steps; taken: also with the optimizer's statistics. */
static trainer *begin_with(const fixture *f, const char *folder, const train_options *o, bool taken, int64_t steps)
{
	model *m;
	trainer *t;
	assert_int_equal(model_open(&m, folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&t, m, o, f->train, NULL, NULL), STATUS_OK);
	if (taken)
		assert_int_equal(trainer_continue(t, folder, NULL), STATUS_OK);
	fixture_run(t, steps, 0);
	return t;
}

/* The largest difference between the weights of two runs. */
static double apart(const fixture *f, const trainer *a, const trainer *b)
{
	float *x = fixture_weights(f, trainer_model(a)), *y = fixture_weights(f, trainer_model(b));
	double most = 0;
	for (int64_t i = 0; i < floats_of(a); i++)
		most = fmax(most, fabs((double)x[i] - (double)y[i]));
	free(x);
	free(y);
	return most;
}

static void a_run_that_starts_with_a_model_continues_its_row_statistics(void **state)
{
	const fixture *f = *state;
	train_options o = whole_text_options(f), other = o;
	other.step_size = o.step_size == STEP_SIZE_RMS ? STEP_SIZE_NORM : STEP_SIZE_RMS;
	trainer *unbroken = fixture_trainer(f, 0, &o, NULL), *first = fixture_trainer(f, 0, &o, NULL);
	char path[128];
	snprintf(path, sizeof path, "%s/continued", f->folder);
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	fixture_run(unbroken, 8, 0);
	fixture_run(first, 5, 0);
	assert_int_equal(trainer_save_model(first, f->tokenizer, path, NULL), STATUS_OK);
	trainer *taken = begin_with(f, path, &o, true, 3), *fresh = begin_with(f, path, &o, false, 3);
	assert_true(apart(f, unbroken, taken) <= 1e-4);
	assert_true(apart(f, unbroken, fresh) >= 1e-3);
	trainer *others[] = {begin_with(f, path, &other, true, 1), begin_with(f, path, &other, false, 1)};
	assert_true(apart(f, others[0], others[1]) == 0);
	assert_int_equal(trainer_save(first, f->tokenizer, path, "id", NULL, NULL),
	                 STATUS_OK); /* a checkpoint has statistics too */
	trainer *checkpoint = begin_with(f, path, &o, true, 3);
	assert_same_weights(f, taken, checkpoint);
	trainer *all[] = {unbroken, first, taken, fresh, others[0], others[1], checkpoint};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		trainer_free(all[i]);
}

static void statistics_that_do_not_fit_a_model_are_refused_and_other_optimizers_save_none(void **state)
{
	const fixture *f = *state;
	train_options o = whole_text_options(f), plain = fixture_options();
	float rows[3] = {0};
	const safetensors_item item = {.name = "row_squares", .type = ST_F32, .rank = 1, .dim = {3}, .data = rows};
	char path[128], file[160];
	snprintf(path, sizeof path, "%s/misfit", f->folder);
	snprintf(file, sizeof file, "%s/optimizer.safetensors", path);
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	trainer *t = fixture_trainer(f, 0, &plain, f->valid);
	assert_int_equal(trainer_save_model(t, f->tokenizer, path, NULL), STATUS_OK);
	assert_int_equal(access(file, F_OK), -1);
	trainer_free(t);
	t = fixture_trainer(f, 0, &o, NULL);
	assert_int_equal(trainer_continue(t, path, NULL), STATUS_OK); /* the folder has no statistics */
	static const char *const updates[] = {"5", "x", "-1", ""};
	for (int i = 0; i < 4; i++) {
		json_t *about = json_pack("{s:s, s:s, s:s}", "optimizer", "normalized_sgd", "measure",
		                          o.step_size == STEP_SIZE_RMS ? "rms" : "norm", "updates", updates[i]);
		assert_int_equal(safetensors_write(file, &item, 1, about, NULL), STATUS_OK);
		json_decref(about);
		error err = ERROR_INIT;
		assert_int_equal(trainer_continue(t, path, &err), STATUS_INVALID);
		assert_string_equal(err.param, "model");
		assert_non_null(strstr(err.message, i == 0 ? "row_squares" : "updates"));
	}
	trainer_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_average_follows_the_weights_and_is_used_for_evaluations),
	    cmocka_unit_test(a_run_with_an_average_resumes_bit_for_bit_in_the_middle_of_a_step),
	    cmocka_unit_test(a_checkpoint_holds_the_average_as_its_model_and_the_trained_weights_beside_it),
	    cmocka_unit_test(the_noise_scale_is_computed_from_the_gradients_of_a_step),
	    cmocka_unit_test(a_range_test_finds_where_the_loss_falls_fastest_and_ends_where_it_rises),
	    cmocka_unit_test(a_range_test_raises_the_rate_by_equal_factors_and_resumes),
	    cmocka_unit_test(a_run_that_starts_with_a_model_continues_its_row_statistics),
	    cmocka_unit_test(statistics_that_do_not_fit_a_model_are_refused_and_other_optimizers_save_none),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
