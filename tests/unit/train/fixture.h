/* fixture.h - a tiny model, its text and its trainer, for the tests of this folder. */
#ifndef TESTS_UNIT_TRAIN_FIXTURE_H
#define TESTS_UNIT_TRAIN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/philox.h"
#include "engine/cpu/cpu.h"
#include "engine/train/trainer.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/support/folder.h"

enum { FIXTURE_LENGTH = 16, FIXTURE_TEXT = 1200 };

typedef struct fixture {
	backend *backend;
	tokenizer *tokenizer;
	dataset *train, *valid; /* 67 and 7 blocks */
	char folder[64];
} fixture;

/* Words of a three-letter alphabet: learnable, and the same on every machine. */
static inline void fixture_text(char *out, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		out[i] = i % 4 == 3 ? ' ' : "abc"[philox(1, 0, 0, i / 8).word[i % 4] % 3];
}

static inline int fixture_setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	char text[FIXTURE_TEXT];
	fixture_text(text, sizeof text);
	folder_new(f->folder);
	*state = f;
	if (cpu_open(&f->backend, 2, NULL) != STATUS_OK || tokenizer_new(&f->tokenizer, NULL, NULL) != STATUS_OK)
		return -1;
	if (dataset_split(&f->train, &f->valid, f->tokenizer, text, sizeof text, FIXTURE_LENGTH, 0.1, NULL) !=
	    STATUS_OK)
		return -1;
	return 0;
}

static inline int fixture_teardown(void **state)
{
	fixture *f = *state;
	dataset_free(f->train);
	dataset_free(f->valid);
	tokenizer_free(f->tokenizer);
	backend_close(f->backend);
	status s = file_remove_tree(f->folder, NULL);
	free(f);
	return s == STATUS_OK ? 0 : -1;
}

/* Two layers of width 16, one windowed and one global. */
static inline model *fixture_model(const fixture *f, double dropout)
{
	json_t *config =
	    json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i], s:f}", "hidden_size", 16, "vocab_size", 259, "n_heads", 2,
	              "n_positions", 24, "n_layer", 2, "window_sizes", 4, 24, "hidden_dropout_prob", dropout);
	model *m;
	error err = ERROR_INIT;
	status s = model_create(&m, architecture_find("additive"), config, 7, f->backend, &err);
	json_decref(config);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return m;
}

static inline train_options fixture_options(void)
{
	train_options o;
	train_options_default(&o);
	o.sequence_length = FIXTURE_LENGTH;
	o.batch_size = 3;
	o.max_steps = 20;
	o.learning_rate = 1e-2;
	return o;
}

static inline trainer *fixture_trainer(const fixture *f, double dropout, const train_options *o, const dataset *valid)
{
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, fixture_model(f, dropout), o, f->train, valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

/* The weights; the caller frees them. */
static inline float *fixture_weights(const fixture *f, const model *m)
{
	size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	float *w = malloc(bytes);
	assert_non_null(w);
	assert_int_equal(f->backend->download(f->backend, w, model_arena(m), bytes), STATUS_OK);
	return w;
}

static inline void assert_same_weights(const fixture *f, const trainer *a, const trainer *b)
{
	float *x = fixture_weights(f, trainer_model(a)), *y = fixture_weights(f, trainer_model(b));
	size_t bytes = (size_t)model_arena_floats(trainer_model(a)) * sizeof(float);
	assert_memory_equal(x, y, bytes);
	free(x);
	free(y);
}

#define FIXTURE_RUN "tests/data/training/"

/* Start the run FIXTURE_RUN of curve20.json, which PyTorch computed, on b; sets: its data. Run from the repository's
 * root. */
static inline trainer *fixture_reference_run(const fixture *f, backend *b, const json_t *curve, dataset *sets[2])
{
	char *text;
	size_t bytes;
	train_options o;
	model *m;
	trainer *t;
	error err = ERROR_INIT;
	train_options_default(&o);
	assert_int_equal(train_options_read(&o, json_object_get(curve, "options"), NULL, &err), STATUS_OK);
	assert_int_equal(file_read(FIXTURE_RUN "text.txt", 1 << 20, &text, &bytes, &err), STATUS_OK);
	assert_int_equal(dataset_split(&sets[0], &sets[1], f->tokenizer, text, bytes, o.sequence_length, 0.1, &err),
	                 STATUS_OK);
	free(text);
	assert_int_equal(model_open(&m, FIXTURE_RUN "model", DTYPE_F32, b, &err), STATUS_OK);
	assert_int_equal(trainer_new(&t, m, &o, sets[0], sets[1], &err), STATUS_OK);
	return t;
}

/* Advance until `step` steps are done and their events have been returned. */
static inline unsigned fixture_run(trainer *t, int64_t step, uint64_t budget_ns)
{
	unsigned seen = 0;
	do {
		unsigned events;
		error err = ERROR_INIT;
		status s = trainer_advance(t, budget_ns, &events, &err);
		assert_string_equal(err.message, "");
		assert_int_equal(s, STATUS_OK);
		seen |= events;
	} while (trainer_progress(t)->step < step);
	return seen;
}

#endif
