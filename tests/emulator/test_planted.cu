/* Kernels with a fault, and the same kernels without it. A flag selects which. */
#include "tests/emulator/test_emulator.h"

/* --- barriers ------------------------------------------------------------------------------ */

__global__ void neighbours(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	x[t] = 0;
	__syncthreads();
	x[t] = (float)t;
	if (correct)
		__syncthreads();
	out[t] = x[t ? t - 1 : 0]; /* already written, if threads run in order */
}
/* Within one warp a __syncwarp is enough. */
__global__ void lanes(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	x[t] = 0;
	__syncwarp();
	x[t] = (float)t;
	if (correct)
		__syncwarp();
	out[t] = x[t ^ 1];
}
/* All lanes read a value that lane 0 then replaces. The shuffle in between, where they meet, orders no memory. */
__global__ void replaced_after_a_shuffle(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	if (t == 31)
		*x = 1;
	__syncwarp();
	float sum = warp_sum(*x);
	if (correct)
		__syncwarp();
	if (t == 0)
		*x = sum;
	out[t] = sum;
}
__global__ void halves_of_a_warp(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	x[t] = 0;
	__syncwarp();
	x[t] = (float)t;
	__syncwarp(t < 16 ? 0x0000ffffu : 0xffff0000u);
	out[t] = x[correct ? t ^ 1 : t ^ 16];
}
/* A barrier before the reads, but none before the next round's writes. */
__global__ void rounds(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	float sum = 0;
	for (int i = 0; i < 3; i++) {
		x[t] = (float)(t + i);
		__syncthreads();
		sum += x[63 - t];
		if (correct)
			__syncthreads();
	}
	out[t] = sum;
}
/* All read one value, then one thread replaces it. */
__global__ void replaced(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	if (t == 63)
		*x = 1;
	__syncthreads();
	out[t] = *x;
	if (correct)
		__syncthreads();
	if (t == 63)
		*x = 2;
}
__global__ void ends_early(float *out, bool correct)
{
	if (!correct && threadIdx.x >= 32)
		return;
	__syncthreads();
	out[threadIdx.x] = 1;
}
__global__ void meets_elsewhere(float *out, bool correct)
{
	float x = (float)threadIdx.x;
	if (correct || threadIdx.x % 32 < 16)
		x = __shfl_xor_sync(ALL_LANES, x, 1);
	else
		x = __shfl_down_sync(ALL_LANES, x, 1);
	out[threadIdx.x] = x;
}
__global__ void half_shuffles(float *out, bool correct)
{
	float x = 1;
	if (correct || threadIdx.x < 16)
		x = warp_sum(x);
	__syncthreads();
	out[threadIdx.x] = x;
}
/* bf16 values beside each other in one word are no race; a write to a byte of another thread's value is. */
__global__ void small_neighbours(uint16_t *out, bool correct)
{
	uint16_t *x = shared_memory<uint16_t>();
	int t = threadIdx.x;
	x[t] = (uint16_t)t;
	if (!correct && t == 5)
		((unsigned char *)x)[13] = 1;
	__syncthreads();
	out[t] = x[t];
}

/* --- bounds ------------------------------------------------------------------------------------ */

__global__ void writes_one_more(float *out, int n, bool correct)
{
	int t = threadIdx.x;
	if (correct ? t < n : t <= n)
		out[t] = 1;
}
__global__ void reads_one_more(float *out, const float *in, int n, bool correct)
{
	int t = threadIdx.x;
	if (t < n)
		out[t] = in[correct ? t : t + 1];
}
__global__ void shared_one_more(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	x[correct ? t : t + 1] = 1;
	out[t] = 1;
}
__global__ void unwritten(float *out, bool correct)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	if (correct || t != 7)
		x[t] = 1;
	__syncthreads();
	out[t] = x[t];
}
__global__ void takes_apart(float *out, bool correct)
{
	float4 v = *(const float4 *)(out + (correct ? 4 : 1));
	if (threadIdx.x == 0)
		out[8] = v.x + v.y + v.z + v.w;
}
__global__ void deep(float *out, int depth)
{
	volatile float room[4096];
	for (int i = 0; i < 4096; i++)
		room[i] = (float)i;
	if (depth > 0)
		deep(out, depth - 1);
	if (threadIdx.x == 0)
		out[0] = room[5];
}
static const float table[4] = {1, 2, 3, 4};
float variable[4] = {1, 2, 3, 4};
__global__ void reads_a_table(float *out, bool correct)
{
	out[threadIdx.x] = correct ? table[threadIdx.x % 4] : variable[threadIdx.x % 4];
}

/* --- between blocks ------------------------------------------------------------------------------- */

