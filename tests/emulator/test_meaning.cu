/* Guarantees for kernels: barriers, shuffles, votes, atomics, matrix products, asynchronous copies, releases. */
#include "tests/emulator/test_emulator.h"

/* out [8][32]: the value that each lane got. */
__global__ void shuffles(int *out, int width)
{
	int t = threadIdx.x, x = 100 + t;
	out[t] = __shfl_sync(ALL_LANES, x, 3, width);
	out[32 + t] = __shfl_up_sync(ALL_LANES, x, 2, width);
	out[64 + t] = __shfl_down_sync(ALL_LANES, x, 2, width);
	out[96 + t] = __shfl_xor_sync(ALL_LANES, x, 5, width);
	out[128 + t] = (int)__ballot_sync(ALL_LANES, t % 3 == 0);
	out[160 + t] = __any_sync(ALL_LANES, t == 31);
	out[192 + t] = __all_sync(ALL_LANES, t < 31);
	out[224 + t] = (int)__shfl_sync(ALL_LANES, (double)x, t + 1);
}
static void lanes_exchange()
{
	for (int width : {32, 16, 8, 4, 2}) {
		int *out = device<int>(256), got[256];
		run(shuffles, 1, 32, 0, out, width);
		download(got, out, 256);
		for (int t = 0; t < 32; t++) {
			int first = t / width * width;
			EXPECT(got[t] == 100 + first + 3 % width);
			EXPECT(got[32 + t] == 100 + (t - 2 < first ? t : t - 2));
			EXPECT(got[64 + t] == 100 + (t + 2 >= first + width ? t : t + 2));
			/* by the guide, later groups cannot be read, earlier ones can */
			EXPECT(got[96 + t] == 100 + ((t ^ 5) / width > t / width ? t : t ^ 5));
			EXPECT((unsigned)got[128 + t] == 0x49249249u && got[160 + t] == 1 && got[192 + t] == 0);
			EXPECT(got[224 + t] == 100 + (t + 1) % 32);
		}
	}
}

__global__ void atomics(unsigned *out, int *signed_out, float *real)
{
	unsigned t = threadIdx.x;
	atomicAdd(out, t);
	atomicMax(out + 1, t);
	atomicMin(out + 2, t);
	atomicOr(out + 3, 1u << t % 32);
	atomicAnd(out + 4, ~(1u << t % 32));
	atomicSub(out + 5, 1u);
	if (atomicCAS(out + 6, 0u, t + 1) == 0)
		atomicAdd(out + 7, 1u);
	atomicMin(signed_out, -(int)t);
	if (t == 0)
		*real = (float)atomicExch(out + 8, 7u);
}
static void atomics_count()
{
	unsigned *out = device<unsigned>(9), got[9];
	int *signed_out = device<int>(1), low;
	unsigned start[9] = {0, 0, 99, 0, ~0u, 64, 0, 0, 3};
	upload(out, start, 9);
	float *real = device<float>(1), x;
	run(atomics, 1, 64, 0, out, signed_out, real);
	download(got, out, 9);
	download(&low, signed_out, 1);
	download(&x, real, 1);
	EXPECT(got[0] == 2016 && got[1] == 63 && got[2] == 0 && got[3] == ~0u && got[4] == 0 && got[5] == 0);
	EXPECT(got[6] >= 1 && got[6] <= 64 && got[7] == 1 && got[8] == 7 && x == 3 && low == -63);
}

