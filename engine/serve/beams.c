/* beams.c - the turns of a search.
 *
 * A choice needs the logits of every beam on the host, so no step is issued ahead of one that has a beam in it. A
 * cache of keys and values is copied only from the last token that both beams have in common (state_list_changes).
 *
 * Milliseconds of a step of 4 (d 128, 6 layers, two busy cores, `bench_serve beams`), for four beams, four streams with
 * log-probabilities, four plain streams:
 *
 *   vocabulary 259                          0.40    0.45    0.42
 *   vocabulary 32,100                       3.3     2.7     1.7
 *   GPT-2 of that size, 1024 positions      0.69    0.62    0.62 */
#include "engine/serve/beams.h"

#include <assert.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

/* The hypothesis that one client receives. */
typedef struct answer {
	token_logprob *tokens; /* [count] */
	token_logprob *top;    /* [count][n_logprobs] */
	int64_t count;
	finish_reason finish;
} answer;

struct beams {
	beam_search *search; /* NULL: the search has ended */
	int n, n_clients;
	generation *generations[BEAM_SEARCH_MAX]; /* [n]; NULL: the generation has ended */
	int n_left;                               /* generations that have not ended */
	generation *ranked[BEAM_SEARCH_MAX];      /* the generation of each beam, by rank */
	int n_awaited;                            /* beams that have not read their token */
	struct {
		generation *to, *from;
	} copies[BEAM_SEARCH_MAX];
	int n_copies;         /* copies still to make, last one first */
	size_t moved;         /* bytes of the current copy */
	state_range *changes; /* [n_changes] ranges of the state that the current copy differs in */
	int n_changes;
	int64_t n_prompt; /* tokens that all beams share */
	status result;    /* the status with which the search failed */
	error error;
	answer answers[BEAM_SEARCH_MAX]; /* [n_clients] */
};

/* --- beginning ----------------------------------------------------------------- */

status beams_check(const beam_options *o, const generation_request *r, int n, error *err)
{
	if (o->beams < 1 || o->beams > BEAM_SEARCH_MAX)
		return error_set(err, STATUS_INVALID, "num_beams", "must be between 1 and %d", BEAM_SEARCH_MAX);
	if (!(o->length_penalty >= -BEAM_SEARCH_MAX_PENALTY && o->length_penalty <= BEAM_SEARCH_MAX_PENALTY))
		return error_set(err, STATUS_INVALID, "length_penalty", "must be between -%d and %d",
		                 BEAM_SEARCH_MAX_PENALTY, BEAM_SEARCH_MAX_PENALTY);
	if (n < 1 || n > o->beams)
		return error_set(err, STATUS_INVALID, "n", "must be at most num_beams, which is %d", o->beams);
	if (r->max_tokens < 1)
		return error_set(err, STATUS_INVALID, "max_tokens", "must be at least 1 in a beam search");
	if (r->n_stops > 0)
		return error_set(err, STATUS_UNSUPPORTED, "stop", "a beam search supports no stop sequences");
	if (r->constraint)
		return error_set(err, STATUS_UNSUPPORTED, r->constraint_field, "not in a beam search");
	if (r->n_alpha > 0 || r->explain)
		return error_set(err, STATUS_UNSUPPORTED, "alpha", "not in a beam search");
	if (r->score_prompt)
		return error_set(err, STATUS_UNSUPPORTED, "echo", "a beam search cannot score its prompt");
	return sampling_check_plain(&r->sampling, "a beam search does not sample; only the default is allowed", err);
}

/* Collect the tokens that end the text of g; there are few. STATUS_NOMEM. */
static status find_ends(const generation *g, int32_t **ends, int *n_ends)
{
	const int64_t vocab = model_dimensions(g->session->model->model)->outputs;
	int n = 0, capacity = 0;
	*ends = NULL;
	for (int32_t token = 0; token < vocab; token++) {
		if (!generation_ends(g, token))
			continue;
		if (!MEMORY_ROOM(*ends, capacity, n + 1))
			return STATUS_NOMEM;
		(*ends)[n++] = token;
	}
	*n_ends = n;
	return STATUS_OK;
}

static status begin_search(beams *b, const generation *g, const beam_options *o)
{
	int32_t *ends;
	int n_ends;
	status s = find_ends(g, &ends, &n_ends);
	if (s == STATUS_OK)
		s = beam_search_new(&b->search, o, model_dimensions(g->session->model->model)->outputs, g->max_tokens,
		                    &g->sampling, ends, n_ends, g->n_logprobs);
	free(ends);
	b->changes =
	    memory_new((size_t)model_states(g->session->model->model)->count * STATE_RANGES, sizeof *b->changes);
	return b->changes ? s : STATUS_NOMEM;
}

static void finished_beam(void *context, const generation_result *r)
{
	(void)context;
	(void)r;
}

