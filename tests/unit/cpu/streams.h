/* streams.h - shared by the tests of recurrent softmax attention and of attention to a source: the compared backends,
 * and the definition of attention in double. Include after cmocka.h. */
#ifndef TESTS_UNIT_CPU_STREAMS_H
#define TESTS_UNIT_CPU_STREAMS_H

#include <math.h>

#include "tests/unit/cpu/fixture.h"
#include "tests/unit/support/softmax_layer.h"

static backend *reference, *fast;

static inline int open_backends(void **state)
{
	(void)state;
	if (cpu_reference_open(&reference, 0, NULL) != STATUS_OK)
		return 1;
	fast = fixture_open(2);
	return 0;
}

static inline int close_backends(void **state)
{
	(void)state;
	backend_close(reference);
	backend_close(fast);
	return 0;
}

/* Σ_j e^{s_j} v_j / Σ_j e^{s_j} of `n` scores, -inf where hidden. */
static inline void pooled(const double *score, const float *const *v, int64_t n, int64_t width, double *y)
{
	double top = -INFINITY, total = 0;
	memset(y, 0, (size_t)width * sizeof *y);
	for (int64_t j = 0; j < n; j++)
		top = fmax(top, score[j]);
	for (int64_t j = 0; j < n && top > -INFINITY; j++) {
		const double p = exp(score[j] - top);
		total += p;
		for (int64_t d = 0; d < width; d++)
			y[d] += p * (double)v[j][d];
	}
	for (int64_t d = 0; d < width && total > 0; d++)
		y[d] /= total;
}

static inline double dot(const float *a, const float *b, int64_t n)
{
	double sum = 0;
	for (int64_t d = 0; d < n; d++)
		sum += (double)a[d] * (double)b[d];
	return sum;
}

/* The argument that a check refuses in a call with these arguments; "" if it accepts. */
static inline const char *refused(op_id id, const void *params, int n, const tensor *in)
{
	static error err;
	op_call call = {.params = params, .n_in = n};
	err = (error)ERROR_INIT;
	for (int i = 0; i < n; i++) {
		call.in[i] = in[i];
		call.in[i].data = in[i].shape.rank ? &err : NULL; /* a check reads no data */
	}
	return op_get(id)->check(&call, &err) == STATUS_OK ? "" : err.param;
}

#define FLOATS(...)                                                                                                    \
	{                                                                                                              \
		NULL, DTYPE_F32, __VA_ARGS__                                                                           \
	}
#define INTEGERS(...)                                                                                                  \
	{                                                                                                              \
		NULL, DTYPE_I32, __VA_ARGS__                                                                           \
	}

/* Read the text in the same pieces of random lengths on both layers. */
static inline void read_both(layer *a, text *x, layer *b, text *y, uint64_t seed)
{
	while (x->read < x->n) {
		const int64_t left = x->n - x->read;
		int64_t n = random_next(&seed, 0, 2) ? random_next(&seed, 1, 5) : random_next(&seed, 5, 90);
		n = n < left ? n : left;
		read_one(a, x, n);
		read_one(b, y, n);
	}
}

/* Check a backend with the kernels of each instruction set. */
static inline void on_every_isa(void (*check)(backend *b))
{
	static const char *const isas[] = {"baseline", "avx2", "avx512"};
	for (int i = 0; i < 3; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i], 1);
		backend *b = fixture_open(2);
		unsetenv("ADDITIVE_CPU_ISA");
		check(b);
		backend_close(b);
	}
}

#endif
