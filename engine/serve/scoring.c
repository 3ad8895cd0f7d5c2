#include "engine/serve/scoring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/serve/attributing.h"

/* Plans are made for 1, 2, 4, … rows. */
static int64_t rows_for(int64_t n)
{
	int64_t rows = n > 0;
	while (rows < n)
		rows *= 2;
	return rows;
}

static reading_form form_of(const scoring *x)
{
	const scoring_request *r = &x->request;
	const scoring_sequence *q = &r->sequences[x->read];
	return (reading_form){.logits = r->embedding == POOL_NONE ? LOGITS_LAST : LOGITS_NONE,
	                      .rows = rows_for(q->n_rows),
	                      .embedding = r->embedding,
	                      .log = q->log};
}

static status begin(scoring *x, error *err)
{
	const scoring_sequence *q = &x->request.sequences[x->read];
	const reading_form form = form_of(x);
	int64_t left = q->count - x->begun;
	x->piece = reading_piece_of(x->model, form, x->begun, left);
	reading_piece p = {.ids = q->ids + x->begun,
	                   .count = x->piece,
	                   .first = x->begun,
	                   .slot = x->slot,
	                   .rows = q->rows,
	                   .n_rows = q->n_rows,
	                   .log = q->log ? q->log + x->begun * x->model->log_floats : NULL};
	return reading_begin(&x->reading, x->model, form, &p, err);
}

/* Update the mean over the pieces so far: on entry out has that of the last piece. */
static void add_mean(const scoring *x, float *out)
{
	double tokens = (double)(x->begun + x->piece);
	for (int64_t k = 0; k < x->request.width; k++) {
		x->sum[k] = (x->begun > 0 ? x->sum[k] : 0) + (double)out[k] * (double)x->piece;
		out[k] = (float)(x->sum[k] / tokens);
	}
}

/* Read the results of the piece, which has run. */
static status finish(scoring *x)
{
	float *out = x->request.out + x->written * x->request.width;
	TRY(reading_values(x->reading, out));
	if (reading_by_pieces(x->model, form_of(x)) && x->request.embedding == POOL_MEAN)
		add_mean(x, out);
	reading_end(x->model, x->reading);
	x->reading = NULL;
	x->begun += x->piece;
	if (x->begun == x->request.sequences[x->read].count) {
		x->begun = 0;
		x->written += x->request.sequences[x->read].n_rows ? x->request.sequences[x->read].n_rows : 1;
		x->read++;
	}
	return STATUS_OK;
}

/* --- all of them ---------------------------------------------------------------------- */

/* Has the model what a sequence is to give? */
static status check_rows(const model_dims *d, const scoring_request *r, int64_t i, error *err)
{
	const scoring_sequence *q = &r->sequences[i];
	const bool classes = d->head == HEAD_CLASSES;
	if (q->n_rows ? classes || d->causal || r->embedding != POOL_NONE
	              : !r->explain.method && r->embedding == POOL_NONE && !classes)
		return error_set(err, STATUS_INVALID, "model", "the model has no head for %s",
		                 q->n_rows ? "tokens to fill in" : "classes");
	for (int64_t k = 0; k < q->n_rows; k++)
		if (q->rows[k] < 0 || q->rows[k] >= q->count)
			return error_set(err, STATUS_INVALID, "input", "input %lld has no token %d", (long long)i,
			                 (int)q->rows[k]);
	return STATUS_OK;
}

/* Of the input or the source number i. */
static status check_ids(const int32_t *ids, int64_t n, int64_t vocabulary, const char *param, int64_t i, error *err)
{
	for (int64_t k = 0; k < n; k++)
		if (ids[k] < 0 || ids[k] >= vocabulary)
			return error_set(err, STATUS_INVALID, param,
			                 "token %d of %s %lld is not in the vocabulary of %lld", (int)ids[k], param,
			                 (long long)i, (long long)vocabulary);
	return STATUS_OK;
}

