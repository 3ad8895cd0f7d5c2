/* served_part.c - see served_part.h. Where plan_reshape can shrink the inputs of a plan (on the CPU), the cost of a run
 * depends on its own rows and tokens. Where plans are recorded, shapes are fixed and the run is padded. */
#include "engine/serve/served_part.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/outputs.h"
#include "engine/model/feed.h"
#include "engine/serve/lora_bank.h"
#include "engine/serve/served_adapter.h"
#include "engine/tensor/arena.h"
#include "engine/tensor/ops.h"

/* A run's inputs, stored one after the other in a block. */
typedef enum input {
	INPUT_IDS,  /* must be first: `pick` reads it after the sampled tokens that precede it */
	INPUT_FROM, /* in decode steps whose ids may come from the device */
	INPUT_POSITION_IDS,
	INPUT_ENTRY, /* in steps with low-rank adapters */
	INPUT_SLOT,
	INPUT_POSITION,
	INPUT_STARTED, /* for models with adapters */
	INPUT_LENGTH,
	INPUT_START, /* in steps of prompts */
	INPUT_LAST,
	INPUT_SETTING,
	INPUT_COUNT
} input;

static const port_role roles[INPUT_COUNT] = {
    [INPUT_IDS] = PORT_TOKENS,      [INPUT_FROM] = PORT_ROLES,    [INPUT_POSITION_IDS] = PORT_POSITIONS,
    [INPUT_ENTRY] = PORT_ENTRY,     [INPUT_SLOT] = PORT_SLOT,     [INPUT_POSITION] = PORT_POSITION,
    [INPUT_STARTED] = PORT_STARTED, [INPUT_LENGTH] = PORT_LENGTH, [INPUT_START] = PORT_START,
    [INPUT_LAST] = PORT_LAST,       [INPUT_SETTING] = PORT_ROLES,
};

/* True for an input of the model itself, false for one of `pick` or of the sampling. */
static bool is_port(int i)
{
	return roles[i] != PORT_ROLES;
}

struct served_part {
	backend *backend;
	served_shape most;
	int64_t vocab;
	plan *pick, *plan;                 /* pick: gathers the ids; NULL: they are uploaded */
	value logits, inputs[INPUT_COUNT]; /* VALUE_NONE: the graph has no such input */
	char *device;                      /* inputs in their layout: */
	size_t at[INPUT_COUNT], bytes;
	int32_t *staging[INPUT_COUNT]; /* pointers into the first, which is the whole block on the host */
	const int32_t *sampled;        /* [rows] on the device */
	outputs *outputs;              /* for plans with a log */
	sample_plan *sample;
	/* Rows of the next run. */
	const served_row *rows;
	const sample_row *draws;
	int n;
	bool drawn;   /* the plan itself samples */
	bool changed; /* the run may have changed states or logits */
};

/* --- the layout of a block --------------------------------------------------- */

/* True for an input with a number for each token, not each row. */
static bool is_per_token(int i)
{
	return i == INPUT_IDS || i == INPUT_POSITION_IDS || i == INPUT_ENTRY;
}

static void lay_out(size_t at[INPUT_COUNT], size_t *bytes, int64_t rows, int64_t tokens, bool lora)
{
	*bytes = 0;
	for (int i = 0; i < INPUT_COUNT; i++) {
		int64_t words = is_per_token(i) ? tokens : i == INPUT_SETTING ? rows * SAMPLE_WORDS : rows;
		at[i] = *bytes;
		if (i != INPUT_ENTRY || lora)
			*bytes += arena_aligned((size_t)words * sizeof(int32_t));
	}
}

/* A block holds the tokens sampled by decode steps, those sampled by steps of prompts, then a step's inputs; each has
 * the size for the largest shape. */
static size_t prompt_tokens_at(const served_model *m)
{
	return arena_aligned((size_t)m->max_batch * sizeof(int32_t));
}

static size_t inputs_at(const served_model *m)
{
	return 2 * prompt_tokens_at(m);
}

size_t served_part_block_bytes(const served_model *m)
{
	size_t at[INPUT_COUNT], decode, prompt;
	lay_out(at, &decode, m->max_batch, m->max_batch, true);
	lay_out(at, &prompt, m->max_batch, served_model_step_tokens(m), true);
	return inputs_at(m) + (decode > prompt ? decode : prompt);
}

