/* explain.c - the parts of a prediction's score, and attention weights. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/library/handles.h"

#define SAME_SCORE(name)                                                                                               \
	_Static_assert((int)ADDITIVE_SCORE_##name == (int)EXPLAIN_##name, "the public scores are those of "            \
	                                                                  "attribution.h")
SAME_SCORE(USUAL);
SAME_SCORE(CONTRAST);
SAME_SCORE(LOGIT);
SAME_SCORE(DIFFERENCE);

static status check_input(const additive_model *m, const int32_t *tokens, size_t count, error *err)
{
	const model_dims *d = model_dimensions(served_model_model(m->served));
	TRY(handles_refuse_source(m, err));
	if (d->form->fills)
		return error_set(err, STATUS_UNSUPPORTED, "model", "this model fills in masks");
	return handles_check_tokens(m, tokens, count, "input", err);
}

/* --- parts --------------------------------------------------------------------------- */

static status read_method(const additive_explanation *x, explain_options *out, error *err)
{
	static const explain_method methods[] = {[ADDITIVE_CONTRIBUTIONS] = EXPLAIN_CONTRIBUTIONS,
	                                         [ADDITIVE_GRADIENT] = EXPLAIN_GRADIENT,
	                                         [ADDITIVE_INTEGRATED] = EXPLAIN_INTEGRATED,
	                                         [ADDITIVE_LEAVE_ONE_OUT] = EXPLAIN_LEAVE_ONE_OUT};
	const int n = sizeof methods / sizeof *methods;
	if ((int)x->method < 0 || (int)x->method >= n)
		return error_set(err, STATUS_INVALID, "method", "%d is no value of additive_method", (int)x->method);
	*out =
	    (explain_options){.method = methods[x->method], .share = 0.5f, .steps = EXPLAIN_STEPS, .replacement = -1};
	return STATUS_OK;
}

static status read_score(const additive_model *m, const additive_explanation *x, explain_target *out, error *err)
{
	const int64_t outputs = model_dimensions(served_model_model(m->served))->outputs;
	if ((int)x->kind < 0 || x->kind > ADDITIVE_SCORE_DIFFERENCE)
		return error_set(err, STATUS_INVALID, "kind", "%d is no value of additive_score", (int)x->kind);
	if (x->output < -1 || x->output >= outputs || x->other < -1 || x->other >= outputs)
		return error_set(err, STATUS_INVALID, "target", "the model has %lld outputs, counted from 0",
		                 (long long)outputs);
	if (x->other >= 0 && (x->kind != ADDITIVE_SCORE_DIFFERENCE || x->other == x->output))
		return error_set(err, STATUS_INVALID, "target",
		                 "`other` applies only to a difference, and must not be `output`");
	*out = (explain_target){.kind = (explain_target_kind)x->kind, .token = x->output, .other = x->other};
	return STATUS_OK;
}

static void keep_score_status(void *context, status s, const error *err)
{
	error *ended = context;
	*ended = *err;
	ended->status = s;
}

static status score_input(additive_model *m, score_sequence *q, const explain_options *o, error *err)
{
	score_task *task;
	error ended = {.status = STATUS_INTERNAL};
	const score_task_request r = {
	    .sequences = q, .n_sequences = 1, .explain = *o, .finished = keep_score_status, .context = &ended};
	if (q->count > scheduler_attribution_limit(model_dimensions(served_model_model(m->served))))
		return error_set(
		    err, STATUS_TOO_LARGE, "input", "%lld tokens; this model explains at most %lld",
		    (long long)q->count,
		    (long long)scheduler_attribution_limit(model_dimensions(served_model_model(m->served))));
	TRY(scheduler_score(m->scheduler, m->served, &r, &task, err));
	TRY(handles_run(m, err));
	return ended.status == STATUS_OK ? STATUS_OK : error_set(err, ended.status, ended.param, "%s", ended.message);
}

static status explain_prediction(additive_model *m, const int32_t *tokens, size_t count, additive_explanation *x,
                                 float *words, float *others, error *err)
{
	explain_options o = {0};
	explain_target target;
	TRY(check_input(m, tokens, count, err));
	TRY(read_method(x, &o, err));
	TRY(read_score(m, x, &target, err));
	float *numbers = memory_new(count, 4 * sizeof *numbers);
	int32_t *ids = memory_new(count, sizeof *ids);
	explain_parts parts = {.words = numbers,
	                       .positions = numbers + count,
	                       .biases = numbers + 2 * count,
	                       .attention = numbers + 3 * count};
	status s = numbers && ids ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK) {
		memcpy(ids, tokens, count * sizeof *ids);
		score_sequence q = {.ids = ids, .count = (int64_t)count, .target = target, .parts = &parts};
		s = score_input(m, &q, &o, err);
	}
	for (size_t i = 0; i < count && s == STATUS_OK; i++) {
		words[i] = parts.words[i];
		if (others)
			others[i] = parts.positions[i] + parts.biases[i];
	}
	if (s == STATUS_OK)
		*x = (additive_explanation){
		    x->method,   (additive_score)parts.kind, parts.token, parts.other, parts.score,
		    parts.logit, parts.log_probability,      parts.head};
	free(numbers);
	free(ids);
	return s;
}

