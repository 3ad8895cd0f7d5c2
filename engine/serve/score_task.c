#include "engine/serve/score_task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/serve/attribution_run.h"

/* Plans are compiled for 1, 2, 4, … rows. */
static int64_t rows_for(int64_t n)
{
	int64_t rows = n > 0;
	while (rows < n)
		rows *= 2;
	return rows;
}

static read_pass_form form_of(const score_task *x)
{
	const score_task_request *r = &x->request;
	const score_sequence *q = &r->sequences[x->read];
	if (q->next)
		return (read_pass_form){.logits = LOGITS_ALL};
	return (read_pass_form){.logits = r->embedding == POOL_NONE ? LOGITS_LAST : LOGITS_NONE,
	                        .rows = rows_for(q->n_rows),
	                        .embedding = r->embedding,
	                        .log = q->log};
}

/* A carried state is uploaded here and downloaded at the end, because the slot belongs to one score task. */
static status begin_carried(const score_task *x, const score_sequence *q)
{
	statepool *p = x->model->pool;
	if (x->tokens_read > 0 || !q->carried)
		return STATUS_OK;
	return q->before > 0 ? statepool_write(p, x->slot, 0, q->carried, statepool_slot_bytes(p))
	                     : statepool_clear(p, x->slot);
}

static status score_task_begin(score_task *x, error *err)
{
	const score_sequence *q = &x->request.sequences[x->read];
	const read_pass_form form = form_of(x);
	TRY(begin_carried(x, q));
	const int64_t left = q->count - x->tokens_read, first = q->before + x->tokens_read;
	x->piece =
	    q->next ? model_dims_piece(model_dimensions(x->model->model), first, left, read_pass_scored_piece(x->model))
	            : read_pass_piece_of(x->model, form_of(x), first, left);
	x->is_read = false;
	x->scored = 0;
	read_pass_piece p = {.ids = q->ids + x->tokens_read,
	                     .count = x->piece,
	                     .first = q->before + x->tokens_read,
	                     .slot = x->slot,
	                     .rows = q->rows,
	                     .n_rows = q->n_rows,
	                     .log = q->log ? q->log + x->tokens_read * x->model->log_floats : NULL};
	return read_pass_begin(&x->pass, x->model, form, &p, err);
}

/* Score the token that follows the next token of the piece. */
static status score_task_score(score_task *x, const score_sequence *q)
{
	const int64_t at = x->tokens_read + x->scored;
	if (q->next[at] >= 0) {
		TRY(read_pass_logits(x->pass, x->scored, x->logits));
		q->scores[at] = sampler_logprob(x->logits, model_dimensions(x->model->model)->outputs, q->next[at],
		                                &q->best[at], 1);
	}
	x->scored++;
	return STATUS_OK;
}

static status read_values(score_task *x)
{
	float *out = x->request.out + x->written * x->request.width;
	TRY(read_pass_values(x->pass, out));
	if (read_pass_by_pieces(x->model, form_of(x)) && x->request.embedding == POOL_MEAN) {
		/* Update the mean over the pieces so far. On entry `out` has the mean of the last piece. */
		double tokens = (double)(x->tokens_read + x->piece);
		for (int64_t k = 0; k < x->request.width; k++) {
			x->sum[k] = (x->tokens_read > 0 ? x->sum[k] : 0) + (double)out[k] * (double)x->piece;
			out[k] = (float)(x->sum[k] / tokens);
		}
	}
	return STATUS_OK;
}

/* Copy the results of the piece, which has run, except the scores. */
static status score_task_finish(score_task *x)
{
	const score_sequence *q = &x->request.sequences[x->read];
	const bool last = x->tokens_read + x->piece == q->count;
	statepool *p = x->model->pool;
	if (!q->next)
		TRY(read_values(x));
	if (last && q->carried)
		TRY(statepool_read(p, x->slot, 0, q->carried, statepool_slot_bytes(p)));
	read_pass_end(x->model, x->pass);
	x->pass = NULL;
	x->tokens_read += x->piece;
	if (last) {
		x->tokens_read = 0;
		x->written += q->next ? 0 : q->n_rows ? q->n_rows : 1;
		x->read++;
	}
	return STATUS_OK;
}

/* --- all of them ---------------------------------------------------------------------- */

static status check_next(const model_dims *d, const score_sequence *q, error *err)
{
	if (!d->form->stepwise || d->whole)
		return error_set(err, STATUS_INVALID, "model", "the model does not predict the token after a text");
	for (int64_t k = 0; k < q->count; k++)
		if (q->next[k] >= d->outputs)
			return error_set(err, STATUS_INVALID, "input", "token %d is not in the vocabulary of %lld",
			                 (int)q->next[k], (long long)d->outputs);
	return STATUS_OK;
}

/* Check that the model can give what a sequence requests. */
static status score_task_check_rows(const model_dims *d, const score_task_request *r, int64_t i, error *err)
{
	const score_sequence *q = &r->sequences[i];
	const bool classes = d->form->head == HEAD_CLASSES;
	if (q->next)
		return check_next(d, q, err);
	if (q->n_rows ? !d->form->fills || r->embedding != POOL_NONE
	              : !r->explain.method && r->embedding == POOL_NONE && !classes)
		return error_set(err, STATUS_INVALID, "model", "the model has no head for %s",
		                 q->n_rows ? "tokens to fill in" : "classes");
	for (int64_t k = 0; k < q->n_rows; k++)
		if (q->rows[k] < 0 || q->rows[k] >= q->count)
			return error_set(err, STATUS_INVALID, "input", "input %lld has no token %d", (long long)i,
			                 (int)q->rows[k]);
	return STATUS_OK;
}

