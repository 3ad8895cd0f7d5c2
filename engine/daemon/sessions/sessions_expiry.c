/* sessions_expiry.c - the entries with a lifetime, as a binary heap by the time at which they expire. An entry stores
 * its index, so a use and a removal take a time in proportion to the logarithm of their number. */
#include "engine/base/clock.h"
#include "engine/daemon/sessions/sessions_private.h"

enum { NS_PER_SECOND = 1000000000 };

static void put(sessions *all, int at, session_entry *e)
{
	all->expiring[at] = e;
	e->expiry = at;
}

static bool is_sooner(const session_entry *a, const session_entry *b)
{
	return a->expires_ns < b->expires_ns;
}

/* Move e, which may be put at `at`, to its place. */
static void sift(sessions *all, int at, session_entry *e)
{
	for (; at > 0 && is_sooner(e, all->expiring[(at - 1) / 2]); at = (at - 1) / 2)
		put(all, at, all->expiring[(at - 1) / 2]);
	for (int child; (child = 2 * at + 1) < all->n_expiring; at = child) {
		if (child + 1 < all->n_expiring && is_sooner(all->expiring[child + 1], all->expiring[child]))
			child++;
		if (!is_sooner(all->expiring[child], e))
			break;
		put(all, at, all->expiring[child]);
	}
	put(all, at, e);
}

void expiry_remove(sessions *all, session_entry *e)
{
	const int at = e->expiry;
	if (at < 0)
		return;
	session_entry *last = all->expiring[--all->n_expiring];
	e->expiry = -1;
	if (last != e)
		sift(all, at, last);
}

void expiry_set(sessions *all, session_entry *e, int64_t seconds)
{
	expiry_remove(all, e);
	e->expires_ns = seconds >= 0 ? clock_ns() + (uint64_t)seconds * NS_PER_SECOND : 0;
	if (e->expires_ns)
		sift(all, all->n_expiring++, e);
}

session_entry *expiry_due(const sessions *all)
{
	return all->n_expiring > 0 && clock_ns() >= all->expiring[0]->expires_ns ? all->expiring[0] : NULL;
}