/* d [16, 8] += a [16, 16] b [16, 8], fragments as the PTX ISA's figures have them. */
__global__ void product(float *d, const bf16 *a, const bf16 *b)
{
	int lane = threadIdx.x, group = lane / 4, pair = 2 * (lane % 4);
	unsigned x[4], y[2];
	float z[4];
	const int rows[4] = {group, group + 8, group, group + 8}, columns[4] = {pair, pair, pair + 8, pair + 8};
	for (int i = 0; i < 4; i++)
		x[i] = two_bf16(load_real(a + rows[i] * 16 + columns[i]), load_real(a + rows[i] * 16 + columns[i] + 1));
	for (int i = 0; i < 2; i++)
		y[i] = two_bf16(load_real(b + (pair + 8 * i) * 8 + group), load_real(b + (pair + 8 * i + 1) * 8 + group));
	for (int i = 0; i < 4; i++)
		z[i] = d[(group + 8 * (i / 2)) * 8 + pair + i % 2];
	mma_bf16(z, x, y);
	for (int i = 0; i < 4; i++)
		d[(group + 8 * (i / 2)) * 8 + pair + i % 2] = z[i];
}
static void matrices_multiply()
{
	bf16 a[256], b[128];
	float d[128], want[128];
	for (int i = 0; i < 256; i++)
		a[i] = __float2bfloat16_rn((float)(i * 37 % 19 - 9));
	for (int i = 0; i < 128; i++) {
		b[i] = __float2bfloat16_rn((float)(i * 23 % 17 - 8));
		d[i] = (float)i;
	}
	for (int i = 0; i < 128; i++) {
		want[i] = d[i];
		for (int k = 0; k < 16; k++)
			want[i] += __bfloat162float(a[i / 8 * 16 + k]) * __bfloat162float(b[k * 8 + i % 8]);
	}
	bf16 *da = device<bf16>(256), *db = device<bf16>(128);
	float *dd = device<float>(128);
	upload(da, a, 256);
	upload(db, b, 128);
	upload(dd, d, 128);
	run(product, 1, 32, 0, dd, da, db);
	download(d, dd, 128);
	for (int i = 0; i < 128; i++)
		EXPECT(d[i] == want[i]);
}

/* out [2][warp][tile][4][lane]: two products of a [64, 32] and b [32, N], the first without d, by wgmma and by mma.
 * FROM_ROWS: wgmma_bf16_rows, with a copy of b whose parts of 8 by 8 are transposed. A_IN_SHARED: with a copy of a. */
enum group_form { FROM_COLUMNS, FROM_ROWS, A_IN_SHARED };
template <int N, group_form form> __global__ void group_products(float *out, const unsigned *a_words, const unsigned *b_words)
{
	enum { TILES = N / 8, TERM = N * 8, PART = 64 };
	unsigned *b = shared_memory<unsigned>(), a[2][4];
	uint16_t *b_rows = shared_memory<uint16_t>(2 * TERM * 4);
	unsigned *shared_a = shared_memory<unsigned>(2 * TERM * 4); /* [k / 8][row][4] */
	int t = threadIdx.x, lane = t % 32, warp = t / 32;
	float d[N / 2];
	for (int i = t; i < 2 * TERM; i += 128) /* [k / 8][tile][column][4] */
		b[i] = b_words[i];
	for (int i = t; form == FROM_ROWS && i < 4 * TERM; i += 128)
		b_rows[i / PART * PART + i % 8 * 8 + i % PART / 8] = (uint16_t)(b_words[i / 2] >> 16 * (i % 2));
	for (int i = 0; i < 8; i++)
		a[i / 4][i % 4] = a_words[i * 128 + t];
	for (int i = 0; form == A_IN_SHARED && i < 8; i++)
		shared_a[(i / 2 * 64 + warp * 16 + lane / 4 + i % 2 * 8) * 4 + lane % 4] = a[i / 4][i % 4];
	for (int i = 0; i < N / 2; i++)
		d[i] = 1;
	wgmma_publish();
	__syncthreads();
	wgmma_fence();
	for (int i = 0; i < 2; i++)
		if constexpr (form == FROM_ROWS)
			wgmma_bf16_rows(d, a[i], wgmma_view_of(b_rows + 2 * i * TERM, N * 16, 128), i > 0);
		else if constexpr (form == A_IN_SHARED)
			wgmma_bf16(d, wgmma_view_of(shared_a + i * 512, 1024, 128), wgmma_view_of(b + i * TERM, N * 16, 128), i > 0);
		else
			wgmma_bf16(d, a[i], wgmma_view_of(b + i * TERM, N * 16, 128), i > 0);
	wgmma_commit();
	wgmma_wait(d);
	for (int tile = 0; tile < TILES; tile++) {
		float z[4] = {};
		for (int i = 0; i < 2; i++) {
			const unsigned *from = b + i * TERM + tile * 32 + lane, y[2] = {from[0], from[N * 4]};
			mma_bf16(z, a[i], y);
		}
		for (int e = 0; e < 4; e++) {
			float *to = out + ((warp * TILES + tile) * 4 + e) * 32 + lane;
			to[0] = d[4 * tile + e];
			to[N * 64] = z[e];
		}
	}
}
template <int N, group_form form> static void groups_multiply()
{
	const int words = 2 * N * 8;
	unsigned a[1024], b[words];
	for (int i = 0; i < 1024; i++)
		a[i] = (unsigned)(i + 1) * 2654435761u & 0xbfffbfffu; /* finite, below 2 */
	for (int i = 0; i < words; i++)
		b[i] = (unsigned)(i + 7) * 2246822519u & 0xbfffbfffu;
	unsigned *da = device<unsigned>(1024), *db = device<unsigned>(words);
	float *out = device<float>(2 * N * 64), got[2 * N * 64];
	upload(da, a, 1024);
	upload(db, b, words);
	run(group_products<N, form>, 1, 128, 2 * words * 4, out, da, db);
	download(got, out, 2 * N * 64);
	int rounded = 0;
	for (int i = 0; i < N * 64; i++) {
		EXPECT(__float_as_int(got[i]) == __float_as_int(got[N * 64 + i]));
		rounded += got[i] != (float)(int)got[i];
	}
	EXPECT(rounded > N * 32);
}

