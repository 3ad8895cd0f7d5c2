#include "tests/unit/train/fixture.h"

static void the_defaults_are_those_of_the_recipe_and_valid(void **state)
{
	(void)state;
	train_options o;
	train_options_default(&o);
	assert_int_equal(train_options_check(&o, NULL), STATUS_OK);
	assert_true(o.learning_rate == 5e-4 && o.betas[0] == 0.9 && o.betas[1] == 0.999 && o.eps == 1e-8);
	assert_true(o.weight_decay == 0.01 && o.clip == 1 && o.label_smoothing == 0 && o.schedule == SCHEDULE_LINEAR);
	assert_int_equal(o.precision, PRECISION_FP32);
}

static void every_key_is_read_and_written_back(void **state)
{
	(void)state;
	static const char text[] =
	    "{\"sequence_length\": 33, \"batch_size\": 3, \"gradient_accumulation\": 2, \"max_steps\": 70,"
	    " \"warmup_steps\": 7, \"learning_rate\": 0.001, \"schedule\": \"cosine\", \"betas\": [0.8, 0.95],"
	    " \"eps\": 1e-6, \"weight_decay\": 0.1, \"clip\": 0.5, \"label_smoothing\": 0.1, \"precision\": \"bf16\","
	    " \"seed\": 1234567890123456789, \"eval_every\": 5, \"checkpoint_every\": 6, \"eval_blocks\": 9,"
	    " \"recompute\": true, \"optimizer\": \"adamw\", \"objective\": \"next_token\","
	    " \"loss_on\": \"completion\", \"reset_at_document\": true, \"carry_state\": true,"
	    " \"patience\": 4, \"keep_best\": true, \"decayed\": \"matrices\", \"ema_decay\": 0.99,"
	    " \"gradient_noise\": true, \"max_bad_steps\": 7, \"layer_rate_decay\": 0.8}";
	json_t *json = json_loads(text, 0, NULL);
	train_options o;
	train_options_default(&o);
	assert_int_equal(train_options_read(&o, json, NULL, NULL), STATUS_OK);
	assert_true(o.sequence_length == 33 && o.batch_size == 3 && o.gradient_accumulation == 2 && o.max_steps == 70);
	assert_true(o.warmup_steps == 7 && o.learning_rate == 0.001 && o.schedule == SCHEDULE_COSINE);
	assert_true(o.betas[0] == 0.8 && o.betas[1] == 0.95 && o.eps == 1e-6 && o.weight_decay == 0.1);
	assert_true(o.clip == 0.5 && o.label_smoothing == 0.1 && o.seed == 1234567890123456789);
	assert_true(o.eval_every == 5 && o.checkpoint_every == 6 && o.eval_blocks == 9 && o.recompute);
	assert_int_equal(o.precision, PRECISION_BF16);
	assert_true(o.loss_on == LOSS_ON_COMPLETION && o.reset_at_document && o.carry_state);
	assert_true(o.patience == 4 && o.keep_best && o.decayed == DECAYED_MATRICES && o.ema_decay == 0.99);
	assert_true(o.gradient_noise && o.max_bad_steps == 7 && o.layer_rate_decay == 0.8);
	json_t *written = train_options_write(&o);
	assert_int_equal(json_object_size(written), json_object_size(json));
	train_options again;
	train_options_default(&again);
	assert_int_equal(train_options_read(&again, written, NULL, NULL), STATUS_OK);
	json_t *twice = train_options_write(&again);
	assert_true(json_equal(written, twice));
	json_decref(json);
	json_decref(written);
	json_decref(twice);
}

