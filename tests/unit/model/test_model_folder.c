/* Models on disk: files that are written, read and refused. */
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
#include "engine/tensor/panel.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/folder.h"

static char folder[FOLDER_BYTES];
static char config_path[sizeof folder + 32], weights_path[sizeof folder + 32];
static backend *device;

static int setup(void **state)
{
	(void)state;
	folder_new(folder);
	snprintf(config_path, sizeof config_path, "%s/config.json", folder);
	snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", folder);
	device = fixture_backend();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	backend_close(device);
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

static void write_text(const char *path, const char *text)
{
	assert_int_equal(file_write(path, &(file_part){text, strlen(text)}, 1, NULL), STATUS_OK);
}

/* Save a model to the folder and return it. */
static model *saved_model(void)
{
	model *m = fixture_model(SMALL_CONFIG, device);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	return m;
}

/* --- folders ------------------------------------------------------------------------------- */

static void a_saved_model_opens_bit_for_bit(void **state)
{
	(void)state;
	model *saved = saved_model(), *opened;
	assert_int_equal(model_check(folder, NULL), STATUS_OK);
	assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, NULL), STATUS_OK);
	fixture_same_weights(saved, opened);
	json_t *a = architecture_additive.config_write(model_config(saved));
	json_t *b = architecture_additive.config_write(model_config(opened));
	assert_true(json_equal(a, b));
	assert_ptr_equal(model_architecture(opened), &architecture_additive);
	assert_ptr_equal(model_backend(opened), device);
	assert_int_equal(model_dimensions(opened)->outputs, 37);
	json_decref(a);
	json_decref(b);
	model_free(saved);
	model_free(opened);
}

static void a_saved_model_keeps_its_mask_token(void **state)
{
	(void)state;
	model *m =
	    fixture_model("{\"vocab_size\": 9, \"hidden_size\": 8, \"n_layer\": 1, \"mask_token_id\": 5}", device);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	assert_int_equal(model_open(&m, folder, DTYPE_F32, device, NULL), STATUS_OK);
	assert_int_equal(model_dimensions(m)->mask, 5);
	model_free(m);
}

static void a_saved_model_has_the_tied_matrix_under_both_names(void **state)
{
	(void)state;
	model *m = saved_model();
	safetensors *st;
	assert_int_equal(safetensors_open(&st, weights_path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), model_tensor_count(m) + 1);
	const safetensors_entry *a = safetensors_find(st, "word_embedding.weight");
	const safetensors_entry *b = safetensors_find(st, "proj_logits.weight");
	assert_non_null(a);
	assert_non_null(b);
	assert_memory_equal(a->data, b->data, a->bytes);
	assert_string_equal(safetensors_metadata(st, "format"), "pt");
	safetensors_close(st);
	model_free(m);
}

static void a_configuration_without_a_model_type_is_additive(void **state)
{
	(void)state;
	model *saved = saved_model(), *opened;
	write_text(config_path, SMALL_CONFIG);
	assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, NULL), STATUS_OK);
	fixture_same_weights(saved, opened);
	model_free(saved);
	model_free(opened);
}

static void saving_over_a_model_replaces_it(void **state)
{
	(void)state;
	model *first = saved_model(), *second = fixture_created(SMALL_CONFIG, 99, device), *opened;
	assert_int_equal(model_save(second, folder, NULL), STATUS_OK);
	assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, NULL), STATUS_OK);
	fixture_same_weights(second, opened);
	model_free(first);
	model_free(second);
	model_free(opened);
}

static void saving_into_a_missing_folder_fails(void **state)
{
	(void)state;
	model *m = fixture_created(SMALL_CONFIG, 1, device);
	error err = ERROR_INIT;
	assert_int_equal(model_save(m, "/tmp/no/such/folder", &err), STATUS_NOT_FOUND);
	assert_true(err.message[0]);
	model_free(m);
}

/* --- packed weights ---------------------------------------------------------------------------- */

