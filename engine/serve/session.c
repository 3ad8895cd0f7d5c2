/* session.c - slot, tokens, logits and log of one sequence; they always describe the same tokens. */
#include "engine/serve/session.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/explain.h"
#include "engine/serve/lora_bank.h"
#include "engine/serve/served_adapter.h"

enum { LOG_TOKENS = 64 /* minimum capacity of a log */ };

/* Create a session with a slot, or a held one without logits. */
static status make(session **out, served_model *m, const char *id, const session_options *o, bool held, error *err)
{
	*out = NULL;
	assert(strlen(id) < SCHEDULER_ID_BYTES);
	session *x = memory_new(1, sizeof *x + strlen(id) + 1);
	float *logits = held ? NULL : memory_new((size_t)model_dimensions(m->model)->outputs, sizeof *logits);
	int32_t slot = -1, entry = 0;
	status s = x && (logits || held) ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK && !held)
		s = lora_bank_take(m, o->adapter, &entry, err);
	if (s == STATUS_OK && !held)
		s = served_model_take(m, &slot, err);
	if (s != STATUS_OK) {
		lora_bank_give(m, entry);
		free(logits);
		free(x);
		return error_set(err, s, NULL, "no memory for another %s", held ? "snapshot" : "session");
	}
	memcpy(x->id, id, strlen(id) + 1);
	x->model = m;
	x->options = *o;
	x->options.adapter = served_adapter_share(o->adapter);
	x->slot = slot;
	x->entry = entry;
	x->logits = logits;
	x->pending = -1;
	*out = x;
	return STATUS_OK;
}

status session_new(session **out, served_model *m, const char *id, const session_options *o, error *err)
{
	*out = NULL;
	if (o->explain && !model_explainer(m->model))
		return error_set(err, STATUS_UNSUPPORTED, "explain", "this model has no importance weights");
	if (o->explain && o->adapter)
		return error_set(err, STATUS_UNSUPPORTED, "explain", "the share of an adapter is not explained");
	if (o->adapter && o->adapter->model != m->hash)
		return error_set(err, STATUS_INVALID, "adapter", "the adapter \"%s\" belongs to another model",
		                 o->adapter->id);
	return make(out, m, id, o, false, err);
}

session *session_share(session *held)
{
	atomic_fetch_add(&held->shares, 1);
	return held;
}

void session_free(session *x)
{
	if (!x || atomic_fetch_sub(&x->shares, 1) > 0)
		return;
	while (x->snapshots)
		session_drop_snapshot(x, x->snapshots);
	lora_bank_give(x->model, x->entry);
	if (x->slot >= 0)
		served_model_give(x->model, x->slot);
	if (x->used)
		atomic_fetch_sub(x->used, x->counted + held_state_uncount(&x->held, x->budget));
	held_state_fini(&x->held);
	token_history_fini(&x->history);
	served_adapter_free(x->options.adapter);
	free(x->logits);
	free(x->log);
	free(x->source);
	if (x->kept)
		session_free(x->kept->entering);
	free(x->kept);
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

static status refuse_length(int64_t tokens, error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "no memory for a sequence of %lld tokens", (long long)tokens);
}

/* Reserve memory for the log of `need` tokens, if x keeps one. */
static status reserve_log(session *x, int64_t need, error *err)
{
	const int64_t per_token = x->model->log_floats * (int64_t)sizeof(float);
	if (!x->options.explain || per_token == 0 || need <= x->log_capacity)
		return STATUS_OK;
	if (need > EXPLAIN_MAX_BYTES / per_token)
		return error_set(err, STATUS_TOO_LARGE, NULL,
		                 "a sequence that can be explained holds at most %lld tokens of this model",
		                 (long long)(EXPLAIN_MAX_BYTES / per_token));
	int64_t capacity = 2 * x->log_capacity > need ? 2 * x->log_capacity : need;
	if (capacity < LOG_TOKENS)
		capacity = LOG_TOKENS;
	if (!session_grow(&x->log, capacity, (size_t)per_token))
		return refuse_length(need, err);
	x->log_capacity = capacity;
	return STATUS_OK;
}