/* --- compiling ------------------------------------------------------------------ */

void served_part_free(served_part *p)
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

size_t served_part_bytes(const served_part *p)
{
	return plan_bytes(p->plan) + (p->pick ? plan_bytes(p->pick) : 0);
}

static status make_staging(served_part *p)
{
	lay_out(p->at, &p->bytes, p->most.rows, p->most.tokens, p->most.lora);
	char *block = memory_new(p->bytes, 1);
	for (int i = 0; block && i < INPUT_COUNT; i++)
		p->staging[i] = (int32_t *)(block + p->at[i]);
	return block ? STATUS_OK : STATUS_NOMEM;
}

/* ids[i] = (tokens sampled, then ids uploaded)[from[i]]. */
static status make_pick(served_part *p, const served_model *m, char *block, error *err)
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
	    {all, block}, {from, p->device + p->at[INPUT_FROM]}, {ids, plan_data(p->plan, p->inputs[INPUT_IDS])}};
	TRY(plan_new(&p->pick, g, p->backend, bindings, 3, err));
	plan_follow(p->pick, p->plan);
	return STATUS_OK;
}

static status served_part_make_plan(served_part *p, const served_model *m, bool picks, error *err)
{
	forward_input places[INPUT_COUNT + LORA_BANK_INPUTS + 1];
	int n = 0;
	const forward_spec spec = {.phase = p->most.prompt ? PHASE_READ : PHASE_STEP,
	                           .batch = p->most.rows,
	                           .length = p->most.prompt ? p->most.tokens : 1,
	                           .slots = statepool_capacity(m->pool),
	                           .initial_states = m->has_adapters,
	                           .adapters = p->most.lora,
	                           .explain.log = p->most.log,
	                           .out.maxima = p->backend->maxima,
	                           .out.logits = LOGITS_LAST,
	                           .inputs = places};
	for (int i = 0; i < INPUT_COUNT; i++)
		if (is_port(i) && (i != INPUT_IDS || !picks))
			places[n++] = (forward_input){.name = port_name(roles[i]), .data = p->device + p->at[i]};
	if (p->most.lora) {
		lora_bank_inputs(m->lora, places + n);
		n += LORA_BANK_INPUTS;
	}
	places[n] = (forward_input){0};
	TRY(model_plan(&p->plan, m->model, &spec, NULL, statepool_data(m->pool), err));
	for (int i = 0; i < INPUT_COUNT; i++)
		p->inputs[i] = is_port(i) ? port_find(plan_graph(p->plan), roles[i]) : VALUE_NONE;
	p->logits = port_find(plan_graph(p->plan), PORT_LOGITS);
	return STATUS_OK;
}

static status served_part_make(served_part *p, const served_model *m, char *block, error *err)
{
	bool picks = p->backend->fetch && !p->most.prompt;
	TRY(make_staging(p));
	TRY(served_part_make_plan(p, m, picks, err));
	if (p->most.log)
		TRY(outputs_new(&p->outputs, m->model, p->plan, ATTENTION_OF_TOKENS, false, p->most.tokens));
	if (picks)
		TRY(make_pick(p, m, block, err));
	value maxima = port_find(plan_graph(p->plan), PORT_MAXIMA);
	sample_place place = {.logits = plan_data(p->plan, p->logits),
	                      .maxima = maxima == VALUE_NONE ? NULL : plan_data(p->plan, maxima),
	                      .settings = p->device + p->at[INPUT_SETTING],
	                      .tokens = (int32_t *)(block + (p->most.prompt ? prompt_tokens_at(m) : 0))};
	p->sampled = place.tokens;
	TRY(sample_plan_new(&p->sample, p->backend, p->most.rows, p->vocab, &place, err));
	plan_follow(p->plan, sample_plan_follower(p->sample));
	return STATUS_OK;
}

status served_part_new(served_part **out, const served_model *m, const served_shape *most, char *block, error *err)
{
	*out = NULL;
	served_part *p = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	*p = (served_part){.backend = model_backend(m->model),
	                   .most = *most,
	                   .vocab = model_dimensions(m->model)->outputs,
	                   .device = block + inputs_at(m)};
	status s = served_part_make(p, m, block, err);
	if (s != STATUS_OK) {
		served_part_free(p);
		return s;
	}
	*out = p;
	return STATUS_OK;
}

