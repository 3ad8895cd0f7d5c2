#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/text/corpus_tokens.h"
#include "engine/train/optimizer_kind.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"
#include "tests/unit/support/record.h"

/* Advance until an event of `want`; returns the validation loss then. */
static double run_until(trainer *t, unsigned want)
{
	unsigned events = 0;
	while (!(events & want)) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		assert_true(events); /* there is work left before the event */
	}
	return trainer_progress(t)->valid_loss;
}

static void every_event_comes_at_its_step(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.max_steps = 6;
	o.eval_every = 2;
	o.checkpoint_every = 3;
	trainer *t = fixture_trainer(f, 0, &o, f->valid);
	static const struct {
		int64_t step;
		unsigned events;
	} expected[] = {
	    {1, TRAIN_STEP},
	    {2, TRAIN_STEP},
	    {2, TRAIN_EVAL},
	    {3, TRAIN_STEP | TRAIN_CHECKPOINT_DUE},
	    {4, TRAIN_STEP},
	    {4, TRAIN_EVAL},
	    {5, TRAIN_STEP},
	    {6, TRAIN_STEP},
	    {6, TRAIN_EVAL | TRAIN_CHECKPOINT_DUE | TRAIN_FINISHED},
	    {6, 0},
	    {6, 0},
	};
	for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
		unsigned events;
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		assert_int_equal(events, expected[i].events);
		assert_int_equal(trainer_progress(t)->step, expected[i].step);
	}
	trainer_free(t);
}

/* The text of the last evaluation; *prompt: number of its tokens that are the prompt. */
static int preview_of(const trainer *t, int32_t ids[256], int *prompt)
{
	int count;
	const int32_t *written = trainer_preview(t, prompt, &count);
	assert_true(count <= 256);
	if (count > 0)
		memcpy(ids, written, (size_t)count * sizeof *ids);
	return count;
}

static void every_evaluation_shows_the_models_continuation_of_the_same_prompt(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.eval_every = 10;
	int32_t first[256], last[256], again[256];
	const int32_t *block = record_at(f->valid, 0, 0, 0).ids;
	int prompt, n[3];
	unsigned events = 0;
	trainer *t = fixture_trainer(f, 0.1, &o, f->valid), *twin = fixture_trainer(f, 0.1, &o, f->valid);
	assert_int_equal(preview_of(t, first, &prompt), 0);
	fixture_run(t, 10, 0);
	while (!(events & TRAIN_EVAL))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	n[0] = preview_of(t, first, &prompt);
	assert_int_equal(prompt, FIXTURE_LENGTH / 2);
	assert_true(n[0] >= prompt && n[0] <= 24); /* at most the model's positions */
	assert_memory_equal(first, block, (size_t)prompt * sizeof *block);
	while (!(events & TRAIN_FINISHED))
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	n[1] = preview_of(t, last, &prompt);
	assert_memory_equal(last, block, (size_t)prompt * sizeof *block);
	assert_true(n[1] != n[0] || memcmp(first, last, (size_t)n[0] * sizeof *first) != 0); /* the model has learned */
	for (events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(twin, 1, &events, NULL), STATUS_OK);
	n[2] = preview_of(twin, again, &prompt);
	assert_int_equal(n[2], n[1]);
	assert_memory_equal(again, last, (size_t)n[1] * sizeof *last);
	trainer_free(t);
	trainer_free(twin);
}

static void without_validation_data_there_are_no_evaluations(void **state)
{
	train_options o = fixture_options();
	o.max_steps = 2;
	o.eval_every = 1;
	trainer *t = fixture_trainer(*state, 0, &o, NULL);
	unsigned events;
	assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	assert_int_equal(events, TRAIN_STEP);
	assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	assert_int_equal(events, TRAIN_STEP | TRAIN_CHECKPOINT_DUE | TRAIN_FINISHED);
	assert_true(isnan(trainer_progress(t)->valid_loss));
	trainer_free(t);
}

/* Ends of documents represent no byte, and the first token in a block is not predicted. Bits are counted over all bytes
 * that the labels in the evaluated blocks represent. */
static void bits_per_byte_are_counted_over_the_predicted_bytes(void **state)
{
	const fixture *f = *state;
	char text[4000] = "";
	for (int i = 0, at = 0; i < 40; i++)
		at += snprintf(text + at, sizeof text - (size_t)at, "{\"text\": \"%.*s\"}\n", 3 + i % 17,
		               "abcdefghijklmnopqrst");
	dataset *valid;
	assert_int_equal(dataset_new(&valid, f->tokenizer, text, strlen(text), FIXTURE_LENGTH, NULL), STATUS_OK);
	train_options o = fixture_options();
	o.max_steps = 1;
	o.eval_blocks = 5;
	assert_true(dataset_records(valid) > o.eval_blocks);
	trainer *t = fixture_trainer(f, 0, &o, valid);
	run_until(t, TRAIN_FINISHED);
	int64_t bytes = 0, count = 0;
	for (int64_t i = 0; i < o.eval_blocks; i++) {
		text_record r = record_at(valid, 0, 0, i);
		for (int j = 1; j < FIXTURE_LENGTH; j++) {
			count++;
			bytes += r.ids[j] != BYTES_END;
		}
	}
	assert_true(bytes < count && count == o.eval_blocks * (FIXTURE_LENGTH - 1));
	const train_progress *p = trainer_progress(t);
	double want = p->valid_loss * (double)count / (double)bytes / log(2);
	assert_true(fabs(train_metric(p, "bits_per_byte") - want) <= 1e-12 * want);
	trainer_free(t);
	dataset_free(valid);
}

