/* served_model.c - one way of reading tokens, on plans of a few fixed shapes.
 *
 * A plan's shape is fixed, so a batch is padded to the next power of two and a chunk to
 * the next of three lengths. An exact plan per shape would never pad but would compile max_batch + 256
 * plans; the padding costs at most the other half of a step that is mostly weight traffic. */
#include "engine/serve/served_model.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/outputs.h"

struct served_plan {
	served_plan *next;
	int64_t batch, length;
	bool scores;
	plan *plan;
	value input_ids, position_ids, slot, position, lengths, last, logits;
	int32_t *ids, *rows;                 /* [batch][length] staging */
	int32_t *slots, *at, *counts, *ends; /* [batch] staging */
	outputs *outputs;                    /* with scores */
	sample_plan *sample;
};

/* --- plans -------------------------------------------------------------------- */

static void served_plan_free(served_plan *p)
{
	if (!p)
		return;
	sample_plan_free(p->sample);
	plan_free(p->plan);
	outputs_free(p->outputs);
	free(p->ids);
	free(p->rows);
	free(p->slots);
	free(p->at);
	free(p->counts);
	free(p->ends);
	free(p);
}

static value served_plan_find(const served_plan *p, const char *name)
{
	value v = graph_find(plan_graph(p->plan), name);
	assert(v != VALUE_NONE);
	return v;
}

static status served_plan_make(served_plan *p, const served_model *m, error *err)
{
	size_t batch = (size_t)p->batch, tokens = batch * (size_t)p->length;
	p->ids = memory_new(tokens, sizeof(int32_t));
	p->rows = memory_new(tokens, sizeof(int32_t));
	p->slots = memory_new(batch, sizeof(int32_t));
	p->at = memory_new(batch, sizeof(int32_t));
	p->counts = memory_new(batch, sizeof(int32_t));
	p->ends = memory_new(batch, sizeof(int32_t));
	if (!p->ids || !p->rows || !p->slots || !p->at || !p->counts || !p->ends)
		return STATUS_NOMEM;
	forward_spec spec = {.batch = p->batch,
	                     .length = p->length,
	                     .recurrent = true,
	                     .slots = statepool_capacity(m->pool),
	                     .explain = p->scores,
	                     .logits = LOGITS_LAST};
	TRY(model_plan(&p->plan, m->model, &spec, NULL, statepool_data(m->pool), err));
	if (p->scores)
		TRY(outputs_new(&p->outputs, m->model, p->plan, p->length));
	p->input_ids = served_plan_find(p, "input_ids");
	p->position_ids = served_plan_find(p, "position_ids");
	p->slot = served_plan_find(p, "slot");
	p->position = served_plan_find(p, "position");
	p->lengths = served_plan_find(p, "length");
	p->last = served_plan_find(p, "last");
	p->logits = served_plan_find(p, "logits");
	return sample_plan_new(&p->sample, model_backend(m->model), p->batch, model_dimensions(m->model)->vocab,
	                       plan_data(p->plan, p->logits), err);
}

/* The smallest of the shapes above that holds rows × length. */
static void served_plan_shape(const served_model *m, int rows, int64_t length, int64_t *out_batch, int64_t *out_length)
{
	static const int64_t chunks[] = {1, 16, 64, SCHEDULER_PREFILL_CHUNK};
	assert(rows >= 1 && rows <= m->max_batch && length >= 1 && length <= SCHEDULER_PREFILL_CHUNK);
	assert(rows == 1 || length == 1);
	int64_t batch = 1;
	while (batch < rows)
		batch *= 2;
	*out_batch = batch < m->max_batch ? batch : m->max_batch;
	int i = 0;
	while (chunks[i] < length)
		i++;
	*out_length = chunks[i];
}

static served_plan *served_model_known(const served_model *m, int64_t batch, int64_t length, bool scores)
{
	served_plan *p = m->plans;
	while (p && (p->batch != batch || p->length != length || p->scores != scores))
		p = p->next;
	return p;
}

