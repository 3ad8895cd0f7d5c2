/* Steps of training 3Lin, profile S, on one batch by its own optimiser, under its own tensor names (trilinear_set.h).
 *
 * Reads w0.NAME; tokens_frag{0,1,…}; config: "lr", "steps". Values:
 *
 *   w{t}.NAME                       weights after t steps, for t = 1 and t = steps
 *   score [steps + 1]               the mean of lnp_target before each step and after the last
 *   w{t}.{E,F}.{row_disp,sum_weight}
 *                                   the weighted sum of squares of each row's gradients, with lower weights for
 *                                   earlier ones, and the sum of these weights; 0 for a table that is not trained
 *   label_arr, label_ptr, target_node, target_id, {narrow,wide}_span_{start,finish,ptr}
 *                                   label_results.h
 *
 * Squares are in the source's units, in which a gradient of the sum of lnp_target is a quarter as large. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/training.h"
#include "tests/golden/trilinear_set.h"
#include "engine/model/feed.h"

enum { MAX_STEPS = 1 << 16, NAME_BYTES = 32 };
#define ROW_DECAY 0.99F
#define SOURCE_SHARE 0.25

static bool recognises(const golden *g)
{
	return trilinear_set_has(g, "w0.");
}

static status add_weights(const trilinear_texts *t, const parameter_spec *p, int64_t offset, const char *prefix,
                          error *err)
{
	void *values;
	TRY(golden_memory(t->g, shape_count(p->shape), sizeof(float), &values, err));
	status s = t->g->backend->download(t->g->backend, values, model_arena(t->m) + offset,
	                                   (size_t)shape_count(p->shape) * sizeof(float));
	return s == STATUS_OK ? trilinear_set_result(t, p, values, 1, prefix, err)
	                      : error_set(err, s, NULL, "cannot read the weights");
}

/* Add the statistics of a table's rows, which begin at `first`. NULL: the table is not trained and has none. */
static status add_statistics(const trilinear_texts *t, const parameter_spec *p, const float *first, int64_t steps,
                             const char *prefix, error *err)
{
	const int64_t rows = shape_rows(p->shape);
	const double unit = SOURCE_SHARE * (double)t->targets;
	char name[TRILINEAR_SET_NAME_BYTES];
	float *out, *sum;
	void *memory;
	trilinear_set_name(t, p, name);
	TRY(golden_result(t->g, EXTENT(rows), &out, err, "%s%s.row_disp", prefix, name));
	TRY(golden_result(t->g, EXTENT(1), &sum, err, "%s%s.sum_weight", prefix, name));
	if (!first)
		return STATUS_OK;
	TRY(golden_memory(t->g, rows, sizeof(float), &memory, err));
	const float *values = memory;
	status s = t->g->backend->download(t->g->backend, memory, first, (size_t)rows * sizeof(float));
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "cannot read the statistics");
	for (int64_t r = 0; r < rows; r++)
		out[trilinear_set_row(p, r)] = (float)(unit * unit * (double)values[r]);
	*sum = (float)((1 - pow((double)ROW_DECAY, (double)steps)) / (1 - (double)ROW_DECAY));
	return STATUS_OK;
}

/* Add all values after this number of steps. */
static status add_all(const trilinear_texts *t, const training *run, int64_t steps, error *err)
{
	char prefix[NAME_BYTES];
	int64_t row = 0;
	snprintf(prefix, sizeof prefix, "w%d.", (int)steps);
	for (int i = 0; i < model_tensor_count(t->m); i++) {
		const parameter_spec *p = model_parameter(t->m, i);
		TRY(add_weights(t, p, model_parameter_offset(t->m, i), prefix, err));
		if (p->by_row)
			TRY(add_statistics(t, p, p->fixed ? NULL : run->statistics + row, steps, prefix, err));
		row += p->fixed ? 0 : shape_rows(p->shape);
	}
	return STATUS_OK;
}

static status begin(const trilinear_texts *t, training *run, error *err)
{
	const forward_spec spec = {.batch = t->texts, .length = t->longest, .train.loss = true, .train.backward = true};
	double rate;
	void *rates;
	*run = (training){.by_norm = true, .normalized = {.row_decay = ROW_DECAY}};
	TRY(golden_config_integer(t->g, "steps", MAX_STEPS, &run->count, err));
	TRY(golden_config_number(t->g, "lr", 0, &rate, err));
	TRY(golden_memory(t->g, run->count, sizeof(float), &rates, err));
	for (int64_t i = 0; i < run->count; i++)
		((float *)rates)[i] = (float)rate;
	run->rates = rates;
	TRY(training_begin(t->g, t->m, run, err));
	TRY(golden_backward_into(t->g, t->m, &spec, run->gradients, &run->backward, err));
	TRY(feed_write(run->backward, PORT_TOKENS, t->ids));
	return feed_write(run->backward, PORT_LABELS, t->labels);
}

static status run_all(const trilinear_texts *t, training *run, error *err)
{
	float *score, loss, norm;
	TRY(golden_result(t->g, EXTENT(run->count + 1), &score, err, "score"));
	for (int64_t i = 0; i <= run->count; i++) {
		if (i == 1 || i == run->count)
			TRY(add_all(t, run, i, err));
		if (i < run->count) {
			TRY(training_step(run, i, &loss, &norm));
		} else {
			TRY(plan_run(run->backward));
			TRY(plan_read(run->backward, port_find(plan_graph(run->backward), PORT_LOSS), &loss));
		}
		score[i] = -loss;
	}
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	trilinear_texts t = {.g = g};
	training run;
	TRY(trilinear_set_model(&t, "w0.", 32, 32, err));
	TRY(trilinear_set_texts(&t, err));
	if (!t.texts)
		return error_set(err, STATUS_INVALID, "tokens_frag0", "tensor \"tokens_frag0\" is missing");
	TRY(trilinear_set_graph(&t, err));
	TRY(begin(&t, &run, err));
	return run_all(&t, &run, err);
}

const golden_reader golden_reader_trilinear_steps = {
    .source = "steps of training 3Lin",
    .recognises = recognises,
    .evaluate = evaluate,
};
