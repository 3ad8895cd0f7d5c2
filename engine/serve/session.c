/* session.c - slot, tokens, logits and log of one sequence; they always describe the same tokens. */
#include "engine/serve/session.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/explain.h"

status session_new(session **out, served_model *m, const char *id, const session_options *o, error *err)
{
	*out = NULL;
	if (o->explain && !model_explainer(m->model))
		return error_set(err, STATUS_UNSUPPORTED, "explain", "this model has no importance weights");
	session *x = memory_new(1, sizeof *x);
	float *logits = memory_new((size_t)model_dimensions(m->model)->outputs, sizeof *logits);
	int32_t slot = -1;
	status s = x && logits ? served_model_take(m, &slot, err) : STATUS_NOMEM;
	if (s != STATUS_OK) {
		free(logits);
		free(x);
		return error_set(err, s, NULL, "no memory for another session");
	}
	assert(strlen(id) < sizeof x->id);
	strcpy(x->id, id);
	x->model = m;
	x->options = *o;
	x->slot = slot;
	x->logits = logits;
	x->pending = -1;
	*out = x;
	return STATUS_OK;
}

void session_free(session *x)
{
	if (!x)
		return;
	served_model_give(x->model, x->slot);
	free(x->ids);
	free(x->logits);
	free(x->log);
	free(x->source);
	free(x);
}

status session_check(const session *x, error *err)
{
	if (x->busy)
		return error_set(err, STATUS_CONFLICT, NULL, "the session is busy with another request");
	if (x->lost)
		return error_set(err, STATUS_DEVICE, NULL, "the session's state was lost when the device failed");
	return STATUS_OK;
}

/* Reallocate *block to count × size bytes. The old block stays valid on failure. */
static bool session_grow(void *block, int64_t count, size_t size)
{
	void **p = block;
	int64_t bytes;
	void *bigger = memory_product(count, (int64_t)size, &bytes) ? realloc(*p, (size_t)bytes) : NULL;
	if (bigger)
		*p = bigger;
	return bigger != NULL;
}

status session_reserve(session *x, int64_t n, error *err)
{
	assert(n >= 0);
	if (n > INT32_MAX - x->tokens)
		return error_set(err, STATUS_TOO_LARGE, NULL, "a sequence holds at most %d tokens", INT32_MAX);
	int64_t need = x->tokens + n;
	if (need <= x->capacity)
		return STATUS_OK;
	int64_t capacity = 2 * x->capacity > need ? 2 * x->capacity : need;
	if (capacity < 64)
		capacity = 64;
	size_t per_token = (size_t)x->model->log_floats * sizeof(float);
	const bool logs = x->options.explain && per_token > 0;
	if (logs && need > EXPLAIN_MAX_BYTES / (int64_t)per_token)
		return error_set(err, STATUS_TOO_LARGE, NULL,
		                 "a sequence that can be explained holds at most %lld tokens of this model",
		                 (long long)(EXPLAIN_MAX_BYTES / (int64_t)per_token));
	if (!session_grow(&x->ids, capacity, sizeof *x->ids) || (logs && !session_grow(&x->log, capacity, per_token)))
		return error_set(err, STATUS_NOMEM, NULL, "no memory for a sequence of %lld tokens", (long long)need);
	x->capacity = capacity;
	return STATUS_OK;
}

status session_reserve_source(session *x, int64_t n, error *err)
{
	free(x->source);
	x->source = memory_new((size_t)n, sizeof *x->source);
	return x->source ? STATUS_OK
	                 : error_set(err, STATUS_NOMEM, NULL, "no memory for a source of %lld tokens", (long long)n);
}

served_row session_row(session *x, const int32_t *tokens, int64_t n)
{
	assert(n >= 1 && x->tokens + n <= x->capacity);
	return (served_row){
	    .slot = x->slot,
	    .position = x->tokens,
	    .policy = x->options.policy,
	    .tokens = tokens,
	    .count = n,
	    .log = x->log ? x->log + x->tokens * x->model->log_floats : NULL,
	    .from = -1,
	};
}

void session_commit(session *x, const int32_t *tokens, int64_t n, const served_plan *p, int row)
{
	memcpy(x->ids + x->tokens, tokens, (size_t)n * sizeof *tokens);
	x->tokens += n;
	x->device_logits = served_model_logits(p, row);
}

status session_fetch(session *x)
{
	backend *b = model_backend(x->model->model);
	const float *from = x->device_logits;
	x->device_logits = NULL;
	if (!from)
		return STATUS_OK;
	status s = b->download(b, x->logits, from, (size_t)model_dimensions(x->model->model)->outputs * sizeof *from);
	x->lost |= s != STATUS_OK;
	return s;
}

