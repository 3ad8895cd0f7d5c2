/* The choice of masked tokens, and a model that is trained to predict them. */
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>

#include "engine/text/corpus_tokens.h"
#include "engine/train/objective.h"
#include "tests/unit/support/record.h"

enum { LENGTH = 64, BLOCKS = 256, MASK = 259 };

static const model_dims dims = {.inputs = 260, .outputs = 260, .form = &form_masked, .mask = MASK};

/* One row. */
typedef struct row {
	int32_t ids[LENGTH], mask[LENGTH], labels[LENGTH];
} row;

static row make_row(const dataset *d, const train_options *o, const text_record *r, uint64_t seed, int64_t epoch,
                    int64_t place)
{
	row out;
	void *const values[] = {out.ids, out.mask, out.labels};
	const example x = {d, &dims, o, r, LENGTH, seed, epoch, place, 0};
	memset(&out, 0x55, sizeof out);
	objective_fill_mask.example(&x, values);
	return out;
}

static train_options options_of(double fraction)
{
	train_options o = fixture_options();
	o.objective = &objective_fill_mask;
	o.sequence_length = LENGTH;
	o.mask_fraction = fraction;
	return o;
}

/* Random letters, all equally likely. */
static dataset *letters(const fixture *f)
{
	static char text[BLOCKS * LENGTH];
	dataset *d;
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)('a' + philox(5, 0, 0, i).word[0] % 26);
	assert_int_equal(dataset_new(&d, f->tokenizer, text, sizeof text, LENGTH, NULL), STATUS_OK);
	return d;
}

/* Documents, each beginning a block of its own. */
static dataset *documents(const fixture *f, bool completions)
{
	static const char text[] = "{\"prompt\": \"ab\", \"completion\": \"cdefgh\"}\n"
	                           "{\"prompt\": \"ijklmnopqrstuvwx\", \"completion\": \"y\"}\n"
	                           "{\"prompt\": \"0123\", \"completion\": \"456789\"}\n";
	dataset *d;
	byte_source *source;
	token_cache *cache;
	assert_int_equal(byte_source_memory(&source, text, sizeof text - 1, NULL), STATUS_OK);
	assert_int_equal(corpus_tokens_build(&cache, source, f->tokenizer, &(corpus_tokens_options){0}, NULL),
	                 STATUS_OK);
	const dataset_options o = {.length = LENGTH, .reset_at_document = true, .completions = completions};
	assert_int_equal(dataset_make(&d, NULL, f->tokenizer, &(dataset_text){cache, 1}, 1, &o, NULL), STATUS_OK);
	token_cache_free(cache);
	return d;
}

static int64_t asked(const row *r)
{
	int64_t n = 0;
	for (int i = 0; i < LENGTH; i++)
		n += r->labels[i] >= 0;
	return n;
}

/* --- which tokens ---------------------------------------------------------------------------- */

static void exactly_the_share_of_each_record_is_chosen_and_at_least_one_token(void **state)
{
	static const struct {
		double fraction;
		int64_t count;
	} cases[] = {{0.15, 10}, {0.5, 32}, {1, 64}, {0.0001, 1}, {0.024, 2}};
	dataset *d = letters(*state);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		for (int64_t i = 0; i < 20; i++) {
			const train_options o = options_of(cases[c].fraction);
			const text_record r = record_at(d, 7, 0, i);
			const row got = make_row(d, &o, &r, 7, 0, i);
			assert_int_equal(asked(&got), cases[c].count);
		}
	dataset_free(d);
}

/* Check a count against the expected share of the trials, ± 5 standard deviations. */
static void assert_share(int64_t count, double share, int64_t trials)
{
	double expected = share * (double)trials, deviation = sqrt(expected * (1 - share));
	if (!(fabs((double)count - expected) <= 5 * deviation))
		fail_msg("%lld of %lld for a share of %g", (long long)count, (long long)trials, share);
}

/* True if a word begins at byte i of a text. */
static bool begins_a_word(const int32_t *ids, int i)
{
	bool space = strchr(" \n", ids[i] - 3), after = i > 0 && strchr(" \n", ids[i - 1] - 3);
	return i == 0 || (space && !after);
}

