/* fixture.h - small models for the tests of this folder. */
#ifndef TESTS_UNIT_MODEL_FIXTURE_H
#define TESTS_UNIT_MODEL_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/model/model.h"
#include "tests/unit/support/random.h"

/* Odd windows, a head size of 5, a global layer. */
#define SMALL_CONFIG                                                                                                   \
	"{\"hidden_size\": 15, \"n_heads\": 3, \"n_layer\": 3, \"vocab_size\": 37, \"n_positions\": 40,"               \
	" \"window_sizes\": [3, 6, 40], \"hidden_dropout_prob\": 0.25}"

static inline json_t *fixture_json(const char *text)
{
	json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
	assert_non_null(json);
	return json;
}

/* Return a complete configuration of this many layers, for 40 token ids. */
static inline json_t *fixture_complete(const architecture *a, int64_t layers)
{
	json_t *json = json_object();
	model_size size = {.hidden = 32,
	                   .heads = 2,
	                   .layers = layers,
	                   .inputs = 40,
	                   .positions = 16,
	                   .length = 16,
	                   .classes = 2,
	                   .padding = 1,
	                   .end = 2,
	                   .source = 16};
	model_size_complete(&size);
	assert_true(a->complete(json, &size));
	return json;
}

/* Read a configuration and return the status; *config must be freed. */
static inline status fixture_config(const architecture *a, const char *text, void **config, error *err)
{
	json_t *json = fixture_json(text);
	*config = calloc(1, a->config_bytes);
	assert_non_null(*config);
	status s = architecture_read(a, *config, json, err);
	json_decref(json);
	return s;
}

/* Check that a configuration is written with the keys and values of the text, and reads back unchanged. */
static inline void fixture_check_written(const architecture *a, const char *text)
{
	void *config, *again;
	const char *key;
	assert_int_equal(fixture_config(a, text, &config, NULL), STATUS_OK);
	json_t *written = a->config_write(config), *given = fixture_json(text), *want;
	json_object_foreach(given, key, want) assert_true(json_equal(json_object_get(written, key), want));
	char *whole = json_dumps(written, 0);
	assert_int_equal(fixture_config(a, whole, &again, NULL), STATUS_OK);
	assert_memory_equal(config, again, a->config_bytes);
	free(whole);
	json_decref(written);
	json_decref(given);
	free(config);
	free(again);
}

/* Check that a configuration is refused with the name of the key. */
static inline void fixture_check_refused(const architecture *a, const char *text, const char *key)
{
	void *config;
	error err = ERROR_INIT;
	assert_int_equal(fixture_config(a, text, &config, &err), STATUS_INVALID);
	assert_string_equal(err.param, key);
	free(config);
}

static inline backend *fixture_backend(void)
{
	backend *b;
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	return b;
}

static inline model *fixture_created_as(const architecture *a, const char *config, uint64_t seed, backend *b)
{
	json_t *json = fixture_json(config);
	model *m;
	assert_int_equal(model_create(&m, a, json, seed, b, NULL), STATUS_OK);
	json_decref(json);
	return m;
}

/* A newly initialized model. */
static inline model *fixture_created(const char *config, uint64_t seed, backend *b)
{
	return fixture_created_as(&architecture_additive, config, seed, b);
}

/* A model with random weights, so that no term of it vanishes. */
static inline model *fixture_model_as(const architecture *a, const char *config, backend *b)
{
	model *m = fixture_created_as(a, config, 1, b);
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		int64_t count = shape_count(p->shape);
		float *x = calloc((size_t)count, sizeof *x);
		assert_non_null(x);
		bool scores = strstr(p->name, "query_attn") || strstr(p->name, "key_attn");
		random_normal(x, count, 100 + (uint64_t)i, scores ? 1.5 : 0.3);
		for (int64_t k = 0; k < count && p->init == INIT_ONE; k++)
			x[k] += 1;
		assert_int_equal(
		    b->upload(b, model_arena(m) + model_parameter_offset(m, i), x, (size_t)count * sizeof *x),
		    STATUS_OK);
		free(x);
	}
	return m;
}

static inline model *fixture_model(const char *config, backend *b)
{
	return fixture_model_as(&architecture_additive, config, b);
}

/* A host copy of the arena; the caller frees it. */
static inline float *fixture_weights(const model *m)
{
	size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	float *x = malloc(bytes);
	assert_non_null(x);
	assert_int_equal(model_backend(m)->download(model_backend(m), x, model_arena(m), bytes), STATUS_OK);
	return x;
}

static inline void fixture_same_weights(const model *a, const model *b)
{
	assert_int_equal(model_arena_floats(a), model_arena_floats(b));
	float *x = fixture_weights(a), *y = fixture_weights(b);
	assert_memory_equal(x, y, (size_t)model_arena_floats(a) * sizeof(float));
	free(x);
	free(y);
}

static inline void fixture_write(plan *p, const char *name, const void *data)
{
	assert_int_equal(plan_write(p, graph_find(plan_graph(p), name), data), STATUS_OK);
}

static inline void fixture_read(plan *p, const char *name, void *data)
{
	assert_int_equal(plan_read(p, graph_find(plan_graph(p), name), data), STATUS_OK);
}

/* The graph of a configuration; the caller frees it. */
static inline graph *fixture_graph(const architecture *a, const void *config, const forward_spec *spec)
{
	parameter_list parameters = {0};
	state_list states = {0};
	graph *g = graph_new();
	assert_non_null(g);
	a->parameters(config, &parameters);
	architecture_states(a, config, &states);
	for (int i = 0; i < parameters.count; i++)
		graph_parameter(g, parameters.items[i].name, parameters.items[i].shape);
	builder b = builder_begin(g, spec, &states);
	a->forward(config, &b);
	assert_int_equal(graph_status(g, NULL), STATUS_OK);
	parameter_list_free(&parameters);
	state_list_free(&states);
	return g;
}

/* Floats of a session's state. */
static inline int64_t fixture_state_floats(const architecture *a, const void *config)
{
	state_list states = {0};
	architecture_states(a, config, &states);
	assert_int_equal(states.status, STATUS_OK);
	int64_t floats = state_list_slot(&states);
	state_list_free(&states);
	return floats;
}

/* Compile the plan of a spec, or fail the test. */
static inline plan *fixture_plan(const model *m, const forward_spec *spec, float *gradients, float *pool)
{
	plan *p;
	error err = ERROR_INIT;
	status s = model_plan(&p, m, spec, gradients, pool, &err);
	if (s != STATUS_OK)
		print_error("%s\n", error_message(&err));
	assert_int_equal(s, STATUS_OK);
	return p;
}

#endif
