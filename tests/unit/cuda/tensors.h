/* tensors.h - copy numbers to a device and back, for tests of single ops; and the allowed error of results in bf16.
 * Include after cmocka.h. Failures of memory and copies fail the test. */
#ifndef TESTS_UNIT_CUDA_TENSORS_H
#define TESTS_UNIT_CUDA_TENSORS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/backend.h"
#include "engine/tensor/panel.h"
#include "tests/unit/support/random.h"

static inline void *tensors_room(size_t bytes)
{
	void *data = malloc(bytes ? bytes : 1);
	assert_non_null(data);
	return data;
}

static inline void *tensors_put(backend *b, const void *content, size_t bytes)
{
	void *data;
	assert_int_equal(b->allocate(b, bytes, &data), STATUS_OK);
	if (content)
		assert_int_equal(b->upload(b, data, content, bytes), STATUS_OK);
	return data;
}

/* Normal numbers of the type. */
static inline tensor tensors_normal(backend *b, dtype type, shape s, uint64_t seed)
{
	int64_t count = shape_count(s);
	float *x = tensors_room((size_t)count * sizeof *x);
	uint16_t *half = tensors_room((size_t)count * sizeof *half);
	random_normal(x, count, seed, 1);
	for (int64_t i = 0; i < count; i++)
		half[i] = panel_bf16(x[i]);
	tensor t = {tensors_put(b, type == DTYPE_BF16 ? (void *)half : (void *)x, (size_t)count * dtype_bytes(type)),
	            type, s};
	free(x);
	free(half);
	return t;
}

static inline tensor tensors_integers(backend *b, shape s, uint64_t seed, int32_t low, int32_t high)
{
	int64_t count = shape_count(s);
	int32_t *x = tensors_room((size_t)count * sizeof *x);
	random_integers(x, count, seed, low, high);
	tensor t = {tensors_put(b, x, (size_t)count * sizeof *x), DTYPE_I32, s};
	free(x);
	return t;
}

static inline tensor tensors_empty(backend *b, dtype type, shape s)
{
	return (tensor){tensors_put(b, NULL, (size_t)shape_count(s) * dtype_bytes(type)), type, s};
}

static inline float *tensors_get(backend *b, tensor t)
{
	int64_t count = shape_count(t.shape);
	float *x = tensors_room((size_t)count * sizeof *x);
	assert_int_equal(b->download(b, x, t.data, (size_t)count * dtype_bytes(t.type)), STATUS_OK);
	for (int64_t i = t.type == DTYPE_BF16 ? count - 1 : -1; i >= 0; i--) {
		uint16_t half;
		memcpy(&half, (char *)x + 2 * i, sizeof half);
		x[i] = panel_f32(half);
	}
	return x;
}

static inline void tensors_run(backend *b, op_id id, op_call *call)
{
	size_t bytes = b->scratch[id] ? b->scratch[id](b, call) : 0;
	call->scratch = tensors_put(b, NULL, bytes);
	assert_int_equal(b->kernel[id](b, call), STATUS_OK);
	assert_int_equal(b->synchronize(b), STATUS_OK);
	b->release(b, call->scratch);
}

/* --- how exact bf16 is ------------------------------------------------------------------- */

typedef struct distance {
	double rms;   /* error relative to the wanted result */
	double worst; /* largest error, relative to the wanted number plus the result's root mean square */
} distance;

static inline distance tensors_distance(const float *got, const float *want, int64_t count)
{
	double squares = 0, size = 0, worst = 0;
	for (int64_t i = 0; i < count; i++)
		size += (double)want[i] * (double)want[i];
	for (int64_t i = 0; i < count; i++) {
		double e = fabs((double)got[i] - (double)want[i]);
		double share = e / (sqrt(size / (double)count) + fabs((double)want[i]));
		squares += e * e;
		if (!(share <= worst))
			worst = share; /* NaN too */
	}
	return (distance){sqrt(squares / size), worst};
}

/* For results whose operands were rounded to bf16. The root mean square of the error is at most 0.004 of that of the
 * result; rounding only the result makes it 0.0017. No single error is much larger. */
static inline bool tensors_near(const char *what, const char *text, const float *got, const float *want, int64_t count)
{
	distance d = tensors_distance(got, want, count);
	if (d.rms <= 0.004 && d.worst <= 0.04)
		return true;
	printf("%s (%s): error %.5f, at worst %.5f\n", what, text, d.rms, d.worst);
	return false;
}

#endif
