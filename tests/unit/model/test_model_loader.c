/* Loading in steps gives the same bits as loading in one call, and no wrong number if the file is damaged or changes
 * meanwhile, with one thread and with several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/manifest.h"
#include "engine/model/model_loader.h"
#include "engine/model/safetensors.h"
#include "engine/tensor/panel.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/folder.h"

/* Several chunks of 4 MiB; matrices of several pieces, whose rows do not fill their panels. */
#define LARGE_ADDITIVE                                                                                                 \
	"{\"hidden_size\": 390, \"n_heads\": 3, \"n_layer\": 1, \"vocab_size\": 2053, \"n_positions\": 40}"
#define LARGE_QUANTIZED "{\"hidden_size\": 512, \"n_layer\": 2, \"vocab_size\": 517, \"weight_bits\": 8}"
#define LARGE_GPT2 "{\"n_embd\": 390, \"n_head\": 2, \"n_layer\": 1, \"vocab_size\": 2053, \"n_positions\": 40}"

static const struct {
	const char *name, *config;
} kinds[] = {{"additive", LARGE_ADDITIVE}, {"gpt2", LARGE_GPT2}, {"trilinear", LARGE_QUANTIZED}};
enum { KINDS = sizeof kinds / sizeof *kinds, PLAIN_KINDS = KINDS - 1, BACKENDS = 2 };

static char folder[FOLDER_BYTES];
static char weights_path[sizeof folder + 32];
static backend *device;             /* one thread */
static backend *backends[BACKENDS]; /* and several */
static model *models[KINDS];        /* never changed */

static int setup(void **state)
{
	(void)state;
	folder_new(folder);
	snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", folder);
	device = backends[0] = fixture_backend();
	assert_int_equal(cpu_open(&backends[1], 5, NULL), STATUS_OK);
	for (int kind = 0; kind < KINDS; kind++)
		models[kind] = fixture_model_as(architecture_find(kinds[kind].name), kinds[kind].config, device);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int kind = 0; kind < KINDS; kind++)
		model_free(models[kind]);
	for (int i = 0; i < BACKENDS; i++)
		backend_close(backends[i]);
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

/* Save the model of a kind and return it; with_manifest: as the store does. */
static const model *saved(int kind, bool with_manifest)
{
	char path[sizeof folder + 32];
	snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
	unlink(path);
	assert_int_equal(model_save(models[kind], folder, NULL), STATUS_OK);
	if (with_manifest)
		assert_int_equal(manifest_write(folder, "model", "m", NULL, NULL), STATUS_OK);
	return models[kind];
}

/* A copy that a test may change, which it frees. */
static model *copy_of(int kind)
{
	model *m;
	saved(kind, false);
	assert_int_equal(model_open(&m, folder, DTYPE_F32, device, NULL), STATUS_OK);
	return m;
}

/* Run all steps and count them; NULL with the reason in err on failure. */
static model *load(dtype weights, backend *b, int *steps, error *err)
{
	model_loader *l;
	bool done = false;
	*steps = 0;
	status s = model_loader_new(&l, folder, weights, b, err);
	for (; s == STATUS_OK && !done; ++*steps)
		s = model_loader_step(l, &done, err);
	model *m = s == STATUS_OK ? model_loader_take(l) : NULL;
	model_loader_free(l);
	return m;
}

static void assert_parameter(const model *m, const model *plain, int i)
{
	const parameter_spec *p = model_parameter(m, i);
	dtype type = p->matrix ? model_weight_dtype(m) : DTYPE_F32;
	const float *want = model_arena(plain) + model_parameter_offset(plain, i);
	const float *got = model_arena(m) + model_parameter_offset(m, i);
	int64_t n = shape_rows(p->shape), k = shape_last(p->shape);
	size_t bytes = (size_t)(n * k) * sizeof *want;
	void *packed = NULL;
	if (dtype_is_panel(type)) {
		assert_true(panel_bytes(type, n, k, &bytes));
		packed = malloc(bytes);
		panel_pack(type, want, n, k, packed);
	}
	assert_memory_equal(got, packed ? packed : want, bytes);
	free(packed);
}

