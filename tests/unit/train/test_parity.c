/* Twenty steps against PyTorch: tests/data/training holds the text, the initial model, the options, and the losses that
 * tests/reference/train.py computed. The run covers two epochs, accumulation, warm-up, clipping, label smoothing and
 * validation. A classifier is compared with tests/reference/train_classes.py. Run from the repository's root. */
#include "engine/text/labelled.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

static const double tolerance = 1e-3;

/* Print a line for each step that differs. */
static void assert_loss(double engine, const json_t *expected, const char *what, size_t step)
{
	double reference = json_real_value(expected);
	if (!(fabs(engine - reference) <= tolerance))
		print_error("%s %zu: engine %.6f, reference %.6f\n", what, step, engine, reference);
	assert_true(json_is_real(expected) && fabs(engine - reference) <= tolerance);
}

static void every_step_and_evaluation_agrees_with_the_reference(void **state)
{
	const fixture *f = *state;
	json_t *curve = json_load_file(FIXTURE_RUN "curve20.json", 0, NULL);
	assert_non_null(curve);
	const json_t *losses = json_object_get(curve, "train_loss"),
	             *evaluations = json_object_get(curve, "valid_loss");
	assert_int_equal(json_array_size(losses), 20);
	assert_int_equal(json_array_size(evaluations), 2);
	dataset *sets[2];
	trainer *t = fixture_reference_run(f, f->backend, curve, sets);
	const train_progress *p = trainer_progress(t);
	size_t steps = 0, seen = 0;
	int clipped = 0;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		if (events & TRAIN_STEP) {
			assert_loss(p->train_loss, json_array_get(losses, steps), "step", steps + 1);
			clipped += p->gradient_norm > 1;
			steps++;
		}
		if (events & TRAIN_EVAL) {
			const json_t *pair = json_array_get(evaluations, seen++);
			assert_int_equal(json_integer_value(json_array_get(pair, 0)), p->step);
			assert_loss(p->valid_loss, json_array_get(pair, 1), "evaluation", seen);
		}
	}
	assert_int_equal(steps, 20);
	assert_int_equal(seen, 2);
	assert_in_range(clipped, 1, 19);
	trainer_free(t);
	dataset_free(sets[0]);
	dataset_free(sets[1]);
	json_decref(curve);
}

#define CLASSES FIXTURE_RUN "classes/"

static void every_step_of_a_classifier_agrees_with_the_reference(void **state)
{
	const fixture *f = *state;
	json_t *curve = json_load_file(CLASSES "curve20.json", 0, NULL);
	assert_non_null(curve);
	const json_t *losses = json_object_get(curve, "train_loss");
	train_options o;
	dataset *data;
	trainer *t;
	model *m;
	char *text;
	size_t bytes, steps = 0;
	error err = ERROR_INIT;
	train_options_default(&o);
	assert_int_equal(train_options_read(&o, json_object_get(curve, "options"), NULL, &err), STATUS_OK);
	assert_int_equal(file_read(CLASSES "records.jsonl", 1 << 20, &text, &bytes, &err), STATUS_OK);
	assert_int_equal(labelled_new(&data, f->tokenizer, text, bytes, o.sequence_length, NULL, &err), STATUS_OK);
	free(text);
	assert_int_equal(model_open(&m, CLASSES, DTYPE_F32, f->backend, &err), STATUS_OK);
	assert_int_equal(trainer_new(&t, m, &o, data, NULL, &err), STATUS_OK);
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		if (events & TRAIN_STEP) {
			assert_loss(trainer_progress(t)->train_loss, json_array_get(losses, steps), "step", steps + 1);
			steps++;
		}
	}
	assert_int_equal(steps, 20);
	trainer_free(t);
	dataset_free(data);
	json_decref(curve);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_step_and_evaluation_agrees_with_the_reference),
	    cmocka_unit_test(every_step_of_a_classifier_agrees_with_the_reference),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
