#include "engine/rank/device_sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

enum { GROUP_SECONDS = 60 }; /* time for all ranks to join */

/* One rank's message to all others. */
typedef struct word {
	char backend[16];
	backend_site site;
	unsigned char group[BACKEND_GROUP_BYTES]; /* for rank 0 */
	char reason[256];                         /* why this rank cannot join; "": it can */
	bool late;                                /* because others did not join */
} word;

static void device_sums_explain(word *w, status s, error *err)
{
	if (s != STATUS_OK)
		snprintf(w->reason, sizeof w->reason, "%.250s", error_message(err));
}

static void introduce(word *w, const ranks *r, backend *b)
{
	error err = ERROR_INIT;
	snprintf(w->backend, sizeof w->backend, "%s", b->name);
	if (!b->collective_find) {
		snprintf(w->reason, sizeof w->reason, "it computes on the %s backend", b->name);
		return;
	}
	status s = b->collective_find(b, &w->site, &err);
	if (s == STATUS_OK && r->rank == 0)
		s = b->collective_id(b, w->group, &err);
	device_sums_explain(w, error_settle(&err, s), &err);
}

/* Describe why the first rank cannot join; prefer one that did not merely wait for another. */
static bool object(const word *all, int count, char *how)
{
	int at = -1;
	for (int i = count - 1; i >= 0; i--)
		if (all[i].reason[0] && (at < 0 || all[at].late || !all[i].late))
			at = i;
	if (at >= 0)
		snprintf(how, DEVICE_SUMS_BYTES, "summed through the host: rank %d: %s", at, all[at].reason);
	return at >= 0;
}

/* Detect differences that NCCL would refuse or not notice. */
static bool differ(const word *all, int count, char *how)
{
	for (int i = 1; i < count; i++) {
		if (strcmp(all[i].site.summed_by, all[0].site.summed_by) != 0) {
			snprintf(how, DEVICE_SUMS_BYTES, "summed through the host: rank 0 has %s and rank %d %s",
			         all[0].site.summed_by, i, all[i].site.summed_by);
			return true;
		}
		for (int j = 0; j < i; j++)
			if (memcmp(all[i].site.device, all[j].site.device, sizeof all[i].site.device) == 0) {
				snprintf(how, DEVICE_SUMS_BYTES,
				         "summed through the host: ranks %d and %d share a device", j, i);
				return true;
			}
	}
	return false;
}

static status device_sums_join(ranks *r, backend *b, word *all, char *how, error *err)
{
	word own = {0};
	error reason = ERROR_INIT;
	introduce(&own, r, b);
	TRY(mpi_ranks_gather(r, &own, sizeof own, all, err));
	for (int i = 1; i < r->count; i++)
		if (strcmp(all[i].backend, all[0].backend) != 0)
			return error_set(
			    err, STATUS_CONFLICT, NULL,
			    "rank 0 computes on the %s backend and rank %d on %s: their weights would not stay equal",
			    all[0].backend, i, all[i].backend);
	if (object(all, r->count, how) || differ(all, r->count, how))
		return STATUS_OK;
	const uint64_t began = clock_ns();
	status s = b->collective_open(b, all[0].group, r->rank, r->count, GROUP_SECONDS, &reason);
	own.late = clock_ns() - began >= GROUP_SECONDS * (uint64_t)1000000000;
	device_sums_explain(&own, error_settle(&reason, s), &reason);
	s = mpi_ranks_gather(r, &own, sizeof own, all, err);
	r->devices = s == STATUS_OK && !object(all, r->count, how);
	if (r->devices)
		snprintf(how, DEVICE_SUMS_BYTES, "summed by %s", all[0].site.summed_by);
	else
		b->collective_close(b, true);
	return s;
}

status device_sums_open(ranks *r, backend *b, char *how, error *err)
{
	how[0] = 0;
	if (r->count == 1)
		return STATUS_OK;
	word *all = memory_new((size_t)r->count, sizeof *all);
	if (!all)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	status s = device_sums_join(r, b, all, how, err);
	free(all);
	return s;
}

/* A rank whose sum is incomplete may read the memory of one that leaves, so all ranks wait. */
void device_sums_close(ranks *r, backend *b, bool cut_short)
{
	if (!r->devices)
		return;
	r->devices = false;
	const bool together = !cut_short && mpi_ranks_wait(r, NULL) == STATUS_OK;
	b->collective_close(b, !together);
}
