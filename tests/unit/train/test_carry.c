/* Training that carries state. A transformer with max_mem_len is compared with a loop that reads each lane separately,
 * in segments whose memories are inputs. Recurrent models are compared with the parallel form of everything that a lane
 * has read. */
#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/model/safetensors.h"
#include "engine/model/transformer/transformer.h"
#include "engine/train/trainer_private.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/record.h"
#include "tests/unit/support/slot_with_logs.h"
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

/* Read a record with weights of m; returns its loss. Its gradient / `parts` is added to `gradient` unless NULL. */
static double read_record(const model *m, lane *l, const text_record *r, float *gradient, int parts)
{
	const int64_t floats = model_arena_floats(m);
	float *own = calloc((size_t)floats, sizeof *own);
	int32_t labels[FIXTURE_LENGTH];
	float loss;
	plan *p;
	const forward_input memory[] = {{.name = STACK_MEMORY, .rows = l->memory}, {0}};
	const forward_spec spec = {.batch = 1,
	                           .length = FIXTURE_LENGTH,
	                           .inputs = memory,
	                           .train.loss = true,
	                           .train.backward = gradient != NULL};
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

/* Mean loss of the records that an evaluation reads: VALID_BATCHES per lane, one fewer in the last lanes. */
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

/* More steps than an epoch has, so that lanes start again and, within a lane, so does the text. */
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

/* --- the state of sessions ------------------------------------------------------------------------ */

static const char *const recurrences[] = {
    "{\"hidden_size\": 16, \"vocab_size\": 259, \"n_heads\": 2, \"n_positions\": 900, \"position_embedding\": "
    "\"none\", "
    "\"n_layer\": 3, \"window_sizes\": [5, 40, 900], \"hidden_dropout_prob\": 0}",
    "{\"model_type\": \"linear\", \"hidden_size\": 16, \"vocab_size\": 259, \"n_heads\": 2, "
    "\"n_layer\": 2, \"position_embedding\": \"none\", \"n_positions\": 900, \"hidden_dropout_prob\": 0}",
};
enum { RECURRENCES = sizeof recurrences / sizeof *recurrences };

static model *recurrence(const fixture *f, int i)
{
	json_t *config = json_loads(recurrences[i], 0, NULL);
	model *m;
	error err = ERROR_INIT;
	status s = model_create(&m, architecture_of(config), config, 3, f->backend, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	json_decref(config);
	/* Scores of the additive kind are initialized to zero: give them weights that differ from token to token. */
	const int64_t n = model_arena_floats(m);
	float *w = fixture_weights(f, m);
	for (int p = 0; p < model_tensor_count(m); p++)
		for (int64_t k = 0, at = model_parameter_offset(m, p); k < shape_count(model_parameter(m, p)->shape);
		     k++, at++)
			w[at] += w[at] == 0 ? 0.3F * (philox_uniform(philox(9, 0, 0, (uint64_t)at).word[0]) - 0.5F) : 0;
	assert_int_equal(f->backend->upload(f->backend, model_arena(m), w, (size_t)n * sizeof *w), STATUS_OK);
	free(w);
	return m;
}

/* The mean loss of the last block of a lane of `blocks`, read in one call. */
static double last_block(const model *m, const int32_t *ids, int64_t blocks)
{
	const int64_t length = blocks * FIXTURE_LENGTH;
	int32_t *labels = malloc((size_t)length * sizeof *labels);
	float loss;
	plan *p;
	const forward_spec spec = {.batch = 1, .length = length, .train.loss = true};
	for (int64_t i = 0; i < length; i++)
		labels[i] = i >= length - FIXTURE_LENGTH && i + 1 < length ? ids[i + 1] : -1;
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOSS), &loss), STATUS_OK);
	plan_free(p);
	free(labels);
	return (double)loss;
}