status session_reserve(session *x, int64_t n, error *err)
{
	assert(n >= 0);
	if (n > INT32_MAX - x->tokens)
		return error_set(err, STATUS_TOO_LARGE, NULL, "a sequence holds at most %d tokens", INT32_MAX);
	const int64_t need = x->tokens + n;
	TRY(reserve_log(x, need, err));
	return token_history_reserve(&x->history, need) == STATUS_OK ? STATUS_OK : refuse_length(need, err);
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
	assert(n >= 1 && x->tokens + n <= x->history.capacity);
	return (served_row){
	    .slot = x->slot,
	    .position = x->tokens,
	    .adapter = x->entry ? NULL : x->options.adapter,
	    .entry = x->entry,
	    .policy = x->options.policy,
	    .tokens = tokens,
	    .count = n,
	    .log = x->log ? x->log + x->tokens * x->model->log_floats : NULL,
	    .from = -1,
	};
}

void session_commit(session *x, const int32_t *tokens, int64_t n, const served_plan *p, int row)
{
	token_history_append(&x->history, tokens, n);
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
	TRY(served_model_plan(x->model, 1, 1, x->log != NULL, x->entry > 0, 0, &p, err));
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
	TRY(reserve_log(copy, x->tokens, err));
	return x->n_source && !copy->source ? session_reserve_source(copy, x->n_source, err) : STATUS_OK;
}

/* Let the copies of x share its blocks. Without memory they share fewer. */
static void name_blocks(session *x)
{
	int n;
	const state_piece *pieces = served_model_pieces(x->model, x->tokens, true, &n);
	if (x->slot >= 0)
		(void)block_list_extend(&x->held.blocks, block_list_needs(pieces, n));
}

status session_fork(session **out, session *x, const char *id, error *err)
{
	name_blocks(x);
	TRY(session_new(out, x->model, id, &x->options, err));
	status s = session_reserve_copy(*out, x, err);
	if (s != STATUS_OK) {
		session_free(*out);
		*out = NULL;
	}
	return s;
}

/* Copy a run of the state, and set *bytes to its bytes if there are fewer. */
static status copy_state(session *y, const session *x, size_t at, size_t *bytes)
{
	statepool *p = x->model->pool;
	int n;
	const state_piece *pieces = served_model_pieces(x->model, x->tokens, true, &n);
	const held_run run = y->slot < 0   ? held_state_run(&y->held, at)
	                     : x->slot < 0 ? held_state_run(&x->held, at)
	                                   : state_pieces_run(pieces, n, at);
	*bytes = run.bytes < *bytes ? run.bytes : *bytes;
	if (y->slot < 0)
		return run.found ? STATUS_OK : statepool_read(p, x->slot, run.slot, run.at, *bytes);
	return x->slot < 0 ? statepool_write(p, y->slot, run.slot, run.at, *bytes)
	                   : statepool_copy(p, y->slot, x->slot, run.slot, *bytes);
}

static status copy_slice(session *y, const session *x, session_slice *slice)
{
	const void *from[] = {NULL, x->logits, NULL, x->log, x->source};
	void *to[] = {NULL, y->logits, NULL, y->log, y->source};
	if (slice->part == PART_STATE)
		return copy_state(y, x, slice->from, &slice->bytes);
	memcpy((char *)to[slice->part] + slice->from, (const char *)from[slice->part] + slice->from, slice->bytes);
	return STATUS_OK;
}

