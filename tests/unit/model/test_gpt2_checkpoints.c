/* GPT-2 checkpoints: names and shapes of parameters; the files that are written, read and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/model/safetensors.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/folder.h"

enum { V = 29, D = 12, LAYERS = 2, POSITIONS = 10 };
#define CONFIG                                                                                                         \
	"{\"model_type\": \"gpt2\", \"vocab_size\": 29, \"n_positions\": 10, \"n_embd\": 12, \"n_layer\": 2,"          \
	" \"n_head\": 3, \"n_inner\": 20, \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.125, \"attn_pdrop\": 0.5}"

static backend *device;
static char folder[FOLDER_BYTES];
static char weights_path[sizeof folder + 32];

static int setup(void **state)
{
	(void)state;
	device = fixture_backend();
	folder_new(folder);
	snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	backend_close(device);
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

static model *random_model(void)
{
	return fixture_model_as(&architecture_gpt2, CONFIG, device);
}

/* --- parameters -------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	shape stored; /* shape in the checkpoint */
	parameter_init init;
	bool matrix, residual;
} parameters[] = {
    {"transformer.wte.weight", {2, {V, D}}, INIT_NORMAL, true, false},
    {"transformer.wpe.weight", {2, {POSITIONS, D}}, INIT_NORMAL, false, false},
    {"transformer.h.1.ln_1.weight", {1, {D}}, INIT_ONE, false, false},
    {"transformer.h.1.ln_1.bias", {1, {D}}, INIT_ZERO, false, false},
    {"transformer.h.1.attn.c_attn.weight", {2, {D, 3 * D}}, INIT_NORMAL, true, false},
    {"transformer.h.1.attn.c_attn.bias", {1, {3 * D}}, INIT_ZERO, false, false},
    {"transformer.h.1.attn.c_proj.weight", {2, {D, D}}, INIT_NORMAL, true, true},
    {"transformer.h.1.attn.c_proj.bias", {1, {D}}, INIT_ZERO, false, false},
    {"transformer.h.1.ln_2.weight", {1, {D}}, INIT_ONE, false, false},
    {"transformer.h.1.ln_2.bias", {1, {D}}, INIT_ZERO, false, false},
    {"transformer.h.1.mlp.c_fc.weight", {2, {D, 20}}, INIT_NORMAL, true, false},
    {"transformer.h.1.mlp.c_fc.bias", {1, {20}}, INIT_ZERO, false, false},
    {"transformer.h.1.mlp.c_proj.weight", {2, {20, D}}, INIT_NORMAL, true, true},
    {"transformer.h.1.mlp.c_proj.bias", {1, {D}}, INIT_ZERO, false, false},
    {"transformer.ln_f.weight", {1, {D}}, INIT_ONE, false, false},
    {"transformer.ln_f.bias", {1, {D}}, INIT_ZERO, false, false},
};
enum { PARAMETER_KINDS = sizeof parameters / sizeof parameters[0], OUTSIDE = 4, PER_LAYER = 12 };

static void parameters_have_the_names_and_shapes_of_the_checkpoint(void **state)
{
	(void)state;
	model *m = random_model();
	assert_int_equal(model_tensor_count(m), OUTSIDE + LAYERS * PER_LAYER);
	assert_int_equal(OUTSIDE + PER_LAYER, PARAMETER_KINDS);
	for (int k = 0; k < PARAMETER_KINDS; k++) {
		int found = 0;
		for (int i = 0; i < model_tensor_count(m); i++) {
			const parameter_spec *p = model_parameter(m, i);
			if (strcmp(p->name, parameters[k].name) != 0)
				continue;
			assert_true(shape_equal(parameter_stored_shape(p), parameters[k].stored));
			assert_int_equal(p->init, parameters[k].init);
			assert_int_equal(p->matrix, parameters[k].matrix);
			if (p->init == INIT_NORMAL)
				assert_true(fabsf(p->std - (parameters[k].residual ? 0.01f : 0.02f)) <= 1e-8f);
			found++;
		}
		if (found != 1)
			print_error("%s is there %d times\n", parameters[k].name, found);
		assert_int_equal(found, 1);
	}
	model_free(m);
}

static void new_weights_have_the_spread_of_their_parameters(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_gpt2,
	                              "{\"n_embd\": 64, \"n_head\": 2, \"n_layer\": 8, \"vocab_size\": 99,"
	                              " \"n_positions\": 31, \"initializer_range\": 0.5}",
	                              7, device);
	float *all = fixture_weights(m);
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const float *x = all + model_parameter_offset(m, i);
		int64_t n = shape_count(p->shape);
		double squares = 0, variance = strstr(p->name, "c_proj") ? 0.25 / 16 : 0.25;
		for (int64_t k = 0; k < n; k++) {
			squares += (double)x[k] * (double)x[k];
			if (p->init != INIT_NORMAL)
				assert_true(x[k] == (p->init == INIT_ONE ? 1.0f : 0.0f));
		}
		if (p->init == INIT_NORMAL) /* within five standard errors */
			assert_true(fabs(squares / (double)n - variance) <= 5 * variance * sqrt(2 / (double)n));
	}
	free(all);
	model_free(m);
}

/* --- checkpoints -------------------------------------------------------------------------------- */

/* The tensors of a saved model as items to be written again, changed. */
typedef struct edit {
	safetensors *st;
	safetensors_item items[64];
	int count;
} edit;

