/* adapters.h - adapters of a fixture's model, and sessions with them. */
#ifndef TESTS_UNIT_SERVE_ADAPTERS_H
#define TESTS_UNIT_SERVE_ADAPTERS_H

#include "tests/unit/serve/fixture.h"

#include <math.h>

#include "engine/model/adapter.h"
#include "engine/model/lora.h"
#include "engine/serve/served_adapter.h"

/* A served model and adapters of it. */
typedef struct rig {
	fixture f;
	served_adapter *adapters[LORA_ENTRIES];
	int count;
} rig;

static inline void rig_close(rig *r)
{
	for (int i = 0; i < r->count; i++)
		served_adapter_free(r->adapters[i]);
	fixture_close(&r->f);
}

/* Write a low-rank adapter with random matrices to the model's folder. */
static inline void write_lora(const fixture *f, const lora_options *o, uint64_t seed)
{
	model *base, *a;
	assert_int_equal(model_open(&base, f->folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	assert_int_equal(model_new_lora(&a, base, o, 3, NULL), STATUS_OK);
	stir(a, seed);
	assert_int_equal(model_save(a, f->folder, NULL), STATUS_OK);
	model_free(a);
	model_free(base);
}

/* adapter: may be NULL. */
static inline session *open_with(const fixture *f, const char *id, served_adapter *adapter)
{
	session *x;
	const session_options o = {.policy = POSITION_ERROR, .adapter = adapter};
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, id, &o, &x, NULL), STATUS_OK);
	return x;
}

enum { PROMPT = 40, NEW_TOKENS = 12 };

/* Write the logits after the prompt, of the parallel form of a model or of an adapter. */
static inline void parallel_logits(const model *m, const int32_t *ids, float *logits)
{
	const forward_spec spec = {.batch = 1, .length = PROMPT, .out.logits = LOGITS_LAST};
	plan *p;
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LAST, &(int32_t){PROMPT - 1}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits), STATUS_OK);
	plan_free(p);
}

/* Fail unless sessions with an adapter predict as the adapter's parallel form and not as its base, in all pieces. */
static inline void assert_sessions_read_as(fixture *f, served_adapter *served, const model *adapter, const model *base)
{
	static const int64_t pieces[] = {PROMPT, 1, 9};
	int32_t ids[PROMPT];
	float want[VOCAB], plain[VOCAB];
	random_tokens(ids, PROMPT, 3);
	parallel_logits(base, ids, plain);
	parallel_logits(adapter, ids, want);
	session *whole = open_with(f, "whole", served);
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		session *x = i ? open_with(f, "x", served) : whole;
		for (int64_t at = 0; at < PROMPT; at += pieces[i])
			append(f, x, ids + at, at + pieces[i] < PROMPT ? pieces[i] : PROMPT - at);
		assert_same_logits(x, whole);
		if (i)
			drop(f, x);
	}
	double off = 0, apart = 0;
	for (int i = 0; i < VOCAB; i++) {
		off = fmax(off, fabs((double)whole->logits[i] - (double)want[i]));
		apart = fmax(apart, fabs((double)plain[i] - (double)want[i]));
	}
	assert_true(off < 1e-3 && apart > 0.1);
}

#endif
