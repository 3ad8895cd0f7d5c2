/* Objectives alone and through a trainer. */
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>

#include "engine/text/labelled.h"
#include "engine/train/objective.h"
#include "tests/unit/support/record.h"

enum { LENGTH = 12, WORDS = 5 };

/* Records whose class is the letter that occurs in them: "a", "b" or "c" among other letters. */
static dataset *letters(const fixture *f, int n, uint32_t seed)
{
	static char text[1 << 16];
	dataset *d;
	size_t at = 0;
	for (int i = 0; i < n; i++) {
		char word[WORDS + 8];
		philox_block r = philox(seed, 0, 0, (uint64_t)i);
		int bytes = WORDS + (int)(r.word[0] % 7), label = i % 3;
		for (int k = 0; k < bytes; k++)
			word[k] = "mnopq"[philox(seed, 1, (uint32_t)i, (uint64_t)k).word[0] % 5];
		word[r.word[1] % (uint32_t)bytes] = (char)('a' + label);
		at += (size_t)snprintf(text + at, sizeof text - at, "{\"text\": \"%.*s\", \"label\": \"%c\"}\n", bytes,
		                       word, 'a' + label);
	}
	assert_int_equal(labelled_new(&d, f->tokenizer, text, at, LENGTH, NULL, NULL), STATUS_OK);
	return d;
}

static model *encoder(const fixture *f, int classes, double dropout)
{
	json_t *config =
	    json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "d_model", 16, "vocab_size", 259,
	              "encoder_attention_heads", 2, "max_position_embeddings", LENGTH, "encoder_layers", 1,
	              "encoder_ffn_dim", 32, "num_labels", classes, "pad_token_id", BYTES_PAD, "dropout", dropout);
	model *m;
	error err = ERROR_INIT;
	status s = model_create(&m, architecture_find("linear_encoder"), config, 7, f->backend, &err);
	json_decref(config);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return m;
}

static train_options classification(int64_t steps)
{
	train_options o = fixture_options();
	o.objective = &objective_classification;
	o.sequence_length = LENGTH;
	o.max_steps = steps;
	return o;
}

