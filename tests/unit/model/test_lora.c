/* Low-rank adapters: matrices beside those of linear layers, in every architecture, trained and in a bank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/model/adapter.h"
#include "engine/model/feed.h"
#include "engine/model/lora.h"
#include "engine/model/model_private.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/bf16_backend.h"
#include "tests/unit/support/folder.h"

enum { B = 3, N = 5, V = 40, SEED = 700 };

static const char config[] =
    "{\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2, \"vocab_size\": 40,"
    " \"intermediate_size\": 31}";

static model *small_model(const architecture *a)
{
	json_t *json = fixture_complete(a, 2);
	char *text = json_dumps(json, 0);
	model *m = fixture_model_as(a, text, device);
	free(text);
	json_decref(json);
	return m;
}

static void set_weights(const model *m, const float *x)
{
	const size_t bytes = (size_t)model_arena_floats(m) * sizeof *x;
	assert_int_equal(device->upload(device, model_arena(m), x, bytes), STATUS_OK);
}

static void stir(const model *a, uint64_t seed)
{
	float *x = fixture_weights(a);
	for (int i = 0; i < model_tensor_count(a); i++)
		random_normal(x + model_parameter_offset(a, i), shape_count(model_parameter(a, i)->shape),
		              seed + (uint64_t)i, 0.3);
	set_weights(a, x);
	free(x);
}

static status new_lora(model **out, model *base, int64_t rank, double alpha, const char *targets, error *err)
{
	json_t *names = targets ? fixture_json(targets) : NULL;
	const lora_options o = {.rank = rank, .alpha = alpha, .targets = names};
	const status s = model_new_lora(out, base, &o, SEED, err);
	json_decref(names);
	return s;
}

/* An adapter with random matrices. */
static model *random_lora(model *base, int64_t rank, const char *targets, uint64_t seed)
{
	model *a;
	assert_int_equal(new_lora(&a, base, rank, 3, targets, NULL), STATUS_OK);
	stir(a, seed);
	return a;
}

/* A model whose weights are those of the base with the products added. */
static model *merged(const model *base, const model *a)
{
	model *m;
	assert_int_equal(model_copy(&m, base, NULL), STATUS_OK);
	float *x = fixture_weights(m), *y = fixture_weights(a);
	const double scale = model_lora(a)->alpha / (double)model_lora(a)->rank;
	for (int i = 0; i < model_tensor_count(a); i += 2) {
		char name[160];
		const parameter_spec *p = model_parameter(a, i), *q = model_parameter(a, i + 1);
		const float *ma = y + model_parameter_offset(a, i), *mb = y + model_parameter_offset(a, i + 1);
		snprintf(name, sizeof name, "%s", p->name + strlen("base_model.model."));
		*strstr(name, ".lora_A.weight") = '\0';
		int j = 0;
		while (strncmp(model_parameter(m, j)->name, name, strlen(name)) != 0 ||
		       (model_parameter(m, j)->name[strlen(name)] &&
		        strcmp(model_parameter(m, j)->name + strlen(name), ".weight") != 0))
			assert_true(++j < model_tensor_count(m));
		float *w = x + model_parameter_offset(m, j);
		const int64_t rank = p->shape.dim[0], inputs = p->shape.dim[1], outputs = q->shape.dim[0];
		assert_int_equal(q->shape.dim[1], rank);
		for (int64_t r = 0; r < outputs; r++)
			for (int64_t c = 0; c < inputs; c++) {
				double sum = 0;
				for (int64_t k = 0; k < rank; k++)
					sum += (double)mb[r * rank + k] * (double)ma[k * inputs + c];
				w[r * inputs + c] += (float)(scale * sum);
			}
	}
	set_weights(m, x);
	free(x);
	free(y);
	return m;
}

/* --- whole sequences ------------------------------------------------------------------------------- */

static void fill_ids(int32_t *ids, int64_t n, int seed)
{
	for (int64_t i = 0; i < n; i++)
		ids[i] = (int32_t)((i + 1) * 7919 * (seed + 3) % (V - 5)) + 5;
}

