#include "engine/serve/ablation.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

enum { NO_SLOT = -1, WHOLE = -1, MOST_LANES = 8 };

/* One set of tokens to remove; sets are processed in this order. */
typedef struct set {
	int64_t index, first; /* index in the caller's list; its first token, or `count` if it is empty */
	const bool *absent;   /* [count]; NULL: `first` alone */
	int64_t count;
} set;

/* A pass of the sequence without one set, piece by piece. */
typedef struct lane {
	read_pass *pass; /* reads the current piece; NULL: the lane is free */
	int32_t slot;
	const set *without;     /* its tokens are removed; NULL: none */
	int64_t at, piece, end; /* tokens before the piece; in it; before the end of the pass */
	bool read;              /* the piece has been read */
	int32_t *ids;           /* [all_tokens] ids of the piece, preceded by those of a source */
	bool *absent;           /* [all_tokens] members of `without` */
} lane;

struct ablation {
	served_model *model;
	explain_removals *removals;
	const score_sequence *sequence;
	set *sets;              /* [removals->n] */
	float *logits;          /* [2][outputs]: logits of a pass, and the coefficients of the score */
	bool chosen;            /* the coefficients are known */
	int64_t next;           /* the next set to start */
	lane base;              /* reads the unchanged sequence up to the start of the next set */
	lane lanes[MOST_LANES]; /* one set each */
	int n;                  /* number of lanes */
	uint64_t slice_ns;      /* in the current step: */
	atomic_bool interrupted;
	lane *running[MOST_LANES + 1];
};

static int64_t outputs_of(const ablation *x)
{
	return model_dimensions(x->model->model)->outputs;
}

static read_pass_form plain_form(const ablation *x)
{
	return (read_pass_form){.logits = LOGITS_LAST, .both = x->sequence->n_source > 0};
}

/* True for causal models, which continue from a state. */
static bool by_pieces(const ablation *x)
{
	return read_pass_by_pieces(x->model, plain_form(x));
}

/* Tokens of the source and of the sequence. */
static int64_t all_tokens(const ablation *x)
{
	return x->sequence->n_source + x->sequence->count;
}

/* --- the sets ------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b)
{
	const set *x = a, *y = b;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	const int order = x->absent ? memcmp(x->absent, y->absent, (size_t)x->count * sizeof *x->absent) : 0;
	return order ? order : (x->index > y->index) - (x->index < y->index);
}

static bool are_equal(const set *x, const set *y)
{
	return x->first == y->first &&
	       (!x->absent || memcmp(x->absent, y->absent, (size_t)x->count * sizeof *x->absent) == 0);
}

static void sort_sets(ablation *x)
{
	const int64_t count = all_tokens(x);
	for (int64_t i = 0; i < x->removals->n; i++) {
		const bool *row = x->removals->absent ? x->removals->absent + i * count : NULL;
		const bool *found = row ? memchr(row, 1, (size_t)count * sizeof *row) : NULL;
		x->sets[i] = (set){i, row ? found ? found - row : count : i, row, count};
	}
	if (x->removals->absent)
		qsort(x->sets, (size_t)x->removals->n, sizeof *x->sets, by_first);
}

/* --- lanes ---------------------------------------------------------------------------------- */

static status begin_piece(ablation *x, lane *l, error *err)
{
	const int64_t left = l->end - l->at;
	const int32_t replacement = x->removals->replacement;
	const score_sequence *q = x->sequence;
	read_pass_form form = plain_form(x);
	l->piece = read_pass_piece_of(x->model, form, l->at, left);
	l->read = false;
	const bool lacks = l->without && memchr(l->absent + l->at, 1, (size_t)l->piece * sizeof *l->absent) != NULL;
	form.masked = lacks && replacement < 0;
	/* A source is read together with the whole sequence, as one piece. */
	const int64_t source = q->n_source, count = l->piece - source;
	for (int64_t i = 0; i < l->piece; i++)
		l->ids[i] = i < source ? q->source[i] : q->ids[l->at + i - source];
	for (int64_t i = 0; i < l->piece && lacks && replacement >= 0; i++)
		if (l->absent[l->at + i])
			l->ids[i] = replacement;
	const read_pass_piece p = {.ids = l->ids + source,
	                           .whole = q->ids + l->at,
	                           .count = count,
	                           .first = l->at,
	                           .slot = l->slot,
	                           .absent = l->absent + l->at + source,
	                           .rows = q->rows,
	                           .n_rows = q->n_rows,
	                           .source = l->ids,
	                           .n_source = source,
	                           .source_absent = l->absent};
	x->removals->readings++;
	x->removals->tokens += l->piece;
	return read_pass_begin(&l->pass, x->model, form, &p, err);
}

