/* torchscale's module of dilated attention (LongNet) with its projections and the norm after the attention, as
 * attention_module.h reads it; the branches in the config as dilated_set.h reads them, and "dilated_pad": "zero_keys",
 * which is torchscale's, or "mask". Values, under bidir.* (every key of a segment is read) and causal.*: y, dx, d.NAME.
 * The gradients are torchscale's, of constant weights of the branches. */
#include <math.h>
#include <string.h>

#include "tests/golden/attention_module.h"
#include "tests/golden/dilated_set.h"

static bool recognises(const golden *g)
{
	return dilated_set_is_module(g);
}

static status read_padding(const golden *g, bool *zero_keys, error *err)
{
	const json_t *pad = json_object_get(g->config, "dilated_pad");
	const char *name = pad ? json_string_value(pad) : "zero_keys";
	*zero_keys = name && strcmp(name, "zero_keys") == 0;
	if (*zero_keys || (name && strcmp(name, "mask") == 0))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "dilated_pad",
	                 "the config's \"dilated_pad\" must be \"zero_keys\" or \"mask\"");
}

static value attend(graph *made, value q, value k, value v, void *context)
{
	const dilated_params *params = context;
	return op_dilated_attention(made, q, k, v, VALUE_NONE, VALUE_NONE, *params).y;
}

static status evaluate(golden *g, error *err)
{
	attention_module m;
	dilated_params params = {.pattern.offset = DILATED_BLOCK, .detach_weights = true};
	bool zero_keys;
	TRY(attention_module_read(g, &m, err));
	TRY(dilated_set_read(g->config, &params, err));
	TRY(read_padding(g, &zero_keys, err));
	params.scale = (float)(1 / sqrt((double)(m.d / m.heads)));
	for (int causal = 0; causal < 2; causal++) {
		attention_module_planned p;
		params.causal = causal;
		params.zero_keys = zero_keys && !causal; /* padding follows every query */
		TRY(attention_module_plan(g, &m, attend, &params, &p, err));
		TRY(attention_module_run(g, &m, &p, causal ? "causal" : "bidir", err));
	}
	return STATUS_OK;
}

const golden_reader golden_reader_longnet_module = {
    .source = "a module of dilated attention",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = attention_module_is_gradient,
};
