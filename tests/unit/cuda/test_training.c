/* Training runs on the CUDA backend: the twenty steps of the reference, bf16 beside fp32, and the same bits in every
 * run. */
#include "tests/unit/train/fixture.h"

#include <stdio.h>

#include "engine/tensor/plan.h"
#include "engine/train/objective.h"
#include "engine/train/optimizer_kind.h"
#include "engine/train/ranks.h"
#include "tests/unit/cuda/device.h"

static backend *device;

static int open_all(void **state)
{
	find_plain_plugin();
	device = open_device();
	return fixture_setup(state);
}

static int close_all(void **state)
{
	backend_close(device);
	return fixture_teardown(state);
}

typedef struct run {
	double loss[256], valid;
	int64_t steps;
	float *weights;
	size_t bytes;
} run;

static void run_to_the_end(run *r, trainer *t, uint64_t budget_ns)
{
	const train_progress *p = trainer_progress(t);
	const model *m = trainer_model(t);
	error err = ERROR_INIT;
	r->steps = 0;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		if (trainer_advance(t, budget_ns, &events, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		if (events & TRAIN_STEP)
			r->loss[r->steps++] = p->train_loss;
	}
	r->valid = p->valid_loss;
	r->bytes = (size_t)model_arena_floats(m) * sizeof(float);
	r->weights = malloc(r->bytes);
	backend *b = model_backend(m);
	assert_int_equal(b->download(b, r->weights, model_arena(m), r->bytes), STATUS_OK);
	trainer_free(t);
}

/* --- against the reference ---------------------------------------------------------------- */

/* The run of tests/unit/train/test_parity.c, compared with PyTorch. */
static void twenty_steps_agree_with_the_reference(void **state)
{
	const fixture *f = *state;
	dataset *sets[2];
	run r;
	json_t *curve = json_load_file(FIXTURE_RUN "curve20.json", 0, NULL);
	run_to_the_end(&r, fixture_reference_run(f, device, curve, sets), 0);
	assert_int_equal(r.steps, 20);
	for (size_t i = 0; i < 20; i++) {
		double want = json_real_value(json_array_get(json_object_get(curve, "train_loss"), i));
		if (!(fabs(r.loss[i] - want) <= 1e-3))
			fail_msg("step %zu: %.6f, reference %.6f", i + 1, r.loss[i], want);
	}
	free(r.weights);
	dataset_free(sets[0]);
	dataset_free(sets[1]);
	json_decref(curve);
}

/* --- on a small model ----------------------------------------------------------------------- */

static model *small_model_on(backend *b, const char *kind)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config =
	    strcmp(kind, "additive2") == 0
	        ? json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i], s:i, s:i}", "hidden_size", 32, "vocab_size", 259,
	                    "n_heads", 4, "n_layer", 2, "intermediate_size", 96, "window_layers", 1, "window", 5,
	                    "window_heads", 2)
	    : strcmp(kind, "rwkv") == 0 ? json_pack("{s:i, s:i, s:i, s:i}", "hidden_size", 32, "vocab_size", 259,
	                                            "num_hidden_layers", 2, "attention_hidden_size", 40)
	    : strcmp(kind, "gpt2") == 0
	        ? json_pack("{s:i, s:i, s:i, s:i, s:i}", "n_embd", 32, "vocab_size", 259, "n_head", 2, "n_positions",
	                    24, "n_layer", 2)
	        : json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i], s:f}", "hidden_size", 32, "vocab_size", 259, "n_heads",
	                    2, "n_positions", 24, "n_layer", 2, "window_sizes", 4, 24, "hidden_dropout_prob", 0.1);
	if (model_create(&m, architecture_find(kind), config, 7, b, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(config);
	return m;
}

static model *small_model(const char *kind)
{
	return small_model_on(device, kind);
}

/* Its gradients are summed in several pieces. */
static model *several_buckets(void)
{
	model *m;
	error err = ERROR_INIT;
	json_t *config =
	    json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i], s:f}", "hidden_size", 160, "vocab_size", 259, "n_heads", 2,
	              "n_positions", 24, "n_layer", 2, "window_sizes", 4, 24, "hidden_dropout_prob", 0.1);
	if (model_create(&m, architecture_find("additive"), config, 7, device, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(config);
	return m;
}

/* valid: NULL for no validation. */
static trainer *trainer_of(const fixture *f, model *m, const train_options *o, const dataset *valid)
{
	trainer *t;
	error err = ERROR_INIT;
	if (trainer_new(&t, m, o, f->train, valid, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return t;
}

static trainer *small_trainer(const fixture *f, const char *kind, const train_options *o)
{
	return trainer_of(f, small_model(kind), o, f->valid);
}

static void train_small(const fixture *f, run *r, const char *kind, train_options o, uint64_t budget_ns)
{
	run_to_the_end(r, small_trainer(f, kind, &o), budget_ns);
}

static train_options small_options(int64_t steps)
{
	train_options o = fixture_options();
	o.max_steps = steps;
	o.learning_rate = 3e-3;
	return o;
}

/* The host computes the weights of a batch between two parts of its plan. */
static void preferences_are_learned_as_on_the_host(void **state)
{
	const char *const kinds[] = {"additive2", "gpt2", "additive"};
	const fixture *f = *state;
	char text[1024];
	size_t bytes = 0;
	dataset *train, *valid;
	for (int i = 0; i < 10; i++)
		bytes += (size_t)snprintf(text + bytes, sizeof text - bytes,
		                          "{\"prompt\": \"ab%c\", \"chosen\": \"%.*s\", \"rejected\": \"cc\"}\n",
		                          'a' + i % 3, 1 + i % 4, "abca");
	assert_int_equal(preferences_new(&train, &valid, f->tokenizer, text, bytes, FIXTURE_LENGTH, 0.2, NULL),
	                 STATUS_OK);
	for (int i = 0; i < 6; i++) {
		if (is_left_out(device, i, 2))
			continue;
		run on[2];
		train_options o = small_options(4);
		o.objective = &objective_preference;
		o.precision = i % 2 ? PRECISION_BF16 : PRECISION_FP32;
		o.gradient_accumulation = i % 2 ? 2 : 1;
		for (int side = 0; side < 2; side++) {
			trainer *t;
			error err = ERROR_INIT;
			if (side == 1)
				o.precision = PRECISION_FP32; /* the processor has no other */
			model *m = small_model_on(side == 0 ? device : f->backend, kinds[i / 2]);
			if (trainer_new(&t, m, &o, train, valid, &err) != STATUS_OK)
				fail_msg("%s", error_message(&err));
			run_to_the_end(&on[side], t, 0);
		}
		assert_true(fabs(on[0].loss[0] - log(2)) < 1e-6 && on[0].steps == 4);
		for (int s = 0; s < 4; s++)
			assert_true(fabs(on[0].loss[s] - on[1].loss[s]) < (i % 2 ? 2e-2 : 1e-3));
		assert_true(fabs(on[0].valid - on[1].valid) < (i % 2 ? 2e-2 : 1e-3));
		free(on[0].weights);
		free(on[1].weights);
	}
	dataset_free(train);
	dataset_free(valid);
}

static void two_runs_have_the_same_bits(void **state)
{
	const char *const kinds[] = {"additive", "gpt2", "additive2", "rwkv"};
	for (int i = 0; i < 8; i++) {
		if (is_left_out(device, i, 3))
			continue;
		train_options o = small_options(4);
		run a, b;
		o.precision = i % 2 ? PRECISION_BF16 : PRECISION_FP32;
		train_small(*state, &a, kinds[i / 2], o, 0);
		train_small(*state, &b, kinds[i / 2], o, 1000000); /* also with the work sliced in another way */
		assert_memory_equal(a.weights, b.weights, a.bytes);
		assert_true(a.valid == b.valid);
		free(a.weights);
		free(b.weights);
	}
}

static void recomputed_activations_change_no_bit(void **state)
{
	train_options o = small_options(3);
	run kept, again;
	o.precision = PRECISION_BF16;
	train_small(*state, &kept, "additive", o, 0);
	o.recompute = true;
	train_small(*state, &again, "additive", o, 0);
	assert_memory_equal(kept.weights, again.weights, kept.bytes);
	free(kept.weights);
	free(again.weights);
}

static void losses_in_bf16_are_within_a_percent_of_fp32(void **state)
{
	if (is_left_out(device, 1, 2))
		skip();
	/* Not rwkv: its words begin so small that the first step is many times their size. */
	const char *const kinds[] = {"additive", "gpt2", "additive2"};
	for (int i = 0; i < 3; i++) {
		train_options o = small_options(device_is_emulated(device) ? 20 : 200);
		run fine, coarse;
		train_small(*state, &fine, kinds[i], o, 0);
		o.precision = PRECISION_BF16;
		train_small(*state, &coarse, kinds[i], o, 0);
		assert_true(fine.loss[fine.steps - 1] < 0.9 * fine.loss[0]);
		for (int64_t s = 0; s < fine.steps; s++)
			if (!(fabs(coarse.loss[s] - fine.loss[s]) <= 0.01 * fine.loss[s]))
				fail_msg("%s, step %lld: bf16 %.6f, fp32 %.6f", kinds[i], (long long)s + 1,
				         coarse.loss[s], fine.loss[s]);
		assert_memory_not_equal(fine.weights, coarse.weights, fine.bytes); /* the arithmetic was different */
		free(fine.weights);
		free(coarse.weights);
	}
}

/* --- a device that refuses a call ------------------------------------------------------------------ */

/* The step fails and the device is not lost: a new run, as from a checkpoint, has the weights of one without a fault.
 */
static void a_refused_launch_fails_the_step_and_not_the_device(void **state)
{
	const fixture *f = *state;
	enum { FIRST = 1, LAST = 120, STEP = 17 };
	run want, got;
	int failures = 0;
	if (!device_is_emulated(device))
		skip();
	train_small(f, &want, "additive", small_options(3), 0);
	for (int launch = FIRST; launch < LAST; launch += STEP) {
		char fault[64];
		unsigned events = 0;
		error err = ERROR_INIT;
		const train_options o = small_options(3);
		trainer *t = small_trainer(f, "additive", &o);
		snprintf(fault, sizeof fault, "launch:%d:cudaErrorLaunchOutOfResources", launch);
		setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
		status s = STATUS_OK;
		while (s == STATUS_OK && !(events & TRAIN_FINISHED))
			s = trainer_advance(t, 0, &events, &err);
		unsetenv("ADDITIVE_EMULATOR_FAULT");
		assert_true(s == STATUS_OK || s == STATUS_DEVICE);
		failures += s != STATUS_OK;
		trainer_free(t);
		assert_false(backend_is_lost(device));
	}
	assert_true(failures > 0);
	train_small(f, &got, "additive", small_options(3), 0);
	assert_memory_equal(got.weights, want.weights, want.bytes);
	free(want.weights);
	free(got.weights);
}

/* --- muon ---------------------------------------------------------------------------------------- */

/* Three steps on b. */
static void train_with_muon(const fixture *f, backend *b, run *r)
{
	model *m;
	trainer *t;
	error err = ERROR_INIT;
	train_options o = small_options(3);
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i]}", "hidden_size", 32, "vocab_size", 259,
	                           "n_heads", 2, "n_positions", 24, "n_layer", 2, "window_sizes", 4, 24);
	o.optimizer = &optimizer_kind_muon;
	assert_int_equal(model_create(&m, &architecture_additive, config, 7, b, &err), STATUS_OK);
	json_decref(config);
	if (trainer_new(&t, m, &o, f->train, f->valid, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	run_to_the_end(r, t, 0);
}

static void steps_of_muon_agree_with_those_of_the_cpu(void **state)
{
	const fixture *f = *state;
	run cpu, here;
	train_with_muon(f, f->backend, &cpu);
	train_with_muon(f, device, &here);
	assert_int_equal(here.bytes, cpu.bytes);
	for (int i = 0; i < 3; i++)
		assert_true(fabs(here.loss[i] - cpu.loss[i]) <= 1e-4);
	double squares = 0;
	for (size_t i = 0; i < cpu.bytes / sizeof(float); i++)
		squares += pow((double)here.weights[i] - (double)cpu.weights[i], 2);
	/* Small gradients decide directions, so single weights may differ; a step changes each by about the rate. */
	assert_true(sqrt(squares / (double)(cpu.bytes / sizeof(float))) <= 1e-4);
	free(here.weights);
	free(cpu.weights);
}

static void two_runs_of_muon_have_the_same_bits(void **state)
{
	for (int i = 0; i < 2; i++) {
		train_options o = small_options(3);
		run a, b;
		o.optimizer = &optimizer_kind_muon;
		o.precision = i ? PRECISION_BF16 : PRECISION_FP32;
		train_small(*state, &a, "additive", o, 0);
		train_small(*state, &b, "additive", o, 1000000);
		assert_memory_equal(a.weights, b.weights, a.bytes);
		free(a.weights);
		free(b.weights);
	}
}

/* --- trilinear: its own optimizer, and weights that are read as codes ---------------------------- */

/* Three steps on b. */
static void train_trilinear(const fixture *f, backend *b, run *r)
{
	model *m;
	trainer *t;
	error err = ERROR_INIT;
	train_options o = small_options(3);
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "hidden_size", 32, "vocab_size", 259, "n_heads", 2,
	                           "n_layer", 2, "window_size", 5, "weight_bits", 8);
	o.optimizer = &optimizer_kind_normalized_sgd;
	o.learning_rate = 0.02;
	o.weight_decay = 0;
	assert_int_equal(model_create(&m, &architecture_trilinear, config, 7, b, &err), STATUS_OK);
	json_decref(config);
	if (trainer_new(&t, m, &o, f->train, f->valid, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	run_to_the_end(r, t, 0);
}

static void steps_of_trilinear_agree_with_those_of_the_cpu(void **state)
{
	const fixture *f = *state;
	run cpu, here;
	train_trilinear(f, f->backend, &cpu);
	train_trilinear(f, device, &here);
	assert_int_equal(here.bytes, cpu.bytes);
	assert_true(cpu.loss[2] < cpu.loss[0]);
	for (int i = 0; i < 3; i++)
		assert_true(fabs(here.loss[i] - cpu.loss[i]) <= 1e-5);
	for (size_t i = 0; i < cpu.bytes / sizeof(float); i++)
		if (!(fabsf(here.weights[i] - cpu.weights[i]) <= 1e-5F))
			fail_msg("weight %zu: %.9g on the CPU, %.9g here", i, (double)cpu.weights[i],
			         (double)here.weights[i]);
	free(here.weights);
	free(cpu.weights);
}

/* Codes of x [n] by b's kernel; *step: their step. */
static void quantize_on(backend *b, const float *x, int64_t n, int64_t bits, float *out, float *step)
{
	plan *p;
	graph *g = graph_new();
	value in = graph_input(g, "x", DTYPE_F32, SHAPE1(n)), made[2];
	graph_apply(g, OP_quantize, &in, 1, &(quantize_params){QUANTIZE_TENSOR, bits}, made);
	graph_output(g, made[0], "y");
	graph_output(g, made[1], "step");
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, in, x), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, made[0], out), STATUS_OK);
	assert_int_equal(plan_read(p, made[1], step), STATUS_OK);
	plan_free(p);
}