/* With a rate near 0, so that all blocks are read with the same weights. */
static void recurrent_rows_continue_as_if_their_lane_were_read_in_one_call(void **state)
{
	const fixture *f = *state;
	train_options o = options();
	o.learning_rate = 1e-12;
	const int64_t records = dataset_records(f->train), length = records / LANES;
	for (int kind = 0; kind < RECURRENCES; kind++) {
		trainer *t;
		model *m = recurrence(f, kind);
		assert_int_equal(trainer_new(&t, recurrence(f, kind), &o, f->train, f->valid, NULL), STATUS_OK);
		int32_t ids[LANES][STEPS * FIXTURE_LENGTH];
		int64_t read[LANES] = {0};
		for (int64_t step = 0; step < STEPS; step++) {
			double loss = 0;
			for (int64_t r = 0; r < LANES; r++) {
				const int64_t number = (step / length * LANES + r) * length + step % length;
				const text_record record = record_at(f->train, 0, number / records, number % records);
				read[r] = step % length == 0 || number % records == 0 ? 0 : read[r];
				memcpy(ids[r] + read[r]++ * FIXTURE_LENGTH, record.ids,
				       FIXTURE_LENGTH * sizeof(int32_t));
				loss += last_block(m, ids[r], read[r]) / LANES;
			}
			fixture_run(t, step + 1, 0);
			if (!(fabs(trainer_progress(t)->train_loss - loss) <= 1e-5 * loss))
				fail_msg("kind %d, step %d: loss %.9g, not %.9g", kind, (int)step,
				         trainer_progress(t)->train_loss, loss);
		}
		trainer_free(t);
		model_free(m);
	}
}

/* Loss of one block of two rows that continue from `pool`, with weights w + e · direction. */
static double carried_loss(const fixture *f, const model *m, plan *p, float *pool, const float *before, int64_t floats,
                           const float *w, const float *direction, double e)
{
	const int64_t n = model_arena_floats(m);
	float *moved = malloc((size_t)n * sizeof *moved), loss;
	for (int64_t i = 0; i < n; i++)
		moved[i] = (float)(w[i] + e * direction[i]);
	memcpy(pool, before, (size_t)floats * sizeof *pool);
	assert_int_equal(f->backend->upload(f->backend, model_arena(m), moved, (size_t)n * sizeof *moved), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOSS), &loss), STATUS_OK);
	free(moved);
	return (double)loss;
}

static void gradients_of_recurrent_rows_treat_the_carried_state_as_constant(void **state)
{
	enum { ROWS = 2, BLOCKS = 3, DIRECTIONS = 6 };
	const fixture *f = *state;
	for (int kind = 0; kind < RECURRENCES; kind++) {
		model *m = recurrence(f, kind);
		const int64_t n = model_arena_floats(m), floats = ROWS * model_carried(m)->floats;
		float *gradient = calloc((size_t)n, sizeof *gradient), *pool = calloc((size_t)floats, sizeof *pool),
		      *before = calloc((size_t)floats, sizeof *before), *w = fixture_weights(f, m),
		      *direction = calloc((size_t)n, sizeof *direction);
		plan *p;
		const forward_spec spec = {.batch = ROWS,
		                           .length = FIXTURE_LENGTH,
		                           .train.loss = true,
		                           .train.backward = true,
		                           .train.carried = true};
		assert_int_equal(model_plan(&p, m, &spec, gradient, pool, NULL), STATUS_OK);
		assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
		for (int block = 0; block < BLOCKS; block++) {
			int32_t ids[ROWS * FIXTURE_LENGTH], labels[ROWS * FIXTURE_LENGTH], position[ROWS];
			for (int i = 0; i < ROWS * FIXTURE_LENGTH; i++) {
				ids[i] = 3 + (int)(philox(4, 0, (uint32_t)block, (uint64_t)i).word[0] % 250);
				labels[i] = i % FIXTURE_LENGTH ? ids[i] : -1;
			}
			position[0] = position[1] = block * FIXTURE_LENGTH;
			memcpy(before, pool, (size_t)floats * sizeof *pool);
			assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
			assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
			assert_int_equal(feed_carried(p, position), STATUS_OK);
			assert_int_equal(plan_run(p), STATUS_OK);
		}
		float *analytic = malloc((size_t)n * sizeof *analytic);
		memcpy(analytic, gradient, (size_t)n * sizeof *analytic);
		for (int d = 0; d < DIRECTIONS; d++) {
			double along = 0, length = 0;
			for (int64_t i = 0; i < n; i++) {
				const float x = philox_uniform(philox(6, 0, (uint32_t)d, (uint64_t)i).word[0]) - 0.5F;
				direction[i] = analytic[i] * (1 + x); /* mostly uphill, so that the loss changes */
				along += (double)analytic[i] * direction[i];
				length += (double)direction[i] * direction[i];
			}
			const double e = 0.02 / sqrt(length);
			const double up = carried_loss(f, m, p, pool, before, floats, w, direction, e),
			             down = carried_loss(f, m, p, pool, before, floats, w, direction, -e);
			if (!(fabs((up - down) / (2 * e) - along) <= 2e-3 * along))
				fail_msg("kind %d: %.9g, not %.9g", kind, along, (up - down) / (2 * e));
		}
		free(analytic), free(gradient), free(pool), free(before), free(w), free(direction);
		plan_free(p);
		model_free(m);
	}
}