static void assert_packed(const model *m, const model *plain, int i)
{
	static const double tolerances[DTYPE_COUNT] = {[DTYPE_PANEL_BF16] = 1.0 / 256, [DTYPE_PANEL_INT8] = 1.0 / 254};
	const parameter_spec *p = model_parameter(m, i);
	const float *want = model_arena(plain) + model_parameter_offset(plain, i);
	const float *got = model_arena(m) + model_parameter_offset(m, i);
	int64_t k = shape_last(p->shape);
	if (!p->matrix) {
		assert_memory_equal(got, want, (size_t)shape_count(p->shape) * sizeof *got);
		return;
	}
	for (int64_t row = 0; row < shape_rows(p->shape); row++, want += k) {
		float values[60], largest = 0;
		panel_row(model_weight_dtype(m), got, k, row, values);
		for (int64_t j = 0; j < k; j++)
			largest = fmaxf(largest, fabsf(want[j]));
		for (int64_t j = 0; j < k; j++)
			assert_true(fabs((double)values[j] - (double)want[j]) <=
			            tolerances[model_weight_dtype(m)] * (double)largest * 1.001);
	}
}

static void only_matrices_are_packed_for_serving(void **state)
{
	(void)state;
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	model *plain = saved_model();
	for (int t = 0; t < 3; t++) {
		model *m;
		int matrices = 0;
		int64_t end = 0;
		assert_int_equal(model_open(&m, folder, types[t], device, NULL), STATUS_OK);
		assert_int_equal(model_weight_dtype(m), types[t]);
		assert_int_equal(model_scalar_count(m), model_scalar_count(plain));
		for (int i = 0; i < model_tensor_count(m); i++) {
			const parameter_spec *p = model_parameter(m, i);
			size_t bytes;
			assert_true(shape_bytes(p->shape, p->matrix ? types[t] : DTYPE_F32, &bytes));
			assert_int_equal(model_parameter_offset(m, i), end);
			end += (int64_t)((bytes + 63) / 64 * 16);
			assert_packed(m, plain, i);
			matrices += p->matrix;
		}
		assert_int_equal(model_arena_floats(m), end);
		assert_int_equal(matrices, 1 + 6 * 3);
		model_free(m);
	}
	assert_int_equal(model_weight_dtype(plain), DTYPE_F32);
	model_free(plain);
}

static void packed_weights_can_only_be_used_for_inference(void **state)
{
	(void)state;
	const forward_spec training = {.batch = 1, .length = 2, .train.loss = true, .train.backward = true},
	                   evaluation = {.batch = 1, .length = 2, .train.loss = true, .out.logits = LOGITS_ALL};
	model *m;
	plan *p;
	error err = ERROR_INIT;
	model_free(saved_model());
	assert_int_equal(model_open(&m, folder, DTYPE_PANEL_BF16, device, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, &err), STATUS_UNSUPPORTED);
	assert_true(err.message[0]);
	assert_int_equal(model_check(folder, NULL), STATUS_OK);
	err = (error)ERROR_INIT;
	assert_int_equal(model_plan(&p, m, &training, NULL, NULL, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.message, "gradients"));
	assert_null(p);
	plan_free(fixture_plan(m, &evaluation, NULL, NULL));
	model_free(m);
}

/* --- damaged folders ----------------------------------------------------------------------------- */

/* Opening and checking must return the same error. */
static void assert_refused(status want, const char *param)
{
	error opening = ERROR_INIT, checking = ERROR_INIT;
	model *m = (model *)&opening;
	status s = model_open(&m, folder, DTYPE_F32, device, &opening);
	if (s != want)
		print_error("status %d: %s\n", (int)s, error_message(&opening));
	assert_int_equal(s, want);
	assert_null(m);
	assert_string_equal(opening.param, param);
	assert_true(opening.message[0]);
	assert_null(strstr(opening.message, folder)); /* messages do not show absolute paths */
	assert_int_equal(model_check(folder, &checking), want);
	assert_string_equal(checking.message, opening.message);
}