/* Write the sizes of the parts of x that a copy gets; the tokens, which are shared, count as none. */
static void parts_of(const session *copy, const session *x, size_t parts[SESSION_PARTS])
{
	const served_model *m = x->model;
	int n;
	const state_piece *pieces = served_model_pieces(x->model, x->tokens, true, &n);
	parts[PART_STATE] = copy->slot < 0 ? copy->held.size
	                    : x->slot < 0  ? x->held.size
	                                   : state_pieces_bytes(pieces, n);
	parts[PART_LOGITS] =
	    !x->logits || !copy->logits ? 0 : (size_t)model_dimensions(m->model)->outputs * sizeof *x->logits;
	parts[PART_TOKENS] = 0;
	parts[PART_LOG] = x->log ? (size_t)(x->tokens * m->log_floats) * sizeof *x->log : 0;
	parts[PART_SOURCE] = (size_t)x->n_source * sizeof *x->source;
}

/* Return the bytes of a step, of which `left` are left, that a slice counts for. A run that `copy` did not need takes
 * time, too. */
static size_t step_bytes(const session *copy, const session_slice *slice, size_t left)
{
	enum { SHARED_RUN = 4096 };
	if (slice->part != PART_STATE || copy->slot >= 0 || !held_state_run(&copy->held, slice->from).found)
		return slice->bytes;
	return left < SHARED_RUN ? left : SHARED_RUN;
}

/* Copy the next SESSION_STEP bytes of all parts but the tokens. */
static status copy_parts(session *copy, const session *x, size_t *moved, bool *done, error *err)
{
	size_t parts[SESSION_PARTS], left = SESSION_STEP;
	session_slice slice;
	parts_of(copy, x, parts);
	while (left > 0 && session_next_slice(parts, *moved, left, &slice)) {
		status s = copy_slice(copy, x, &slice);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "the state could not be copied: %s", status_text(s));
		*moved += slice.bytes;
		left -= step_bytes(copy, &slice, left);
	}
	*done = !session_next_slice(parts, *moved, 1, &slice);
	return STATUS_OK;
}

/* Replace the tokens of `copy`, and its blocks if it has a slot, by those of x. On error nothing has changed. */
static status copy_tokens(session *copy, const session *x, error *err)
{
	token_history h;
	block_list blocks = {0};
	if (token_history_copy(&h, &x->history) != STATUS_OK)
		return refuse_length(x->tokens, err);
	if (copy->slot >= 0 && block_list_copy(&blocks, &x->held.blocks, INT64_MAX) != STATUS_OK) {
		token_history_fini(&h);
		return refuse_length(x->tokens, err);
	}
	token_history_fini(&copy->history);
	copy->history = h;
	if (copy->slot >= 0) {
		block_list_fini(&copy->held.blocks);
		copy->held.blocks = blocks;
	}
	copy->tokens = x->tokens;
	return STATUS_OK;
}

status session_fork_step(session *copy, const session *x, size_t *moved, bool *done, error *err)
{
	TRY(copy_parts(copy, x, moved, done, err));
	if (!*done)
		return STATUS_OK;
	TRY(copy_tokens(copy, x, err));
	if (copy->slot < 0)
		held_state_end(&copy->held);
	copy->n_source = x->n_source;
	return STATUS_OK;
}

status session_copy_all(session **copy, const session *x)
{
	size_t moved = 0;
	bool done = false;
	status s = STATUS_OK;
	while (s == STATUS_OK && !done)
		s = session_fork_step(*copy, x, &moved, &done, NULL);
	if (s != STATUS_OK) {
		session_free(*copy);
		*copy = NULL;
	}
	return s;
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
	return *done ? copy_tokens(copy, x, err) : STATUS_OK;
}

/* --- snapshots --------------------------------------------------------------------- */

/* Create a held session as session_hold_new does. */
static status hold(session **out, served_model *m, const char *id, const session_options *o, int64_t n, bool source,
                   block_list *blocks)
{
	int n_pieces;
	const state_piece *pieces = served_model_pieces(m, n, source, &n_pieces);
	TRY(make(out, m, id, o, true, NULL));
	const status s = held_state_begin(&(*out)->held, pieces, n_pieces, blocks);
	if (s != STATUS_OK) {
		session_free(*out);
		*out = NULL;
	}
	return s;
}

status session_hold_new(session **out, served_model *m, const session_options *o, int64_t n, bool source,
                        block_list *blocks)
{
	return hold(out, m, "", o, n, source, blocks);
}