static void trained_weights_have_the_codes_of_the_cpu_bit_for_bit(void **state)
{
	const fixture *f = *state;
	run r;
	float step[2];
	train_trilinear(f, f->backend, &r);
	const int64_t n = (int64_t)(r.bytes / sizeof(float));
	float *codes[] = {malloc(r.bytes), malloc(r.bytes)};
	for (int64_t bits = 2; bits <= 8; bits *= 2) {
		for (int i = 0; i < 2; i++)
			quantize_on(i ? device : f->backend, r.weights, n, bits, codes[i], &step[i]);
		assert_true(step[0] > 0);
		assert_memory_equal(&step[1], &step[0], sizeof *step);
		assert_memory_equal(codes[1], codes[0], r.bytes);
		assert_memory_not_equal(codes[0], r.weights, r.bytes);
	}
	free(codes[0]);
	free(codes[1]);
	free(r.weights);
}

/* --- ahead of the host ------------------------------------------------------------------------ */

/* The device's own functions, and the number of their calls. */
static backend plain;
static int downloads, waits, fetches, early; /* early: fetches taken while no later one was issued */
static unsigned newest;

static status counted_download(backend *b, void *host, const void *from, size_t bytes)
{
	downloads++;
	return plain.download(b, host, from, bytes);
}

