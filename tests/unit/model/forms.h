/* forms.h - logits of a language model: of complete sequences, and in chunks through its states. Include after the
 * sizes B (sequences), N (tokens), V (vocabulary) and SLOTS. */
#ifndef TESTS_UNIT_MODEL_FORMS_H
#define TESTS_UNIT_MODEL_FORMS_H

#include <math.h>

#include "engine/model/feed.h"
#include "tests/unit/model/device.h"

static inline void random_ids(int32_t *ids, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		ids[i] = (int32_t)((uint64_t)(i + 1) * 7919 * (seed + 3) % V);
}

static inline float distance(const float *a, const float *b, int64_t n)
{
	float most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmaxf(most, fabsf(a[i] - b[i]));
	return most;
}

static inline void parallel_logits(const model *m, const int32_t *ids, float *logits)
{
	const forward_spec spec = {.batch = B, .length = N, .out.logits = LOGITS_ALL};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
}

/* Only full chunks are read. */
static inline void stepped_logits(const model *m, const int32_t *ids, int64_t chunk, float *logits)
{
	const forward_spec spec = {
	    .phase = PHASE_STEP, .batch = B, .length = chunk, .slots = SLOTS, .out.logits = LOGITS_ALL};
	float *pool, some[B * N * V];
	int32_t part[B * N];
	size_t bytes = (size_t)(SLOTS * model_state_floats(m)) * sizeof *pool;
	assert_int_equal(device->allocate(device, bytes, (void **)&pool), STATUS_OK);
	memset(pool, 0xff, bytes); /* position 0 must not depend on the slot's earlier content: NaN here */
	plan *p = fixture_plan(m, &spec, NULL, pool);
	for (int64_t at = 0; at + chunk <= N; at += chunk) {
		for (int64_t b = 0; b < B; b++)
			memcpy(part + b * chunk, ids + b * N + at, (size_t)chunk * sizeof *part);
		assert_int_equal(feed_write(p, PORT_TOKENS, part), STATUS_OK);
		assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, at), STATUS_OK);
		assert_int_equal(feed_step(p, at, chunk), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", some);
		for (int64_t b = 0; b < B; b++)
			memcpy(logits + (b * N + at) * V, some + b * chunk * V, (size_t)(chunk * V) * sizeof *some);
	}
	plan_free(p);
	device->release(device, pool);
}

#endif
