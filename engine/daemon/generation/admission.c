/* admission.c - a request that fits costs one look-up of its owner. Everything else is computed from the list of
 * requests if one does not fit. */
#include "engine/daemon/generation/admission.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/string_table.h"

enum {
	FIRST_PACE_MS = 5, /* per token of a choice, until a request has ended */
	PACE_REQUESTS = 8, /* the mean pace averages about this many requests */
	PACE_TOKENS = 16   /* number of tokens at which a request's own pace weighs as much as the mean pace */
};

struct admission_owner {
	string_node node;
	int slots; /* including evicted requests that have not ended */
	int requests;
	char name[];
};

struct admission {
	int slots;
	int used, evicted; /* slots of running requests; of requests being cancelled */
	int background;    /* slots in the background */
	admitted *first;
	string_table owners;
	double pace_ms; /* milliseconds per token of a choice, mean of the latest requests */
	struct {
		uint64_t second;
		int slots;
	} promised[ADMISSION_MAX_RETRY + 1]; /* slots of refused requests, by the second in which they will return,
	                                      * modulo the length */
};

status admission_new(admission **out, int slots)
{
	admission *a = *out = memory_new(1, sizeof *a);
	if (!a)
		return STATUS_NOMEM;
	a->slots = slots;
	a->pace_ms = FIRST_PACE_MS;
	return STATUS_OK;
}

void admission_free(admission *a)
{
	if (!a)
		return;
	assert(!a->first && a->used == 0 && a->background == 0);
	string_table_fini(&a->owners);
	free(a);
}

int admission_limit(int slots)
{
	return 3 * slots; /* running, evicted or within a share, in the background */
}

/* --- owners ------------------------------------------------------------------ */

static admission_owner *find_owner(const admission *a, const char *name)
{
	return STRING_TABLE_OWNER(string_table_find(&a->owners, name), admission_owner, node);
}

static admission_owner *add_owner(admission *a, const char *name)
{
	size_t bytes = strlen(name) + 1;
	admission_owner *o = memory_new(1, sizeof *o + bytes);
	if (!o)
		return NULL;
	memcpy(o->name, name, bytes);
	if (string_table_add(&a->owners, &o->node, o->name) == STATUS_OK)
		return o;
	free(o);
	return NULL;
}

static void hold(admission *a, admitted *x, admission_owner *o)
{
	x->owner = o;
	o->requests++;
	o->slots += x->slots;
	a->used += x->slots;
	x->previous = NULL;
	x->next = a->first;
	if (x->next)
		x->next->previous = x;
	a->first = x;
}

/* --- eviction ------------------------------------------------------------------ */

static bool may_be_evicted(const admitted *x, const admission_owner *asking, int share, uint64_t now_ms)
{
	return x->stalled && !x->evicted && now_ms - x->stalled_ms >= ADMISSION_STALL_MS &&
	       (x->owner == asking || x->owner->slots > share);
}

static admitted *next_victim(const admission *a, const admission_owner *asking, int share, uint64_t now_ms)
{
	admitted *found = NULL;
	for (admitted *x = a->first; x; x = x->next) {
		if (!may_be_evicted(x, asking, share, now_ms))
			continue;
		if (!found || x->owner->slots > found->owner->slots ||
		    (x->owner == found->owner && x->stalled_ms < found->stalled_ms))
			found = x;
	}
	return found;
}

/* Maximum slots that can be evicted now. An owner that loses a request may then be within its share. */
static int evictable_slots(const admission *a, const admission_owner *asking, int share, uint64_t now_ms)
{
	int slots = 0;
	for (const admitted *x = a->first; x; x = x->next)
		slots += may_be_evicted(x, asking, share, now_ms) ? x->slots : 0;
	return slots;
}

/* --- time to try again ------------------------------------------------------------ */

static double remaining_ms(const admission *a, const admitted *x, uint64_t now_ms)
{
	double tokens = (double)x->tokens / x->slots, most = (double)x->most_tokens / x->slots;
	double elapsed = x->tokens > 0 ? (double)(now_ms - x->first_ms) : 0;
	double pace = (elapsed + PACE_TOKENS * a->pace_ms) / (tokens + PACE_TOKENS);
	if (x->evicted)
		return 0;
	return x->stalled ? ADMISSION_STALL_MS : pace * (most - tokens);
}

static int promised_slots(const admission *a, uint64_t second)
{
	int slots = 0;
	for (int i = 0; i <= ADMISSION_MAX_RETRY; i++)
		slots += a->promised[i].second > second ? a->promised[i].slots : 0;
	return slots < a->slots ? slots : a->slots;
}

