/* streams.h - what tests of the recurrent form of softmax attention and of attention to a source share: a layer's
 * sizes, a sequence's numbers, and what attention is by its definition in double. Include after cmocka.h. */
#ifndef TESTS_UNIT_CPU_STREAMS_H
#define TESTS_UNIT_CPU_STREAMS_H

#include <math.h>
#include <stdlib.h>

#include "tests/unit/cpu/fixture.h"

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

enum { MARGIN = 4, MOST = 4 };

/* What a layer is; `together`: q, k and v are one tensor. */
typedef struct kind {
	int64_t heads, kv_heads, key, value, window, past, memories;
	bool biased, masked, together;
} kind;

static inline int64_t key_width(const kind *k)
{
	return k->kv_heads * k->key;
}

static inline int64_t value_width(const kind *k)
{
	return k->kv_heads * k->value;
}

/* One sequence: its tokens, what was answered, and how many it has read. */
typedef struct text {
	int64_t n, read;
	float *q, *k, *v, *y;
	int32_t *mask;
} text;

static inline float *numbers(int64_t count, uint64_t seed)
{
	float *x = malloc((size_t)(count + 1) * sizeof *x);
	assert_non_null(x);
	random_normal(x, count, seed, 1);
	return x;
}

static inline text text_new(const kind *k, int64_t n, uint64_t seed)
{
	text t = {.n = n};
	t.q = numbers(n * k->heads * k->key, seed);
	t.k = numbers(n * key_width(k), seed + 1);
	t.v = numbers(n * value_width(k), seed + 2);
	t.y = numbers(n * k->heads * k->value, seed + 3);
	t.mask = malloc((size_t)(n + 1) * sizeof *t.mask);
	assert_non_null(t.mask);
	random_integers(t.mask, n, seed + 4, 0, 2);
	for (int64_t i = 0; i < n; i++) /* some queries see no token */
		t.mask[i] = !k->masked || (t.mask[i] && i % 50 > 12);
	return t;
}

static inline void text_free(text *t)
{
	free(t->q);
	free(t->k);
	free(t->v);
	free(t->y);
	free(t->mask);
}

static inline tensor integers_of(const int32_t *x, int64_t n)
{
	tensor t = fixture_tensor(DTYPE_I32, SHAPE1(n));
	memcpy(t.data, x, (size_t)n * sizeof *x);
	return t;
}

/* `width` floats of tokens first … first + n - 1 to token `at` of a tensor, from channel `column` on. */
static inline void put(tensor *to, int64_t at, int64_t column, const float *from, int64_t first, int64_t n,
                       int64_t width)
{
	const int64_t row = to->shape.dim[2];
	for (int64_t i = 0; i < n; i++)
		memcpy((float *)to->data + (at + i) * row + column, from + (first + i) * width,
		       (size_t)width * sizeof(float));
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

/* What a check says of a call whose arguments are these: the name of the wrong one, or "". */
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

#endif