static status begin_base(ablation *x, int64_t end, error *err)
{
	x->base.end = end;
	return begin_piece(x, &x->base, err);
}

/* Start a set at its first token, from a copy of the state before it; at token 0 there is none. */
static status begin_set(ablation *x, lane *l, const set *s, error *err)
{
	const size_t bytes = (size_t)model_state_floats(x->model->model) * sizeof(float);
	l->without = s;
	l->at = by_pieces(x) ? s->first : 0;
	l->end = s->count;
	memset(l->absent, 0, (size_t)s->count * sizeof *l->absent);
	l->absent[s->first] = true;
	if (s->absent)
		memcpy(l->absent, s->absent, (size_t)s->count * sizeof *l->absent);
	if (l->at > 0)
		TRY(statepool_copy(x->model->pool, l->slot, x->base.slot, 0, bytes));
	return begin_piece(x, l, err);
}

static lane *free_lane(ablation *x)
{
	for (int i = 0; i < x->n; i++)
		if (!x->lanes[i].pass)
			return &x->lanes[i];
	return NULL;
}

/* True if the result of set i is known without reading: it is empty or equals the one before. */
static bool needs_no_reading(const ablation *x, int64_t i)
{
	return x->sets[i].first == x->sets[i].count || (i > 0 && are_equal(&x->sets[i], &x->sets[i - 1]));
}

/* Give each free lane a set, and let the base advance to the start of the next one. */
static status begin_all(ablation *x, error *err)
{
	lane *l = free_lane(x);
	while (!x->base.pass) {
		while (x->next < x->removals->n && needs_no_reading(x, x->next))
			x->next++;
		if (x->next == x->removals->n)
			return STATUS_OK;
		const set *s = &x->sets[x->next];
		if (by_pieces(x) && s->first > x->base.at)
			return begin_base(x, s->first, err);
		if (!l)
			return STATUS_OK;
		TRY(begin_set(x, l, s, err));
		x->next++;
		l = free_lane(x);
	}
	return STATUS_OK;
}

/* --- turns ---------------------------------------------------------------------------------- */

/* Run steps of a lane on any thread until another lane has read its piece. */
static status run_lane(void *context, int i)
{
	ablation *x = context;
	lane *l = x->running[i];
	const uint64_t began = clock_ns();
	do
		TRY(read_pass_step(l->pass, &l->read));
	while (!l->read && !x->interrupted && clock_ns() - began < x->slice_ns);
	if (l->read)
		x->interrupted = true;
	return STATUS_OK;
}

static status ablation_run(ablation *x, int running)
{
	backend *b = model_backend(x->model->model);
	x->interrupted = false;
	if (running > 1 && b->side_by_side)
		return b->side_by_side(b, running, run_lane, x);
	for (int i = 0; i < running; i++)
		TRY(run_lane(x, i));
	return STATUS_OK;
}

static void ablation_keep(const ablation *x, int64_t index, double log_probability, double score)
{
	if (x->removals->log_probabilities)
		x->removals->log_probabilities[index] = log_probability;
	x->removals->scores[index] = score;
}

/* Store the score that a completed lane gives for its set or for the whole sequence. */
static status ablation_finish(ablation *x, const lane *l)
{
	const int64_t outputs = outputs_of(x);
	float *coefficients = x->logits + outputs;
	explain_parts *whole = x->sequence->parts;
	if (!l->without && x->chosen)
		return STATUS_OK;
	TRY(read_pass_values(l->pass, x->logits));
	if (l->without)
		ablation_keep(x, l->without->index, explain_log_probability_of(x->logits, outputs, whole->token),
		              explain_score_of(coefficients, x->logits, outputs));
	else
		explain_target_choose(&x->sequence->target, x->logits, outputs, coefficients, whole);
	return STATUS_OK;
}

