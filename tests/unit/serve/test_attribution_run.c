/* Attributions of scores to tokens, by every method, through score_request. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/kinds.h"

#include <math.h>

enum { N = 21, METHODS = 5 };

static const explain_options methods[METHODS] = {
    {.method = EXPLAIN_CONTRIBUTIONS, .share = 0.5f},    {.method = EXPLAIN_GRADIENT},
    {.method = EXPLAIN_INTEGRATED, .steps = 5},          {.method = EXPLAIN_LEAVE_ONE_OUT, .replacement = -1},
    {.method = EXPLAIN_LEAVE_ONE_OUT, .replacement = 9},
};

typedef struct caller {
	score_task *scoring;
	score_sequence sequence;
	score_task_request request;
	explain_parts parts;
	float words[N], positions[N], biases[N], attention[N];
	int32_t ids[N];
	int finished;
	status status;
} caller;

static void finished(void *context, status s, const error *err)
{
	caller *c = context;
	(void)err;
	c->finished++;
	c->status = s;
}

static void begin(const fixture *f, caller *c, const explain_options *o)
{
	*c = (caller){.sequence = {.count = N, .target = {.token = 2, .other = -1}}};
	for (int i = 0; i < N; i++)
		c->ids[i] = i == N - 1 ? 2 : i * 37 % 250 + 5;
	c->sequence.ids = c->ids;
	c->sequence.parts = &c->parts;
	c->parts = (explain_parts){
	    .words = c->words, .positions = c->positions, .biases = c->biases, .attention = c->attention};
	c->request = (score_task_request){
	    .sequences = &c->sequence, .n_sequences = 1, .explain = *o, .finished = finished, .context = c};
	assert_int_equal(scheduler_score(f->scheduler, f->model, &c->request, &c->scoring, NULL), STATUS_OK);
}

static void explain(fixture *f, caller *c, const explain_options *o)
{
	begin(f, c, o);
	drain(f);
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->status, STATUS_OK);
	assert_int_equal(f->model->users, 0);
}

static void assert_near(const float *a, const float *b, double tolerance)
{
	for (int i = 0; i < N; i++)
		if (!(fabs((double)a[i] - (double)b[i]) <= tolerance))
			fail_msg("token %d: %g, must be %g", i, (double)a[i], (double)b[i]);
}

static status never_records(backend *b)
{
	(void)b;
	return STATUS_UNSUPPORTED;
}

/* Plans that keep their shapes have more rows than the sequence has tokens. */
static void rows_after_the_sequence_have_no_part(void **state)
{
	(void)state;
	for (int kind = 0; kind <= BART; kind++)
		for (int i = 0; i < METHODS; i++) {
			fixture f;
			static caller exact, padded;
			open_named(&f, kind, DTYPE_PANEL_F32, false);
			explain(&f, &exact, &methods[i]);
			read_pass_free_all(f.model);
			f.backend->record_begin = never_records;
			explain(&f, &padded, &methods[i]);
			f.backend->record_begin = NULL;
			assert_true(fabs(exact.parts.score - padded.parts.score) < 1e-5);
			assert_near(padded.words, exact.words, 1e-5);
			assert_near(padded.positions, exact.positions, 1e-5);
			assert_near(padded.biases, exact.biases, 1e-5);
			assert_near(padded.attention, exact.attention, 1e-5);
			fixture_close(&f);
		}
}

/* The second run uses the plans of the first. */
static void parts_sum_to_the_score_with_weights_of_every_type(void **state)
{
	(void)state;
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	for (int kind = 0; kind <= BART; kind++)
		for (int t = 0; t < 3; t++) {
			fixture f;
			static caller c;
			open_named(&f, kind, types[t], t == 0);
			for (int i = 0; i < 2; i++) {
				explain(&f, &c, &methods[0]);
				double sum = c.parts.head;
				for (int j = 0; j < N; j++)
					sum += (double)c.words[j] + (double)c.positions[j] + (double)c.biases[j];
				if (!(fabs(sum - c.parts.score) < (t == 2 ? 0.01 * fabs(c.parts.score) + 0.05 : 1e-4)))
					fail_msg("%s, type %d: %g, must be %g", models[kind].name, t, sum,
					         c.parts.score);
				assert_int_equal(c.parts.token, 2);
			}
			fixture_close(&f);
		}
}

static void a_cancelled_attribution_frees_its_slots(void **state)
{
	(void)state;
	for (int i = 0; i < METHODS; i++) {
		fixture f;
		static caller c;
		open_named(&f, 0, DTYPE_PANEL_F32, false);
		begin(&f, &c, &methods[i]);
		for (int tick = 0; tick < 2 && scheduler_runnable(f.scheduler); tick++)
			assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		if (!c.finished)
			score_task_cancel(c.scoring);
		drain(&f);
		assert_int_equal(c.finished, 1);
		assert_int_equal(f.model->users, 0);
		fixture_close(&f);
	}
}

/* The n-th call of each kind fails in turn. */
static void a_failure_ends_an_attribution_and_the_next_one_gives_the_same(void **state)
{
	(void)state;
	static const fault_kind kinds[] = {FAULT_KERNEL, FAULT_TRANSFER, FAULT_ALLOCATE};
	for (int i = 0; i < METHODS; i++) {
		fixture f;
		static caller good, c;
		fixture_folder(&f);
		fault_backend *fault = fault_backend_new(f.backend);
		f.backend = &fault->base;
		write_named(&f, 0);
		fixture_serve(&f, &roomy);
		explain(&f, &good, &methods[i]);
		for (int kind = 0; kind < 3; kind++) {
			bool struck = true;
			for (int64_t n = 0; struck; n = n * 2 + 1) {
				read_pass_free_all(f.model);
				fault_arm(fault, kinds[kind], n, false);
				begin(&f, &c, &methods[i]);
				status s = STATUS_OK;
				while (s == STATUS_OK && scheduler_runnable(f.scheduler))
					s = scheduler_tick(f.scheduler);
				struck = fault->struck;
				fault->left = -1;
				assert_int_equal(c.finished, 1);
				assert_int_equal(c.status, !struck    ? STATUS_OK
				                           : kind < 2 ? STATUS_DEVICE
				                                      : STATUS_NOMEM);
				assert_int_equal(f.model->users, 0);
			}
			assert_memory_equal(c.words, good.words, sizeof c.words);
		}
		fixture_close(&f);
	}
}

static void a_target_that_is_no_output_is_refused(void **state)
{
	(void)state;
	fixture f;
	static caller c;
	error err = ERROR_INIT;
	open_named(&f, ENCODER, DTYPE_PANEL_F32, false);
	explain(&f, &c, &methods[0]);
	c.sequence.target.token = 3;
	assert_int_equal(scheduler_score(f.scheduler, f.model, &c.request, &c.scoring, &err), STATUS_INVALID);
	assert_string_equal(err.param, "target");
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rows_after_the_sequence_have_no_part),
	    cmocka_unit_test(parts_sum_to_the_score_with_weights_of_every_type),
	    cmocka_unit_test(a_cancelled_attribution_frees_its_slots),
	    cmocka_unit_test(a_failure_ends_an_attribution_and_the_next_one_gives_the_same),
	    cmocka_unit_test(a_target_that_is_no_output_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
