#include "tests/bench/support/ceilings.h"

#include <stdio.h>
#include <string.h>

#include <omp.h>

#include "engine/base/clock.h"
#include "engine/cpu/gemm.h"
#include "tests/bench/support/bench.h"

enum { WARM = 3, MIN_REPEATS = 15, MAX_REPEATS = 300 };

static const double budget_ns = 1.5e8; /* per case, once MIN_REPEATS are done */

void ceilings_time(void (*call)(void *context), void *context)
{
	bench_times t = {0};
	double spent = 0;
	for (int i = 0; i < WARM; i++)
		call(context);
	while (t.count < MIN_REPEATS || (t.count < MAX_REPEATS && spent < budget_ns)) {
		uint64_t start = clock_ns();
		call(context);
		double ns = (double)(clock_ns() - start);
		bench_times_add(&t, ns);
		spent += ns;
	}
	printf("\"median_ns\": %.0f, \"best_ns\": %.0f, \"repeats\": %d}\n", bench_times_median(&t),
	       bench_times_best(&t), t.count);
	fflush(stdout);
	bench_times_free(&t);
}

void *ceilings_memory(backend *b, size_t bytes)
{
	void *data;
	if (b->allocate(b, bytes, &data) != STATUS_OK)
		bench_fail("out of memory");
	return data;
}

void ceilings_fill(float *x, int64_t n)
{
	uint32_t state = 12345;
	for (int64_t i = 0; i < n; i++) {
		state = state * 1664525u + 1013904223u;
		x[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
	}
}

typedef struct copy_job {
	char *to, *from;
	size_t bytes; /* copied */
	int threads;
} copy_job;

static void copy_all(void *context)
{
	const copy_job *j = context;
	size_t part = (j->bytes / (size_t)j->threads + 63) / 64 * 64;
#pragma omp parallel num_threads(j->threads)
	{
		size_t begin = (size_t)omp_get_thread_num() * part;
		size_t end = begin + part < j->bytes ? begin + part : j->bytes;
		if (begin < end)
			memcpy(j->to + begin, j->from + begin, end - begin);
	}
}

/* size: of both buffers together. */
static void copy_ceiling(backend *b, int64_t megabytes, int threads)
{
	size_t bytes = (size_t)megabytes << 19;
	copy_job j = {ceilings_memory(b, bytes), ceilings_memory(b, bytes), bytes, threads};
	memset(j.from, 1, bytes);
	memset(j.to, 2, bytes);
	printf("{\"ceiling\": \"copy\", \"megabytes\": %d, \"threads\": %d, \"bytes\": %zu, ", (int)megabytes, threads,
	       2 * bytes);
	ceilings_time(copy_all, &j);
	b->release(b, j.to);
	b->release(b, j.from);
}

typedef struct product {
	int threads;
	int64_t m, n, k;
	float *a, *b, *c;
} product;

static void run_product(void *context)
{
	const product *p = context;
	if (gemm(p->threads, false, true, p->m, p->n, p->k, 1, p->a, p->b, 0, p->c) != STATUS_OK)
		bench_fail("a matrix product failed");
}

static void product_ceiling(backend *b, const int64_t *mnk, int threads)
{
	int64_t m = mnk[0], n = mnk[1], k = mnk[2];
	product p = {threads, m, n, k, NULL, NULL, NULL};
	p.a = ceilings_memory(b, (size_t)(m * k) * sizeof(float));
	p.b = ceilings_memory(b, (size_t)(n * k) * sizeof(float));
	p.c = ceilings_memory(b, (size_t)(m * n) * sizeof(float));
	ceilings_fill(p.a, m * k);
	ceilings_fill(p.b, n * k);
	printf("{\"ceiling\": \"gemm\", \"shape\": \"%d x %d x %d\", \"threads\": %d, \"flops\": %.0f, ", (int)m,
	       (int)n, (int)k, threads, 2.0 * (double)m * (double)n * (double)k);
	ceilings_time(run_product, &p);
	b->release(b, p.a);
	b->release(b, p.b);
	b->release(b, p.c);
}

void ceilings_print(backend *b, int threads)
{
	static const int64_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
	static const int64_t products[][3] = {
	    {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 8192, 128}, {4096, 512, 128}, {4096, 128, 512}};
	for (int n = 1; n <= threads; n += threads > 1 ? threads - 1 : 1) {
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			copy_ceiling(b, sizes[i], n);
		for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
			product_ceiling(b, products[i], n);
	}
}
