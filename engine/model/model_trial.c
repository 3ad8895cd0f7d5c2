#include "engine/model/model_trial.h"

#include "engine/model/model_private.h"

enum { TOKENS = 3, SOURCE = 5, SEQUENCES = 2 };

static int64_t at_most(int64_t n, int64_t most)
{
	return n < most ? n : most;
}

static status built(status s, error *found, error *err)
{
	if (s == STATUS_OK || s == STATUS_UNSUPPORTED)
		return STATUS_OK;
	error_settle(found, s);
	return error_set(err, s, NULL, s == STATUS_NOMEM ? "%s" : "a model of this configuration cannot run: %s",
	                 error_message(found));
}

static status try_graph(const model *m, const forward_spec *spec, error *err)
{
	graph *g;
	error found = ERROR_INIT;
	status s = model_graph(&g, m, spec, &found);
	graph_free(g);
	return built(s, &found, err);
}

/* --- memory ---------------------------------------------------------------------------------- */

static double allowed_bytes(const model *m)
{
	return MODEL_TRIAL_BYTES + MODEL_TRIAL_SHARE * (double)m->floats * sizeof(float);
}

static status too_large(const model *m, const char *what, double bytes, error *err)
{
	return error_set(
	    err, STATUS_INVALID, NULL,
	    "%s of this model would need %.0f MiB for its %lld positions; with weights of this size it may "
	    "need %.0f MiB",
	    what, bytes / 0x1p20, (long long)m->dims.positions, allowed_bytes(m) / 0x1p20);
}

static double temporary_bytes(const graph *g)
{
	double total = 0;
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		size_t bytes;
		if (info->role == ROLE_TEMPORARY && shape_bytes(info->shape, info->type, &bytes))
			total += (double)bytes;
	}
	return total;
}

/* Sessions copy and clear their state, and each token computes a step, so both are limited relative to the weights. */
static status try_step(const model *m, error *err)
{
	const forward_spec spec = {.phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1, .out.logits = LOGITS_LAST};
	const double state = (double)state_list_slot(&m->states) * sizeof(float);
	graph *g;
	error found = ERROR_INIT;
	if (state > allowed_bytes(m))
		return too_large(m, "the state of a session", state, err);
	status s = model_graph(&g, m, &spec, &found);
	const double step = s == STATUS_OK ? temporary_bytes(g) : 0;
	graph_free(g);
	TRY(built(s, &found, err));
	return step > allowed_bytes(m) ? too_large(m, "a step", step, err) : STATUS_OK;
}

/* --- forms ------------------------------------------------------------------------------------- */

static status try_serving(const model *m, error *err)
{
	const model_dims *d = &m->dims;
	const bool tokens = d->form->head == HEAD_VOCABULARY;
	const int64_t length = at_most(TOKENS, model_dims_length(d)), source = at_most(SOURCE, d->source);
	const forward_spec forms[] = {
	    {.phase = PHASE_SCORE, .masked = true, .out.logits = tokens ? LOGITS_ALL : LOGITS_LAST},
	    {.phase = PHASE_SCORE, .masked = true, .out.logits = LOGITS_LAST},
	    {.phase = PHASE_SCORE, .masked = true, .out.embedding = POOL_MEAN},
	    {.phase = PHASE_SCORE, .masked = true, .out.embedding = POOL_LAST},
	    {.phase = PHASE_SCORE, .masked = true, .out.logits = LOGITS_LAST, .explain.log = true},
	    {.phase = PHASE_SCORE,
	     .masked = true,
	     .out.logits = LOGITS_LAST,
	     .explain.attribution = ATTRIBUTION_FROZEN},
	    {.phase = PHASE_SCORE,
	     .masked = true,
	     .out.logits = LOGITS_LAST,
	     .explain.attribution = ATTRIBUTION_GRADIENT},
	    {.phase = PHASE_STEP, .out.logits = LOGITS_ALL},
	    {.phase = PHASE_STEP, .out.embedding = POOL_MEAN, .masked = true},
	    {.phase = PHASE_READ, .out.logits = LOGITS_LAST},
	    {.phase = PHASE_READ, .out.logits = LOGITS_LAST, .explain.log = true},
	};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		forward_spec spec = forms[i];
		spec.batch = spec.explain.attribution ? 1 : SEQUENCES;
		spec.length = length;
		spec.slots = SEQUENCES;
		spec.source = source;
		spec.source_masked = source > 0;
		TRY(try_graph(m, &spec, err));
	}
	const forward_spec encode = {
	    .phase = PHASE_ENCODE, .batch = 1, .slots = 1, .source = source, .source_masked = true};
	return source ? try_graph(m, &encode, err) : STATUS_OK;
}

static status try_training(const model *m, error *err)
{
	const model_dims *d = &m->dims;
	const int64_t source = at_most(SOURCE, d->source);
	forward_spec spec = {.phase = PHASE_SCORE,
	                     .batch = SEQUENCES,
	                     .length = at_most(TOKENS, model_dims_length(d)),
	                     .source = source,
	                     .masked = !d->form->stepwise || source,
	                     .source_masked = source > 0,
	                     .train.dropout = d->dropout > 0,
	                     .train.loss = true,
	                     .train.backward = true};
	if (m->weights != DTYPE_F32)
		return STATUS_OK;
	TRY(try_graph(m, &spec, err));
	spec.train.recompute = true;
	return try_graph(m, &spec, err);
}

status model_trial(const model *m, error *err)
{
	TRY(try_step(m, err));
	TRY(try_serving(m, err));
	return try_training(m, err);
}

status model_trial_config(const architecture *a, const json_t *config, const forward_spec *training, error *err)
{
	model *m;
	TRY(model_describe(&m, a, config, DTYPE_F32, err));
	status s = model_trial(m, err);
	if (s == STATUS_OK && training)
		s = try_graph(m, training, err);
	model_free(m);
	return s;
}
