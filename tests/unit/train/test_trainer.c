/* The trainer: steps, batches, failing steps, and the options that it refuses. */
#include <stdio.h>

#include "engine/text/corpus_tokens.h"
#include "engine/train/optimizer_kind.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"
#include "tests/unit/support/record.h"

/* Run to the end in slices of `budget_ns`, recording the loss of every step. */
static void record(trainer *t, uint64_t budget_ns, double *losses)
{
	int64_t done = 0;
	unsigned events = 0;
	while (!(events & TRAIN_FINISHED)) {
		assert_int_equal(trainer_advance(t, budget_ns, &events, NULL), STATUS_OK);
		assert_in_range(trainer_progress(t)->step, done, done + 1);
		if (events & TRAIN_STEP)
			losses[done++] = trainer_progress(t)->train_loss;
		else
			assert_int_equal(trainer_progress(t)->step, done);
	}
}

static void slices_change_no_bit(const fixture *f, const optimizer_kind *kind)
{
	static const uint64_t budgets[] = {1, 30000};
	train_options o = fixture_options();
	o.optimizer = kind;
	o.max_steps = 5;
	o.gradient_accumulation = 2;
	o.eval_every = 2;
	double whole[5], sliced[5];
	trainer *a = fixture_trainer(f, 0.1, &o, f->valid);
	record(a, 0, whole);
	for (int i = 0; i < 2; i++) {
		trainer *b = fixture_trainer(f, 0.1, &o, f->valid);
		record(b, budgets[i], sliced);
		assert_memory_equal(whole, sliced, sizeof whole);
		assert_same_weights(f, a, b);
		assert_true(trainer_progress(a)->valid_loss == trainer_progress(b)->valid_loss);
		trainer_free(b);
	}
	trainer_free(a);
}

static void a_budget_changes_no_bit(void **state)
{
	slices_change_no_bit(*state, &optimizer_kind_adamw);
	slices_change_no_bit(*state, &optimizer_kind_muon);
}

static void muon_lowers_the_loss(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.optimizer = &optimizer_kind_muon;
	o.max_steps = 60;
	double losses[60];
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	record(t, 0, losses);
	trainer_free(t);
	assert_true(losses[59] < 0.4 * losses[0]);
}

static void a_budget_of_a_nanosecond_runs_one_op_at_a_time(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	int calls = 0;
	for (unsigned events = 0; !(events & TRAIN_STEP); calls++)
		assert_int_equal(trainer_advance(t, 1, &events, NULL), STATUS_OK);
	assert_in_range(calls, 50, 1000); /* two layers, forward and backward */
	trainer_free(t);
}

static void accumulated_micro_batches_equal_one_large_batch(void **state)
{
	const fixture *f = *state;
	train_options large = fixture_options(), small = large;
	large.batch_size = 6;
	small.batch_size = 2;
	small.gradient_accumulation = 3;
	large.max_steps = small.max_steps = 4;
	trainer *a = fixture_trainer(f, 0, &large, NULL), *b = fixture_trainer(f, 0, &small, NULL);
	for (int step = 1; step <= 4; step++) {
		fixture_run(a, step, 0);
		fixture_run(b, step, 0);
		const train_progress *p = trainer_progress(a), *q = trainer_progress(b);
		assert_true(fabs(p->train_loss - q->train_loss) <= 1e-4);
		assert_true(fabs(p->gradient_norm - q->gradient_norm) <= 1e-3 * p->gradient_norm);
	}
	trainer_free(a);
	trainer_free(b);
}

static void seeds_choose_the_order_of_the_data_and_the_dropout(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	double loss[3];
	for (uint64_t seed = 0; seed < 3; seed++) {
		o.seed = seed;
		trainer *t = fixture_trainer(f, 0, &o, NULL);
		fixture_run(t, 1, 0);
		loss[seed] = trainer_progress(t)->train_loss;
		trainer_free(t);
	}
	assert_true(loss[0] != loss[1] && loss[1] != loss[2] && loss[0] != loss[2]);
	trainer *dry = fixture_trainer(f, 0, &o, NULL), *wet = fixture_trainer(f, 0.5, &o, NULL);
	fixture_run(dry, 1, 0);
	fixture_run(wet, 1, 0);
	assert_true(trainer_progress(dry)->train_loss != trainer_progress(wet)->train_loss);
	trainer_free(dry);
	trainer_free(wet);
}