static void whole_words_are_chosen_by_the_share_and_all_are_equally_likely(void **state)
{
	static const char text[] = "He evidently  found\n\n it hard to decide what to say and to do.";
	enum { TRIALS = 4000, WORDS = 13, TAKEN = 4 };
	const fixture *f = *state;
	train_options o = options_of(0.3);
	o.whole_words = true;
	dataset *d;
	assert_int_equal(dataset_new(&d, f->tokenizer, text, sizeof text - 1, sizeof text - 1, NULL), STATUS_OK);
	int64_t counts[WORDS] = {0};
	for (int64_t q = 0; q < TRIALS; q++) {
		const text_record r = record_at(d, 0, 0, 0);
		const row got = make_row(d, &o, &r, 7, q / 40, q % 40), again = make_row(d, &o, &r, 7, q / 40, q % 40);
		assert_memory_equal(&got, &again, sizeof got);
		int word = -1, taken = 0;
		for (int i = 0; i < r.count; i++) {
			if (begins_a_word(r.ids, i)) {
				counts[++word] += got.labels[i] >= 0;
				taken += got.labels[i] >= 0;
			} else {
				assert_true((got.labels[i] >= 0) == (got.labels[i - 1] >= 0));
			}
			assert_true(got.labels[i] < 0 || got.labels[i] == r.ids[i]);
		}
		assert_int_equal(word, WORDS - 1);
		assert_int_equal(taken, TAKEN);
	}
	for (int word = 0; word < WORDS; word++)
		assert_share(counts[word], (double)TAKEN / WORDS, TRIALS);
	dataset_free(d);
}

static void most_chosen_tokens_are_masked_some_random_some_kept_and_others_are_unchanged(void **state)
{
	const train_options o = options_of(0.25);
	dataset *d = letters(*state);
	int64_t masked = 0, shown = 0, random = 0, trials = 0, at[LENGTH] = {0}, bytes[260] = {0};
	enum { EPOCHS = 20 };
	for (int64_t q = 0; q < EPOCHS * BLOCKS; q++) {
		const text_record r = record_at(d, 3, q / BLOCKS, q % BLOCKS);
		const row got = make_row(d, &o, &r, 3, q / BLOCKS, q % BLOCKS);
		for (int i = 0; i < LENGTH; i++) {
			assert_int_equal(got.mask[i], 1);
			if (got.labels[i] < 0) {
				assert_int_equal(got.labels[i], -1);
				assert_int_equal(got.ids[i], r.ids[i]);
				continue;
			}
			assert_int_equal(got.labels[i], r.ids[i]);
			at[i]++;
			trials++;
			masked += got.ids[i] == MASK;
			shown += got.ids[i] == r.ids[i];
			if (got.ids[i] != MASK && got.ids[i] != r.ids[i]) {
				assert_in_range(got.ids[i], BYTES_FIRST, 258);
				random++;
				bytes[got.ids[i]]++;
			}
		}
	}
	assert_share(masked, 0.8, trials);
	assert_share(random, 0.1 * 255 / 256, trials); /* one in 256 is the same token */
	assert_share(shown, 0.1 + 0.1 / 256, trials);
	for (int i = 0; i < LENGTH; i++)
		assert_share(at[i], 0.25, EPOCHS * BLOCKS);
	for (int id = BYTES_FIRST; id < MASK; id++)
		assert_share(bytes[id], 1.0 / 256, random);
	dataset_free(d);
}

static void the_pattern_depends_only_on_seed_epoch_and_place(void **state)
{
	const train_options o = options_of(0.15);
	dataset *d = letters(*state);
	const text_record r = record_at(d, 0, 0, 0);
	const row first = make_row(d, &o, &r, 3, 2, 1);
	for (int64_t place = 0; place < 4; place++)
		make_row(d, &o, &r, 9, 9, place); /* no state is kept from one row to the next */
	const row again = make_row(d, &o, &r, 3, 2, 1),
	          rows[] = {make_row(d, &o, &r, 4, 2, 1), make_row(d, &o, &r, 3, 1, 1), make_row(d, &o, &r, 3, 2, 2)};
	assert_memory_equal(&first, &again, sizeof first);
	for (int i = 0; i < 3; i++)
		assert_memory_not_equal(first.labels, rows[i].labels, sizeof first.labels);
	dataset_free(d);
}