additive_code additive_explain(additive_model *m, const int32_t *tokens, size_t count,
                               additive_explanation *explanation, float *parts, float *others, additive_error *failure)
{
	error err = ERROR_INIT;
	return handles_report(failure, explain_prediction(m, tokens, count, explanation, parts, others, &err), &err);
}

/* --- weights ------------------------------------------------------------------------- */

typedef struct logged {
	error error;
	float *log;
} logged;

static void keep_log(void *context, const generation_result *r)
{
	logged *l = context;
	l->error = r->error;
	l->error.status = r->status;
	l->log = r->log;
}

static int64_t skip_event(void *context, const generation_event *e)
{
	(void)context, (void)e;
	return 1;
}

static status read_with_log(additive_model *m, const int32_t *tokens, size_t count, logged *out, error *err)
{
	generation *g;
	generation_request r = {.prompt = tokens,
	                        .n_prompt = (int64_t)count,
	                        .n_logprobs = -1,
	                        .credit = 1,
	                        .explain = true,
	                        .event = skip_event,
	                        .finished = keep_log,
	                        .context = out};
	sampling_default(&r.sampling);
	TRY(scheduler_generate(m->scheduler, m->served, NULL, &r, &g, err));
	TRY(handles_run(m, err));
	return out->error.status == STATUS_OK
	           ? STATUS_OK
	           : error_set(err, out->error.status, out->error.param, "%s", out->error.message);
}

/* Set n flags: all with chosen -1, otherwise that one. STATUS_INVALID `field`: out of range. */
static status choose_flags(bool *flags, int64_t n, int64_t chosen, const char *field, error *err)
{
	if (chosen < -1 || chosen >= n)
		return error_set(err, STATUS_INVALID, field, "%lld is not between 0 and %lld, or -1 for all",
		                 (long long)chosen, (long long)n - 1);
	for (int64_t i = 0; i < n; i++)
		flags[i] = chosen < 0 || i == chosen;
	return STATUS_OK;
}

/* The place of a selection in memory for `layers`, `heads` and `rounds` flags. */
static status select_rows(const explain_log *l, int64_t layer, int64_t head, bool *flags, explain_selection *out,
                          error *err)
{
	*out = (explain_selection){flags, flags + l->layers, flags + l->layers + l->heads};
	TRY(choose_flags(flags, l->layers, layer, "layer", err));
	TRY(choose_flags(flags + l->layers, l->heads, head, "head", err));
	return choose_flags(flags + l->layers + l->heads, l->rounds, -1, "round", err);
}

static status average_log(const explain_log *l, int64_t layer, int64_t head, bool rollout, float *weights, error *err)
{
	explain_selection pick;
	bool *flags = memory_new((size_t)(l->layers + l->heads + l->rounds), sizeof *flags);
	double *alpha = memory_new((size_t)l->tokens, sizeof *alpha);
	status s = flags && alpha ? select_rows(l, layer, head, flags, &pick, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = error_settle(err, (rollout ? explain_rollout : explain_mean)(l, &pick, l->tokens - 1, alpha));
	for (int64_t i = 0; i < l->tokens && s == STATUS_OK; i++)
		weights[i] = (float)alpha[i];
	free(alpha);
	free(flags);
	return s;
}

static status weigh_tokens(additive_model *m, const int32_t *tokens, size_t count, int64_t layer, int64_t head,
                           bool rollout, float *weights, error *err)
{
	const model *of = served_model_model(m->served);
	logged read = {.error = {.status = STATUS_INTERNAL}};
	TRY(check_input(m, tokens, count, err));
	if (model_dimensions(of)->form->head == HEAD_CLASSES)
		return error_set(err, STATUS_UNSUPPORTED, "model", "this model is a classifier");
	if (!model_explainer(of))
		return error_set(err, STATUS_UNSUPPORTED, "explain", "this model has no importance weights");
	TRY(explain_check_length(model_architecture(of), model_config(of), (int64_t)count, err));
	status s = read_with_log(m, tokens, count, &read, err);
	if (s == STATUS_OK) {
		explain_log l;
		explain_log_init(&l, model_architecture(of), model_config(of), read.log, (int64_t)count);
		s = average_log(&l, layer, head, rollout, weights, err);
	}
	free(read.log);
	return s;
}

additive_code additive_explain_weights(additive_model *m, const int32_t *tokens, size_t count, int64_t layer,
                                       int64_t head, int rollout, float *weights, additive_error *failure)
{
	error err = ERROR_INIT;
	return handles_report(failure, weigh_tokens(m, tokens, count, layer, head, rollout != 0, weights, &err), &err);
}
