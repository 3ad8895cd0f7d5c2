/* softmax_attention_grad in bf16 by wgmma (compute capability 9.0; softmax_wgmma.cuh): dk and dv, and dq, in two launches
 * as in softmax_attention_grad.cu, whose first launch comes before.
 *
 * Keys: a block has 128 keys, and the ring has the queries that see them and their dy, level and along. For tile i:
 *   s = k qᵀ, t = v dyᵀ;  wait;  p and ds of s and t;  dv += p dy, dk += ds q of tile i;  s and t of tile i + 1;  …
 * Queries: a block has 128 queries, and the ring has the keys and values that they see:
 *   s = q kᵀ, t = dy vᵀ;  wait;  ds of s and t;  dq += ds k of tile i;  s and t of tile i + 1;  …
 * While one group waits for its products, the other computes exponentials. p and ds are operands in registers. The
 * registers of a group hold the sums and s and t; for queries also the block's own queries and dy. With heads of up to 64
 * channels they also hold the block's own keys and values, and the products of two tiles run at once. With wider heads
 * keys and values are operands in shared memory.
 *
 * The sums are added in the order of keys_mma and queries_mma, so the results have their bits. */
#include "cuda/softmax_gradient.cuh"
#include "cuda/softmax_wgmma.cuh"

/* Operands of products over 64 rows, from sums side by side. */
__device__ __forceinline__ void narrow(unsigned (&p)[4][1][4], const float (&s)[8][4])
{
#pragma unroll
	for (int n = 0; n < 4; n++)
		mma_narrow(p[n][0], s[2 * n], s[2 * n + 1]);
}

/* True if a group has the registers for the products of two tiles, and that of keys also for its own rows. */
template <int W> static constexpr bool IS_NARROW = W <= 64;

/* --- dk and dv -------------------------------------------------------------------------------------- */

/* The keys and values of both groups come first, then the results. A stage: queries, dy, level, along. */
template <int W>
using keys_ring = wgmma_ring<W, 2 * wgmma_attention<W>::GROUPS * wgmma_attention<W>::TILE_BYTES, 2 * ATTENTION_TILE>;

template <int W> __device__ __forceinline__ unsigned char *keys_of(int group)
{
	return shared_memory<unsigned char>(2 * group * wgmma_attention<W>::TILE_BYTES);
}
template <int W> __device__ __forceinline__ unsigned char *values_of(int group)
{
	return keys_of<W>(group) + wgmma_attention<W>::TILE_BYTES;
}