static void padding_and_special_tokens_are_never_chosen(void **state)
{
	const train_options o = options_of(1);
	dataset *d = documents(*state, false);
	for (int64_t i = 0; i < dataset_records(d); i++) {
		const text_record r = record_at(d, 0, 0, i);
		const row got = make_row(d, &o, &r, 0, 0, i);
		assert_true(r.count < LENGTH && r.ids[r.count - 1] == BYTES_END);
		for (int64_t k = 0; k < LENGTH; k++) {
			assert_int_equal(got.mask[k], k < r.count);
			assert_int_equal(got.labels[k], k < r.count - 1 ? r.ids[k] : -1);
			if (k >= r.count - 1)
				assert_int_equal(got.ids[k], k < r.count ? BYTES_END : BYTES_PAD);
		}
	}
	const row empty = make_row(d, &o, NULL, 0, 0, 0);
	for (int k = 0; k < LENGTH; k++)
		assert_true(empty.labels[k] == -1 && empty.ids[k] == BYTES_PAD && empty.mask[k] == (k == 0));
	dataset_free(d);
}

static void with_completions_only_their_tokens_are_chosen(void **state)
{
	const train_options o = options_of(1);
	dataset *d = documents(*state, true);
	int64_t tokens = 0;
	for (int64_t i = 0; i < dataset_records(d); i++) {
		const text_record r = record_at(d, 0, 0, i);
		const row got = make_row(d, &o, &r, 0, 0, i);
		for (int64_t k = 0; k < r.count; k++)
			assert_int_equal(got.labels[k] >= 0, !r.not_predicted[k] && r.ids[k] != BYTES_END);
		tokens += asked(&got);
	}
	assert_int_equal(tokens, 6 + 1 + 6);
	dataset_free(d);
}

static void without_a_mask_token_of_the_model_or_the_tokenizer_training_is_refused(void **state)
{
	const fixture *f = *state;
	model_dims none = dims;
	none.mask = -1;
	error err = ERROR_INIT;
	assert_int_equal(objective_fill_mask.check(f->train, &dims, NULL, &err), STATUS_OK);
	assert_int_equal(objective_fill_mask.check(f->train, &none, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "mask_token_id");
}

/* --- which model ------------------------------------------------------------------------------ */

static void the_objective_must_fit_the_models_attention(void **state)
{
	(void)state;
	static const struct {
		const model_form *form;
		const objective *usual;
	} cases[] = {{&form_causal, &objective_next_token},
	             {&form_masked, &objective_fill_mask},
	             {&form_classifier, &objective_classification}};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		const model_dims d = {.form = cases[c].form};
		assert_ptr_equal(objective_usual(&d), cases[c].usual);
		for (int i = 0; objective_at(i); i++) {
			error err = ERROR_INIT;
			const objective *o = objective_at(i);
			const bool fits = o == cases[c].usual || (c == 0 && o == &objective_preference);
			assert_int_equal(objective_check_model(o, &d, &err), fits ? STATUS_OK : STATUS_INVALID);
			assert_string_equal(err.param, fits ? "" : "objective");
		}
	}
}