static void assert_loads(const model *plain, int least_steps)
{
	static const dtype types[] = {DTYPE_F32, DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	for (size_t t = 0; t < BACKENDS * sizeof types / sizeof *types; t++) {
		int steps;
		error err = ERROR_INIT;
		model *m = load(types[t / BACKENDS], backends[t % BACKENDS], &steps, &err);
		assert_string_equal(err.message, "");
		assert_true(steps >= least_steps);
		for (int i = 0; i < model_tensor_count(m); i++)
			assert_parameter(m, plain, i);
		model_free(m);
	}
}

static void steps_load_the_saved_model_bit_for_bit(void **state)
{
	(void)state;
	for (int kind = 0; kind < PLAIN_KINDS; kind++)
		for (int sealed = 0; sealed < 2; sealed++)
			assert_loads(saved(kind, sealed), 20);
}

static void the_number_of_threads_changes_no_bit_and_no_step(void **state)
{
	(void)state;
	static const dtype types[] = {DTYPE_F32, DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	for (int kind = 0; kind < 2 * KINDS; kind++) { /* with a manifest and without */
		saved(kind / 2, kind % 2);
		for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
			int steps, alone_steps;
			model *alone = load(types[t], device, &alone_steps, NULL);
			for (int threads = 2; threads <= 7; threads += 5) {
				backend *b;
				assert_int_equal(cpu_open(&b, threads, NULL), STATUS_OK);
				model *m = load(types[t], b, &steps, NULL);
				assert_non_null(m);
				assert_int_equal(steps, alone_steps);
				assert_int_equal(model_digest(m), model_digest(alone));
				assert_memory_equal(model_arena(m), model_arena(alone),
				                    (size_t)model_arena_floats(m) * sizeof(float));
				model_free(m);
				backend_close(b);
			}
			model_free(alone);
		}
	}
}

/* Write the tensors of the file again as `type`, in reverse order. */
static void rewrite(safetensors_type type)
{
	safetensors *st;
	safetensors_item items[64];
	uint16_t *narrow[64] = {0};
	assert_int_equal(safetensors_open(&st, weights_path, NULL), STATUS_OK);
	int n = safetensors_count(st);
	assert_true(n <= 64);
	for (int i = 0; i < n; i++) {
		const safetensors_entry *e = safetensors_at(st, n - 1 - i);
		items[i] = (safetensors_item){.name = e->name, .type = type, .rank = e->rank, .data = e->data};
		memcpy(items[i].dim, e->dim, sizeof e->dim);
		if (type != ST_BF16)
			continue;
		narrow[i] = malloc((size_t)e->count * sizeof **narrow);
		for (int64_t k = 0; k < e->count; k++) {
			float x;
			memcpy(&x, e->data + (size_t)k * sizeof x, sizeof x);
			narrow[i][k] = panel_bf16(x);
		}
		items[i].data = narrow[i];
	}
	assert_int_equal(safetensors_write(weights_path, items, n, NULL, NULL), STATUS_OK);
	for (int i = 0; i < n; i++)
		free(narrow[i]);
	safetensors_close(st);
}

static void a_file_in_another_order_loads_to_the_same_bits(void **state)
{
	(void)state;
	for (int kind = 0; kind < PLAIN_KINDS; kind++) {
		const model *m = saved(kind, false);
		rewrite(ST_F32);
		assert_loads(m, 20);
	}
}

static void numbers_of_another_type_are_converted_across_chunks(void **state)
{
	(void)state;
	for (int kind = 0; kind < PLAIN_KINDS; kind++) {
		model *m = copy_of(kind);
		rewrite(ST_BF16);
		for (int i = 0; i < model_tensor_count(m); i++) {
			float *x = model_arena(m) + model_parameter_offset(m, i);
			for (int64_t k = 0; k < shape_count(model_parameter(m, i)->shape); k++)
				x[k] = panel_f32(panel_bf16(x[k]));
		}
		assert_loads(m, 20);
		model_free(m);
	}
}

static void flip(const char *path, long at)
{
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	fseek(f, at, SEEK_SET);
	int c = fgetc(f);
	fseek(f, at, SEEK_SET);
	fputc(c ^ 1, f);
	fclose(f);
}

static void assert_storage_error(const char *words)
{
	for (int i = 0; i < BACKENDS; i++) {
		int steps;
		error err = ERROR_INIT;
		assert_null(load(DTYPE_PANEL_F32, backends[i], &steps, &err));
		assert_int_equal(err.status, STATUS_STORAGE);
		assert_non_null(strstr(err.message, words));
	}
	assert_int_equal(model_check(folder, NULL), STATUS_STORAGE);
}

static void one_flipped_bit_of_the_weights_is_found_with_its_place(void **state)
{
	(void)state;
	static const struct {
		long at;
		const char *words;
	} places[] = {{3, "model.safetensors is damaged: bytes 0 to 4194303 differ"},
	              {100, "model.safetensors is damaged: bytes 0 to 4194303 differ"},
	              {5 << 20, "model.safetensors is damaged: bytes 4194304 to 8388607 differ"}};
	for (int kind = 0; kind < KINDS; kind++) {
		saved(kind, true);
		for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
			flip(weights_path, places[i].at);
			assert_storage_error(places[i].words);
			flip(weights_path, places[i].at);
		}
		assert_int_equal(model_check(folder, NULL), STATUS_OK);
	}
}