status served_model_plan(served_model *m, int rows, int64_t length, bool scores, int64_t adjusts, served_plan **out,
                         error *err)
{
	int64_t batch;
	*out = NULL;
	served_plan_shape(m, rows, length, &batch, &length);
	served_plan *p = served_model_known(m, batch, length, scores);
	if (!p) {
		p = memory_new(1, sizeof *p);
		if (!p)
			return STATUS_NOMEM;
		*p = (served_plan){.batch = batch, .length = length, .scores = scores};
		status s = served_plan_make(p, m, err);
		if (s != STATUS_OK) {
			served_plan_free(p);
			return s;
		}
		p->next = m->plans;
		m->plans = p;
	}
	TRY(sample_plan_prepare(p->sample, adjusts, err));
	*out = p;
	return STATUS_OK;
}

/* --- a step --------------------------------------------------------------------- */

static bool slot_in_rows(const served_row *rows, int n_rows, int32_t slot)
{
	for (int i = 0; i < n_rows; i++)
		if (rows[i].slot == slot)
			return true;
	return false;
}

static void served_plan_fill(served_plan *p, const served_model *m, const served_row *rows, int n_rows)
{
	int64_t positions = model_dimensions(m->model)->positions;
	memset(p->ids, 0, (size_t)(p->batch * p->length) * sizeof *p->ids);
	memset(p->rows, 0, (size_t)(p->batch * p->length) * sizeof *p->rows);
	for (int i = 0; i < n_rows; i++) {
		const served_row *r = &rows[i];
		assert(r->count >= 1 && r->count <= p->length);
		memcpy(p->ids + i * p->length, r->tokens, (size_t)r->count * sizeof *p->ids);
		for (int64_t t = 0; t < r->count; t++)
			p->rows[i * p->length + t] = position_row(r->policy, r->position + t, positions);
		p->slots[i] = r->slot;
		p->at[i] = (int32_t)r->position;
		p->counts[i] = (int32_t)r->count;
		p->ends[i] = (int32_t)(i * p->length + r->count - 1);
	}
	int32_t other = 0;
	for (int64_t i = n_rows; i < p->batch; i++, other++) {
		while (slot_in_rows(rows, n_rows, other))
			other++;
		assert(other < statepool_slots(m->pool));
		p->slots[i] = other;
		p->at[i] = 1; /* position 0 would begin a state */
		p->counts[i] = 0;
		p->ends[i] = (int32_t)(i * p->length);
	}
}

status served_model_step(served_model *m, served_plan *p, const served_row *rows, int n_rows)
{
	served_plan_fill(p, m, rows, n_rows);
	TRY(plan_write(p->plan, p->input_ids, p->ids));
	TRY(plan_write(p->plan, p->position_ids, p->rows));
	TRY(plan_write(p->plan, p->slot, p->slots));
	TRY(plan_write(p->plan, p->position, p->at));
	TRY(plan_write(p->plan, p->lengths, p->counts));
	TRY(plan_write(p->plan, p->last, p->ends));
	TRY(plan_run(p->plan));
	for (int i = 0; i < n_rows; i++)
		if (rows[i].scores)
			TRY(outputs_read(p->outputs, i, rows[i].count, rows[i].scores));
	return STATUS_OK;
}

status served_model_sample(served_plan *p, const sample_row *rows, int n_rows, int32_t *token)
{
	return sample_plan_run(p->sample, rows, n_rows, token);
}

const float *served_model_logits(const served_model *m, const served_plan *p, int row)
{
	return (const float *)plan_data(p->plan, p->logits) + row * model_dimensions(m->model)->vocab;
}

status served_model_prepare_row(served_model *m, int64_t adjusts, error *err)
{
	return sample_plan_prepare(m->from_row, adjusts, err);
}

status served_model_sample_row(served_model *m, const float *logits, const sample_row *row, int32_t *token)
{
	backend *b = model_backend(m->model);
	TRY(b->upload(b, m->row, logits, (size_t)model_dimensions(m->model)->vocab * sizeof *logits));
	return sample_plan_run(m->from_row, row, 1, token);
}

