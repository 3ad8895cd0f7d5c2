#include "tests/unit/support/allocations.h"
#include "engine/train/optimizer_kind.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static void path_of(char out[128], const fixture *f, const char *name)
{
	snprintf(out, 128, "%s/%s", f->folder, name);
}

static void save(const fixture *f, trainer *t, const char *name)
{
	char path[128];
	path_of(path, f, name);
	error err = ERROR_INIT;
	assert_int_equal(trainer_save(t, f->tokenizer, path, "step", NULL, &err), STATUS_OK);
	assert_string_equal(err.message, "");
}

static status resume(const fixture *f, trainer *t, const char *name, error *err)
{
	char path[128];
	path_of(path, f, name);
	return trainer_resume(t, path, err);
}

static train_options twenty_steps(void)
{
	train_options o = fixture_options();
	o.gradient_accumulation = 2;
	o.eval_every = 4;
	o.checkpoint_every = 10;
	o.warmup_steps = 3;
	return o;
}

/* Train from step `from` to the end; records the losses of every step and evaluation. */
static void finish(trainer *t, double losses[20], double valid[20])
{
	unsigned events = 0;
	while (!(events & TRAIN_FINISHED)) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		const train_progress *p = trainer_progress(t);
		if (events & TRAIN_STEP)
			losses[p->step - 1] = p->train_loss;
		if (events & TRAIN_EVAL)
			valid[p->step - 1] = p->valid_loss;
	}
}

static void advance_nodes(trainer *t, int nodes)
{
	unsigned events;
	for (int n = 0; n < nodes; n++)
		assert_int_equal(trainer_advance(t, 1, &events, NULL), STATUS_OK);
}

static void resumed_is_the_same(const fixture *f, const optimizer_kind *kind)
{
	train_options o = twenty_steps();
	o.optimizer = kind;
	double losses[3][20] = {{0}}, valid[3][20] = {{0}};
	trainer *whole = fixture_trainer(f, 0.1, &o, f->valid);
	finish(whole, losses[0], valid[0]);
	trainer *first = fixture_trainer(f, 0.1, &o, f->valid);
	assert_true(fixture_run(first, 10, 0) & TRAIN_CHECKPOINT_DUE);
	save(f, first, "ten");
	memcpy(losses[1], losses[0], 10 * sizeof(double));
	memcpy(valid[1], valid[0], 10 * sizeof(double));
	trainer *second = fixture_trainer(f, 0.1, &o, f->valid);
	fixture_run(second, 3, 0);
	advance_nodes(second, 120); /* into the second micro-batch: its earlier work is discarded */
	assert_int_equal(resume(f, second, "ten", NULL), STATUS_OK);
	const train_progress *p = trainer_progress(first), *q = trainer_progress(second);
	assert_int_equal(q->step, 10);
	assert_int_equal(q->tokens, p->tokens);
	assert_true(q->train_loss == p->train_loss && q->valid_loss == p->valid_loss);
	assert_true(q->gradient_norm == p->gradient_norm && q->learning_rate == p->learning_rate);
	assert_true(train_metric(q, "bits_per_byte") == train_metric(p, "bits_per_byte") &&
	            q->tokens_per_second == p->tokens_per_second);
	finish(second, losses[1], valid[1]);
	assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
	assert_memory_equal(valid[0], valid[1], sizeof valid[0]);
	assert_same_weights(f, whole, second);
	assert_int_equal(trainer_progress(second)->tokens, trainer_progress(whole)->tokens);
	trainer_free(whole);
	trainer_free(first);
	trainer_free(second);
}

static void a_run_resumed_from_a_checkpoint_is_the_same_bit_for_bit(void **state)
{
	resumed_is_the_same(*state, &optimizer_kind_adamw);
	resumed_is_the_same(*state, &optimizer_kind_muon);
}

/* A rate so high that the loss rises again. */
static train_options rising(void)
{
	train_options o = fixture_options();
	o.learning_rate = 0.3;
	o.warmup_steps = 6;
	o.eval_every = 1;
	return o;
}

