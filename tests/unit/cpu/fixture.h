/* fixture.h - run one op on one backend, with poisoned and guarded results. */
#ifndef TESTS_UNIT_CPU_FIXTURE_H
#define TESTS_UNIT_CPU_FIXTURE_H

#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

static inline backend *fixture_open(int threads)
{
	backend *b;
	assert_int_equal(cpu_open(&b, threads, NULL), STATUS_OK);
	return b;
}

/* A tensor with a guarded buffer of its own: free data with buffer_free. */
static inline tensor fixture_tensor(dtype type, shape s)
{
	return (tensor){buffer_new((size_t)shape_count(s) * dtype_bytes(type)), type, s};
}

static inline tensor fixture_normal(shape s, uint64_t seed, double std)
{
	tensor t = fixture_tensor(DTYPE_F32, s);
	random_normal(t.data, shape_count(s), seed, std);
	return t;
}

static inline tensor fixture_integers(shape s, uint64_t seed, int32_t low, int32_t high)
{
	tensor t = fixture_tensor(DTYPE_I32, s);
	random_integers(t.data, shape_count(s), seed, low, high);
	return t;
}

/* Check, run on `threads` of the backend's threads (0: all) with scratch for all of them, and check the guards.
 * Allocates the outputs. */
static inline void fixture_narrow(backend *b, int threads, op_id id, op_call *call)
{
	error err = ERROR_INIT;
	call->n_out = op_get(id)->n_out;
	if (op_get(id)->check(call, &err) != STATUS_OK)
		fail_msg("%s: %s", op_get(id)->name, error_message(&err));
	for (int i = 0; i < call->n_out; i++)
		call->out[i] = fixture_tensor(call->out[i].type, call->out[i].shape);
	void *scratch = buffer_new(b->scratch[id] ? b->scratch[id](b, call) : 0);
	call->scratch = scratch;
	if (threads)
		b->use_threads(b, threads);
	assert_int_equal(b->kernel[id](b, call), STATUS_OK);
	if (threads)
		b->use_threads(b, b->threads);
	assert_true(buffer_intact(scratch));
	buffer_free(scratch);
	for (int i = 0; i < call->n_out; i++)
		assert_true(buffer_intact(call->out[i].data));
	for (int i = 0; i < call->n_in; i++)
		assert_true(!call->in[i].data || buffer_intact(call->in[i].data));
}

static inline void fixture_run(backend *b, op_id id, op_call *call)
{
	fixture_narrow(b, 0, id, call);
}

static inline void fixture_free_outputs(op_call *call)
{
	for (int i = 0; i < call->n_out; i++) {
		buffer_free(call->out[i].data);
		call->out[i].data = NULL;
	}
}

static inline void fixture_free(op_call *call)
{
	fixture_free_outputs(call);
	for (int i = 0; i < call->n_in; i++)
		buffer_free(call->in[i].data);
}

#endif