/* Create generation i; from n_clients on it has no client. */
static status add_generation(beams *b, int i, const generation_request *r, error *err)
{
	const generation *first = b->generations[0];
	const session_options o = first->session->options;
	generation_request own = r[i < b->n_clients ? i : 0];
	session *x;
	if (i >= b->n_clients) {
		own.finished = finished_beam;
		own.context = NULL;
		own.event = NULL;
	}
	TRY(session_new(&x, first->session->model, "", &o, err));
	status s = generation_new_like(&b->generations[i], first, x, &own);
	if (s != STATUS_OK)
		session_free(x);
	return error_settle(err, s);
}

static void beams_free(beams *b)
{
	beam_search_free(b->search);
	free(b->changes);
	for (int i = 0; i < b->n_clients; i++) {
		free(b->answers[i].tokens);
		free(b->answers[i].top);
	}
	free(b);
}

status beams_new(generation *first, const beam_options *o, const generation_request *r, int n, error *err)
{
	beams *b = memory_new(1, sizeof *b);
	if (!b)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for another request");
	*b = (beams){.n = o->beams, .n_clients = n, .generations = {first}, .ranked = {first}, .n_awaited = 1};
	status s = begin_search(b, first, o);
	for (int i = 1; i < b->n && s == STATUS_OK; i++)
		s = add_generation(b, i, r, err);
	if (s != STATUS_OK) {
		for (int i = 1; i < b->n; i++)
			generation_discard(b->generations[i]);
		beams_free(b);
		return error_set(err, s, NULL, "no memory for another request");
	}
	tally_fini(&first->tally); /* the biases are applied by the search */
	b->n_left = b->n;
	for (int i = 0; i < b->n; i++)
		b->generations[i]->beams = b;
	return STATUS_OK;
}

int beams_count(const beams *b)
{
	return b->n;
}

generation *beams_generation(const beams *b, int i)
{
	return b->generations[i];
}

static int index_of(generation *const *list, int n, const generation *g)
{
	int i = 0;
	while (i < n && list[i] != g)
		i++;
	return i;
}

/* --- the end of the search -------------------------------------------------------- */

static status take_answer(const beams *b, int i, answer *out)
{
	const beam_hypothesis *h = beam_search_best(b->search, i);
	const int n_top = b->generations[i]->n_logprobs;
	out->tokens = memory_new((size_t)h->length, sizeof *out->tokens);
	out->top = memory_new((size_t)h->length, (size_t)(n_top > 0 ? n_top : 0) * sizeof *out->top);
	if (!out->tokens || !out->top)
		return STATUS_NOMEM;
	out->count = h->length;
	beam_search_tokens(b->search, i, out->tokens, out->top);
	out->finish = h->ended ? FINISH_STOP : FINISH_LENGTH;
	return STATUS_OK;
}

static status beams_no_memory(status s, error *err)
{
	return s == STATUS_NOMEM ? error_set(err, s, NULL, "no memory to continue the beam search") : s;
}

/* If no token is requested, every answer is empty. */
static status conclude(beams *b, error *err)
{
	const int found = beam_search_count(b->search);
	const bool empty = b->generations[0]->max_tokens == 0;
	if (found == 0 && !empty)
		return error_set(err, STATUS_INVALID, "model",
		                 "the model's logits are not finite: products of its weights overflow");
	if (found < b->n_clients && !empty)
		return error_set(err, STATUS_UNSUPPORTED, "n", "the search has found %d texts", found);
	for (int i = 0; i < b->n_clients; i++) {
		b->answers[i].finish = FINISH_LENGTH;
		if (!empty)
			TRY(beams_no_memory(take_answer(b, i, &b->answers[i]), err));
	}
	beam_search_free(b->search);
	b->search = NULL;
	for (int i = b->n_clients; i < b->n; i++)
		generation_cancel(b->generations[i]);
	return STATUS_OK;
}

/* --- the next tokens --------------------------------------------------------------- */

/* Assign a generation to every beam and list the copies to make. */
static void beams_place(beams *b)
{
	generation *before[BEAM_SEARCH_MAX], *parent[BEAM_SEARCH_MAX];
	bool stays[BEAM_SEARCH_MAX] = {false}; /* by generation */
	const int live = beam_search_live(b->search);
	memcpy(before, b->ranked, sizeof before);
	for (int rank = 0; rank < live; rank++) {
		parent[rank] = before[beam_search_parent(b->search, rank)];
		bool *taken = &stays[index_of(b->generations, b->n, parent[rank])];
		b->ranked[rank] = *taken ? NULL : parent[rank];
		*taken = true;
	}
	int unused = 0;
	for (int rank = 0; rank < live; rank++) {
		if (b->ranked[rank])
			continue;
		while (stays[unused])
			unused++;
		b->ranked[rank] = b->generations[unused++];
		b->copies[b->n_copies].to = b->ranked[rank];
		b->copies[b->n_copies++].from = parent[rank];
	}
}

/* Let every beam read its token. */
static status read_on(beams *b, error *err)
{
	b->n_awaited = beam_search_live(b->search);
	for (int rank = 0; rank < b->n_awaited; rank++) {
		generation *g = b->ranked[rank];
		TRY(session_reserve(g->session, 1, err));
		g->next = beam_search_token(b->search, rank);
		g->phase = GENERATION_DECODE;
	}
	return STATUS_OK;
}

