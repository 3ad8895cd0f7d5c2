/* Gradient descent without momentum whose steps have a length of their own, that of 3Lin: every tensor steps along its
 * gradient by the rate, as its Frobenius norm or with `rms` as the root mean square of its numbers; the rows of a
 * table, which a batch seldom reads, step each for itself, divided by the mean square of the gradients that they had.
 */
#include "engine/train/optimizer_kind.h"

static const float row_decay = 0.99F; /* of that mean, for each update */

static void build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	normalized_sgd_inputs in = {.p = v->weights,
	                            .grad = v->gradients,
	                            .statistics = v->state[0],
	                            .spans = v->spans,
	                            .norm2 = v->norm2,
	                            .hyper = v->hyper,
	                            .narrow = v->bf16,
	                            .decays = v->decays};
	in.rows = op_row_squares(g, v->gradients, v->spans, v->rows, &in.tensors);
	op_normalized_sgd(g, &in,
	                  (normalized_sgd_params){.row_decay = row_decay,
	                                          .decay = (float)o->weight_decay,
	                                          .rms = o->step_size == STEP_SIZE_RMS});
}

/* Squares are of a row's norm or of its root mean square. */
static const char *measure(const train_options *o)
{
	return o->step_size == STEP_SIZE_RMS ? "rms" : "norm";
}

const optimizer_kind optimizer_kind_normalized_sgd = {
    .name = "normalized_sgd",
    .options = (const char *const[]){"step_size", "weight_decay", "decayed", NULL},
    .states = {{"row_squares", STATE_PER_ROW}},
    .undecayed = true, /* as in the source */
    .bf16_copy = true,
    .measure = measure,
    .build_update = build_update,
};
