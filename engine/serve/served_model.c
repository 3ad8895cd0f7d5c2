/* served_model.c - one way of reading tokens, on plans of a few sizes.
 *
 * A step runs on the smallest plan that holds it. Where plans can be given smaller inputs (plan_reshape: the CPU), a
 * step costs what its own rows and tokens cost, and the sizes are there only because a plan's activations
 * lie closer together the smaller it is. Where plans are recorded, shapes are fixed and the step is padded: an exact
 * plan per shape would compile thousands. */
#include "engine/serve/served_model.h"

#include <assert.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/explain/outputs.h"
#include "engine/model/model_loader.h"
#include "engine/serve/thread_choice.h"
#include "engine/tensor/arena.h"
#include "engine/tensor/ops.h"

/* A step's inputs, one behind the other in a block. */
typedef enum input {
	INPUT_IDS,  /* first: it lies behind the tokens sampled */
	INPUT_FROM, /* of decode steps whose ids may come from the device */
	INPUT_POSITION_IDS,
	INPUT_SLOT,
	INPUT_POSITION,
	INPUT_LENGTH,
	INPUT_START, /* of prompts */
	INPUT_LAST,
	INPUT_SETTING,
	INPUT_COUNT
} input;

static const char *const input_names[INPUT_COUNT] = {
    [INPUT_IDS] = "input_ids", [INPUT_POSITION_IDS] = "position_ids",
    [INPUT_SLOT] = "slot",     [INPUT_POSITION] = "position",
    [INPUT_LENGTH] = "length", [INPUT_START] = "start",
    [INPUT_LAST] = "last",
};

/* Rows, tokens in all and kind; decode: rows of one token. */
typedef struct step_shape {
	int64_t rows, tokens;
	bool prompt, scores;
} step_shape;

struct served_plan {
	served_plan *next;
	step_shape most;
	plan *pick, *plan; /* pick: input_ids; NULL: they are uploaded */
	value logits, inputs[INPUT_COUNT]; /* VALUE_NONE: the graph has no such input */
	size_t at[INPUT_COUNT], bytes; /* of the block */
	int32_t *staging[INPUT_COUNT]; /* within the first, which is the block on the host */
	const int32_t *sampled;        /* [rows] on the device */
	outputs *outputs;              /* with scores */
	sample_plan *sample;
	thread_choice threads;
};

/* --- where things lie on the device ------------------------------------------ */

