/* Runs on preferences: the losses and their slopes, gradients through the model, and the reference. */
#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/train/objective.h"
#include "engine/train/optimizer_kind.h"
#include "engine/train/pass.h"
#include "tests/unit/train/fixture.h"

enum { RECORDS = 5, SEQUENCES = 2, ROWS = RECORDS * SEQUENCES, STEPS = 8, LINES = 24, VALID = 4 };

static const train_preference_loss kinds[] = {PREFERENCE_LOSS_DPO, PREFERENCE_LOSS_IPO, PREFERENCE_LOSS_KTO};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* --- losses -------------------------------------------------------------------------------------- */

static double loss_of(const train_options *o, const float sums[ROWS], double slopes[ROWS])
{
	static const float before[ROWS] = {-20, -18, -9, -12, -30, -31, -4, -8, -15, -15};
	static const int64_t labels[ROWS] = {6, 5, 3, 4, 9, 8, 2, 0, 7, 7};
	sequence_batch b = {
	    .options = o, .records = RECORDS, .sums = sums, .reference = before, .labels = labels, .slopes = slopes};
	objective_preference.weigh(&b);
	return b.loss;
}

static const float after[ROWS] = {-18, -19, -8.5f, -10, -33, -31, -4, -8.25f, -12, -20};

/* The values are those of TRL's sigmoid (with label_smoothing), ipo and kto_pair. */
static void the_losses_are_those_of_the_papers(void **state)
{
	(void)state;
	train_options o;
	double slopes[ROWS];
	train_options_default(&o);
	const double c[] = {2, 0.5, -3, 0, 3}, r[] = {-1, 2, 0, -0.25, -5}, m[] = {6, 3, 9, 2, 7},
	             n[] = {5, 4, 8, 1, 7};
	for (int k = 0; k < KINDS; k++) {
		double want = 0, mean[2] = {0};
		o.preference_loss = kinds[k];
		o.label_smoothing = k == 0 ? 0.2 : 0;
		o.beta = 0.5;
		for (int i = 0; i < RECORDS; i++)
			mean[0] += c[i] / RECORDS, mean[1] += r[i] / RECORDS;
		assert_true(mean[0] > 0 && mean[1] < 0);
		for (int i = 0; i < RECORDS; i++) {
			const double d = c[i] - r[i], ipo = c[i] / m[i] - r[i] / n[i] - 1 / (2 * o.beta);
			want += k == 0 ? 0.8 * log(1 + exp(-0.5 * d)) + 0.2 * log(1 + exp(0.5 * d))
			        : k == 1
			            ? ipo * ipo
			            : (2 - 1 / (1 + exp(-0.5 * c[i])) - 1 / (1 + exp(-0.5 * (mean[0] - r[i])))) / 2;
		}
		assert_true(fabs(loss_of(&o, after, slopes) - want / RECORDS) < 1e-12);
	}
}

static void slopes_are_the_derivatives_of_the_loss(void **state)
{
	(void)state;
	train_options o;
	double slopes[ROWS], ignored[ROWS];
	train_options_default(&o);
	for (int k = 0; k < 2; k++) { /* the means of kto take no gradient */
		o.preference_loss = kinds[k];
		o.label_smoothing = k == 0 ? 0.1 : 0;
		loss_of(&o, after, slopes);
		for (int i = 0; i < ROWS; i++) {
			float up[ROWS], down[ROWS];
			memcpy(up, after, sizeof up);
			memcpy(down, after, sizeof down);
			up[i] += 0x1p-8f;
			down[i] -= 0x1p-8f;
			const double slope = (loss_of(&o, up, ignored) - loss_of(&o, down, ignored)) / 0x1p-7;
			assert_true(fabs(slope - slopes[i]) < 1e-5);
		}
	}
	/* Far from every mean a completion of kto moves alone. */
	o.preference_loss = PREFERENCE_LOSS_KTO;
	loss_of(&o, after, slopes);
	const double z = 1 / (1 + exp(-0.1 * 2));
	assert_true(fabs(slopes[0] + 0.1 * z * (1 - z) / 2 / RECORDS) < 1e-9);
}

