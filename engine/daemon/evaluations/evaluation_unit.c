#include "engine/daemon/evaluations/evaluation_unit.h"

#include <stdlib.h>

#include "engine/base/memory.h"

status evaluation_unit_init(evaluation_unit *u, const evaluation_settings *s)
{
	const size_t room = (size_t)(s->window > EVALUATION_UNIT ? s->window : EVALUATION_UNIT);
	*u = (evaluation_unit){.room = (int64_t)room,
	                       .windows = memory_new(EVALUATION_UNIT, sizeof *u->windows),
	                       .sequences = memory_new(EVALUATION_UNIT, sizeof *u->sequences),
	                       .ids = memory_new(room, sizeof *u->ids),
	                       .next = memory_new(room, sizeof *u->next),
	                       .flags = memory_new(room, sizeof *u->flags),
	                       .scores = memory_new(room, sizeof *u->scores),
	                       .best = memory_new(room, sizeof *u->best)};
	return u->windows && u->sequences && u->ids && u->next && u->flags && u->scores && u->best ? STATUS_OK
	                                                                                           : STATUS_NOMEM;
}

void evaluation_unit_fini(evaluation_unit *u)
{
	free(u->windows);
	free(u->sequences);
	free(u->ids);
	free(u->next);
	free(u->flags);
	free(u->scores);
	free(u->best);
	*u = (evaluation_unit){0};
}

/* Return the window at the cursor, as if its document did not end. */
static evaluation_window window_at(const evaluation_settings *s, int64_t tokens, const evaluation_cursor *at)
{
	const int64_t begin = at->done > at->start ? at->done - s->overlap : at->start;
	const int64_t left = tokens - begin;
	return (evaluation_window){
	    .start = at->start, .begin = begin, .done = at->done, .end = begin + (left < s->window ? left : s->window)};
}

/* Read the tokens; end the window with its document where windows stay within documents. */
static status read_window(evaluation_unit *u, const evaluation_settings *s, const token_cache *text,
                          evaluation_window *w, error *err)
{
	unsigned char *flags = u->flags + w->at;
	TRY(token_cache_read(text, w->begin, w->end - w->begin, u->ids + w->at, flags, err));
	w->finishes = w->end == token_cache_tokens(text);
	for (int64_t i = w->done; i < w->end && s->reset_at_document; i++)
		if (flags[i - w->begin] & TOKEN_LAST) {
			w->end = i + 1;
			w->finishes = true;
		}
	return STATUS_OK;
}

static void add_sequence(evaluation_unit *u, const evaluation_settings *s, const evaluation_window *w, void *state)
{
	const int64_t count = w->end - w->begin - 1;
	const bool alone = w->begin == w->start && w->finishes;
	if (count < 1)
		return;
	for (int64_t i = 0; i < count; i++)
		u->next[w->at + i] = w->begin + i + 1 >= w->done ? u->ids[w->at + i + 1] : -1;
	u->sequences[u->n_sequences++] =
	    (score_sequence){.ids = u->ids + w->at,
	                     .count = count,
	                     .next = u->next + w->at,
	                     .scores = u->scores + w->at,
	                     .best = u->best + w->at,
	                     .carried = s->context == EVALUATION_CARRIED && !alone ? state : NULL,
	                     .before = s->context == EVALUATION_CARRIED ? w->begin - w->start : 0};
}

status evaluation_unit_plan(evaluation_unit *u, const evaluation_settings *s, const token_cache *text,
                            evaluation_cursor *at, void *state, error *err)
{
	const int64_t tokens = token_cache_tokens(text);
	u->n_windows = u->n_sequences = 0;
	for (int64_t used = 0; at->done < tokens && u->n_windows < EVALUATION_UNIT;) {
		evaluation_window w = window_at(s, tokens, at);
		if (used + w.end - w.begin > u->room)
			break;
		w.at = used;
		TRY(read_window(u, s, text, &w, err));
		add_sequence(u, s, &w, state);
		u->windows[u->n_windows++] = w;
		used += w.end - w.begin;
		*at = (evaluation_cursor){w.finishes ? w.end : w.start, w.end};
	}
	return STATUS_OK;
}
