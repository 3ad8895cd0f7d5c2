/* Training that carries state: a transformer with max_mem_len, beside a loop that reads each lane by itself in the form
 * of segments whose memories are inputs. */
#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/model/transformer/transformer.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/record.h"
#include "tests/unit/train/fixture.h"

enum { HIDDEN = 8, LAYERS = 2, MEMORY = 24, LANES = 6, BATCH = 3, STEPS = 13, VALID_BATCHES = 3 };

static model *recurrent_model(const fixture *f, const char *more)
{
	char text[500];
	snprintf(
	    text, sizeof text,
	    "{\"stack\": \"decoder\", \"num_tokens\": 259, \"dim\": 8, \"depth\": 2, \"heads\": 2, \"attn_dim_head\": "
	    "4, \"ff_mult\": 1, \"max_seq_len\": 16, \"max_mem_len\": 24%s}",
	    more);
	json_t *config = json_loads(text, 0, NULL);
	model *m;
	error err = ERROR_INIT;
	status s = model_create(&m, &architecture_transformer, config, 3, f->backend, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	json_decref(config);
	return m;
}

static train_options options(void)
{
	train_options o = fixture_options();
	o.carry_state = true;
	o.gradient_accumulation = LANES / BATCH;
	o.max_steps = STEPS;
	return o;
}

static trainer *make(const fixture *f, const char *more, const train_options *o)
{
	trainer *t;
	error err = ERROR_INIT;
	status s = trainer_new(&t, recurrent_model(f, more), o, f->train, f->valid, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

/* --- by hand -------------------------------------------------------------------------------------- */

/* A lane, and the rows of its earlier segments. */
typedef struct lane {
	int64_t memory;
	float rows[LAYERS][MEMORY * HIDDEN];
} lane;

/* Read a record with weights of m; its loss, and its gradient / `parts` is added to `gradient`, if there is one. */
static double read_record(const model *m, lane *l, const text_record *r, float *gradient, int parts)
{
	const int64_t floats = model_arena_floats(m);
	float *own = calloc((size_t)floats, sizeof *own);
	int32_t labels[FIXTURE_LENGTH];
	float loss;
	plan *p;
	const forward_spec spec = {.batch = 1,
	                           .length = FIXTURE_LENGTH,
	                           .memory = l->memory,
	                           .memories = true,
	                           .loss = true,
	                           .backward = gradient != NULL};
	assert_int_equal(model_plan(&p, m, &spec, own, NULL, NULL), STATUS_OK);
	for (int i = 0; i < FIXTURE_LENGTH; i++)
		labels[i] = i + 1 < FIXTURE_LENGTH ? r->ids[i + 1] : -1;
	assert_int_equal(feed_write(p, PORT_TOKENS, r->ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	for (int i = 0; i < LAYERS && l->memory; i++) {
		char name[32];
		snprintf(name, sizeof name, "memory.%d", i);
		assert_int_equal(plan_write(p, graph_find(plan_graph(p), name), l->rows[i]), STATUS_OK);
	}
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOSS), &loss), STATUS_OK);
	const transformer_config *c = model_config(m);
	const int64_t left = l->memory + transformer_head(c)->options.num_memory_tokens + FIXTURE_LENGTH;
	l->memory = left < MEMORY ? left : MEMORY;
	for (int i = 0; i < LAYERS; i++) {
		char name[32];
		snprintf(name, sizeof name, "next.memory.%d", i);
		value v = graph_find(plan_graph(p), name);
		assert_int_equal(shape_rows(graph_value(plan_graph(p), v)->shape), l->memory);
		assert_int_equal(plan_read(p, v, l->rows[i]), STATUS_OK);
	}
	for (int64_t i = 0; i < floats && gradient; i++)
		gradient[i] += own[i] / (float)parts;
	plan_free(p);
	free(own);
	return (double)loss;
}

static double norm_of(const float *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sqrt(sum);
}

static void take_weights(const fixture *f, model *to, const trainer *t)
{
	assert_int_equal(f->backend->copy(f->backend, model_arena(to), model_arena(trainer_model(t)),
	                                  (size_t)model_arena_floats(to) * sizeof(float)),
	                 STATUS_OK);
}

/* Of what an evaluation reads: VALID_BATCHES records a lane, the last lanes one fewer. */
static double evaluate(const fixture *f, const model *m)
{
	double sum = 0;
	const int64_t records = dataset_records(f->valid);
	assert_int_equal((records + BATCH - 1) / BATCH, VALID_BATCHES);
	lane l;
	for (int64_t i = 0; i < records; i++) {
		const text_record r = record_at(f->valid, 0, 0, i);
		l.memory = i % VALID_BATCHES ? l.memory : 0;
		sum += read_record(m, &l, &r, NULL, 1);
	}
	return sum / (double)records;
}

/* More steps than an epoch has, so that lanes begin again and, in the middle of one, the text does. */
static void carried_steps_are_those_of_segments_with_the_memories_of_the_step_before(void **state)
{
	const fixture *f = *state;
	static const char *const cases[] = {
	    ", \"rel_pos_bias\": true, \"rel_pos_num_buckets\": 8, \"rel_pos_max_distance\": 20",
	    ", \"rotary_pos_emb\": true, \"shift_mem_down\": 1, \"shift_tokens\": 1, \"attn_sparse_topk\": 3",
	    ", \"alibi_pos_bias\": true, \"raw_memory\": true, \"attn_max_attend_past\": 20, \"residual_attn\": true",
	    ", \"rel_pos_bias\": true, \"num_memory_tokens\": 3, \"shift_tokens\": 1",
	};
	const train_options o = options();
	const int64_t records = dataset_records(f->train), length = records / LANES;
	assert_true(length < STEPS && records % LANES != 0);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		trainer *t = make(f, cases[c], &o);
		model *m = recurrent_model(f, cases[c]);
		lane *lanes = calloc(LANES, sizeof *lanes);
		float *gradient = malloc((size_t)model_arena_floats(m) * sizeof *gradient);
		int began = 0;
		for (int64_t step = 0; step < STEPS; step++) {
			double loss = 0;
			memset(gradient, 0, (size_t)model_arena_floats(m) * sizeof *gradient);
			take_weights(f, m, t);
			for (int64_t r = 0; r < LANES; r++) {
				const int64_t number = (step / length * LANES + r) * length + step % length;
				const text_record record = record_at(f->train, 0, number / records, number % records);
				if (step % length == 0 || number % records == 0) {
					lanes[r].memory = 0;
					began += step % length != 0;
				}
				loss += read_record(m, &lanes[r], &record, gradient, LANES) / LANES;
			}
			fixture_run(t, step + 1, 0);
			const train_progress *p = trainer_progress(t);
			const double norm = norm_of(gradient, model_arena_floats(m));
			if (!(fabs(p->train_loss - loss) <= 1e-5 * loss) ||
			    !(fabs(p->gradient_norm - norm) <= 1e-4 * norm))
				fail_msg("step %d: loss %g, not %g, norm %g, not %g with %s", (int)step, p->train_loss,
				         loss, p->gradient_norm, norm, cases[c]);
		}
		assert_int_equal(began, 1);
		unsigned events = 0;
		while (!(events & TRAIN_FINISHED))
			assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		take_weights(f, m, t);
		const double valid = evaluate(f, m);
		assert_true(fabs(trainer_progress(t)->valid_loss - valid) <= 1e-5 * valid);
		free(gradient);
		free(lanes);
		model_free(m);
		trainer_free(t);
	}
}

/* --- checkpoints ------------------------------------------------------------------------------------ */

static const char *const dropped = ", \"alibi_pos_bias\": true, \"attn_dropout\": 0.1";

static void path_of(char out[128], const fixture *f, const char *name)
{
	snprintf(out, 128, "%s/%s", f->folder, name);
}

/* The steps from where it is to the end. */
static void finish(trainer *t, double losses[STEPS])
{
	unsigned events = 0;
	while (!(events & TRAIN_FINISHED)) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		if (events & TRAIN_STEP)
			losses[trainer_progress(t)->step - 1] = trainer_progress(t)->train_loss;
	}
}