/* Find the ranges in which the states of two beams differ. A copy costs a device some microseconds however short it is,
 * so short gaps are copied too. */
static void find_changes(beams *b, const session *to, const session *from)
{
	enum { GAP = 1 << 10, DEVICE_GAP = 1 << 20 }; /* floats; copying a smaller gap is faster than another call */
	const model *m = to->model->model;
	int64_t same = b->n_prompt;
	while (same < to->tokens && token_history_at(&to->history, same) == token_history_at(&from->history, same))
		same++;
	b->n_changes = state_list_changes(model_states(m), same, from->tokens,
	                                  model_backend(m)->host_memory ? GAP : DEVICE_GAP, b->changes);
}

/* The first copy into a session copies everything. */
static status copy_step(beams *b, session *to, const session *from, bool *done, error *err)
{
	if (b->moved == 0)
		TRY(session_reserve_copy(to, from, err));
	if (to->tokens == 0)
		return session_fork_step(to, from, &b->moved, done, err);
	if (b->moved == 0)
		find_changes(b, to, from);
	return session_follow_step(to, from, b->changes, b->n_changes, &b->moved, done, err);
}

/* Make copies for at most one turn; after the last one the beams read their tokens. */
static status copy_some(beams *b, error *err)
{
	size_t left = BEAMS_COPY_BYTES;
	while (b->n_copies > 0 && left >= SESSION_STEP) {
		const size_t before = b->moved;
		bool done;
		TRY(copy_step(b, b->copies[b->n_copies - 1].to->session, b->copies[b->n_copies - 1].from->session,
		              &done, err));
		left -= b->moved - before;
		b->n_copies -= done;
		b->moved = done ? 0 : b->moved;
	}
	return b->n_copies == 0 ? read_on(b, err) : STATUS_OK;
}

status beams_read_logits(generation *g, error *err)
{
	beams *b = g->beams;
	if (g->phase == GENERATION_PROMPT) {
		/* The first beam has read the prompt; account it for every client. */
		b->n_prompt = b->generations[0]->session->tokens;
		for (int i = 0; i < b->n_clients; i++)
			b->generations[i]->prompted_ns = clock_ns();
	}
	g->phase = GENERATION_PROMPT;
	TRY(session_fetch(g->session));
	if (beam_search_ended(b->search))
		return conclude(b, err);
	beam_search_read(b->search, index_of(b->ranked, beam_search_live(b->search), g), g->session->logits);
	if (--b->n_awaited > 0)
		return STATUS_OK;
	TRY(beams_no_memory(beam_search_advance(b->search), err));
	if (beam_search_ended(b->search))
		return conclude(b, err);
	beams_place(b);
	return copy_some(b, err);
}

/* --- turns ------------------------------------------------------------------------- */

bool beams_copies(const generation *g)
{
	return g->beams && g->beams->search && g->beams->n_copies > 0;
}

bool beams_runnable(const generation *g)
{
	const beams *b = g->beams;
	if (g->phase == GENERATION_DECODE || g->n_read < g->n_prompt)
		return true;
	if (b->search)
		return beams_copies(g) && g == b->generations[0];
	return g->credit > 0 || g->completed == b->answers[index_of(b->generations, b->n, g)].count;
}

/* Send the next event of an answer. */
static void deliver(generation *g, const answer *a)
{
	int32_t tokens[GENERATION_EVENT_TOKENS];
	const token_logprob *next = a->tokens + g->completed;
	int n = 0;
	while (n < GENERATION_EVENT_TOKENS && g->completed + n < a->count) {
		tokens[n] = next[n].token;
		n++;
	}
	generation_event e = {.tokens = tokens, .n_tokens = n};
	if (g->n_logprobs >= 0) {
		e.logprobs = next;
		e.n_top = g->n_logprobs;
		e.top = a->top + g->completed * e.n_top;
	}
	g->completed += n;
	generation_send_tokens(g, &e, g->completed == a->count);
}

status beams_turn(generation *g, bool *done, error *err)
{
	beams *b = g->beams;
	*done = false;
	if (b->search)
		return copy_some(b, err);
	const answer *a = &b->answers[index_of(b->generations, b->n, g)];
	while (g->completed < a->count && g->credit > 0 && !g->cancelled)
		deliver(g, a);
	*done = g->completed == a->count;
	g->finish = *done ? a->finish : FINISH_NONE;
	return STATUS_OK;
}

status beams_leave(generation *g, status s, error *err)
{
	beams *b = g->beams;
	if (b->search && b->result == STATUS_OK) {
		assert(s != STATUS_OK);
		b->result = s;
		b->error = *err;
		for (int i = 0; i < b->n; i++)
			if (b->generations[i] != g)
				generation_cancel(b->generations[i]);
	}
	if (b->result != STATUS_OK) {
		s = b->result;
		*err = b->error;
	}
	b->generations[index_of(b->generations, b->n, g)] = NULL;
	if (--b->n_left == 0)
		beams_free(b);
	return s;
}