/* --- runs ----------------------------------------------------------------------------------------- */

typedef struct preferences {
	dataset *train, *valid;
} preferences;

static preferences make_data(const fixture *f)
{
	char text[LINES * 96];
	size_t bytes = 0;
	preferences p;
	for (int i = 0; i < LINES; i++)
		bytes += (size_t)snprintf(text + bytes, sizeof text - bytes,
		                          "{\"prompt\": \"%c%c\", \"chosen\": \"%.*s\", \"rejected\": \"%.*s\"}\n",
		                          'a' + i % 3, 'a' + i % 5, 1 + i % 4, "abcabc", 1 + i % 6, "cccbbb");
	assert_int_equal(
	    preferences_new(&p.train, &p.valid, f->tokenizer, text, bytes, FIXTURE_LENGTH, (double)VALID / LINES, NULL),
	    STATUS_OK);
	assert_int_equal(dataset_records(p.valid), VALID);
	return p;
}

static void drop_data(preferences p)
{
	dataset_free(p.train);
	dataset_free(p.valid);
}

static train_options options(train_preference_loss loss)
{
	train_options o = fixture_options();
	o.objective = &objective_preference;
	o.preference_loss = loss;
	o.batch_size = 4;
	o.eval_every = 4;
	o.max_steps = STEPS;
	o.learning_rate = 3e-3;
	return o;
}

