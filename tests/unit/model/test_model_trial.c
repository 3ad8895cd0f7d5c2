/* Every accepted configuration can run, and a failed graph is never read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/model/model_trial.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/allocations.h"

#define SMALL "\"dim\": 8, \"depth\": 1, \"heads\": 1, \"attn_dim_head\": 8, \"num_tokens\": 11"
#define BOTH(encoder, decoder, more)                                                                                   \
	"{\"stack\": \"encoder_decoder\"" more ", \"encoder\": {" SMALL encoder "}, \"decoder\": {" SMALL ", "         \
	"\"cross_attend\": true" decoder "}}"

static status trial(const architecture *a, const char *text, const forward_spec *training, error *err)
{
	json_t *json = fixture_json(text);
	status s = model_trial_config(a, json, training, err);
	json_decref(json);
	return s;
}

static void expect_ok(const architecture *a, const char *text, const forward_spec *training)
{
	error err = ERROR_INIT;
	if (trial(a, text, training, &err) != STATUS_OK)
		fail_msg("%s: %s", error_message(&err), text);
}

static void models_that_once_failed_late_can_run(void **state)
{
	(void)state;
	const forward_spec longer_source = {.phase = PHASE_SCORE,
	                                    .batch = 1,
	                                    .length = 3,
	                                    .source = 5,
	                                    .masked = true,
	                                    .source_masked = true,
	                                    .train.dropout = true,
	                                    .train.loss = true,
	                                    .train.backward = true};
	expect_ok(&architecture_transformer, BOTH(", \"mask_prob\": 0.3", "", ""), &longer_source);
	expect_ok(&architecture_transformer, BOTH("", ", \"tie_embedding\": true", ", \"tie_token_emb\": true"), NULL);
	expect_ok(&architecture_transformer, BOTH("", "", ""), NULL);
	expect_ok(&architecture_transformer, "{\"stack\": \"encoder\", " SMALL "}", NULL);
	expect_ok(&architecture_additive, SMALL_CONFIG, NULL);
	for (int i = 0; architecture_at(i); i++) {
		json_t *json = fixture_complete(architecture_at(i), 1);
		error err = ERROR_INIT;
		if (model_trial_config(architecture_at(i), json, NULL, &err) != STATUS_OK)
			fail_msg("%s: %s", architecture_at(i)->name, error_message(&err));
		json_decref(json);
	}
}

static void a_model_that_needs_much_more_than_its_weights_is_refused_with_the_size(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	assert_int_equal(
	    trial(&architecture_x_transformers,
	          "{\"model_type\": \"x-transformers\", \"TransformerWrapper\": {\"num_tokens\": 18, "
	          "\"max_seq_len\": 1048576, \"max_mem_len\": 1, \"use_abs_pos_emb\": false}, \"Decoder\": "
	          "{\"heads\": 2, \"attn_dim_head\": 64, \"dim\": 16, \"depth\": 1, \"alibi_pos_bias\": "
	          "true, \"attn_talking_heads\": true}}",
	          NULL, &err),
	    STATUS_INVALID);
	assert_non_null(strstr(err.message, "MiB"));
	assert_int_equal(
	    trial(&architecture_transformer,
	          "{\"stack\": \"decoder\", \"max_seq_len\": 1048576, \"use_abs_pos_emb\": false, "
	          "\"dynamic_pos_bias\": true, \"dim\": 512, \"depth\": 1, \"heads\": 1, \"attn_dim_head\": 1, "
	          "\"num_tokens\": 11}",
	          NULL, NULL),
	    STATUS_INVALID);
}

/* If any one of its allocations fails, a plan returns a status. */
static void a_graph_without_memory_fails_with_a_status(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	model *m = fixture_created_as(&architecture_transformer, "{\"stack\": \"encoder\", " SMALL "}", 1, b);
	const forward_spec forms[] = {
	    {.batch = 1, .length = 3, .masked = true, .out.embedding = POOL_MEAN},
	    {.batch = 1,
	     .length = 3,
	     .masked = true,
	     .train.loss = true,
	     .train.backward = true,
	     .train.recompute = true},
	    {.batch = 1,
	     .length = 3,
	     .masked = true,
	     .out.logits = LOGITS_LAST,
	     .explain.attribution = ATTRIBUTION_FROZEN},
	};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		bool refused = true;
		for (int64_t calls = 0; refused; calls++) {
			plan *p = NULL;
			allocations_fail(calls, true);
			status s = model_plan(&p, m, &forms[i], NULL, NULL, NULL);
			refused = allocations_refused();
			allocations_limit(-1);
			assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
			plan_free(p);
		}
	}
	model_free(m);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(models_that_once_failed_late_can_run),
	    cmocka_unit_test(a_model_that_needs_much_more_than_its_weights_is_refused_with_the_size),
	    cmocka_unit_test(a_graph_without_memory_fails_with_a_status),
	};
	return cmocka_run_group_tests_name("model_trial", tests, NULL, NULL);
}
