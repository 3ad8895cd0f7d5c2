/* A job's request: defaults, precedence of fields, and that it is unchanged by the ledger. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/jobs/job_store.h"
#include "engine/recipe/job_estimate.h"
#include "engine/recipe/job_request.h"
#include "engine/train/pass.h"
#include "gen/limits.h"
#include "tests/unit/support/folder.h"

typedef struct fixture {
	job_parts *parts;
	char folder[64], file[STORE_ID_BYTES];
} fixture;

static int setup(void **state)
{
	static const device_options options = {.backend = "cpu", .threads = 1, .limits = {1, 1, 1, 1}};
	fixture *f = calloc(1, sizeof *f);
	char path[PATH_MAX];
	store_file text = {.filename = "text", .purpose = "fine-tune"};
	f->parts = memory_new(1, sizeof *f->parts);
	f->parts->cache_folder = "";
	folder_new(f->folder);
	log_init("test", LOG_WARN);
	assert_int_equal(store_open(&f->parts->store, f->folder, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&f->parts->catalog, f->parts->store), STATUS_OK);
	assert_int_equal(fleet_open(&f->parts->fleet, &options, 1, NULL), STATUS_OK);
	store_temporary_path(f->parts->store, path);
	assert_int_equal(file_write(path, &(file_part){"text", 4}, 1, NULL), STATUS_OK);
	assert_int_equal(store_file_add(f->parts->store, &text, path, NULL), STATUS_OK);
	strcpy(f->file, text.id);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	fleet_free(f->parts->fleet);
	catalog_free(f->parts->catalog);
	store_close(f->parts->store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f->parts);
	free(f);
	return 0;
}

/* Read a request in JSON. The fixture's file is added. A request without model has that of its objective, or
 * "additive". */
static status read_json(fixture *f, job_request *out, const char *json, error *err)
{
	json_t *params = json_loads(json, 0, NULL);
	assert_non_null(params);
	if (!json_object_get(json_object_get(params, "additive"), "objective") && !json_object_get(params, "model"))
		json_object_set_new(params, "model", json_string("additive"));
	assert_true(job_request_name_model(params));
	json_object_set_new(params, "training_file", json_string(f->file));
	const job_sources from = job_store_sources(&(job_store_view){.parts = f->parts});
	status s = job_request_read(out, &from, params, NULL, err);
	json_decref(params);
	return s;
}

static void must_read(fixture *f, job_request *out, const char *json)
{
	error err = ERROR_INIT;
	if (read_json(f, out, json, &err) != STATUS_OK)
		fail_msg("%s: %s", err.param, error_message(&err));
}

static void a_model_and_a_file_are_enough(void **state)
{
	job_request r;
	must_read(*state, &r, "{}");
	assert_string_equal(r.architecture->name, "additive");
	assert_int_equal(r.dims.hidden, 128);
	assert_int_equal(r.dims.layers, 6);
	assert_int_equal(r.dims.outputs, 259);
	assert_int_equal(r.dims.positions, MODEL_UNBOUNDED);
	assert_int_equal(r.dims.trained, 512);
	assert_int_equal(r.options.sequence_length, 512);
	assert_int_equal(r.options.batch_size, 8);
	assert_int_equal(r.keep, TRAINING_OPTIONS_KEEP_CHECKPOINTS_DEFAULT);
	assert_int_equal(r.save_seconds, JOB_REQUEST_SAVE_SECONDS);
	assert_true(r.options.learning_rate == 4e-3);
	job_request_fini(&r);
}