/* Check the ids of the input or source with number i. */
static status check_ids(const int32_t *ids, int64_t n, int64_t vocabulary, const char *param, int64_t i, error *err)
{
	for (int64_t k = 0; k < n; k++)
		if (ids[k] < 0 || ids[k] >= vocabulary)
			return error_set(err, STATUS_INVALID, param,
			                 "token %d of %s %lld is not in the vocabulary of %lld", (int)ids[k], param,
			                 (long long)i, (long long)vocabulary);
	return STATUS_OK;
}

static status score_task_check_source(const model_dims *d, const score_task_request *r, int64_t i, error *err)
{
	const score_sequence *q = &r->sequences[i];
	if (d->form->source && (!d->source || !r->explain.method))
		return error_set(err, STATUS_UNSUPPORTED, "model", "the model needs a source to read a sequence");
	TRY(form_check_source(d, q->n_source, err));
	return check_ids(q->source, q->n_source, d->source_inputs, "source", i, err);
}

static status score_task_check(const served_model *m, const score_task_request *r, error *err)
{
	const model_dims *d = model_dimensions(m->model);
	int64_t limit = r->explain.method ? scheduler_attribution_limit(d) : scheduler_score_limit(d);
	for (int64_t i = 0; i < r->n_sequences; i++) {
		const score_sequence *q = &r->sequences[i];
		TRY(score_task_check_rows(d, r, i, err));
		TRY(score_task_check_source(d, r, i, err));
		if (q->log && !model_explainer(m->model))
			return error_set(err, STATUS_INVALID, "explain", "this model has no importance weights");
		if (q->count < 1 || q->count > limit - q->before)
			return error_set(err, STATUS_INVALID, "input", "input %lld has %lld tokens; 1 to %lld are read",
			                 (long long)i, (long long)(q->before + q->count), (long long)limit);
		if (r->explain.method && (q->target.token >= d->outputs || q->target.other >= d->outputs))
			return error_set(err, STATUS_INVALID, "target", "the model has %lld outputs, counted from 0",
			                 (long long)d->outputs);
		TRY(check_ids(q->ids, q->count, d->inputs, "input", i, err));
		if (d->form->row(d, q->ids, q->count) < 0)
			return error_set(err, STATUS_INVALID, "input",
			                 "input %lld lacks the token %lld, at which the model reads a text",
			                 (long long)i, (long long)d->end);
	}
	return STATUS_OK;
}

status score_task_new(score_task **out, served_model *m, const score_task_request *r, error *err)
{
	const model_dims *d = model_dimensions(m->model);
	*out = NULL;
	TRY(score_task_check(m, r, err));
	assert(r->explain.method || r->width == (r->embedding == POOL_NONE ? d->outputs : d->hidden));
	score_task *x = memory_new(1, sizeof *x);
	double *sum = memory_new((size_t)r->width, sizeof *sum);
	float *logits = memory_new((size_t)r->width, sizeof *logits);
	status s = x && sum && logits ? served_model_take(m, &x->slot, err)
	                              : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s != STATUS_OK) {
		free(sum);
		free(logits);
		free(x);
		return s;
	}
	x->model = m;
	x->request = *r;
	x->sum = sum;
	x->logits = logits;
	*out = x;
	return STATUS_OK;
}

void score_task_free(score_task *x)
{
	if (!x)
		return;
	read_pass_end(x->model, x->pass);
	served_model_give(x->model, x->slot);
	attribution_run_free(x->attribution);
	free(x->sum);
	free(x->logits);
	free(x);
}

/* Run a step of an attribution, including its start and end. */
static status score_task_explain(score_task *x, uint64_t slice_ns, error *err)
{
	bool done;
	if (!x->attribution)
		return attribution_run_new(&x->attribution, x->model, &x->request.explain,
		                           &x->request.sequences[x->read], x->slot, err);
	TRY(attribution_run_step(x->attribution, slice_ns, &done, err));
	if (done) {
		attribution_run_free(x->attribution);
		x->attribution = NULL;
		x->read++;
	}
	return STATUS_OK;
}

/* Run a step of a pass, including its start and end. */
static status advance(score_task *x, uint64_t slice_ns, error *err)
{
	const score_sequence *q = &x->request.sequences[x->read];
	if (x->request.explain.method)
		return score_task_explain(x, slice_ns, err);
	if (!x->pass)
		return score_task_begin(x, err);
	if (!x->is_read)
		return read_pass_step(x->pass, &x->is_read);
	return q->next && x->scored < x->piece ? score_task_score(x, q) : score_task_finish(x);
}

status score_task_advance(score_task *x, uint64_t slice_ns, bool *done, error *err)
{
	uint64_t began = clock_ns();
	*done = x->read == x->request.n_sequences;
	while (!*done) {
		TRY(advance(x, slice_ns, err));
		*done = x->read == x->request.n_sequences;
		if (clock_ns() - began >= slice_ns)
			break;
	}
	return STATUS_OK;
}
