/* served_plan.c - a model's plans by shape, and a step on one of them.
 *
 * A step runs on the smallest plan that holds it. Several sizes exist because the activations of a small plan are
 * closer together in memory. There is not one plan for each size, because a device would compile thousands. A plan
 * for d 128, 6 layers and a vocabulary of 32,100 is compiled in 3 ms for 32 rows, and below 1 ms for up to 8. */
#include <assert.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/serve/served_part.h"

struct served_plan {
	served_plan *next;
	served_shape most;
	served_part *parts[SERVED_MODEL_PARTS];    /* the first also runs whole steps */
	int n_parts;                               /* parts of the largest step that is cut; 1: steps are never cut */
	int n_used, first[SERVED_MODEL_PARTS + 1]; /* parts of the last step and their first rows; n_used 0: no step */
	bool ran;                                  /* the last step got as far as its parts' runs */
	thread_choice threads;
};

/* --- shapes ----------------------------------------------------------------------- */

int served_model_prompt_rows(const served_model *m)
{
	enum { MOST = 64 }; /* each has a row of logits */
	return m->max_batch < MOST ? m->max_batch : MOST;
}

/* Threads that read one chunk each in parallel take about as long as one chunk, and a device that is not full takes as
 * long for more tokens. */
int64_t served_model_prompt_tokens(const served_model *m)
{
	enum { MOST = 4 }; /* chunks; limited because they run one after the other if the threads are busy elsewhere */
	const backend *b = model_backend(m->model);
	int threads = b->side_by_side ? b->threads : 1;
	if (b->prompt_tokens)
		return b->prompt_tokens;
	return SCHEDULER_PREFILL_CHUNK * (int64_t)(threads < MOST ? threads : MOST);
}

/* On a device the tokens of streams reduce the room for prompts. */
int64_t served_model_step_tokens(const served_model *m)
{
	const int64_t prompts = served_model_prompt_tokens(m);
	return model_backend(m->model)->prompt_tokens ? prompts : prompts + m->max_batch;
}

/* Return the first of the sizes least, least × factor, … that is at least n, at most `most`. */
static int64_t size_for(int64_t n, int64_t least, int64_t factor, int64_t most)
{
	int64_t size = least;
	while (size < n)
		size *= factor;
	return size < most ? size : most;
}

/* Return the tokens of the smallest plan for a step of prompts. Short texts may have a plan of four times their size,
 * where most of a step is spent on reading weights. */
static int64_t prompt_size(const served_model *m, int64_t tokens)
{
	enum { LEAST = 16, FACTOR = 4, CHUNK = SCHEDULER_PREFILL_CHUNK };
	return tokens <= CHUNK ? size_for(tokens, LEAST, FACTOR, CHUNK)
	                       : size_for(tokens, 2 * CHUNK, 2, served_model_step_tokens(m));
}

/* Return the rows of the smallest plan for a step of prompts. */
static int prompt_rows(const served_model *m, int rows)
{
	return (int)size_for(rows, 1, 4, m->max_batch);
}

/* Return the number of parts for a step; 1: it is not cut. There are two parts for each thread, so a thread that shares
 * its core runs fewer. More parts would have fewer rows each and use each weight that a product loads less often. */
static int parts_for(const backend *b, int64_t rows, int64_t tokens)
{
	enum { LEAST = 8, LEAST_FOR_A_THREAD = 2 };
	int64_t threads = b->side_by_side ? b->threads : 1, parts = tokens / LEAST;
	parts = parts > 2 * threads ? 2 * threads : parts < threads ? threads : parts;
	parts = parts < tokens / LEAST_FOR_A_THREAD ? parts : tokens / LEAST_FOR_A_THREAD;
	parts = parts < rows ? parts : rows;
	parts = parts < SERVED_MODEL_PARTS ? parts : SERVED_MODEL_PARTS;
	return threads > 1 && parts > 1 ? (int)parts : 1;
}

/* --- plans ------------------------------------------------------------------------ */

