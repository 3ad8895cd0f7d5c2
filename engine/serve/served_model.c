/* served_model.c - loading a model, and the data that exists once per model. */
#include "engine/serve/served_part.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/explain/explain.h"
#include "engine/model/adapter.h"
#include "engine/model/model_loader.h"
#include "engine/serve/lora_bank.h"
#include "engine/serve/read_pass.h"
#include "engine/tensor/arena.h"

enum { CONFIG_MAX_BYTES = 16 << 20, HOST_FLOATS = 1 << 21 /* size of host_logits, at least a row */ };

/* --- logits on the host ------------------------------------------------------------ */

static sample_plan *host_plan(const served_model *m, int n)
{
	return n == 1 ? m->one_from_host : m->from_host;
}

status served_model_prepare_rows(served_model *m, int n, int64_t adjusts, error *err)
{
	return sample_plan_prepare(host_plan(m, n), adjusts, err);
}

status served_model_sample_rows(served_model *m, const float *const *logits, const sample_row *rows, int n,
                                int32_t *tokens)
{
	backend *b = model_backend(m->model);
	const int64_t vocab = model_dimensions(m->model)->outputs;
	assert(n <= m->host_rows);
	for (int i = 0; i < n; i++)
		if (rows[i].settings)
			TRY(b->upload(b, m->host_logits + i * vocab, logits[i], (size_t)vocab * sizeof **logits));
	TRY(sample_plan_run(host_plan(m, n), rows, n));
	return b->download(b, tokens, m->host_tokens, (size_t)n * sizeof *tokens);
}

static status host_rows_new(served_model *m, backend *b, error *err)
{
	const int64_t vocab = model_dimensions(m->model)->outputs, fit = HOST_FLOATS / vocab;
	const int rows = m->host_rows = fit < 1 ? 1 : fit < SERVED_MODEL_HOST_ROWS ? (int)fit : SERVED_MODEL_HOST_ROWS;
	const size_t tokens_bytes = arena_aligned((size_t)rows * sizeof(int32_t));
	void *logits, *tokens;
	TRY(b->allocate(b, (size_t)(rows * vocab) * sizeof(float), &logits));
	m->host_logits = logits;
	TRY(b->allocate(b, tokens_bytes + (size_t)rows * sizeof(sample_setting), &tokens));
	m->host_tokens = tokens;
	sample_place place = {
	    .logits = m->host_logits, .settings = m->host_tokens + tokens_bytes, .tokens = (int32_t *)m->host_tokens};
	TRY(sample_plan_new(&m->one_from_host, b, 1, vocab, &place, err));
	return sample_plan_new(&m->from_host, b, rows, vocab, &place, err);
}

/* --- the model -------------------------------------------------------------------- */

struct served_model_loading {
	model_loader *weights;
	backend *backend;
	int64_t max_slots;
	bool equipped;
	served_preparation plans;
	char folder[]; /* path for the tokenizer */
};

static void loading_free(served_model_loading *l)
{
	if (!l)
		return;
	model_loader_free(l->weights);
	free(l);
}

/* Hash what the model's sessions depend on: configuration and weights as their files hold them, and the type of the
 * weights in memory. The manifest was written with the files, so a later version of a program does not change the hash.
 * A folder outside a store has no manifest; its hash covers the text of config.json and the weights that were read. */
static status hash_model(served_model *m, const char *folder, error *err)
{
	uint64_t parts[3] = {0, model_digest(m->model), (uint64_t)m->weights};
	manifest *stored;
	size_t bytes;
	char *text;
	TRY(manifest_open_folder(&stored, folder, err));
	bool known = stored && manifest_file_digest(stored, "config.json", &parts[0]);
	status s = known ? STATUS_OK : manifest_read(NULL, folder, "config.json", CONFIG_MAX_BYTES, &text, &bytes, err);
	if (!known && s == STATUS_OK) {
		parts[0] = digest_bytes(text, bytes);
		free(text);
	}
	manifest_free(stored);
	m->hash = digest_bytes(parts, sizeof parts);
	return s;
}

/* Set *out to the floats of a slot that a session's first token writes. */
static status first_floats(const served_model *m, int64_t *out)
{
	const state_list *states = model_states(m->model);
	state_range *ranges = memory_new((size_t)states->count * STATE_RANGES + 1, sizeof *ranges);
	*out = 0;
	if (!ranges)
		return STATUS_NOMEM;
	const int n = state_list_changes(states, 0, 1, 0, ranges);
	for (int i = 0; i < n; i++)
		*out += ranges[i].count;
	free(ranges);
	return STATUS_OK;
}