static plan *sequence_plan(const model *m, bool backward, bool bf16, bool recompute, float *gradients)
{
	const model_dims *d = model_dimensions(m);
	const bool classes = d->form->head == HEAD_CLASSES, source = d->form->source;
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .source = source ? N + 1 : 0,
	                           .masked = !d->form->stepwise,
	                           .source_masked = source,
	                           .bf16 = bf16,
	                           .out.logits = classes ? LOGITS_LAST : LOGITS_ALL,
	                           .train = {.loss = true, .backward = backward, .recompute = recompute}};
	plan *p = fixture_plan(m, &spec, gradients, NULL);
	int32_t ids[B * N], more[B * (N + 1)], labels[B * N], ones[B * (N + 1)];
	fill_ids(ids, B * N, 1);
	fill_ids(more, B * (N + 1), 2);
	for (int i = 0; i < B * (N + 1); i++)
		ones[i] = 1;
	for (int i = 0; i < B * N; i++)
		labels[i] = classes ? i % 2 : (i * 5 + 3) % V;
	for (int b = 0; b < B; b++)
		ids[b * N + N - 1] = 2;
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE, more), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, ones), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE_MASK, ones), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	assert_int_equal(feed_positions(p, d, POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, d, ids, NULL), STATUS_OK);
	return p;
}

static float loss_of(plan *p)
{
	float loss;
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &loss);
	return loss;
}

/* Logits of all sequences, which the caller frees; returns the loss. */
static float sequences(const model *m, float **logits, int64_t *n)
{
	plan *p = sequence_plan(m, false, false, false, NULL);
	const float loss = loss_of(p);
	*n = shape_count(graph_value(plan_graph(p), port_find(plan_graph(p), PORT_LOGITS))->shape);
	*logits = calloc((size_t)*n, sizeof **logits);
	fixture_read(p, "logits", *logits);
	plan_free(p);
	return loss;
}

static double apart(const float *a, const float *b, int64_t n)
{
	double most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)a[i] - (double)b[i]) / (1 + fabs((double)b[i])));
	return most;
}

static void an_adapter_predicts_as_the_merged_weights_in_every_architecture(void **state)
{
	(void)state;
	int done = 0;
	for (int i = 0; architecture_at(i); i++) {
		model *base = small_model(architecture_at(i)), *a;
		float *with, *want, *plain;
		int64_t n;
		error err = ERROR_INIT;
		if (new_lora(&a, base, 4, 3, NULL, &err) != STATUS_OK) {
			assert_string_equal(architecture_at(i)->name, "trilinear");
			assert_int_equal(err.status, STATUS_UNSUPPORTED);
			assert_string_equal(err.param, "targets");
			model_free(base);
			continue;
		}
		stir(a, SEED);
		model *whole = merged(base, a);
		const float loss = sequences(a, &with, &n), expected = sequences(whole, &want, &n);
		sequences(base, &plain, &n);
		if (!(apart(with, want, n) < 1e-5) || !(fabsf(loss - expected) < 1e-5f * (1 + expected)))
			fail_msg("%s: %g apart, loss %g for %g", architecture_at(i)->name, apart(with, want, n),
			         (double)loss, (double)expected);
		assert_true(apart(plain, want, n) > 1e-2);
		free(with);
		free(want);
		free(plain);
		model_free(whole);
		model_free(a);
		model_free(base);
		done++;
	}
	assert_true(done >= 11);
}

