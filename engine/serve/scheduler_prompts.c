/* scheduler_prompts.c - chooses the prompts that a step reads.
 *
 * A step begins with the prompt that has the fewest tokens left, and every fourth step with the oldest. So a short
 * prompt does not wait for a long one and no prompt starves. A prompt with more priority precedes a shorter one, and the
 * oldest is the first one in the queue (scheduler_order.c). Among the prompts of several owners, those of the least
 * served owner are meant (shares.h). Prompts of equal length are read one after the other; with
 * round-robin all would be ready only when the last one is. Other prompts of the model join in queue order while
 * their chunks fit. A step has room for one chunk, and beside other owners for less (shares.h). Where threads read
 * parts of a step in parallel and the first chunk is full, it has room for one chunk per thread. A device has room for
 * backend.prompt_tokens.
 *
 * Softmax attention sums over the pieces in which a prompt is read. So only a fixed division gives a prompt the same
 * bits as alone: SCHEDULER_PREFILL_CHUNK tokens, whatever else the step reads. The bits of other models do not depend
 * on the pieces. On a device one of their prompts fills a step. On a CPU they read only SCHEDULER_PREFILL_SHORT tokens
 * a step while streams decode, because each stream waits for such a step for its next token. The same holds for a
 * prompt in the background, because the next request waits for its step. After a short prompt beside others, the next
 * request is expected soon: a prompt of more than SCHEDULER_PREFILL_LONG tokens is then read so for
 * SCHEDULER_SHORT_STEPS. Beside 32 streams (d 128, 6 layers, two cores) a step takes 1.6 ms.
 *
 * The step also reads the next token of every stream of the model, so that neither waits for the other and weights are
 * read once for both. The model has no decode steps of its own then. All of its streams that have a turn (shares.h)
 * join, or none: where one cannot (its log is read, or it belongs to a beam search), all decode apart. */
#include "engine/serve/beams.h"
#include "engine/serve/scheduler_state.h"

/* Return the first generation from g on that has a prompt to read or a first token to sample. */
static generation *prompt_from(const scheduler *s, generation *g)
{
	if (s->n_prompts == 0)
		return NULL;
	while (g && !(g->phase == GENERATION_PROMPT && generation_runnable(g)))
		g = g->following;
	return g;
}

static int64_t prompt_left(const generation *g)
{
	return (generation_must_encode(g) ? g->n_source : 0) + g->n_prompt - g->n_read;
}

/* Order of prompts: fewest tokens left first. Copies of a beam search come last; they take many turns and read no
 * token, so a short prompt beside them does not wait for all of them. */
static int64_t prompt_rank(const generation *g)
{
	return beams_copies(g) ? INT64_MAX : prompt_left(g);
}

/* True if g, which follows `other` in the queue, is read before it. Both are of one owner. */
static bool precedes(const generation *g, const generation *other)
{
	if (share_reads_oldest(g->share) || other->overtaken == SCHEDULER_OVERTAKES)
		return false;
	if (beams_copies(g) != beams_copies(other))
		return beams_copies(other);
	return g->priority != other->priority ? g->priority < other->priority : prompt_rank(g) < prompt_rank(other);
}

/* Return a prompt of the owner whose turn it is. Of owners that have been served equally, it is the latest to arrive. */
static generation *prompt_of_next_owner(const scheduler *s)
{
	generation *best = prompt_from(s, s->first);
	for (generation *g = best ? prompt_from(s, best->following) : NULL; g; g = prompt_from(s, g->following))
		if (beams_copies(g) != beams_copies(best) ? beams_copies(best) : g->share->served <= best->share->served)
			best = g;
	return best;
}

generation *scheduler_prompts_first(const scheduler *s)
{
	const generation *next = prompt_of_next_owner(s);
	generation *best = NULL;
	for (generation *g = next ? prompt_from(s, s->first) : NULL; g; g = prompt_from(s, g->following))
		if (g->share == next->share && (!best || precedes(g, best)))
			best = g;
	return best;
}

bool scheduler_decodes(const scheduler *s)
{
	const generation *g = s->first;
	while (g && !(g->phase == GENERATION_DECODE && generation_runnable(g)))
		g = g->following;
	return g != NULL;
}

/* Return the number of streams of m that decode in a step of prompts that begins with one of `reader`; 0: none, or they
 * decode apart. */
static int streams_that_join(scheduler *s, const served_model *m, const share *reader)
{
	if ((int)(m->apart_until - s->prompt_steps) > 0 || (s->ahead && s->ahead->model == m))
		return 0;
	for (const generation *g = s->first; g; g = g->following) {
		if (g->session->model != m || g->phase == GENERATION_PROMPT || !generation_runnable(g))
			continue;
		if (g->session->log || g->beams)
			return 0;
	}
	const int n = scheduler_divide(s, m, reader);
	const int64_t room = served_model_step_tokens(m) - n;
	return n < m->max_batch && room >= (m->any_pieces ? served_model_prompt_tokens(m) / 2 : m->chunk) ? n : 0;
}