static void a_run_without_progress_ends_with_the_weights_of_its_best_evaluation(void **state)
{
	enum { PATIENCE = 3 };
	const fixture *f = *state;
	train_options o = rising();
	double losses[20], valid[20] = {0};
	trainer *t = fixture_trainer(f, 0.1, &o, f->valid);
	finish(t, losses, valid);
	assert_int_equal(trainer_conclude(t, NULL), STATUS_OK);
	assert_int_equal(trainer_progress(t)->result_step, 20);
	trainer_free(t);
	int best = 0, end = 0; /* the best and the last step, by the definition */
	for (int step = 1; step <= 20 && !end; step++) {
		best = best == 0 || valid[step - 1] < valid[best - 1] ? step : best;
		end = step - best == PATIENCE ? step : 0;
	}
	assert_true(best > 1 && end > 0 && end < 20);
	t = fixture_trainer(f, 0.1, &o, f->valid);
	fixture_run(t, best, 0);
	float *want = fixture_weights(f, trainer_model(t));
	trainer_free(t);

	o.patience = PATIENCE;
	o.keep_best = true;
	trainer *whole = fixture_trainer(f, 0.1, &o, f->valid), *again = fixture_trainer(f, 0.1, &o, f->valid);
	fixture_run(whole, best + 1, 0);
	save(f, whole, "best");
	assert_int_equal(resume(f, again, "best", NULL), STATUS_OK);
	for (int i = 0; i < 2; i++) {
		t = i ? again : whole;
		finish(t, losses, valid);
		const train_progress *p = trainer_progress(t);
		assert_true(p->step == end && p->best_step == best && p->best_valid_loss == valid[best - 1]);
		save(f, t, "end");
		assert_int_equal(trainer_conclude(t, NULL), STATUS_OK);
		assert_int_equal(p->result_step, best);
		float *got = fixture_weights(f, trainer_model(t));
		assert_memory_equal(got, want, (size_t)model_arena_floats(trainer_model(t)) * sizeof *got);
		free(got);
		trainer_free(t);
	}
	/* Resumed from its last checkpoint, such a run has ended too. */
	unsigned events;
	t = fixture_trainer(f, 0.1, &o, f->valid);
	assert_int_equal(resume(f, t, "end", NULL), STATUS_OK);
	assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
	assert_int_equal(events, TRAIN_FINISHED);
	assert_int_equal(trainer_conclude(t, NULL), STATUS_OK);
	float *got = fixture_weights(f, trainer_model(t));
	assert_memory_equal(got, want, (size_t)model_arena_floats(trainer_model(t)) * sizeof *got);
	free(got);
	free(want);
	trainer_free(t);
}

/* A model without a position table, trained on sequences longer than its n_positions. */
static trainer *unbounded_trainer(const fixture *f, const train_options *o)
{
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:s, s:i, s:[i, i]}", "hidden_size", 16, "vocab_size", 259,
	                           "n_heads", 2, "n_positions", FIXTURE_LENGTH / 2, "position_embedding", "none",
	                           "n_layer", 2, "window_sizes", 4, FIXTURE_LENGTH);
	model *m;
	trainer *t;
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 7, f->backend, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&t, m, o, f->train, f->valid, NULL), STATUS_OK);
	json_decref(config);
	return t;
}

static void a_model_without_positions_resumes_and_recomputes_bit_for_bit(void **state)
{
	const fixture *f = *state;
	train_options o = twenty_steps();
	double losses[3][20] = {{0}}, valid[3][20] = {{0}};
	trainer *whole = unbounded_trainer(f, &o);
	finish(whole, losses[0], valid[0]);
	trainer *first = unbounded_trainer(f, &o), *second = unbounded_trainer(f, &o);
	fixture_run(first, 10, 0);
	save(f, first, "unbounded");
	memcpy(losses[1], losses[0], 10 * sizeof(double));
	memcpy(valid[1], valid[0], 10 * sizeof(double));
	assert_int_equal(resume(f, second, "unbounded", NULL), STATUS_OK);
	assert_int_equal(model_dimensions(trainer_model(second))->trained, FIXTURE_LENGTH);
	finish(second, losses[1], valid[1]);
	o.recompute = true;
	trainer *again = unbounded_trainer(f, &o);
	finish(again, losses[2], valid[2]);
	for (int i = 1; i < 3; i++) {
		assert_memory_equal(losses[0], losses[i], sizeof losses[0]);
		assert_memory_equal(valid[0], valid[i], sizeof valid[0]);
	}
	assert_same_weights(f, whole, second);
	assert_same_weights(f, whole, again);
	trainer_free(whole);
	trainer_free(first);
	trainer_free(second);
	trainer_free(again);
}