static int retry_after(admission *a, int slots, uint64_t now_ms)
{
	int freed[ADMISSION_MAX_RETRY + 1] = {0}; /* slots by the second of their expected end */
	uint64_t second = now_ms / 1000;
	double round = 0; /* mean duration of running requests, in seconds */
	for (const admitted *x = a->first; x; x = x->next) {
		double s = remaining_ms(a, x, now_ms) / 1000;
		freed[s < ADMISSION_MAX_RETRY ? (int)s : ADMISSION_MAX_RETRY] += x->slots;
		round += (s + (double)(now_ms - x->started_ms) / 1000) * x->slots / (a->used + a->evicted);
	}
	int64_t all = a->used + a->evicted, needed = all + slots - a->slots + promised_slots(a, second);
	double after = 0;
	for (; needed > all; needed -= all) /* a whole round of requests later */
		after += round;
	for (int i = 0; i < ADMISSION_MAX_RETRY && (needed -= freed[i]) > 0; i++)
		after++;
	after += after / 4 + 1; /* a client that returns too early loses one of few attempts */
	int seconds = after < ADMISSION_MAX_RETRY ? (int)after : ADMISSION_MAX_RETRY;
	int at = (int)((second + (uint64_t)seconds) % (ADMISSION_MAX_RETRY + 1));
	if (a->promised[at].second != second + (uint64_t)seconds) {
		a->promised[at].second = second + (uint64_t)seconds;
		a->promised[at].slots = 0;
	}
	a->promised[at].slots += slots;
	return seconds;
}

/* --- in and out ------------------------------------------------------------------- */

static bool admission_fits(admission *a, const admission_owner *o, int slots, uint64_t now_ms)
{
	if (a->used + slots > a->slots) {
		int owners = (int)a->owners.count + !o, share = a->slots / owners;
		bool within = (o ? o->slots : 0) + slots <= share;
		if (!within && a->used - evictable_slots(a, o, share, now_ms) + slots > a->slots)
			return false;
		/* Evict until `slots` more fit or nothing can be evicted. */
		admitted *x;
		while (a->used + slots > a->slots && (x = next_victim(a, o, share, now_ms)) != NULL) {
			x->evicted = true;
			x->owner->slots -= x->slots;
			a->used -= x->slots;
			a->evicted += x->slots;
			x->evict(x);
		}
		if (!within && a->used + slots > a->slots)
			return false;
	}
	return a->used + a->evicted + slots <= 2 * a->slots;
}

static status enter_background(admission *a, admitted *x, error *err)
{
	if (a->background + x->slots > a->slots) {
		x->slots = 0;
		return error_set(err, STATUS_BUSY, NULL, "%d of %d generations in the background are running",
		                 a->background, a->slots);
	}
	a->background += x->slots;
	return STATUS_OK;
}

status admission_enter(admission *a, admitted *x, const char *owner, uint64_t now_ms, int *retry, error *err)
{
	admission_owner *o = find_owner(a, owner);
	*retry = 0;
	if (x->background)
		return enter_background(a, x, err);
	if (!admission_fits(a, o, x->slots, now_ms)) {
		*retry = retry_after(a, x->slots, now_ms);
		return error_set(err, STATUS_BUSY, NULL,
		                 "%d of %d generations are running or waiting (each prompt and each of its n samples "
		                 "is one) and this request is for %d; try again in %d s",
		                 a->used, a->slots, x->slots, *retry);
	}
	if (!o)
		o = add_owner(a, owner);
	if (!o)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	x->started_ms = now_ms;
	hold(a, x, o);
	return STATUS_OK;
}

void admission_leave(admission *a, admitted *x, uint64_t now_ms)
{
	admission_owner *o = x->owner;
	if (x->background) {
		a->background -= x->slots;
		x->slots = 0;
	}
	if (!o)
		return;
	*(x->evicted ? &a->evicted : &a->used) -= x->slots;
	if (!x->evicted) {
		o->slots -= x->slots;
		if (x->tokens > 0)
			a->pace_ms += ((double)(now_ms - x->first_ms) * x->slots / (double)x->tokens - a->pace_ms) /
			              PACE_REQUESTS;
	}
	*(x->previous ? &x->previous->next : &a->first) = x->next;
	if (x->next)
		x->next->previous = x->previous;
	x->owner = NULL;
	if (--o->requests > 0)
		return;
	string_table_remove(&a->owners, &o->node);
	free(o);
}