/* Create everything that a model needs beside its weights. */
static status served_model_equip(served_model *m, const served_model_loading *l, error *err)
{
	backend *b = l->backend;
	int64_t floats = model_state_floats(m->model), first;
	void *block;
	TRY(tokenizer_open(&m->tokenizer, l->folder, model_dimensions(m->model)->inputs, err));
	/* Slots count a model's users, so a model without state has slots of one float. */
	TRY(first_floats(m, &first));
	m->pieces = memory_new((size_t)(model_states(m->model)->count * STATE_RING_TENSORS) + 1, sizeof *m->pieces);
	if (!m->pieces)
		return STATUS_NOMEM;
	status s = statepool_new(&m->pool, b, floats > 0 ? floats : 1, first, l->max_slots);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "no room for %lld states of %lld numbers: %s", (long long)l->max_slots,
		                 (long long)floats, status_text(s));
	TRY(b->allocate(b, served_part_block_bytes(m), &block));
	m->blocks[0] = block;
	TRY(host_rows_new(m, b, err));
	if (!model_dimensions(m->model)->form->source)
		m->log_floats = explain_token_floats(model_architecture(m->model), model_config(m->model));
	const void *options;
	const architecture *a = model_architecture(m->model);
	bool any = true;
	for (int64_t i = 0; i < model_dimensions(m->model)->layers; i++)
		any &= a->mixer(model_config(m->model), i, &options)->any_pieces;
	m->any_pieces = any;
	m->has_adapters = adapter_check(m->model, NULL) == STATUS_OK && model_dimensions(m->model)->form->stepwise;
	m->chunk = any && b->prompt_tokens ? b->prompt_tokens : SCHEDULER_PREFILL_CHUNK;
	m->short_chunk = any && !b->prompt_tokens ? SCHEDULER_PREFILL_SHORT : m->chunk;
	return hash_model(m, l->folder, err);
}

static status not_loaded(status s, error *err)
{
	return s == STATUS_OK ? s : error_set(err, s, "model", "the model could not be loaded: %s", status_text(s));
}

/* One step of loading. *done: it was the last. */
static status load_step(served_model *m, served_model_loading *l, bool *done, error *err)
{
	bool read;
	if (l->equipped) {
		const status s = served_model_prepare(m, &l->plans);
		*done = l->plans.done;
		return s;
	}
	if (m->model) {
		l->equipped = true;
		return served_model_equip(m, l, err);
	}
	TRY(model_loader_step(l->weights, &read, err));
	m->model = read ? model_loader_take(l->weights) : NULL;
	return STATUS_OK;
}

status served_model_load(served_model *m, bool *done, error *err)
{
	*done = false;
	status s = load_step(m, m->loading, done, err);
	if (s != STATUS_OK)
		return not_loaded(s, err);
	if (*done) {
		loading_free(m->loading);
		m->loading = NULL;
	}
	return STATUS_OK;
}

static status served_model_begin(served_model *m, const char *folder, dtype weights, backend *b, int64_t max_slots,
                                 error *err)
{
	size_t bytes = strlen(folder) + 1;
	served_model_loading *l = m->loading = memory_new(1, sizeof *l + bytes);
	if (!l)
		return STATUS_NOMEM;
	l->backend = b;
	l->max_slots = max_slots;
	memcpy(l->folder, folder, bytes);
	return model_loader_new(&l->weights, folder, weights, b, err);
}

status served_model_new(served_model **out, const char *id, const char *folder, dtype weights, backend *b,
                        int max_batch, int64_t max_slots, error *err)
{
	*out = NULL;
	served_model *m = memory_new(1, sizeof *m);
	if (!m)
		return not_loaded(STATUS_NOMEM, err);
	assert(strlen(id) < sizeof m->id);
	strcpy(m->id, id);
	m->weights = weights;
	m->max_batch = max_batch;
	m->joined.joined = true;
	status s = served_model_begin(m, folder, weights, b, max_slots, err);
	if (s == STATUS_OK)
		*out = m;
	else
		served_model_free(m);
	return not_loaded(s, err);
}

static void served_model_release(const served_model *m, void *data)
{
	if (data)
		model_backend(m->model)->release(model_backend(m->model), data);
}

void served_model_free(served_model *m)
{
	if (!m)
		return;
	assert(m->users == 0);
	loading_free(m->loading);
	served_model_free_plans(m);
	read_pass_free_all(m);
	lora_bank_free(m);
	sample_plan_free(m->from_host);
	sample_plan_free(m->one_from_host);
	served_model_release(m, m->host_logits);
	served_model_release(m, m->host_tokens);
	for (int i = 0; i < SERVED_MODEL_PARTS; i++)
		served_model_release(m, m->blocks[i]);
	free(m->pieces);
	statepool_free(m->pool);
	tokenizer_free(m->tokenizer);
	model_free(m->model);
	free(m);
}

const state_piece *served_model_pieces(const served_model *m, int64_t tokens, bool source, int *n)
{
	*n = state_list_pieces(model_states(m->model), tokens, source, m->pieces);
	return m->pieces;
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