static void a_new_adapter_changes_no_bit_and_starts_as_peft_does(void **state)
{
	(void)state;
	model *base = fixture_model_as(&architecture_additive2, config, device), *a, *b;
	assert_int_equal(new_lora(&a, base, 8, 16, NULL, NULL), STATUS_OK);
	assert_int_equal(new_lora(&b, base, 8, 16, NULL, NULL), STATUS_OK);
	fixture_same_weights(a, b);
	float *x = fixture_weights(a), *with, *plain;
	int64_t n;
	for (int i = 0; i < model_tensor_count(a); i += 2) {
		const parameter_spec *p = model_parameter(a, i), *q = model_parameter(a, i + 1);
		const int64_t inputs = p->shape.dim[1];
		const double bound = 1 / sqrt((double)inputs);
		double most = 0, squares = 0;
		for (int64_t k = 0; k < 8 * inputs; k++) {
			const double at = (double)x[model_parameter_offset(a, i) + k];
			most = fmax(most, fabs(at));
			squares += at * at;
		}
		assert_true(most <= bound * (1 + 1e-6) && most > 0.8 * bound);
		assert_true(fabs(squares / (double)(8 * inputs) / (bound * bound) - 1.0 / 3) < 0.1);
		for (int64_t k = 0; k < shape_count(q->shape); k++)
			assert_true(x[model_parameter_offset(a, i + 1) + k] == 0);
	}
	sequences(a, &with, &n);
	sequences(base, &plain, &n);
	assert_memory_equal(with, plain, (size_t)n * sizeof *with);
	free(x);
	free(with);
	free(plain);
	model_free(a);
	model_free(b);
	model_free(base);
}

static void gradients_are_those_of_finite_differences_and_the_base_has_none(void **state)
{
	(void)state;
	const double step = 1e-2;
	model *base = fixture_model_as(&architecture_additive2, config, device);
	model *a = random_lora(base, 2, NULL, SEED);
	const int64_t floats = model_arena_floats(a);
	float *x = fixture_weights(a), *gradient = calloc((size_t)floats, sizeof *gradient);
	float *again = calloc((size_t)floats, sizeof *again);
	plan *p = sequence_plan(a, true, false, false, gradient), *q = sequence_plan(a, true, false, true, again);
	assert_true(loss_of(p) == loss_of(q));
	assert_memory_equal(gradient, again, (size_t)floats * sizeof *gradient);
	plan_free(q);
	for (int i = 0; i < model_tensor_count(base); i++) {
		char name[160];
		snprintf(name, sizeof name, "grad.%s", model_parameter(base, i)->name);
		assert_int_equal(graph_find(plan_graph(p), name), VALUE_NONE);
	}
	plan_free(p);
	p = sequence_plan(a, false, false, false, NULL);
	double most = 0;
	for (int64_t i = 0; i < floats; i += 7) {
		const float at = x[i];
		double difference[2];
		for (int far = 0; far < 2; far++) {
			x[i] = at + (float)(step * (1 + far));
			set_weights(a, x);
			difference[far] = (double)loss_of(p);
			x[i] = at - (float)(step * (1 + far));
			set_weights(a, x);
			difference[far] -= (double)loss_of(p);
		}
		x[i] = at;
		const double want = (8 * difference[0] - difference[1]) / (12 * step);
		assert_true(fabs(want - (double)gradient[i]) < 3e-4 * (1 + fabs(want)));
		most = fmax(most, fabs(want));
	}
	assert_true(most > 1e-2);
	plan_free(p);
	free(x);
	free(gradient);
	free(again);
	model_free(a);
	model_free(base);
}

/* The base is read from its bf16 copy; the adapter stays f32 and is rounded where it is read. */
static void an_adapter_trains_over_a_bf16_copy(void **state)
{
	(void)state;
	backend *const own = device;
	backend *inner;
	assert_int_equal(cpu_reference_open(&inner, 1, NULL), STATUS_OK);
	device = bf16_backend_new(inner);
	model *base = fixture_model_as(&architecture_additive2, config, device);
	model *a = random_lora(base, 2, NULL, SEED);
	float *gradient = calloc((size_t)model_arena_floats(a), sizeof *gradient), most = 0;
	assert_int_equal(model_update_bf16_copy(a, NULL), STATUS_OK);
	plan *p = sequence_plan(a, true, true, false, gradient), *q = sequence_plan(a, false, false, false, NULL);
	assert_true(fabsf(loss_of(p) - loss_of(q)) < 0.05f);
	for (int64_t i = 0; i < model_arena_floats(a); i++)
		most = fmaxf(most, fabsf(gradient[i]));
	assert_true(most > 1e-2f);
	plan_free(p);
	plan_free(q);
	free(gradient);
	model_free(a);
	model_free(base);
	backend_close(device);
	device = own;
}