/* --- checkpoints ------------------------------------------------------------------------------------ */

static void recurrent_rows_resume_bit_for_bit(void **state)
{
	const fixture *f = *state;
	train_options o = options();
	o.eval_every = 4;
	char path[128];
	snprintf(path, sizeof path, "%s/recurrent", f->folder);
	for (int kind = 0; kind < RECURRENCES; kind++) {
		trainer *runs[3];
		double losses[3][STEPS] = {{0}};
		for (int i = 0; i < 3; i++)
			assert_int_equal(trainer_new(&runs[i], recurrence(f, kind), &o, f->train, f->valid, NULL),
			                 STATUS_OK);
		unsigned events;
		fixture_run(runs[1], 7, 0);
		for (int i = 0; i < 90; i++)
			assert_int_equal(trainer_advance(runs[1], 1, &events, NULL), STATUS_OK);
		assert_int_equal(trainer_save(runs[1], f->tokenizer, path, "step", NULL, NULL), STATUS_OK);
		fixture_run(runs[2], 3, 0);
		assert_int_equal(trainer_resume(runs[2], path, NULL), STATUS_OK);
		for (int i = 0; i < 3; i += 2)
			for (events = 0; !(events & TRAIN_FINISHED);) {
				assert_int_equal(trainer_advance(runs[i], 0, &events, NULL), STATUS_OK);
				if (events & TRAIN_STEP)
					losses[i][trainer_progress(runs[i])->step - 1] =
					    trainer_progress(runs[i])->train_loss;
			}
		assert_memory_equal(losses[0] + 7, losses[2] + 7, (STEPS - 7) * sizeof(double));
		assert_same_weights(f, runs[0], runs[2]);
		assert_true(trainer_progress(runs[0])->valid_loss == trainer_progress(runs[2])->valid_loss);
		for (int i = 0; i < 3; i++)
			trainer_free(runs[i]);
	}
}

static const char *const dropped = ", \"alibi_pos_bias\": true, \"attn_dropout\": 0.1";

static void path_of(char out[128], const fixture *f, const char *name)
{
	snprintf(out, 128, "%s/%s", f->folder, name);
}

/* Run the remaining steps. */
static void finish(trainer *t, double losses[STEPS])
{
	unsigned events = 0;
	while (!(events & TRAIN_FINISHED)) {
		assert_int_equal(trainer_advance(t, 0, &events, NULL), STATUS_OK);
		if (events & TRAIN_STEP)
			losses[trainer_progress(t)->step - 1] = trainer_progress(t)->train_loss;
	}
}

static void a_run_saved_within_a_step_resumes_with_the_state_of_its_rows(void **state)
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
	for (unsigned events = 0, i = 0; i < 150; i++) /* by now, one micro-batch of step 7 has advanced its rows */
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
	/* without the file, or without a state in it, the run cannot resume */
	snprintf(file, sizeof file, "%s/carried.safetensors", path);
	assert_int_equal(remove(file), 0);
	assert_int_equal(trainer_resume(c, path, NULL), STATUS_STORAGE);
	trainer_free(a);
	trainer_free(b);
	trainer_free(c);
}

