#include "engine/serve/removing.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { NO_SLOT = -1, WHOLE = -1 };

/* A set, in the order in which they are read. */
typedef struct set {
	int64_t index, first; /* among those of the caller; its first token, or count: it has none */
	const bool *absent;   /* [count]; NULL: `first` alone */
	int64_t count;
} set;

struct removing {
	served_model *model;
	explain_removals *removals;
	const scoring_sequence *sequence;
	int32_t slot, spare;
	set *sets;     /* [removals->n] */
	int32_t *ids;  /* [count], of the piece */
	bool *absent;  /* [count], of the set that is read */
	float *logits; /* [2][outputs]: of the reading, and the coefficients of the score */
	reading *reading;
	int64_t now;       /* the set that is read; WHOLE: the sequence as it is */
	bool advances;     /* reads what lies before the set, as it is */
	int64_t prefix;    /* tokens that the state in `slot` has read */
	int64_t at, piece; /* tokens of the sequence before the piece, and in it */
};

static int64_t outputs_of(const removing *x)
{
	return model_dimensions(x->model->model)->outputs;
}

static reading_form plain_form(void)
{
	return (reading_form){.logits = true};
}

/* Does a causal model go on from states? */
static bool by_pieces(const removing *x)
{
	return reading_by_pieces(x->model, plain_form());
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

static void sort_sets(removing *x)
{
	const int64_t count = x->sequence->count;
	for (int64_t i = 0; i < x->removals->n; i++) {
		const bool *row = x->removals->absent ? x->removals->absent + i * count : NULL;
		const bool *found = row ? memchr(row, 1, (size_t)count * sizeof *row) : NULL;
		x->sets[i] = (set){i, row ? found ? found - row : count : i, row, count};
	}
	if (x->removals->absent)
		qsort(x->sets, (size_t)x->removals->n, sizeof *x->sets, by_first);
}

/* --- a piece -------------------------------------------------------------------------------- */

/* Is a token of the piece removed? */
static bool lacks_tokens(const removing *x)
{
	return x->now != WHOLE && !x->advances &&
	       memchr(x->absent + x->at, 1, (size_t)x->piece * sizeof *x->absent) != NULL;
}

static status begin_piece(removing *x, error *err)
{
	const int64_t end = x->advances ? x->sets[x->now].first : x->sequence->count, left = end - x->at;
	const int32_t replacement = x->removals->replacement;
	reading_form form = plain_form();
	x->piece = by_pieces(x) && left > SCHEDULER_PREFILL_CHUNK ? SCHEDULER_PREFILL_CHUNK : left;
	const bool lacks = lacks_tokens(x);
	form.masked = lacks && replacement < 0;
	memcpy(x->ids, x->sequence->ids + x->at, (size_t)x->piece * sizeof *x->ids);
	for (int64_t i = 0; i < x->piece && lacks && replacement >= 0; i++)
		if (x->absent[x->at + i])
			x->ids[i] = replacement;
	const reading_piece p = {.ids = x->ids,
	                         .count = x->piece,
	                         .first = x->at,
	                         .slot = x->now == WHOLE || x->advances ? x->slot : x->spare,
	                         .absent = x->absent + x->at};
	x->removals->readings++;
	x->removals->tokens += x->piece;
	return reading_begin(&x->reading, x->model, form, &p, err);
}

/* --- the walk ------------------------------------------------------------------------------- */

static double score(const removing *x)
{
	return explain_score_of(x->logits + outputs_of(x), x->logits, outputs_of(x));
}

static void keep(removing *x, int64_t index, double log_probability, double without)
{
	if (x->removals->log_probabilities)
		x->removals->log_probabilities[index] = log_probability;
	x->removals->scores[index] = without;
}

/* Equal to the set before, or empty: without a reading. */
static bool is_known(removing *x)
{
	const set *s = &x->sets[x->now];
	const explain_parts *whole = x->sequence->parts;
	const double *from = x->removals->log_probabilities;
	if (s->first == s->count) {
		keep(x, s->index, whole->log_probability, whole->score);
		return true;
	}
	if (x->now == 0 || !are_equal(s, s - 1))
		return false;
	keep(x, s->index, from ? from[s[-1].index] : 0, x->removals->scores[s[-1].index]);
	return true;
}

/* The set is read from its first token on, from a copy of the state before it; at the beginning there is none. */
static status begin_set(removing *x)
{
	const size_t bytes = (size_t)model_state_floats(x->model->model) * sizeof(float);
	x->advances = false;
	x->at = by_pieces(x) ? x->sets[x->now].first : 0;
	return x->at == 0 ? STATUS_OK : statepool_copy(x->model->pool, x->spare, x->slot, 0, bytes);
}

static status next_set(removing *x, bool *done)
{
	do
		x->now++;
	while (x->now < x->removals->n && is_known(x));
	*done = x->now == x->removals->n;
	if (*done)
		return STATUS_OK;
	const set *s = &x->sets[x->now];
	memset(x->absent, 0, (size_t)s->count * sizeof *x->absent);
	x->absent[s->first] = true;
	if (s->absent)
		memcpy(x->absent, s->absent, (size_t)s->count * sizeof *x->absent);
	if (!by_pieces(x) || s->first == x->prefix)
		return begin_set(x);
	x->advances = true;
	x->at = x->prefix;
	return STATUS_OK;
}

/* All pieces of what is read now have been. */
static status finish(removing *x, bool *done)
{
	if (x->advances) {
		x->prefix = x->at;
		return begin_set(x);
	}
	TRY(reading_values(x->reading, x->logits));
	if (x->now == WHOLE)
		explain_target_choose(&x->sequence->target, x->logits, outputs_of(x), x->logits + outputs_of(x),
		                      x->sequence->parts);
	else
		keep(x, x->sets[x->now].index,
		     explain_log_probability_of(x->logits, outputs_of(x), x->sequence->parts->token), score(x));
	return next_set(x, done);
}

status removing_step(removing *x, bool *done, error *err)
{
	bool whole;
	*done = false;
	if (!x->reading)
		return begin_piece(x, err);
	TRY(reading_step(x->reading, &whole));
	if (!whole)
		return STATUS_OK;
	x->at += x->piece;
	const int64_t end = x->advances ? x->sets[x->now].first : x->sequence->count;
	status s = x->at == end ? finish(x, done) : STATUS_OK;
	reading_end(x->model, x->reading);
	x->reading = NULL;
	return s;
}

/* --- a walk's life -------------------------------------------------------------------------- */

status removing_new(removing **out, served_model *m, explain_removals *r, const scoring_sequence *q, int32_t slot,
                    error *err)
{
	const size_t count = (size_t)q->count;
	removing *x = *out = memory_new(1, sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	*x = (removing){.model = m, .removals = r, .sequence = q, .slot = slot, .spare = NO_SLOT, .now = WHOLE};
	x->sets = memory_new((size_t)r->n + 1, sizeof *x->sets);
	x->ids = memory_new(count, sizeof *x->ids);
	x->absent = memory_new(count, sizeof *x->absent);
	x->logits = memory_new((size_t)outputs_of(x), 2 * sizeof *x->logits);
	if (!x->sets || !x->ids || !x->absent || !x->logits)
		return STATUS_NOMEM;
	sort_sets(x);
	return by_pieces(x) ? served_model_take(m, &x->spare, err) : STATUS_OK;
}

void removing_free(removing *x)
{
	if (!x)
		return;
	reading_end(x->model, x->reading);
	if (x->spare != NO_SLOT)
		served_model_give(x->model, x->spare);
	free(x->sets);
	free(x->ids);
	free(x->absent);
	free(x->logits);
	free(x);
}
