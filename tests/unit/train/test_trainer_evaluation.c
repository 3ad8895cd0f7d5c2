/* The trainer: events, evaluations on validation data, and the progress they report. */
#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/text/corpus_tokens.h"
#include "tests/unit/support/bytes.h"
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_event_comes_at_its_step),
	    cmocka_unit_test(every_evaluation_shows_the_models_continuation_of_the_same_prompt),
	    cmocka_unit_test(without_validation_data_there_are_no_evaluations),
	    cmocka_unit_test(bits_per_byte_are_counted_over_the_predicted_bytes),
	    cmocka_unit_test(accuracy_is_the_share_of_labels_that_are_the_most_likely_token),
	    cmocka_unit_test(the_loss_falls_and_the_progress_is_reported),
	    cmocka_unit_test(a_remainder_of_the_validation_blocks_counts_like_the_rest),
	    cmocka_unit_test(validation_data_may_be_smaller_than_a_batch_and_may_be_sampled),
	    cmocka_unit_test(label_smoothing_is_for_training_only),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