static status counted_synchronize(backend *b)
{
	waits++;
	return plain.synchronize(b);
}

static status counted_fetch(backend *b, const void *from, size_t bytes, unsigned *number)
{
	status s = plain.fetch(b, from, bytes, number);
	fetches++;
	newest = *number;
	return s;
}

static status counted_take(backend *b, unsigned number, void *host, size_t bytes)
{
	early += number == newest;
	return plain.fetch_take(b, number, host, bytes);
}

static void count_calls(void)
{
	plain = *device;
	device->download = counted_download;
	device->synchronize = counted_synchronize;
	device->fetch = counted_fetch;
	device->fetch_take = counted_take;
}

static void forget_calls(void)
{
	device->download = plain.download;
	device->synchronize = plain.synchronize;
	device->fetch = plain.fetch;
	device->fetch_take = plain.fetch_take;
}

static void the_device_always_has_a_further_batch(void **state)
{
	for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
		if (is_left_out(device, (int)accumulation, 3))
			continue;
		train_options o = small_options(6);
		o.gradient_accumulation = accumulation;
		trainer *t = small_trainer(*state, "additive", &o);
		count_calls();
		fixture_run(t, 1, 0);
		downloads = waits = early = 0;
		fixture_run(t, 5, 0);
		assert_int_equal(downloads, 0);
		assert_int_equal(waits, 0);
		assert_int_equal(early, 0);
		fixture_run(t, 6, 0); /* no work follows the last step */
		assert_int_equal(early, 1);
		forget_calls();
		trainer_free(t);
	}
}

