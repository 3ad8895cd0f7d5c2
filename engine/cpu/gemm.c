/* gemm on oneDNN's dnnl_sgemm.
 *
 * Chosen by measurement, GFLOP/s of the products of a training step at d = 128 and 4096
 * tokens (forward and both gradients of d x d and d x 4d weights), two cores of an AMD EPYC
 * (Zen 5):
 *
 *   oneDNN 2.6                        442 … 505
 *   OpenBLAS 0.3.21, as it detects    222 … 234   (takes the machine for a Haswell)
 *   OpenBLAS 0.3.21, SkylakeX kernels 212 … 373
 *   BLIS 0.9                           85
 *
 * Below 16 rows it multiplies without packing the weight, at the speed of reading it, so
 * decoding needs no kernel of our own (tried: dot products over rows of W in tiles of
 * 4 x 4 were slower up to 4 rows at d = 128 and at most 1.5 times as fast anywhere). From 16
 * rows on it packs, which pays only for many rows; so a product of 16 to 64 rows by a
 * transposed weight is cut into slices below 16. Microseconds, two threads, x [m, k] Wᵀ:
 *
 *   n x k          m = 1   m = 12   m = 16 whole / cut   m = 64 whole / cut
 *   512 x 128          2        5        15 /     8          27 /   30
 *   32768 x 128       90      360       850 /   620        2100 / 2300
 *   1024 x 1024       22       95       760 /   140         950 /  550
 *   4096 x 1024       85      345      3060 /   520        3820 / 2430
 *
 * Small products stay on one thread: waking the others costs 5 to 10 µs. */
#include "engine/cpu/gemm.h"

#include <dnnl.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { SLICE_ROWS = 15, SLICED_ROWS = 64, SERIAL_WORK = 1 << 20 };

static status product(int threads, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float *a, const float *b, float *c)
{
#ifdef _OPENMP
	/* A setting of the calling thread, so it is made at every call. */
	omp_set_num_threads((double)m * (double)n * (double)k < SERIAL_WORK ? 1 : threads);
#else
	(void)threads;
#endif
	dnnl_status_t s = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, trans_a ? m : k, b,
	                             trans_b ? k : n, 0.0f, c, n);
	if (s == dnnl_success)
		return STATUS_OK;
	return s == dnnl_out_of_memory ? STATUS_NOMEM : STATUS_INTERNAL;
}

status gemm(int threads, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
            const float *b, float *c)
{
	if (m == 0 || n == 0)
		return STATUS_OK;
	if (k == 0) {
		memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
		return STATUS_OK;
	}
	if (trans_a || !trans_b || m <= SLICE_ROWS || m > SLICED_ROWS)
		return product(threads, trans_a, trans_b, m, n, k, alpha, a, b, c);
	/* Slices as even as they can be: 16 rows are 8 + 8, not 15 + 1. */
	int64_t slices = (m + SLICE_ROWS - 1) / SLICE_ROWS;
	for (int64_t i = 0; i < slices; i++) {
		int64_t first = m * i / slices, rows = m * (i + 1) / slices - first;
		TRY(product(threads, false, true, rows, n, k, alpha, a + first * k, b, c + first * n));
	}
	return STATUS_OK;
}