/* --- the bank -------------------------------------------------------------------------------------- */

static lora_tables bank_new(const model *base)
{
	const size_t floats = (size_t)(LORA_STRIPS * lora_strip_floats(base)) * sizeof(float);
	const size_t ranks = (size_t)(LORA_ENTRIES * lora_parts(base)) * sizeof(int32_t),
	             places = LORA_ENTRIES * LORA_MAX_RANK * sizeof(int32_t);
	lora_tables b;
	assert_int_equal(device->allocate(device, floats, (void **)&b.bank), STATUS_OK);
	assert_int_equal(device->allocate(device, ranks, (void **)&b.ranks), STATUS_OK);
	assert_int_equal(device->allocate(device, places, (void **)&b.places), STATUS_OK);
	memset(b.bank, 0xff, floats); /* NaN */
	memset(b.ranks, 0, ranks);
	memset(b.places, 0, places);
	return b;
}

static void bank_free(lora_tables *b)
{
	device->release(device, b->bank);
	device->release(device, b->ranks);
	device->release(device, b->places);
}

/* Its strips are every third one from `first` on. */
static void enter(const lora_tables *b, const model *a, int entry, int32_t first)
{
	lora_image *i;
	int32_t strips[LORA_MAX_RANK];
	for (int32_t r = 0; r < LORA_MAX_RANK; r++)
		strips[r] = first + 3 * r;
	assert_int_equal(lora_image_new(&i, a, NULL), STATUS_OK);
	assert_int_equal(lora_image_write(i, device, b, entry, strips), STATUS_OK);
	lora_image_free(i);
}

/* Logits [B, V] after the last token of B sequences, whose tokens have the entries `entry`. */
static void read_with(const model *base, const lora_tables *b, phase form, const int32_t *ids, const int32_t entry[B],
                      float *logits)
{
	const forward_input inputs[] = {{.name = LORA_BANK, .data = b->bank},
	                                {.name = LORA_RANKS, .data = b->ranks},
	                                {.name = LORA_PLACES, .data = b->places},
	                                {0}};
	const forward_spec spec = {.phase = form,
	                           .batch = B,
	                           .length = form == PHASE_READ ? B * N : N,
	                           .slots = B,
	                           .adapters = true,
	                           .out.logits = LOGITS_LAST,
	                           .inputs = inputs};
	float *pool;
	int32_t each[B * N], start[B], last[B];
	for (int i = 0; i < B * N; i++)
		each[i] = entry[i / N];
	for (int i = 0; i < B; i++) {
		start[i] = i * N;
		last[i] = i * N + N - 1;
	}
	assert_int_equal(
	    device->allocate(device, (size_t)(B * model_state_floats(base)) * sizeof *pool + 4, (void **)&pool),
	    STATUS_OK);
	plan *p = fixture_plan(base, &spec, NULL, pool);
	int32_t positions[B * N];
	for (int i = 0; i < B * N; i++)
		positions[i] = position_row(model_dimensions(base), POSITION_ERROR, i % N);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_POSITIONS, positions), STATUS_OK);
	assert_int_equal(feed_step(p, 0, N), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_ENTRY, each), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_START, start), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LAST, last), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
	device->release(device, pool);
}

