/* snapshots.h - snapshots of sessions, and sessions that leave their slots. */
#ifndef TESTS_UNIT_SERVE_SNAPSHOTS_H
#define TESTS_UNIT_SERVE_SNAPSHOTS_H

#include "tests/unit/serve/fixture.h"

static inline void snapshot(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static inline void rollback(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static inline session *fork_snapshot(fixture *f, session *x, const char *snapshot, const char *id)
{
	session *from, *out;
	assert_int_equal(scheduler_session_snapshot(x, snapshot, &from, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_fork(f->scheduler, from, id, &out, NULL), STATUS_OK);
	return out;
}

/* Compare everything that an export has: options, tokens, state, logits, log and source. */
static inline void assert_same_state(fixture *f, session *a, session *b)
{
	void *blobs[2];
	size_t bytes[2];
	assert_int_equal(scheduler_session_export(f->scheduler, a, &blobs[0], &bytes[0], NULL), STATUS_OK);
	assert_int_equal(scheduler_session_export(f->scheduler, b, &blobs[1], &bytes[1], NULL), STATUS_OK);
	assert_int_equal(bytes[0], bytes[1]);
	assert_memory_equal(blobs[0], blobs[1], bytes[0]);
	free(blobs[0]);
	free(blobs[1]);
}

/* Move x out of its slot. */
static inline session_transfer leave(fixture *f, session *x, session **snapshots)
{
	session_transfer t = {0};
	while (!t.done)
		assert_int_equal(scheduler_session_leave_step(f->scheduler, x, &t, snapshots, NULL), STATUS_OK);
	return t;
}

static inline session *come_back(fixture *f, const char *id, session_transfer *left, session *snapshots)
{
	session *x = NULL;
	session_transfer t = {.blob = left->blob, .bytes = left->bytes, .held = left->held};
	while (!x)
		assert_int_equal(scheduler_session_import_step(f->scheduler, f->model, id, &t, &x, NULL), STATUS_OK);
	scheduler_session_attach(x, snapshots);
	scheduler_transfer_fini(left);
	return x;
}

#endif
