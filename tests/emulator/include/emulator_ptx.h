/* emulator_ptx.h - the instructions of cuda/ptx.cuh. */
#ifndef EMULATOR_PTX_H
#define EMULATOR_PTX_H

#include <cuda_bf16.h>

typedef unsigned long long exchange_word;
static inline void store_relaxed(exchange_word *at, exchange_word x)
{
	emulator::store_relaxed(at, x);
}
static inline exchange_word load_relaxed(const exchange_word *at)
{
	return emulator::load_relaxed(at);
}
static inline void add_release(unsigned *at, unsigned x)
{
	emulator::release_add(at, x);
}
static inline unsigned poll_relaxed(const unsigned *at)
{
	return emulator::poll_relaxed(at);
}
static inline void fence_acquire(void)
{
	emulator::fence();
}
static inline unsigned load_acquire(const unsigned *at)
{
	return emulator::acquire(at);
}

static inline void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
	emulator::mma_bf16(d, a, b);
}

static inline void mma_int8(int d[4], const unsigned a[4], const unsigned b[2])
{
	unsigned rows[32][4], columns[32][2];
	emulator::gather(0xffffffffu, "mma a", a, rows, sizeof rows[0]);
	emulator::gather(0xffffffffu, "mma b", b, columns, sizeof columns[0]);
	int lane = emulator_lane();
	for (int i = 0; i < 4; i++) {
		int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
		for (int k = 0; k < 32; k += 4)
			d[i] = __dp4a((int)rows[row % 8 * 4 + k % 16 / 4][(row >= 8) + 2 * (k >= 16)],
			              (int)columns[column * 4 + k % 16 / 4][k >= 16], d[i]);
	}
}

/* Rows are read when their lane arrives, so a lane that has already passed may not overwrite them. */
static inline void load_matrices(unsigned d[4], const void *row)
{
	unsigned rows[32][4];
	emulator::touch_read(row, 16);
	emulator::gather(0xffffffffu, "ldmatrix", row, rows, sizeof rows[0]);
	int lane = emulator_lane();
	for (int i = 0; i < 4; i++)
		d[i] = rows[8 * i + lane / 4][lane % 4];
}
static inline void load_matrices_transposed(unsigned d[4], const void *row)
{
	uint16_t rows[32][8];
	emulator::touch_read(row, 16);
	emulator::gather(0xffffffffu, "ldmatrix.trans", row, rows, sizeof rows[0]);
	int lane = emulator_lane();
	for (int i = 0; i < 4; i++) {
		const uint16_t(*matrix)[8] = rows + 8 * i + 2 * (lane % 4);
		d[i] = (unsigned)matrix[1][lane / 4] << 16 | matrix[0][lane / 4];
	}
}

enum { HAS_WGMMA = true };
typedef uint64_t wgmma_view;
static inline wgmma_view wgmma_view_of(const void *shared, unsigned k_bytes, unsigned column_bytes)
{
	return emulator::shared_offset(shared) >> 4 | (wgmma_view)(k_bytes >> 4) << 16 |
	       (wgmma_view)(column_bytes >> 4) << 32;
}
template <int n> static inline void wgmma_bf16(float (&d)[n], const unsigned a[4], wgmma_view b, bool add)
{
	emulator::wgmma(d, 2 * n, a, b, add, emulator::B_COLUMNS);
}
static inline void wgmma_bf16(float (&d)[32], wgmma_view a, wgmma_view b, bool add)
{
	emulator::wgmma(d, 64, a, b, add, emulator::B_COLUMNS);
}
template <int n> static inline void wgmma_bf16_rows(float (&d)[n], const unsigned a[4], wgmma_view b, bool add)
{
	emulator::wgmma(d, 2 * n, a, b, add, emulator::B_ROWS);
}
template <int n> static inline void wgmma_int8(int (&d)[n], const unsigned a[4], wgmma_view b, bool add)
{
	emulator::wgmma((float *)d, 2 * n, a, b, add, emulator::B_BYTES);
}
static inline void wgmma_fence(void)
{
	emulator::wgmma_fence();
}
static inline void wgmma_commit(void)
{
	emulator::wgmma_commit();
}
template <class... D> static inline void wgmma_wait(D &...)
{
	emulator::wgmma_wait();
}
static inline void wgmma_publish(void)
{
	emulator::wgmma_publish();
}
template <int n> static inline void more_registers(void)
{
}
template <int n> static inline void fewer_registers(void)
{
}
static inline void cluster_arrive(void)
{
	emulator::cluster_arrive();
}
static inline void cluster_wait(void)
{
	emulator::cluster_wait();
}
typedef uint64_t copy_barrier;
static inline void copy_barrier_init(copy_barrier *at, unsigned threads = 1)
{
	emulator::copy_barrier_init(at, threads);
}
static inline void copy_barrier_arrive(copy_barrier *at)
{
	emulator::copy_barrier_arrive(at);
}
static inline void copy_barrier_expect(copy_barrier *at, unsigned bytes)
{
	emulator::copy_barrier_expect(at, bytes);
}
static inline void copy_barrier_wait(copy_barrier *at, unsigned parity)
{
	emulator::copy_barrier_wait(at, parity);
}
static inline void copy_to_block(void *from, unsigned bytes, copy_barrier *at, unsigned rank)
{
	emulator::copy_to_block(from, bytes, at, rank);
}
static inline void copy_bulk(void *to, const void *from, unsigned bytes, copy_barrier *at)
{
	emulator::copy_bulk(to, from, bytes, at);
}

static inline float exp2_approx(float x)
{
	return x < -126 ? 0 : exp2f(x);
}
static inline float reciprocal_approx(float x)
{
	return 1.0f / x;
}

static inline void copy_async(void *shared, const void *global, int bytes = 16)
{
	emulator::copy_async(shared, global, bytes);
}
static inline void copy_async_8(void *shared, const void *global, int bytes = 8)
{
	emulator::copy_async(shared, global, bytes, 8);
}
static inline void copy_commit(void)
{
	emulator::copy_commit();
}
template <int n> static inline void copy_wait(void)
{
	emulator::copy_wait(n);
}

static inline void wait_for_previous(void)
{
	emulator::wait_for_previous();
}
static inline void let_next_begin(void)
{
	emulator::let_next_begin();
}
static inline void prefetch(const void *at)
{
	(void)at;
}
static inline void prefetch_bytes(const unsigned char *from, int64_t bytes, int at, int)
{
	if (at == 0 && bytes > 0)
		emulator::prefetch_bytes(from, bytes);
}

#endif