static trainer *classifier(const fixture *f, double dropout, const train_options *o, const dataset *train,
                           const dataset *valid)
{
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, encoder(f, 3, dropout), o, train, valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static void finish(trainer *t)
{
	for (unsigned events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
}

/* --- examples ------------------------------------------------------------------------------ */

static void every_objective_is_found_by_its_name(void **state)
{
	(void)state;
	for (int i = 0; objective_at(i); i++) {
		assert_ptr_equal(objective_find(objective_at(i)->name), objective_at(i));
		assert_true(objective_at(i)->n_ports <= OBJECTIVE_MAX_PORTS);
	}
	assert_null(objective_find("none"));
	assert_ptr_equal(objective_find("next_token"), &objective_next_token);
}

static void each_token_of_a_block_predicts_the_next_one(void **state)
{
	const fixture *f = *state;
	int32_t ids[FIXTURE_LENGTH], labels[FIXTURE_LENGTH];
	void *const values[] = {ids, labels};
	text_record r = record_at(f->train, 0, 0, 3);
	example x = {.data = f->train, .record = &r, .length = FIXTURE_LENGTH};
	objective_next_token.example(&x, values);
	assert_memory_equal(ids, r.ids, sizeof ids);
	assert_memory_equal(labels, r.ids + 1, sizeof labels - sizeof *labels);
	assert_int_equal(labels[FIXTURE_LENGTH - 1], -1);
	x.record = NULL;
	objective_next_token.example(&x, values);
	for (int i = 0; i < FIXTURE_LENGTH; i++)
		assert_true(ids[i] == BYTES_PAD && labels[i] == -1);
}

static void a_short_text_is_padded_and_the_padding_is_masked(void **state)
{
	const fixture *f = *state;
	dataset *d = letters(f, 6, 1);
	int32_t ids[LENGTH], mask[LENGTH], label;
	void *const values[] = {ids, mask, &label};
	for (int i = 0; i < 6; i++) {
		text_record r = record_at(d, 0, 0, i);
		objective_classification.example(&(example){.data = d, .record = &r, .length = LENGTH}, values);
		for (int k = 0; k < LENGTH; k++) {
			assert_int_equal(mask[k], k < r.count);
			assert_int_equal(ids[k], k < r.count ? r.ids[k] : BYTES_PAD);
		}
		assert_int_equal(label, i % 3);
	}
	objective_classification.example(&(example){.data = d, .length = LENGTH}, values);
	assert_int_equal(label, -1);
	assert_int_equal(mask[0], 1);
	for (int k = 1; k < LENGTH; k++)
		assert_int_equal(mask[k], 0);
	dataset_free(d);
}

/* --- metrics ------------------------------------------------------------------------------- */

/* The objective's metrics for logits that predict class taken[i] for record i. */
static void measure(const fixture *f, const char *const *classes, const char *truly, const char *taken, double *metrics)
{
	char text[1024] = "";
	size_t at = 0;
	int64_t n = (int64_t)strlen(truly), outputs = 0;
	dataset *d;
	for (int64_t i = 0; i < n; i++)
		at += (size_t)snprintf(text + at, sizeof text - at, "{\"text\": \"t\", \"label\": \"%c\"}\n", truly[i]);
	assert_int_equal(labelled_new(&d, f->tokenizer, text, at, LENGTH, classes, NULL), STATUS_OK);
	while (classes[outputs])
		outputs++;
	float logits[64] = {0};
	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; k < outputs; k++)
			logits[i * outputs + k] = classes[k][0] == taken[i] ? 2 : -0.1f * (float)k;
	graph *g = graph_new();
	value in = graph_input(g, "in", DTYPE_F32, SHAPE2(n, outputs));
	graph_output(g, op_scale(g, in, 1), "logits");
	plan *p;
	assert_int_equal(plan_new(&p, g, f->backend, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, in, logits), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	evaluation e = {
	    .data = d, .records = n, .stride = 1, .tally = calloc(1, objective_classification.tally_bytes(d))};
	assert_int_equal(objective_classification.tally(&e, p, 0, n), STATUS_OK);
	objective_classification.measure(&e, metrics);
	free(e.tally);
	plan_free(p);
	dataset_free(d);
}

static void accuracy_f1_and_correlation_equal_the_values_computed_by_hand(void **state)
{
	static const char *const three[] = {"a", "b", "c", NULL}, *const four[] = {"a", "b", "c", "d", NULL},
	                         *const two[] = {"n", "p", NULL};
	static const struct {
		const char *const *classes;
		const char *truly, *taken;
		double accuracy, f1, matthews;
	} cases[] = {
	    /* f1: 4/5, 1/2, 2/3; matthews: (4·6 - (2·3 + 2·2 + 2·1)) / √((36 - 12) (36 - 14)) */
	    {three, "aaabbc", "aabbcc", 4.0 / 6, (0.8 + 0.5 + 2.0 / 3) / 3, 12 / 22.978250586152114},
	    /* A class that neither occurs nor is predicted is left out. */
	    {four, "aaabbc", "aabbcc", 4.0 / 6, (0.8 + 0.5 + 2.0 / 3) / 3, 12 / 22.978250586152114},
	    /* Two classes: tp 3, tn 1, fp 2, fn 1; (3·1 - 2·1) / √(5·4·3·2) */
	    {two, "ppppnnn", "pppnppn", 4.0 / 7, (6.0 / 9 + 2.0 / 5) / 2, 1 / 10.954451150103322},
	    {two, "ppnn", "ppnn", 1, 1, 1},
	    {two, "ppnn", "nnpp", 0, 0, -1},
	    {two, "ppnn", "pppp", 0.5, (4.0 / 6) / 2, 0}, /* one class for all records has no correlation */
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		double metrics[3];
		measure(*state, cases[i].classes, cases[i].truly, cases[i].taken, metrics);
		assert_true(fabs(metrics[0] - cases[i].accuracy) <= 1e-12);
		assert_true(fabs(metrics[1] - cases[i].f1) <= 1e-12);
		assert_true(fabs(metrics[2] - cases[i].matthews) <= 1e-12);
	}
}

/* --- through a trainer ----------------------------------------------------------------------- */

static void a_classifier_learns_and_its_evaluation_reports_metrics_and_no_text(void **state)
{
	const fixture *f = *state;
	dataset *train = letters(f, 60, 1), *valid = letters(f, 21, 2);
	train_options o = classification(120);
	o.batch_size = 10;
	o.label_smoothing = 0.1;
	trainer *t = classifier(f, 0.1, &o, train, valid);
	const train_progress *p = trainer_progress(t);
	assert_true(isnan(train_metric(p, "accuracy")) && isnan(p->byte_entropy));
	fixture_run(t, 1, 0);
	assert_true(fabs(p->train_loss - log(3)) <= 0.2);
	finish(t);
	assert_true(train_metric(p, "accuracy") >= 0.95);
	assert_true(train_metric(p, "macro_f1") >= 0.95);
	assert_true(train_metric(p, "matthews") >= 0.9);
	assert_true(p->valid_loss < 0.4);
	assert_true(isnan(train_metric(p, "bits_per_byte")));
	int prompt, count;
	assert_null(trainer_preview(t, &prompt, &count));
	assert_int_equal(count, 0);
	trainer_free(t);
	dataset_free(train);
	dataset_free(valid);
}

static void an_evaluation_covers_all_records_for_any_batch(void **state)
{
	const fixture *f = *state;
	dataset *train = letters(f, 30, 1), *valid = letters(f, 7, 2);
	double loss[3], accuracy[3];
	for (int i = 0; i < 3; i++) {
		train_options o = classification(1);
		o.batch_size = (int[]){1, 3, 7}[i];
		o.learning_rate = 1e-12; /* keeps the model the same */
		trainer *t = classifier(f, 0, &o, train, valid);
		finish(t);
		loss[i] = trainer_progress(t)->valid_loss;
		accuracy[i] = train_metric(trainer_progress(t), "accuracy");
		trainer_free(t);
	}
	for (int i = 1; i < 3; i++) {
		assert_true(fabs(loss[i] - loss[0]) <= 1e-6);
		assert_true(accuracy[i] == accuracy[0]);
	}
	dataset_free(train);
	dataset_free(valid);
}

static void a_classifier_resumed_in_the_middle_of_an_epoch_is_the_same_bit_for_bit(void **state)
{
	const fixture *f = *state;
	dataset *train = letters(f, 20, 1), *valid = letters(f, 7, 2);
	train_options o = classification(14); /* epochs of 20 records: step 8 is in the second epoch */
	o.eval_every = 4;
	char path[128];
	snprintf(path, sizeof path, "%s/classifier", f->folder);
	trainer *whole = classifier(f, 0.1, &o, train, valid), *second = classifier(f, 0.1, &o, train, valid);
	fixture_run(whole, 8, 0);
	unsigned events = 0;
	while (!(events & TRAIN_EVAL))
		assert_int_equal(trainer_advance(whole, 1, &events, NULL), STATUS_OK);
	assert_int_equal(trainer_save(whole, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	error err = ERROR_INIT;
	assert_int_equal(trainer_resume(second, path, &err), STATUS_OK);
	const train_progress *p = trainer_progress(whole), *q = trainer_progress(second);
	for (int i = 0; objective_classification.metrics[i]; i++)
		assert_true(isfinite(p->metrics[i]) && p->metrics[i] == q->metrics[i]);
	finish(whole);
	finish(second);
	assert_same_weights(f, whole, second);
	assert_true(p->valid_loss == q->valid_loss);
	trainer_free(whole);
	trainer_free(second);
	dataset_free(train);
	dataset_free(valid);
}

static void a_model_or_data_of_another_kind_is_refused_by_name(void **state)
{
	const fixture *f = *state;
	dataset *records = letters(f, 9, 1);
	train_options classes = classification(1), words = fixture_options();
	words.sequence_length = LENGTH;
	const struct {
		model *m;
		const train_options *o;
		const dataset *data;
		const char *param;
	} cases[] = {
	    {encoder(f, 3, 0), &words, f->train, "objective"},     /* no vocabulary head */
	    {fixture_model(f, 0), &classes, records, "objective"}, /* no class head */
	    {fixture_model(f, 0), &words, records, "objective"},   /* labelled texts are not blocks */
	    {encoder(f, 3, 0), &classes, f->train, "objective"},   /* blocks are not labelled texts */
	    {encoder(f, 4, 0), &classes, records, "num_labels"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		trainer *t;
		error err = ERROR_INIT;
		assert_int_equal(trainer_new(&t, cases[i].m, cases[i].o, cases[i].data, NULL, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].param);
		assert_null(t);
	}
	dataset_free(records);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_objective_is_found_by_its_name),
	    cmocka_unit_test(each_token_of_a_block_predicts_the_next_one),
	    cmocka_unit_test(a_short_text_is_padded_and_the_padding_is_masked),
	    cmocka_unit_test(accuracy_f1_and_correlation_equal_the_values_computed_by_hand),
	    cmocka_unit_test(a_classifier_learns_and_its_evaluation_reports_metrics_and_no_text),
	    cmocka_unit_test(an_evaluation_covers_all_records_for_any_batch),
	    cmocka_unit_test(a_classifier_resumed_in_the_middle_of_an_epoch_is_the_same_bit_for_bit),
	    cmocka_unit_test(a_model_or_data_of_another_kind_is_refused_by_name),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