/* True if a step that begins with g reads a piece of its prompt, and nothing else of it. */
static bool reads_piece(const generation *g)
{
	return prompt_left(g) > 0 && generation_tallied(g) && !generation_must_encode(g) &&
	       !generation_scores_remain(g) && model_dimensions(g->session->model->model)->form->stepwise;
}

bool scheduler_joins(scheduler *s, const served_model *m)
{
	const generation *g = scheduler_prompts_first(s);
	return g && g->session->model == m && reads_piece(g) && streams_that_join(s, m, g->share) > 0;
}

/* Add g to the step if its chunk fits. A scored prompt is read alone, and a prompt with a source only once that is
 * encoded. */
static void prompts_add(inflight_step *f, generation *g, int64_t most, int64_t *room)
{
	const session *x = g->session;
	const int64_t n =
	    prefixes_piece(g, model_dims_piece(model_dimensions(x->model->model), x->tokens, prompt_left(g), most));
	if (n == 0 || n > *room || !generation_tallied(g) || g->scores || generation_must_encode(g))
		return;
	*room -= n;
	g->reading = n;
	share_charge(g->share, n);
	f->batch[f->n++] = g;
}

/* Add the next token of each stream of f's model that may join. */
static void streams_add(scheduler *s, inflight_step *f)
{
	for (generation *g = s->first; g; g = g->following)
		if (g->session->model == f->model && g->phase != GENERATION_PROMPT && generation_runnable(g) &&
		    share_take(g->share))
			f->batch[f->n++] = g;
	for (int i = f->streams_from; i < f->n; i++)
		scheduler_requeue(s, f->batch[i]);
}

/* True if g's prompt is read in short pieces now. Notes when a short prompt is read beside others. */
static bool hurries(scheduler *s, const generation *g)
{
	if (s->n_prompts > 1 && g->n_prompt <= g->session->model->short_chunk)
		s->short_until = s->prompt_steps + SCHEDULER_SHORT_STEPS;
	return scheduler_decodes(s) || g->background ||
	       (prompt_left(g) > SCHEDULER_PREFILL_LONG && (int)(s->short_until - s->prompt_steps) > 0);
}

void scheduler_prompts_gather(scheduler *s, generation *first, inflight_step *f)
{
	served_model *m = first->session->model;
	const int streams = streams_that_join(s, m, first->share);
	const bool host = !model_backend(m->model)->prompt_tokens;
	int64_t room = smaller_of(served_model_prompt_tokens(m), served_model_step_tokens(m) - streams);
	int64_t most = smaller_of(m->chunk, room);
	const int64_t rows = smaller_of(served_model_prompt_rows(m), m->max_batch - streams);
	f->model = m;
	f->n = 0;
	f->prompts = true;
	if (prompt_left(first) < SCHEDULER_PREFILL_CHUNK && room > SCHEDULER_PREFILL_CHUNK && host)
		room = SCHEDULER_PREFILL_CHUNK; /* a shorter step, so that the first prompt is ready sooner */
	if (hurries(s, first) && m->short_chunk < most && prompt_left(first) > m->short_chunk)
		room = most = m->short_chunk;
	const int64_t fair = scheduler_divide_prompts(s, m, first->share);
	if (m->any_pieces)
		most = smaller_of(most, fair);
	room = smaller_of(room, larger_of(fair, smaller_of(prompt_left(first), most)));
	prompts_add(f, first, most, &room);
	for (generation *g = prompt_from(s, s->first); g && room > 0 && f->n < rows; g = prompt_from(s, g->following)) {
		if (g == first || g->session->model != m || (host && g->share != first->share))
			continue;
		prompts_add(f, g, most, &room);
	}
	f->streams_from = f->n;
	if (streams > 0)
		streams_add(s, f);
}

/* Before the last chunk only a session needs logits, because its generation may be cancelled there. */
void scheduler_prompts_rows(scheduler *s, const inflight_step *f)
{
	for (int i = 0; i < f->n; i++) {
		generation *g = f->batch[i];
		if (g->phase != GENERATION_PROMPT) {
			scheduler_token_row(s, i, g, -1);
			s->counters.batched_sequences++;
			continue;
		}
		s->rows[i] = session_row(g->session, g->prompt + g->n_read, g->reading);
		s->rows[i].silent = g->temporary && g->n_read + g->reading < g->n_prompt;
		s->draws[i] = generation_sample_row(g, g->reading, g->reading);
		s->counters.prompt_tokens += (uint64_t)g->reading;
	}
}
