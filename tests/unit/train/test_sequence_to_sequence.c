/* Objectives of encoder-decoders, alone and through a trainer. */
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/encoder_decoder.h"

#include "engine/model/feed.h"
#include "engine/text/pairs.h"
#include "engine/train/pass.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/record.h"

enum { SOURCE = 6, TARGET = 5 };

static dataset *pairs_of(const fixture *f, const char *text, int64_t source, int64_t target)
{
	dataset *d;
	assert_int_equal(pairs_new(&d, NULL, f->tokenizer, text, strlen(text), (pair_lengths){source, target}, 0, NULL),
	                 STATUS_OK);
	return d;
}

static void a_decoder_reads_the_start_token_and_its_target_one_token_late(void **state)
{
	const fixture *f = *state;
	dataset *d =
	    pairs_of(f, "{\"source\": \"abc\", \"target\": \"xy\"}\n{\"source\": \"abcdef\", \"target\": \"wxyz\"}",
	             SOURCE, TARGET);
	const text_record whole = record_at(d, 0, 0, 1), r = record_at(d, 0, 0, 0);
	example x = {.data = d, .dims = &dims, .record = &r, .length = TARGET, .source_length = SOURCE};
	rows got = make_rows(&objective_sequence_to_sequence, &x);
	ASSERT_ROW(got.source, BYTE('a'), BYTE('b'), BYTE('c'), BYTES_PAD, BYTES_PAD, BYTES_PAD);
	ASSERT_ROW(got.mask, 1, 1, 1, 0, 0, 0);
	ASSERT_ROW(got.ids, START, BYTE('x'), BYTE('y'), BYTES_PAD, BYTES_PAD);
	ASSERT_ROW(got.labels, BYTE('x'), BYTE('y'), BYTES_END, -1, -1);
	x.record = &whole;
	got = make_rows(&objective_sequence_to_sequence, &x);
	ASSERT_ROW(got.mask, 1, 1, 1, 1, 1, 1);
	ASSERT_ROW(got.ids, START, BYTE('w'), BYTE('x'), BYTE('y'), BYTE('z'));
	ASSERT_ROW(got.labels, BYTE('w'), BYTE('x'), BYTE('y'), BYTE('z'), BYTES_END);
	x.record = NULL;
	got = make_rows(&objective_sequence_to_sequence, &x);
	ASSERT_ROW(got.mask, 1, 0, 0, 0, 0, 0);
	ASSERT_ROW(got.labels, -1, -1, -1, -1, -1);
	model_dims without = dims;
	without.start = -1; /* the tokenizer's rule applies */
	x.dims = &without;
	ASSERT_ROW(make_rows(&objective_sequence_to_sequence, &x).ids, BYTES_PAD);
	dataset_free(d);
}