static void micro_batches_draw_random_numbers_like_steps(void **state)
{
	const fixture *f = *state;
	char text[FIXTURE_LENGTH];
	dataset *one; /* one block, so that only the dropout masks can differ */
	fixture_text(text, sizeof text);
	assert_int_equal(dataset_new(&one, f->tokenizer, text, sizeof text, FIXTURE_LENGTH, NULL), STATUS_OK);
	train_options o = fixture_options();
	o.batch_size = 1;
	o.learning_rate = 1e-12; /* keeps the weights the same */
	trainer *steps, *micros;
	assert_int_equal(trainer_new(&steps, fixture_model(f, 0.5), &o, one, NULL, NULL), STATUS_OK);
	o.gradient_accumulation = 2;
	assert_int_equal(trainer_new(&micros, fixture_model(f, 0.5), &o, one, NULL, NULL), STATUS_OK);
	double loss[4];
	for (int i = 0; i < 4; i++) {
		fixture_run(steps, i + 1, 0);
		loss[i] = trainer_progress(steps)->train_loss;
		for (int j = 0; j < i; j++)
			assert_true(fabs(loss[i] - loss[j]) >= 1e-5);
	}
	for (int i = 0; i < 2; i++) {
		fixture_run(micros, i + 1, 0);
		double mean = (loss[2 * i] + loss[2 * i + 1]) / 2;
		assert_true(fabs(trainer_progress(micros)->train_loss - mean) <= 1e-6);
	}
	trainer_free(steps);
	trainer_free(micros);
	dataset_free(one);
}

/* Overwrite the first weight; returns the old one. */
static float poke(const fixture *f, const trainer *t, float x)
{
	float before;
	float *weight = model_arena(trainer_model(t)) + model_parameter_offset(trainer_model(t), 0) + 16 * (' ' + 3);
	assert_int_equal(f->backend->download(f->backend, &before, weight, sizeof before), STATUS_OK);
	assert_int_equal(f->backend->upload(f->backend, weight, &x, sizeof x), STATUS_OK);
	return before;
}

static void three_bad_steps_in_a_row_end_the_run_permanently(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, f->valid);
	fixture_run(t, 2, 0);
	poke(f, t, NAN);
	float *before = fixture_weights(f, trainer_model(t));
	fixture_run(t, 4, 0);
	assert_true(isnan(trainer_progress(t)->train_loss));
	for (int again = 0; again < 2; again++) {
		unsigned events = 99;
		error err = ERROR_INIT;
		assert_int_equal(trainer_advance(t, 0, &events, &err), STATUS_INVALID);
		assert_int_equal(events, 0);
		assert_string_equal(err.param, "learning_rate");
		assert_non_null(strstr(err.message, "not finite"));
	}
	float *after = fixture_weights(f, trainer_model(t));
	assert_memory_equal(before, after, (size_t)model_arena_floats(trainer_model(t)) * sizeof *after);
	free(before);
	free(after);
	trainer_free(t);
}

static void a_run_recovers_from_two_bad_steps(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	int64_t step = 0;
	for (int round = 0; round < 2; round++) {
		float good = poke(f, t, NAN);
		fixture_run(t, step += 2, 0);
		poke(f, t, good);
		fixture_run(t, step += 2, 0);
		assert_true(isfinite(trainer_progress(t)->train_loss));
		assert_int_equal(trainer_progress(t)->skipped_steps, 2 * round + 2);
	}
	trainer_free(t);
}

static void a_run_ends_after_the_number_of_bad_steps_in_its_recipe(void **state)
{
	const fixture *f = *state;
	for (int most = 1; most <= 5; most += 4) {
		train_options o = fixture_options();
		unsigned events;
		error err = ERROR_INIT;
		o.max_bad_steps = most;
		trainer *t = fixture_trainer(f, 0, &o, NULL);
		poke(f, t, NAN);
		if (most > 1)
			fixture_run(t, most - 1, 0);
		assert_int_equal(trainer_advance(t, 0, &events, &err), STATUS_INVALID);
		char text[40];
		snprintf(text, sizeof text, "up to step %d", most);
		assert_non_null(strstr(err.message, text));
		trainer_free(t);
	}
}

static void assert_refused(const fixture *f, const train_options *o, const dataset *train, const dataset *valid,
                           const char *param)
{
	trainer *t = (trainer *)(uintptr_t)o;
	error err = ERROR_INIT;
	assert_int_equal(trainer_new(&t, fixture_model(f, 0), o, train, valid, &err), STATUS_INVALID);
	assert_null(t);
	assert_string_equal(err.param, param);
	assert_true(err.message[0]);
}

