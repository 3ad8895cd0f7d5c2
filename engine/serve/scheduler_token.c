/* scheduler_token.c - one session token by token, without a generation. */
#include "engine/serve/session.h"

status scheduler_session_step(session *x, int32_t token, error *err)
{
	const model_dims *d = model_dimensions(x->model->model);
	served_plan *p;
	TRY(session_ready(x, err));
	if (token < 0 || token >= d->inputs)
		return error_set(err, STATUS_INVALID, "token", "%d is not one of the vocabulary's %lld tokens",
		                 (int)token, (long long)d->inputs);
	if (x->tokens >= session_limit(x))
		return error_set(err, STATUS_INVALID, "token", "all %lld positions are taken", (long long)x->tokens);
	if (d->source && x->n_source == 0)
		return error_set(err, STATUS_CONFLICT, "source", "the session has not read its source");
	TRY(session_reserve(x, 1, err));
	TRY(served_model_plan(x->model, 1, 0, x->log != NULL, x->entry > 0, 0, &p, err));
	const served_row row = session_row(x, &token, 1);
	status s = session_step(x, p, &row);
	TRY(session_check(x, err));
	TRY(error_settle(err, s));
	session_commit(x, &token, 1, p, 0);
	return error_settle(err, session_fetch(x));
}

status scheduler_session_logits(session *x, const float **logits, error *err)
{
	*logits = NULL;
	TRY(session_ready(x, err));
	if (x->tokens == 0)
		return error_set(err, STATUS_CONFLICT, NULL, "the session has read no token");
	TRY(error_settle(err, session_fetch(x)));
	*logits = x->logits;
	return STATUS_OK;
}

static status count_read_tokens(tally *t, const session *x)
{
	for (int64_t i = 0; t->penalises && i < x->tokens; i++) {
		TRY(tally_reserve(t));
		tally_add(t, token_history_at(&x->history, i));
	}
	return STATUS_OK;
}

static status sample_after(session *x, const float *logits, const sampling *s, tally *t, int32_t *token, error *err)
{
	const int64_t vocab = model_dimensions(x->model->model)->outputs;
	TRY(error_settle(err, count_read_tokens(t, x)));
	TRY(served_model_prepare_rows(x->model, 1, sample_row_adjusts(t->count, false, vocab), err));
	const sample_row row = {.settings = s, .tally = t, .position = (uint64_t)x->tokens};
	TRY(error_settle(err, served_model_sample_rows(x->model, &logits, &row, 1, token)));
	return *token >= 0 ? STATUS_OK
	                   : error_set(err, STATUS_INVALID, "model",
	                               "the model's logits are not finite: products of its weights overflow");
}

status scheduler_session_sample(session *x, const sampling *s, int32_t *token, error *err)
{
	const float *logits;
	tally t = {0};
	*token = -1;
	TRY(sampling_check(s, model_dimensions(x->model->model)->outputs, err));
	TRY(scheduler_session_logits(x, &logits, err));
	status result = error_settle(err, tally_init(&t, s));
	if (result == STATUS_OK)
		result = sample_after(x, logits, s, &t, token, err);
	tally_fini(&t);
	return result;
}