template <int W, bool drops>
__global__ void __launch_bounds__(wgmma_attention<W>::THREADS, 1) keys_wgmma(gradient<bf16> g)
{
	typedef wgmma_attention<W> sizes;
	enum { TILE = sizes::TILE, GROUP_ROWS = sizes::GROUP_ROWS };
	const attention &a = g.a;
	const int warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0);
	const attention_place at = attention_keys_here(a, sizes::ROWS);
	const int begin = attention_first_query(a, at.first), past = attention_end(a, min(at.first + sizes::ROWS, a.keys));
	const int tiles = (max(past - begin, 0) + TILE - 1) / TILE, stages = tiles * a.group;
	const int64_t to = at.key_row + at.first;
	const bf16 *k = g.k + to * a.k_row + at.head * a.dh, *v = g.v + to * a.v_row + at.head * a.dv;
	keys_ring<W> ring = {};
	ring.begin();
	if constexpr (HAS_WGMMA) {
		if (warp >= sizes::WARPS) {
			fewer_registers<sizes::LOADING_REGISTERS>();
			for (int i = 0; !IS_NARROW<W> && i < sizes::GROUPS && at.first + i * GROUP_ROWS < a.keys; i++) {
				const int row = i * GROUP_ROWS, count = a.keys - at.first - row;
				load_tile<W>(keys_of<W>(i), k + row * a.k_row, a.k_row, count, a.dh);
				load_tile<W>(values_of<W>(i), v + row * a.v_row, a.v_row, count, a.dv);
			}
			ring.load(stages, [&](const keys_ring<W> &to, int i) {
				const of_head<bf16> h = head_at(g, at.sequence, at.head * a.group + i / tiles);
				const int query = begin + i % tiles * TILE, x = (int)threadIdx.x - sizes::WARPS * WARP;
				load_tile<W>(to.tile(0), h.q + query * a.q_row, a.q_row, a.queries - query, a.dh);
				load_tile<W>(to.tile(1), h.dy + query * a.y_row, a.y_row, a.queries - query, a.dv);
				to.numbers()[x] = x < TILE ? level_of(a, h, query + x) : along_of(a, h, query + x - TILE);
			});
			copy_wait<0>();
			__syncthreads();
			return;
		}
		more_registers<sizes::REGISTERS>();
		const int group = warp / 4, first = at.first + group * GROUP_ROWS;
		const own_keys own = own_keys_at(a, at.key_row, at.first + 16 * warp);
		unsigned key[W / 16][4], value[W / 16][4], p[4][1][4], ds[4][1][4], kept = 0;
		float dk[W / 8][4] = {}, dv[W / 8][4] = {}, s[8][4], t[8][4];
		if constexpr (IS_NARROW<W>) {
			load_rows<W>(key, k + 16 * warp * a.k_row, a.k_row, a.keys - own.first, a.dh);
			load_rows<W>(value, v + 16 * warp * a.v_row, a.v_row, a.keys - own.first, a.dv);
		}
		int stage = 0, head = at.head * a.group, query = begin;
		const float factor = attention_drop(a, 0).factor;
		const auto is_seen = [&] {
			const int place = query + a.shift;
			return stage < stages && first < a.keys &&
			       attention_any(a, place, place + TILE - 1, first, first + GROUP_ROWS - 1);
		};
		const auto step = [&] {
			stage++;
			query += TILE;
			if (query < past)
				return;
			query = begin;
			head++;
		};
		const auto begin_products = [&] {
			if constexpr (drops) { /* first, while s and t need no registers */
				const attention_dropout drop = attention_drop(a, attention_chain(a, at.sequence, head));
				kept = attention_kept_tiles<true, 8>(drop, query, own.first);
			}
			ring.wait_full();
			wgmma_fence();
			if constexpr (IS_NARROW<W>) {
				begin_scores<W>(s, key, ring.tile(0));
				begin_scores<W>(t, value, ring.tile(1));
			} else {
				begin_scores<W>(s, keys_of<W>(group), ring.tile(0));
				begin_scores<W>(t, values_of<W>(group), ring.tile(1));
			}
			wgmma_commit();
		};
		while (stage < stages) {
			if (!is_seen()) {
				ring.skip();
				step();
				continue;
			}
			begin_products();
			wgmma_wait(flat(s), flat(t));
			for (;;) {
				const float *level = ring.numbers();
				keys_by_queries<drops, false>(s, t, a, kept, factor, level, level + TILE, query, own, NULL);
				narrow(p, s);
				narrow(ds, t);
				keys_ring<W> read = ring;
				ring.next();
				step();
				const bool more = is_seen();
				wgmma_fence();
				begin_sums<W>(dv, p, read.tile(1));
				begin_sums<W>(dk, ds, read.tile(0));
				wgmma_commit();
				if (!IS_NARROW<W> || !more) {
					wgmma_wait(flat(dv), flat(dk));
					read.release();
				}
				if (!more)
					break;
				begin_products();
				if constexpr (IS_NARROW<W>) {
					wgmma_wait(flat(s), flat(t), flat(dv), flat(dk));
					read.release();
				} else
					wgmma_wait(flat(s), flat(t));
			}
		}
		__syncthreads();
		bf16 *results = shared_memory<bf16>();
		if (g.dk)
			mma_store<W>(dk, {a.scale, a.scale}, results, 16 * warp, g.dk + to * a.k_row + at.head * a.dh, a.k_row,
			             a.keys - at.first, a.dh);
		if (g.dv)
			mma_store<W>(dv, {factor, factor}, results, 16 * warp,
			             g.dv + to * a.v_row + at.head * a.dv, a.v_row, a.keys - at.first, a.dv);
	}
}

/* --- dq --------------------------------------------------------------------------------------------- */

/* The results come first. A stage: keys, values. */
template <int W> using queries_ring = wgmma_ring<W, wgmma_attention<W>::RESULTS>;