static thread_way next_way(const served_model *m, const served_plan *p)
{
	thread_way way = m->way_is_fixed ? m->way : thread_choice_way(&p->threads);
	return way == THREADS_PARTS && p->n_parts == 1 ? THREADS_ONE : way;
}

static void served_plan_free(served_plan *p)
{
	for (int i = 0; i < SERVED_MODEL_PARTS; i++)
		served_part_free(p->parts[i]);
	free(p);
}

void served_model_free_plans(served_model *m)
{
	m->joined.runs = 0;
	while (m->plans) {
		served_plan *p = m->plans;
		m->plans = p->next;
		served_plan_free(p);
	}
}

static served_plan *known(const served_model *m, const served_shape *s)
{
	served_plan *p = m->plans;
	while (p && (p->most.rows != s->rows || p->most.tokens != s->tokens || p->most.prompt != s->prompt ||
	             p->most.log != s->log || p->most.lora != s->lora))
		p = p->next;
	return p;
}

static status served_plan_make(served_model *m, const served_shape *most, served_plan **out, error *err)
{
	backend *b = model_backend(m->model);
	served_plan *p = *out = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	p->most = *most;
	p->n_parts = parts_for(b, most->rows, most->tokens);
	p->threads = thread_choice_initial(p->n_parts > 1, most->prompt && most->tokens > SCHEDULER_PREFILL_CHUNK);
	status s = served_part_new(&p->parts[0], m, most, m->blocks[0], err);
	if (s != STATUS_OK) {
		served_plan_free(p);
		return s;
	}
	p->next = m->plans;
	m->plans = p;
	return STATUS_OK;
}

/* Compile the other parts when the first step is cut. The parts i of all plans share block i. */
static status make_parts(served_model *m, served_plan *p)
{
	backend *b = model_backend(m->model);
	for (int i = 1; i < p->n_parts; i++) {
		void *block = m->blocks[i];
		if (!block)
			TRY(b->allocate(b, served_part_block_bytes(m), &block));
		m->blocks[i] = block;
		if (!p->parts[i])
			TRY(served_part_new(&p->parts[i], m, &p->most, block, NULL));
	}
	return STATUS_OK;
}

/* Parts only save time: if there is no memory for them, steps are not cut. */
static void prepare_parts(served_model *m, served_plan *p, int64_t adjusts)
{
	status s = make_parts(m, p);
	for (int i = 1; i < p->n_parts && s == STATUS_OK; i++)
		s = served_part_prepare(p->parts[i], adjusts, NULL);
	if (s == STATUS_OK)
		return;
	p->threads = thread_choice_initial(false, false);
	p->n_parts = 1;
}

status served_model_plan(served_model *m, int rows, int64_t tokens, bool log, bool lora, int64_t adjusts,
                         served_plan **out, error *err)
{
	assert(rows >= 1 && rows <= m->max_batch && tokens >= 0 && tokens <= served_model_step_tokens(m));
	served_shape most = {.prompt = tokens > 0, .log = log, .lora = lora};
	most.rows = most.prompt ? prompt_rows(m, rows) : size_for(rows, 1, 2, m->max_batch);
	most.tokens = most.prompt ? prompt_size(m, tokens) : most.rows;
	assert(rows <= most.rows);
	served_plan *p = known(m, &most);
	*out = NULL;
	if (!p)
		TRY(served_plan_make(m, &most, &p, err));
	TRY(served_part_prepare(p->parts[0], adjusts, err));
	if (next_way(m, p) == THREADS_PARTS)
		prepare_parts(m, p, adjusts);
	*out = p;
	return STATUS_OK;
}

/* --- preparation -------------------------------------------------------------------- */

/* A plan's first run is direct, the second records (plan.h). A longer prompt takes longer than its plan, and
 * steps with more rows of prompts and streams are rare. */
