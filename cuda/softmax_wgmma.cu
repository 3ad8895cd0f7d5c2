/* softmax_attention in bf16 by wgmma (compute capability 9.0; softmax_wgmma.cuh).
 *
 * A block has 128 queries. A stage has the keys of tile i and the values of tile i - 1, the operands that a group
 * multiplies together:
 *   out += p v of tile i - 1;  s = q kᵀ of tile i;  wait;  free the stage;  p = softmax of s (softmax_online.cuh)
 * While one group waits for its products, the other computes exponentials. Queries and p are operands in registers. The
 * sums are added in the order of attend_mma, so y and log_normalizer have its bits. */
#include "cuda/softmax_online.cuh"
#include "cuda/softmax_wgmma.cuh"

/* The results come first. */
template <int W> using attend_ring = wgmma_ring<W, wgmma_attention<W>::RESULTS>;

template <int W, bool drops>
__global__ void __launch_bounds__(wgmma_attention<W>::THREADS, 1)
    attend_wgmma(attention a, const bf16 *q, const bf16 *k, const bf16 *v, bf16 *y, float *log_normalizer)
{
	typedef wgmma_attention<W> sizes;
	enum { TILE = sizes::TILE };
	const int warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0);
	const attention_place at = attention_queries_here(a, sizes::ROWS);
	const int head = at.head / a.group, place = at.first + a.shift, first = attention_begin(a, place);
	const int tiles = wgmma_tiles(a, first, at.first + sizes::ROWS);
	attend_ring<W> ring = {};
	ring.begin();
	if constexpr (HAS_WGMMA) {
		if (warp >= sizes::WARPS) {
			fewer_registers<sizes::LOADING_REGISTERS>();
			k += at.key_row * a.k_row + (int64_t)head * a.dh;
			v += at.key_row * a.v_row + (int64_t)head * a.dv;
			ring.load(tiles + 1, [&](const attend_ring<W> &to, int i) {
				const int key = first + i * TILE, before = key - TILE;
				if (i < tiles)
					load_tile<W>(to.tile(0), k + key * a.k_row, a.k_row, a.keys - key, a.dh);
				if (i > 0)
					load_tile<W>(to.tile(1), v + before * a.v_row, a.v_row, a.keys - before, a.dv);
			});
			return;
		}
		more_registers<sizes::REGISTERS>();
		const int group = warp / 4 * sizes::GROUP_ROWS,
		          end_tile = wgmma_tiles(a, first, at.first + group + sizes::GROUP_ROWS);
		const attention_dropout drop = attention_drop(a, attention_chain(a, at.sequence, at.head));
		queries<W, 1> w = {};
		unsigned operand[W / 16][4], p[4][1][4], kept[1];
		float s[1][8][4];
		int tile = 0, key = first;
		const auto pass = [&] {
			ring.skip();
			tile++;
			key += TILE;
		};
		begin(w, place);
		load_rows<W>(operand, q + (at.row + at.first + w.row) * a.q_row + at.head * a.dh, a.q_row,
		                a.queries - at.first - w.row, a.dh);
		while (tile < end_tile && key < attention_begin(a, place + group))
			pass();
		if (at.first + group < a.queries && tile < end_tile) {
			uint64_t keys;
			const auto prepare = [&] { /* while products run */
				draw<drops>(kept, w, a, drop, key);
				keys = attention_keys(a, at.key_row, key);
			};
			ring.wait_full();
			wgmma_fence();
			begin_scores<W>(s[0], operand, ring.tile(0));
			wgmma_commit();
			prepare();
			wgmma_wait(flat(s[0]));
			ring.release();
			for (;;) {
				weigh<drops, false>(p, s, kept, w, a, keys, key, NULL);
				tile++;
				key += TILE;
				ring.wait_full();
				wgmma_fence();
				begin_sums<W>(w.out[0], p, ring.tile(1));
				if (tile == end_tile)
					break;
				begin_scores<W>(s[0], operand, ring.tile(0));
				wgmma_commit();
				prepare();
				wgmma_wait(flat(s[0]), flat(w.out[0]));
				ring.release();
			}
			wgmma_commit();
			wgmma_wait(flat(w.out[0]));
			ring.release();
			tile++;
		}
		while (tile <= tiles)
			pass();
		end(w, a, at, drop.factor, shared_memory<bf16>(), y, log_normalizer);
	}
}

bool cuda_softmax_may_wgmma(const backend *b, const op_call *call, const attention &a)
{
	const int widest = a.dh > a.dv ? a.dh : a.dv;
	return cuda_of(b)->wgmma_attention && attention_mma(call, a) && !a.bias && a.dh % 8 == 0 && a.dv % 8 == 0 &&
	       widest > 32;
}

status cuda_softmax_wgmma(backend *b, const attention &a, int64_t batch, const bf16 *q, const bf16 *k, const bf16 *v,
                          bf16 *y, float *log_normalizer)
{
	return wgmma_by_shape(a, [&](auto width, auto drops) {
		constexpr int W = decltype(width)::value;
		typedef wgmma_attention<W> sizes;
		return cuda_launch(b, attend_wgmma<W, decltype(drops)::value>,
		                   attention_grid(batch, a.heads, a.queries, sizes::ROWS), sizes::THREADS,
		                   attend_ring<W>::BYTES, a, q, k, v, y, log_normalizer);
	});
}