/* Count the slices up to the n-th fetch of a loss or norm. */
static int slices_to_fetch(trainer *t, int n)
{
	int slices = 0;
	for (; fetches < n; slices++) {
		unsigned events;
		assert_int_equal(trainer_advance(t, 1, &events, NULL), STATUS_OK);
	}
	return slices;
}

/* A step is two fetches: after the batch and after the update. */
static void the_first_batch_is_issued_node_by_node(void **state)
{
	train_options o = small_options(4);
	trainer *t = small_trainer(*state, "additive", &o);
	count_calls();
	fetches = 0;
	assert_true(slices_to_fetch(t, 1) > 20);
	assert_true(slices_to_fetch(t, 2) > 1);
	slices_to_fetch(t, 4);
	assert_in_range(slices_to_fetch(t, 5), 1, 2); /* as a whole */
	forget_calls();
	trainer_free(t);
}

static int looks;

static bool never_fetched(backend *b, unsigned number)
{
	(void)b, (void)number;
	looks++;
	return false;
}

static void a_trainer_that_may_not_wait_looks_once(void **state)
{
	train_options o = small_options(4);
	trainer *t = small_trainer(*state, "additive", &o);
	unsigned events;
	fixture_run(t, 2, 0);
	plain = *device;
	device->fetched = never_fetched;
	for (int waits_here = 1; waits_here >= 0; waits_here--) {
		trainer_may_wait(t, waits_here);
		looks = 0;
		for (int i = 0; i < 100 && looks == 0; i++)
			assert_int_equal(trainer_advance(t, 1000000000, &events, NULL), STATUS_OK);
		assert_true(waits_here ? looks > 1 : looks == 1);
	}
	device->fetched = plain.fetched;
	trainer_free(t);
}

