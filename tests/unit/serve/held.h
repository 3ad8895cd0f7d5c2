/* held.h - a GPT-2 with places for 1024 tokens, and checks of what its held states share. */
#ifndef TESTS_UNIT_SERVE_HELD_H
#define TESTS_UNIT_SERVE_HELD_H

#include "tests/unit/serve/fixture.h"

#include "engine/serve/session.h"

enum { PLACES = 1024, LONG = 2 * PLACES };

static int32_t ids[LONG];
static atomic_llong snapshot_used;

static inline int setup_gpt2(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	scheduler_limits limits = roomy;
	limits.snapshot_used = &snapshot_used;
	limits.prefix_bytes = 64 << 20;
	fixture_folder(f);
	write_configured(f->folder, f->backend, "gpt2",
	                 "{\"n_embd\": 16, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 1024, \"n_layer\": 2, "
	                 "\"initializer_range\": 0.3}");
	fixture_serve(f, &limits);
	random_tokens(ids, LONG, 90);
	*state = f;
	return 0;
}

static inline held_stats blocks_now(void)
{
	held_stats s;
	held_state_read_stats(&s);
	return s;
}

static inline int teardown_gpt2(void **state)
{
	assert_int_equal(teardown(state), 0);
	assert_int_equal(blocks_now().bytes, 0);
	assert_int_equal(blocks_now().shared, 0);
	assert_int_equal(atomic_load(&snapshot_used), 0);
	return 0;
}

/* Bytes of the keys and values of n tokens: two layers with 16 of each and the head's one number. */
static inline int64_t cached(int64_t n)
{
	return n * 2 * (16 + 16 + 1) * (int64_t)sizeof(float);
}

static const int64_t block = 256 * 2 * (16 + 16 + 1) * (int64_t)sizeof(float);

/* Bytes of a snapshot after n tokens besides its blocks: logits, tokens, and the tokens after the last block. */
static inline int64_t own(int64_t n)
{
	return VOCAB * (int64_t)sizeof(float) + n * (int64_t)sizeof(int32_t) + cached(n % HELD_BLOCK);
}

/* scheduler_session_snapshot_step or scheduler_session_rollback_step. */
typedef status snapshot_step(scheduler *s, session *x, const char *id, size_t *moved, bool *done, error *err);

static inline status all_steps(snapshot_step *step, fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	status s = STATUS_OK;
	for (bool done = false; !done && s == STATUS_OK;)
		s = step(f->scheduler, x, id, &moved, &done, NULL);
	return s;
}

static inline status try_snapshot(fixture *f, session *x, const char *id)
{
	return all_steps(scheduler_session_snapshot_step, f, x, id);
}

static inline void snapshot(fixture *f, session *x, const char *id)
{
	assert_int_equal(try_snapshot(f, x, id), STATUS_OK);
}

static inline status try_rollback(fixture *f, session *x, const char *id)
{
	return all_steps(scheduler_session_rollback_step, f, x, id);
}

static inline void rollback(fixture *f, session *x, const char *id)
{
	assert_int_equal(try_rollback(f, x, id), STATUS_OK);
}

static inline void assert_blocks(int64_t held, int64_t shared)
{
	assert_int_equal(blocks_now().bytes, held * block);
	assert_int_equal(blocks_now().shared, shared * block);
}

/* Compare everything that an export has. */
static inline void assert_same(fixture *f, session *a, session *b)
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

typedef struct part {
	int64_t from, n;
} part;

/* Check x against a session that has read these parts of `ids` and nothing else. */
static inline void assert_reads(fixture *f, session *x, part a, part b, part c)
{
	session *y = open_session(f, "alone", x->options.policy, false);
	const part all[] = {a, b, c};
	for (int i = 0; i < 3; i++)
		if (all[i].n)
			append(f, y, ids + all[i].from, all[i].n);
	assert_same(f, x, y);
	drop(f, y);
}

#endif