/* Share of positions whose most likely token is the label, from all logits of the same model; the lowest id wins
 * ties. */
static double accuracy_of(const model *m, const dataset *d, int64_t records, int64_t *n_predicted)
{
	const forward_spec spec = {.batch = 1, .length = FIXTURE_LENGTH, .out.logits = LOGITS_ALL};
	plan *p;
	int64_t right = 0;
	int32_t ids[FIXTURE_LENGTH], places[FIXTURE_LENGTH];
	*n_predicted = 0;
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	value logits = port_find(plan_graph(p), PORT_LOGITS);
	int64_t vocab = shape_last(graph_value(plan_graph(p), logits)->shape);
	float *z = malloc((size_t)(FIXTURE_LENGTH * vocab) * sizeof *z);
	assert_non_null(z);
	for (int64_t i = 0; i < records; i++) {
		text_record r = record_at(d, 0, 0, i);
		for (int k = 0; k < FIXTURE_LENGTH; k++) {
			ids[k] = k < r.count ? r.ids[k] : 0;
			places[k] = k;
		}
		assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_POSITIONS, places), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_read(p, logits, z), STATUS_OK);
		for (int64_t k = 0; k + 1 < r.count; k++) {
			if (r.not_predicted && r.not_predicted[k + 1])
				continue;
			int64_t best = 0;
			for (int64_t v = 1; v < vocab; v++)
				best = z[k * vocab + v] > z[k * vocab + best] ? v : best;
			right += best == r.ids[k + 1];
			++*n_predicted;
		}
	}
	free(z);
	plan_free(p);
	return (double)right / (double)*n_predicted;
}

/* Documents of a prompt and a completion each, some longer than a block; the last batch of the evaluation is not full.
 */