static edit edit_begin(const model *m)
{
	edit e = {0};
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	assert_int_equal(safetensors_open(&e.st, weights_path, NULL), STATUS_OK);
	e.count = safetensors_count(e.st);
	assert_true(e.count < 60);
	for (int i = 0; i < e.count; i++) {
		const safetensors_entry *from = safetensors_at(e.st, i);
		e.items[i] =
		    (safetensors_item){.name = from->name, .type = from->type, .rank = from->rank, .data = from->data};
		memcpy(e.items[i].dim, from->dim, sizeof from->dim);
	}
	return e;
}

static void edit_end(edit *e)
{
	assert_int_equal(safetensors_write(weights_path, e->items, e->count, NULL, NULL), STATUS_OK);
	safetensors_close(e->st);
}

static safetensors_item *edit_add(edit *e, const char *name, int64_t rows, int64_t columns, const float *data)
{
	e->items[e->count] =
	    (safetensors_item){.name = name, .type = ST_F32, .rank = 2, .dim = {rows, columns}, .data = data};
	return &e->items[e->count++];
}

static void assert_opens_as(const model *want)
{
	model *opened;
	error err = ERROR_INIT;
	status s = model_open(&opened, folder, DTYPE_F32, device, &err);
	if (s != STATUS_OK)
		print_error("%s\n", error_message(&err));
	assert_int_equal(s, STATUS_OK);
	fixture_same_weights(opened, want);
	model_free(opened);
}

static void assert_refused(const char *param)
{
	model *opened;
	error err = ERROR_INIT;
	assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, &err), STATUS_INVALID);
	assert_string_equal(err.param, param);
	assert_null(opened);
}

static void a_saved_model_has_the_ecosystems_layout_and_opens_bit_for_bit(void **state)
{
	(void)state;
	model *m = random_model();
	safetensors *st;
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	assert_opens_as(m);
	assert_int_equal(safetensors_open(&st, weights_path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), model_tensor_count(m)); /* without lm_head */
	float *all = fixture_weights(m);
	for (int k = 0; k < PARAMETER_KINDS; k++) {
		const safetensors_entry *e = safetensors_find(st, parameters[k].name);
		assert_non_null(e);
		assert_int_equal(e->rank, parameters[k].stored.rank);
		for (int i = 0; i < e->rank; i++)
			assert_int_equal(e->dim[i], parameters[k].stored.dim[i]);
	}
	/* The file has y = x W + b, the model x Wᵀ + b. */
	for (int i = 0; i < model_tensor_count(m); i++) {
		if (strcmp(model_parameter(m, i)->name, "transformer.h.1.mlp.c_fc.weight") != 0)
			continue;
		const float *here = all + model_parameter_offset(m, i);
		const float *stored_matrix =
		    (const void *)safetensors_find(st, "transformer.h.1.mlp.c_fc.weight")->data;
		for (int in = 0; in < D; in++)
			for (int out = 0; out < 20; out++)
				assert_true(stored_matrix[in * 20 + out] == here[out * D + in]);
	}
	free(all);
	safetensors_close(st);
	model_free(m);
}

static void checkpoints_of_the_first_release_open(void **state)
{
	(void)state;
	static const float mask[4] = {1, 0, 1, 1};
	model *m = random_model();
	edit e = edit_begin(m);
	for (int i = 0; i < e.count; i++)
		e.items[i].name += strlen("transformer.");
	edit_add(&e, "h.0.attn.bias", 2, 2, mask);
	edit_add(&e, "h.1.attn.masked_bias", 1, 1, mask)->rank = 0;
	edit_end(&e);
	assert_opens_as(m);
	model_free(m);
}

static void a_duplicate_tensor_is_refused(void **state)
{
	(void)state;
	model *m = random_model();
	edit e = edit_begin(m);
	const safetensors_entry *places = safetensors_find(e.st, "transformer.wpe.weight");
	edit_add(&e, "wpe.weight", POSITIONS, D, (const float *)(const void *)places->data);
	edit_end(&e);
	assert_refused("wpe.weight");
	model_free(m);
}

static void a_separate_output_layer_must_equal_the_embedding(void **state)
{
	(void)state;
	float head[V * D];
	model *m = random_model();
	edit e = edit_begin(m);
	memcpy(head, safetensors_find(e.st, "transformer.wte.weight")->data, sizeof head);
	edit_add(&e, "lm_head.weight", V, D, head);
	edit_end(&e);
	assert_opens_as(m);
	e = edit_begin(m);
	head[V * D - 1] += 1;
	edit_add(&e, "lm_head.weight", V, D, head);
	edit_end(&e);
	assert_refused("lm_head.weight");
	model_free(m);
}

static void a_transposed_matrix_is_refused(void **state)
{
	(void)state;
	model *m = random_model();
	edit e = edit_begin(m);
	for (int i = 0; i < e.count; i++)
		if (strcmp(e.items[i].name, "transformer.h.0.attn.c_attn.weight") == 0) {
			e.items[i].dim[0] = 3 * D;
			e.items[i].dim[1] = D;
		}
	edit_end(&e);
	assert_refused("transformer.h.0.attn.c_attn.weight");
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(parameters_have_the_names_and_shapes_of_the_checkpoint),
	    cmocka_unit_test(new_weights_have_the_spread_of_their_parameters),
	    cmocka_unit_test(a_saved_model_has_the_ecosystems_layout_and_opens_bit_for_bit),
	    cmocka_unit_test(checkpoints_of_the_first_release_open),
	    cmocka_unit_test(a_duplicate_tensor_is_refused),
	    cmocka_unit_test(a_separate_output_layer_must_equal_the_embedding),
	    cmocka_unit_test(a_transposed_matrix_is_refused),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