static void saving_in_the_middle_of_a_step_or_evaluation_loses_nothing(void **state)
{
	const fixture *f = *state;
	train_options o = twenty_steps();
	o.max_steps = 6;
	double expected[20] = {0}, valid[20] = {0};
	trainer *whole = fixture_trainer(f, 0.1, &o, f->valid);
	finish(whole, expected, valid);
	static const int nodes_after_step[] = {0, 1, 37, 150};
	for (size_t i = 0; i < sizeof nodes_after_step / sizeof nodes_after_step[0]; i++) {
		for (int64_t step = 3; step <= 4; step++) { /* an evaluation follows step 4 */
			double losses[20], valid_losses[20];
			memcpy(losses, expected, sizeof losses);
			memcpy(valid_losses, valid, sizeof valid);
			trainer *t = fixture_trainer(f, 0.1, &o, f->valid);
			while (trainer_progress(t)->step < step)
				fixture_run(t, step, 1);
			advance_nodes(t, nodes_after_step[i]);
			save(f, t, "middle");
			trainer *resumed = fixture_trainer(f, 0.1, &o, f->valid);
			assert_int_equal(resume(f, resumed, "middle", NULL), STATUS_OK);
			finish(resumed, losses, valid_losses);
			assert_memory_equal(losses, expected, sizeof losses);
			assert_memory_equal(valid_losses, valid, sizeof valid);
			assert_same_weights(f, whole, resumed);
			trainer_free(t);
			trainer_free(resumed);
		}
	}
	trainer_free(whole);
}

static void a_finished_run_resumes_as_finished(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.max_steps = 2;
	trainer *t = fixture_trainer(f, 0, &o, f->valid);
	double losses[20], valid[20];
	finish(t, losses, valid);
	save(f, t, "end");
	trainer *resumed = fixture_trainer(f, 0, &o, f->valid);
	assert_int_equal(resume(f, resumed, "end", NULL), STATUS_OK);
	unsigned events;
	assert_int_equal(trainer_advance(resumed, 0, &events, NULL), STATUS_OK);
	assert_int_equal(events, TRAIN_FINISHED);
	assert_int_equal(trainer_advance(resumed, 0, &events, NULL), STATUS_OK);
	assert_int_equal(events, 0);
	assert_true(trainer_progress(resumed)->valid_loss == valid[1]);
	trainer_free(t);
	trainer_free(resumed);
}

static void a_run_without_a_step_can_be_saved(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0.1, &o, NULL), *resumed = fixture_trainer(f, 0.1, &o, NULL);
	save(f, t, "zero");
	assert_int_equal(resume(f, resumed, "zero", NULL), STATUS_OK);
	assert_true(isnan(trainer_progress(resumed)->train_loss)); /* NaN is null in JSON */
	fixture_run(t, 1, 0);
	fixture_run(resumed, 1, 0);
	assert_same_weights(f, t, resumed);
	trainer_free(t);
	trainer_free(resumed);
}

static int count_entries(const char *folder)
{
	int n = 0;
	DIR *dir = opendir(folder);
	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2; /* "." and ".." */
}