static void an_optimizer_has_its_own_options_and_refuses_those_of_others(void **state)
{
	(void)state;
	static const struct {
		const char *json, *param; /* param NULL: valid */
	} cases[] = {
	    {"{\"optimizer\": \"sgd\", \"momentum\": 0.5, \"normalize\": true, \"clip\": 2}", NULL},
	    {"{\"momentum\": 0.5, \"optimizer\": \"sgd\"}", NULL},
	    {"{\"optimizer\": \"sgd\", \"betas\": null}", NULL},
	    {"{\"optimizer\": \"sgd\", \"betas\": [0.9, 0.99]}", "betas"},
	    {"{\"eps\": 1e-6, \"optimizer\": \"sgd\"}", "eps"},
	    {"{\"momentum\": 0.5}", "momentum"},
	    {"{\"optimizer\": \"adamw_hf\", \"eps\": 1e-6, \"betas\": [0.8, 0.9]}", NULL},
	    {"{\"optimizer\": \"adamw_hf\", \"momentum\": 0.5}", "momentum"},
	    {"{\"optimizer\": \"muon\", \"momentum\": 0.9, \"betas\": [0.8, 0.9], \"eps\": 1e-6, \"clip\": 0}", NULL},
	    {"{\"optimizer\": \"muon\", \"normalize\": true}", "normalize"},
	    {"{\"optimizer\": \"muon\", \"step_size\": \"rms\"}", "step_size"},
	    {"{\"optimizer\": \"muon\", \"momentum\": 1}", "momentum"},
	    {"{\"schedule\": \"cosine_with_restarts\", \"cycles\": 0.49}", NULL},
	    {"{\"schedule\": \"cosine\", \"cycles\": 2}", "cycles"},
	    {"{\"optimizer\": \"normalized_sgd\", \"step_size\": \"norm\", \"schedule\": \"tail\", \"tail\": 5}", NULL},
	    {"{\"optimizer\": \"normalized_sgd\", \"clip\": 1}", "clip"},
	    {"{\"optimizer\": \"normalized_sgd\", \"step_size\": \"max\"}", "step_size"},
	    {"{\"step_size\": \"rms\"}", "step_size"},
	    {"{\"schedule\": \"linear\", \"tail\": 2}", "tail"},
	    {"{\"schedule\": \"range_test\", \"range_from\": 1e-5}", NULL},
	    {"{\"schedule\": \"range_test\", \"range_from\": 1e-2, \"learning_rate\": 1e-3}", "range_from"},
	    {"{\"schedule\": \"range_test\", \"warmup_steps\": 1}", "warmup_steps"},
	    {"{\"range_from\": 1e-5}", "range_from"},
	    {"{\"gradient_noise\": true}", "gradient_noise"},
	    {"{\"normalize\": false}", "normalize"},
	    {"{\"optimizer\": \"sgd\", \"momentum\": 1}", "momentum"},
	    {"{\"optimizer\": \"sgd\", \"normalize\": 1}", "normalize"},
	    {"{\"optimizer\": \"adam\"}", "optimizer"},
	    {"{\"optimizer\": 1}", "optimizer"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		train_options o, again;
		error err = ERROR_INIT;
		train_options_default(&o);
		train_options_default(&again);
		json_t *json = json_loads(cases[i].json, 0, NULL);
		assert_int_equal(train_options_read(&o, json, NULL, &err), cases[i].param ? STATUS_INVALID : STATUS_OK);
		assert_string_equal(err.param, cases[i].param ? cases[i].param : "");
		json_t *written = train_options_write(&o);
		assert_int_equal(train_options_read(&again, written, NULL, NULL), STATUS_OK);
		assert_memory_equal(&again, &o, sizeof o);
		json_decref(written);
		json_decref(json);
	}
}

static void normalized_sgd_decays_weights_only_on_request(void **state)
{
	(void)state;
	static const struct {
		const char *json;
		double decay;
	} cases[] = {
	    {"{\"optimizer\": \"normalized_sgd\"}", 0},
	    {"{\"optimizer\": \"normalized_sgd\", \"weight_decay\": null}", 0},
	    {"{\"optimizer\": \"normalized_sgd\", \"weight_decay\": 0.25}", 0.25},
	    {"{\"optimizer\": \"sgd\"}", 0.01},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		train_options o;
		train_options_default(&o);
		json_t *json = json_loads(cases[i].json, 0, NULL);
		assert_int_equal(train_options_read(&o, json, NULL, NULL), STATUS_OK);
		assert_true(o.weight_decay == cases[i].decay);
		json_decref(json);
	}
}

static void the_momentum_of_muon_is_higher_unless_given(void **state)
{
	(void)state;
	static const struct {
		const char *json;
		double momentum;
	} cases[] = {
	    {"{\"optimizer\": \"muon\"}", 0.95},
	    {"{\"optimizer\": \"muon\", \"momentum\": null}", 0.95},
	    {"{\"optimizer\": \"muon\", \"momentum\": 0.8}", 0.8},
	    {"{\"optimizer\": \"sgd\"}", 0.9},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		train_options o;
		train_options_default(&o);
		json_t *json = json_loads(cases[i].json, 0, NULL);
		assert_int_equal(train_options_read(&o, json, NULL, NULL), STATUS_OK);
		assert_true(o.momentum == cases[i].momentum);
		json_decref(json);
	}
}

static void a_seed_above_the_signed_range_survives(void **state)
{
	(void)state;
	train_options o, again;
	train_options_default(&o);
	train_options_default(&again);
	o.seed = UINT64_MAX - 1;
	json_t *json = train_options_write(&o);
	assert_int_equal(train_options_read(&again, json, NULL, NULL), STATUS_OK);
	assert_true(again.seed == o.seed);
	json_decref(json);
}

static void a_bad_value_is_refused_by_the_name_of_its_field(void **state)
{
	(void)state;
	static const struct {
		const char *json, *param;
		status expected;
	} bad[] = {
	    {"{\"sequence_length\": 1}", "sequence_length", STATUS_INVALID},
	    {"{\"sequence_length\": 1e300}", "sequence_length", STATUS_INVALID},
	    {"{\"batch_size\": 0}", "batch_size", STATUS_INVALID},
	    {"{\"batch_size\": 2.5}", "batch_size", STATUS_INVALID},
	    {"{\"batch_size\": \"8\"}", "batch_size", STATUS_INVALID},
	    {"{\"gradient_accumulation\": -1}", "gradient_accumulation", STATUS_INVALID},
	    {"{\"max_steps\": 1000000000, \"gradient_accumulation\": 5}", "gradient_accumulation", STATUS_INVALID},
	    {"{\"max_steps\": 0}", "max_steps", STATUS_INVALID},
	    {"{\"max_steps\": 10, \"warmup_steps\": 11}", "warmup_steps", STATUS_INVALID},
	    {"{\"learning_rate\": 0}", "learning_rate", STATUS_INVALID},
	    {"{\"learning_rate\": true}", "learning_rate", STATUS_INVALID},
	    {"{\"schedule\": \"step\"}", "schedule", STATUS_INVALID},
	    {"{\"schedule\": 1}", "schedule", STATUS_INVALID},
	    {"{\"weight_decay\": -0.1}", "weight_decay", STATUS_INVALID},
	    {"{\"betas\": [0.9]}", "betas", STATUS_INVALID},
	    {"{\"betas\": [0.9, 1]}", "betas", STATUS_INVALID},
	    {"{\"betas\": [-0.1, 0.9]}", "betas", STATUS_INVALID},
	    {"{\"betas\": 0.9}", "betas", STATUS_INVALID},
	    {"{\"betas\": [\"a\", 0.9]}", "betas", STATUS_INVALID},
	    {"{\"clip\": -1}", "clip", STATUS_INVALID},
	    {"{\"label_smoothing\": 1}", "label_smoothing", STATUS_INVALID},
	    {"{\"precision\": \"fp8\"}", "precision", STATUS_INVALID},
	    {"{\"precision\": 32}", "precision", STATUS_INVALID},
	    {"{\"recompute\": 1}", "recompute", STATUS_INVALID},
	    {"{\"objective\": \"tokens\"}", "objective", STATUS_INVALID},
	    {"{\"objective\": 1}", "objective", STATUS_INVALID},
	    {"{\"eps\": 0}", "eps", STATUS_INVALID},
	    {"{\"seed\": 1.5}", "seed", STATUS_INVALID},
	    {"{\"eval_every\": -1}", "eval_every", STATUS_INVALID},
	    {"{\"checkpoint_every\": -1}", "checkpoint_every", STATUS_INVALID},
	    {"{\"learning_rates\": 1}", "learning_rates", STATUS_INVALID},
	    {"[]", "", STATUS_INVALID},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		train_options o, before;
		train_options_default(&o);
		memcpy(&before, &o, sizeof o);
		error err = ERROR_INIT;
		json_t *json = json_loads(bad[i].json, 0, NULL);
		assert_non_null(json);
		assert_int_equal(train_options_read(&o, json, NULL, &err), bad[i].expected);
		assert_string_equal(err.param, bad[i].param);
		assert_true(err.message[0]);
		assert_memory_equal(&o, &before, sizeof o);
		json_decref(json);
	}
}

static void foreign_keys_and_nulls_are_skipped(void **state)
{
	(void)state;
	static const char *const others[] = {"config", "tokenizer", NULL};
	json_t *json = json_loads("{\"config\": {}, \"tokenizer\": 3, \"batch_size\": null}", 0, NULL);
	train_options o;
	train_options_default(&o);
	assert_int_equal(train_options_read(&o, json, others, NULL), STATUS_OK);
	assert_int_equal(o.batch_size, 8);
	assert_int_equal(train_options_read(&o, json, NULL, NULL), STATUS_INVALID);
	json_decref(json);
}

static void a_nan_or_an_unknown_schedule_fails_the_check(void **state)
{
	(void)state;
	train_options o;
	error err = ERROR_INIT;
	train_options_default(&o);
	o.learning_rate = NAN;
	assert_int_equal(train_options_check(&o, &err), STATUS_INVALID);
	assert_string_equal(err.param, "learning_rate");
	train_options_default(&o);
	o.betas[1] = NAN;
	assert_int_equal(train_options_check(&o, NULL), STATUS_INVALID);
	train_options_default(&o);
	o.schedule = (train_schedule)6;
	assert_int_equal(train_options_check(&o, NULL), STATUS_INVALID);
}

static void assert_near(double x, double expected)
{
	assert_true(fabs(x - expected) <= 1e-15);
}

static void the_rate_falls_linearly_to_zero(void **state)
{
	(void)state;
	train_options o = fixture_options();
	o.max_steps = 10;
	o.learning_rate = 1e-3;
	assert_near(train_learning_rate(&o, 0), 1e-3);
	assert_near(train_learning_rate(&o, 5), 5e-4);
	assert_near(train_learning_rate(&o, 9), 1e-4);
	assert_near(train_learning_rate(&o, 10), 0);
	assert_near(train_learning_rate(&o, 1000), 0);
}

static void the_rate_warms_up_in_equal_steps(void **state)
{
	(void)state;
	train_options o = fixture_options();
	o.max_steps = 10;
	o.warmup_steps = 4;
	o.learning_rate = 1e-3;
	assert_near(train_learning_rate(&o, 0), 2.5e-4);
	assert_near(train_learning_rate(&o, 3), 1e-3);
	assert_near(train_learning_rate(&o, 4), 1e-3);
	assert_near(train_learning_rate(&o, 7), 5e-4);
	o.warmup_steps = 10;
	assert_near(train_learning_rate(&o, 9), 1e-3);
	assert_near(train_learning_rate(&o, 10), 0);
}

static void the_other_schedules_follow_their_curves(void **state)
{
	(void)state;
	train_options o = fixture_options();
	o.max_steps = 12;
	o.learning_rate = 1e-3;
	o.schedule = SCHEDULE_COSINE;
	assert_near(train_learning_rate(&o, 0), 1e-3);
	assert_near(train_learning_rate(&o, 4), 7.5e-4);
	assert_near(train_learning_rate(&o, 6), 5e-4);
	assert_near(train_learning_rate(&o, 12), 0);
	o.schedule = SCHEDULE_TAIL; /* by default the last third */
	assert_near(train_learning_rate(&o, 7), 1e-3);
	assert_near(train_learning_rate(&o, 8), 1e-3);
	assert_near(train_learning_rate(&o, 9), 7.5e-4);
	assert_near(train_learning_rate(&o, 11), 2.5e-4);
	assert_near(train_learning_rate(&o, 12), 0);
	o.schedule = SCHEDULE_CONSTANT;
	assert_near(train_learning_rate(&o, 0), 1e-3);
	assert_near(train_learning_rate(&o, 11), 1e-3);
}

/* Peak and end of the published fine-tuning: the cycle is cut where the cosine reaches the end's share of the peak. */
static void restarts_follow_the_schedule_of_transformers(void **state)
{
	(void)state;
	static const struct {
		double peak;
		int64_t warmup, steps, step;
		double rate;
	} cases[] = {
	    {4e-5, 4908, 34361, 0, 0},
	    {4e-5, 4908, 34361, 4908, 4e-5},
	    {4e-5, 4908, 34361, 19634, 34.318e-6},
	    {4e-5, 4908, 34361, 34360, 20.501e-6},
	    {4e-5, 4908, 34361, 34361, 0},
	    {2e-5, 2182, 6546, 4364, 17.2457e-6},
	    {2e-5, 2182, 6546, 6545, 10.5035e-6},
	    {2e-5, 2182, 6546, 6546, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		train_options o = fixture_options();
		o.schedule = SCHEDULE_COSINE_WITH_RESTARTS;
		o.cycles = acos(1e-6 / cases[i].peak) / acos(-1);
		o.learning_rate = cases[i].peak;
		o.warmup_steps = cases[i].warmup;
		o.max_steps = cases[i].steps;
		assert_true(fabs(train_learning_rate(&o, cases[i].step) - cases[i].rate) < 1e-9);
	}
	train_options o = fixture_options();
	o.schedule = SCHEDULE_COSINE_WITH_RESTARTS;
	o.learning_rate = 1e-3;
	o.max_steps = 8;
	o.cycles = 2;
	assert_near(train_learning_rate(&o, 2), 5e-4);
	assert_near(train_learning_rate(&o, 4), 1e-3);
	assert_near(train_learning_rate(&o, 6), 5e-4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_defaults_are_those_of_the_recipe_and_valid),
	    cmocka_unit_test(every_key_is_read_and_written_back),
	    cmocka_unit_test(an_optimizer_has_its_own_options_and_refuses_those_of_others),
	    cmocka_unit_test(normalized_sgd_decays_weights_only_on_request),
	    cmocka_unit_test(the_momentum_of_muon_is_higher_unless_given),
	    cmocka_unit_test(a_seed_above_the_signed_range_survives),
	    cmocka_unit_test(a_bad_value_is_refused_by_the_name_of_its_field),
	    cmocka_unit_test(foreign_keys_and_nulls_are_skipped),
	    cmocka_unit_test(a_nan_or_an_unknown_schedule_fails_the_check),
	    cmocka_unit_test(the_rate_falls_linearly_to_zero),
	    cmocka_unit_test(the_rate_warms_up_in_equal_steps),
	    cmocka_unit_test(the_other_schedules_follow_their_curves),
	    cmocka_unit_test(restarts_follow_the_schedule_of_transformers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