static trainer *preference_trainer(const fixture *f, preferences p, const train_options *o)
{
	trainer *t;
	error err = ERROR_INIT;
	const status s = trainer_new(&t, fixture_model(f, 0.1), o, p.train, p.valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static double step(trainer *t)
{
	unsigned events = 0;
	while (!(events & TRAIN_STEP))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	return trainer_progress(t)->train_loss;
}

static void finish(trainer *t)
{
	unsigned events = 0;
	while (!(events & TRAIN_FINISHED))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
}

static void a_run_prefers_the_chosen_completions(void **state)
{
	const fixture *f = *state;
	const double first[] = {log(2), 25, 0.5};
	preferences p = make_data(f);
	for (int k = 0; k < KINDS; k++) {
		train_options o = options(kinds[k]);
		o.max_steps = 40;
		trainer *t = preference_trainer(f, p, &o);
		assert_true(fabs(step(t) - first[k]) < 1e-9 * first[k]); /* the model is the reference */
		finish(t);
		const train_progress *now = trainer_progress(t);
		assert_true(train_metric(now, "accuracy") == 1 && train_metric(now, "margin") > 0);
		assert_true(fabs(train_metric(now, "margin") - train_metric(now, "chosen_reward") +
		                 train_metric(now, "rejected_reward")) < 1e-9);
		assert_true(now->valid_loss < first[k] && now->tokens == 40 * 4 * SEQUENCES * FIXTURE_LENGTH);
		trainer_free(t);
	}
	drop_data(p);
}

/* The mean over the micro-batches is that over the records. */
static void micro_batches_of_a_step_count_their_records_alike(void **state)
{
	const fixture *f = *state;
	preferences p = make_data(f);
	float *weights[2];
	double losses[2];
	int64_t floats = 0;
	for (int i = 0; i < 2; i++) {
		train_options o = options(PREFERENCE_LOSS_DPO);
		o.optimizer = optimizer_kind_find("sgd");
		o.clip = 0;
		o.batch_size = i == 0 ? 4 : 2;
		o.gradient_accumulation = i == 0 ? 1 : 2;
		trainer *t = preference_trainer(f, p, &o);
		for (int s = 0; s < 3; s++)
			losses[i] = step(t);
		weights[i] = fixture_weights(f, trainer_model(t));
		floats = model_arena_floats(trainer_model(t));
		trainer_free(t);
	}
	assert_true(fabs(losses[0] - losses[1]) < 1e-6);
	for (int64_t i = 0; i < floats; i++)
		assert_true(fabsf(weights[0][i] - weights[1][i]) < 1e-6f);
	free(weights[0]), free(weights[1]);
	drop_data(p);
}

/* Load a batch and return its loss; with gradients: also run the backward. */
static double run(pass *p, const dataset *d, const float *reference, bool backward)
{
	const pass_rows rows = {.first = 3, .stride = 1, .count = 4};
	int at = 0;
	double loss;
	assert_int_equal(pass_load(p, d, 0, rows, NULL), STATUS_OK);
	assert_int_equal(plan_run_part(pass_plan(p), &at, pass_stop(p)), STATUS_OK);
	assert_int_equal(pass_weigh(p, reference, NULL, &loss), STATUS_OK);
	if (backward)
		assert_int_equal(plan_run_part(pass_plan(p), &at, plan_node_count(pass_plan(p))), STATUS_OK);
	return loss;
}

/* Along the gradient the loss rises by its square. */
static void the_gradient_is_that_of_the_loss(void **state)
{
	const fixture *f = *state;
	preferences p = make_data(f);
	float reference[(LINES - VALID) * SEQUENCES];
	for (int i = 0; i < (LINES - VALID) * SEQUENCES; i++)
		reference[i] = -10 - (float)(i * 7 % 5);
	for (int k = 0; k < 2; k++) {
		const train_options o = options(kinds[k]);
		model *m = fixture_model(f, 0);
		const int64_t floats = model_arena_floats(m);
		float *gradients = calloc((size_t)floats, sizeof *gradients);
		const forward_spec spec = pass_training_spec(&o, model_dimensions(m), 4);
		double square = 0, moved[2];
		pass *x;
		assert_int_equal(pass_new(&x, m, &o, &spec, gradients, NULL), STATUS_OK);
		assert_true(pass_stop(x) < plan_node_count(pass_plan(x)));
		run(x, p.train, reference, true);
		for (int64_t i = 0; i < floats; i++)
			square += (double)gradients[i] * (double)gradients[i];
		const float by = 1e-2f / (float)sqrt(square);
		for (int side = 0; side < 2; side++) {
			for (int64_t i = 0; i < floats; i++)
				model_arena(m)[i] += (side == 0 ? by : -2 * by) * gradients[i];
			moved[side] = run(x, p.train, reference, false);
		}
		assert_true(square > 0 && fabs((moved[0] - moved[1]) / (2 * (double)by) / square - 1) < 1e-2);
		pass_free(x);
		model_free(m);
		free(gradients);
	}
	drop_data(p);
}

/* --- resuming -------------------------------------------------------------------------------------- */

static void a_resumed_run_is_the_same_also_before_its_first_step(void **state)
{
	const fixture *f = *state;
	preferences p = make_data(f);
	char path[128];
	const train_options o = options(PREFERENCE_LOSS_DPO);
	trainer *whole = preference_trainer(f, p, &o);
	finish(whole);
	snprintf(path, sizeof path, "%s/preferences", f->folder);
	for (int steps = -1; steps <= 5; steps += 3) { /* -1: within the reference */
		trainer *first = preference_trainer(f, p, &o), *second = preference_trainer(f, p, &o);
		unsigned events;
		if (steps < 0)
			assert_int_equal(trainer_advance(first, 1, &events, NULL), STATUS_OK);
		for (int s = 0; s < steps; s++)
			step(first);
		assert_int_equal(trainer_save(first, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
		for (int s = 0; s < 2; s++)
			step(second);
		assert_int_equal(trainer_resume(second, path, NULL), STATUS_OK);
		finish(second);
		assert_same_weights(f, whole, second);
		assert_true(trainer_progress(whole)->valid_loss == trainer_progress(second)->valid_loss);
		trainer_free(first);
		trainer_free(second);
	}
	trainer_free(whole);
	drop_data(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_losses_are_those_of_the_papers),
	    cmocka_unit_test(slopes_are_the_derivatives_of_the_loss),
	    cmocka_unit_test(a_run_prefers_the_chosen_completions),
	    cmocka_unit_test(micro_batches_of_a_step_count_their_records_alike),
	    cmocka_unit_test(the_gradient_is_that_of_the_loss),
	    cmocka_unit_test(a_resumed_run_is_the_same_also_before_its_first_step),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