static void a_run_that_is_saved_within_a_step_resumes_with_what_its_rows_carried(void **state)
{
	const fixture *f = *state;
	const train_options o = options();
	double whole[STEPS], again[STEPS];
	char path[128], file[160];
	path_of(path, f, "carried");
	trainer *a = make(f, dropped, &o), *b = make(f, dropped, &o), *c = make(f, dropped, &o);
	finish(a, whole);
	memcpy(again, whole, sizeof again);
	fixture_run(b, 7, 0);
	for (unsigned events = 0, i = 0; i < 150; i++) /* one micro-batch of step 7 has left its rows by now */
		assert_int_equal(trainer_advance(b, 1, &events, NULL), STATUS_OK);
	assert_int_equal(trainer_progress(b)->step, 7);
	assert_int_equal(trainer_save(b, f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
	fixture_run(c, 2, 0);
	assert_int_equal(trainer_resume(c, path, NULL), STATUS_OK);
	memset(again + 7, 0, (STEPS - 7) * sizeof *again);
	finish(c, again);
	assert_memory_equal(whole, again, sizeof whole);
	assert_same_weights(f, a, c);
	assert_true(trainer_progress(a)->valid_loss == trainer_progress(c)->valid_loss);
	/* without the file, or without a state in it, there is no way on */
	snprintf(file, sizeof file, "%s/carried.safetensors", path);
	assert_int_equal(remove(file), 0);
	assert_int_equal(trainer_resume(c, path, NULL), STATUS_STORAGE);
	trainer_free(a);
	trainer_free(b);
	trainer_free(c);
}

static void what_cannot_carry_is_refused_by_name(void **state)
{
	const fixture *f = *state;
	trainer *t;
	error err = ERROR_INIT;
	train_options o = options();
	assert_int_equal(trainer_new(&t, fixture_model(f, 0), &o, f->train, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "carry_state");
	err = (error)ERROR_INIT;
	assert_int_equal(trainer_new(&t, recurrent_model(f, ", \"alibi_pos_bias\": true, \"mask_prob\": 0.1"), &o,
	                             f->train, NULL, &err),
	                 STATUS_INVALID);
	assert_string_equal(err.param, "carry_state");
	err = (error)ERROR_INIT;
	o.gradient_accumulation = dataset_records(f->train) / BATCH + 1;
	assert_int_equal(trainer_new(&t, recurrent_model(f, ""), &o, f->train, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "gradient_accumulation");
}

static void every_allocation_may_fail(void **state)
{
	const fixture *f = *state;
	const train_options o = options();
	char path[128];
	path_of(path, f, "scarce");
	trainer *t = NULL;
	status s = STATUS_NOMEM;
	for (int64_t limit = 0; s == STATUS_NOMEM; limit += 3) {
		error err = ERROR_INIT;
		model *m = recurrent_model(f, dropped);
		allocations_limit(limit);
		s = trainer_new(&t, m, &o, f->train, f->valid, &err);
		allocations_limit(-1);
		assert_true((s == STATUS_OK) == (t != NULL) && (s == STATUS_OK) == (err.message[0] == 0));
	}
	assert_int_equal(s, STATUS_OK);
	fixture_run(t, 1, 0);
	s = STATUS_NOMEM;
	for (int64_t limit = 0; s == STATUS_NOMEM; limit += 3) {
		allocations_limit(limit);
		s = trainer_save(t, f->tokenizer, path, "step", NULL, NULL);
		allocations_limit(-1);
	}
	assert_int_equal(s, STATUS_OK);
	assert_int_equal(trainer_resume(t, path, NULL), STATUS_OK);
	trainer_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(carried_steps_are_those_of_segments_with_the_memories_of_the_step_before),
	    cmocka_unit_test(a_run_that_is_saved_within_a_step_resumes_with_what_its_rows_carried),
	    cmocka_unit_test(what_cannot_carry_is_refused_by_name),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
