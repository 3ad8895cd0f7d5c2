/* Gradient descent without momentum whose steps have a fixed length, as in 3Lin. Every tensor steps along its gradient
 * by the rate, measured as its Frobenius norm or, with `rms`, as the root mean square of its numbers. The rows of a
 * table, which a batch seldom reads, step separately, divided by the mean square of the gradients that they
 * received. */
#include "engine/train/optimizer_kind.h"

static const float row_decay = 0.99F; /* decay of that mean at each update */

static void normalized_sgd_build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	normalized_sgd_inputs in = {.p = v->weights,
	                            .grad = v->gradients,
	                            .statistics = v->state[0],
	                            .spans = v->spans,
	                            .norm2 = v->norm2,
	                            .hyper = v->hyper,
	                            .narrow = v->bf16,
	                            .factors = v->factors};
	in.rows = op_row_squares(g, v->gradients, v->spans, v->rows, &in.tensors);
	op_normalized_sgd(g, &in,
	                  (normalized_sgd_params){.row_decay = row_decay,
	                                          .decay = (float)o->weight_decay,
	                                          .rms = o->step_size == STEP_SIZE_RMS});
}

/* Squares are those of a row's norm or of its root mean square. */
static const char *normalized_sgd_measure(const train_options *o)
{
	return o->step_size == STEP_SIZE_RMS ? "rms" : "norm";
}

const optimizer_kind optimizer_kind_normalized_sgd = {
    .name = "normalized_sgd",
    .options = (const char *const[]){"step_size", "weight_decay", "decayed", NULL},
    .states = {{"row_squares", STATE_PER_ROW}},
    .without_decay = true, /* as in the original */
    .bf16_copy = true,
    .measure = normalized_sgd_measure,
    .build_update = normalized_sgd_build_update,
};