/* Write a file of carried states as it was before running sums. */
static void write_logs(const model *m, const char *from, const char *to)
{
	const state_list *list = model_states(m);
	const int64_t after = state_list_slot(list), before = state_list_slot_with_logs(list);
	safetensors *file;
	assert_int_equal(safetensors_open(&file, from, NULL), STATUS_OK);
	const safetensors_entry *sums = safetensors_find(file, "pool.sums"),
	                        *position = safetensors_find(file, "position");
	assert_non_null(sums);
	const int64_t rows = sums->count / after;
	float *slots = calloc((size_t)(rows * (after + before)), sizeof *slots), *logs = slots + rows * after;
	float *positions = calloc((size_t)rows, sizeof *positions);
	assert_int_equal(safetensors_load_f32(file, sums, 0, rows * after, slots, NULL), STATUS_OK);
	assert_int_equal(safetensors_load_f32(file, position, 0, rows, positions, NULL), STATUS_OK);
	for (int64_t row = 0; row < rows; row++)
		slot_with_logs(list, slots + row * after, logs + row * before);
	const safetensors_item items[] = {
	    {.name = "pool", .type = ST_F32, .rank = 2, .dim = {rows, before}, .data = logs},
	    {.name = "position", .type = ST_F32, .rank = 1, .dim = {rows}, .data = positions}};
	assert_int_equal(safetensors_write(to, items, 2, NULL, NULL), STATUS_OK);
	safetensors_close(file);
	free(slots);
	free(positions);
}

static void rows_with_logarithms_continue(void **state)
{
	const fixture *f = *state;
	const train_options o = options();
	enum { BEFORE = 3 };
	char new[128], old[128];
	path_of(new, f, "sums.safetensors");
	path_of(old, f, "logs.safetensors");
	trainer *a, *b;
	json_t *config =
	    json_loads("{\"hidden_size\": 16, \"vocab_size\": 259, \"n_heads\": 2, \"n_layer\": 2}", 0, NULL);
	model *m[2];
	for (int i = 0; i < 2; i++)
		assert_int_equal(model_create(&m[i], &architecture_additive2, config, 3, f->backend, NULL), STATUS_OK);
	json_decref(config);
	assert_int_equal(trainer_new(&a, m[0], &o, f->train, f->valid, NULL), STATUS_OK);
	assert_int_equal(trainer_new(&b, m[1], &o, f->train, f->valid, NULL), STATUS_OK);
	fixture_run(a, BEFORE, 0);
	fixture_run(b, BEFORE, 0);
	assert_int_equal(carry_write(a->train_carry, BEFORE, new, NULL), STATUS_OK);
	write_logs(m[0], new, old);
	assert_int_equal(carry_read(b->train_carry, BEFORE, old, NULL, NULL), STATUS_OK);
	fixture_run(a, BEFORE + 1, 0);
	fixture_run(b, BEFORE + 1, 0);
	const double want = trainer_progress(a)->train_loss, got = trainer_progress(b)->train_loss;
	if (!(fabs(got - want) <= 1e-6 * want))
		fail_msg("the loss is %.9g, must be %.9g", got, want);
	trainer_free(a);
	trainer_free(b);
}

static void options_that_cannot_carry_state_are_refused_by_name(void **state)
{
	const fixture *f = *state;
	trainer *t;
	error err = ERROR_INIT;
	train_options o = options();
	o.recompute = true;
	assert_int_equal(trainer_new(&t, recurrence(f, 0), &o, f->train, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "recompute");
	err = (error)ERROR_INIT;
	o.recompute = false;
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
	    cmocka_unit_test(recurrent_rows_continue_as_if_their_lane_were_read_in_one_call),
	    cmocka_unit_test(gradients_of_recurrent_rows_treat_the_carried_state_as_constant),
	    cmocka_unit_test(recurrent_rows_resume_bit_for_bit),
	    cmocka_unit_test(a_run_saved_within_a_step_resumes_with_the_state_of_its_rows),
	    cmocka_unit_test(rows_with_logarithms_continue),
	    cmocka_unit_test(options_that_cannot_carry_state_are_refused_by_name),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
