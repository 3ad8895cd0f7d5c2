/* Every allocation of a run fails once in turn, from its text to its checkpoint: the caller gets an error and has
 * nothing to free, and the next attempt succeeds. Under an address sanitizer this finds double frees and leaks.
 *
 * Where a document is parsed or a matrix multiplied, only the engine's own allocations fail, not those of the
 * libraries. */
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>
#include <unistd.h>

#include "engine/train/checkpoint.h"
#include "tests/unit/support/allocations.h"

typedef struct trial {
	const fixture *f;
	trainer *trainer;
	const char *text;
	char folder[96];
} trial;

/* Repeat `attempt` with the first, second, … allocation failing, until none fails. It must leave only what `trial`
 * holds. At least `expected` allocations must have failed. */
static void fail_each(status (*attempt)(trial *t, error *err), trial *t, bool own, int64_t expected)
{
	for (int64_t n = 0;; n++) {
		error err = ERROR_INIT;
		allocations_fail(n, own);
		status s = attempt(t, &err);
		allocations_limit(-1);
		if (!allocations_refused()) {
			assert_string_equal(err.message, "");
			assert_int_equal(s, STATUS_OK);
			assert_true(n >= expected);
			return;
		}
		assert_true(s == STATUS_NOMEM || s == STATUS_IO || (s == STATUS_OK && !own));
		assert_true(s == STATUS_OK || err.message[0]);
	}
}

static trial trial_of(void **state, const char *name)
{
	trial t = {.f = *state};
	snprintf(t.folder, sizeof t.folder, "%s/%s", t.f->folder, name);
	return t;
}

/* --- text ------------------------------------------------------------------------------------- */

static status open_tokenizer(trial *t, error *err)
{
	tokenizer *opened;
	status s = tokenizer_open(&opened, t->folder, 259, err);
	assert_true((s == STATUS_OK) == (opened != NULL));
	tokenizer_free(opened);
	return s;
}

static status make_tokenizer(trial *t, error *err)
{
	tokenizer *made;
	status s = tokenizer_new(&made, NULL, err);
	assert_true((s == STATUS_OK) == (made != NULL));
	if (s == STATUS_OK)
		s = tokenizer_save(made, t->folder, err);
	tokenizer_free(made);
	allocations_limit(-1);
	if (s == STATUS_OK)
		assert_int_equal(open_tokenizer(t, NULL), STATUS_OK);
	return s;
}

static void a_tokenizer_is_made_saved_and_opened_or_an_error_is_returned(void **state)
{
	trial t = trial_of(state, "tokenizer");
	assert_int_equal(file_make_folders(t.folder, NULL), STATUS_OK);
	fail_each(make_tokenizer, &t, false, 4);
	fail_each(open_tokenizer, &t, true, 1);
}

static status read_data(trial *t, error *err)
{
	dataset *train, *valid;
	status s = dataset_split(&train, &valid, t->f->tokenizer, t->text, strlen(t->text), 2, 0.3, err);
	assert_true((s == STATUS_OK) == (train && valid));
	dataset_free(train);
	dataset_free(valid);
	return s;
}

static void a_text_is_read_or_an_error_is_returned(void **state)
{
	trial t = trial_of(state, "");
	t.text = "plain text of some length";
	fail_each(read_data, &t, false, 4);
	t.text = "{\"text\": \"a document\"}\n{\"prompt\": \"question\", \"completion\": \"answer\"}\n";
	fail_each(read_data, &t, true, 8);
}

/* --- runs --------------------------------------------------------------------------------------- */

/* A trainer for ten steps; the third is followed by an evaluation and a checkpoint. */
static status begin(trial *t, trainer **out, error *err)
{
	train_options o = fixture_options();
	o.max_steps = 10;
	o.gradient_accumulation = 2;
	o.eval_every = o.checkpoint_every = 3;
	allocations_limit(-1);
	model *m = fixture_model(t->f, 0.1);
	return trainer_new(out, m, &o, t->f->train, t->f->valid, err);
}