static void only_an_encoder_decoder_is_trained_for_these_objectives(void **state)
{
	(void)state;
	model_dims rows_given = dims, decoder = dims;
	rows_given.source = 0;
	decoder.form = &form_causal;
	const struct {
		const model_dims *dims;
		const objective *usual;
		const char *message; /* for sequence_to_sequence */
	} cases[] = {
	    {&dims, &objective_sequence_to_sequence, ""},
	    {&rows_given, NULL, "the model attends to rows that no job gives it, for sequence_to_sequence"},
	    {&decoder, &objective_next_token,
	     "the model reads no source, as it would have to for sequence_to_sequence"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		error err = ERROR_INIT;
		assert_ptr_equal(objective_usual(cases[i].dims), cases[i].usual);
		objective_check_model(&objective_sequence_to_sequence, cases[i].dims, &err);
		assert_string_equal(err.message, cases[i].message);
		assert_int_equal(objective_check_model(&objective_next_token, cases[i].dims, NULL),
		                 i < 2 ? STATUS_INVALID : STATUS_OK);
	}
}

/* --- spans ----------------------------------------------------------------------------------------- */

static const char *one_text(size_t *bytes)
{
	static char text[4000];
	fixture_text(text, sizeof text);
	*bytes = sizeof text;
	return text;
}

typedef struct one_source {
	bool given;
} one_source;

static status give_text(void *context, const char **text, size_t *bytes, error *err)
{
	one_source *s = context;
	(void)err;
	*text = s->given ? NULL : one_text(bytes);
	s->given = true;
	return STATUS_OK;
}

/* A vocabulary of <end>, `sentinels` sentinels and bytes; a byte's id follows the vocabulary's own order. */
static tokenizer *with_sentinels(int sentinels)
{
	one_source source = {false};
	json_t *names = json_pack("[s]", "<end>");
	for (int i = 0; i < sentinels; i++)
		json_array_append_new(names, json_sprintf("<extra_id_%d>", i));
	json_t *spec =
	    json_pack("{s:s, s:i, s:o}", "type", "bpe", "vocab_size", 257 + sentinels, "special_tokens", names);
	tokenizer *t;
	error err = ERROR_INIT;
	status s = tokenizer_train(&t, spec, &(text_source){give_text, &source}, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	json_decref(spec);
	return t;
}

static train_options span_options(double fraction, double span, int64_t source, int64_t target)
{
	train_options o = fixture_options();
	o.objective = &objective_span_corruption;
	o.mask_fraction = fraction;
	o.span_length = span;
	o.source_length = source;
	o.sequence_length = target;
	return o;
}

static dataset *spans_of(const tokenizer *t, const train_options *o)
{
	dataset *d;
	size_t bytes;
	const char *text = one_text(&bytes);
	assert_int_equal(dataset_new(&d, t, text, bytes, train_options_record(o), NULL), STATUS_OK);
	return d;
}

static rows corrupt(const dataset *d, const train_options *o, const text_record *r, uint64_t seed, int64_t epoch,
                    int64_t place)
{
	const example x = {d, &dims, o, r, o->sequence_length, seed, epoch, place, train_options_source(o)};
	return make_rows(&objective_span_corruption, &x);
}

static void a_sentinel_replaces_each_span_and_the_target_has_its_tokens(void **state)
{
	(void)state;
	enum { END = 0, S0 = 1, S1 = 2, S2 = 3 };
	tokenizer *t = with_sentinels(3);
	int32_t ids[] = {20, 21, 22, 23};
	const text_record r = {.ids = ids, .count = 4}, one = {.ids = ids, .count = 1};
	/* The only ways to divide two tokens into one piece and into two. */
	train_options o = span_options(0.5, 2, 6, 6);
	dataset *d = spans_of(t, &o);
	rows got = corrupt(d, &o, &r, 5, 1, 2);
	ASSERT_ROW(got.source, 20, 21, S0, END, END, END);
	ASSERT_ROW(got.mask, 1, 1, 1, 1, 0, 0);
	ASSERT_ROW(got.labels, S0, 22, 23, S1, END, -1);
	ASSERT_ROW(got.ids, START, S0, 22, 23, S1, END);
	o.span_length = 1;
	got = corrupt(d, &o, &r, 5, 1, 2);
	ASSERT_ROW(got.source, 20, S0, 22, S1, END, END);
	ASSERT_ROW(got.mask, 1, 1, 1, 1, 1, 0);
	ASSERT_ROW(got.labels, S0, 21, S1, 23, S2, END);
	got = corrupt(d, &o, &one, 5, 1, 2);
	ASSERT_ROW(got.labels, -1, -1, -1, -1, -1, -1);
	dataset_free(d);
	tokenizer_free(t);
}

static void every_division_into_spans_is_equally_likely_and_reproducible(void **state)
{
	(void)state;
	enum { TRIALS = 4000, S0 = 1 };
	tokenizer *t = with_sentinels(3);
	const train_options o = span_options(0.5, 1.5, 10, 10);
	dataset *d = spans_of(t, &o);
	int32_t ids[] = {20, 21, 22, 23, 24, 25};
	const text_record r = {.ids = ids, .count = 6};
	int seen[2][2] = {{0}}, differ = 0;
	for (int i = 0; i < TRIALS; i++) { /* 3 kept and 3 left out, each as 1 + 2 or 2 + 1 */
		const rows got = corrupt(d, &o, &r, 9, i / 100, i % 100),
		           again = corrupt(d, &o, &r, 9, i / 100, i % 100),
		           other = corrupt(d, &o, &r, 9, i / 100 + 1, i % 100);
		assert_memory_equal(&got, &again, sizeof got);
		differ += memcmp(&got, &other, sizeof got) != 0;
		seen[got.source[1] != S0][got.labels[2] != S0 + 1]++;
	}
	for (int i = 0; i < 4; i++) /* 5 standard deviations */
		assert_true(abs(seen[i / 2][i % 2] - TRIALS / 4) <= 137);
	assert_true(differ > TRIALS / 2);
	dataset_free(d);
	tokenizer_free(t);
}

static void a_text_fills_its_source_and_target_and_no_token_is_lost(void **state)
{
	(void)state;
	static const struct {
		double fraction, span;
		int64_t source, target, record;
	} cases[] = {
	    {0.15, 3, 64, 32, 70}, /* 11 left out in 4 spans: 59 + 4 + 1 = 64 */
	    {0.15, 3, 64, 12, 49}, /* 7 in 2: 7 + 2 + 2 = 11; of 50 8 in 3: 13 */
	    {0.5, 1, 40, 70, 39},  /* 20 in 19: 19 + 19 + 1 = 39; of 40 20 in 20: 41 */
	    {0.9, 3, 40, 20, 18},  /* 16 in 2: 16 + 2 + 2 = 20 */
	    {1, 1000, 10, 60, 58}, /* 57 in 1: 57 + 1 + 2 = 60 */
	};
	tokenizer *t = with_sentinels(40);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		const train_options o =
		    span_options(cases[c].fraction, cases[c].span, cases[c].source, cases[c].target);
		dataset *d = spans_of(t, &o);
		int64_t n = train_options_record(&o);
		for (int64_t i = 0; i < 10; i++) {
			const text_record r = record_at(d, 3, 0, i);
			const rows got = corrupt(d, &o, &r, 3, 0, i);
			int32_t joined[200];
			int64_t count = 0, at = 1;
			for (int64_t k = 0; got.source[k] != 0; k++) { /* each sentinel by its span */
				if (got.source[k] > 40) {
					joined[count++] = got.source[k];
					continue;
				}
				assert_int_equal(got.labels[at - 1], got.source[k]);
				for (; got.labels[at] > 40; at++)
					joined[count++] = got.labels[at];
				at++;
			}
			assert_int_equal(got.labels[at], 0);
			assert_int_equal(count, n);
			assert_memory_equal(joined, r.ids, (size_t)n * sizeof *joined);
		}
		assert_int_equal(n, cases[c].record);
		dataset_free(d);
	}
	tokenizer_free(t);
}

static void spans_need_a_tokenizer_with_a_sentinel_for_each(void **state)
{
	(void)state;
	const train_options o = span_options(0.15, 3, 64, 32); /* 4 spans and a final sentinel */
	static const struct {
		int sentinels;
		const char *param;
	} cases[] = {{0, "tokenizer"}, {4, "span_length"}, {5, ""}};
	for (size_t i = 0; i < 3; i++) {
		error err = ERROR_INIT;
		tokenizer *t = with_sentinels(cases[i].sentinels);
		dataset *d = spans_of(t, &o);
		assert_int_equal(objective_span_corruption.check(d, &dims, &o, &err),
		                 i < 2 ? STATUS_INVALID : STATUS_OK);
		assert_string_equal(err.param, cases[i].param);
		dataset_free(d);
		tokenizer_free(t);
	}
	train_options bad = span_options(0.15, 3, 2, 32);
	error err = ERROR_INIT;
	assert_int_equal(train_options_check(&bad, &err), STATUS_INVALID);
	assert_string_equal(err.param, "sequence_length");
	bad = span_options(0.15, 3, 64, 32);
	bad.loss_on = LOSS_ON_COMPLETION;
	err = (error)ERROR_INIT;
	assert_int_equal(train_options_check(&bad, &err), STATUS_INVALID);
	assert_string_equal(err.param, "loss_on");
}

/* --- training -------------------------------------------------------------------------------------------- */

static const char reversals[] =
    "{\"source\": \"abc\", \"target\": \"cba\"}\n{\"source\": \"bcad\", \"target\": \"dacb\"}\n"
    "{\"source\": \"ca\", \"target\": \"ac\"}\n{\"source\": \"d\", \"target\": \"d\"}\n"
    "{\"source\": \"db\", \"target\": \"bd\"}\n";

static train_options reversing(int64_t source, int64_t target)
{
	train_options o = fixture_options();
	o.objective = &objective_sequence_to_sequence;
	o.source_length = source;
	o.sequence_length = target;
	o.batch_size = 5;
	return o;
}

/* Loss and labels of all records with initial weights. */
static void evaluate(const fixture *f, int64_t source, int64_t target, int64_t batch, double *loss, double *count)
{
	dataset *d = pairs_of(f, reversals, source, target);
	const train_options o = reversing(source, target);
	model *m = encoder_decoder(f, 259, 0);
	pass *p;
	assert_int_equal(
	    pass_new(&p, m, &o, &(forward_spec){.batch = batch, .length = target, .train.loss = true}, NULL, NULL),
	    STATUS_OK);
	assert_int_equal(pass_load(p, d, 0, (pass_rows){.stride = 1, .count = 5}, NULL), STATUS_OK);
	assert_int_equal(pass_labels(p), 17);
	assert_int_equal(plan_run(pass_plan(p)), STATUS_OK);
	assert_int_equal(pass_result(p, loss, count), STATUS_OK);
	pass_free(p);
	model_free(m);
	dataset_free(d);
}

static void padding_of_sources_targets_and_batches_does_not_change_the_loss(void **state)
{
	double loss, count, filled, filled_count;
	evaluate(*state, 4, 5, 5, &loss, &count);
	evaluate(*state, 11, 9, 7, &filled, &filled_count);
	assert_true(count == 17 && filled_count == 17);
	assert_true(fabs(loss - filled) <= 1e-5 && loss > 1);
}

static void exact_is_the_share_of_targets_without_a_wrong_token(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs_of(f, reversals, 4, 5);
	train_options o = reversing(4, 5);
	o.max_steps = 150;
	o.eval_every = 5;
	trainer *t = train(encoder_decoder(f, 259, 0), &o, d, d);
	int between = 0;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		const train_progress *p = trainer_progress(t);
		double exact = train_metric(p, "exact"), accuracy = train_metric(p, "accuracy");
		if (!(events & TRAIN_EVAL))
			continue;
		assert_true(fabs(exact * 5 - round(exact * 5)) < 1e-9 &&
		            fabs(accuracy * 17 - round(accuracy * 17)) < 1e-9);
		assert_true((exact == 1) == (accuracy == 1));
		assert_true(exact >= 1 - 17 * (1 - accuracy) / 5 - 1e-9); /* at most one target per wrong token */
		between += exact > 0 && exact < 1;
	}
	assert_true(between > 0 && train_metric(trainer_progress(t), "exact") == 1);
	assert_true(fabs(train_metric(trainer_progress(t), "perplexity") - exp(trainer_progress(t)->valid_loss)) <
	            1e-9);
	trainer_free(t);
	dataset_free(d);
}

