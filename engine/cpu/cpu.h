/* cpu.h - the CPU backend.
 *
 * Kernels in kernels/ are portable C that is compiled once per instruction set
 * (baseline, and on x86-64 also AVX2 and AVX-512). Only the products with packed
 * weights gain from VNNI, so only linear.c and linear_cross_entropy.c are compiled
 * for it as well. The best table the machine can run is chosen when the backend is
 * opened. Matrix products go through gemm.h. reference/ holds one plain scalar kernel
 * per op with double accumulators: the definition the others are tested against. */
#ifndef ENGINE_CPU_CPU_H
#define ENGINE_CPU_CPU_H

#include "engine/tensor/backend.h"

/* Open with `threads` OpenMP threads (0: all cores allowed to this process, at most
 * OMP_NUM_THREADS if that is set). STATUS_INVALID, STATUS_NOMEM.
 * ADDITIVE_CPU_ISA=baseline|avx2|avx512|avx512vnni in the environment lowers the choice. */
status cpu_open(backend **out, int threads, error *err);

/* Open with the reference kernels, which are slow; for tests. */
status cpu_reference_open(backend **out, int threads, error *err);

#endif
