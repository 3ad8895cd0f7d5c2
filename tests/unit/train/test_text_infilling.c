/* Objective in which some words of the encoder's text are blanks: the rows of a batch, alone and through a trainer. */
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/encoder_decoder.h"

#include "engine/text/corpus_tokens.h"
#include "engine/train/blanks.h"
#include "engine/train/pass.h"
#include "tests/unit/support/record.h"

static const char sentence[] = "He evidently found it hard to decide what to say and to do.";
static const char *const words[] = {"He",   "evidently", "found", "it",  "hard", "to", "decide",
                                    "what", "to",        "say",   "and", "to",   "do."};
enum { WORDS = sizeof words / sizeof *words };

static train_options infilling(int64_t source, int64_t target)
{
	train_options o = fixture_options();
	o.objective = &objective_text_infilling;
	o.source_length = source;
	o.sequence_length = target;
	return o;
}

static model_dims dims_of(const tokenizer *t, int32_t mask)
{
	model_dims own = dims;
	own.inputs = own.outputs = own.source_inputs = tokenizer_size(t) + (mask == tokenizer_size(t));
	own.mask = mask;
	return own;
}

/* Each line is a document. */
static dataset *documents(const tokenizer *t, const char *lines, const train_options *o)
{
	dataset *d;
	byte_source *source;
	token_cache *cache;
	assert_int_equal(byte_source_memory(&source, lines, strlen(lines), NULL), STATUS_OK);
	assert_int_equal(corpus_tokens_build(&cache, source, t, &(corpus_tokens_options){0}, NULL), STATUS_OK);
	const dataset_options how = {.length = train_options_record(o), .reset_at_document = true};
	assert_int_equal(dataset_make(&d, NULL, t, &(dataset_text){cache, 1}, 1, &how, NULL), STATUS_OK);
	token_cache_free(cache);
	return d;
}

static int64_t put_text(int32_t *out, int64_t n, const tokenizer *t, const char *text, const encode_options *o)
{
	token_list list;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), o, &list, NULL), STATUS_OK);
	for (size_t i = 0; i < list.count; i++)
		out[n++] = list.ids[i];
	token_list_fini(&list);
	return n;
}

/* Append the tokens of the sentence, with `mask` for each run of hidden words. keeps_space: the space before a hidden
 * word is kept. */
static int64_t put_words(int32_t *out, int64_t n, const tokenizer *t, const blanks *b, int32_t mask, bool keeps_space)
{
	bool after = false;
	for (int64_t i = 0; i < WORDS; i++) {
		char text[32];
		const bool hidden = b && blanks_hide(b, i);
		snprintf(text, sizeof text, "%s%s", i ? " " : "", words[i]);
		if (hidden && !after && keeps_space && i)
			n = put_text(out, n, t, " ", &(encode_options){.continues = true});
		if (hidden && !after)
			out[n++] = mask;
		if (!hidden)
			n = put_text(out, n, t, text, &(encode_options){.continues = i > 0});
		after = hidden;
	}
	return n;
}

/* Check the rows of the sentence, as a document, in many epochs. begin, end: TOKEN_NONE if the tokenizer puts no token
 * there around a source. */
static void assert_rows(const tokenizer *t, int32_t mask, int32_t begin, int32_t end, bool keeps_space)
{
	enum { SOURCE = 78, TARGET = 79, EPOCHS = 100, SEED = 5 };
	const train_options o = infilling(SOURCE, TARGET);
	const model_dims own = dims_of(t, mask);
	char line[128];
	snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", sentence);
	dataset *d = documents(t, line, &o);
	assert_int_equal(objective_text_infilling.check(d, &own, &o, NULL), STATUS_OK);
	int64_t merged = 0;
	for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
		const text_record r = record_at(d, SEED, epoch, 0);
		const blanks b = blanks_draw(SEED, epoch, 0, WORDS);
		const example x = {d, &own, &o, &r, TARGET, SEED, epoch, 0, SOURCE};
		const rows got = make_rows(&objective_text_infilling, &x);
		int32_t source[128], target[128];
		int64_t n = 0, m = put_words(target, 0, t, NULL, mask, false);
		target[m++] = tokenizer_end(t);
		if (begin != TOKEN_NONE)
			source[n++] = begin;
		n = put_words(source, n, t, &b, mask, keeps_space);
		if (end != TOKEN_NONE)
			source[n++] = end;
		assert_memory_equal(got.source, source, (size_t)n * sizeof *source);
		for (int64_t i = n; i < SOURCE; i++)
			assert_int_equal(got.source[i], tokenizer_filler(t));
		for (int64_t i = 0; i < SOURCE; i++)
			assert_int_equal(got.mask[i], i < n);
		assert_memory_equal(got.labels, target, (size_t)m * sizeof *target);
		for (int64_t i = m; i < TARGET; i++)
			assert_int_equal(got.labels[i], -1);
		assert_int_equal(got.ids[0], START);
		assert_memory_equal(got.ids + 1, target, (size_t)(m - 1) * sizeof *target);
		for (int64_t i = 0; i < b.n; i++)
			merged += blanks_hide(&b, b.words[i] + 1);
	}
	assert_true(merged > 5);
	dataset_free(d);
}