/* After the whole sequence the base restarts at token 0. */
static status finish_piece(ablation *x, lane *l, error *err)
{
	l->at += l->piece;
	const bool whole = l->at == l->end;
	status s = whole ? ablation_finish(x, l) : STATUS_OK;
	read_pass_end(x->model, l->pass);
	l->pass = NULL;
	if (s != STATUS_OK || !whole)
		return s == STATUS_OK ? begin_piece(x, l, err) : s;
	if (l == &x->base && !x->chosen) {
		x->chosen = true;
		l->at = 0;
	}
	return STATUS_OK;
}

/* Store the results of sets that were not read. */
static void keep_known(const ablation *x)
{
	const explain_parts *whole = x->sequence->parts;
	const double *logs = x->removals->log_probabilities;
	for (int64_t i = 0; i < x->removals->n; i++) {
		const set *s = &x->sets[i];
		if (s->first == s->count)
			ablation_keep(x, s->index, whole->log_probability, whole->score);
		else if (needs_no_reading(x, i))
			ablation_keep(x, s->index, logs ? logs[s[-1].index] : 0, x->removals->scores[s[-1].index]);
	}
}

static status ablation_begin(ablation *x, error *err)
{
	if (x->chosen)
		return begin_all(x, err);
	return x->base.pass ? STATUS_OK : begin_base(x, all_tokens(x), err);
}

status ablation_step(ablation *x, uint64_t slice_ns, bool *done, error *err)
{
	int running = 0;
	*done = false;
	x->slice_ns = slice_ns;
	TRY(ablation_begin(x, err));
	if (x->base.pass)
		x->running[running++] = &x->base;
	for (int i = 0; i < x->n; i++)
		if (x->lanes[i].pass)
			x->running[running++] = &x->lanes[i];
	*done = running == 0;
	if (*done) {
		keep_known(x);
		return STATUS_OK;
	}
	TRY(ablation_run(x, running));
	for (int i = 0; i < running; i++)
		if (x->running[i]->read)
			TRY(finish_piece(x, x->running[i], err));
	return STATUS_OK;
}

/* --- a walk's life -------------------------------------------------------------------------- */

static status make_lane(const ablation *x, lane *l, int32_t slot)
{
	const size_t count = (size_t)all_tokens(x);
	*l = (lane){
	    .slot = slot, .ids = memory_new(count, sizeof *l->ids), .absent = memory_new(count, sizeof *l->absent)};
	return l->ids && l->absent ? STATUS_OK : STATUS_NOMEM;
}

static void free_lane_memory(ablation *x, lane *l)
{
	read_pass_end(x->model, l->pass);
	free(l->ids);
	free(l->absent);
}

/* Create a lane for each thread while slots are free; one is required. */
static status make_lanes(ablation *x, error *err)
{
	const backend *b = model_backend(x->model->model);
	const int threads = b->side_by_side ? b->threads : 1, most = threads < MOST_LANES ? threads : MOST_LANES;
	while (x->n < most) {
		lane *l = &x->lanes[x->n];
		int32_t slot = NO_SLOT;
		status s = by_pieces(x) ? served_model_take(x->model, &slot, x->n == 0 ? err : NULL) : STATUS_OK;
		if (s != STATUS_OK)
			return x->n == 0 ? s : STATUS_OK;
		x->n++;
		TRY(make_lane(x, l, slot));
	}
	return STATUS_OK;
}

status ablation_new(ablation **out, served_model *m, explain_removals *r, const score_sequence *q, int32_t slot,
                    error *err)
{
	ablation *x = *out = memory_new(1, sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	*x = (ablation){.model = m, .removals = r, .sequence = q};
	x->sets = memory_new((size_t)r->n + 1, sizeof *x->sets);
	x->logits = memory_new((size_t)outputs_of(x), 2 * sizeof *x->logits);
	if (!x->sets || !x->logits)
		return STATUS_NOMEM;
	TRY(make_lane(x, &x->base, slot));
	sort_sets(x);
	return make_lanes(x, err);
}

void ablation_free(ablation *x)
{
	if (!x)
		return;
	free_lane_memory(x, &x->base);
	for (int i = 0; i < x->n; i++) {
		free_lane_memory(x, &x->lanes[i]);
		if (x->lanes[i].slot != NO_SLOT)
			served_model_give(x->model, x->lanes[i].slot);
	}
	free(x->sets);
	free(x->logits);
	free(x);
}