static void a_checkpoint_is_a_complete_model_and_replaces_an_older_one(void **state)
{
	const fixture *f = *state;
	char parent[128], folder[128], stale[160];
	path_of(parent, f, "jobs");
	path_of(folder, f, "jobs/step");
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	snprintf(stale, sizeof stale, "%s/stale", folder);
	assert_int_equal(file_write(stale, &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	for (int i = 1; i <= 2; i++) {
		fixture_run(t, i, 0);
		save(f, t, "jobs/step");
		assert_int_equal(count_entries(parent), 1); /* no temporary folder remains */
		assert_int_equal(count_entries(folder), 6);
	}
	model *m;
	tokenizer *tok;
	assert_int_equal(model_open(&m, folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	assert_int_equal(tokenizer_open(&tok, folder, model_dimensions(m)->outputs, NULL), STATUS_OK);
	float *x = fixture_weights(f, m), *y = fixture_weights(f, trainer_model(t));
	assert_memory_equal(x, y, (size_t)model_arena_floats(m) * sizeof *x);
	free(x);
	free(y);
	tokenizer_free(tok);
	model_free(m);
	trainer_free(t);
}

static void a_failed_save_leaves_no_files(void **state)
{
	const fixture *f = *state;
	char parent[128], folder[128];
	path_of(parent, f, "blocked");
	path_of(folder, f, "blocked/step");
	assert_int_equal(file_make_folders(parent, NULL), STATUS_OK);
	assert_int_equal(file_write(folder, &(file_part){"a file", 6}, 1, NULL), STATUS_OK);
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	error err = ERROR_INIT;
	assert_int_equal(trainer_save(t, f->tokenizer, folder, "step", NULL, &err), STATUS_IO);
	assert_true(err.message[0]);
	assert_int_equal(count_entries(parent), 1);
	path_of(folder, f, "missing/step");
	assert_int_equal(trainer_save(t, f->tokenizer, folder, "step", NULL, NULL), STATUS_IO);
	trainer_free(t);
}

static void a_save_that_runs_out_of_memory_leaves_no_checkpoint(void **state)
{
	const fixture *f = *state;
	char parent[128], folder[128];
	path_of(parent, f, "scarce");
	path_of(folder, f, "scarce/step");
	assert_int_equal(file_make_folders(parent, NULL), STATUS_OK);
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, f->valid), *resumed = fixture_trainer(f, 0, &o, f->valid);
	status s;
	int64_t limit = 0;
	for (;; limit += 3) { /* every third: a save waits for the disk */
		error err = ERROR_INIT;
		allocations_limit(limit);
		s = trainer_save(t, f->tokenizer, folder, "step", NULL, &err);
		allocations_limit(-1);
		if (s == STATUS_OK)
			break;
		assert_true(err.message[0]);
		assert_int_not_equal(access(folder, F_OK), 0);
		assert_int_equal(limit < 5000, 1);
	}
	assert_true(limit > 20);
	assert_int_equal(resume(f, resumed, "scarce/step", NULL), STATUS_OK);
	trainer_free(t);
	trainer_free(resumed);
}

static void other_options_data_or_model_are_refused_by_name(void **state)
{
	const fixture *f = *state;
	char text[FIXTURE_TEXT];
	fixture_text(text, sizeof text);
	text[0] = 'z';
	dataset *other;
	assert_int_equal(dataset_new(&other, f->tokenizer, text, sizeof text, FIXTURE_LENGTH, NULL), STATUS_OK);
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0.1, &o, f->valid);
	save(f, t, "own");
	for (int kind = 0; kind < 6; kind++) {
		static const char *const params[] = {"learning_rate",   "seed",  "max_steps", "training_data",
		                                     "validation_data", "config"};
		train_options changed = o;
		changed.learning_rate *= kind == 0 ? 1 + 1e-15 : 1;
		changed.seed += kind == 1;
		changed.max_steps += kind == 2;
		trainer *wrong;
		assert_int_equal(trainer_new(&wrong, fixture_model(f, kind == 5 ? 0.2 : 0.1), &changed,
		                             kind == 3 ? other : f->train, kind == 4 ? NULL : f->valid, NULL),
		                 STATUS_OK);
		error err = ERROR_INIT;
		assert_int_equal(resume(f, wrong, "own", &err), STATUS_INVALID);
		assert_string_equal(err.param, params[kind]);
		trainer_free(wrong);
	}
	dataset_free(other);
	trainer_free(t);
}

static void another_optimizer_is_refused_by_name(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options(), changed = o;
	changed.optimizer = &optimizer_kind_sgd;
	for (int i = 0; i < 2; i++) {
		error err = ERROR_INIT;
		trainer *t = fixture_trainer(f, 0, i ? &changed : &o, NULL);
		trainer *wrong = fixture_trainer(f, 0, i ? &o : &changed, NULL);
		save(f, t, "kind");
		assert_int_equal(resume(f, wrong, "kind", &err), STATUS_INVALID);
		assert_string_equal(err.param, "optimizer");
		trainer_free(t);
		trainer_free(wrong);
	}
}

static void a_run_with_momentum_alone_resumes_bit_for_bit(void **state)
{
	const fixture *f = *state;
	train_options o = twenty_steps();
	o.optimizer = &optimizer_kind_sgd;
	o.normalize = true;
	trainer *whole = fixture_trainer(f, 0.1, &o, NULL), *second = fixture_trainer(f, 0.1, &o, NULL);
	fixture_run(whole, 10, 0);
	save(f, whole, "momentum");
	fixture_run(whole, 20, 0);
	assert_int_equal(resume(f, second, "momentum", NULL), STATUS_OK);
	fixture_run(second, 20, 0);
	assert_same_weights(f, whole, second);
	trainer_free(whole);
	trainer_free(second);
}

static void edit_options(const fixture *f, const char *name, const char *const *removed)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s/trainer.json", f->folder, name);
	json_t *json = json_load_file(path, 0, NULL);
	for (; *removed; removed++)
		assert_int_equal(json_object_del(json_object_get(json, "options"), *removed), 0);
	assert_int_equal(json_dump_file(json, path, JSON_REAL_PRECISION(17)), 0);
	json_decref(json);
	snprintf(path, sizeof path, "%s/%s/manifest.json", f->folder, name);
	assert_int_equal(unlink(path), 0);
}

static void a_checkpoint_without_the_newer_options_has_their_defaults(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	save(f, t, "older");
	edit_options(f, "older", (const char *const[]){"objective", "optimizer", NULL});
	assert_int_equal(resume(f, t, "older", NULL), STATUS_OK);
	trainer_free(t);
}

static void a_configuration_with_many_digits_still_compares_equal(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 1.0 / 3, &o, NULL), *resumed = fixture_trainer(f, 1.0 / 3, &o, NULL);
	save(f, t, "third");
	assert_int_equal(resume(f, resumed, "third", NULL), STATUS_OK);
	trainer_free(t);
	trainer_free(resumed);
}