static tokenizer *open_tokenizer(const char *path)
{
	char *data;
	size_t bytes;
	tokenizer *t;
	assert_int_equal(file_read(path, 1 << 24, &data, &bytes, NULL), STATUS_OK);
	assert_int_equal(tokenizer_open_data(&t, data, bytes, NULL), STATUS_OK);
	free(data);
	return t;
}

static void the_source_has_a_mask_for_each_run_of_hidden_words_and_the_target_is_the_text(void **state)
{
	const fixture *f = *state;
	/* A space is a token of its own and is kept. */
	assert_rows(f->tokenizer, 259, TOKEN_NONE, TOKEN_NONE, true);
	/* A space is part of the word's token; <s> … </s> surround every text. */
	tokenizer *t = open_tokenizer("tests/data/tokenizers/roberta/tokenizer.json");
	assert_rows(t, tokenizer_mask(t), tokenizer_begin(t), tokenizer_end(t), false);
	tokenizer_free(t);
}

static void a_row_without_a_text_or_without_words_has_no_blank(void **state)
{
	const fixture *f = *state;
	const train_options o = infilling(10, 10);
	const model_dims own = dims_of(f->tokenizer, 259);
	dataset *d;
	assert_int_equal(dataset_new(&d, f->tokenizer, sentence, strlen(sentence), 8, NULL), STATUS_OK);
	int32_t ends[] = {BYTES_END, BYTES_END};
	const text_record special = {.ids = ends, .count = 2};
	example x = {d, &own, &o, NULL, 10, 3, 0, 0, 10};
	rows got = make_rows(&objective_text_infilling, &x);
	ASSERT_ROW(got.mask, 1, 0, 0);
	ASSERT_ROW(got.labels, -1, -1, -1);
	x.record = &special;
	got = make_rows(&objective_text_infilling, &x);
	ASSERT_ROW(got.source, BYTES_END, BYTES_PAD);
	ASSERT_ROW(got.labels, BYTES_END, BYTES_END, -1);
	dataset_free(d);
}

