#include "tests/golden/golden_session.h"

#include <inttypes.h>
#include <string.h>

#include "engine/model/feed.h"

status golden_session_new(golden *g, const model *m, int64_t sequences, bool masked, golden_session *out, error *err)
{
	const long chunk = g->options->spec.chunk;
	*out = (golden_session){.model = m, .batch = sequences, .chunk = chunk ? chunk : 1, .masked = masked};
	const forward_spec spec = {.phase = PHASE_STEP,
	                           .batch = sequences,
	                           .length = out->chunk,
	                           .slots = sequences,
	                           .masked = masked,
	                           .train.loss = true,
	                           .out.logits = LOGITS_ALL};
	TRY(golden_pool(g, sequences * model_state_floats(m), &out->pool, err));
	return golden_pooled_forward(g, m, &spec, out->pool, &out->plan, err);
}

static status encode(plan *p, const model_dims *d, const int32_t *slots, const int32_t *ids, const int32_t *mask)
{
	TRY(feed_write(p, PORT_SOURCE, ids));
	TRY(feed_write(p, PORT_SLOT, slots));
	if (mask)
		TRY(feed_write(p, PORT_SOURCE_MASK, mask));
	TRY(feed_positions(p, d, POSITION_ERROR, 0));
	return plan_run(p);
}

status golden_session_encode(golden *g, const golden_session *s, int64_t source, const int32_t *ids,
                             const int32_t *mask, error *err)
{
	plan *p;
	void *slots;
	const forward_spec spec = {
	    .phase = PHASE_ENCODE, .batch = s->batch, .source = source, .slots = s->batch, .source_masked = mask};
	TRY(golden_memory(g, s->batch, sizeof(int32_t), &slots, err));
	for (int64_t b = 0; b < s->batch; b++)
		((int32_t *)slots)[b] = (int32_t)b;
	TRY(golden_pooled_forward(g, s->model, &spec, s->pool, &p, err));
	return encode(p, model_dimensions(s->model), slots, ids, mask);
}

/* Write columns at … at + n - 1 of [B, width], followed by `filling`. */
static status write_columns(const golden_session *s, port_role role, const golden_tokens *t, const int32_t *from,
                            int64_t at, int64_t n, int32_t filling, int32_t *scratch)
{
	for (int64_t b = 0; b < s->batch; b++)
		for (int64_t i = 0; i < s->chunk; i++)
			scratch[b * s->chunk + i] = from && i < n ? from[b * t->width + at + i] : filling;
	return feed_write(s->plan, role, scratch);
}

static status run_piece(golden_session *s, const golden_tokens *t, int64_t at, int64_t n, int32_t *scratch)
{
	TRY(write_columns(s, PORT_TOKENS, t, t->ids, at, n, 0, scratch));
	if (s->masked)
		TRY(write_columns(s, PORT_MASK, t, t->mask, at, n, 0, scratch));
	TRY(write_columns(s, PORT_LABELS, t, t->labels, at, n, -1, scratch));
	TRY(feed_positions(s->plan, model_dimensions(s->model), POSITION_ERROR, s->read));
	TRY(feed_step(s->plan, s->read, n));
	TRY(plan_run(s->plan));
	s->read += n;
	return STATUS_OK;
}

static status add_loss(const golden_session *s, double *loss, double *labels)
{
	float mean, count;
	TRY(plan_read(s->plan, port_find(plan_graph(s->plan), PORT_LOSS), &mean));
	TRY(plan_read(s->plan, port_find(plan_graph(s->plan), PORT_COUNT), &count));
	*loss += (double)mean * (double)count;
	*labels += (double)count;
	return STATUS_OK;
}

status golden_session_read(golden *g, golden_session *s, golden_tokens t, float *logits, double *loss, double *labels,
                           error *err)
{
	const model_dims *d = model_dimensions(s->model);
	const int64_t vocabulary = d->outputs;
	void *some, *scratch;
	TRY(golden_memory(g, s->batch * s->chunk * vocabulary, sizeof(float), &some, err));
	TRY(golden_memory(g, s->batch * s->chunk, sizeof(int32_t), &scratch, err));
	*loss = *labels = 0;
	if (s->read + t.count > d->positions)
		return error_set(err, STATUS_INVALID, "recurrent",
		                 "a session of this model reads at most %" PRId64 " tokens", d->positions);
	for (int64_t at = 0, n; at < t.count; at += n) {
		n = model_dims_piece(d, s->read, t.count - at, s->chunk);
		TRY(run_piece(s, &t, at, n, scratch));
		TRY(plan_read(s->plan, port_find(plan_graph(s->plan), PORT_LOGITS), some));
		for (int64_t b = 0; b < s->batch; b++)
			memcpy(logits + (b * t.count + at) * vocabulary, (float *)some + b * s->chunk * vocabulary,
			       (size_t)(n * vocabulary) * sizeof *logits);
		TRY(add_loss(s, loss, labels));
	}
	return STATUS_OK;
}