/* Rows with none, with one of all layers, and with one of some layers and another rank. */
static void rows_of_a_batch_have_their_own_adapters_in_every_architecture_with_sessions(void **state)
{
	(void)state;
	static const int32_t entry[B] = {2, 0, LORA_ENTRIES - 1};
	int done = 0;
	for (int i = 0; architecture_at(i); i++) {
		const architecture *arch = architecture_at(i);
		model *base = small_model(arch), *a[B] = {NULL};
		if (!model_dimensions(base)->form->stepwise || model_dimensions(base)->form->source ||
		    new_lora(&a[0], base, 4, 3, NULL, NULL) != STATUS_OK) {
			model_free(base);
			continue;
		}
		char some[160];
		snprintf(some, sizeof some, "[\"%s\"]", model_parameter(a[0], 0)->name + strlen("base_model.model."));
		strcpy(strstr(some, ".lora_A.weight"), "\"]");
		stir(a[0], SEED);
		a[2] = random_lora(base, 7, some, SEED + 50);
		lora_tables b = bank_new(base);
		enter(&b, a[0], 2, LORA_STRIPS - 12);
		enter(&b, a[2], LORA_ENTRIES - 1, 1);
		int32_t ids[B * N];
		fill_ids(ids, B * N, 4);
		float got[2][B * V], want[B * N * V];
		read_with(base, &b, PHASE_STEP, ids, entry, got[0]);
		read_with(base, &b, PHASE_READ, ids, entry, got[1]);
		for (int row = 0; row < B; row++) {
			const forward_spec spec = {.batch = B, .length = N, .out.logits = LOGITS_ALL};
			plan *p = fixture_plan(a[row] ? a[row] : base, &spec, NULL, NULL);
			assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
			assert_int_equal(feed_positions(p, model_dimensions(base), POSITION_ERROR, 0), STATUS_OK);
			assert_int_equal(plan_run(p), STATUS_OK);
			fixture_read(p, "logits", want);
			plan_free(p);
			for (int form = 0; form < 2; form++) {
				const double off = apart(got[form] + row * V, want + (row * N + N - 1) * V, V);
				if (!(off < 2e-4))
					fail_msg("%s, row %d, form %d: %g apart", arch->name, row, form, off);
			}
		}
		bank_free(&b);
		model_free(a[0]);
		model_free(a[2]);
		model_free(base);
		done++;
	}
	assert_true(done >= 6);
}

/* --- options and files ----------------------------------------------------------------------------- */