status session_step(session *x, served_plan *p, const served_row *row)
{
	status s = served_model_step(x->model, p, row, 1, NULL);
	x->lost |= s != STATUS_OK && served_plan_has_changed(p);
	return x->lost ? STATUS_DEVICE : s;
}

static status session_read_pending(session *x, error *err)
{
	served_plan *p;
	int32_t token = x->pending;
	TRY(session_reserve(x, 1, err));
	TRY(served_model_plan(x->model, 1, 1, x->log != NULL, 0, &p, err));
	served_row row = session_row(x, &token, 1);
	TRY(session_step(x, p, &row));
	session_commit(x, &token, 1, p, 0);
	x->pending = -1;
	return session_fetch(x);
}

status session_ready(session *x, error *err)
{
	TRY(session_check(x, err));
	if (x->pending < 0)
		return STATUS_OK;
	status s = session_read_pending(x, err);
	return s == STATUS_OK
	           ? s
	           : error_set(err, s, NULL, "the session's last token could not be read: %s", status_text(s));
}

int64_t session_limit(const session *x)
{
	return x->options.policy == POSITION_ERROR ? model_dimensions(x->model->model)->positions : INT32_MAX;
}

/* --- copies ---------------------------------------------------------------------- */

bool session_next_slice(const size_t parts[SESSION_PARTS], size_t moved, size_t most, session_slice *out)
{
	for (int i = 0; i < SESSION_PARTS; moved -= parts[i++])
		if (moved < parts[i]) {
			size_t left = parts[i] - moved;
			*out = (session_slice){i, moved, left < most ? left : most};
			return true;
		}
	return false;
}

status session_reserve_copy(session *copy, const session *x, error *err)
{
	TRY(session_reserve(copy, x->tokens - copy->tokens, err));
	return x->n_source && !copy->source ? session_reserve_source(copy, x->n_source, err) : STATUS_OK;
}

status session_fork(session **out, session *x, const char *id, error *err)
{
	TRY(session_new(out, x->model, id, &x->options, err));
	status s = session_reserve_copy(*out, x, err);
	if (s != STATUS_OK) {
		session_free(*out);
		*out = NULL;
	}
	return s;
}

static status copy_slice(session *y, const session *x, const session_slice *slice)
{
	const void *from[] = {NULL, x->logits, x->ids, x->log, x->source};
	void *to[] = {NULL, y->logits, y->ids, y->log, y->source};
	if (slice->part == 0)
		return statepool_copy(x->model->pool, y->slot, x->slot, slice->from, slice->bytes);
	memcpy((char *)to[slice->part] + slice->from, (const char *)from[slice->part] + slice->from, slice->bytes);
	return STATUS_OK;
}

status session_fork_step(session *copy, const session *x, size_t *moved, bool *done, error *err)
{
	const served_model *m = x->model;
	size_t tokens = (size_t)x->tokens, left = SESSION_STEP;
	const size_t parts[SESSION_PARTS] = {
	    statepool_slot_bytes(m->pool),
	    (size_t)model_dimensions(m->model)->outputs * sizeof *x->logits,
	    tokens * sizeof *x->ids,
	    x->log ? tokens * (size_t)m->log_floats * sizeof *x->log : 0,
	    (size_t)x->n_source * sizeof *x->source,
	};
	session_slice slice;
	while (left > 0 && session_next_slice(parts, *moved, left, &slice)) {
		status s = copy_slice(copy, x, &slice);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "the state could not be copied: %s", status_text(s));
		*moved += slice.bytes;
		left -= slice.bytes;
	}
	*done = !session_next_slice(parts, *moved, 1, &slice);
	copy->tokens = *done ? x->tokens : 0;
	copy->n_source = *done ? x->n_source : 0;
	return STATUS_OK;
}

status session_follow_step(session *copy, const session *x, const state_range *changes, int n, size_t *moved,
                           bool *done, error *err)
{
	size_t left = SESSION_STEP, end = 0; /* end: bytes of the changes so far */
	for (int i = 0; i < n && left > 0; i++) {
		const size_t first = (size_t)changes[i].first * sizeof(float),
		             bytes = (size_t)changes[i].count * sizeof(float);
		end += bytes;
		if (*moved >= end)
			continue;
		const size_t rest = end - *moved, take = rest < left ? rest : left;
		status s = statepool_copy(x->model->pool, copy->slot, x->slot, first + bytes - rest, take);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "the state could not be copied: %s", status_text(s));
		*moved += take;
		left -= take;
	}
	*done = left > 0;
	if (*done) {
		memcpy(copy->ids, x->ids, (size_t)x->tokens * sizeof *x->ids);
		copy->tokens = x->tokens;
	}
	return STATUS_OK;
}
