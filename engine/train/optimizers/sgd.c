/* Gradient descent with momentum. With `normalize` the whole gradient is divided by its norm, so the rate alone sets
 * the length of a step and nothing is left to clip. */
#include "engine/train/optimizer_kind.h"

static void sgd_build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	op_sgd(g, v->weights, v->gradients, v->state[0], v->norm2, v->hyper, v->bf16, v->factors,
	       (sgd_params){.momentum = (float)o->momentum,
	                    .decay = (float)o->weight_decay,
	                    .clip = (float)o->clip,
	                    .normalize = o->normalize});
}

const optimizer_kind optimizer_kind_sgd = {
    .name = "sgd",
    .options = (const char *const[]){"momentum", "normalize", "weight_decay", "decayed", "clip", NULL},
    .states = {{"m", STATE_PER_SCALAR}},
    .bf16_copy = true,
    .build_update = sgd_build_update,
};