/* group_products with signed bytes: a [64, 64] and b [64, N]. */
template <int N> __global__ void group_byte_products(int *out, const unsigned *a_words, const unsigned *b_words)
{
	enum { TILES = N / 8, TERM = N * 8 };
	unsigned *b = shared_memory<unsigned>(), a[2][4];
	int t = threadIdx.x, lane = t % 32, warp = t / 32, d[N / 2];
	for (int i = t; i < 2 * TERM; i += 128)
		b[i] = b_words[i];
	for (int i = 0; i < 8; i++)
		a[i / 4][i % 4] = a_words[i * 128 + t];
	wgmma_publish();
	__syncthreads();
	wgmma_fence();
	for (int i = 0; i < 2; i++)
		wgmma_int8(d, a[i], wgmma_view_of(b + i * TERM, N * 16, 128), i > 0);
	wgmma_commit();
	wgmma_wait(d);
	for (int tile = 0; tile < TILES; tile++) {
		int z[4] = {};
		for (int i = 0; i < 2; i++) {
			const unsigned *from = b + i * TERM + tile * 32 + lane, y[2] = {from[0], from[N * 4]};
			mma_int8(z, a[i], y);
		}
		for (int e = 0; e < 4; e++) {
			int *to = out + ((warp * TILES + tile) * 4 + e) * 32 + lane;
			to[0] = d[4 * tile + e];
			to[N * 64] = z[e];
		}
	}
}
template <int N> static void groups_multiply_bytes()
{
	const int words = 2 * N * 8;
	unsigned a[1024], b[words];
	for (int i = 0; i < 1024; i++)
		a[i] = (unsigned)(i + 1) * 2654435761u;
	for (int i = 0; i < words; i++)
		b[i] = (unsigned)(i + 7) * 2246822519u;
	unsigned *da = device<unsigned>(1024), *db = device<unsigned>(words);
	int *out = device<int>(2 * N * 64), got[2 * N * 64], distinct = 0;
	upload(da, a, 1024);
	upload(db, b, words);
	run(group_byte_products<N>, 1, 128, words * 4, out, da, db);
	download(got, out, 2 * N * 64);
	for (int i = 0; i < N * 64; i++) {
		EXPECT(got[i] == got[N * 64 + i]);
		distinct += i > 0 && got[i] != got[i - 1];
	}
	EXPECT(distinct > N * 60);
}