status served_part_prepare(served_part *p, int64_t adjusts, error *err)
{
	return sample_plan_prepare(p->sample, adjusts, err);
}

/* --- a run ---------------------------------------------------------------------- */

/* Padding rows have length 0 and slot 0: they read no token, and their logits are those of token 0. */
static void served_part_fill(served_part *p, const served_model *m, const served_row *rows, int n_rows)
{
	const model_dims *dims = model_dimensions(m->model);
	int32_t uploaded = (int32_t)(inputs_at(m) / sizeof(int32_t)), at = 0;
	memset(p->staging[0], 0, p->at[INPUT_SETTING]);
	for (int i = 0; i < n_rows; i++) {
		const served_row *r = &rows[i];
		assert(r->count >= 1 && at + r->count <= p->most.tokens && (r->from < 0 || p->pick));
		assert(r->entry == 0 || p->most.lora);
		p->staging[INPUT_FROM][i] = r->from >= 0 ? r->from : uploaded + i;
		if (r->from < 0)
			memcpy(p->staging[INPUT_IDS] + at, r->tokens, (size_t)r->count * sizeof(int32_t));
		for (int64_t t = 0; t < r->count; t++)
			p->staging[INPUT_POSITION_IDS][at + t] = position_row(dims, r->policy, r->position + t);
		for (int64_t t = 0; t < r->count && p->most.lora; t++)
			p->staging[INPUT_ENTRY][at + t] = r->entry;
		p->staging[INPUT_SLOT][i] = r->slot;
		p->staging[INPUT_POSITION][i] = (int32_t)r->position;
		p->staging[INPUT_STARTED][i] = r->position > 0 ? (int32_t)r->position : r->adapter != NULL;
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

/* Reshape the plans to the rows where the backend allows it. */
static status served_part_fit(served_part *p, const served_row *rows, int n_rows)
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
		if (p->inputs[i] != VALUE_NONE)
			shapes[n++] = (plan_shape){p->inputs[i], i == INPUT_ENTRY  ? SHAPE3(ids.dim[0], ids.dim[1], 1)
			                                         : is_per_token(i) ? ids
			                                         : i == INPUT_LAST ? SHAPE1(logits)
			                                                           : SHAPE1(n_rows)};
	}
	status s = plan_reshape(p->plan, shapes, n, NULL);
	if (s == STATUS_OK)
		s = sample_plan_fit(p->sample, logits);
	return s == STATUS_UNSUPPORTED ? STATUS_OK : s;
}

status served_part_load(served_part *p, const served_model *m, const served_row *rows, int n_rows,
                        const sample_row *draws)
{
	p->rows = rows;
	p->draws = draws;
	p->n = n_rows;
	for (int i = 0; i < n_rows; i++)
		if (rows[i].adapter && rows[i].position == 0)
			TRY(served_adapter_start(rows[i].adapter, m, rows[i].slot));
	served_part_fill(p, m, rows, n_rows);
	TRY(served_part_fit(p, rows, n_rows));
	sample_setting *settings = (sample_setting *)p->staging[INPUT_SETTING];
	p->drawn = sample_plan_settings(p->sample, draws, draws ? n_rows : 0, settings);
	return p->backend->upload(p->backend, p->device, p->staging[0], p->bytes);
}

status served_part_run(served_part *p)
{
	status s = plan_run(p->pick ? p->pick : p->plan);
	p->changed = plan_has_changed(p->plan);
	TRY(s);
	return p->drawn ? STATUS_OK : sample_plan_run(p->sample, p->draws, p->n);
}

bool served_part_has_changed(const served_part *p)
{
	return p->changed;
}

status served_part_log(const served_part *p)
{
	for (int i = 0; i < p->n; i++)
		if (p->rows[i].log)
			TRY(outputs_read(p->outputs, p->staging[INPUT_START][i], p->rows[i].count, p->rows[i].log));
	return STATUS_OK;
}

const int32_t *served_part_sampled(const served_part *p)
{
	return p->sampled;
}

const float *served_part_logits(const served_part *p, int row)
{
	return (const float *)plan_data(p->plan, p->logits) + row * p->vocab;
}