template <int W, bool drops>
__global__ void __launch_bounds__(wgmma_attention<W>::THREADS, 1) queries_wgmma(gradient<bf16> g)
{
	typedef wgmma_attention<W> sizes;
	enum { TILE = sizes::TILE };
	const attention &a = g.a;
	const int warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0);
	const attention_place at = attention_queries_here(a, sizes::ROWS);
	const of_head<bf16> h = head_at(g, at.sequence, at.head);
	const int begin = attention_begin(a, at.first + a.shift), tiles = wgmma_tiles(a, begin, at.first + sizes::ROWS);
	queries_ring<W> ring = {};
	ring.begin();
	if constexpr (HAS_WGMMA) {
		if (warp >= sizes::WARPS) {
			fewer_registers<sizes::LOADING_REGISTERS>();
			ring.load(tiles, [&](const queries_ring<W> &to, int i) {
				const int key = begin + i * TILE;
				load_tile<W>(to.tile(0), h.k + key * a.k_row, a.k_row, a.keys - key, a.dh);
				load_tile<W>(to.tile(1), h.v + key * a.v_row, a.v_row, a.keys - key, a.dv);
			});
			return;
		}
		more_registers<sizes::REGISTERS>();
		const int row = 16 * warp, from = at.first + warp / 4 * sizes::GROUP_ROWS, count = a.queries - at.first - row;
		const int end_tile = wgmma_tiles(a, begin, from + sizes::GROUP_ROWS);
		const own_queries own = own_queries_at(a, h, at.first + row);
		unsigned query[W / 16][4], dy[W / 16][4], ds[4][1][4], kept = 0;
		float dq[W / 8][4] = {}, s[8][4], t[8][4];
		uint64_t present;
		int tile = 0, key = begin;
		const auto pass = [&] {
			ring.skip();
			tile++;
			key += TILE;
		};
		const auto begin_products = [&] {
			ring.wait_full();
			wgmma_fence();
			begin_scores<W>(s, query, ring.tile(0));
			begin_scores<W>(t, dy, ring.tile(1));
			wgmma_commit();
			if constexpr (drops) /* while they run */
				kept = attention_kept_tiles<false, 8>(h.drop, own.first, key);
			present = attention_keys(a, at.key_row, key);
		};
		load_rows<W>(query, h.q + (at.first + row) * a.q_row, a.q_row, count, a.dh);
		load_rows<W>(dy, h.dy + (at.first + row) * a.y_row, a.y_row, count, a.dv);
		while (tile < end_tile && key < attention_begin(a, from + a.shift))
			pass();
		if (from < a.queries && tile < end_tile) {
			begin_products();
			wgmma_wait(flat(s), flat(t));
			for (;;) {
				queries_by_keys<drops, false>(s, t, a, kept, h.drop.factor, own, key, present, NULL);
				narrow(ds, t);
				queries_ring<W> read = ring;
				ring.next();
				tile++;
				key += TILE;
				wgmma_fence();
				begin_sums<W>(dq, ds, read.tile(0));
				wgmma_commit();
				if (!IS_NARROW<W> || tile == end_tile) {
					wgmma_wait(flat(dq));
					read.release();
				}
				if (tile == end_tile)
					break;
				begin_products();
				if constexpr (IS_NARROW<W>) {
					wgmma_wait(flat(s), flat(t), flat(dq));
					read.release();
				} else
					wgmma_wait(flat(s), flat(t));
			}
		}
		while (tile < tiles)
			pass();
		mma_store<W>(dq, {a.scale, a.scale}, shared_memory<bf16>(), row,
		             g.dq + (at.row + at.first) * a.q_row + at.head * a.dh, a.q_row, a.queries - at.first, a.dh);
	}
}

status cuda_softmax_wgmma_grad(backend *b, int64_t batch, const gradient<bf16> &g)
{
	const attention &a = g.a;
	return wgmma_by_shape(a, [&](auto width, auto drops) {
		constexpr int W = decltype(width)::value;
		constexpr bool D = decltype(drops)::value;
		typedef wgmma_attention<W> sizes;
		if (g.dk || g.dv)
			TRY(cuda_launch(b, keys_wgmma<W, D>, attention_grid(batch, a.heads / a.group, a.keys, sizes::ROWS),
			                sizes::THREADS, keys_ring<W>::BYTES, g));
		if (g.dq)
			TRY(cuda_launch(b, queries_wgmma<W, D>, attention_grid(batch, a.heads, a.queries, sizes::ROWS),
			                sizes::THREADS, queries_ring<W>::BYTES, g));
		return STATUS_OK;
	});
}