static size_t aligned(size_t bytes)
{
	return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static void lay_out(size_t at[INPUT_COUNT], size_t *bytes, int64_t rows, int64_t tokens)
{
	*bytes = 0;
	for (int i = 0; i < INPUT_COUNT; i++) {
		bool per_token = i == INPUT_IDS || i == INPUT_POSITION_IDS;
		int64_t words = per_token ? tokens : i == INPUT_SETTING ? rows * SAMPLE_WORDS : rows;
		at[i] = *bytes;
		*bytes += aligned((size_t)words * sizeof(int32_t));
	}
}

int served_model_prompt_rows(const served_model *m)
{
	enum { MOST = 64 }; /* a row of logits for each */
	return m->max_batch < MOST ? m->max_batch : MOST;
}

/* The block is: tokens that decode steps sample, those of prompts' steps, that of a row from the host and its setting,
 * then a step's inputs, sized for the largest shapes. */
static size_t prompt_tokens_at(const served_model *m)
{
	return aligned((size_t)m->max_batch * sizeof(int32_t));
}

static size_t row_token_at(const served_model *m)
{
	return prompt_tokens_at(m) + aligned((size_t)served_model_prompt_rows(m) * sizeof(int32_t));
}

static size_t inputs_at(const served_model *m)
{
	return row_token_at(m) + ARENA_ALIGNMENT + aligned(sizeof(sample_setting));
}

static status allocate_block(served_model *m, backend *b)
{
	size_t at[INPUT_COUNT], decode, prompt;
	void *block;
	lay_out(at, &decode, m->max_batch, m->max_batch);
	lay_out(at, &prompt, served_model_prompt_rows(m), SCHEDULER_PREFILL_CHUNK);
	TRY(b->allocate(b, inputs_at(m) + (decode > prompt ? decode : prompt), &block));
	m->block = block;
	return STATUS_OK;
}

/* --- plans -------------------------------------------------------------------- */

static void served_plan_free(served_plan *p)
{
	if (!p)
		return;
	sample_plan_free(p->sample);
	plan_free(p->pick);
	plan_free(p->plan);
	outputs_free(p->outputs);
	free(p->staging[0]);
	free(p);
}

static status make_staging(served_plan *p)
{
	lay_out(p->at, &p->bytes, p->most.rows, p->most.tokens);
	char *block = memory_new(p->bytes, 1);
	for (int i = 0; block && i < INPUT_COUNT; i++)
		p->staging[i] = (int32_t *)(block + p->at[i]);
	return block ? STATUS_OK : STATUS_NOMEM;
}

/* ids[i] = (tokens sampled, then ids uploaded)[from[i]]. */
static status make_pick(served_plan *p, const served_model *m, char *inputs, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	int64_t known = (int64_t)(inputs_at(m) / sizeof(int32_t)) + p->most.rows;
	value all = graph_input(g, "tokens", DTYPE_I32, SHAPE2(known, 1));
	value from = graph_input(g, "from", DTYPE_I32, SHAPE1(p->most.rows));
	value ids = op_gather(g, all, from, -1);
	graph_output(g, ids, "ids");
	plan_binding bindings[] = {
	    {all, m->block}, {from, inputs + p->at[INPUT_FROM]}, {ids, plan_data(p->plan, p->inputs[INPUT_IDS])}};
	TRY(plan_new(&p->pick, g, model_backend(m->model), bindings, 3, err));
	plan_follow(p->pick, p->plan);
	return STATUS_OK;
}

static status make_plan(served_plan *p, const served_model *m, bool picks, char *inputs, error *err)
{
	forward_input places[INPUT_COUNT];
	forward_spec spec = {.batch = p->most.rows,
	                     .length = p->most.prompt ? p->most.tokens : 1,
	                     .recurrent = true,
	                     .ragged = p->most.prompt,
	                     .slots = statepool_capacity(m->pool),
	                     .explain = p->most.scores,
	                     .logits = LOGITS_LAST,
	                     .inputs = places};
	for (int i = 0; i < INPUT_COUNT; i++)
		if (input_names[i] && (i != INPUT_IDS || !picks) && (i != INPUT_START || p->most.prompt))
			places[spec.n_inputs++] = (forward_input){input_names[i], inputs + p->at[i]};
	TRY(model_plan(&p->plan, m->model, &spec, NULL, statepool_data(m->pool), err));
	for (int i = 0; i < INPUT_COUNT; i++)
		p->inputs[i] = input_names[i] ? graph_find(plan_graph(p->plan), input_names[i]) : VALUE_NONE;
	p->logits = graph_find(plan_graph(p->plan), "logits");
	return STATUS_OK;
}

static status served_plan_make(served_plan *p, const served_model *m, error *err)
{
	backend *b = model_backend(m->model);
	char *inputs = m->block + inputs_at(m);
	bool picks = b->fetch && !p->most.prompt;
	TRY(make_staging(p));
	TRY(make_plan(p, m, picks, inputs, err));
	if (p->most.scores)
		TRY(outputs_new(&p->outputs, m->model, p->plan, p->most.tokens));
	if (picks)
		TRY(make_pick(p, m, inputs, err));
	sample_place place = {.logits = plan_data(p->plan, p->logits),
	                      .settings = inputs + p->at[INPUT_SETTING],
	                      .tokens = (int32_t *)(m->block + (p->most.prompt ? prompt_tokens_at(m) : 0))};
	p->sampled = place.tokens;
	TRY(sample_plan_new(&p->sample, b, p->most.rows, model_dimensions(m->model)->vocab, &place, err));
	plan_follow(p->plan, sample_plan_follower(p->sample));
	return STATUS_OK;
}

/* The first of the sizes least, least × factor, … that holds n; at most `most`. */
static int64_t size_for(int64_t n, int64_t least, int64_t factor, int64_t most)
{
	int64_t size = least;
	while (size < n)
		size *= factor;
	return size < most ? size : most;
}

/* The smallest of the shapes in the header that holds a step. */
static step_shape shape_for(const served_model *m, int rows, int64_t tokens, bool scores)
{
	assert(rows >= 1 && rows <= m->max_batch && tokens >= 0 && tokens <= SCHEDULER_PREFILL_CHUNK);
	step_shape s = {.prompt = tokens > 0, .scores = scores};
	s.rows = s.prompt ? size_for(rows, 1, 4, served_model_prompt_rows(m)) : size_for(rows, 1, 2, m->max_batch);
	s.tokens = s.prompt ? size_for(tokens, 16, 4, SCHEDULER_PREFILL_CHUNK) : s.rows;
	assert(rows <= s.rows);
	return s;
}

static served_plan *served_model_known(const served_model *m, step_shape s)
{
	served_plan *p = m->plans;
	while (p && (p->most.rows != s.rows || p->most.tokens != s.tokens || p->most.prompt != s.prompt ||
	             p->most.scores != s.scores))
		p = p->next;
	return p;
}

status served_model_plan(served_model *m, int rows, int64_t tokens, bool scores, int64_t adjusts, served_plan **out,
                         error *err)
{
	*out = NULL;
	step_shape most = shape_for(m, rows, tokens, scores);
	served_plan *p = served_model_known(m, most);
	if (!p) {
		p = memory_new(1, sizeof *p);
		if (!p)
			return STATUS_NOMEM;
		p->most = most;
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

/* Rows that are not needed read nothing, into slot 0, and their logits are those of token 0. */
static void served_plan_fill(served_plan *p, const served_model *m, const served_row *rows, int n_rows)
{
	int64_t positions = model_dimensions(m->model)->positions;
	int32_t uploaded = (int32_t)(inputs_at(m) / sizeof(int32_t)), at = 0;
	memset(p->staging[0], 0, p->at[INPUT_SETTING]);
	for (int i = 0; i < n_rows; i++) {
		const served_row *r = &rows[i];
		assert(r->count >= 1 && at + r->count <= p->most.tokens && (r->from < 0 || p->pick));
		p->staging[INPUT_FROM][i] = r->from >= 0 ? r->from : uploaded + i;
		if (r->from < 0)
			memcpy(p->staging[INPUT_IDS] + at, r->tokens, (size_t)r->count * sizeof(int32_t));
		for (int64_t t = 0; t < r->count; t++)
			p->staging[INPUT_POSITION_IDS][at + t] = position_row(r->policy, r->position + t, positions);
		p->staging[INPUT_SLOT][i] = r->slot;
		p->staging[INPUT_POSITION][i] = (int32_t)r->position;
		p->staging[INPUT_LENGTH][i] = (int32_t)r->count;
		p->staging[INPUT_START][i] = at;
		at += (int32_t)r->count;
		p->staging[INPUT_LAST][i] = at - 1;
	}
	for (int64_t i = n_rows; i < p->most.rows; i++) {
		p->staging[INPUT_FROM][i] = uploaded + (int32_t)i;
		p->staging[INPUT_START][i] = at;
	}
}

/* Give the plans the shapes of the step, where they can have them. */
static status served_plan_fit(served_plan *p, const served_row *rows, int n_rows)
{
	int64_t tokens = 0, logits = 0;
	for (int i = 0; i < n_rows; i++) {
		tokens += rows[i].count;
		logits = rows[i].silent ? logits : n_rows;
	}
	const shape ids = p->most.prompt ? SHAPE2(1, tokens) : SHAPE2(n_rows, 1);
	plan_shape shapes[INPUT_COUNT];
	int n = 0;
	for (int i = 0; i < INPUT_COUNT; i++) {
		bool per_token = i == INPUT_IDS || i == INPUT_POSITION_IDS;
		if (p->inputs[i] != VALUE_NONE)
			shapes[n++] = (plan_shape){p->inputs[i], per_token         ? ids
			                                         : i == INPUT_LAST ? SHAPE1(logits)
			                                                           : SHAPE1(n_rows)};
	}
	status s = plan_reshape(p->plan, shapes, n, NULL);
	if (s == STATUS_OK)
		s = sample_plan_fit(p->sample, logits);
	return s == STATUS_UNSUPPORTED ? STATUS_OK : s;
}

static status served_plan_run(served_plan *p, const sample_row *draws, int n_rows, bool drawn)
{
	TRY(plan_run(p->pick ? p->pick : p->plan));
	return drawn ? STATUS_OK : sample_plan_run(p->sample, draws, n_rows);
}

/* The same with as many threads as are worth it; what runs next has all of them. */
static status served_plan_run_shared(served_plan *p, backend *b, int64_t tokens, const sample_row *draws, int n_rows,
                                     bool drawn)
{
	if (b->threads <= 1)
		return served_plan_run(p, draws, n_rows, drawn);
	if (!thread_choice_all(&p->threads))
		b->use_threads(b, 1);
	uint64_t began = clock_ns();
	status s = served_plan_run(p, draws, n_rows, drawn);
	thread_choice_took(&p->threads, clock_ns() - began, tokens);
	b->use_threads(b, b->threads);
	return s;
}

status served_model_step(served_model *m, served_plan *p, const served_row *rows, int n_rows, const sample_row *draws)
{
	backend *b = model_backend(m->model);
	served_plan_fill(p, m, rows, n_rows);
	TRY(served_plan_fit(p, rows, n_rows));
	sample_setting *settings = (sample_setting *)p->staging[INPUT_SETTING];
	bool drawn = sample_plan_settings(p->sample, draws, draws ? n_rows : 0, settings);
	TRY(b->upload(b, m->block + inputs_at(m), p->staging[0], p->bytes));
	int64_t tokens = p->staging[INPUT_START][n_rows - 1] + rows[n_rows - 1].count;
	TRY(served_plan_run_shared(p, b, tokens, draws, n_rows, drawn));
	for (int i = 0; i < n_rows; i++)
		if (rows[i].scores)
			TRY(outputs_read(p->outputs, p->staging[INPUT_START][i], rows[i].count, rows[i].scores));
	return STATUS_OK;
}

const int32_t *served_model_sampled(const served_plan *p)
{
	return p->sampled;
}

bool served_plan_scores(const served_plan *p)
{
	return p->most.scores;
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
	TRY(sample_plan_run(m->from_row, row, 1));
	return b->download(b, token, m->block + row_token_at(m), sizeof *token);
}

/* --- the model -------------------------------------------------------------------- */

struct served_model_loading {
	model_loader *weights;
	backend *backend;
	int64_t max_slots;
	char folder[]; /* for the tokenizer */
};

static void loading_free(served_model_loading *l)
{
	if (!l)
		return;
	model_loader_free(l->weights);
	free(l);
}

/* What a model needs beside its weights. */
static status served_model_equip(served_model *m, const served_model_loading *l, error *err)
{
	backend *b = l->backend;
	int64_t vocab = model_dimensions(m->model)->vocab, floats = model_state_floats(m->model);
	void *row;
	TRY(tokenizer_open(&m->tokenizer, l->folder, vocab, err));
	status s = statepool_new(&m->pool, b, floats, l->max_slots);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "no room for %lld states of %lld numbers: %s", (long long)l->max_slots,
		                 (long long)floats, status_text(s));
	TRY(b->allocate(b, (size_t)vocab * sizeof(float), &row));
	m->row = row;
	TRY(allocate_block(m, b));
	char *token = m->block + row_token_at(m); /* its setting lies behind it */
	sample_place place = {m->row, token + ARENA_ALIGNMENT, (int32_t *)token};
	TRY(sample_plan_new(&m->from_row, b, 1, vocab, &place, err));
	m->rounds = model_architecture(m->model)->n_rounds;
	m->score_floats = outputs_token_floats(m->model);
	return STATUS_OK;
}

static status not_loaded(status s, error *err)
{
	return s == STATUS_OK ? s : error_set(err, s, "model", "the model could not be loaded: %s", status_text(s));
}

status served_model_load(served_model *m, bool *done, error *err)
{
	served_model_loading *l = m->loading;
	bool read = m->model != NULL;
	status s = STATUS_OK;
	*done = false;
	if (read)
		s = served_model_equip(m, l, err);
	else
		s = model_loader_step(l->weights, &read, err);
	if (s != STATUS_OK)
		return not_loaded(s, err);
	if (!m->model) {
		m->model = read ? model_loader_take(l->weights) : NULL;
		return STATUS_OK;
	}
	loading_free(l);
	m->loading = NULL;
	*done = true;
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
	status s = served_model_begin(m, folder, weights, b, max_slots, err);
	if (s == STATUS_OK)
		*out = m;
	else
		served_model_free(m);
	return not_loaded(s, err);
}

void served_model_free(served_model *m)
{
	if (!m)
		return;
	assert(m->users == 0);
	loading_free(m->loading);
	while (m->plans) {
		served_plan *p = m->plans;
		m->plans = p->next;
		served_plan_free(p);
	}
	sample_plan_free(m->from_row);
	if (m->row)
		model_backend(m->model)->release(model_backend(m->model), m->row);
	if (m->block)
		model_backend(m->model)->release(model_backend(m->model), m->block);
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
	char *text = json_text(config, JSON_COMPACT | JSON_SORT_KEYS);
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
