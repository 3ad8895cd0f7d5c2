#include "engine/serve/scoring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

struct scoring_plan {
	scoring_plan *next; /* the model's list */
	plan *plan;
	int64_t capacity;       /* tokens */
	pooling embedding;      /* POOL_NONE: it gives the logits of classes */
	int32_t *tokens, *mask; /* [capacity] on the host */
};

/* --- plans ------------------------------------------------------------------------ */

static void scoring_plan_free(scoring_plan *p)
{
	if (!p)
		return;
	plan_free(p->plan);
	free(p->tokens);
	free(p->mask);
	free(p);
}

void scoring_free_plans(served_model *m)
{
	while (m->scoring_plans) {
		scoring_plan *p = m->scoring_plans;
		m->scoring_plans = p->next;
		scoring_plan_free(p);
	}
}

/* Can a sequence be read in pieces? */
static bool by_pieces(const served_model *m)
{
	const model_dims *d = model_dimensions(m->model);
	return d->causal && d->head != HEAD_CLASSES;
}

static status fill(scoring_plan *p, const served_model *m, error *err)
{
	bool pieces = by_pieces(m);
	forward_spec spec = {.phase = pieces ? PHASE_STEP : PHASE_SCORE,
	                     .batch = 1,
	                     .length = p->capacity,
	                     .slots = pieces ? statepool_capacity(m->pool) : 0,
	                     .masked = !pieces,
	                     .logits = p->embedding == POOL_NONE ? LOGITS_LAST : LOGITS_NONE,
	                     .embedding = p->embedding};
	p->tokens = memory_new((size_t)p->capacity, sizeof *p->tokens);
	p->mask = memory_new((size_t)p->capacity, sizeof *p->mask);
	if (!p->tokens || !p->mask)
		return STATUS_NOMEM;
	return model_plan(&p->plan, m->model, &spec, NULL, pieces ? statepool_data(m->pool) : NULL, err);
}

static int64_t capacity_for(const model_dims *d, int64_t tokens)
{
	int64_t capacity = SCORING_LEAST_TOKENS;
	while (capacity < tokens)
		capacity *= 2;
	return d->reads_padding ? tokens : capacity;
}

/* An unused plan for a piece of `tokens` tokens, from the model's list or a new one. */
static status take_plan(scoring_plan **out, served_model *m, int64_t tokens, pooling embedding, error *err)
{
	int64_t capacity = capacity_for(model_dimensions(m->model), tokens);
	scoring_plan **link = &m->scoring_plans;
	while (*link && ((*link)->capacity != capacity || (*link)->embedding != embedding))
		link = &(*link)->next;
	scoring_plan *p = *link;
	*out = NULL;
	if (p) {
		*link = p->next;
	} else {
		p = memory_new(1, sizeof *p);
		if (!p)
			return STATUS_NOMEM;
		p->capacity = capacity;
		p->embedding = embedding;
		status s = fill(p, m, err);
		if (s != STATUS_OK) {
			scoring_plan_free(p);
			return s;
		}
	}
	*out = p;
	return STATUS_OK;
}

/* Return a plan to the model's list, which keeps one of each kind. */
static void give_plan(served_model *m, scoring_plan *p)
{
	bool keep = p && p->capacity <= SCORING_KEPT_TOKENS && !model_dimensions(m->model)->reads_padding;
	for (const scoring_plan *q = m->scoring_plans; q && keep; q = q->next)
		keep = q->capacity != p->capacity || q->embedding != p->embedding;
	if (!keep) {
		scoring_plan_free(p);
		return;
	}
	p->next = m->scoring_plans;
	m->scoring_plans = p;
}

/* --- one piece ------------------------------------------------------------------- */

/* Give the inputs the length of the piece. Where the plan has fixed shapes, mask or length limit it instead. */
static status shorten(scoring_plan *p, int64_t tokens)
{
	static const port_role roles[] = {PORT_TOKENS, PORT_POSITIONS, PORT_MASK};
	plan_shape shapes[sizeof roles / sizeof *roles];
	int n = 0;
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		value v = port_find(plan_graph(p->plan), roles[i]);
		if (v != VALUE_NONE)
			shapes[n++] = (plan_shape){v, SHAPE2(1, tokens)};
	}
	status s = plan_reshape(p->plan, shapes, n, NULL);
	return s == STATUS_UNSUPPORTED ? STATUS_OK : s;
}