static void options_that_do_not_fit_together_are_refused_by_name(void **state)
{
	const fixture *f = *state;
	char text[200];
	dataset *longer, *other;
	fixture_text(text, sizeof text);
	assert_int_equal(dataset_new(&longer, f->tokenizer, text, sizeof text, 25, NULL), STATUS_OK);
	assert_int_equal(dataset_new(&other, f->tokenizer, text, sizeof text, 8, NULL), STATUS_OK);
	train_options o = fixture_options();
	o.sequence_length = 25; /* the model has 24 positions */
	assert_refused(f, &o, longer, NULL, "sequence_length");
	o.sequence_length = 17;
	assert_refused(f, &o, f->train, NULL, "sequence_length");
	o = fixture_options();
	assert_refused(f, &o, f->train, other, "sequence_length");
	o.batch_size = dataset_records(f->train) + 1;
	assert_refused(f, &o, f->train, NULL, "batch_size");
	o = fixture_options();
	o.warmup_steps = 21;
	assert_refused(f, &o, f->train, NULL, "warmup_steps");
	o = fixture_options();
	o.patience = 1;
	assert_refused(f, &o, f->train, NULL, "patience");
	o.patience = 0;
	o.keep_best = true;
	assert_refused(f, &o, f->train, NULL, "keep_best");
	dataset_free(longer);
	dataset_free(other);
}

static void a_model_with_fewer_ids_than_the_tokenizer_is_refused(void **state)
{
	const fixture *f = *state;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i}", "hidden_size", 8, "vocab_size", 258, "n_heads", 2,
	                           "n_positions", 16, "n_layer", 1);
	model *m;
	trainer *t;
	error err = ERROR_INIT;
	train_options o = fixture_options();
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 1, f->backend, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&t, m, &o, f->train, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "vocab_size");
	json_decref(config);
}

static void every_allocation_may_fail(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.gradient_accumulation = 2;
	o.keep_best = o.gradient_noise = true;
	o.ema_decay = 0.9;
	o.decayed = DECAYED_MATRICES;
	trainer *t = NULL;
	status s = STATUS_NOMEM;
	int64_t limit = 0;
	for (; s == STATUS_NOMEM; limit++) {
		error err = ERROR_INIT;
		model *m = fixture_model(f, 0.1);
		allocations_limit(limit);
		s = trainer_new(&t, m, &o, f->train, f->valid, &err);
		allocations_limit(-1);
		assert_true((s == STATUS_OK) == (t != NULL));
		assert_true((s == STATUS_OK) == (err.message[0] == 0));
	}
	assert_int_equal(s, STATUS_OK);
	assert_true(limit > 20);
	fixture_run(t, 1, 0);
	trainer_free(t);
	trainer_free(NULL);
}

/* `lines` prompts of at most `longest` bytes, each with its completion. */
static dataset *pairs(const fixture *f, int lines, int longest)
{
	char text[8000], prompt[128];
	size_t bytes = 0;
	token_cache *tokens;
	byte_source *source;
	dataset *d;
	memset(prompt, 'q', sizeof prompt);
	for (int i = 0; i < lines; i++)
		bytes +=
		    (size_t)snprintf(text + bytes, sizeof text - bytes,
		                     "{\"prompt\": \"%.*s\", \"completion\": \"%d\"}\n", i % longest, prompt, i * i);
	assert_int_equal(byte_source_memory(&source, text, bytes, NULL), STATUS_OK);
	assert_int_equal(
	    corpus_tokens_build(&tokens, source, f->tokenizer, &(corpus_tokens_options){.threads = 1}, NULL),
	    STATUS_OK);
	const dataset_options o = {.length = FIXTURE_LENGTH, .completions = true};
	assert_int_equal(dataset_make(&d, NULL, f->tokenizer, &(dataset_text){tokens, 1}, 1, &o, NULL), STATUS_OK);
	token_cache_free(tokens);
	return d;
}

static void a_step_is_the_mean_over_its_labels_in_any_division_into_batches(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs(f, 40, 23);
	trainer *runs[2];
	for (int i = 0; i < 2; i++) {
		train_options o = fixture_options();
		o.loss_on = LOSS_ON_COMPLETION;
		o.batch_size = i ? 1 : 4;
		o.gradient_accumulation = i ? 4 : 1;
		o.optimizer = optimizer_kind_find("sgd"); /* Adam would hide a constant factor */
		o.clip = 0;
		assert_int_equal(trainer_new(&runs[i], fixture_model(f, 0), &o, d, NULL, NULL), STATUS_OK);
		fixture_run(runs[i], 3, 0);
	}
	const train_progress *a = trainer_progress(runs[0]), *b = trainer_progress(runs[1]);
	assert_true(fabs(a->train_loss - b->train_loss) <= 1e-5 * a->train_loss);
	assert_true(fabs(a->gradient_norm - b->gradient_norm) <= 1e-4 * a->gradient_norm);
	trainer_free(runs[0]);
	trainer_free(runs[1]);
	dataset_free(d);
}