/* Each block copies to the other of its pair, in one of two places of 128 bytes per round. out [blocks][4][32]. */
__global__ void pairs_copy(unsigned *out)
{
	unsigned *x = shared_memory<unsigned>(), rank = blockIdx.y % 2, block = blockIdx.y * gridDim.x + blockIdx.x, t = threadIdx.x;
	copy_barrier *arrived = (copy_barrier *)(x + 128);
	if (t < 2)
		copy_barrier_init(arrived + t);
	cluster_arrive();
	cluster_wait();
	for (unsigned round = 0; round < 4; round++) {
		unsigned *mine = x + round % 2 * 64 + rank * 32, *other = x + round % 2 * 64 + (rank ^ 1) * 32;
		mine[t] = 1000 * block + 100 * round + t;
		wgmma_publish();
		__syncthreads();
		if (t == round)
			copy_barrier_expect(arrived + round % 2, 128);
		if (t < 2)
			copy_to_block(mine + 16 * t, 64, arrived + round % 2, rank ^ 1);
		copy_barrier_wait(arrived + round % 2, round / 2 % 2);
		out[(block * 4 + round) * 32 + t] = other[31 - t];
	}
	cluster_arrive();
	cluster_wait();
}
static void pairs_reach_each_other()
{
	unsigned *out = device<unsigned>(12 * 128), got[12 * 128];
	EXPECT(issue_as_cluster({1, 2, 1}, pairs_copy, dim3(3, 4), 32, 528, out) == cudaSuccess);
	download(got, out, 12 * 128);
	for (unsigned i = 0; i < 12 * 128; i++) {
		const unsigned block = i / 128, x = block % 3, y = block / 3;
		EXPECT(got[i] == 1000 * ((y ^ 1) * 3 + x) + 100 * (i / 32 % 4) + 31 - i % 32);
	}
}
/* A cluster must divide the grid and fit the device. */
static void clusters_fit()
{
	unsigned *out = device<unsigned>(12 * 128);
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};
	int n = -1;
	attribute.id = cudaLaunchAttributeClusterDimension;
	config.attrs = &attribute;
	config.numAttrs = 1;
	for (unsigned size : {1u, 2u, 4u, 8u}) {
		attribute.val.clusterDim = {1, size, 1};
		EXPECT(cudaOccupancyMaxActiveClusters(&n, pairs_copy, &config) == cudaSuccess && n == (int)(4 / size));
	}
	EXPECT(issue_as_cluster({1, 2, 1}, pairs_copy, dim3(2, 3), 32, 528, out) == cudaErrorInvalidClusterSize);
	EXPECT(issue_as_cluster({1, 8, 1}, pairs_copy, dim3(2, 8), 32, 528, out) == cudaErrorInvalidClusterSize);
}
static void clusters_are_refused()
{
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};
	int n = -1;
	attribute.id = cudaLaunchAttributeClusterDimension;
	attribute.val.clusterDim = {1, 2, 1};
	config.attrs = &attribute;
	config.numAttrs = 1;
	EXPECT(cudaOccupancyMaxActiveClusters(&n, pairs_copy, &config) == cudaSuccess && n == 0);
	EXPECT(issue_as_cluster({1, 2, 1}, pairs_copy, dim3(3, 4), 32, 528, device<unsigned>(12 * 128)) == cudaErrorInvalidClusterSize);
}

/* Groups arrive in order; a copy of no bytes gives zeros; bytes that have not arrived are not readable. */
__global__ void pipeline(float *out, const float *in)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	copy_async(x + 4 * t, in + 4 * t);
	copy_commit();
	copy_async(x + 128 + 4 * t, in + 128 + 4 * t, t == 3 ? 0 : 16);
	x[256 + 4 * t + 2] = -1;
	copy_async_8(x + 256 + 4 * t, in + 2 * t, t == 3 ? 0 : 8);
	copy_commit();
	copy_wait<1>();
	__syncthreads();
	out[t] = x[4 * (31 - t)];
	copy_wait<0>();
	__syncthreads();
	out[32 + t] = x[128 + 4 * (31 - t) + 1];
	out[64 + t] = x[256 + 4 * (31 - t) + 1];
	out[96 + t] = x[256 + 4 * (31 - t) + 2];
}
static void copies_arrive()
{
	float in[256], got[128], *from = device<float>(256), *out = device<float>(128);
	for (int i = 0; i < 256; i++)
		in[i] = (float)i;
	upload(from, in, 256);
	run(pipeline, 1, 32, 1536, out, from);
	download(got, out, 128);
	for (int t = 0; t < 32; t++) {
		EXPECT(got[t] == (float)(4 * (31 - t)) && got[32 + t] == (31 - t == 3 ? 0.0f : (float)(129 + 4 * (31 - t))));
		EXPECT(got[64 + t] == (31 - t == 3 ? 0.0f : (float)(1 + 2 * (31 - t))) && got[96 + t] == -1);
	}
}

__global__ void prefix(unsigned *sums, exchange_word *flags)
{
	if (threadIdx.x == 0) {
		unsigned before = 0;
		if (blockIdx.x > 0) {
			while (load_relaxed(flags + blockIdx.x - 1) == 0)
				__nanosleep(20);
			__threadfence();
			before = sums[blockIdx.x - 1];
		}
		sums[blockIdx.x] = before + blockIdx.x;
		__threadfence();
		store_relaxed(flags + blockIdx.x, 1);
	}
}
static void blocks_wait_for_blocks()
{
	unsigned *sums = device<unsigned>(200), got[200];
	exchange_word *flags = device<exchange_word>(200);
	run(prefix, 200, 32, 0, sums, flags);
	download(got, sums, 200);
	for (unsigned i = 0; i < 200; i++)
		EXPECT(got[i] == i * (i + 1) / 2);
}

