/* AdamW in the order of Hugging Face transformers: adamw.c, whose op has both. */
#include "engine/train/optimizer_kind.h"

static void adamw_hf_build_update(graph *g, const optimizer_values *v, const train_options *o)
{
	optimizer_kind_adamw.build_update(g, v, o);
}

const optimizer_kind optimizer_kind_adamw_hf = {
    .name = "adamw_hf",
    .options = (const char *const[]){"betas", "eps", "weight_decay", "decayed", "clip", NULL},
    .states = {{"m", STATE_PER_SCALAR}, {"v", STATE_PER_SCALAR}},
    .bf16_copy = true,
    .build_update = adamw_hf_build_update,
};