static status check_source(const model_dims *d, const scoring_request *r, int64_t i, error *err)
{
	const scoring_sequence *q = &r->sequences[i];
	if (d->reads_source && (!d->source || !r->explain.method))
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "the model attends to a source, without which it cannot read a sequence");
	if (q->n_source > 0 && !d->reads_source)
		return error_set(err, STATUS_INVALID, "source", "this model reads no source");
	if (d->reads_source && (q->n_source < 1 || q->n_source > d->source))
		return error_set(err, STATUS_INVALID, "source", "%lld tokens; the model reads sources of 1 to %lld",
		                 (long long)q->n_source, (long long)d->source);
	return check_ids(q->source, q->n_source, d->source_inputs, "source", i, err);
}

static status check(const served_model *m, const scoring_request *r, error *err)
{
	const model_dims *d = model_dimensions(m->model);
	int64_t limit = r->explain.method ? scheduler_attribution_limit(d) : scheduler_score_limit(d);
	for (int64_t i = 0; i < r->n_sequences; i++) {
		const scoring_sequence *q = &r->sequences[i];
		TRY(check_rows(d, r, i, err));
		TRY(check_source(d, r, i, err));
		if (q->log && !model_explainer(m->model))
			return error_set(err, STATUS_INVALID, "explain", "this model has no importance weights");
		if (q->count < 1 || q->count > limit)
			return error_set(err, STATUS_INVALID, "input", "input %lld has %lld tokens; 1 to %lld are read",
			                 (long long)i, (long long)q->count, (long long)limit);
		if (r->explain.method && (q->target.token >= d->outputs || q->target.other >= d->outputs))
			return error_set(err, STATUS_INVALID, "target", "the model has %lld outputs, counted from 0",
			                 (long long)d->outputs);
		TRY(check_ids(q->ids, q->count, d->inputs, "input", i, err));
		if (feed_row(d, q->ids, q->count) < 0)
			return error_set(err, STATUS_INVALID, "input",
			                 "input %lld lacks the token %lld, at which the model reads a text",
			                 (long long)i, (long long)d->end);
	}
	return STATUS_OK;
}

status scoring_new(scoring **out, served_model *m, const scoring_request *r, error *err)
{
	const model_dims *d = model_dimensions(m->model);
	*out = NULL;
	TRY(check(m, r, err));
	assert(r->explain.method || r->width == (r->embedding == POOL_NONE ? d->outputs : d->hidden));
	scoring *x = memory_new(1, sizeof *x);
	double *sum = memory_new((size_t)r->width, sizeof *sum);
	status s = x && sum ? served_model_take(m, &x->slot, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s != STATUS_OK) {
		free(sum);
		free(x);
		return s;
	}
	x->model = m;
	x->request = *r;
	x->sum = sum;
	*out = x;
	return STATUS_OK;
}

void scoring_free(scoring *x)
{
	if (!x)
		return;
	reading_end(x->model, x->reading);
	served_model_give(x->model, x->slot);
	attributing_free(x->attributing);
	free(x->sum);
	free(x);
}

/* A step of an attribution, or what comes before and behind it. */
static status explain(scoring *x, uint64_t slice_ns, error *err)
{
	bool done;
	if (!x->attributing)
		return attributing_new(&x->attributing, x->model, &x->request.explain, &x->request.sequences[x->read],
		                       x->slot, err);
	TRY(attributing_step(x->attributing, slice_ns, &done, err));
	if (done) {
		attributing_free(x->attributing);
		x->attributing = NULL;
		x->read++;
	}
	return STATUS_OK;
}

/* A step of a reading, or what comes before and behind all of them. */
static status advance(scoring *x, uint64_t slice_ns, error *err)
{
	bool done;
	if (x->request.explain.method)
		return explain(x, slice_ns, err);
	if (!x->reading)
		return begin(x, err);
	TRY(reading_step(x->reading, &done));
	return done ? finish(x) : STATUS_OK;
}

status scoring_advance(scoring *x, uint64_t slice_ns, bool *done, error *err)
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