static bool is_empty(const dataset *d, const train_options *o, int64_t step)
{
	text_record r = {0};
	int64_t labels = 0, batches = o->gradient_accumulation;
	for (int64_t i = step * batches; i < (step + 1) * batches; i++) {
		assert_int_equal(dataset_record(d, o->seed, i / dataset_records(d), i % dataset_records(d), &r, NULL),
		                 STATUS_OK);
		for (int64_t j = 1; j < r.count; j++)
			labels += !r.not_predicted[j];
	}
	text_record_fini(&r);
	return labels == 0;
}

static void a_step_without_labels_has_no_loss_and_changes_no_weight(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs(f, 40, 90);
	for (int batches = 1; batches <= 2; batches++) {
		train_options o = fixture_options();
		int64_t empty = 0;
		trainer *t;
		o.loss_on = LOSS_ON_COMPLETION;
		o.batch_size = 1;
		o.gradient_accumulation = batches;
		o.ema_decay = 0.9;
		o.max_steps = 30;
		assert_int_equal(trainer_new(&t, fixture_model(f, 0), &o, d, d, NULL), STATUS_OK);
		float *before = fixture_weights(f, trainer_model(t));
		for (int64_t step = 0; step < o.max_steps; step++) {
			fixture_run(t, step + 1, 0);
			const train_progress *p = trainer_progress(t);
			const bool none = is_empty(d, &o, step);
			empty += none;
			float *after = fixture_weights(f, trainer_model(t));
			const size_t bytes = (size_t)model_arena_floats(trainer_model(t)) * sizeof *after;
			assert_int_equal(memcmp(before, after, bytes) == 0, none);
			assert_int_equal(isnan(p->train_loss) && isnan(p->gradient_norm), none);
			assert_true(p->empty_steps == empty && p->skipped_steps == 0);
			free(before);
			before = after;
		}
		assert_true(empty > 0 && empty < o.max_steps);
		free(before);
		trainer_free(t);
	}
	dataset_free(d);
}

static void a_range_test_leaves_out_steps_without_labels(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs(f, 40, 90);
	train_options o = fixture_options();
	trainer *t;
	unsigned events = 0;
	o.loss_on = LOSS_ON_COMPLETION;
	o.schedule = SCHEDULE_RANGE_TEST;
	o.warmup_steps = 0;
	o.batch_size = 1;
	o.max_steps = 60;
	o.range_from = 1e-6;
	o.learning_rate = 0.1;
	assert_int_equal(trainer_new(&t, fixture_model(f, 0), &o, d, NULL, NULL), STATUS_OK);
	while (!(events & TRAIN_FINISHED))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	assert_true(trainer_progress(t)->empty_steps > 3);
	assert_true(trainer_progress(t)->suggested_rate >= 1e-3);
	trainer_free(t);
	dataset_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_step_without_labels_has_no_loss_and_changes_no_weight),
	    cmocka_unit_test(a_range_test_leaves_out_steps_without_labels),
	    cmocka_unit_test(a_step_is_the_mean_over_its_labels_in_any_division_into_batches),
	    cmocka_unit_test(a_budget_changes_no_bit),
	    cmocka_unit_test(muon_lowers_the_loss),
	    cmocka_unit_test(a_budget_of_a_nanosecond_runs_one_op_at_a_time),
	    cmocka_unit_test(accumulated_micro_batches_equal_one_large_batch),
	    cmocka_unit_test(seeds_choose_the_order_of_the_data_and_the_dropout),
	    cmocka_unit_test(micro_batches_draw_random_numbers_like_steps),
	    cmocka_unit_test(three_bad_steps_in_a_row_end_the_run_permanently),
	    cmocka_unit_test(a_run_recovers_from_two_bad_steps),
	    cmocka_unit_test(a_run_ends_after_the_number_of_bad_steps_in_its_recipe),
	    cmocka_unit_test(options_that_do_not_fit_together_are_refused_by_name),
	    cmocka_unit_test(a_model_with_fewer_ids_than_the_tokenizer_is_refused),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