enum { PREPARE_RUNS = 2, PREPARE_TOKENS = SCHEDULER_PREFILL_CHUNK, PREPARE_ROWS = 64 };
static const double PREPARE_BYTES = 64 << 20, PREPARE_SHARE = 0.25; /* share of the weights' memory */

/* Set the size of the next plan of prompts alone or of a decode step (tokens 0); false: there is none. Both take turns,
 * so that small sizes come first. */
static bool next_alone(const served_model *m, served_preparation *p, int *rows, int64_t *tokens)
{
	if (p->rows == m->max_batch && p->tokens == PREPARE_TOKENS)
		return false;
	const bool prompt = p->tokens < PREPARE_TOKENS && (p->tokens <= p->rows || p->rows == m->max_batch);
	if (prompt)
		p->tokens = prompt_size(m, p->tokens + 1);
	else
		p->rows = (int)size_for(p->rows + 1, 1, 2, m->max_batch);
	*rows = prompt ? 1 : p->rows;
	*tokens = prompt ? p->tokens : 0;
	return true;
}

/* Set the size of the next plan for prompts beside streams; false: there is none. Each row has a token. */
static bool next_joined(const served_model *m, served_preparation *p, int *rows, int64_t *tokens)
{
	*rows = prompt_rows(m, p->rows + 1);
	if (p->tokens == 0 || p->rows == m->max_batch || p->rows == PREPARE_ROWS || *rows > p->tokens) {
		if (p->tokens == PREPARE_TOKENS)
			return false;
		p->tokens = prompt_size(m, p->tokens + 1);
		*rows = prompt_rows(m, 2);
	}
	p->rows = *rows;
	*tokens = p->tokens;
	return true;
}

/* Run the plans that sample from rows of logits on the host. */
static status prepare_sampling(const served_model *m)
{
	for (int i = 0; i < PREPARE_RUNS; i++) {
		TRY(sample_plan_run(m->one_from_host, NULL, 0));
		TRY(sample_plan_run(m->from_host, NULL, 0));
	}
	return STATUS_OK;
}

static bool is_full(const served_model *m, const served_preparation *p)
{
	const double weights = (double)model_arena_floats(m->model) * sizeof(float);
	return (double)p->bytes > PREPARE_BYTES + PREPARE_SHARE * weights;
}

/* Compile or run the next plan. The logits of a plan that requests already use may still be needed. */
static status prepare(served_model *m, served_preparation *p)
{
	int rows;
	int64_t tokens;
	if (!p->sampling && !p->joined) {
		p->sampling = true;
		return prepare_sampling(m);
	}
	if (p->runs > 0 && p->plan->n_used == 0) {
		p->runs--; /* padding alone: no state is read or changed */
		TRY(served_part_load(p->plan->parts[0], m, NULL, 0, NULL));
		return served_part_run(p->plan->parts[0]);
	}
	p->done = is_full(m, p) || !(p->joined ? next_joined : next_alone)(m, p, &rows, &tokens);
	if (p->done)
		return STATUS_OK;
	TRY(served_model_plan(m, rows, tokens, false, false, 0, &p->plan, NULL));
	p->bytes += served_part_bytes(p->plan->parts[0]);
	p->runs = PREPARE_RUNS;
	return STATUS_OK;
}

status served_model_prepare(served_model *m, served_preparation *p)
{
	backend *b = model_backend(m->model);
	p->done |= !b->records || !model_dimensions(m->model)->form->stepwise || (p->joined && m->max_batch == 1);
	if (p->done)
		return STATUS_OK;
	status s = prepare(m, p);
	p->done |= s != STATUS_OK; /* the model serves without */
	return s == STATUS_DEVICE && backend_is_lost(b) ? s : STATUS_OK;
}

/* --- a step --------------------------------------------------------------------- */

/* Cut rows into parts with about equal numbers of tokens. A row belongs to the part that contains the middle of its
 * tokens. */
