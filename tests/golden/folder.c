#include "tests/golden/folder.h"

static status read_inputs(batch *out, const eval_options *o, const model_dims *dims, error *err)
{
	safetensors *st;
	TRY(safetensors_open(&st, o->inputs, err));
	batch_source in = {safetensors_find(st, "input_ids"), safetensors_find(st, "attention_mask"),
	                   safetensors_find(st, "labels")};
	status s = in.ids ? batch_read(out, in, dims, o->spec.policy, err)
	                  : error_set(err, STATUS_INVALID, "input_ids", "the inputs hold no tensor input_ids");
	safetensors_close(st);
	return s;
}

static status evaluate(results *out, const eval_options *o, model *m, batch *in, const char **blame, error *err)
{
	const model_dims *dims = model_dimensions(m);
	if (dims->form->head != HEAD_VOCABULARY)
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "the model has a head for classes; only models with a "
		                 "head for the next token are evaluated from a folder");
	*blame = o->inputs;
	TRY(read_inputs(in, o, dims, err));
	return evaluation_run(out, m, in, &o->spec, err);
}

status folder_evaluate(results *out, const eval_options *o, backend *b, const char **blame, error *err)
{
	model *m;
	batch in = {0};
	*blame = o->model;
	TRY(model_open(&m, o->model, o->weights, b, err));
	status s = evaluate(out, o, m, &in, blame, err);
	batch_free(&in);
	model_free(m);
	return s;
}