/* --- the model -------------------------------------------------------------------- */

static status served_model_load(served_model *m, const char *folder, dtype weights, backend *b, int64_t max_slots,
                                error *err)
{
	TRY(model_open(&m->model, folder, weights, b, err));
	int64_t vocab = model_dimensions(m->model)->vocab, floats = model_state_floats(m->model);
	void *row;
	TRY(tokenizer_open(&m->tokenizer, folder, vocab, err));
	status s = statepool_new(&m->pool, b, floats, max_slots);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "no room for %lld states of %lld numbers: %s", (long long)max_slots,
		                 (long long)floats, status_text(s));
	TRY(b->allocate(b, (size_t)vocab * sizeof(float), &row));
	m->row = row;
	TRY(sample_plan_new(&m->from_row, b, 1, vocab, m->row, err));
	m->rounds = model_architecture(m->model)->n_rounds;
	m->score_floats = outputs_token_floats(m->model);
	return STATUS_OK;
}

status served_model_open(served_model **out, const char *id, const char *folder, dtype weights, backend *b,
                         int max_batch, int64_t max_slots, error *err)
{
	*out = NULL;
	served_model *m = memory_new(1, sizeof *m);
	if (!m)
		return STATUS_NOMEM;
	assert(strlen(id) < sizeof m->id);
	strcpy(m->id, id);
	m->max_batch = max_batch;
	status s = served_model_load(m, folder, weights, b, max_slots, err);
	if (s != STATUS_OK) {
		served_model_free(m);
		return error_set(err, s, "model", "the model could not be loaded: %s", status_text(s));
	}
	*out = m;
	return STATUS_OK;
}

void served_model_free(served_model *m)
{
	if (!m)
		return;
	assert(m->users == 0);
	while (m->plans) {
		served_plan *p = m->plans;
		m->plans = p->next;
		served_plan_free(p);
	}
	sample_plan_free(m->from_row);
	if (m->row)
		model_backend(m->model)->release(model_backend(m->model), m->row);
	statepool_free(m->pool);
	tokenizer_free(m->tokenizer);
	model_free(m->model);
	free(m);
}

const model *served_model_model(const served_model *m)
{
	return m->model;
}

const tokenizer *served_model_tokenizer(const served_model *m)
{
	return m->tokenizer;
}

status served_model_take(served_model *m, int32_t *slot, error *err)
{
	status s = statepool_take(m->pool, slot);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "no room for another session's state: %s", status_text(s));
	m->users++;
	return STATUS_OK;
}

void served_model_give(served_model *m, int32_t slot)
{
	assert(m->users > 0);
	statepool_give(m->pool, slot);
	m->users--;
}

uint64_t served_model_fnv1a(uint64_t sum, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
	return sum;
}

status served_model_hash(served_model *m, uint64_t *out, error *err)
{
	enum { PIECE = 1 << 18 }; /* floats fetched at a time */
	*out = m->hash;
	if (m->hashed)
		return STATUS_OK;
	status s = STATUS_NOMEM;
	backend *b = model_backend(m->model);
	json_t *config = model_architecture(m->model)->config_write(model_config(m->model));
	char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
	float *piece = memory_new(PIECE, sizeof *piece);
	if (!text || !piece)
		goto done;
	uint64_t sum = served_model_fnv1a(FNV1A_INIT, text, strlen(text));
	int64_t floats = model_arena_floats(m->model);
	s = STATUS_OK;
	for (int64_t at = 0; at < floats && s == STATUS_OK; at += PIECE) {
		size_t bytes = (size_t)(floats - at < PIECE ? floats - at : PIECE) * sizeof *piece;
		s = b->download(b, piece, model_arena(m->model) + at, bytes);
		sum = served_model_fnv1a(sum, piece, bytes);
	}
	if (s == STATUS_OK) {
		m->hash = *out = sum;
		m->hashed = true;
	}
done:
	free(piece);
	free(text);
	json_decref(config);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the model could not be hashed: %s", status_text(s));
}
