/* Training an adapter: the weights of its base stay as they are, and a run resumes to the same bits. */
#include "engine/model/adapter.h"
#include "engine/model/feed.h"
#include "engine/model/lora.h"
#include "engine/train/preview.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include <stdio.h>

enum { STEPS = 20, HALF = 10 };
enum { STATE, LORA, KINDS };

/* A model in which every layer has an effect; a new one begins as the identity. */
static model *base_model(const fixture *f, uint64_t seed)
{
	model *m;
	json_t *config =
	    json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "model_type", "additive2", "hidden_size", 16, "vocab_size",
	              259, "n_heads", 4, "n_layer", 2, "intermediate_size", 20, "dropout", 0.1);
	assert_int_equal(model_create(&m, architecture_find("additive2"), config, seed, f->backend, NULL), STATUS_OK);
	json_decref(config);
	for (int i = 0; i < model_tensor_count(m); i++) {
		float *x = model_arena(m) + model_parameter_offset(m, i);
		for (int64_t k = 0; k < shape_count(model_parameter(m, i)->shape); k++)
			x[k] += (philox_uniform(philox(seed, (uint32_t)i, 1, (uint64_t)k).word[0]) - 0.5f) * 0.6f;
	}
	return m;
}

/* Write such a model to a folder and open it, so that it has a digest. */
static model *stored_model(const fixture *f, uint64_t seed)
{
	char folder[128];
	snprintf(folder, sizeof folder, "%s/base%d", f->folder, (int)seed);
	model *m = base_model(f, seed), *out;
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	assert_int_equal(model_open(&out, folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	return out;
}

static model *new_adapter(model *base, int kind)
{
	const lora_options o = {.rank = 4, .alpha = 8};
	model *a;
	assert_int_equal(kind == LORA ? model_new_lora(&a, base, &o, 5, NULL) : model_new_adapter(&a, base, NULL),
	                 STATUS_OK);
	return a;
}

static trainer *adapter_trainer(const fixture *f, model *base, const train_options *o, int kind)
{
	model *a = new_adapter(base, kind);
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, a, o, f->train, f->valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static train_options options(void)
{
	train_options o = fixture_options();
	o.gradient_accumulation = 2;
	o.eval_every = 4;
	o.checkpoint_every = HALF;
	o.learning_rate = 5e-2;
	o.max_steps = STEPS;
	return o;
}

/* Advance to the end; losses of each step, and of the evaluation after it. */
static void finish(trainer *t, double losses[STEPS], double valid[STEPS])
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

static void a_run_improves_the_adapter_and_leaves_the_base(void **state)
{
	const fixture *f = *state;
	const train_options o = options();
	for (int kind = 0; kind < KINDS; kind++) {
		double losses[STEPS], valid[STEPS];
		model *base = base_model(f, 1);
		float *before = fixture_weights(f, base), *after;
		trainer *t = adapter_trainer(f, base, &o, kind);
		finish(t, losses, valid);
		assert_true(valid[STEPS - 1] < valid[3] - 0.2);
		after = fixture_weights(f, base);
		assert_memory_equal(before, after, (size_t)model_arena_floats(base) * sizeof *before);
		trainer_free(t);
		model_free(base);
		free(before);
		free(after);
	}
}

static void a_resumed_run_is_the_same_with_and_without_an_average(void **state)
{
	const fixture *f = *state;
	char path[128];
	snprintf(path, sizeof path, "%s/ten", f->folder);
	for (int i = 0; i < 2 * KINDS; i++) {
		const int kind = i / 2, averaged = i % 2;
		train_options o = options();
		o.ema_decay = averaged ? 0.9 : 0;
		o.keep_best = averaged;
		double losses[2][STEPS] = {{0}}, valid[2][STEPS] = {{0}};
		model *base = base_model(f, 1);
		trainer *whole = adapter_trainer(f, base, &o, kind), *first = adapter_trainer(f, base, &o, kind);
		finish(whole, losses[0], valid[0]);
		assert_true(fixture_run(first, HALF, 0) & TRAIN_CHECKPOINT_DUE);
		assert_int_equal(trainer_save(first, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
		memcpy(losses[1], losses[0], HALF * sizeof(double));
		memcpy(valid[1], valid[0], HALF * sizeof(double));
		trainer *second = adapter_trainer(f, base, &o, kind);
		fixture_run(second, 3, 0);
		assert_int_equal(trainer_resume(second, path, NULL), STATUS_OK);
		finish(second, losses[1], valid[1]);
		assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
		assert_memory_equal(valid[0], valid[1], sizeof valid[0]);
		assert_same_weights(f, whole, second);
		trainer_free(whole);
		trainer_free(first);
		trainer_free(second);
		model_free(base);
	}
}

static void a_checkpoint_is_refused_by_another_base_and_by_a_model(void **state)
{
	const fixture *f = *state;
	const train_options o = options();
	char path[128];
	snprintf(path, sizeof path, "%s/own", f->folder);
	model *base = stored_model(f, 2), *other = stored_model(f, 3);
	trainer *t = adapter_trainer(f, base, &o, LORA), *u = adapter_trainer(f, other, &o, LORA), *v;
	assert_int_equal(trainer_save(t, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&v, base_model(f, 2), &o, f->train, f->valid, NULL), STATUS_OK);
	trainer *const wrong[] = {u, v};
	for (int i = 0; i < 2; i++) {
		error err = ERROR_INIT;
		assert_int_equal(trainer_resume(wrong[i], path, &err), STATUS_INVALID);
		assert_string_equal(err.param, "base");
		trainer_free(wrong[i]);
	}
	assert_int_equal(trainer_resume(t, path, NULL), STATUS_OK);
	trainer_free(t);
	model_free(base);
	model_free(other);
}

static void the_text_of_an_evaluation_is_that_of_the_adapter(void **state)
{
	const fixture *f = *state;
	enum { SEED = 4 };
	for (int kind = 0; kind < KINDS; kind++) {
		model *base = base_model(f, 1), *a = new_adapter(base, kind);
		for (int64_t i = 0; i < model_arena_floats(a); i++)
			model_arena(a)[i] = ((float)(i % 5) - 2) * (kind == LORA ? 0.1f : 1);
		preview *p;
		plan *whole;
		int prompt, count;
		bool more;
		float stepped[259], parallel[259];
		assert_int_equal(preview_new(&p, a, f->valid, SEED, NULL), STATUS_OK);
		preview_begin(p);
		const int32_t *ids = preview_tokens(p, &prompt, &count);
		for (int i = 0; i < prompt; i++) {
			assert_int_equal(preview_enter(p), STATUS_OK);
			assert_int_equal(plan_run(preview_plan(p)), STATUS_OK);
			if (i < prompt - 1)
				assert_int_equal(preview_leave(p, &more), STATUS_OK);
		}
		assert_int_equal(plan_read(preview_plan(p), port_find(plan_graph(preview_plan(p)), PORT_LOGITS), stepped),
		                 STATUS_OK);
		const forward_spec spec = {.batch = 1, .length = prompt, .out.logits = LOGITS_LAST};
		assert_int_equal(model_plan(&whole, a, &spec, NULL, NULL, NULL), STATUS_OK);
		assert_int_equal(feed_write(whole, PORT_TOKENS, ids), STATUS_OK);
		assert_int_equal(feed_write(whole, PORT_LAST, &(int32_t){prompt - 1}), STATUS_OK);
		assert_int_equal(plan_run(whole), STATUS_OK);
		assert_int_equal(plan_read(whole, port_find(plan_graph(whole), PORT_LOGITS), parallel), STATUS_OK);
		for (int i = 0; i < 259; i++)
			assert_true(fabs((double)stepped[i] - (double)parallel[i]) < 1e-4);
		plan_free(whole);
		preview_free(p);
		model_free(a);
		model_free(base);
	}
}

static void states_that_rows_pass_on_are_refused(void **state)
{
	const fixture *f = *state;
	train_options o = options();
	o.carry_state = true;
	model *base = base_model(f, 1), *a;
	trainer *t;
	error err = ERROR_INIT;
	assert_int_equal(model_new_adapter(&a, base, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&t, a, &o, f->train, f->valid, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "carry_state");
	model_free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_run_improves_the_adapter_and_leaves_the_base),
	    cmocka_unit_test(a_resumed_run_is_the_same_with_and_without_an_average),
	    cmocka_unit_test(a_checkpoint_is_refused_by_another_base_and_by_a_model),
	    cmocka_unit_test(the_text_of_an_evaluation_is_that_of_the_adapter),
	    cmocka_unit_test(states_that_rows_pass_on_are_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