static void a_new_model_has_positions_for_the_texts_it_is_trained_on(void **state)
{
#define LEARNED "\"position_embedding\":\"learned\""
	static const struct {
		const char *json;
		int64_t positions, trained, sequence;
	} cases[] = {
	    {"{}", MODEL_UNBOUNDED, 512, 512},
	    {"{\"additive\":{\"sequence_length\":700}}", MODEL_UNBOUNDED, 700, 700},
	    {"{\"additive\":{\"sequence_length\":100}}", MODEL_UNBOUNDED, 100, 100},
	    {"{\"additive\":{\"config\":{\"n_layer\":2}}}", MODEL_UNBOUNDED, 512, 512},
	    {"{\"additive\":{\"config\":{" LEARNED "}}}", 512, 512, 512},
	    {"{\"additive\":{\"config\":{" LEARNED "},\"sequence_length\":64}}", 64, 64, 64},
	    {"{\"additive\":{\"config\":{" LEARNED ",\"n_positions\":64}}}", 64, 64, 64},
	    {"{\"additive\":{\"config\":{" LEARNED ",\"n_positions\":2048}}}", 2048, 512, 512},
	    {"{\"model\":\"gpt2\",\"additive\":{\"config\":{\"n_layer\":2},\"sequence_length\":64}}", 64, 64, 64},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		must_read(*state, &r, cases[i].json);
		assert_int_equal(r.dims.positions, cases[i].positions);
		assert_int_equal(r.dims.trained, cases[i].trained);
		assert_int_equal(r.options.sequence_length, cases[i].sequence);
		job_request_fini(&r);
	}
}

static void gpt2_has_a_small_configuration_and_its_own_keys(void **state)
{
	static const struct {
		const char *json, *param;
	} wrong[] = {
	    {"{\"model\":\"gpt2\",\"additive\":{\"config\":{\"n_head\":5}}}", "additive.config.n_head"},
	    {"{\"model\":\"gpt2\",\"additive\":{\"config\":{\"hidden_size\":32}}}", "additive.config.hidden_size"},
	    {"{\"model\":\"gpt2\",\"additive\":{\"size\":{\"heads\":5}}}", "additive.size.heads"},
	    {"{\"model\":\"gpt2\",\"additive\":{\"size\":{\"heads\":5},\"config\":{\"n_head\":7}}}",
	     "additive.config.n_head"},
	    {"{\"model\":\"transformer\",\"additive\":{\"size\":{\"heads\":1025,\"hidden\":2050}}}",
	     "additive.size.heads"},
	    {"{\"additive\":{\"size\":{\"heads\":5}}}", "additive.size.heads"},
	    {"{\"model\":\"gpt2\",\"additive\":{\"config\":{\"vocab_size\":258}}}", "additive.config.vocab_size"},
	    {"{\"model\":\"gpt2\",\"additive\":{\"config\":{\"n_positions\":32},\"sequence_length\":33}}",
	     "additive.sequence_length"},
	};
	job_request r;
	must_read(*state, &r, "{\"model\":\"gpt2\"}");
	assert_string_equal(r.architecture->name, "gpt2");
	assert_int_equal(r.dims.hidden, 128);
	assert_int_equal(r.dims.outputs, 259);
	assert_int_equal(r.dims.positions, 512);
	job_request_fini(&r);
	must_read(*state, &r, "{\"model\":\"gpt2\",\"additive\":{\"sequence_length\":700,\"recompute\":true}}");
	assert_int_equal(r.dims.positions, 700);
	assert_true(r.options.recompute);
	job_request_fini(&r);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		assert_int_equal(read_json(*state, &r, wrong[i].json, &err), STATUS_INVALID);
		assert_string_equal(err.param, wrong[i].param);
		job_request_fini(&r);
	}
}

static void a_request_without_a_model_trains_the_usual_one_of_its_objective(void **state)
{
	static const struct {
		const char *json, *architecture;
		const model_form *form;
	} cases[] = {
	    {"{}", "additive", &form_causal}, /* with the model that must_read adds */
	    {"{\"additive\":{\"objective\":\"next_token\"}}", "additive2", &form_causal},
	    {"{\"additive\":{\"objective\":\"classification\"}}", "linear_encoder", &form_classifier},
	    {"{\"additive\":{\"objective\":\"fill_mask\"}}", "transformer", &form_masked},
	    {"{\"additive\":{\"objective\":\"sequence_to_sequence\"}}", "transformer", &form_encoder_decoder},
	    {"{\"additive\":{\"objective\":\"span_corruption\"}}", "transformer", &form_encoder_decoder},
	    {"{\"additive\":{\"objective\":\"text_infilling\"}}", "transformer", &form_encoder_decoder},
	    {"{\"model\":\"transformer\",\"additive\":{\"objective\":\"fill_mask\",\"config\":{\"depth\":3}}}",
	     "transformer", &form_masked},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		must_read(*state, &r, cases[i].json);
		assert_string_equal(r.architecture->name, cases[i].architecture);
		assert_ptr_equal(r.dims.form, cases[i].form);
		job_request_fini(&r);
	}
}