static void served_plan_cut(served_plan *p, const served_row *rows, int n_rows, int64_t tokens, int n_parts)
{
	int64_t before = 0;
	int last = -1;
	p->n_used = 0;
	for (int i = 0; i < n_rows; i++) {
		int part = (int)((2 * before + rows[i].count) * n_parts / (2 * tokens));
		before += rows[i].count;
		if (part > last)
			p->first[p->n_used++] = i;
		last = part;
	}
	p->first[p->n_used] = n_rows;
}

static status run_part(void *context, int i)
{
	served_plan *p = context;
	return served_part_run(p->parts[i]);
}

static status served_plan_run(served_plan *p, const served_model *m, const served_row *rows, int n_rows, int64_t tokens,
                              const sample_row *draws, thread_way way)
{
	backend *b = model_backend(m->model);
	served_plan_cut(p, rows, n_rows, tokens, way == THREADS_PARTS ? parts_for(b, n_rows, tokens) : 1);
	p->ran = false;
	for (int i = 0; i < p->n_used; i++) {
		int at = p->first[i], n = p->first[i + 1] - at;
		TRY(served_part_load(p->parts[i], m, rows + at, n, draws ? draws + at : NULL));
	}
	p->ran = true;
	if (p->n_used == 1)
		return served_part_run(p->parts[0]);
	TRY(b->side_by_side(b, p->n_used, run_part, p));
	int32_t *to = (int32_t *)(uintptr_t)served_part_sampled(p->parts[0]);
	for (int i = 1; i < p->n_used; i++) {
		size_t bytes = (size_t)(p->first[i + 1] - p->first[i]) * sizeof *to;
		TRY(b->copy(b, to + p->first[i], served_part_sampled(p->parts[i]), bytes));
	}
	return STATUS_OK;
}

/* Run with as many threads as the plan's choice allows; later work has all of them again. */
static status run_as_chosen(served_plan *p, const served_model *m, const served_row *rows, int n_rows, int64_t tokens,
                            const sample_row *draws)
{
	backend *b = model_backend(m->model);
	thread_way way = next_way(m, p);
	uint64_t began = clock_ns();
	if (way == THREADS_ONE)
		b->use_threads(b, 1);
	status s = served_plan_run(p, m, rows, n_rows, tokens, draws, way);
	b->use_threads(b, b->threads);
	if (!m->way_is_fixed)
		thread_choice_took(&p->threads, clock_ns() - began, tokens);
	return s;
}

status served_model_step(served_model *m, served_plan *p, const served_row *rows, int n_rows, const sample_row *draws)
{
	int64_t tokens = 0;
	for (int i = 0; i < n_rows; i++)
		tokens += rows[i].count;
	TRY(model_backend(m->model)->threads > 1 ? run_as_chosen(p, m, rows, n_rows, tokens, draws)
	                                         : served_plan_run(p, m, rows, n_rows, tokens, draws, THREADS_ONE));
	for (int i = 0; i < p->n_used; i++)
		TRY(served_part_log(p->parts[i]));
	/* Move the slots of long sessions to large pages, a limited number per step. */
	const int most = 1 + n_rows / 16;
	for (int i = 0, merged = 0; i < n_rows && merged < most; i++)
		merged += statepool_reached(m->pool, rows[i].slot, rows[i].position + rows[i].count);
	return STATUS_OK;
}

bool served_plan_has_changed(const served_plan *p)
{
	bool changed = false;
	for (int i = 0; i < p->n_used; i++)
		changed |= served_part_has_changed(p->parts[i]);
	return changed && p->ran;
}

const int32_t *served_model_sampled(const served_plan *p)
{
	return served_part_sampled(p->parts[0]);
}

bool served_plan_logs(const served_plan *p)
{
	return p->most.log;
}

const float *served_model_logits(const served_plan *p, int row)
{
	int i = 0;
	while (i + 1 < p->n_used &&
	       row >= p->first[i + 1]) /* `first` describes the last step; an older one may have had more rows */
		i++;
	return served_part_logits(p->parts[i], row - p->first[i]);
}