status session_snapshot(session **out, session *x, const char *id, error *err)
{
	session *copy;
	status s = hold(&copy, x->model, id, &x->options, x->tokens, true, &x->held.blocks);
	if (s == STATUS_OK) {
		copy->logits = memory_new((size_t)model_dimensions(x->model->model)->outputs, sizeof *copy->logits);
		s = copy->logits ? session_reserve_copy(copy, x, err) : STATUS_NOMEM;
	}
	*out = s == STATUS_OK ? copy : NULL;
	if (s != STATUS_OK)
		session_free(copy);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "no memory for another snapshot");
}

void session_share_blocks(session *x, const session *held)
{
	block_list blocks;
	if (block_list_copy(&blocks, &held->held.blocks, INT64_MAX) != STATUS_OK)
		return;
	block_list_fini(&x->held.blocks);
	x->held.blocks = blocks;
}

session *session_find_snapshot(const session *x, const char *id)
{
	session *y = x->snapshots;
	while (y && strcmp(y->id, id) != 0)
		y = y->older;
	return y;
}

void session_drop_snapshot(session *x, session *snapshot)
{
	session **link = &x->snapshots;
	while (*link != snapshot)
		link = &(*link)->older;
	*link = snapshot->older;
	session_free(snapshot);
}

session *session_detach_snapshots(session *x)
{
	session *all = x->snapshots;
	x->snapshots = NULL;
	for (session *y = all; y; y = y->older)
		y->model = NULL; /* it may be unloaded meanwhile */
	return all;
}

void session_attach_snapshots(session *x, session *snapshots)
{
	assert(!x->snapshots);
	x->snapshots = snapshots;
	for (session *y = snapshots; y; y = y->older)
		y->model = x->model;
}

/* Bytes of a copy with logits whose state has `bytes`. */
static int64_t bytes_with(const session *x, size_t bytes)
{
	size_t parts[SESSION_PARTS];
	parts_of(x, x, parts);
	parts[PART_TOKENS] = (size_t)x->tokens * sizeof(int32_t);
	for (int i = 1; i < SESSION_PARTS; i++)
		bytes += parts[i];
	return (int64_t)bytes;
}

int64_t session_snapshot_bytes(const session *x)
{
	int n;
	const state_piece *pieces = served_model_pieces(x->model, x->tokens, true, &n);
	return bytes_with(x, state_pieces_bytes(pieces, n));
}

int64_t session_export_bytes(const session *x)
{
	return bytes_with(x, statepool_slot_bytes(x->model->pool));
}

void session_count(session *snapshot, held_budget budget, atomic_llong *used)
{
	snapshot->budget = budget;
	snapshot->used = used;
	snapshot->counted = bytes_with(snapshot, 0);
	atomic_fetch_add(used, snapshot->counted + held_state_count(&snapshot->held, budget));
}

/* Reserve what x needs to hold the contents of its snapshot, which it does not change yet. */
static status begin_rollback(session *x, const session *snapshot, error *err)
{
	int32_t *source = NULL;
	TRY(reserve_log(x, snapshot->tokens, err));
	if (snapshot->n_source && !(source = memory_new((size_t)snapshot->n_source, sizeof *source)))
		return refuse_length(snapshot->n_source, err);
	const status s = copy_tokens(x, snapshot, err);
	if (s != STATUS_OK) {
		free(source);
		return s;
	}
	if (source) {
		free(x->source);
		x->source = source;
	}
	x->n_source = snapshot->n_source;
	x->device_logits = NULL;
	x->pending = -1;
	return STATUS_OK;
}

status session_rollback_step(session *x, const session *snapshot, size_t *moved, bool *done, error *err)
{
	*done = false;
	if (*moved == 0)
		TRY(begin_rollback(x, snapshot, err));
	status s = copy_parts(x, snapshot, moved, done, err);
	x->lost |= s != STATUS_OK;
	return x->lost ? STATUS_DEVICE : s;
}