static status feed(const scoring *x, const int32_t *ids)
{
	scoring_plan *p = x->plan;
	int32_t first = (int32_t)x->begun, count = (int32_t)x->piece, last = count - 1;
	for (int64_t i = 0; i < p->capacity; i++) {
		p->tokens[i] = i < count ? ids[i] : 0;
		p->mask[i] = i < count;
	}
	TRY(shorten(p, count));
	TRY(feed_write(p->plan, PORT_TOKENS, p->tokens));
	TRY(feed_write(p->plan, PORT_MASK, p->mask));
	TRY(feed_positions(p->plan, model_dimensions(x->model->model), POSITION_CLAMP,
	                   first)); /* rows after the piece may lie past the last position */
	TRY(feed_write(p->plan, PORT_SLOT, &x->slot));
	TRY(feed_write(p->plan, PORT_POSITION, &first));
	TRY(feed_write(p->plan, PORT_LENGTH, &count));
	return feed_write(p->plan, PORT_LAST, &last);
}

static status begin(scoring *x, error *err)
{
	const scoring_sequence *q = &x->request.sequences[x->read];
	int64_t left = q->count - x->begun;
	x->cursor = 0;
	x->piece = by_pieces(x->model) && left > SCHEDULER_PREFILL_CHUNK ? SCHEDULER_PREFILL_CHUNK : left;
	TRY(take_plan(&x->plan, x->model, x->piece, x->request.embedding, err));
	return feed(x, q->ids + x->begun);
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
	port_role role = x->request.embedding == POOL_NONE ? PORT_LOGITS : PORT_EMBEDDING;
	plan *p = x->plan->plan;
	float *out = x->request.out + x->read * x->request.width;
	TRY(plan_read(p, port_find(plan_graph(p), role), out));
	if (by_pieces(x->model) && x->request.embedding == POOL_MEAN)
		add_mean(x, out);
	give_plan(x->model, x->plan);
	x->plan = NULL;
	x->begun += x->piece;
	if (x->begun == x->request.sequences[x->read].count) {
		x->begun = 0;
		x->read++;
	}
	return STATUS_OK;
}

/* --- all of them ---------------------------------------------------------------------- */

static status check(const model_dims *d, const scoring_request *r, error *err)
{
	int64_t limit = scheduler_score_limit(d);
	if (r->embedding == POOL_NONE && d->head != HEAD_CLASSES)
		return error_set(err, STATUS_INVALID, "model", "the model has no head for classes");
	for (int64_t i = 0; i < r->n_sequences; i++) {
		const scoring_sequence *q = &r->sequences[i];
		if (q->count < 1 || q->count > limit)
			return error_set(err, STATUS_INVALID, "input", "input %lld has %lld tokens; 1 to %lld are read",
			                 (long long)i, (long long)q->count, (long long)limit);
		for (int64_t k = 0; k < q->count; k++)
			if (q->ids[k] < 0 || q->ids[k] >= d->inputs)
				return error_set(err, STATUS_INVALID, "input",
				                 "token %d of input %lld is not in the vocabulary of %lld",
				                 (int)q->ids[k], (long long)i, (long long)d->inputs);
	}
	return STATUS_OK;
}

status scoring_new(scoring **out, served_model *m, const scoring_request *r, error *err)
{
	const model_dims *d = model_dimensions(m->model);
	*out = NULL;
	TRY(check(d, r, err));
	assert(r->width == (r->embedding == POOL_NONE ? d->outputs : d->hidden));
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
	if (x->plan)
		give_plan(x->model, x->plan);
	served_model_give(x->model, x->slot);
	free(x->sum);
	free(x);
}

/* Run one node, or the work before the first or after the last. */
static status advance(scoring *x, error *err)
{
	if (!x->plan)
		return begin(x, err);
	if (x->cursor < plan_node_count(x->plan->plan))
		return plan_step(x->plan->plan, &x->cursor);
	return finish(x);
}

status scoring_advance(scoring *x, bool *done, error *err)
{
	uint64_t began = clock_ns();
	*done = x->read == x->request.n_sequences;
	while (!*done) {
		TRY(advance(x, err));
		*done = x->read == x->request.n_sequences;
		if (clock_ns() - began >= SCORING_SLICE_NS)
			break;
	}
	return STATUS_OK;
}