/* As a checkpoint of a version without manifests. */
static void remove_manifest(const fixture *f, const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s/manifest.json", f->folder, name);
	assert_int_equal(unlink(path), 0);
}

/* Replace a file of a good checkpoint (NULL: remove it). With its manifest this is damage; without one the status is
 * `expected`. */
static void assert_broken(const fixture *f, const char *name, const char *content, status expected)
{
	char path[256];
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	save(f, t, "broken");
	snprintf(path, sizeof path, "%s/broken/%s", f->folder, name);
	if (content)
		assert_int_equal(file_write(path, &(file_part){content, strlen(content)}, 1, NULL), STATUS_OK);
	else
		assert_int_equal(file_remove_tree(path, NULL), STATUS_OK);
	error found = ERROR_INIT;
	assert_int_equal(resume(f, t, "broken", &found), STATUS_STORAGE);
	assert_non_null(strstr(found.message, name));
	remove_manifest(f, "broken");
	error err = ERROR_INIT;
	assert_int_equal(resume(f, t, "broken", &err), expected);
	assert_true(err.message[0]);
	trainer_free(t);
}

static void a_damaged_checkpoint_is_an_error_not_a_crash(void **state)
{
	const fixture *f = *state;
	assert_broken(f, "trainer.json", NULL, STATUS_NOT_FOUND);
	assert_broken(f, "trainer.json", "{", STATUS_CORRUPT);
	assert_broken(f, "trainer.json", "{}", STATUS_CORRUPT);
	assert_broken(f, "trainer.json", "[]", STATUS_CORRUPT);
	assert_broken(f, "trainer.json", "{\"format\": \"additive-trainer\", \"version\": 2}", STATUS_CORRUPT);
	assert_broken(f, "trainer.json", "{\"format\": \"additive-trainer\", \"version\": 1}", STATUS_INVALID);
	assert_broken(f, "optimizer.safetensors", NULL, STATUS_NOT_FOUND);
	assert_broken(f, "optimizer.safetensors", "short", STATUS_CORRUPT);
	assert_broken(f, "optimizer.safetensors", "\x08\0\0\0\0\0\0\0{}      ", STATUS_CORRUPT);
	assert_broken(f, "model.safetensors", NULL, STATUS_NOT_FOUND);
	assert_broken(f, "config.json", NULL, STATUS_NOT_FOUND);
}