static void issuing_work_ahead_changes_no_bit(void **state)
{
	if (is_left_out(device, 1, 2))
		skip();
	for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
		train_options o = small_options(5);
		run ahead, behind;
		o.gradient_accumulation = accumulation;
		o.eval_every = 2;
		train_small(*state, &ahead, "additive", o, 0);
		plain = *device;
		device->fetch = NULL;
		train_small(*state, &behind, "additive", o, 0);
		device->fetch = plain.fetch;
		assert_memory_equal(ahead.weights, behind.weights, ahead.bytes);
		assert_memory_equal(ahead.loss, behind.loss, 5 * sizeof *ahead.loss);
		assert_true(ahead.valid == behind.valid);
		free(ahead.weights);
		free(behind.weights);
	}
}

static void failed_steps_are_reported_as_without_work_ahead(void **state)
{
	char message[2][512];
	for (int i = 0; i < 2; i++) {
		train_options o = small_options(20);
		error err = ERROR_INIT;
		unsigned events;
		const float wrong = NAN;
		plain = *device;
		if (i)
			device->fetch = NULL;
		trainer *t = small_trainer(*state, "additive", &o);
		const model *m = trainer_model(t);
		float *last = model_arena(m) + model_parameter_offset(m, model_tensor_count(m) - 1);
		assert_int_equal(device->upload(device, last, &wrong, sizeof wrong), STATUS_OK);
		while (trainer_advance(t, 0, &events, &err) == STATUS_OK)
			assert_int_equal(events, TRAIN_STEP);
		device->fetch = plain.fetch;
		assert_int_equal(err.status, STATUS_INVALID);
		snprintf(message[i], sizeof message[i], "%s", err.message);
		trainer_free(t);
	}
	assert_string_equal(message[0], message[1]);
}