static void a_resumed_run_continues_bit_for_bit(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs_of(f, reversals, 4, 5);
	train_options o = reversing(4, 5);
	assert_resumes(f, f->tokenizer, &o, d, 259);
	dataset_free(d);
	tokenizer *t = with_sentinels(20);
	o = span_options(0.15, 3, 30, 20);
	d = spans_of(t, &o);
	assert_resumes(f, t, &o, d, tokenizer_size(t));
	dataset_free(d);
	tokenizer_free(t);
}

static void lengths_that_a_model_has_no_room_for_are_named(void **state)
{
	const fixture *f = *state;
	static const struct {
		int64_t source, target, inputs;
		const char *param;
	} cases[] = {{81, 5, 259, "source_length"}, {4, 5, 258, "vocab_size"}, {80, 40, 259, ""}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		dataset *d = pairs_of(f, reversals, cases[i].source, cases[i].target);
		const train_options o = reversing(cases[i].source, cases[i].target);
		trainer *t;
		error err = ERROR_INIT;
		trainer_new(&t, encoder_decoder(f, cases[i].inputs, 0), &o, d, NULL, &err);
		assert_string_equal(err.param, cases[i].param);
		trainer_free(t);
		dataset_free(d);
	}
}

static void a_trainer_is_made_or_an_error_is_returned_and_steps_allocate_no_memory(void **state)
{
	const fixture *f = *state;
	dataset *d = pairs_of(f, reversals, 4, 5);
	train_options o = reversing(4, 5);
	o.max_steps = 2;
	trainer *t = NULL;
	int64_t failures = -1;
	for (bool refused = true; refused; failures++) {
		error err = ERROR_INIT;
		model *m = encoder_decoder(f, 259, 0.1);
		allocations_fail(failures + 1, true);
		status s = trainer_new(&t, m, &o, d, d, &err);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true(refused ? s == STATUS_NOMEM && err.message[0] && !t : s == STATUS_OK);
	}
	assert_true(failures > 100);
	allocations_fail(0, true);
	finish(t);
	assert_false(allocations_refused());
	allocations_limit(-1);
	trainer_free(t);
	dataset_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_decoder_reads_the_start_token_and_its_target_one_token_late),
	    cmocka_unit_test(only_an_encoder_decoder_is_trained_for_these_objectives),
	    cmocka_unit_test(a_sentinel_replaces_each_span_and_the_target_has_its_tokens),
	    cmocka_unit_test(every_division_into_spans_is_equally_likely_and_reproducible),
	    cmocka_unit_test(a_text_fills_its_source_and_target_and_no_token_is_lost),
	    cmocka_unit_test(spans_need_a_tokenizer_with_a_sentinel_for_each),
	    cmocka_unit_test(padding_of_sources_targets_and_batches_does_not_change_the_loss),
	    cmocka_unit_test(exact_is_the_share_of_targets_without_a_wrong_token),
	    cmocka_unit_test(a_resumed_run_continues_bit_for_bit),
	    cmocka_unit_test(lengths_that_a_model_has_no_room_for_are_named),
	    cmocka_unit_test(a_trainer_is_made_or_an_error_is_returned_and_steps_allocate_no_memory),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