static void missing_or_broken_files_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *config, *param;
	} bad[] = {
	    {"", ""},
	    {"{", ""},
	    {"[1]", ""},
	    {"{\"n_layer\": 1, \"n_layer\": 2}", ""},
	    {"{\"model_type\": \"gpt5\"}", "model_type"},
	    {"{\"model_type\": 5}", "model_type"},
	    {"{\"hidden_size\": -1}", "hidden_size"},
	    {"{\"layers\": 1}", "layers"},
	};
	model_free(saved_model());
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		write_text(config_path, bad[i].config);
		assert_refused(STATUS_INVALID, bad[i].param);
	}
	unlink(config_path);
	assert_refused(STATUS_NOT_FOUND, "");
	write_text(config_path, SMALL_CONFIG);
	write_text(weights_path, "not a safetensors file");
	assert_refused(STATUS_CORRUPT, "");
	unlink(weights_path);
	assert_refused(STATUS_NOT_FOUND, "");
}

static void a_configuration_of_another_size_is_refused_before_allocating(void **state)
{
	(void)state;
	model_free(saved_model());
	write_text(config_path,
	           "{\"hidden_size\": 45, \"n_heads\": 3, \"n_layer\": 3, \"vocab_size\": 37, \"n_positions\": 40}");
	assert_refused(STATUS_INVALID, "word_embedding.weight");
	write_text(config_path,
	           "{\"hidden_size\": 15, \"n_heads\": 3, \"n_layer\": 4, \"vocab_size\": 37, \"n_positions\": 40}");
	assert_refused(STATUS_INVALID, "fastformer_model.decoders.3.attention.Wquery.weight");
	write_text(config_path,
	           "{\"hidden_size\": 15, \"n_heads\": 3, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 40}");
	assert_refused(STATUS_INVALID, "fastformer_model.decoders.2.attention.Wkeys.weight");
	/* the 60 GiB of weights do not exist */
	write_text(config_path, "{\"hidden_size\": 16384, \"n_layer\": 4, \"vocab_size\": 37, \"n_positions\": 40}");
	assert_refused(STATUS_INVALID, "word_embedding.weight");
}

/* A device that runs out of memory, or is lost after `uploads` uploads. */
typedef struct broken_backend {
	backend backend;
	int uploads;
	void *held;
} broken_backend;

static status allocate_nothing(backend *b, size_t bytes, void **out)
{
	(void)b, (void)bytes;
	*out = (void *)b; /* the result of a failed call must not be used */
	return STATUS_NOMEM;
}

static status allocate_held(backend *b, size_t bytes, void **out)
{
	((broken_backend *)b)->held = *out = calloc(1, bytes);
	return STATUS_OK;
}

static void release_held(backend *b, void *data)
{
	broken_backend *broken = (broken_backend *)b;
	assert_true(!data || data == broken->held);
	if (data)
		broken->held = NULL;
	free(data);
}

static status upload_some(backend *b, void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	return ((broken_backend *)b)->uploads-- > 0 ? STATUS_OK : STATUS_DEVICE;
}

static void a_failing_device_leaves_no_model_and_no_memory(void **state)
{
	(void)state;
	model_free(saved_model());
	for (int uploads = -1; uploads < 40; uploads += 10) {
		broken_backend broken = {
		    .backend = {.name = "broken",
		                .allocate = uploads < 0 ? allocate_nothing : allocate_held,
		                .release = release_held,
		                .upload = upload_some},
		    .uploads = uploads,
		};
		status want = uploads < 0 ? STATUS_NOMEM : STATUS_DEVICE;
		error err = ERROR_INIT;
		model *m = (model *)&err;
		assert_int_equal(model_open(&m, folder, DTYPE_F32, &broken.backend, &err), want);
		assert_null(m);
		assert_non_null(strstr(err.message, "broken"));
		json_t *json = fixture_json(SMALL_CONFIG);
		broken.uploads = uploads;
		m = (model *)&err;
		assert_int_equal(model_create(&m, &architecture_additive, json, 1, &broken.backend, NULL), want);
		assert_null(m);
		assert_null(broken.held);
		json_decref(json);
	}
}

/* The tensors of the saved file as items to be written again, changed. */
typedef struct edit {
	safetensors *st;
	safetensors_item items[64];
	int count;
} edit;

