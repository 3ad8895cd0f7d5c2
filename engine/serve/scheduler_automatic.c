/* scheduler_automatic.c - automatic snapshots of sessions: how many a session keeps, their bytes, and when one is made.
 */
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

/* Return a complete snapshot of x, in no list; NULL: there is no memory for it, or the device failed. */
static session *copy_session(session *x, const char *id)
{
	session *copy;
	return session_snapshot(&copy, x, id, NULL) == STATUS_OK && session_copy_all(&copy, x) == STATUS_OK ? copy : NULL;
}

void scheduler_session_keep_automatic(scheduler *s, session *x)
{
	char id[SCHEDULER_ID_BYTES];
	const int64_t bytes = session_snapshot_bytes(x);
	session *copy, *oldest;
	int count;
	if (!s->limits.automatic_used || statepool_slot_bytes(x->model->pool) > SCHEDULER_AUTOMATIC_BYTES ||
	    bytes > s->limits.automatic_bytes)
		return;
	snprintf(id, sizeof id, "auto-%lld", (long long)x->tokens);
	if ((copy = session_find_snapshot(x, id)))
		session_drop_snapshot(x, copy);
	if (!(copy = copy_session(x, id)))
		return;
	copy->automatic = bytes;
	session_count(copy, HELD_AUTOMATIC, s->limits.automatic_used);
	while ((oldest = oldest_automatic(x, &count)) && (count >= SCHEDULER_AUTOMATIC || exceeds_limit(s)))
		session_drop_snapshot(x, oldest);
	if (exceeds_limit(s)) {
		session_free(copy);
		return;
	}
	copy->older = x->snapshots;
	x->snapshots = copy;
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
