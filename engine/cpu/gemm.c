/* gemm on oneDNN's dnnl_sgemm.
 *
 * Chosen by measurement on two cores of an AMD EPYC (Zen 5). GFLOP/s of the products of a training step at d = 128 and
 * 4096 tokens (forward and both gradients of d x d and d x 4d weights):
 *
 *   oneDNN 2.6                        442 … 505
 *   OpenBLAS 0.3.21, as it detects    222 … 234   (takes the machine for a Haswell)
 *   OpenBLAS 0.3.21, SkylakeX kernels 212 … 373
 *   BLIS 0.9                           85
 *
 * Small products stay on one thread (threads.h has the cost of waking the others). Products with packed weights, as in
 * serving, have kernels of their own (kernels/linear.c). */
#include "engine/cpu/gemm.h"

#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { SERIAL_WORK = 1 << 20 };

status gemm(int threads, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
            const float *b, float beta, float *c)
{
	if (m == 0 || n == 0)
		return STATUS_OK;
	if (k == 0) {
		for (int64_t i = 0; i < m * n; i++)
			c[i] = beta == 0.0f ? 0.0f : beta * c[i];
		return STATUS_OK;
	}
#ifdef _OPENMP
	/* The setting belongs to the calling thread, so every call makes it. */
	omp_set_num_threads((double)m * (double)n * (double)k < SERIAL_WORK ? 1 : threads);
#else
	(void)threads;
#endif
	dnnl_status_t s = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, trans_a ? m : k, b,
	                             trans_b ? k : n, beta, c, n);
	if (s == dnnl_success)
		return STATUS_OK;
	return s == dnnl_out_of_memory ? STATUS_NOMEM : STATUS_INTERNAL;
}
