/* A running plan allocates no memory: neither in a training step nor for a token. The matrix library's own buffers,
 * which it allocates for each product, are not counted. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/model/fixture.h"
#include "tests/unit/support/allocations.h"

enum { SLOTS = 4 };

#define GPT2_CONFIG "{\"n_embd\": 16, \"n_head\": 2, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 40}"

/* Inputs that every op accepts: tokens, positions and lengths of 1, slots in order. */
static void fill(plan *p)
{
	const graph *g = plan_graph(p);
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		if (info->role != ROLE_INPUT)
			continue;
		int64_t count = shape_count(info->shape);
		int32_t *data = calloc((size_t)count, sizeof *data);
		for (int64_t i = 0; i < count; i++)
			data[i] = strcmp(info->name, "slot") == 0   ? (int32_t)i
			          : strcmp(info->name, "last") == 0 ? 0
			                                            : 1;
		assert_int_equal(plan_write(p, v, data), STATUS_OK);
		free(data);
	}
}

static void run_counted(const char *architecture_name, const char *config, const forward_spec *spec)
{
	backend *b;
	assert_int_equal(cpu_open(&b, 2, NULL), STATUS_OK);
	json_t *json = fixture_json(config);
	model *m;
	assert_int_equal(model_create(&m, architecture_find(architecture_name), json, 1, b, NULL), STATUS_OK);
	json_decref(json);
	float *pool = calloc((size_t)(SLOTS * model_state_floats(m)), sizeof *pool);
	plan *p;
	assert_int_equal(model_plan(&p, m, spec, NULL, forward_recurrent(spec) ? pool : NULL, NULL), STATUS_OK);
	fill(p);
	assert_int_equal(plan_run(p), STATUS_OK); /* the first run creates threads and their memory */
	int64_t before = allocations_own();
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(allocations_own(), before);
	plan_free(p);
	free(pool);
	model_free(m);
	backend_close(b);
}

static void both(const forward_spec *spec)
{
	run_counted("additive", SMALL_CONFIG, spec);
	run_counted("gpt2", GPT2_CONFIG, spec);
}

static void the_counter_counts_an_allocation(void **state)
{
	(void)state;
	int64_t before = allocations_own();
	void *volatile one = malloc(1); /* volatile, so that the compiler keeps it */
	free(one);
	assert_int_equal(allocations_own(), before + 1);
}

static void a_training_step_allocates_nothing(void **state)
{
	(void)state;
	forward_spec spec = {
	    .batch = 2, .length = 40, .train.dropout = true, .train.loss = true, .train.backward = true};
	both(&spec);
	spec.train.recompute = true;
	both(&spec);
}

static void a_token_allocates_nothing(void **state)
{
	(void)state;
	forward_spec spec = {
	    .batch = SLOTS, .length = 1, .phase = PHASE_STEP, .slots = SLOTS, .out.logits = LOGITS_LAST};
	both(&spec);
}

static void a_piece_of_a_prompt_allocates_nothing(void **state)
{
	(void)state;
	forward_spec spec = {.batch = 1, .length = 30, .phase = PHASE_STEP, .slots = SLOTS, .out.logits = LOGITS_LAST};
	both(&spec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_counter_counts_an_allocation),
	    cmocka_unit_test(a_training_step_allocates_nothing),
	    cmocka_unit_test(a_token_allocates_nothing),
	    cmocka_unit_test(a_piece_of_a_prompt_allocates_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