/* Change one bit, cut the end, or empty the file. */
static void damage(const char *path, int kind)
{
	char *data;
	size_t bytes;
	assert_int_equal(file_read(path, 1 << 20, &data, &bytes, NULL), STATUS_OK);
	data[bytes / 2] ^= kind == 0 ? 0x10 : 0;
	bytes = kind == 1 ? bytes - 1 : kind == 2 ? 0 : bytes;
	assert_int_equal(file_write(path, &(file_part){data, bytes}, 1, NULL), STATUS_OK);
	free(data);
}

static void damage_of_any_file_is_found_and_named(void **state)
{
	const fixture *f = *state;
	static const char *const names[] = {"config.json", "model.safetensors", "optimizer.safetensors", "trainer.json",
	                                    "manifest.json"};
	char path[256];
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (int kind = 0; kind < 3; kind++) {
			save(f, t, "damaged");
			snprintf(path, sizeof path, "%s/damaged/%s", f->folder, names[i]);
			damage(path, kind);
			error err = ERROR_INIT;
			assert_int_equal(resume(f, t, "damaged", &err), STATUS_STORAGE);
			assert_non_null(strstr(err.message, names[i]));
		}
	save(f, t, "damaged");
	assert_int_equal(resume(f, t, "damaged", NULL), STATUS_OK);
	trainer_free(t);
}

/* Edit a member of trainer.json and expect STATUS_CORRUPT. */
static void assert_state_refused(const fixture *f, const char *key, json_t *member)
{
	char path[128];
	train_options o = fixture_options();
	trainer *t = fixture_trainer(f, 0, &o, NULL);
	save(f, t, "edited");
	path_of(path, f, "edited/trainer.json");
	json_t *json = json_load_file(path, 0, NULL);
	if (member)
		json_object_set_new(json, key, member);
	else
		json_object_del(json, key);
	assert_int_equal(json_dump_file(json, path, 0), 0);
	json_decref(json);
	remove_manifest(f, "edited");
	assert_int_equal(resume(f, t, "edited", NULL), STATUS_CORRUPT);
	trainer_free(t);
}

static void an_impossible_position_is_refused(void **state)
{
	const fixture *f = *state;
	assert_state_refused(f, "step", json_integer(-1));
	assert_state_refused(f, "step", json_integer(21));
	assert_state_refused(f, "step", json_string("3"));
	assert_state_refused(f, "tokens", NULL);
	assert_state_refused(f, "progress", NULL);
	assert_state_refused(f, "updates", NULL);
	assert_state_refused(f, "updates", json_integer(-5));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_run_resumed_from_a_checkpoint_is_the_same_bit_for_bit),
	    cmocka_unit_test(a_run_without_progress_ends_with_the_weights_of_its_best_evaluation),
	    cmocka_unit_test(a_model_without_positions_resumes_and_recomputes_bit_for_bit),
	    cmocka_unit_test(saving_in_the_middle_of_a_step_or_evaluation_loses_nothing),
	    cmocka_unit_test(a_finished_run_resumes_as_finished),
	    cmocka_unit_test(a_run_without_a_step_can_be_saved),
	    cmocka_unit_test(a_checkpoint_is_a_complete_model_and_replaces_an_older_one),
	    cmocka_unit_test(a_failed_save_leaves_no_files),
	    cmocka_unit_test(a_save_that_runs_out_of_memory_leaves_no_checkpoint),
	    cmocka_unit_test(other_options_data_or_model_are_refused_by_name),
	    cmocka_unit_test(another_optimizer_is_refused_by_name),
	    cmocka_unit_test(a_run_with_momentum_alone_resumes_bit_for_bit),
	    cmocka_unit_test(a_checkpoint_without_the_newer_options_has_their_defaults),
	    cmocka_unit_test(a_configuration_with_many_digits_still_compares_equal),
	    cmocka_unit_test(a_damaged_checkpoint_is_an_error_not_a_crash),
	    cmocka_unit_test(damage_of_any_file_is_found_and_named),
	    cmocka_unit_test(an_impossible_position_is_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