__global__ void one_place(float *out, bool correct)
{
	if (threadIdx.x == 0)
		out[correct ? blockIdx.x : 0] = 1;
}
/* Block 0 writes, block 1 waits for its flag. */
enum handing { SOUND, BEFORE_ALL_HAVE_WRITTEN, NO_FENCE_AFTER_WRITES, NO_FENCE_BEFORE_READS };
__global__ void hands_over(float *data, exchange_word *flag, float *out, int how)
{
	int t = threadIdx.x;
	if (blockIdx.x == 0) {
		data[t] = (float)t;
		if (how != BEFORE_ALL_HAVE_WRITTEN)
			__syncthreads();
		if (t == 0 && how != NO_FENCE_AFTER_WRITES)
			__threadfence();
		if (t == 0)
			store_relaxed(flag, 1);
	} else {
		if (t == 0) {
			while (load_relaxed(flag) == 0)
				__nanosleep(20);
			if (how != NO_FENCE_BEFORE_READS)
				__threadfence();
		}
		__syncthreads();
		out[t] = data[(t + 40) % 64];
	}
}
template <int how> static void handing_over()
{
	run(hands_over, 2, 64, 0, device<float>(64), device<exchange_word>(1), device<float>(64), how);
}
/* Numbers stored in the words themselves, and one that is read as if it were. */
__global__ void words(exchange_word *at, float *out, bool correct)
{
	int t = threadIdx.x;
	if (blockIdx.x == 0) {
		store_relaxed(at + t, 1 + (unsigned)t);
	} else {
		while (load_relaxed(at + 63 - t) == 0)
			__nanosleep(20);
		out[t] = (float)(correct ? load_relaxed(at + 63 - t) : at[63 - t]);
	}
}
/* The last block to arrive adds what all have written. */
__global__ void tickets(float *parts, unsigned *count, float *out, bool correct)
{
	unsigned *mine = shared_memory<unsigned>();
	int t = threadIdx.x;
	parts[blockIdx.x * 64 + t] = 1;
	__syncthreads();
	if (t == 0) {
		if (correct)
			__threadfence();
		*mine = atomicAdd(count, 1u);
		__threadfence();
	}
	__syncthreads();
	if (*mine == gridDim.x - 1) {
		float sum = 0;
		for (unsigned i = 0; i < gridDim.x; i++)
			sum += parts[i * 64 + t];
		out[t] = sum;
	}
}
/* Each block adds its number to the one that the previous block has published (a chain of look-backs). */
__global__ void chain(float *sums, exchange_word *flags, bool correct)
{
	int t = threadIdx.x, b = blockIdx.x;
	float before = 0;
	if (b > 0) {
		if (t == 0 && correct)
			while (load_relaxed(flags + b - 1) == 0)
				__nanosleep(20);
		if (t == 0)
			__threadfence();
		__syncthreads();
		before = sums[(b - 1) * 64 + t];
	}
	sums[b * 64 + t] = before + (float)b;
	__syncthreads();
	if (t == 0) {
		__threadfence();
		store_relaxed(flags + b, 1);
	}
}
/* Each block writes, all wait for all, and each reads the next one's value; twice. */
enum grid_barrier { COMPLETE, NO_WAIT, NO_BLOCK_BARRIER, RELAXED, NO_POLL_FENCE };
__global__ void phases(float *x, unsigned *arrived, int fault)
{
	const int t = threadIdx.x, next = (blockIdx.x + 1) % gridDim.x;
	float sum = 0;
	for (int i = 0; i < 2; i++) {
		x[(i * gridDim.x + blockIdx.x) * 64 + t] = sum + (float)blockIdx.x;
		if (fault != NO_BLOCK_BARRIER)
			__syncthreads();
		if (t == 0) {
			add_release(arrived + i, 1);
			if (fault == RELAXED || fault == NO_POLL_FENCE)
				while (poll_relaxed(arrived + i) < gridDim.x)
					;
			else
				while (fault != NO_WAIT && load_acquire(arrived + i) < gridDim.x)
					;
			if (fault == RELAXED)
				fence_acquire();
		}
		__syncthreads();
		sum += x[(i * gridDim.x + next) * 64 + (t + 40) % 64];
	}
	x[(2 * gridDim.x + blockIdx.x) * 64 + t] = sum;
}
template <int fault> static void all_wait_for_all()
{
	EXPECT(issue_as(cudaLaunchAttributeCooperative, phases, 4, 64, 0, device<float>(3 * 4 * 64), device<unsigned>(2), (int)fault) ==
	       cudaSuccess);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}
__global__ void waits_for_ever(exchange_word *flag)
{
	if (threadIdx.x == 0)
		while (load_relaxed(flag) == 0)
			__nanosleep(20);
	__syncthreads();
}
__global__ void counts(unsigned *count, bool correct)
{
	if (correct)
		atomicAdd(count, 1u);
	else if (threadIdx.x == 3)
		*count = 5;
	else
		atomicAdd(count, 1u);
}

/* --- asynchronous copies ---------------------------------------------------------------------------- */

__global__ void copies(float *out, const float *in, int fault)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	if (fault == 3) {
		x[4 * t] = 0;
		__syncthreads();
		out[t] = x[4 * ((t + 1) % 64)];
	}
	copy_async(x + 4 * t, in + 4 * t);
	copy_commit();
	if (fault != 1)
		copy_wait<0>();
	if (fault != 2)
		__syncthreads();
	out[t] = x[4 * ((t + 1) % 64)];
}

__global__ void prefetches(const unsigned char *from, int64_t bytes)
{
	prefetch_bytes(from, bytes, threadIdx.x, 32);
}

enum bulk { BULK, NO_BULK_WAIT, REUSED_EARLY, LEFT_BEHIND, EXPECTED_TWICE, ODD_ADDRESS, PAST_THE_END, NO_BULK_BARRIER };
/* A warp reads two stages that pass through one place of shared memory. */
template <int fault> __global__ void bulk_copies(float *out, const float *in)
{
	copy_barrier *full = shared_memory<copy_barrier>();
	float *stage = shared_memory<float>(128);
	const int t = threadIdx.x;
	auto request = [&](int i) {
		copy_barrier_expect(full, 128);
		if (fault == EXPECTED_TWICE)
			copy_barrier_expect(full, 128);
		copy_bulk(stage, in + 32 * i + (fault == ODD_ADDRESS), fault == PAST_THE_END ? 512 : 128,
		          full + (fault == NO_BULK_BARRIER));
	};
	if (t == 0) {
		copy_barrier_init(full);
		wgmma_publish();
		request(0);
	}
	__syncwarp();
	for (int i = 0; i < 2; i++) {
		if (fault != NO_BULK_WAIT)
			copy_barrier_wait(full, i);
		out[32 * i + t] = stage[(t + 1) % 32];
		if (fault != REUSED_EARLY)
			__syncwarp();
		if (t == 0 && (i == 0 || fault == LEFT_BEHIND))
			request(i + 1);
	}
}
template <int fault> static void copying_in_bulk()
{
	float *in = device<float>(96), *out = device<float>(64), got[64], x[96];
	for (int i = 0; i < 96; i++)
		x[i] = (float)i;
	upload(in, x, 96);
	run(bulk_copies<fault>, 1, 32, 256, out, in);
	download(got, out, 64);
	for (int i = 0; i < 64; i++)
		EXPECT(got[i] == x[i / 32 * 32 + (i + 1) % 32]);
}

/* --- wgmma -------------------------------------------------------------------------------------------- */