/* A checkpoint may be requested at any moment, and belongs to the step in its name. */
static void a_run_saved_while_the_device_works_continues_from_there(void **state)
{
	const fixture *f = *state;
	train_options o = small_options(3);
	run whole, resumed;
	char path[128];
	unsigned events = 0;
	int moved = 0;
	snprintf(path, sizeof path, "%s/ahead", f->folder);
	o.gradient_accumulation = 2;
	train_small(f, &whole, "additive", o, 0);
	trainer *t = small_trainer(f, "additive", &o);
	const train_progress *p = trainer_progress(t);
	while (!(events & TRAIN_FINISHED)) {
		error err = ERROR_INIT;
		assert_int_equal(trainer_advance(t, 1, &events, NULL), STATUS_OK);
		int64_t step = p->step;
		if (trainer_save(t, f->tokenizer, path, "step", NULL, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		if (p->step == step)
			continue;
		moved++;
		assert_int_equal(p->step, step + 1);
		assert_int_equal(trainer_advance(t, 1, &events, NULL), STATUS_OK); /* reported late, but only once */
		assert_true(events & TRAIN_STEP && p->step == step + 1);
		trainer *u = small_trainer(f, "additive", &o);
		assert_int_equal(trainer_resume(u, path, NULL), STATUS_OK);
		run_to_the_end(&resumed, u, 0);
		assert_memory_equal(whole.weights, resumed.weights, whole.bytes);
		free(resumed.weights);
	}
	assert_in_range(moved, 2, 3);
	assert_true(p->valid_loss == whole.valid);
	trainer_free(t);
	free(whole.weights);
}

/* --- a device that sums ---------------------------------------------------------------------- */

static struct {
	status (*sum)(backend *b, float *numbers, int64_t n, float share);
	int count;
} summed;

static status count_sum(backend *b, float *numbers, int64_t n, float share)
{
	summed.count++;
	return summed.sum(b, numbers, n, share);
}

static status no_sum(ranks *r, float *numbers, int64_t n)
{
	(void)r, (void)numbers, (void)n;
	return STATUS_OK;
}

static status all_complete(ranks *r, bool *complete)
{
	(void)r;
	*complete = true;
	return STATUS_OK;
}

/* Sums over one rank change no bit, and neither do the parts in which the backward is issued. */
static void a_rank_that_sums_on_its_device_trains_to_the_same_bits(void **state)
{
	const fixture *f = *state;
	ranks alone = {.count = 1, .begin_sum = no_sum, .poll = all_complete, .devices = true};
	join_alone(device);
	summed.sum = device->collective_sum;
	device->collective_sum = count_sum;
	for (int bf16 = 0; bf16 < 2; bf16++) {
		if (is_left_out(device, bf16 + 1, 2))
			continue;
		train_options o = small_options(3);
		run whole, parts;
		o.batch_size = 2;
		o.precision = bf16 ? PRECISION_BF16 : PRECISION_FP32;
		run_to_the_end(&whole, trainer_of(f, several_buckets(), &o, NULL), 0);
		o.ranks = &alone;
		summed.count = 0;
		run_to_the_end(&parts, trainer_of(f, several_buckets(), &o, NULL), 0);
		assert_true(summed.count >= 2 * 3);
		for (int64_t i = 0; i < whole.steps; i++)
			assert_true(whole.loss[i] == parts.loss[i]);
		assert_memory_equal(whole.weights, parts.weights, whole.bytes);
		free(whole.weights);
		free(parts.weights);
	}
	device->collective_sum = summed.sum;
	device->collective_close(device, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(twenty_steps_agree_with_the_reference),
	    cmocka_unit_test(preferences_are_learned_as_on_the_host),
	    cmocka_unit_test(two_runs_have_the_same_bits),
	    cmocka_unit_test(recomputed_activations_change_no_bit),
	    cmocka_unit_test(a_refused_launch_fails_the_step_and_not_the_device),
	    cmocka_unit_test(losses_in_bf16_are_within_a_percent_of_fp32),
	    cmocka_unit_test(steps_of_muon_agree_with_those_of_the_cpu),
	    cmocka_unit_test(two_runs_of_muon_have_the_same_bits),
	    cmocka_unit_test(steps_of_trilinear_agree_with_those_of_the_cpu),
	    cmocka_unit_test(trained_weights_have_the_codes_of_the_cpu_bit_for_bit),
	    cmocka_unit_test(the_device_always_has_a_further_batch),
	    cmocka_unit_test(the_first_batch_is_issued_node_by_node),
	    cmocka_unit_test(a_trainer_that_may_not_wait_looks_once),
	    cmocka_unit_test(issuing_work_ahead_changes_no_bit),
	    cmocka_unit_test(failed_steps_are_reported_as_without_work_ahead),
	    cmocka_unit_test(a_run_saved_while_the_device_works_continues_from_there),
	    cmocka_unit_test(a_rank_that_sums_on_its_device_trains_to_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_all, close_all);
}
