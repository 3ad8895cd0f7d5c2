#include "engine/train/weight_average.h"

#include <math.h>

#include "engine/base/memory.h"
#include "engine/tensor/ops.h"

struct weight_average {
	model *model;
	double decay;
	plan *plan;
	value rate;
};

static status weight_average_build(weight_average *a, const model *m, error *err)
{
	TRY(model_copy(&a->model, m, err));
	graph *g = graph_new();
	if (!g)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	const shape all = SHAPE1(model_trained_floats(m));
	const value average = graph_state(g, "average", all), weights = graph_weight(g, "weights", DTYPE_F32, all);
	a->rate = graph_input(g, "rate", DTYPE_F32, SHAPE0());
	op_lerp(g, average, weights, a->rate);
	const plan_binding bindings[] = {{average, model_arena(a->model)}, {weights, model_arena(m)}};
	return plan_new(&a->plan, g, model_backend(m), bindings, 2, err);
}

status weight_average_new(weight_average **out, const model *m, double decay, error *err)
{
	weight_average *a = *out = memory_new(1, sizeof *a);
	if (!a)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	a->decay = decay;
	status s = weight_average_build(a, m, err);
	if (s != STATUS_OK) {
		weight_average_free(a);
		*out = NULL;
	}
	return s;
}

void weight_average_free(weight_average *a)
{
	if (!a)
		return;
	plan_free(a->plan);
	model_free(a->model);
	free(a);
}

model *weight_average_model(const weight_average *a)
{
	return a->model;
}

status weight_average_take(weight_average *a, int64_t n)
{
	const float rate = (float)(1 - fmin(a->decay, (1 + (double)n) / (10 + (double)n)));
	TRY(plan_write(a->plan, a->rate, &rate));
	return plan_run(a->plan);
}
