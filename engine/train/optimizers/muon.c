/* Muon (Jordan 2024): the step of a hidden matrix is its momentum with the singular values near 1. Vectors, tables and
 * heads take the step of AdamW. A step is scaled as in Liu et al. 2025 so that the root mean square of its numbers is
 * near that of AdamW's steps: one rate and one weight decay serve both. */
#include "engine/train/optimizer_kind.h"

#include <math.h>

enum { STEPS = 5 };

/* Iterate X <- a X + (b X Xᵀ + c (X Xᵀ)²) X, which moves the singular values of X, from 0 to 1, to about 0.7 … 1.2.
 * The products with the smaller of X Xᵀ and Xᵀ X are the same. */
static value newton_schulz(graph *g, value x, bool tall)
{
	const float a = 3.4445F, b = -4.775F, c = 2.0315F;
	for (int i = 0; i < STEPS; i++) {
		const value squares = op_matmul(g, x, x, tall, !tall, 1);
		const value sum = op_axpby(g, squares, op_matmul(g, squares, squares, false, false, 1), b, c);
		const value change =
		    tall ? op_matmul(g, x, sum, false, false, 1) : op_matmul(g, sum, x, false, false, 1);
		x = op_axpby(g, x, change, a, 1);
	}
	return x;
}

/* Numbers of a matrix with singular values of 1 have the root mean square √(1 / larger side). */
static float muon_matrix_scale(int64_t rows, int64_t columns)
{
	return 0.2F * sqrtf((float)(rows > columns ? rows : columns));
}

static void muon_build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	muon_inputs in = {.p = v->weights,
	                  .grad = v->gradients,
	                  .m = v->state[0],
	                  .v = v->state[1],
	                  .direction = op_fill(g, graph_value(g, v->gradients)->shape, 0),
	                  .norm2 = v->norm2,
	                  .hyper = v->hyper,
	                  .scales = v->scales,
	                  .narrow = v->bf16,
	                  .factors = v->factors};
	for (int i = 0; i < v->n_matrices; i++) {
		const optimizer_matrix *x = &v->matrices[i];
		const value step = op_muon_direction(g, v->state[0], v->gradients, v->norm2,
		                                     (muon_direction_params){.first = x->first,
		                                                             .rows = x->rows,
		                                                             .columns = x->columns,
		                                                             .momentum = (float)o->momentum,
		                                                             .clip = (float)o->clip});
		in.direction = op_write_range(g, in.direction, newton_schulz(g, step, x->rows > x->columns), x->first);
	}
	op_muon(g, &in,
	        (muon_params){.adamw = {.beta1 = (float)o->betas[0],
	                                .beta2 = (float)o->betas[1],
	                                .eps = (float)o->eps,
	                                .decay = (float)o->weight_decay,
	                                .clip = (float)o->clip},
	                      .momentum = (float)o->momentum});
}

const optimizer_kind optimizer_kind_muon = {
    .name = "muon",
    .options = (const char *const[]){"momentum", "betas", "eps", "weight_decay", "decayed", "clip", NULL},
    .states = {{"m", STATE_PER_SCALAR}, {"v", STATE_PER_SCALAR}}, /* v of a matrix stays 0 */
    .momentum = 0.95,
    .bf16_copy = true,
    .matrix_scale = muon_matrix_scale,
    .build_update = muon_build_update,
};
