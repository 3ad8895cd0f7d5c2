/* AdamW (Loshchilov and Hutter 2019): two moments for each weight, in one op. */
#include "engine/train/optimizer_kind.h"

static void adamw_build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	op_adamw(g, v->weights, v->gradients, v->state[0], v->state[1], v->norm2, v->hyper, v->bf16, v->factors,
	         (adamw_params){.beta1 = (float)o->betas[0],
	                        .beta2 = (float)o->betas[1],
	                        .eps = (float)o->eps,
	                        .decay = (float)o->weight_decay,
	                        .clip = (float)o->clip,
	                        .transformers = o->optimizer == &optimizer_kind_adamw_hf});
}

const optimizer_kind optimizer_kind_adamw = {
    .name = "adamw",
    .options = (const char *const[]){"betas", "eps", "weight_decay", "decayed", "clip", NULL},
    .states = {{"m", STATE_PER_SCALAR}, {"v", STATE_PER_SCALAR}},
    .bf16_copy = true,
    .build_update = adamw_build_update,
};