static void accuracy_is_the_share_of_labels_that_are_the_most_likely_token(void **state)
{
	const fixture *f = *state;
	char text[8000] = "";
	for (int i = 0, at = 0; i < 60; i++)
		at +=
		    snprintf(text + at, sizeof text - (size_t)at, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n",
		             3 + i % 7, "abcabcabcabc", 2 + i % 11, "abababababababab");
	for (int completions = 0; completions < 2; completions++) {
		token_cache *tokens;
		byte_source *source;
		dataset *d;
		assert_int_equal(byte_source_memory(&source, text, strlen(text), NULL), STATUS_OK);
		assert_int_equal(
		    corpus_tokens_build(&tokens, source, f->tokenizer, &(corpus_tokens_options){.threads = 1}, NULL),
		    STATUS_OK);
		const dataset_options cut = {
		    .length = FIXTURE_LENGTH, .completions = completions, .reset_at_document = completions};
		assert_int_equal(dataset_make(&d, NULL, f->tokenizer, &(dataset_text){tokens, 1}, 1, &cut, NULL),
		                 STATUS_OK);
		train_options o = fixture_options();
		o.max_steps = 30;
		o.eval_blocks = 7;
		assert_true(dataset_records(d) > o.eval_blocks && o.eval_blocks % o.batch_size != 0);
		o.loss_on = completions ? LOSS_ON_COMPLETION : LOSS_ON_ALL;
		o.reset_at_document = completions;
		trainer *t = NULL;
		error err = ERROR_INIT;
		if (trainer_new(&t, fixture_model(f, 0), &o, d, d, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		run_until(t, TRAIN_FINISHED);
		int64_t predicted;
		double want = accuracy_of(trainer_model(t), d, o.eval_blocks, &predicted);
		assert_true(completions ? predicted < o.eval_blocks * (FIXTURE_LENGTH - 1)
		                        : predicted == o.eval_blocks * (FIXTURE_LENGTH - 1));
		assert_true(want > 0.3 && want < 1);
		assert_true(train_metric(trainer_progress(t), "accuracy") == want);
		trainer_free(t);
		dataset_free(d);
		token_cache_free(tokens);
	}
}

static void the_loss_falls_and_the_progress_is_reported(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.max_steps = 40;
	trainer *t = fixture_trainer(f, 0.1, &o, f->valid);
	const train_progress *p = trainer_progress(t);
	assert_true(isnan(p->train_loss) && isnan(p->valid_loss) && p->step == 0 && p->tokens == 0);
	assert_int_equal(p->total_steps, 40);
	fixture_run(t, 1, 0);
	double first = p->train_loss;
	assert_true(fabs(first - log(259)) <= 0.1); /* weights are near zero: all tokens are equally likely */
	assert_true(p->learning_rate == 1e-2 && p->gradient_norm > 0 && p->tokens_per_second > 0);
	assert_int_equal(p->tokens, 3 * FIXTURE_LENGTH);
	run_until(t, TRAIN_FINISHED);
	assert_true(p->train_loss < 0.5 * first);
	assert_true(p->valid_loss < 0.5 * first);
	assert_true(fabs(train_metric(p, "bits_per_byte") - p->valid_loss / log(2)) <= 1e-12);
	assert_int_equal(p->tokens, 40 * 3 * FIXTURE_LENGTH);
	assert_true(fabs(p->learning_rate - 1e-2 / 40) <= 1e-15);
	trainer_free(t);
}

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

static void a_budget_changes_no_bit(void **state)
{
	const fixture *f = *state;
	static const uint64_t budgets[] = {1, 30000};
	train_options o = fixture_options();
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

/* Validation loss after one step of batch · accumulation blocks; there are seven blocks. */
static double validate(const fixture *f, int64_t batch, int64_t accumulation, int64_t eval_blocks)
{
	train_options o = fixture_options();
	o.max_steps = 1;
	o.batch_size = batch;
	o.gradient_accumulation = accumulation;
	o.eval_blocks = eval_blocks;
	trainer *t = fixture_trainer(f, 0, &o, f->valid);
	double loss = run_until(t, TRAIN_EVAL);
	trainer_free(t);
	return loss;
}

static void a_remainder_of_the_validation_blocks_counts_like_the_rest(void **state)
{
	const fixture *f = *state;
	assert_int_equal(dataset_records(f->valid), 7);
	/* Six blocks per step in three forms, so the weights agree up to rounding. */
	double one = validate(f, 1, 6, 0), three = validate(f, 3, 2, 0), six = validate(f, 6, 1, 0);
	assert_true(fabs(one - three) <= 1e-5);
	assert_true(fabs(one - six) <= 1e-5);
}

static void validation_data_may_be_smaller_than_a_batch_and_may_be_sampled(void **state)
{
	const fixture *f = *state;
	double all = validate(f, 9, 1, 0), same = validate(f, 9, 1, 100), some = validate(f, 9, 1, 2);
	assert_true(isfinite(all) && all == same);
	assert_true(isfinite(some) && some != all);
}

static void label_smoothing_is_for_training_only(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	double train_loss[2], valid_loss[2];
	o.max_steps = 1;
	o.learning_rate = 1e-12; /* keeps the weights the same */
	for (int i = 0; i < 2; i++) {
		trainer *t;
		model *m = fixture_model(f, 0);
		o.label_smoothing = i * 0.5;
		/* Bias the model towards one byte; with equal logits smoothing would change nothing. */
		const float bias = 5;
		float *at = model_arena(m) + model_parameter_offset(m, 1) + 'a' + 3;
		assert_string_equal(model_parameter(m, 1)->name, "proj_logits.bias");
		assert_int_equal(f->backend->upload(f->backend, at, &bias, sizeof bias), STATUS_OK);
		assert_int_equal(trainer_new(&t, m, &o, f->train, f->valid, NULL), STATUS_OK);
		valid_loss[i] = run_until(t, TRAIN_EVAL);
		train_loss[i] = trainer_progress(t)->train_loss;
		trainer_free(t);
	}
	assert_true(fabs(valid_loss[0] - valid_loss[1]) <= 1e-6);
	assert_true(train_loss[1] > train_loss[0] + 0.05);
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
	    cmocka_unit_test(every_event_comes_at_its_step),
	    cmocka_unit_test(every_evaluation_shows_the_models_continuation_of_the_same_prompt),
	    cmocka_unit_test(without_validation_data_there_are_no_evaluations),
	    cmocka_unit_test(bits_per_byte_are_counted_over_the_predicted_bytes),
	    cmocka_unit_test(accuracy_is_the_share_of_labels_that_are_the_most_likely_token),
	    cmocka_unit_test(the_loss_falls_and_the_progress_is_reported),
	    cmocka_unit_test(a_budget_changes_no_bit),
	    cmocka_unit_test(a_budget_of_a_nanosecond_runs_one_op_at_a_time),
	    cmocka_unit_test(accumulated_micro_batches_equal_one_large_batch),
	    cmocka_unit_test(seeds_choose_the_order_of_the_data_and_the_dropout),
	    cmocka_unit_test(micro_batches_draw_random_numbers_like_steps),
	    cmocka_unit_test(a_remainder_of_the_validation_blocks_counts_like_the_rest),
	    cmocka_unit_test(validation_data_may_be_smaller_than_a_batch_and_may_be_sampled),
	    cmocka_unit_test(label_smoothing_is_for_training_only),
	    cmocka_unit_test(three_bad_steps_in_a_row_end_the_run_permanently),
	    cmocka_unit_test(a_run_recovers_from_two_bad_steps),
	    cmocka_unit_test(a_run_ends_after_the_number_of_bad_steps_in_its_recipe),
	    cmocka_unit_test(options_that_do_not_fit_together_are_refused_by_name),
	    cmocka_unit_test(a_model_with_fewer_ids_than_the_tokenizer_is_refused),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