static void a_text_fits_into_its_source_and_target_with_the_surrounding_tokens(void **state)
{
	const fixture *f = *state;
	static const struct {
		int64_t source, target, record;
	} cases[] = {{20, 30, 18}, {30, 20, 19}, {0, 20, 18}, {4, 4, 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const train_options o = infilling(cases[i].source, cases[i].target);
		assert_int_equal(train_options_check(&o, NULL), STATUS_OK);
		assert_int_equal(train_options_record(&o), cases[i].record);
	}
	static const struct {
		int64_t source;
		train_loss_on loss_on;
		const char *param;
	} wrong[] = {{3, LOSS_ON_ALL, "sequence_length"}, {20, LOSS_ON_COMPLETION, "loss_on"}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		train_options o = infilling(wrong[i].source, 20);
		o.loss_on = wrong[i].loss_on;
		assert_int_equal(train_options_check(&o, &err), STATUS_INVALID);
		assert_string_equal(err.param, wrong[i].param);
	}
	error err = ERROR_INIT;
	const train_options o = infilling(20, 20);
	const model_dims without = dims_of(f->tokenizer, -1);
	dataset *d;
	assert_int_equal(dataset_new(&d, f->tokenizer, sentence, strlen(sentence), 18, NULL), STATUS_OK);
	assert_int_equal(objective_text_infilling.check(d, &without, &o, &err), STATUS_INVALID);
	assert_string_equal(err.param, "mask_token_id");
	dataset_free(d);
}

/* --- training ------------------------------------------------------------------------------------------------------
 */

static const char lines[] = "{\"text\": \"abc cab\"}\n{\"text\": \"bca bac bb\"}\n{\"text\": \"cc aab\"}\n"
                            "{\"text\": \"acb a ccc bb\"}\n";

enum { LINES = 4, ROW = 16 };

/* Counts of an evaluation of `lines`, in bytes. */
typedef struct counts {
	int64_t labels, hits;
	int64_t hidden, found; /* labels of hidden words, and correct predictions of them */
} counts;

/* Every line has less than six words, so one word is hidden in each, but not the last one. */
static counts count(const dataset *d, const float hits[LINES][ROW])
{
	counts c = {0};
	for (int64_t i = 0; i < LINES; i++) {
		const text_record r = record_at(d, 0, 0, i);
		int64_t n = 1, word = 0;
		for (int64_t k = 0; k < r.count; k++)
			n += r.ids[k] == BYTE(' ');
		const blanks b = blanks_draw(0, 0, i, n);
		assert_true(b.n == 1 && b.words[0] < n - 1);
		for (int64_t k = 0; k < r.count; k++) {
			word += r.ids[k] == BYTE(' ');
			c.hits += hits[i][k] == 1;
			c.hidden += word == b.words[0];
			c.found += word == b.words[0] && hits[i][k] == 1;
		}
		c.labels += r.count;
	}
	return c;
}

/* Repeat the evaluation with a trainer's weights. */
static counts evaluate(const trainer *t, const train_options *o, const dataset *d)
{
	const forward_spec spec = {.batch = LINES, .length = ROW, .train.loss = true, .train.hits = true};
	float hits[LINES][ROW];
	pass *p;
	assert_int_equal(pass_new(&p, trainer_model(t), o, &spec, NULL, NULL), STATUS_OK);
	assert_int_equal(pass_load(p, d, 0, (pass_rows){.stride = 1, .count = LINES}, NULL), STATUS_OK);
	assert_int_equal(plan_run(pass_plan(p)), STATUS_OK);
	assert_int_equal(plan_read(pass_plan(p), port_find(plan_graph(pass_plan(p)), PORT_HITS), hits), STATUS_OK);
	pass_free(p);
	return count(d, hits);
}

static void accuracy_is_reported_for_all_tokens_and_for_hidden_ones(void **state)
{
	const fixture *f = *state;
	train_options o = infilling(ROW, ROW);
	o.batch_size = LINES;
	o.max_steps = 300;
	o.eval_every = 20;
	dataset *d = documents(f->tokenizer, lines, &o);
	assert_int_equal(dataset_records(d), LINES);
	trainer *t = train(encoder_decoder(f, 260, 0), &o, d, d);
	const train_progress *p = trainer_progress(t);
	int between = 0;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		if (!(events & TRAIN_EVAL))
			continue;
		const counts c = evaluate(t, &o, d);
		assert_true(fabs(train_metric(p, "accuracy") - (double)c.hits / (double)c.labels) < 1e-9);
		assert_true(fabs(train_metric(p, "blank_accuracy") - (double)c.found / (double)c.hidden) < 1e-9);
		between += c.found > 0 && c.found < c.hidden;
	}
	assert_true(between > 0);
	assert_true(train_metric(p, "accuracy") == 1 && train_metric(p, "blank_accuracy") == 1);
	assert_true(fabs(train_metric(p, "perplexity") - exp(p->valid_loss)) < 1e-9);
	trainer_free(t);
	dataset_free(d);
}

static void a_resumed_run_continues_bit_for_bit(void **state)
{
	const fixture *f = *state;
	train_options o = infilling(16, 16);
	dataset *d = documents(f->tokenizer, lines, &o);
	assert_resumes(f, f->tokenizer, &o, d, 260);
	dataset_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_source_has_a_mask_for_each_run_of_hidden_words_and_the_target_is_the_text),
	    cmocka_unit_test(a_row_without_a_text_or_without_words_has_no_blank),
	    cmocka_unit_test(a_text_fits_into_its_source_and_target_with_the_surrounding_tokens),
	    cmocka_unit_test(accuracy_is_reported_for_all_tokens_and_for_hidden_ones),
	    cmocka_unit_test(a_resumed_run_continues_bit_for_bit),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