enum grouped {
	GROUPED,
	NO_PRODUCT_FENCE,
	NO_FENCE_AFTER_WAIT,
	NO_COMMIT,
	NO_PRODUCT_WAIT,
	READS_SUMS,
	WRITES_SUMS,
	CHANGES_A,
	WRITES_B,
	READS_B,
	UNPUBLISHED,
	PUBLISHED_LATE,
	NO_BARRIER_AFTER_B,
	OTHER_VIEW,
	SWIZZLED,
	B_PAST_THE_END
};
/* Two rounds of one product each, with b in turn in the two halves of shared memory, as our kernels have it. */
template <int how> __global__ void products(float *out)
{
	float *x = shared_memory<float>(), d[16] = {};
	unsigned a[4] = {1, 2, 3, 4};
	int t = threadIdx.x;
	if (how != NO_PRODUCT_FENCE)
		wgmma_fence();
	for (int round = 0; round < 2; round++) {
		float *b = x + round * 256;
		if (how != PUBLISHED_LATE || t != 77) {
			b[t] = 0;
			b[128 + t] = 0;
		}
		if (how != UNPUBLISHED || t != 77)
			wgmma_publish();
		if (how == PUBLISHED_LATE && t == 77) {
			b[t] = 0;
			b[128 + t] = 0;
		}
		if (how != NO_BARRIER_AFTER_B)
			__syncthreads();
		if (round == 1 && how != NO_FENCE_AFTER_WAIT)
			wgmma_fence();
		wgmma_view view = wgmma_view_of(b, 512, how == B_PAST_THE_END && round == 1 ? 256 : 128);
		if (how == OTHER_VIEW && t == 9)
			view += 1;
		if (how == SWIZZLED)
			view |= (wgmma_view)1 << 62;
		wgmma_bf16(d, a, view, true);
		if (how == READS_SUMS)
			out[t] = d[t % 16];
		if (how == WRITES_SUMS)
			d[3] = 0;
		if (how == CHANGES_A)
			a[2] = 7;
		if (how == WRITES_B && t == 77)
			b[t] = 1;
		if (how == READS_B)
			out[t] = b[127 - t];
		if (how != NO_COMMIT)
			wgmma_commit();
		if (how != NO_PRODUCT_WAIT)
			wgmma_wait(d);
	}
	if (how != READS_SUMS)
		out[t] = d[0];
}
enum { A_UNPUBLISHED, WRITES_SHARED_A, A_PAST_THE_END, SHARED_A };
/* One product with a in shared memory, before b. */
template <int how> __global__ void shared_products(float *out)
{
	float *x = shared_memory<float>(), d[32] = {};
	int t = threadIdx.x;
	for (int i = 512 + t; i < 1024; i += 128)
		x[i] = 0;
	wgmma_publish();
	for (int i = t; i < 512; i += 128)
		x[i] = 0;
	if (how != A_UNPUBLISHED || t != 77)
		wgmma_publish();
	__syncthreads();
	wgmma_fence();
	wgmma_bf16(d, wgmma_view_of(x, 1024, how == A_PAST_THE_END ? 512 : 128), wgmma_view_of(x + 512, 1024, 128), true);
	if (how == WRITES_SHARED_A && t == 77)
		x[t] = 1;
	wgmma_commit();
	wgmma_wait(d);
	out[t] = d[0];
}
template <int how> static void sharing_a()
{
	float *out = device<float>(128), got[128];
	run(shared_products<how>, 1, 128, 4096, out);
	download(got, out, 128);
	for (int i = 0; i < 128; i++)
		EXPECT(got[i] == 0);
}
template <int how> static void grouping()
{
	float *out = device<float>(128), got[128];
	run(products<how>, 1, 128, 2048, out);
	download(got, out, 128);
	for (int i = 0; i < 128; i++)
		EXPECT(how == READS_SUMS ? got[i] != got[i] : how == READS_B || got[i] == 0);
}