static void a_new_model_gets_a_rate_a_warm_up_and_an_initialization_for_its_size(void **state)
{
	static const struct {
		const char *json;
		double rate, std;
		int64_t warmup;
	} cases[] = {
	    {"{\"additive\":{\"max_steps\":200}}", 4e-3, 0.08838834764831843, 50},
	    {"{\"additive\":{\"max_steps\":20000}}", 4e-3, 0.08838834764831843, 200},
	    {"{\"additive\":{\"max_steps\":3}}", 4e-3, 0.08838834764831843, 0},
	    {"{\"additive\":{\"max_steps\":200,\"config\":{\"hidden_size\":512}}}", 1e-3, 0.044194173824159216, 50},
	    {"{\"additive\":{\"max_steps\":200,\"config\":{\"hidden_size\":4}}}", 4e-3, 0.5, 50},
	    {"{\"additive\":{\"max_steps\":200,\"warmup_steps\":0,\"learning_rate\":5e-4,"
	     "\"config\":{\"hidden_size\":64,\"initializer_range\":0.02}}}",
	     5e-4, 0.02, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		must_read(*state, &r, cases[i].json);
		assert_int_equal(job_request_settle(&r, 1000, true, NULL), STATUS_OK);
		assert_true(r.options.learning_rate == cases[i].rate);
		assert_true(json_real_value(json_object_get(r.config, "initializer_range")) == cases[i].std);
		assert_int_equal(r.options.warmup_steps, cases[i].warmup);
		job_request_fini(&r);
	}
}

static void additive_fields_override_hyperparameters_which_override_method(void **state)
{
	job_request r;
	must_read(*state, &r,
	          "{\"method\":{\"type\":\"supervised\",\"supervised\":{\"hyperparameters\":{\"batch_size\":2,\"n_"
	          "epochs\":7}}},"
	          "\"hyperparameters\":{\"batch_size\":3,\"learning_rate_multiplier\":2,\"n_epochs\":\"auto\"}}");
	assert_int_equal(r.options.batch_size, 3);
	assert_int_equal(r.epochs, 7);
	assert_true(r.options.learning_rate == 8e-3);
	job_request_fini(&r);
	must_read(*state, &r,
	          "{\"hyperparameters\":{\"batch_size\":3,\"learning_rate_multiplier\":2},"
	          "\"additive\":{\"batch_size\":4,\"learning_rate\":0.25,\"checkpoint_every\":10}}");
	assert_int_equal(r.options.batch_size, 4);
	assert_true(r.options.learning_rate == 0.25);
	assert_int_equal(r.save_seconds, 0);
	job_request_fini(&r);
}

static void epochs_are_converted_to_steps_and_steps_to_epochs(void **state)
{
	static const struct {
		const char *json;
		int64_t blocks, steps, epochs, batch, eval_every;
	} cases[] = {
	    {"{\"hyperparameters\":{\"n_epochs\":3}}", 800, 300, 3, 8, 30},
	    {"{\"hyperparameters\":{\"n_epochs\":3}}", 801, 301, 3, 8, 31},
	    /* a smaller batch gives enough steps */
	    {"{\"hyperparameters\":{\"n_epochs\":3}}", 80, 120, 3, 2, 12},
	    {"{\"hyperparameters\":{\"n_epochs\":3}}", 46, 138, 3, 1, 14},
	    {"{\"hyperparameters\":{\"n_epochs\":2}}", 5, 10, 2, 1, 1},
	    {"{\"hyperparameters\":{\"n_epochs\":3},\"additive\":{\"batch_size\":8}}", 80, 30, 3, 8, 3},
	    {"{}", 8000, 1000, 1, 8, 100},
	    {"{}", 80000, 10000, 1, 8, 1000},
	    {"{}", 1000, 1000, 8, 8, 100},
	    {"{}", 8, 160, 20, 1, 16},
	    {"{}", 46, 115, 20, 8, 12},
	    {"{\"additive\":{\"max_steps\":25}}", 80, 25, 3, 8, 3},
	    {"{\"additive\":{\"max_steps\":25,\"eval_every\":0}}", 80, 25, 3, 8, 0},
	    {"{\"hyperparameters\":{\"n_epochs\":9},\"additive\":{\"max_steps\":25}}", 80, 25, 3, 8, 3},
	    {"{\"additive\":{\"gradient_accumulation\":5},\"hyperparameters\":{\"n_epochs\":1}}", 81, 17, 1, 1, 2},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		must_read(*state, &r, cases[i].json);
		assert_int_equal(job_request_settle(&r, cases[i].blocks, true, NULL), STATUS_OK);
		assert_int_equal(r.options.max_steps, cases[i].steps);
		assert_int_equal(r.epochs, cases[i].epochs);
		assert_int_equal(r.options.batch_size, cases[i].batch);
		assert_int_equal(r.options.eval_every, cases[i].eval_every);
		job_request_fini(&r);
	}
}

static void overridden_hyperparameters_are_named(void **state)
{
	static const struct {
		const char *json, *text;
	} cases[] = {
	    {"{}", ""},
	    {"{\"hyperparameters\":{\"n_epochs\":\"auto\"},\"additive\":{\"max_steps\":25}}", ""},
	    {"{\"hyperparameters\":{\"n_epochs\":9,\"batch_size\":2}}", ""},
	    {"{\"hyperparameters\":{\"n_epochs\":9},\"additive\":{\"max_steps\":25}}",
	     "hyperparameters.n_epochs is not used: additive.max_steps decides"},
	    {"{\"hyperparameters\":{\"batch_size\":9,\"learning_rate_multiplier\":2},"
	     "\"additive\":{\"batch_size\":2,\"learning_rate\":0.1}}",
	     "hyperparameters.batch_size is not used: additive.batch_size decides; "
	     "hyperparameters.learning_rate_multiplier is not used: additive.learning_rate decides"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[256];
		json_t *params = json_loads(cases[i].json, 0, NULL);
		job_request_unused(params, text, sizeof text);
		assert_string_equal(text, cases[i].text);
		json_decref(params);
	}
}

static void a_requested_batch_is_not_reduced_silently(void **state)
{
	job_request r;
	error err = ERROR_INIT;
	must_read(*state, &r, "{\"additive\":{\"batch_size\":9}}");
	assert_int_equal(job_request_settle(&r, 8, false, &err), STATUS_INVALID);
	assert_string_equal(err.param, "additive.batch_size");
	job_request_fini(&r);
}

static void a_request_that_exceeds_this_machine_is_refused(void **state)
{
	static const struct {
		const char *json, *param;
	} cases[] = {
	    {"{\"additive\":{\"config\":{\"hidden_size\":32768,\"n_layer\":1,\"n_positions\":16}}}", "additive.config"},
	    {"{\"additive\":{\"batch_size\":65536,\"sequence_length\":512}}", "additive.batch_size"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		error err = ERROR_INIT;
		assert_int_equal(read_json(*state, &r, cases[i].json, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].param);
		job_request_fini(&r);
	}
}

/* Number of GiB in the message that refuses a request. */
static double gib_needed(fixture *f, const char *json)
{
	job_request r;
	error err = ERROR_INIT;
	assert_int_equal(read_json(f, &r, json, &err), STATUS_INVALID);
	job_request_fini(&r);
	double found = 0;
	assert_int_equal(sscanf(err.message, "training would need at least %lf GiB", &found), 1);
	return found;
}

static double gib_with(fixture *f, const char *optimizer)
{
	char json[256];
	snprintf(
	    json, sizeof json,
	    "{\"additive\":{\"optimizer\":\"%s\",\"config\":{\"hidden_size\":32768,\"n_layer\":1,\"n_positions\":16}}}",
	    optimizer);
	return gib_needed(f, json);
}

static void the_memory_of_an_optimizer_depends_on_its_own_moments(void **state)
{
	assert_true(fabs(gib_with(*state, "adamw") / gib_with(*state, "sgd") - 16.0 / 12) < 0.01);
}

/* A request for an encoder-decoder with sources of 512 tokens and targets of 32. */
static const char *two_stacks(char json[512], int64_t batch, int encoder, int decoder)
{
	snprintf(json, 512,
	         "{\"model\":\"transformer\",\"additive\":{\"objective\":\"sequence_to_sequence\",\"batch_size\":%lld,"
	         "\"sequence_length\":32,\"source_length\":512,\"size\":{\"hidden\":256,\"heads\":4},\"config\":{"
	         "\"stack\":\"encoder_decoder\",\"encoder\":{\"depth\":%d},\"decoder\":{\"depth\":%d}}}}",
	         (long long)batch, encoder, decoder);
	return json;
}

/* Size of the plan for a training batch. */
static double plan_of(fixture *f, int64_t batch, int encoder, int decoder)
{
	char json[512];
	job_request r;
	model *m;
	pass *p;
	must_read(f, &r, two_stacks(json, batch, encoder, decoder));
	backend *b = device_training_backend(fleet_device(f->parts->fleet, 0));
	assert_int_equal(model_create(&m, r.architecture, r.config, 1, b, NULL), STATUS_OK);
	const forward_spec spec = {.batch = batch, .length = 32, .train.loss = true, .train.backward = true};
	assert_int_equal(pass_new(&p, m, &r.options, &spec, NULL, NULL), STATUS_OK);
	const double bytes = (double)plan_bytes(pass_plan(p));
	pass_free(p);
	model_free(m);
	job_request_fini(&r);
	return bytes;
}

static void the_estimate_counts_both_stacks_and_is_below_the_size_of_their_plan(void **state)
{
	static const int stacks[][2] = {{1, 1}, {4, 1}, {1, 4}};
	enum { MOST = 65536 };
	for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
		const int *s = stacks[i];
		char json[512];
		double counted = gib_needed(*state, two_stacks(json, MOST, s[0], s[1])) * 0x1p30 / MOST;
		double held = (plan_of(*state, 4, s[0], s[1]) - plan_of(*state, 2, s[0], s[1])) / 2;
		assert_true(counted > 0.3 * held && counted <= held);
	}
}

static void both_stacks_of_cirilla_have_room_for_sequences_and_sources(void **state)
{
#define CIRILLA(lengths, config)                                                                                       \
	"{\"model\":\"cirilla\",\"additive\":{\"objective\":\"sequence_to_sequence\",\"size\":{\"hidden\":16,"         \
	"\"heads\":2},"                                                                                                \
	"\"config\":{" config "}," lengths "}}"
	static const struct {
		const char *json, *param;
		int64_t max_len, trained;
	} cases[] = {
	    {CIRILLA("\"sequence_length\":32,\"source_length\":48", ""), "", 48, 32},
	    {CIRILLA("\"sequence_length\":48,\"source_length\":32", ""), "", 48, 48},
	    {CIRILLA("\"sequence_length\":48", ""), "", 48, 48},
	    {CIRILLA("\"sequence_length\":32,\"source_length\":48", "\"max_len\":64"), "", 64, 32},
	    {CIRILLA("\"sequence_length\":32,\"source_length\":48", "\"max_len\":40"), "additive.source_length", 0, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_request r;
		error err = ERROR_INIT;
		read_json(*state, &r, cases[i].json, &err);
		assert_string_equal(err.param, cases[i].param);
		if (!cases[i].param[0]) {
			assert_int_equal(json_integer_value(json_object_get(r.config, "max_len")), cases[i].max_len);
			assert_int_equal(r.dims.source, cases[i].max_len);
			assert_int_equal(r.dims.trained, cases[i].trained);
		}
		job_request_fini(&r);
	}
}

static void a_request_read_from_the_ledger_is_unchanged(void **state)
{
	fixture *f = *state;
	job_request r;
	corpus c;
	train_options options;
	const architecture *a;
	must_read(f, &r,
	          "{\"seed\":-5,\"additive\":{\"learning_rate\":0.1,\"betas\":[0.3,0.7],\"schedule\":\"cosine\","
	          "\"clip\":0.3,\"recompute\":true}}");
	assert_int_equal(job_request_settle(&r, 100, true, NULL), STATUS_OK);
	json_t *written = job_request_write(&r, CORPUS_HOLDOUT);
	char *text = json_dumps(written, JSON_COMPACT);
	json_t *stored = json_loads(text, 0, NULL);
	const job_sources from = job_store_sources(&(job_store_view){.parts = f->parts});
	assert_int_equal(job_request_restore(stored, &from, &c, &options, &a, NULL), STATUS_OK);
	json_t *before = train_options_write(&r.options), *after = train_options_write(&options);
	assert_true(json_equal(before, after));
	json_decref(before);
	json_decref(after);
	assert_ptr_equal(a, r.architecture);
	assert_true(c.holdout == CORPUS_HOLDOUT);
	assert_int_equal(c.length, 512);
	assert_int_equal(c.vocab, 259);
	assert_int_equal(c.n_training, 1);
	assert_string_equal(c.training[0].id, f->file);
	assert_string_equal(c.validation, "");
	json_decref(stored);
	json_decref(written);
	free(text);
	job_request_fini(&r);
}

static void a_text_too_short_for_a_validation_split_is_used_for_training(void **state)
{
	fixture *f = *state;
	json_t *spec = json_pack("{s:s}", "type", "bytes");
	corpus c = {.spec = spec,
	            .vocab = 259,
	            .length = 4,
	            .holdout = -1,
	            .paths = job_store_paths(f->parts->store),
	            .n_training = 1};
	c.cache = (corpus_cache){f->parts->cache_folder, 0, INT64_MAX};
	c.training[0].weight = 1;
	strcpy(c.training[0].id, f->file);
	assert_int_equal(corpus_build(&c), STATUS_OK);
	assert_true(c.holdout == 0);
	assert_null(c.texts.valid);
	assert_int_equal(dataset_records(c.texts.train), 1);
	corpus_free(&c.texts);
	c.length = 5;
	assert_int_equal(corpus_build(&c), STATUS_INVALID);
	assert_string_equal(c.error.param, "additive.sequence_length");
	corpus_free(&c.texts);
	json_decref(spec);
}

static void a_time_is_given_with_two_digits_in_a_fitting_unit(void **state)
{
	static const struct {
		double seconds;
		const char *text;
	} cases[] = {{0.2, "about 1 s"},    {9.4, "about 9.4 s"}, {99.9, "about 100 s"},      {100, "about 1.7 min"},
	             {598, "about 10 min"}, {7200, "about 2 h"},  {360000, "about 4.2 days"}, {NAN, ""}};
	char text[32];
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_string_equal(job_estimate_text(&(job_estimate){1, cases[i].seconds}, text), cases[i].text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_model_and_a_file_are_enough),
	    cmocka_unit_test(a_time_is_given_with_two_digits_in_a_fitting_unit),
	    cmocka_unit_test(a_new_model_has_positions_for_the_texts_it_is_trained_on),
	    cmocka_unit_test(gpt2_has_a_small_configuration_and_its_own_keys),
	    cmocka_unit_test(a_request_without_a_model_trains_the_usual_one_of_its_objective),
	    cmocka_unit_test(a_new_model_gets_a_rate_a_warm_up_and_an_initialization_for_its_size),
	    cmocka_unit_test(additive_fields_override_hyperparameters_which_override_method),
	    cmocka_unit_test(epochs_are_converted_to_steps_and_steps_to_epochs),
	    cmocka_unit_test(overridden_hyperparameters_are_named),
	    cmocka_unit_test(a_requested_batch_is_not_reduced_silently),
	    cmocka_unit_test(a_request_that_exceeds_this_machine_is_refused),
	    cmocka_unit_test(the_memory_of_an_optimizer_depends_on_its_own_moments),
	    cmocka_unit_test(the_estimate_counts_both_stacks_and_is_below_the_size_of_their_plan),
	    cmocka_unit_test(both_stacks_of_cirilla_have_room_for_sequences_and_sources),
	    cmocka_unit_test(a_request_read_from_the_ledger_is_unchanged),
	    cmocka_unit_test(a_text_too_short_for_a_validation_split_is_used_for_training),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