static edit edit_begin(void)
{
	edit e = {0};
	model_free(saved_model());
	assert_int_equal(safetensors_open(&e.st, weights_path, NULL), STATUS_OK);
	e.count = safetensors_count(e.st);
	assert_true(e.count < 64);
	for (int i = 0; i < e.count; i++) {
		const safetensors_entry *from = safetensors_at(e.st, i);
		e.items[i] =
		    (safetensors_item){.name = from->name, .type = from->type, .rank = from->rank, .data = from->data};
		memcpy(e.items[i].dim, from->dim, sizeof from->dim);
	}
	return e;
}

static safetensors_item *edit_find(edit *e, const char *name)
{
	for (int i = 0; i < e->count; i++)
		if (strcmp(e->items[i].name, name) == 0)
			return &e->items[i];
	fail_msg("no tensor %s", name);
	return NULL;
}

static void edit_remove(edit *e, const char *name)
{
	safetensors_item *item = edit_find(e, name);
	*item = e->items[--e->count];
}

static void edit_end(edit *e)
{
	assert_int_equal(safetensors_write(weights_path, e->items, e->count, NULL, NULL), STATUS_OK);
	safetensors_close(e->st);
}

static void a_missing_tensor_is_named(void **state)
{
	(void)state;
	edit e = edit_begin();
	edit_remove(&e, "fastformer_model.decoders.1.attention.key_attn");
	edit_end(&e);
	assert_refused(STATUS_INVALID, "fastformer_model.decoders.1.attention.key_attn");
}

static void an_extra_tensor_is_named(void **state)
{
	(void)state;
	edit e = edit_begin();
	e.items[e.count] = e.items[0];
	e.items[e.count++].name = "fastformer_model.decoders.9.extra";
	edit_end(&e);
	assert_refused(STATUS_INVALID, "fastformer_model.decoders.9.extra");
}

static void a_misshapen_tensor_is_named(void **state)
{
	(void)state;
	edit e = edit_begin();
	safetensors_item *item = edit_find(&e, "fastformer_model.decoders.0.boom.weight");
	item->dim[0] = 15;
	item->dim[1] = 60;
	edit_end(&e);
	assert_refused(STATUS_INVALID, "fastformer_model.decoders.0.boom.weight");
	e = edit_begin();
	edit_find(&e, "proj_logits.bias")->rank = 8;
	for (int i = 1; i < 8; i++)
		edit_find(&e, "proj_logits.bias")->dim[i] = 1;
	edit_end(&e);
	assert_refused(STATUS_INVALID, "proj_logits.bias");
}

static void tied_names_must_agree(void **state)
{
	(void)state;
	float other[37 * 15];
	edit e = edit_begin();
	safetensors_item *item = edit_find(&e, "proj_logits.weight");
	memcpy(other, item->data, sizeof other);
	other[36 * 15 + 14] += 1;
	item->data = other;
	edit_end(&e);
	assert_refused(STATUS_INVALID, "proj_logits.weight");
	e = edit_begin();
	edit_find(&e, "proj_logits.weight")->dim[0] = 36;
	edit_end(&e);
	assert_refused(STATUS_INVALID, "proj_logits.weight");
}

static void either_of_the_tied_names_is_enough(void **state)
{
	(void)state;
	static const char *const names[] = {"proj_logits.weight", "word_embedding.weight"};
	model *want = fixture_model(SMALL_CONFIG, device);
	for (int i = 0; i < 2; i++) {
		model *opened;
		edit e = edit_begin();
		edit_remove(&e, names[i]);
		edit_end(&e);
		assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, NULL), STATUS_OK);
		fixture_same_weights(want, opened);
		model_free(opened);
	}
	edit e = edit_begin();
	edit_remove(&e, names[0]);
	edit_remove(&e, names[1]);
	edit_end(&e);
	assert_refused(STATUS_INVALID, "word_embedding.weight");
	model_free(want);
}