/* A warp loads b for a group of four, through a ring of two places. */
enum ringed {
	RINGED,
	NO_FULL_WAIT,
	NO_FREE_WAIT,
	FREED_EARLY,
	LOADED_UNPUBLISHED,
	PUBLISHED_BY_A_LANE,
	ARRIVES_BEFORE_IT_LOADS,
	A_LANE_FREES,
	A_LANE_FILLS,
	TOO_FEW_ARRIVE
};
template <int how> __global__ void ring(float *out)
{
	enum { PLACES = 2, ROUNDS = 5, WORDS = 256 };
	unsigned *x = shared_memory<unsigned>();
	copy_barrier *full = (copy_barrier *)(x + PLACES * WORDS), *free = full + PLACES;
	const int t = threadIdx.x, lane = t % 32;
	float d[16] = {};
	unsigned a[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
	if (t < PLACES) {
		copy_barrier_init(full + t, how == TOO_FEW_ARRIVE ? 2 : 1);
		copy_barrier_init(free + t, 4);
	}
	__syncthreads();
	for (int i = 0; i < ROUNDS; i++) {
		const int place = i % PLACES, parity = i / PLACES % 2;
		unsigned *b = x + place * WORDS;
		if (t >= 128) {
			if (i >= PLACES && how != NO_FREE_WAIT)
				copy_barrier_wait(free + place, parity ^ 1);
			if (how == ARRIVES_BEFORE_IT_LOADS && lane == 0)
				copy_barrier_arrive(full + place);
			for (int j = lane; j < WORDS; j += 32)
				b[j] = 0x3f803f80;
			if (how != LOADED_UNPUBLISHED && (how != PUBLISHED_BY_A_LANE || lane == 0))
				wgmma_publish();
			if (how != A_LANE_FILLS)
				__syncwarp();
			if (how != ARRIVES_BEFORE_IT_LOADS && lane == 0)
				copy_barrier_arrive(full + place);
			continue;
		}
		if (how != NO_FULL_WAIT)
			copy_barrier_wait(full + place, parity);
		wgmma_fence();
		wgmma_bf16(d, a, wgmma_view_of(b, 512, 128), true);
		wgmma_commit();
		__syncwarp();
		if (how == FREED_EARLY && lane == 0)
			copy_barrier_arrive(free + place);
		wgmma_wait(d);
		if (how != A_LANE_FREES)
			__syncwarp();
		if (how != FREED_EARLY && lane == 0)
			copy_barrier_arrive(free + place);
	}
	if (t < 128)
		out[t] = d[0];
}
template <int how> static void ringing()
{
	float *out = device<float>(128), got[128];
	run(ring<how>, 1, 160, 2080, out);
	download(got, out, 128);
	for (int i = 0; i < 128; i++)
		EXPECT(got[i] == 80);
}

/* --- clusters ----------------------------------------------------------------------------------------- */

enum paired {
	PAIRED,
	NO_FIRST_BARRIER,
	NO_LAST_WAIT,
	WAITS_FIRST_OF_ALL,
	ARRIVES_TWICE,
	NO_COPY_WAIT,
	ONE_COPY_WAITS,
	NO_ROUND_BARRIER,
	PAIR_UNPUBLISHED,
	TWO_PLACES,
	CHANGES_SENT,
	ENDS_EARLY,
	NOT_A_BARRIER,
	EXPECTS_TWICE,
	EXPECTS_TOO_MUCH,
	PAST_SHARED,
	ODD_BYTES,
	NO_SUCH_RANK
};
enum { PAIR_ROUNDS = 6, PAIR_WORDS = 256 /* words of a stage */ };

/* Rounds of one product each, as our kernels have it. Each block of a pair stores half of b two rounds before its product,
 * and copies it to the other block one round before. */
template <int how> __global__ void pairs(float *out)
{
	enum { PLACES = how == TWO_PLACES ? 2 : 3 };
	unsigned *x = shared_memory<unsigned>(), rank = blockIdx.y % 2, t = threadIdx.x, a[4] = {1, 2, 3, 4};
	copy_barrier *arrived = (copy_barrier *)(x + 3 * PAIR_WORDS);
	float d[16] = {};
	auto make = [&](int round) {
		x[round % PLACES * PAIR_WORDS + rank * 128 + t] = round;
		if (how != PAIR_UNPUBLISHED || t != 77)
			wgmma_publish();
	};
	auto send = [&](int round) {
		const int place = round % PLACES;
		if (t != 0 && (how != EXPECTS_TWICE || t != 1))
			return;
		copy_barrier_expect(arrived + place, how == EXPECTS_TOO_MUCH ? 528 : 512);
		copy_to_block(x + (how == PAST_SHARED ? 3 * PAIR_WORDS : place * PAIR_WORDS + (int)rank * 128), how == ODD_BYTES ? 520 : 512,
		              how == NOT_A_BARRIER ? (copy_barrier *)x + 100 : arrived + place, how == NO_SUCH_RANK ? 2 : rank ^ 1);
	};
	if (t == 0)
		for (int i = 0; i < 3; i++)
			copy_barrier_init(arrived + i);
	if (how == WAITS_FIRST_OF_ALL)
		cluster_wait();
	if (how != NO_FIRST_BARRIER) {
		cluster_arrive();
		if (how == ARRIVES_TWICE)
			cluster_arrive();
		cluster_wait();
	}
	make(0);
	make(1);
	__syncthreads();
	send(0);
	for (int round = 0; round < PAIR_ROUNDS; round++) {
		const bool last = round == PAIR_ROUNDS - 1;
		if (how != NO_ROUND_BARRIER)
			__syncthreads();
		if (how == ENDS_EARLY && rank == 1 && round == 2)
			break;
		if (how != NO_COPY_WAIT && (how != ONE_COPY_WAITS || t == 0))
			copy_barrier_wait(arrived + round % PLACES, round / PLACES % 2);
		if (!last)
			send(round + 1);
		if (how == CHANGES_SENT && round == 2 && t == 0)
			x[3 % PLACES * PAIR_WORDS + rank * 128 + t] = 7;
		wgmma_fence();
		wgmma_bf16(d, a, wgmma_view_of(x + round % PLACES * PAIR_WORDS, 512, 128), true);
		wgmma_commit();
		if (round + 2 < PAIR_ROUNDS)
			make(round + 2);
		wgmma_wait(d);
	}
	if (how != ENDS_EARLY) {
		cluster_arrive();
		if (how != NO_LAST_WAIT)
			cluster_wait();
	}
	out[rank * 128 + t] = d[0];
}
template <int how> static void pairing()
{
	float *out = device<float>(256), got[256];
	EXPECT(issue_as_cluster({1, 2, 1}, pairs<how>, dim3(1, 2), 128, 3 * PAIR_WORDS * 4 + 24, out) == cudaSuccess);
	download(got, out, 256);
	for (int i = 0; i < 256; i++)
		EXPECT(got[i] == got[i]);
}

/* A block that never looks for the other's copy ends before it. */
__global__ void sends_to_one_that_ends(int how)
{
	unsigned *x = shared_memory<unsigned>(), rank = blockIdx.y;
	copy_barrier *arrived = (copy_barrier *)(x + 32);
	if (threadIdx.x == 0)
		copy_barrier_init(arrived);
	x[threadIdx.x] = 0;
	wgmma_publish();
	cluster_arrive();
	cluster_wait();
	__syncthreads();
	if (rank == 1 && how == 0)
		return;
	for (int i = 0; i < 50 && how == 0; i++)
		__nanosleep(20);
	if (rank == 0 && threadIdx.x == 0)
		copy_to_block(x, 128, arrived, 1);
	if (how == 1) {
		cluster_arrive();
		cluster_wait();
	}
	if (rank == 1 && how == 1) {
		for (int i = 0; i < 50; i++)
			__nanosleep(20);
		if (threadIdx.x == 0)
			copy_barrier_expect(arrived, 128);
		copy_barrier_wait(arrived, 0);
	}
}
template <int how> static void sending()
{
	EXPECT(issue_as_cluster({1, 2, 1}, sends_to_one_that_ends, dim3(1, 2), 32, 136, how) == cudaSuccess);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

/* --- early launches ------------------------------------------------------------------------------------ */

enum ahead { WAITS_FIRST, READS_WRITTEN, WRITES_WRITTEN, WRITES_READ, READS_READ, BLOCK_WAITS, WARP_WAITS, NEVER_WAITS, BEGINS_NEXT, COPIES };

__global__ void goes_before(float *written, const float *read)
{
	int t = threadIdx.x;
	written[t] = read[t];
}
/* A thread that waits at the end may first touch only memory that the previous kernel left alone. */
__global__ void goes_ahead(float *written, float *read, float *out, int how)
{
	float *x = shared_memory<float>();
	int t = threadIdx.x;
	if (how == NEVER_WAITS && t == 5)
		return;
	if (how == BEGINS_NEXT)
		let_next_begin();
	if (how == WAITS_FIRST || how == NEVER_WAITS || (how == BLOCK_WAITS && t == 40) || (how == WARP_WAITS && t < 32))
		wait_for_previous();
	if (how == BLOCK_WAITS)
		__syncthreads();
	if (how == READS_READ)
		out[t] = read[t];
	else if (how == COPIES)
		copy_async(x + 4 * t, written + 4 * (t % 16));
	else if (how == WRITES_READ)
		read[t] = 1;
	else if (how == WRITES_WRITTEN)
		((unsigned char *)written)[4 * t + 1] = 0;
	else
		out[t] = written[t];
	if (how != BLOCK_WAITS)
		wait_for_previous();
	let_next_begin();
	read[t] = written[t] = 3;
	copy_commit();
	copy_wait<0>();
}
template <int how, bool early> static void ahead_of_a_kernel()
{
	float *written = device<float>(64), *read = device<float>(64), *out = device<float>(64);
	issue(false, goes_before, 1, 64, 0, written, read);
	issue(early, goes_ahead, 1, 64, 1024, written, read, out, how);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}
/* ahead_of_a_kernel as a graph, replayed on another stream. */
template <int how> static void ahead_in_a_graph()
{
	float *written = device<float>(64), *read = device<float>(64), *out = device<float>(64);
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaStream_t other;
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
	EXPECT(cudaStreamBeginCapture(test_stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
	issue(false, goes_before, 1, 64, 0, written, read);
	issue(true, goes_ahead, 1, 64, 1024, written, read, out, how);
	EXPECT(cudaStreamEndCapture(test_stream(), &graph) == cudaSuccess && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
	EXPECT(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0) == cudaSuccess);
	EXPECT(cudaGraphLaunch(exec, other) == cudaSuccess && cudaStreamSynchronize(other) == cudaSuccess);
}
/* A copy has ended before the kernel after it begins, and so has the work before the copy. */
static void ahead_of_a_copy()
{
	float *written = device<float>(64), *read = device<float>(64), *out = device<float>(64);
	issue(false, goes_before, 1, 64, 0, written, read);
	EXPECT(cudaMemsetAsync(written, 0, 64 * sizeof(float), test_stream()) == cudaSuccess);
	issue(true, goes_ahead, 1, 64, 1024, written, read, out, READS_WRITTEN);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

template <void (*kernel)(float *, bool), bool correct> static void one_block()
{
	run(kernel, 1, 64, 256, device<float>(64), correct);
}
template <void (*kernel)(float *, bool), bool correct> static void one_warp()
{
	run(kernel, 1, 32, 128, device<float>(32), correct);
}

template <int fault> static void copying()
{
	run(copies, 1, 64, 1024, device<float>(64), device<float>(256), fault);
}
static void freed()
{
	float *x = device<float>(64);
	EXPECT(cudaFree(x) == cudaSuccess);
	run(writes_one_more, 1, 32, 0, x, 1, true);
}
static void host_pointer()
{
	static float x[64];
	run(writes_one_more, 1, 32, 0, x, 1, true);
}
static void host_touches()
{
	float *x = device<float>(64);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
	*(volatile float *)x = 1;
}

const test_case planted_cases[] = {
    {"a_missing_barrier_is_found", one_block<neighbours, false>, "race: read of 4 bytes at shared memory", nullptr},
    {"a_missing_barrier_is_found_in_reverse", one_block<neighbours, false>, "race: ", "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"a_missing_barrier_is_found_in_any_order", one_block<neighbours, false>, "race: ", "ADDITIVE_EMULATOR_ORDER=shuffle:7"},
    {"a_barrier_orders_neighbours", one_block<neighbours, true>, nullptr, nullptr},
    {"a_barrier_orders_neighbours_in_any_order", one_block<neighbours, true>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle"},
    {"a_missing_syncwarp_is_found", one_warp<lanes, false>, "race: write of 4 bytes", nullptr},
    {"a_syncwarp_orders_lanes", one_warp<lanes, true>, nullptr, nullptr},
    {"a_shuffle_orders_no_memory", one_warp<replaced_after_a_shuffle, false>, "race: write of 4 bytes", nullptr},
    {"a_syncwarp_after_a_shuffle_does", one_warp<replaced_after_a_shuffle, true>, nullptr, nullptr},
    {"half_a_warp_does_not_order_the_other", one_warp<halves_of_a_warp, false>, "race: read of 4 bytes", nullptr},
    {"half_a_warp_orders_itself", one_warp<halves_of_a_warp, true>, nullptr, nullptr},
    {"a_write_after_reads_is_found", one_block<rounds, false>, "race: read of 4 bytes at shared memory", nullptr},
    {"two_barriers_a_round_are_enough", one_block<rounds, true>, nullptr, nullptr},
    {"a_write_over_what_others_read", one_block<replaced, false>, "race: write of 4 bytes at shared memory + 0, and the read by", nullptr},
    {"a_write_after_others_have_read", one_block<replaced, true>, nullptr, nullptr},
    {"a_barrier_that_some_never_reach", one_block<ends_early, false>, "divergent barrier: in block 0, 32 threads", nullptr},
    {"a_barrier_that_all_reach", one_block<ends_early, true>, nullptr, nullptr},
    {"lanes_at_different_shuffles", one_warp<meets_elsewhere, false>, "mismatched meeting: lane 16 is at __shfl_down_sync", nullptr},
    {"lanes_at_one_shuffle", one_warp<meets_elsewhere, true>, nullptr, nullptr},
    {"lanes_that_wait_for_lanes_at_a_barrier", one_block<half_shuffles, false>, "stuck: of 64 threads of block 0", nullptr},
    {"lanes_that_all_shuffle", one_block<half_shuffles, true>, nullptr, nullptr},
    {"a_byte_of_another_is_found", []() { run(small_neighbours, 1, 32, 64, device<uint16_t>(32), false); }, "race: write of", nullptr},
    {"halves_of_a_word_are_apart", []() { run(small_neighbours, 1, 32, 64, device<uint16_t>(32), true); }, nullptr, nullptr},
    {"one_element_too_many_is_written", []() { run(writes_one_more, 1, 64, 0, device<float>(33), 33, false); },
     "out of bounds: write of 4 bytes at an allocation of 132 bytes", nullptr},
    {"no_element_too_many_is_written", []() { run(writes_one_more, 1, 64, 0, device<float>(33), 33, true); }, nullptr, nullptr},
    {"one_element_too_many_is_read", []() { run(reads_one_more, 1, 64, 0, device<float>(64), device<float>(33), 33, false); },
     "out of bounds: read of 4 bytes at an allocation of 132 bytes", nullptr},
    {"no_element_too_many_is_read", []() { run(reads_one_more, 1, 64, 0, device<float>(64), device<float>(33), 33, true); }, nullptr, nullptr},
    {"shared_memory_has_an_end", one_block<shared_one_more, false>, "out of bounds: write of 4 bytes at shared memory + 256", nullptr},
    {"shared_memory_to_its_end", one_block<shared_one_more, true>, nullptr, nullptr},
    {"shared_memory_that_was_never_written", one_block<unwritten, false>, "uninitialised: read of 4 bytes at shared memory + 28", nullptr},
    {"shared_memory_that_all_wrote", one_block<unwritten, true>, nullptr, nullptr},
#ifndef __clang__ /* clang does not report loads of whole structures */
    {"a_vector_at_an_odd_place", one_warp<takes_apart, false>, "misaligned: ", nullptr},
#endif
    {"a_stack_that_overflows", []() { run(deep, 1, 32, 0, device<float>(1), 40); }, "stack overflow", nullptr},
    {"a_table_of_constants_may_be_read", one_warp<reads_a_table, true>, nullptr, nullptr},
    {"a_variable_of_the_host_may_not", one_warp<reads_a_table, false>, "host memory: read of 4 bytes", nullptr},
    {"freed_memory_is_known_as_such", freed, "freed memory: write of 4 bytes at an allocation of 256 bytes", nullptr},
    {"host_memory_is_none_of_a_kernel's", host_pointer, "host memory: write of 4 bytes", nullptr},
    {"device_memory_is_none_of_the_host's", host_touches, "host code touches device memory: an allocation of 256 bytes", nullptr},
    {"two_blocks_at_one_place", []() { run(one_place, 6, 32, 0, device<float>(6), false); }, "no fences order them", nullptr},
    {"two_blocks_at_two_places", []() { run(one_place, 6, 32, 0, device<float>(6), true); }, nullptr, nullptr},
    {"a_flag_before_all_have_written", handing_over<BEFORE_ALL_HAVE_WRITTEN>, "race: read of 4 bytes at an allocation", nullptr},
    {"a_flag_without_a_fence_before_it", handing_over<NO_FENCE_AFTER_WRITES>, "race: read of 4 bytes at an allocation", nullptr},
    {"a_flag_without_a_fence_after_it", handing_over<NO_FENCE_BEFORE_READS>, "race: read of 4 bytes at an allocation", nullptr},
    {"a_flag_with_fences", handing_over<SOUND>, nullptr, nullptr},
    {"a_plain_read_of_a_word", []() { run(words, 2, 64, 0, device<exchange_word>(64), device<float>(64), false); },
     "race: read of 8 bytes at an allocation", nullptr},
    {"words_that_are_numbers_need_no_fence", []() { run(words, 2, 64, 0, device<exchange_word>(64), device<float>(64), true); }, nullptr,
     nullptr},
    {"a_ticket_without_a_fence", []() { run(tickets, 9, 64, 4, device<float>(576), device<unsigned>(1), device<float>(64), false); },
     "race: read of 4 bytes at an allocation", nullptr},
    {"a_ticket_with_fences", []() { run(tickets, 9, 64, 4, device<float>(576), device<unsigned>(1), device<float>(64), true); }, nullptr, nullptr},
    {"a_chain_that_does_not_wait", []() { run(chain, 9, 64, 0, device<float>(576), device<exchange_word>(9), false); }, "race: read of", nullptr},
    {"a_chain_that_waits", []() { run(chain, 9, 64, 0, device<float>(576), device<exchange_word>(9), true); }, nullptr, nullptr},
    {"a_chain_that_waits_in_any_order", []() { run(chain, 9, 64, 0, device<float>(576), device<exchange_word>(9), true); }, nullptr,
     "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"blocks_that_wait_for_all", all_wait_for_all<COMPLETE>, nullptr, nullptr},
    {"blocks_that_wait_for_all_in_any_order", all_wait_for_all<COMPLETE>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"blocks_that_wait_for_none", all_wait_for_all<NO_WAIT>, "race: ", nullptr},
    {"blocks_that_add_before_their_threads_have_written", all_wait_for_all<NO_BLOCK_BARRIER>, "race: ", nullptr},
    {"blocks_that_poll_and_then_fence", all_wait_for_all<RELAXED>, nullptr, nullptr},
    {"blocks_that_poll_without_a_fence", all_wait_for_all<NO_POLL_FENCE>, "race: ", nullptr},
    {"a_wait_that_never_ends", []() { run(waits_for_ever, 1, 32, 0, device<exchange_word>(1)); }, "deadlock: every thread polls", nullptr},
    {"a_plain_write_among_atomics", []() { run(counts, 1, 32, 0, device<unsigned>(1), false); }, "race: ", nullptr},
    {"atomics_among_themselves", []() { run(counts, 5, 32, 0, device<unsigned>(1), true); }, nullptr, nullptr},
    {"a_copy_that_is_not_waited_for", copying<1>, "uninitialised: read of 4 bytes at shared memory", nullptr},
    {"a_copy_that_others_do_not_wait_for", copying<2>, "uninitialised: read of 4 bytes at shared memory", nullptr},
    {"a_copy_over_what_others_still_read", copying<3>, "race: write of 16 bytes at shared memory", nullptr},
    {"a_copy_that_all_wait_for", copying<0>, nullptr, nullptr},
    {"bulk_copies_that_all_wait_for", copying_in_bulk<BULK>, nullptr, nullptr},
    {"bulk_copies_in_any_order", copying_in_bulk<BULK>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"a_bulk_copy_that_is_not_waited_for", copying_in_bulk<NO_BULK_WAIT>, "uninitialised: read of 4 bytes at shared memory", nullptr},
    {"a_bulk_copy_over_what_others_still_read", copying_in_bulk<REUSED_EARLY>, "race: write of 128 bytes at shared memory", nullptr},
    {"a_bulk_copy_before_others_have_waited", copying_in_bulk<REUSED_EARLY>, "deadlock: every thread polls",
     "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"a_block_that_ends_before_a_bulk_copy", copying_in_bulk<LEFT_BEHIND>, "cluster: block 0 ends before a copy", nullptr},
    {"a_bulk_copy_that_is_expected_twice", copying_in_bulk<EXPECTED_TWICE>, "cluster: bytes are expected twice in a phase", nullptr},
    {"a_bulk_copy_of_an_odd_address", copying_in_bulk<ODD_ADDRESS>, "misaligned: a bulk copy of 128 bytes", nullptr},
    {"a_bulk_copy_past_the_end", copying_in_bulk<PAST_THE_END>, "out of bounds: ", nullptr},
    {"a_bulk_copy_without_a_barrier", copying_in_bulk<NO_BULK_BARRIER>, "uninitialised: relaxed load of 8 bytes", nullptr},
    {"products_that_are_waited_for", grouping<GROUPED>, nullptr, nullptr},
    {"products_that_are_waited_for_in_any_order", grouping<GROUPED>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"a_product_without_a_fence", grouping<NO_PRODUCT_FENCE>, "wgmma: no wgmma_fence", nullptr},
    {"a_product_without_a_fence_after_a_wait", grouping<NO_FENCE_AFTER_WAIT>, "wgmma: no wgmma_fence", nullptr},
    {"a_product_that_is_not_committed", grouping<NO_COMMIT>, "wgmma: a wait for products that were not committed", nullptr},
    {"a_product_that_is_not_waited_for", grouping<NO_PRODUCT_WAIT>, "wgmma: the thread ends without a wait", nullptr},
    {"sums_that_are_read_before_the_wait_are_nan", grouping<READS_SUMS>, nullptr, nullptr},
    {"sums_that_are_written_before_the_wait", grouping<WRITES_SUMS>, "wgmma: the sums of a product that is not waited for were changed", nullptr},
    {"a_product_whose_a_changes", grouping<CHANGES_A>, "wgmma: a was changed before the wait", nullptr},
    {"a_product_whose_b_is_written_meanwhile", grouping<WRITES_B>, "race: ", nullptr},
    {"a_product_whose_b_is_read_meanwhile", grouping<READS_B>, nullptr, nullptr},
    {"a_product_of_what_was_not_published", grouping<UNPUBLISHED>, "was written by thread 77, which has not called wgmma_publish", nullptr},
    {"a_product_of_what_was_published_before_it_was_written", grouping<PUBLISHED_LATE>,
     "was written by thread 77, which has not called wgmma_publish", nullptr},
    {"a_product_of_what_others_still_write", grouping<NO_BARRIER_AFTER_B>, "uninitialised: read of 16 bytes at shared memory", nullptr},
    {"a_product_whose_lanes_differ", grouping<OTHER_VIEW>, "wgmma: the lanes of a warp differ in a view", nullptr},
    {"a_product_with_a_swizzle", grouping<SWIZZLED>, "wgmma: the view 4000", nullptr},
    {"a_product_past_the_end_of_shared_memory", grouping<B_PAST_THE_END>, "out of bounds: read of 16 bytes at shared memory", nullptr},
    {"a_product_with_a_in_shared_memory", sharing_a<SHARED_A>, nullptr, nullptr},
    {"a_product_whose_a_was_not_published", sharing_a<A_UNPUBLISHED>, "was written by thread 77, which has not called wgmma_publish", nullptr},
    {"a_product_whose_a_is_written_meanwhile", sharing_a<WRITES_SHARED_A>, "race: ", nullptr},
    {"a_product_whose_a_is_past_shared_memory", sharing_a<A_PAST_THE_END>, "out of bounds: read of 4 bytes at shared memory", nullptr},
    {"a_product_by_two_warps", []() { run(products<GROUPED>, 1, 64, 2048, device<float>(128)); }, "is not in a group of 128", nullptr},
    {"a_ring_with_its_barriers", ringing<RINGED>, nullptr, nullptr},
    {"a_ring_with_its_barriers_in_reverse", ringing<RINGED>, nullptr, "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"a_ring_with_its_barriers_in_any_order", ringing<RINGED>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"a_product_that_does_not_wait_for_its_place", ringing<NO_FULL_WAIT>, "uninitialised: read of 16 bytes at shared memory", nullptr},
    {"a_load_that_does_not_wait_for_its_place", ringing<NO_FREE_WAIT>, "race: read of 16 bytes at shared memory", nullptr},
    {"a_place_that_is_freed_before_its_product", ringing<FREED_EARLY>, "race: ", nullptr},
    {"a_place_that_a_lane_frees_for_others", ringing<A_LANE_FREES>, "race: ", nullptr},
    {"a_load_that_is_not_published", ringing<LOADED_UNPUBLISHED>, "which has not called wgmma_publish", nullptr},
    {"a_load_after_the_arrival", ringing<ARRIVES_BEFORE_IT_LOADS>, "race: ", "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"a_place_for_which_too_few_arrive", ringing<TOO_FEW_ARRIVE>, "deadlock: every thread polls", nullptr},
    {"a_place_that_a_lane_fills_for_others", ringing<A_LANE_FILLS>, "race: read of 16 bytes at shared memory", nullptr},
    {"a_load_that_a_lane_publishes", ringing<PUBLISHED_BY_A_LANE>, "which has not called wgmma_publish", nullptr},
    {"a_pair_with_its_barriers", pairing<PAIRED>, nullptr, nullptr},
    {"a_pair_with_its_barriers_in_reverse", pairing<PAIRED>, nullptr, "ADDITIVE_EMULATOR_ORDER=reverse"},
    {"a_pair_with_its_barriers_in_any_order", pairing<PAIRED>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:3"},
    {"a_copy_to_a_block_that_may_not_have_begun", pairing<NO_FIRST_BARRIER>, "so that block 1 may not have begun", nullptr},
    {"an_end_without_a_wait_for_the_cluster", pairing<NO_LAST_WAIT>, "cluster: the thread ends without a wait", nullptr},
    {"a_wait_for_the_cluster_without_an_arrival", pairing<WAITS_FIRST_OF_ALL>, "cluster: the thread waits without having arrived", nullptr},
    {"two_arrivals_at_one_barrier_of_the_cluster", pairing<ARRIVES_TWICE>, "cluster: the thread arrives again before it waits", nullptr},
    {"a_product_that_does_not_wait_for_a_copy", pairing<NO_COPY_WAIT>, "uninitialised: read of 16 bytes at shared memory", nullptr},
    {"a_product_of_which_one_thread_waits_for_a_copy", pairing<ONE_COPY_WAITS>, "race: read of 16 bytes at shared memory", nullptr},
    {"a_copy_before_all_have_stored", pairing<NO_ROUND_BARRIER>, "race: read of 512 bytes at shared memory", nullptr},
    {"a_copy_of_what_was_not_published", pairing<PAIR_UNPUBLISHED>, "was written by thread 77, which has not called wgmma_publish", nullptr},
    {"a_pair_with_two_places", pairing<TWO_PLACES>, "race: write of 4 bytes at shared memory", nullptr},
    {"a_copy_whose_bytes_change", pairing<CHANGES_SENT>, "cluster: the bytes of a copy were changed before it arrived", nullptr},
    {"a_block_that_ends_early", pairing<ENDS_EARLY>, "cluster: block 1 ends before a copy", nullptr},
    {"a_block_that_ends_before_its_copy_is_read", sending<1>, "cluster: block 0 ends before a copy from it has arrived", nullptr},
    {"a_copy_to_a_block_that_has_ended", sending<0>, "cluster: a copy to block 1, which has ended", nullptr},
    {"a_copy_without_a_barrier", pairing<NOT_A_BARRIER>, "race: relaxed load of 8 bytes at shared memory", nullptr},
    {"bytes_that_are_expected_twice", pairing<EXPECTS_TWICE>, "cluster: bytes are expected twice in a phase", nullptr},
    {"bytes_that_never_arrive", pairing<EXPECTS_TOO_MUCH>, "deadlock: every thread polls", nullptr},
    {"a_copy_past_shared_memory", pairing<PAST_SHARED>, "out of bounds: ", nullptr},
    {"a_copy_of_an_odd_size", pairing<ODD_BYTES>, "misaligned: a copy of 520 bytes", nullptr},
    {"a_copy_to_no_block", pairing<NO_SUCH_RANK>, "cluster: a copy to rank 2 of 2 blocks", nullptr},
    {"a_bulk_prefetch_to_the_end", []() { run(prefetches, 1, 32, 0, device<unsigned char>(256) + 16, 240); }, nullptr, nullptr},
    {"a_bulk_prefetch_of_nothing", []() { run(prefetches, 1, 32, 0, device<unsigned char>(256) + 512, -256); }, nullptr, nullptr},
    {"a_bulk_prefetch_past_the_end", []() { run(prefetches, 1, 32, 0, device<unsigned char>(256) + 16, 256); },
     "a bulk prefetch: 256 bytes at an allocation of 256 bytes", nullptr},
    {"a_bulk_prefetch_of_an_odd_address", []() { run(prefetches, 1, 32, 0, device<unsigned char>(256) + 8, 16); }, "misaligned: a bulk prefetch",
     nullptr},
    {"an_early_launch_reads_what_the_one_before_writes", ahead_of_a_kernel<READS_WRITTEN, true>,
     "early launch: read of 4 bytes at an allocation of 256 bytes", nullptr},
    {"an_early_launch_copies_what_the_one_before_writes", ahead_of_a_kernel<COPIES, true>, "early launch: read of 16 bytes", nullptr},
    {"an_early_launch_writes_what_the_one_before_writes", ahead_of_a_kernel<WRITES_WRITTEN, true>, "early launch: write of 1 bytes", nullptr},
    {"an_early_launch_writes_what_the_one_before_reads", ahead_of_a_kernel<WRITES_READ, true>,
     "and the read by the kernel before", nullptr},
    {"an_early_launch_of_which_a_warp_waits", ahead_of_a_kernel<WARP_WAITS, true>, "early launch: read of 4 bytes", nullptr},
    {"an_early_launch_that_waits", ahead_of_a_kernel<WAITS_FIRST, true>, nullptr, nullptr},
    {"an_early_launch_that_waits_in_any_order", ahead_of_a_kernel<WAITS_FIRST, true>, nullptr, "ADDITIVE_EMULATOR_ORDER=shuffle:5"},
    {"an_early_launch_reads_what_the_one_before_reads", ahead_of_a_kernel<READS_READ, true>, nullptr, nullptr},
    {"an_early_launch_of_which_one_waits_before_a_barrier", ahead_of_a_kernel<BLOCK_WAITS, true>, nullptr, nullptr},
    {"an_early_launch_that_never_waits", ahead_of_a_kernel<NEVER_WAITS, true>, "early launch: the thread ends without wait_for_previous", nullptr},
    {"an_early_launch_that_lets_the_next_begin_too_early", ahead_of_a_kernel<BEGINS_NEXT, true>,
     "early launch: let_next_begin before wait_for_previous", nullptr},
    {"a_launch_that_is_not_early_reads_what_it_likes", ahead_of_a_kernel<READS_WRITTEN, false>, nullptr, nullptr},
    {"a_launch_that_is_not_early_need_not_wait", ahead_of_a_kernel<BEGINS_NEXT, false>, nullptr, nullptr},
    {"an_early_launch_in_a_graph_that_does_not_wait", ahead_in_a_graph<READS_WRITTEN>, "early launch: read of 4 bytes", nullptr},
    {"an_early_launch_in_a_graph_that_waits", ahead_in_a_graph<WAITS_FIRST>, nullptr, nullptr},
    {"nothing_is_ahead_of_a_copy", ahead_of_a_copy, nullptr, nullptr},
    {},
};
