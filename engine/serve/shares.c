#include "engine/serve/shares.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/memory.h"

#define ROUNDING 1e-9 /* quotients times their divisor may be just below a whole number */

static share *following(const owner_shares *s, const share *x)
{
	return STRING_TABLE_OWNER(string_table_next(&s->table, x ? &x->node : NULL), share, node);
}

static void remove_share(owner_shares *s, share *x)
{
	string_table_remove(&s->table, &x->node);
	free(x);
}

/* Remove the share without a generation that has been left the longest, if there are SHARES_IDLE. */
static void limit_idle(owner_shares *s)
{
	share *oldest = NULL;
	int idle = 0;
	for (share *x = following(s, NULL); x; x = following(s, x)) {
		if (x->generations > 0)
			continue;
		idle++;
		oldest = !oldest || x->left_ns < oldest->left_ns ? x : oldest;
	}
	if (idle >= SHARES_IDLE)
		remove_share(s, oldest);
}

static share *add_share(owner_shares *s, const char *owner)
{
	if (s->table.count >= SHARES_IDLE)
		limit_idle(s);
	share *x = memory_new(1, sizeof *x);
	if (!x)
		return NULL;
	snprintf(x->owner, sizeof x->owner, "%s", owner);
	if (string_table_add(&s->table, &x->node, x->owner) == STATUS_OK)
		return x;
	free(x);
	return NULL;
}

share *shares_enter(owner_shares *s, const char *owner, int weight)
{
	char name[SHARES_OWNER_BYTES];
	snprintf(name, sizeof name, "%s", owner ? owner : "");
	share *x = STRING_TABLE_OWNER(string_table_find(&s->table, name), share, node);
	x = x ? x : add_share(s, name);
	if (!x)
		return NULL;
	x->generations++;
	x->weight = weight > 0 ? weight : 1;
	x->served = x->served < s->floor ? s->floor : x->served;
	return x;
}

void share_leave(share *x, uint64_t now_ns)
{
	x->generations--;
	x->left_ns = now_ns;
}

void shares_fini(owner_shares *s)
{
	for (share *x; (x = following(s, NULL));)
		remove_share(s, x);
	string_table_fini(&s->table);
}

bool shares_are_several(const owner_shares *s)
{
	return s->table.count > 1;
}

bool share_reads_oldest(const share *x)
{
	return x->turns % SHARES_OLDEST_EVERY == SHARES_OLDEST_EVERY - 1;
}

void shares_chosen(owner_shares *s, share *x)
{
	x->turns++;
	s->floor = x->served > s->floor ? x->served : s->floor;
}

void share_charge(share *x, int64_t tokens)
{
	x->served += (double)tokens / x->weight;
}

void shares_begin(owner_shares *s, uint64_t now_ns)
{
	const uint64_t kept = (uint64_t)SHARES_KEPT_SECONDS * 1000000000u;
	for (share *x = following(s, NULL), *next; x; x = next) {
		next = following(s, x);
		x->streams = 0;
		if (x->generations == 0 && now_ns - x->left_ns > kept)
			remove_share(s, x);
	}
}

int shares_divide(owner_shares *s, const share *reader, int least, int most)
{
	int owners = 0, weights = 0, lightest = 0, all = 0;
	double rows = most; /* for each unit of weight */
	for (const share *x = following(s, NULL); x; x = following(s, x)) {
		const int streams = x->streams + (x == reader);
		if (streams == 0)
			continue;
		owners++;
		weights += x->weight;
		lightest = owners == 1 || x->weight < lightest ? x->weight : lightest;
		rows = fmin(rows, (double)streams / x->weight);
	}
	if (owners > 1)
		rows = fmax(fmin(rows, (double)most / weights), (double)least / lightest);
	for (share *x = following(s, NULL); x; x = following(s, x)) {
		x->rows = owners > 1 ? (int)(rows * x->weight + ROUNDING) : most;
		all += x->streams < x->rows ? x->streams : x->rows;
	}
	return all;
}

/* Number of rows that an owner's streams take of a divided step. */
static uint64_t share_rows(const share *x)
{
	return (uint64_t)(x->streams < x->rows ? x->streams : x->rows);
}

uint64_t shares_prompt_ns(const owner_shares *s, const share *reader, uint64_t step_ns, uint64_t row_ns, uint64_t most)
{
	uint64_t all = 0;
	for (const share *x = following(s, NULL); x; x = following(s, x))
		all += share_rows(x);
	for (const share *x = following(s, NULL); x; x = following(s, x)) {
		if (x == reader || x->streams == 0 || x->served >= reader->served)
			continue;
		const uint64_t own = step_ns + share_rows(x) * row_ns, others = (all - share_rows(x)) * row_ns;
		const uint64_t may = own * (uint64_t)reader->weight / (uint64_t)x->weight;
		const uint64_t left = may > others ? may - others : 0;
		most = left < most ? left : most;
	}
	return most;
}

bool share_take(share *x)
{
	if (x->rows == 0)
		return false;
	x->rows--;
	share_charge(x, 1);
	return true;
}