__global__ void sums(float *out)
{
	out[blockIdx.x * blockDim.x + threadIdx.x] = block_sum((float)threadIdx.x, shared_memory<float>());
}
static void blocks_add_up()
{
	float *out = device<float>(1024 * 3), got[1024 * 3];
	for (unsigned threads : {32u, 96u, 1024u}) {
		run(sums, 3, threads, 32 * sizeof(float), out);
		download(got, out, threads * 3);
		for (unsigned i = 0; i < threads * 3; i++)
			EXPECT(got[i] == (float)(threads * (threads - 1) / 2));
	}
}

__global__ void indexes(uint3 *where, dim3 *sizes)
{
	unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
	if (threadIdx.x == 33)
		where[block] = {blockIdx.x, blockIdx.y, blockIdx.z};
	if (block == 0 && threadIdx.x == 0)
		*sizes = dim3(gridDim.x, gridDim.y, blockDim.x);
}
static void every_block_runs_once()
{
	uint3 *where = device<uint3>(24), got[24];
	dim3 *sizes = device<dim3>(1), size;
	run(indexes, dim3(2, 3, 4), 64, 0, where, sizes);
	download(got, where, 24);
	download(&size, sizes, 1);
	for (unsigned i = 0; i < 24; i++)
		EXPECT(got[i].x == i % 2 && got[i].y == i / 2 % 3 && got[i].z == i / 6);
	EXPECT(size.x == 2 && size.y == 3 && size.z == 64);
}

const test_case meaning_cases[] = {
    {"lanes_exchange_in_groups", lanes_exchange, nullptr, nullptr},
    {"lanes_exchange_in_groups_in_any_order", lanes_exchange, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:5"},
    {"atomics_count", atomics_count, nullptr, nullptr},
    {"matrices_multiply_as_the_ptx_isa_says", matrices_multiply, nullptr, nullptr},
    {"groups_multiply_as_warps_do_32", groups_multiply<32, FROM_COLUMNS>, nullptr, nullptr},
    {"groups_multiply_as_warps_do_64", groups_multiply<64, FROM_COLUMNS>, nullptr, nullptr},
    {"groups_multiply_as_warps_do_128", groups_multiply<128, FROM_COLUMNS>, nullptr, nullptr},
    {"groups_multiply_rows_as_warps_do_64", groups_multiply<64, FROM_ROWS>, nullptr, nullptr},
    {"groups_multiply_rows_as_warps_do_128", groups_multiply<128, FROM_ROWS>, nullptr, nullptr},
    {"groups_multiply_shared_memory_as_warps_do_64", groups_multiply<64, A_IN_SHARED>, nullptr, nullptr},
    {"groups_multiply_as_warps_do_in_any_order", groups_multiply<64, FROM_COLUMNS>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:5"},
    {"groups_multiply_bytes_as_warps_do_32", groups_multiply_bytes<32>, nullptr, nullptr},
    {"groups_multiply_bytes_as_warps_do_64", groups_multiply_bytes<64>, nullptr, nullptr},
    {"groups_multiply_bytes_as_warps_do_128", groups_multiply_bytes<128>, nullptr, nullptr},
    {"blocks_of_a_cluster_reach_each_other", pairs_reach_each_other, nullptr, nullptr},
    {"blocks_of_a_cluster_reach_each_other_in_reverse", pairs_reach_each_other, nullptr, "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"blocks_of_a_cluster_reach_each_other_in_any_order", pairs_reach_each_other, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:5"},
    {"a_cluster_divides_the_grid_and_fits", clusters_fit, nullptr, nullptr},
    {"a_device_may_have_no_room_for_clusters", clusters_are_refused, nullptr, "ADDITIVE_EMULATOR_REFUSES=clusters"},
    {"copies_arrive_when_waited_for", copies_arrive, nullptr, nullptr},
    {"blocks_wait_for_blocks", blocks_wait_for_blocks, nullptr, nullptr},
    {"blocks_wait_for_blocks_in_reverse", blocks_wait_for_blocks, nullptr, "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"blocks_add_up", blocks_add_up, nullptr, nullptr},
    {"every_block_runs_once", every_block_runs_once, nullptr, nullptr},
    {},
};