static void targets_are_names_or_their_ends(void **state)
{
	(void)state;
	model *base = fixture_model_as(&architecture_additive2, config, device), *a;
	static const struct {
		const char *targets;
		int layers;
	} cases[] = {{"[\"W1\"]", 2},
	             {"[\"W1\", \"W2\"]", 4},
	             {"[\"mix.Wv\"]", 2},
	             {"[\"layers.1.mix.Wv\"]", 1},
	             {"[\"layers.1.W2\", \"W2\"]", 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(new_lora(&a, base, 2, 2, cases[i].targets, NULL), STATUS_OK);
		assert_int_equal(model_tensor_count(a), 2 * cases[i].layers);
		model_free(a);
	}
	model_free(base);
}

static void bad_options_are_refused_by_name(void **state)
{
	(void)state;
	model *base = fixture_model_as(&architecture_additive2, config, device), *a;
	static const struct {
		int64_t rank;
		double alpha;
		const char *targets, *param;
	} cases[] = {{0, 1, NULL, "rank"},
	             {LORA_MAX_RANK + 1, 1, NULL, "rank"},
	             {4, 0, NULL, "alpha"},
	             {4, NAN, NULL, "alpha"},
	             {4, 1e9, NULL, "alpha"},
	             {4, 1, "[]", "targets"},
	             {4, 1, "[3]", "targets"},
	             {4, 1, "[\"1\"]", "targets"},
	             {4, 1, "[\"W1\", \"Wx\"]", "targets"},
	             {4, 1, "[\"embedding\"]", "targets"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		error err = ERROR_INIT;
		if (new_lora(&a, base, cases[i].rank, cases[i].alpha, cases[i].targets, &err) != STATUS_INVALID)
			fail_msg("case %d is accepted", (int)i);
		assert_string_equal(err.param, cases[i].param);
		assert_null(a);
	}
	model_free(base);
}

static void write_text(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_write(path, (file_part[]){{text, strlen(text)}}, 1, NULL), STATUS_OK);
}

static void a_folder_has_the_names_of_peft_and_reads_back(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 64];
	folder_new(folder);
	model *base = small_model(&architecture_gpt2), *a = random_lora(base, 3, "[\"c_attn\", \"mlp.c_proj\"]", SEED),
	      *b;
	assert_string_equal(model_parameter(a, 0)->name, "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight");
	assert_int_equal(model_save(a, folder, NULL), STATUS_OK);
	snprintf(path, sizeof path, "%s/" LORA_CONFIG_FILE, folder);
	json_t *written = json_load_file(path, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(written, "peft_type")), "LORA");
	assert_int_equal(json_integer_value(json_object_get(written, "r")), 3);
	assert_true(json_real_value(json_object_get(written, "lora_alpha")) == 3);
	assert_true(json_is_true(json_object_get(written, "fan_in_fan_out")));
	assert_int_equal(json_array_size(json_object_get(written, "target_modules")), 4);
	assert_int_equal(lora_open(&b, base, folder, NULL, NULL), STATUS_OK);
	fixture_same_weights(a, b);
	assert_int_equal(model_lora(b)->rank, 3);
	model_free(b);
	static const struct {
		const char *key, *value;
	} wrong[] = {{"peft_type", "\"IA3\""},       {"bias", "\"all\""},
	             {"use_dora", "true"},           {"use_rslora", "true"},
	             {"rank_pattern", "{\"a\": 1}"}, {"modules_to_save", "[\"lm_head\"]"},
	             {"target_modules", "\"q\""},    {"target_modules", "null"}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		json_t *other = json_deep_copy(written);
		json_object_set_new(other, wrong[i].key, fixture_json(wrong[i].value));
		char *text = json_dumps(other, 0);
		write_text(folder, LORA_CONFIG_FILE, text);
		assert_int_equal(lora_open(&b, base, folder, NULL, &err), STATUS_INVALID);
		assert_string_equal(err.param, wrong[i].key);
		free(text);
		json_decref(other);
	}
	/* Another rank than that of the tensors. */
	error err = ERROR_INIT;
	json_object_set_new(written, "r", json_integer(4));
	char *text = json_dumps(written, 0);
	write_text(folder, LORA_CONFIG_FILE, text);
	assert_int_equal(lora_open(&b, base, folder, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, model_parameter(a, 0)->name);
	free(text);
	json_decref(written);
	model_free(a);
	model_free(base);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void an_architecture_is_checked_without_weights(void **state)
{
	(void)state;
	json_t *json = fixture_complete(&architecture_gpt2, 2), *bad = fixture_json("[\"W1\"]");
	error err = ERROR_INIT;
	assert_int_equal(lora_check(&architecture_gpt2, json, &(lora_options){.rank = 4, .alpha = 8}, &err), STATUS_OK);
	assert_int_equal(
	    lora_check(&architecture_gpt2, json, &(lora_options){.rank = 4, .alpha = 8, .targets = bad}, &err),
	    STATUS_INVALID);
	assert_string_equal(err.param, "targets");
	json_decref(json);
	json_decref(bad);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_adapter_predicts_as_the_merged_weights_in_every_architecture),
	    cmocka_unit_test(a_new_adapter_changes_no_bit_and_starts_as_peft_does),
	    cmocka_unit_test(gradients_are_those_of_finite_differences_and_the_base_has_none),
	    cmocka_unit_test(an_adapter_trains_over_a_bf16_copy),
	    cmocka_unit_test(rows_of_a_batch_have_their_own_adapters_in_every_architecture_with_sessions),
	    cmocka_unit_test(targets_are_names_or_their_ends),
	    cmocka_unit_test(bad_options_are_refused_by_name),
	    cmocka_unit_test(a_folder_has_the_names_of_peft_and_reads_back),
	    cmocka_unit_test(an_architecture_is_checked_without_weights),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