static void the_digest_of_a_model_with_a_manifest_is_that_of_its_file(void **state)
{
	uint64_t expected, digests[2];
	manifest *about;
	int steps;
	(void)state;
	for (int sealed = 0; sealed < 2; sealed++) {
		saved(0, sealed);
		model *m = load(DTYPE_PANEL_INT8, device, &steps, NULL);
		digests[sealed] = model_digest(m);
		model_free(m);
	}
	assert_int_equal(manifest_open_folder(&about, folder, NULL), STATUS_OK);
	assert_true(manifest_file_digest(about, "model.safetensors", &expected));
	manifest_free(about);
	assert_true(digests[1] == expected && digests[0] != expected && digests[0] != 0);
}

static void a_damaged_or_missing_file_of_a_sealed_folder_is_named(void **state)
{
	(void)state;
	static const char *const names[] = {"config.json", "model.safetensors", MANIFEST_NAME};
	char path[sizeof folder + 32];
	for (int i = 0; i < 3; i++) {
		saved(0, true);
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		flip(path, 20);
		assert_storage_error(names[i]);
		assert_int_equal(truncate(path, 10), 0);
		assert_storage_error(names[i]);
		assert_int_equal(truncate(path, 0), 0);
		assert_storage_error(names[i]);
		unlink(path);
		if (i < 2)
			assert_storage_error(names[i]);
	}
}

static void a_file_truncated_while_it_is_read_is_an_error(void **state)
{
	(void)state;
	for (int sealed = 0; sealed < 2; sealed++) {
		model_loader *l;
		bool done = false;
		error err = ERROR_INIT;
		saved(0, sealed);
		assert_int_equal(model_loader_new(&l, folder, DTYPE_F32, device, NULL), STATUS_OK);
		assert_int_equal(model_loader_step(l, &done, NULL), STATUS_OK);
		assert_int_equal(truncate(weights_path, 5 << 20), 0);
		status s = STATUS_OK;
		while (s == STATUS_OK && !done)
			s = model_loader_step(l, &done, &err);
		assert_int_equal(s, sealed ? STATUS_STORAGE : STATUS_IO);
		assert_string_equal(err.message, "model.safetensors was truncated while it was read");
		model_loader_free(l);
	}
}

static void the_first_of_two_wrong_weights_is_named(void **state)
{
	(void)state;
	static const int64_t places[2] = {1500 * 390 + 7, 2000 * 390 + 3}; /* in different pieces */
	for (int i = 0; i < BACKENDS; i++) {
		int steps;
		error err = ERROR_INIT;
		model *m = copy_of(0);
		int matrix = 0;
		while (shape_rows(model_parameter(m, matrix)->shape) < 2053)
			matrix++;
		for (int k = 0; k < 2; k++)
			model_arena(m)[model_parameter_offset(m, matrix) + places[k]] = NAN;
		assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
		assert_null(load(DTYPE_PANEL_BF16, backends[i], &steps, &err));
		assert_int_equal(err.status, STATUS_INVALID);
		assert_string_equal(err.param, model_parameter(m, matrix)->name);
		assert_non_null(strstr(err.message, "element 585007 of tensor"));
		model_free(m);
	}
}

static void a_loader_may_be_abandoned_at_any_step(void **state)
{
	(void)state;
	saved(1, true);
	for (int i = 0; i < BACKENDS; i++) {
		bool done = false;
		for (int steps = 0; !done; steps++) {
			model_loader *l;
			assert_int_equal(model_loader_new(&l, folder, DTYPE_PANEL_INT8, backends[i], NULL), STATUS_OK);
			for (int k = 0; k < steps && !done; k++)
				assert_int_equal(model_loader_step(l, &done, NULL), STATUS_OK);
			model_loader_free(l);
		}
	}
	model_loader_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(steps_load_the_saved_model_bit_for_bit),
	    cmocka_unit_test(the_number_of_threads_changes_no_bit_and_no_step),
	    cmocka_unit_test(the_first_of_two_wrong_weights_is_named),
	    cmocka_unit_test(a_file_in_another_order_loads_to_the_same_bits),
	    cmocka_unit_test(numbers_of_another_type_are_converted_across_chunks),
	    cmocka_unit_test(one_flipped_bit_of_the_weights_is_found_with_its_place),
	    cmocka_unit_test(the_digest_of_a_model_with_a_manifest_is_that_of_its_file),
	    cmocka_unit_test(a_damaged_or_missing_file_of_a_sealed_folder_is_named),
	    cmocka_unit_test(a_file_truncated_while_it_is_read_is_an_error),
	    cmocka_unit_test(a_loader_may_be_abandoned_at_any_step),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
