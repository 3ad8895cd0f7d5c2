/* call.h - run one op on a device with tensors of the host, which are copied to the device and back. Include after
 * cmocka.h.
 *
 * Tensors own a guarded buffer (buffer.h). Results and scratch are poisoned first. */
#ifndef TESTS_UNIT_CUDA_CALL_H
#define TESTS_UNIT_CUDA_CALL_H

#include <string.h>

#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/random.h"

static inline size_t call_bytes(const tensor *t)
{
	size_t bytes;
	assert_true(shape_bytes(t->shape, t->type, &bytes));
	return bytes;
}

static inline tensor call_tensor(dtype type, shape s)
{
	tensor t = {NULL, type, s};
	t.data = buffer_new(call_bytes(&t));
	return t;
}

static inline tensor call_normal(shape s, uint64_t seed, double std)
{
	tensor t = call_tensor(DTYPE_F32, s);
	random_normal(t.data, shape_count(s), seed, std);
	return t;
}

static inline tensor call_integers(shape s, const int32_t *values)
{
	tensor t = call_tensor(DTYPE_I32, s);
	memcpy(t.data, values, (size_t)shape_count(s) * sizeof *values);
	return t;
}

static inline void *call_up(backend *b, const void *host, size_t bytes)
{
	void *device;
	assert_int_equal(b->allocate(b, bytes, &device), STATUS_OK);
	assert_int_equal(b->upload(b, device, host, bytes), STATUS_OK);
	return device;
}

/* Check and run. Outputs are allocated here; those whose bit in `requested` is not set are NULL. Inputs that the op
 * updates are updated. */
static inline void call_run_requested(backend *b, op_id id, op_call *call, unsigned requested)
{
	error err = ERROR_INIT;
	const op *o = op_get(id);
	call->n_out = o->n_out;
	if (o->check(call, &err) != STATUS_OK)
		fail_msg("%s: %s", o->name, error_message(&err));
	op_call remote = *call;
	for (int i = 0; i < call->n_in; i++)
		if (call->in[i].data)
			remote.in[i].data = call_up(b, call->in[i].data, call_bytes(&call->in[i]));
	for (int i = 0; i < call->n_out; i++) {
		call->out[i].data = remote.out[i].data = NULL;
		if (!(requested >> i & 1))
			continue;
		call->out[i] = call_tensor(call->out[i].type, call->out[i].shape);
		remote.out[i].data = call_up(b, call->out[i].data, call_bytes(&call->out[i]));
	}
	const size_t bytes = b->scratch[id] ? b->scratch[id](b, &remote) : 0;
	void *poison = buffer_new(bytes);
	remote.scratch = call_up(b, poison, bytes);
	assert_int_equal(b->kernel[id](b, &remote), STATUS_OK);
	for (int i = 0; i < call->n_in; i++)
		if (call->in[i].data && o->mutates >> i & 1)
			assert_int_equal(b->download(b, call->in[i].data, remote.in[i].data, call_bytes(&call->in[i])),
			                 STATUS_OK);
	for (int i = 0; i < call->n_out; i++)
		if (call->out[i].data)
			assert_int_equal(
			    b->download(b, call->out[i].data, remote.out[i].data, call_bytes(&call->out[i])),
			    STATUS_OK);
	for (int i = 0; i < call->n_in; i++)
		b->release(b, remote.in[i].data);
	for (int i = 0; i < call->n_out; i++)
		b->release(b, remote.out[i].data);
	b->release(b, remote.scratch);
	buffer_free(poison);
}

static inline void call_run(backend *b, op_id id, op_call *call)
{
	call_run_requested(b, id, call, ~0u);
}

static inline void call_free_outputs(op_call *call)
{
	for (int i = 0; i < call->n_out; i++) {
		buffer_free(call->out[i].data);
		call->out[i].data = NULL;
	}
}

static inline void call_free(op_call *call)
{
	call_free_outputs(call);
	for (int i = 0; i < call->n_in; i++)
		buffer_free(call->in[i].data);
}

#endif