static void the_share_is_an_option_of_this_objective_only(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	train_options o;
	json_t *json = json_pack("{s:s, s:f}", "objective", "fill_mask", "mask_fraction", 0.3), *written;
	train_options_default(&o);
	assert_int_equal(train_options_read(&o, json, NULL, &err), STATUS_OK);
	assert_true(o.mask_fraction == 0.3 && o.objective == &objective_fill_mask && train_options_uneven(&o));
	written = train_options_write(&o);
	assert_true(json_equal(json_object_get(written, "mask_fraction"), json_object_get(json, "mask_fraction")));
	json_decref(written);
	json_object_set_new(json, "objective", json_string("next_token"));
	assert_int_equal(train_options_read(&o, json, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "mask_fraction");
	json_decref(json);
	train_options_default(&o);
	written = train_options_write(&o);
	assert_null(json_object_get(written, "mask_fraction"));
	json_decref(written);
}

/* --- through a trainer ------------------------------------------------------------------------ */

/* An encoder of one layer of width 16. */
static model *encoder(const fixture *f, double dropout)
{
	const architecture *a = architecture_find("transformer");
	model_size size = {.hidden = 16,
	                   .heads = 2,
	                   .layers = 1,
	                   .inputs = 260,
	                   .positions = FIXTURE_LENGTH,
	                   .length = FIXTURE_LENGTH,
	                   .padding = BYTES_PAD,
	                   .dropout = dropout};
	json_t *config = json_pack("{s:s, s:i}", "stack", "encoder", "mask_token_id", MASK);
	model *m;
	error err = ERROR_INIT;
	assert_true(a->complete(config, &size));
	status s = model_create(&m, a, config, 7, f->backend, &err);
	json_decref(config);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return m;
}

static trainer *filler(const fixture *f, double dropout, const train_options *o)
{
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, encoder(f, dropout), o, f->train, f->valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static train_options short_options(int64_t steps)
{
	train_options o = options_of(0.15);
	o.sequence_length = FIXTURE_LENGTH;
	o.max_steps = steps;
	return o;
}

static void finish(trainer *t)
{
	for (unsigned events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
}

static void an_evaluation_chooses_the_same_tokens_for_any_batch_and_seed(void **state)
{
	double loss[3], accuracy[3];
	for (int i = 0; i < 3; i++) {
		train_options o = short_options(1);
		o.batch_size = (int[]){1, 3, 7}[i];
		o.seed = (uint64_t)i + 1;
		o.learning_rate = 1e-12; /* keeps the model the same */
		trainer *t = filler(*state, 0, &o);
		finish(t);
		loss[i] = trainer_progress(t)->valid_loss;
		accuracy[i] = train_metric(trainer_progress(t), "accuracy");
		assert_true(fabs(train_metric(trainer_progress(t), "perplexity") - exp(loss[i])) <=
		            1e-9 * exp(loss[i]));
		assert_true(isnan(train_metric(trainer_progress(t), "bits_per_byte")));
		int prompt, count;
		assert_null(trainer_preview(t, &prompt, &count));
		trainer_free(t);
	}
	for (int i = 1; i < 3; i++) {
		assert_true(fabs(loss[i] - loss[0]) <= 1e-5);
		assert_true(accuracy[i] == accuracy[0]);
	}
}

static void a_resumed_run_masks_the_same_tokens(void **state)
{
	const fixture *f = *state;
	char path[128];
	snprintf(path, sizeof path, "%s/filler", f->folder);
	train_options o = short_options(30); /* epochs of 67 records: the second one begins in step 12 */
	o.batch_size = 3;
	o.gradient_accumulation = 2; /* with different numbers of labels */
	o.eval_every = 5;
	trainer *whole = filler(f, 0.1, &o), *second = filler(f, 0.1, &o);
	fixture_run(whole, 13, 0);
	assert_int_equal(trainer_save(whole, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_resume(second, path, NULL), STATUS_OK);
	finish(whole);
	finish(second);
	assert_same_weights(f, whole, second);
	assert_true(trainer_progress(whole)->valid_loss == trainer_progress(second)->valid_loss);
	trainer_free(whole);
	trainer_free(second);
	o.mask_fraction = 0.2;
	error err = ERROR_INIT;
	trainer *other = filler(f, 0.1, &o);
	assert_int_equal(trainer_resume(other, path, &err), STATUS_INVALID);
	assert_string_equal(err.param, "mask_fraction");
	trainer_free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(exactly_the_share_of_each_record_is_chosen_and_at_least_one_token),
	    cmocka_unit_test(whole_words_are_chosen_by_the_share_and_all_are_equally_likely),
	    cmocka_unit_test(most_chosen_tokens_are_masked_some_random_some_kept_and_others_are_unchanged),
	    cmocka_unit_test(the_pattern_depends_only_on_seed_epoch_and_place),
	    cmocka_unit_test(padding_and_special_tokens_are_never_chosen),
	    cmocka_unit_test(with_completions_only_their_tokens_are_chosen),
	    cmocka_unit_test(without_a_mask_token_of_the_model_or_the_tokenizer_training_is_refused),
	    cmocka_unit_test(the_objective_must_fit_the_models_attention),
	    cmocka_unit_test(the_share_is_an_option_of_this_objective_only),
	    cmocka_unit_test(an_evaluation_chooses_the_same_tokens_for_any_batch_and_seed),
	    cmocka_unit_test(a_resumed_run_masks_the_same_tokens),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