static void weights_of_other_types_are_converted(void **state)
{
	(void)state;
	double wide[37];
	uint16_t brain[15];
	model *opened;
	edit e = edit_begin();
	safetensors_item *bias = edit_find(&e, "proj_logits.bias");
	for (int i = 0; i < 37; i++)
		wide[i] = (double)((const float *)bias->data)[i];
	bias->type = ST_F64;
	bias->data = wide;
	safetensors_item *norm = edit_find(&e, "fastformer_model.LayerNorm.bias");
	for (int i = 0; i < 15; i++)
		brain[i] = (uint16_t)(0x3f80 + i);
	norm->type = ST_BF16;
	norm->data = brain;
	edit_end(&e);
	model *want = fixture_model(SMALL_CONFIG, device);
	assert_int_equal(model_open(&opened, folder, DTYPE_F32, device, NULL), STATUS_OK);
	float *got = fixture_weights(opened), *before = fixture_weights(want);
	assert_memory_equal(got + model_parameter_offset(opened, 1), before + model_parameter_offset(want, 1),
	                    37 * sizeof(float));
	assert_true(got[model_parameter_offset(opened, 4)] == 1 &&
	            got[model_parameter_offset(opened, 4) + 1] == 0x1.02p0f);
	free(got);
	free(before);
	model_free(want);
	model_free(opened);
}

/* For every width, also negative numbers; numbers that fit are accepted. */
static void weights_that_are_not_finite_or_overflow_are_refused_by_tensor_and_element(void **state)
{
	(void)state;
	static const struct {
		safetensors_type type;
		double f64;
		float f32;
		uint16_t u16;
		const char *says; /* NULL: it fits */
	} cases[] = {
	    {ST_F32, 0, NAN, 0, "nan"},      {ST_F32, 0, -INFINITY, 0, "-inf"},  {ST_F64, 1e300, 0, 0, "inf"},
	    {ST_F64, NAN, 0, 0, "nan"},      {ST_F16, 0, 0, 0x7c00, "inf"},      {ST_BF16, 0, 0, 0x7f80, "inf"},
	    {ST_BF16, 0, 0, 0xff7f, "e+38"}, {ST_F32, 0, 3e38f, 0, "too large"}, {ST_F32, 0, 1e18f, 0, NULL},
	    {ST_F64, -1e17, 0, 0, NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		double f64[15] = {0};
		float f32[15] = {0};
		uint16_t u16[15] = {0};
		edit e = edit_begin();
		safetensors_item *norm = edit_find(&e, "fastformer_model.LayerNorm.bias");
		norm->type = cases[i].type;
		norm->data = norm->type == ST_F64 ? (void *)f64 : norm->type == ST_F32 ? (void *)f32 : u16;
		f64[11] = cases[i].f64;
		f32[11] = cases[i].f32;
		u16[11] = cases[i].u16;
		edit_end(&e);
		error err = ERROR_INIT;
		if (!cases[i].says) {
			assert_int_equal(model_check(folder, &err), STATUS_OK);
			continue;
		}
		assert_refused(STATUS_INVALID, "fastformer_model.LayerNorm.bias");
		model_check(folder, &err);
		assert_non_null(strstr(err.message, "element 11 "));
		assert_non_null(strstr(err.message, cases[i].says));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(weights_that_are_not_finite_or_overflow_are_refused_by_tensor_and_element),
	    cmocka_unit_test(a_saved_model_opens_bit_for_bit),
	    cmocka_unit_test(a_saved_model_keeps_its_mask_token),
	    cmocka_unit_test(a_saved_model_has_the_tied_matrix_under_both_names),
	    cmocka_unit_test(a_configuration_without_a_model_type_is_additive),
	    cmocka_unit_test(saving_over_a_model_replaces_it),
	    cmocka_unit_test(only_matrices_are_packed_for_serving),
	    cmocka_unit_test(packed_weights_can_only_be_used_for_inference),
	    cmocka_unit_test(saving_into_a_missing_folder_fails),
	    cmocka_unit_test(missing_or_broken_files_are_refused),
	    cmocka_unit_test(a_configuration_of_another_size_is_refused_before_allocating),
	    cmocka_unit_test(a_failing_device_leaves_no_model_and_no_memory),
	    cmocka_unit_test(a_missing_tensor_is_named),
	    cmocka_unit_test(an_extra_tensor_is_named),
	    cmocka_unit_test(a_misshapen_tensor_is_named),
	    cmocka_unit_test(tied_names_must_agree),
	    cmocka_unit_test(either_of_the_tied_names_is_enough),
	    cmocka_unit_test(weights_of_other_types_are_converted),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
