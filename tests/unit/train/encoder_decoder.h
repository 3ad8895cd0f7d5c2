/* encoder_decoder.h - a tiny encoder-decoder, rows of its batches and its trainer, for the tests of objectives. */
#ifndef TESTS_UNIT_TRAIN_ENCODER_DECODER_H
#define TESTS_UNIT_TRAIN_ENCODER_DECODER_H

#include "tests/unit/support/bytes.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>

#include "engine/train/objective.h"

enum { START = 7 };

static const model_dims dims = {
    .inputs = 259, .outputs = 259, .form = &form_encoder_decoder, .source = 64, .source_inputs = 259, .start = START};

typedef struct rows {
	int32_t source[80], mask[80], ids[80], labels[80];
} rows;

/* Fill memory with 0x55555555 first, so that unwritten elements show. */
static inline rows make_rows(const objective *o, const example *x)
{
	rows out;
	void *const values[] = {out.source, out.mask, out.ids, out.labels};
	memset(&out, 0x55, sizeof out);
	o->example(x, values);
	assert_int_equal(out.source[x->source_length], 0x55555555);
	assert_int_equal(out.mask[x->source_length], 0x55555555);
	assert_int_equal(out.ids[x->length], 0x55555555);
	assert_int_equal(out.labels[x->length], 0x55555555);
	return out;
}

#define ASSERT_ROW(row, ...)                                                                                           \
	assert_memory_equal(row, ((const int32_t[]){__VA_ARGS__}), sizeof((const int32_t[]){__VA_ARGS__}))
#define BYTE(c) (BYTES_FIRST + (c))

/* Its mask token is its last token. */
static inline model *encoder_decoder(const fixture *f, int64_t inputs, double dropout)
{
	json_t *config = json_pack("{s:s, s:{}, s:{}, s:I}", "stack", "encoder_decoder", "encoder", "decoder",
	                           "mask_token_id", (json_int_t)inputs - 1);
	model_size size = {.hidden = 16,
	                   .heads = 2,
	                   .layers = 1,
	                   .inputs = inputs,
	                   .positions = 40,
	                   .length = 40,
	                   .source = 80,
	                   .dropout = dropout};
	model_size_complete(&size);
	assert_true(architecture_find("transformer")->complete(config, &size));
	model *m;
	error err = ERROR_INIT;
	status s = model_create(&m, architecture_find("transformer"), config, 7, f->backend, &err);
	json_decref(config);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return m;
}

static inline trainer *train(model *m, const train_options *o, const dataset *data, const dataset *valid)
{
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, m, o, data, valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static inline void advance(trainer *t, int64_t steps)
{
	error err = ERROR_INIT;
	for (unsigned events = 0; trainer_progress(t)->step < steps || (events & TRAIN_STEP && !(events & TRAIN_EVAL));)
		assert_int_equal(trainer_advance(t, 0, &events, &err), STATUS_OK);
}

static inline void finish(trainer *t)
{
	for (unsigned events = 0; !(events & TRAIN_FINISHED);)
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
}

/* Check that a run saved and resumed within a step gives the same, with dropout and batches of different numbers of
 * labels. */
static inline void assert_resumes(const fixture *f, const tokenizer *tok, train_options *o, const dataset *d,
                                  int64_t inputs)
{
	char folder[96];
	snprintf(folder, sizeof folder, "%s/saved", f->folder);
	o->max_steps = 6;
	o->gradient_accumulation = 2;
	o->batch_size = 2;
	trainer *whole = train(encoder_decoder(f, inputs, 0.1), o, d, d);
	finish(whole);
	trainer *first = train(encoder_decoder(f, inputs, 0.1), o, d, d);
	advance(first, 3);
	assert_int_equal(trainer_save(first, tok, folder, "x", NULL, NULL), STATUS_OK);
	trainer_free(first);
	trainer *second = train(encoder_decoder(f, inputs, 0.1), o, d, d);
	assert_int_equal(trainer_resume(second, folder, NULL), STATUS_OK);
	finish(second);
	assert_same_weights(f, whole, second);
	assert_true(trainer_progress(whole)->valid_loss == trainer_progress(second)->valid_loss);
	trainer_free(whole);
	trainer_free(second);
}

#endif