/* Advance by three steps with one allocation failing from now on; frees the trainer. */
static status three_steps(trainer *t, error *err)
{
	status s = STATUS_OK;
	unsigned events = 0;
	while (s == STATUS_OK && !(events & TRAIN_CHECKPOINT_DUE))
		s = trainer_advance(t, 0, &events, err);
	if (s == STATUS_OK)
		assert_int_equal(trainer_progress(t)->step, 3);
	return s;
}

static void three_steps_allocate_no_memory(void **state)
{
	trial t = trial_of(state, "");
	trainer *run;
	error err = ERROR_INIT;
	assert_int_equal(begin(&t, &run, &err), STATUS_OK);
	allocations_fail(0, true);
	assert_int_equal(three_steps(run, &err), STATUS_OK);
	assert_false(allocations_refused());
	allocations_limit(-1);
	trainer_free(run);
}

static int64_t making; /* index of the allocation that fails while a trainer is made */

static status make(trial *t, error *err)
{
	train_options o = fixture_options();
	trainer *made;
	allocations_limit(-1);
	model *m = fixture_model(t->f, 0.1);
	allocations_fail(making++, true);
	status s = trainer_new(&made, m, &o, t->f->train, t->f->valid, err);
	assert_true((s == STATUS_OK) == (made != NULL));
	trainer_free(made);
	return s;
}

static void a_trainer_is_made_or_an_error_is_returned(void **state)
{
	trial t = trial_of(state, "");
	making = 0;
	fail_each(make, &t, true, 100);
}

static status save(trial *t, error *err)
{
	status s = trainer_save(t->trainer, t->f->tokenizer, t->folder, "step", NULL, err);
	allocations_limit(-1);
	bool exists = access(t->folder, F_OK) == 0;
	assert_true(exists == (s == STATUS_OK));
	if (exists) {
		error failure = ERROR_INIT;
		trainer *resumed;
		assert_int_equal(begin(t, &resumed, NULL), STATUS_OK);
		trainer_resume(resumed, t->folder, &failure);
		assert_string_equal(failure.message, "");
		assert_same_weights(t->f, t->trainer, resumed);
		trainer_free(resumed);
		assert_int_equal(file_remove_tree(t->folder, NULL), STATUS_OK);
	}
	return s;
}

static void a_checkpoint_is_complete_or_an_error_is_returned(void **state)
{
	trial t = trial_of(state, "step");
	assert_int_equal(begin(&t, &t.trainer, NULL), STATUS_OK);
	assert_int_equal(three_steps(t.trainer, NULL), STATUS_OK);
	fail_each(save, &t, false, 100);
	trainer_free(t.trainer);
}

static status resume(trial *t, error *err)
{
	return trainer_resume(t->trainer, t->folder, err);
}

static void a_checkpoint_is_resumed_or_an_error_is_returned(void **state)
{
	trial t = trial_of(state, "resumed");
	trainer *run;
	assert_int_equal(begin(&t, &run, NULL), STATUS_OK);
	assert_int_equal(three_steps(run, NULL), STATUS_OK);
	assert_int_equal(trainer_save(run, t.f->tokenizer, t.folder, "step", NULL, NULL), STATUS_OK);
	assert_int_equal(begin(&t, &t.trainer, NULL), STATUS_OK);
	fail_each(resume, &t, true, 15);
	assert_same_weights(t.f, run, t.trainer);
	trainer_free(run);
	trainer_free(t.trainer);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_tokenizer_is_made_saved_and_opened_or_an_error_is_returned),
	    CASE(a_text_is_read_or_an_error_is_returned),
	    CASE(three_steps_allocate_no_memory),
	    CASE(a_trainer_is_made_or_an_error_is_returned),
	    CASE(a_checkpoint_is_complete_or_an_error_is_returned),
	    CASE(a_checkpoint_is_resumed_or_an_error_is_returned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
