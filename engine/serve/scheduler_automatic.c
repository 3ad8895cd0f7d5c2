/* scheduler_automatic.c - automatic snapshots of sessions: how many a session keeps, their bytes, when one is made, and
 * that before a call. */
#include <stdio.h>
#include <string.h>

#include "engine/serve/scheduler_state.h"

/* Return the oldest automatic snapshot, or NULL, and count them. */
static session *oldest_automatic(const session *x, int *count)
{
	session *oldest = NULL;
	*count = 0;
	for (session *y = x->snapshots; y; y = y->older)
		if (y->automatic) {
			oldest = y;
			++*count;
		}
	return oldest;
}

void scheduler_automatic_list(const session *x, session_info *out)
{
	oldest_automatic(x, &out->n_automatic);
	int i = out->n_automatic;
	for (const session *y = x->snapshots; y; y = y->older)
		if (y->automatic) {
			strcpy(out->automatic[--i].id, y->id);
			out->automatic[i].tokens = y->tokens;
			out->automatic[i].bytes = y->automatic;
		}
}

static bool exceeds_limit(const scheduler *s)
{
	return atomic_load(s->limits.automatic_used) > s->limits.automatic_bytes;
}

/* Return a complete automatic snapshot of x, in no list; NULL: there is no memory for it, or the device failed. */
static session *copy_session(session *x, const char *id)
{
	session *copy;
	if (session_snapshot(&copy, x, id, NULL) != STATUS_OK || session_copy_all(&copy, x) != STATUS_OK)
		return NULL;
	copy->automatic = session_snapshot_bytes(x);
	return copy;
}

/* True if the limits allow a snapshot of x. */
static bool is_allowed(const scheduler *s, const session *x)
{
	return s->limits.automatic_used && statepool_slot_bytes(x->model->pool) <= SCHEDULER_AUTOMATIC_BYTES &&
	       session_snapshot_bytes(x) <= s->limits.automatic_bytes;
}

/* Make a complete copy of x its newest automatic snapshot, in place of one with the same id. False: other sessions have
 * too many, and the copy is freed. */
static bool add_automatic(scheduler *s, session *x, session *copy)
{
	session *oldest, *same = session_find_snapshot(x, copy->id);
	int count;
	if (same)
		session_drop_snapshot(x, same);
	session_count(copy, HELD_AUTOMATIC, s->limits.automatic_used);
	while ((oldest = oldest_automatic(x, &count)) && (count >= SCHEDULER_AUTOMATIC || exceeds_limit(s)))
		session_drop_snapshot(x, oldest);
	if (exceeds_limit(s)) {
		session_free(copy);
		return false;
	}
	copy->older = x->snapshots;
	x->snapshots = copy;
	return true;
}

void scheduler_session_keep_automatic(scheduler *s, session *x)
{
	char id[SCHEDULER_ID_BYTES];
	snprintf(id, sizeof id, "auto-%lld", (long long)x->tokens);
	session *copy = is_allowed(s, x) ? copy_session(x, id) : NULL;
	if (copy)
		add_automatic(s, x, copy);
}

bool scheduler_keep_automatic(scheduler *s, generation *g, size_t *left)
{
	const size_t bytes = statepool_slot_bytes(g->session->model->pool);
	if (!g->snapshot_due || bytes > *left)
		return true;
	g->snapshot_due = false;
	*left -= bytes;
	if (!scheduler_fetch_logits(s, g))
		return false;
	scheduler_session_keep_automatic(s, g->session);
	return true;
}

/* Read the text of a token. Return the bytes before it, or in it, from which on the answer's last text may be a call;
 * negative: before it. False: none may be. */
static bool may_begin(call_watch *w, const unsigned char *text, int n, int *begin)
{
	int end = 0;
	while (end < n && !w->found)
		w->found = call_search_step(&w->search, &w->state, text[end++]) == 0;
	const int held = w->found ? w->search.bytes[0] : (int)call_search_held(&w->search, &w->state);
	*begin = end - held;
	return held > 0;
}

bool scheduler_watch_calls(scheduler *s, generation *g, int32_t token)
{
	enum { LONGEST = 1024 }; /* bytes of a token that are read; a longer one is text */
	unsigned char text[LONGEST];
	call_watch *w = g->calls;
	session *x = g->session;
	if (!w || w->found || token < 0 || generation_ends(g, token))
		return true;
	const size_t bytes = tokenizer_token_bytes(x->model->tokenizer, token, (char *)text, sizeof text);
	int begin;
	const bool may = may_begin(w, text, (int)(bytes < sizeof text ? bytes : sizeof text), &begin);
	if (!may || begin >= 0) {
		session_free(w->before);
		w->before = NULL;
	}
	if (may && begin >= 0 && is_allowed(s, x)) {
		char id[SCHEDULER_ID_BYTES];
		snprintf(id, sizeof id, "call-%lld", (long long)x->tokens);
		if (!scheduler_fetch_logits(s, g))
			return false;
		w->before = copy_session(x, id);
	}
	if (w->found && w->before) {
		const int64_t tokens = w->before->tokens;
		w->snapshot = add_automatic(s, x, w->before) ? tokens : -1;
		w->before = NULL;
	}
	return true;
}
