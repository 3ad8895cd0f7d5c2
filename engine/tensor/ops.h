/* ops.h - every op: its parameters, its equation, its shapes, and the function that appends it to a graph. A reference,
 * with one section for each op, so it is long.
 *
 * Notation: f32 unless said otherwise; `…` is any leading dimensions; [i32] is an integer tensor; "?" marks an optional
 * input (pass VALUE_NONE). [real] is an activation: f32, or bf16 on backends that have it. Results are computed from it
 * in f32 and rounded once when they are stored. All [real] arguments of an op have one type, and [real] outputs have it
 * too. Gradients of parameters, statistics and scores are f32 whatever the activations are. Shapes are compared as
 * matrix views [rows, last dimension]: [B·N, D] is accepted for [B, N, D].
 *
 * Each builder returns VALUE_NONE after a failure, which the graph remembers (graph_status), so calls chain without
 * tests in between. */
#ifndef ENGINE_TENSOR_OPS_H
#define ENGINE_TENSOR_OPS_H

#include "engine/tensor/graph.h"
#include "engine/tensor/op.h"

typedef struct no_params {
	int unused;
} no_params;

/* gather: y[…, :] = table[index[…], :].
 * table [R, D] [real], [i32] or panels, index [i32] […] -> y […, D] of the table's type, f32 from panels. The table is
 * a matrix view: rows of [B, N, D] can be picked too. An index outside 0…R-1 reads zeros (callers validate tokens
 * before). Row `padding_row` gets no gradient; -1: none. */
typedef struct gather_params {
	int64_t padding_row;
} gather_params;
value op_gather(graph *g, value table, value index, int64_t padding_row);

/* gather_grad: dtable[r, :] = Σ over places with index = r of dy, in index order
 * (deterministic). index [i32] […], dy […, D] [real], table? […, D] -> dtable [rows, D], or of table's shape, whose
 * numbers are not read. */
typedef struct gather_grad_params {
	int64_t rows, padding_row;
} gather_grad_params;
value op_gather_grad(graph *g, value index, value dy, int64_t rows, int64_t padding_row);

/* hash_rows: index [i32] […] -> [i32] […], one of the three rows, in a table of 2048, that represent a label (3Lin's
 * hashed vocabulary). Of the label l = first + index, modulo 2^64,
 *   h_0 = 0x9ae16a3b2f90404f,  h_n+1 = (h_n + l) 0xc949d7c7509e6557,  the row is ⌊h_round+1 / 2^53⌋
 * and -1 where the index is below 0, so that gather reads zeros there. */
typedef struct hash_rows_params {
	int64_t first, round; /* round: 0, 1 or 2 */
} hash_rows_params;
value op_hash_rows(graph *g, value index, hash_rows_params params);

/* longest_match: for each token, the token that followed the longest earlier match of the tokens up to it (prediction
 * by partial matching). tokens [i32] [B, N], mask? [i32] [B, N] -> next [i32] [B, N]:
 *   m_ij = the largest m ≤ min(length, j + 1) with x_{i-k} = x_{j-k} for all k < m;
 *   next_i = x_{j+1} of those j that have the largest m_ij > 0, i - window + length ≤ j < i, the last; -1 without any.
 * A masked token equals none, and one below 0 is like that; where it is x_{j+1}, next is -1.
 *
 * longest_match_stream: its recurrent form, which reads `length[b]` tokens into slot `slot[b]` as shift_stream does.
 * tokens [B, N], pool, slot, position, length, mask?, start? -> next, -1 for tokens that no sequence reads. The state
 * is a ring of the last `window` tokens, ids below 2^24 as floats, longest_match_state_floats() at `offset` in the
 * slot. Token t is at place t mod window, -1 if it was masked. The contents at position 0 do not matter. */
typedef struct longest_match_params {
	int64_t window, length; /* tokens that are looked at, with the newest one; of a match */
	int64_t offset;         /* floats from the start of a slot */
} longest_match_params;
value op_longest_match(graph *g, value tokens, value mask, longest_match_params params);
value op_longest_match_stream(graph *g, value tokens, value pool, value slot, value position, value length, value mask,
                              value start, longest_match_params params);
int64_t longest_match_state_floats(int64_t window);

/* cast: y = x in another type; x […] [real] -> y […] of params' type, f32 or bf16 (nearest even, NaN stays NaN). */
typedef struct cast_params {
	dtype type;
} cast_params;
value op_cast(graph *g, value x, dtype type);

/* add, mul: elementwise over equal shapes, [real]. gate: y = a + b ⊙ c, [real]. */
value op_add(graph *g, value a, value b);
value op_mul(graph *g, value a, value b);
value op_gate(graph *g, value a, value b, value c);

/* scale: y = factor · x, [real]. */
typedef struct scale_params {
	float factor;
} scale_params;
value op_scale(graph *g, value x, float factor);

/* axpby: y = a · x + b · z, [real]. */
typedef struct axpby_params {
	float a, b;
} axpby_params;
value op_axpby(graph *g, value x, value z, float a, float b);

/* scale_by: y = s · x, x [real], s a scalar f32 tensor. */
value op_scale_by(graph *g, value x, value s);

/* tanh: y = tanh x, [real]. */
value op_tanh(graph *g, value x);

/* secant_grad: what reaches x when y = f(x) is taken for y = s ⊙ x with s = y / x held fixed, at x = 0 `at_zero`:
 * x, y, dy […] f32 -> dx = dy ⊙ s […]. */
typedef struct secant_params {
	float at_zero;
} secant_params;
value op_secant_grad(graph *g, value x, value y, value dy, float at_zero);

/* dot_rows: y[row] = factor · Σ_j a[row, j] b[row, j], summed in order of fixed parts; a […, D] f32, b of a's shape or
 * one row [D] for all -> y [rows] f32. */
value op_dot_rows(graph *g, value a, value b, float factor);

/* sum_rows: y[j] = factor · Σ_rows x[row, j]; x […, D] [real] -> [D] f32. */
value op_sum_rows(graph *g, value x, float factor);

/* matmul: C = alpha · op(A) op(B) on matrix views: a tensor […, K] is the matrix
 * [rows, K]. trans_a: A is stored [K, M] and used transposed; trans_b: B is
 * stored [N, K]. A linear layer y = x Wᵀ is matmul(x, W, .trans_b = true).
 * Result: [M, N], or […, N] with A's leading dimensions when !trans_a. A and B [real]; the result is
 * of their type, or f32 when `wide` (a gradient of a weight). In C = alpha · A B with f32 A, B may be panels
 * (panel.h) of [K, N], as in the gradient of linear: A is not rounded, whatever their type. */
typedef struct matmul_params {
	bool trans_a, trans_b, wide;
	float alpha;
} matmul_params;
value op_matmul(graph *g, value a, value b, bool trans_a, bool trans_b, float alpha);
value op_matmul_wide(graph *g, value a, value b, bool trans_a, bool trans_b, float alpha);

/* quantize: y = q · step, with q an 8-bit code of x, or what 4 or 2 bits make of that.
 *   q = min(max(round(x / step), -128), 127), ties to even;  step = √(Σ x² / n) / 32, or 1/32 for QUANTIZE_FIXED
 *   bits 4: 9 c - 68 with c = min(max(⌊(q + 76) / 9⌋, 0), 15);
 *   bits 2: -36, -12, 12 or 36 for q below -24, below 0, up to 24, above.
 * x […] f32 -> y […] f32, step f32: [1] of the whole tensor, [rows] for QUANTIZE_ROWS, [0] for QUANTIZE_FIXED. Where
 * the step is 0 y is 0. Rows (of at most QUANTIZE_PART² elements) and the fixed step have 8 bits.
 * Codes and steps have the same bits on every backend: Σ x² is added in double in the order of
 * engine/tensor/ops/quantize.h, and the step is rounded to f32 once.
 * Gradient: dx = dy (straight through); in a frozen network dx = dy ⊙ y / x, 0 where x is. */
typedef enum quantize_mode { QUANTIZE_TENSOR, QUANTIZE_ROWS, QUANTIZE_FIXED } quantize_mode;
typedef struct quantize_params {
	quantize_mode mode;
	int64_t bits; /* 8, 4 or 2 */
} quantize_params;
value op_quantize(graph *g, value x, quantize_params params);
typedef struct quantize_values {
	value y, step;
} quantize_values;
quantize_values op_quantize_with_step(graph *g, value x, quantize_params params);

/* linear: y = alpha (x Wᵀ + b). x […, K] [real], weight [N, K] of x's type or panels (panel.h; x f32), bias? [N] f32
 * (where y is bf16, alpha b may be rounded to it) -> y […, N] [real].
 * Panels: y[r, n] is summed over k in order in one fused chain per output. Its bits do not depend on the number of
 * rows, their place in the batch or the threads. bf16: weights are widened, x stays f32. int8: a row of x becomes
 * unsigned bytes u_k = round(x_k / s) + 128 with s = max_k |x_k| / 127, and y = alpha (s · scale[n] · (Σ_k u_k q[n][k]
 * - 128 sum[n]) + b[n]), the sum exact in 32 bits (K ≤ 2^16). With `step` s is that number for all rows, and x are
 * whole multiples of it from -128 to 127 (quantize), which nothing rounds; plain weights and other panels do not ask
 * for it. Gradients: dx = alpha dy W; for [real] weights dW = alpha dyᵀ x, db = alpha Σ_rows dy. */
/* With `maxima` also maxima […, ⌈N / LINEAR_BLOCK⌉] f32: the largest finite number of each LINEAR_BLOCK outputs of a
 * row of y [f32], -inf where none is finite (else […, 0]). y is wanted too. Not every backend gives them (backend.h).
 */
enum { LINEAR_BLOCK = 32 };
typedef struct linear_params {
	float alpha;
	float step; /* 0: rows are no multiples of one number */
	bool maxima;
} linear_params;
typedef struct linear_values {
	value y, maxima;
} linear_values;
value op_linear(graph *g, value x, value weight, value bias, float alpha);
value op_linear_codes(graph *g, value x, value weight, float step, float alpha);
linear_values op_linear_maxima(graph *g, value x, value weight, value bias, float alpha);

/* lora: the low-rank adapters of the rows of a linear layer, one of several for each row:
 *   z_r = y_r + B (A x_r),  A [rank, K], Bᵀ [rank, N] of entry e = entry[r]
 * y […, N], x […, K] f32, entry […] i32 for each row, rank [entries, parts] i32, strip [entries, LORA_MAX_RANK] i32,
 * bank [strips, floats] f32 -> z […, N].
 * The layer has `part` of rank. Row i of A begins at `offset` of strip[e, i] of the bank, row i of Bᵀ at offset + K. A
 * row whose strip does not exist counts as zero. z_r is y_r, with the same bits, where e is not an entry or its rank is
 * not from 1 to LORA_MAX_RANK. The bits of a row do not depend on other rows. */
enum { LORA_MAX_RANK = 64 };
typedef struct lora_params {
	int64_t part, offset;
} lora_params;
value op_lora(graph *g, value y, value x, value entry, value rank, value strip, value bank, lora_params params);

/* layernorm: y = weight ⊙ (x - mean) · rstd + bias per row. rstd = 1/√(Σ(x - mean)² / D + eps) or, `unbiased`, where
 * D ≥ 2, 1/(√(Σ(x - mean)² / (D - 1)) + eps). x […, D] [real], weight [D], bias [D] f32 -> y […, D] [real],
 * mean [rows], rstd [rows]. */
typedef struct layernorm_params {
	float eps;
	bool unbiased;
} layernorm_params;
value op_layernorm(graph *g, value x, value weight, value bias, float eps);
value op_layernorm_unbiased(graph *g, value x, value weight, value bias, float eps);
/* layernorm_grad: x, weight, mean, rstd, dy -> dx […, D] [real], dweight [D], dbias [D].
 * With y' = weight ⊙ dy and x̂ = (x-mean)·rstd: dx = rstd (y' - mean(y') - c x̂ Σ(y' x̂)), c = 1 / D or, `unbiased`,
 * 1 / ((D - 1) (1 - eps rstd)), 0 of a row without a deviation; `frozen`, where rstd is a constant: c = 0. */
typedef struct layernorm_grad_params {
	bool frozen, unbiased;
	float eps; /* unbiased form: epsilon */
} layernorm_grad_params;

/* normalize: each row is cut into `groups` equal parts, and each part divided by its length:
 *   y = gain ⊙ x · scale / max(√(‖part‖² + eps), floor);  eps ≥ 0;  floor: a normal number above 0.
 * x […, D] [real], gain? [D] or [1] f32 -> y […, D] [real], inverse [rows · groups] f32 = 1 / max(√(‖part‖² + eps),
 * floor). w = D / groups is the width of a part. Special cases:
 *   RMSNorm (Zhang and Sennrich 2019), x / √(mean(x²) + ε) in each part: scale √w, eps w ε and a gain [D];
 *   ScaleNorm (Nguyen and Salazar 2019): scale 1 and a gain [1];
 *   normalised queries and keys: a group for each head and no gain. */
typedef struct normalize_params {
	int64_t groups;
	float scale, floor;
	float eps;
	bool frozen; /* gradient only */
} normalize_params;
value op_normalize(graph *g, value x, value gain, normalize_params params);
/* normalize_grad: x, gain?, inverse, dy -> dx […, D] [real], dgain f32 of gain's shape (none: [0]).
 * With y' = gain ⊙ dy and x̂ = x · inverse: dx = scale · inverse (y' - x̂ (x̂·y')), with x̂·y' of each part; `frozen`,
 * and where the norm is not above the floor, so that inverse is a constant: dx = scale · inverse · y'.
 * dgain = scale Σ_rows dy ⊙ x̂, over the channels too where gain is one. */

/* gelu: y = x Φ(x) with Φ the exact normal distribution (erf form), or with `tanh`
 *   y = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))      (Hendrycks and Gimpel 2016)
 * gelu_grad: x, dy -> dx = dy · dy/dx. All [real]. */
typedef struct gelu_params {
	bool tanh;
} gelu_params;
value op_gelu(graph *g, value x, bool tanh);

/* activation: y = f(x), [real], of a kind before ACTIVATION_GELU (op_gelu and op_tanh are ops of their own).
 *   RELU max(x, 0)   RELU2 max(x, 0)²   SILU x σ(x)   SIGMOID σ(x) = 1 / (1 + e^{-x})   LOG_SIGMOID log σ(x)
 *   EXP e^x
 *   GELU, GELU_TANH: gelu's forms
 * activation_grad: x, dy -> dx = dy · f'(x), f'(0) = 0 of RELU; `frozen`: dx = dy · (f(x) - f(0)) / x, at 0 the limit
 * (RELU: 0). f(0) is ½ of SIGMOID, -log 2 of LOG_SIGMOID, 1 of EXP and 0 of all others: it counts as a bias
 * (SUM_BIASES).
 * LOG_SIGMOID has a small relative error at every x, also where σ(x) is nearly 1. */
typedef enum activation_kind {
	ACTIVATION_RELU,
	ACTIVATION_RELU2,
	ACTIVATION_SILU,
	ACTIVATION_SIGMOID,
	ACTIVATION_LOG_SIGMOID,
	ACTIVATION_EXP,
	ACTIVATION_GELU,
	ACTIVATION_GELU_TANH,
	ACTIVATION_KINDS
} activation_kind;
typedef struct activation_params {
	activation_kind kind;
	bool frozen; /* gradient only */
} activation_params;
value op_activation(graph *g, value x, activation_kind kind);

/* glu: y = a ⊙ f(b) with a and b the halves of each row; x […, 2D] = a | b [real], with gate_first b | a -> y […, D]
 * [real]. f is of any kind but LOG_SIGMOID and EXP: SILU is SwiGLU (Shazeer 2020), SIGMOID the first gated linear unit
 * (Dauphin et al. 2017). glu_grad: x, dy -> dx […, 2D], da and db in the order of x: da = dy ⊙ f(b), db = dy ⊙ a ⊙
 * f'(b); `frozen`: da = share · dy ⊙ f(b), db = (1 - share) dy ⊙ a ⊙ f(b) / b, where ⟨da, a⟩ + ⟨db, b⟩ = ⟨dy, y⟩. A
 * SIGMOID is a constant then: its share is 1.
 */
typedef struct glu_params {
	activation_kind kind;
	bool frozen; /* gradient only */
	float share; /* where frozen */
	bool gate_first;
} glu_params;
value op_glu(graph *g, value x, activation_kind kind);
value op_glu_gate_first(graph *g, value x, activation_kind kind);

/* trilinear: the products of each pair of channels of a block of 16. k, u […, T] [real], T a multiple of 16
 *   -> p […, 16T] [real], p[b·T + i] = k[i xor b] u[i], b = 0…15.
 * trilinear_grad: k, u, dp -> dk, du […, T] [real]. In a frozen network u gets `share` of it and k the rest.
 *   dk[i] = Σ_b dp[b·T + (i xor b)] u[i xor b];  du[i] = Σ_b dp[b·T + i] k[i xor b]. */
value op_trilinear(graph *g, value k, value u);

/* rotary: each head turns its first `width` channels by its row's position (Su et al. 2021).
 *   pair i < width/2 is (a, b) = channels (i, i + width/2) of the head, or `interleaved` (2i, 2i + 1):
 *   (a, b) -> f · (a cos θ - b sin θ, b cos θ + a sin θ),  θ = position · w_i,  w_i = base^(-2i/width) rounded to f32;
 *   f = 1, or with xpos_base > 0 (xPos: Sun et al. 2022) c_i^e, c_i = (2i + 0.4 width) / (1.4 width),
 *   e = (position - xpos_center) / xpos_base, or -e with `inverse_scale`.
 * x […, N, heads · h] [real]; the position of a row is first + positions? [i32], one for each row; without, first + n
 * for row n of a sequence. With segment > 0 the position in these formulas is that of the first row which a row at p
 * sees in a sequence of segments: max(0, p - p mod segment - memory). like? of x's rows (its shape alone): which rows
 * are a sequence, where x does not say
 *   -> y like x. θ has no error of f32 whatever the position. `transposed` turns by -θ (with the same f): that is the
 * gradient. */
typedef struct rotary_params {
	int64_t heads, width; /* width: even, at most h */
	int64_t first;
	int64_t segment, memory; /* segment 0: none */
	float base;
	float xpos_base, xpos_center; /* xpos_base 0: f = 1 */
	bool inverse_scale, interleaved, transposed;
} rotary_params;
value op_rotary(graph *g, value x, value positions, rotary_params params);

/* join_rows: M rows before those of each sequence; x [B, N, C] [real] or [i32] -> y [B, M + N, C] of x's type.
 * prefix: the same rows for all, [M, C], or with heads > 0 [heads, M, C / heads], f32 (i32 where x is); or, with heads
 * 0, those of each sequence [B, M, C], of x's type.
 * join_rows_grad: dy, y (its shape alone) [B, M + N, C] -> dx [B, N, C] [real], dprefix of the prefix's shape. For rows
 * shared by all sequences it is f32, summed over the sequences in order. */
typedef struct join_rows_params {
	int64_t heads;
	int64_t rows; /* gradient only: M */
	bool each;    /* gradient only: the prefix is [B, M, C] */
} join_rows_params;
value op_join_rows(graph *g, value prefix, value x, join_rows_params params);

/* slice_rows: rows first … first + count - 1 of each sequence; count -1 - n: all from `first` on but the last n.
 * x [B, N, C] [real] or [i32] -> y [B, count, C].
 * slice_rows_grad: dy [B, count, C], x (its shape alone) -> dx [B, N, C], zeros in all other rows. */
typedef struct slice_rows_params {
	int64_t first, count;
} slice_rows_params;
value op_slice_rows(graph *g, value x, int64_t first, int64_t count);

/* pad_mask: `before` places that hold `value` before each row; mask [i32] [B, N] -> [i32] [B, before + N]. */
typedef struct pad_mask_params {
	int64_t before;
	int32_t value;
} pad_mask_params;
value op_pad_mask(graph *g, value mask, int64_t before, int32_t filled);

/* A sequence is read in segments of `segment` tokens, each with `front` ≥ 1 rows in front that are no token's. Its rows
 * are numbered from 0 on, those in front with the others: the token at position p has the row
 *   row(p) = p + front (⌊p / segment⌋ + 1)
 * segment_rows: position [i32] […] -> row [i32] […]. A row must be an int32.
 * segment_begin: the rows that a call which reads length[b] tokens from position[b] on must insert before them, if a
 * segment begins there. position, length [i32] [B] -> first [i32] [B]: row(position) - front; count [i32] [B]: front
 * where position mod segment = 0 and length > 0, else 0; rows [i32] [B, front]: first, first + 1, …; which [i32] [B,
 * front]: 0, 1, …, where count is 0 -1. */
typedef struct segment_rows_params {
	int64_t segment, front;
} segment_rows_params;
typedef struct segment_begin_values {
	value first, count, rows, which;
} segment_begin_values;
value op_segment_rows(graph *g, value position, segment_rows_params params);
segment_begin_values op_segment_begin(graph *g, value position, value length, segment_rows_params params);

/* mask_rows: y = x, 0 in rows whose mask is 0, whatever x holds there; x […, C] [real], mask [i32], one for each row.
 */
value op_mask_rows(graph *g, value x, value mask);

/* scale_columns: y[r, c] = x[r, c] · w[c / group]; x […, C] [real], w [C / group] f32.
 * scale_columns_grad: x, dy -> dw[k] = Σ_rows Σ_{c / group = k} dy[r, c] x[r, c], f32. */
typedef struct scale_columns_params {
	int64_t group;
} scale_columns_params;
value op_scale_columns(graph *g, value x, value w, int64_t group);

/* mix_columns: y = x + w_row ⊙ (other - x); x, other […, C] [real], w f32, M rows of C numbers -> y [real]. With the
 * row before each row in `other` it is the token shift of RWKV (Peng et al. 2023). mix_columns_grad: x, other, w, dy ->
 * dx = (1 - w_row) ⊙ dy [real], dother = w_row ⊙ dy [real], dw as w: Σ_rows dy ⊙ (other - x) in the row, zeros in the
 * others. */
typedef struct mix_columns_params {
	int64_t row;
} mix_columns_params;
value op_mix_columns(graph *g, value x, value other, value w, int64_t row);

/* shift_rows: channels are cut into high - low + 1 segments of ⌊C / segments⌋, and segment i of row t is that of row
 * t - (low + i), zeros where the sequence has no such row; what is left of the channels stays. With a mask a row whose
 * mask is 0 counts as zeros wherever the shift is not 0. low ≤ high, 0 ≤ high; causal: low ≥ 0. low = high = 1 is the
 * row before.
 * x [B, N, C] [real], mask? [i32] [B, N], like? [B, N, C] (its shape alone, where x is rows without sequences) -> y of
 * that shape. `transposed`: the gradient, segment i of row t from row t + (low + i). */
typedef struct shift_params {
	int64_t low, high;
	bool transposed;
} shift_params;
value op_shift_rows(graph *g, value x, value mask, shift_params params);

/* Rows that a slot holds, whatever its sequence reads: `count` of them, at `offset` floats from its start. */
typedef struct slot_rows {
	int64_t count, offset; /* count 0: there are none */
} slot_rows;

/* Its recurrent form with low ≥ 0: reads `length[b]` tokens into slot `slot[b]` of a state pool, as softmax_stream
 * does. x [B, N, C], pool [slots, slot_floats] (updated in place), slot, position, length [i32] [B], mask? [i32] [B,
 * N], start? [i32] [S], before? […, C] (rows before every sequence) -> y [B, N, C]; tokens that no sequence reads are
 * 0. The state is a ring of the rows of the last `high` tokens, shift_state_floats() floats at `offset` in the slot.
 * Token t is at place t mod high, zeros if it was masked. The contents at position 0 do not matter. With `segment`, a
 * token sees no row of a token of an earlier segment of that many tokens, and `before` is absent. With `stored`, the
 * slot has the rows [count, C] that come first, in place of `before`. The gradient needs sequences that all read N
 * tokens, without start, segment and rows before; earlier tokens are constants. */
typedef struct shift_stream_params {
	int64_t low, high;
	int64_t offset;  /* floats from the start of a slot */
	int64_t segment; /* 0: none */
	slot_rows stored;
} shift_stream_params;
value op_shift_stream(graph *g, value x, value pool, value slot, value position, value length, value mask, value start,
                      value before, shift_stream_params params);
int64_t shift_state_floats(int64_t d, int64_t high);

/* scale_gradient: y = x, [real]; the gradient of x is factor · dy, of a frozen network dy. */
value op_scale_gradient(graph *g, value x, float factor);

/* gru: a gated recurrent unit's new state (Cho et al. 2014) from the products of its input and its state with their
 * weights, a = W_i x + b_i and b = W_h h + b_h, whose rows are r | z | n:
 *   r = σ(a_r + b_r),  z = σ(a_z + b_z),  n = tanh(a_n + r ⊙ b_n),  y = (1 - z) ⊙ n + z ⊙ h.
 * a, b […, 3D], h […, D] [real] -> y […, D] [real].
 * gru_grad: a, b, h, dy -> da, db […, 3D], dh […, D]; `frozen`, where r, z and s = n / (a_n + r b_n) are constants, so
 * that y is linear: da_n = dy (1 - z) s, db_n = r da_n, dh = z dy, all else 0. */
typedef struct gru_params {
	bool frozen; /* gradient only */
} gru_params;
value op_gru(graph *g, value a, value b, value h);

/* dropout: y = x · keep / (1 - p). rng [i32] [4] = seed low, seed high, step, part as
 * bit patterns. Element e uses word e % 4 of philox(seed, stream, step, e / 4) and is kept when philox_uniform(word) >=
 * p. e = part · 4 ⌈n / 4⌉ + i for element i of n is its flat index in all parts. Parts of a batch therefore draw the
 * same as the whole. Linear in x and self-adjoint: the backward is the same op on dy. p = 0 copies. x, y [real]. */
typedef struct dropout_params {
	float p;
	uint32_t stream;
} dropout_params;
value op_dropout(graph *g, value x, value rng, float p, uint32_t stream);

/* hide_keys: rng [i32] [4] (as dropout's), mask? [i32] [B, N] -> mask [i32] [B, N]: the given one (none: ones) without
 * some of the keys `first` … N - 1 of a row, drawn at random: c = min(⌊(n + beyond) p⌋, n - 1) of them, n the keys that
 * are not masked. Key e = (part·B + b)·N + i has word e % 4 of philox(seed, stream, step, e / 4); hidden are the c keys
 * with the smallest words, of equal ones the first. (Forgetful causal masking, Liu et al. 2022.) */
typedef struct hide_keys_params {
	int64_t batch, length; /* B, N */
	int64_t first, beyond;
	double p;
	uint32_t stream;
} hide_keys_params;
value op_hide_keys(graph *g, value rng, value mask, hide_keys_params params);

/* One round of causal windowed additive attention, all windows empty before
 * position 0. x [B, N, D] [real], w [D] f32, mask? [i32] [B, N] (0: masked)
 *   -> g [B, N, D] [real], score [B, N, H], log_normalizer [B, N, H].
 *   a_j = w_h·x_j / √dh;  M_i = log Σ_{j∈W(i)} e^{a_j};  g_i = Σ_{j∈W(i)} e^{a_j - M_i} x_j,
 *   W(i) = {max(0, i-window+1) … i}, unmasked only. window <= 0 or >= N: global.
 * score is a_j also at masked places. An empty window has g = 0, M = -inf.
 * Only g has a gradient: score and log_normalizer are for explanations.
 * Computed with the online-softmax semigroup over blocks; never a difference of sums. */
typedef struct additive_attention_params {
	int64_t heads;
	int64_t window;
	bool frozen; /* gradient only */
} additive_attention_params;
typedef struct attention_values {
	value pooled, score, log_normalizer;
} attention_values;
attention_values op_additive_attention(graph *g, value x, value w, value mask, int64_t heads, int64_t window);
/* additive_attention_grad: x, w, mask?, g, log_normalizer, dg -> dx [B, N, D] [real], dw [D].
 * p_ij = e^{a_j - M_i}; P_j = Σ_{i∈V(j)} p_ij dg_i, Q_j = Σ p_ij (dg_i·g_i),
 * da_j = x_j·P_j - Q_j, dx_j = P_j + c da_j w, dw = c Σ da_j x_j, c = 1/√dh.
 * Masked j gives 0; positions with an empty window contribute 0. `frozen`, where p is a constant: dx_j = P_j, dw = 0.
 */

/* The recurrent form: reads `length[b]` tokens into slot `slot[b]` of a state pool
 * and advances it; cost per token independent of window and position.
 * x [B, N, D], w [D], pool [slots, slot_floats] (updated in place), slot [i32] [B],
 * position [i32] [B] (tokens this slot has already read), length [i32] [B] (≤ N),
 * mask? [i32] [B, N] -> g [B, N, D], score [B, N, H], log_normalizer [B, N, H];
 * tokens at and after length[b] are 0. The slots of sequences that read are distinct.
 * start? [i32] [S]: sequences of different lengths are concatenated in x [1, T, D], and slot, position and length are
 * [S]. Sequence s reads the tokens start[s] … start[s] + length[s] - 1; start[0] = 0, and start[s] + length[s] ≤
 * start[s + 1] (T for the last). Tokens that no sequence reads are 0. The state of this round is
 * additive_state_floats() floats at `offset` in the slot, all zero at position 0 (position 0 ignores and re-initialises
 * its contents). The gradient needs sequences that all read N tokens, without start. It is that of additive_attention
 * over the tokens of the call, given g and M of the whole; earlier tokens are constants. */
typedef struct additive_stream_params {
	int64_t heads;
	int64_t window; /* <= 0: global */
	int64_t offset; /* floats from the start of a slot */
} additive_stream_params;
attention_values op_additive_stream(graph *g, value x, value w, value pool, value slot, value position, value length,
                                    value mask, value start, additive_stream_params params);
/* Floats of state for one round: layout in engine/tensor/ops/additive_stream.h. */
int64_t additive_state_floats(int64_t d, int64_t heads, int64_t window);

/* additive_initial: the means of additive attention after one more token, which comes before all others and is in every
 * window. pooled g [B, N, D] [real], log_normalizer M [B, N, H] f32 (H divides D), score l [H], mean m [D]
 *   -> g' [B, N, D] [real], M' [B, N, H] f32
 *   M' = log(e^M + e^l);  g' = g + e^{l - M'} (m - g)
 * x, w, mask? are the inputs of the attention of which g and M are outputs. Only their gradient,
 * additive_attention_grad given g' and M', needs them; g and M have none. additive_initial_grad: l, m, g', M', dg' ->
 * dl [H], dm [D], with p = e^{l - M'} of each row dm = Σ p dg';  dl = Σ p dg'·(m - g') */
attention_values op_additive_initial(graph *g, attention_values pooled, value score, value mean, value x, value w,
                                     value mask);

/* Tokens of a call of a recurrent form, and the slots that they go to. */
typedef struct stream_values {
	value pool, slot, position, length, mask, start;
} stream_values;

/* forgetting_attention: additive attention with given scores, which forgets. A score belongs to a token and a head, the
 * same for every reader. v [B, N, D] [real], a [B, N, H] f32, f? [B, N, H] or [H] f32 (≤ 0; absent: 0), mask? [i32] [B,
 * N] (0: the token is skipped, so that it neither counts nor forgets), bonus? [H] f32
 *   -> g [B, N, D] [real], log_normalizer l [B, N, H] f32, before (with bonus: [B, N, D] [real]; without: [0]).
 *   g_t = Σ_{j≤t} e^{a_j + f_{j+1} + … + f_t - l_t} v_j,  where l_t makes the weights sum to 1. With l = -inf and g = 0
 *   before the first token:
 *   p = l + f_t;  l' = log(e^p + e^{a_t});  w = e^{a_t - l'};  g' = g + w (v_t - g)
 * H divides D; a head may have one channel. Before the first token that counts g is 0 and l -inf. Only g has a
 * gradient. g is a mean and l a log-sum, so neither overflows at any length. A score of -inf has weight 0; one beyond
 * ±2^23 counts as ±2^23. A bonus u, for heads of one channel (H = D), is added to a token's score where the token reads
 * itself (Peng et al. 2023, RWKV-4). The output is o, and l and `before` are those of the state before the token, which
 * has not forgotten for it: s = σ(u + a_t - l_{t-1});  o_t = g_{t-1} + s (v_t - g_{t-1}). A skipped token has s = 0.
 * forgetting_attention_grad: v, a, f?, mask?, g, l, dg, bonus? -> dv [B, N, D] [real], da [B, N, H], df of f's shape
 * (none: [0]), dbonus [H] (without bonus: [0]).
 * With G and L the gradients of g_t and l_t, from the last token on, and w as above:
 *   δ = w G·(v_t - g_t);  dv = w G;  da = δ + w L;  df = -δ + (1 - w) L;  G_{t-1} += (1 - w) G;  L_{t-1} += df
 * With bonus g is `before`, dg the gradient of o, and G and L are of the state after the token:
 *   e = s (1 - s) do (v_t - g_{t-1});  δ = w (1 - w) G (v_t - g_{t-1});  dv = w G + s do;  da = δ + e + w L;
 *   du = Σ e;  df = -δ + (1 - w) L;  G_{t-1} = (1 - w) G + (1 - s) do;  L_{t-1} = df - e
 * df [H] and dbonus are sums over rows in a fixed order. `frozen`, where w and s are constants: da, df and dbonus are
 * 0. */
typedef struct forgetting_params {
	bool frozen;
} forgetting_params;
typedef struct pooled_values {
	value pooled, log_normalizer;
} pooled_values;
pooled_values op_forgetting_attention(graph *g, value v, value a, value f, value bonus, value mask);

/* The recurrent form: reads `length[b]` tokens into slot `slot[b]` of a state pool, as additive_stream does. v, a, pool
 * [slots, slot_floats] (updated in place), slot, position, length, mask?, start?, f?, bonus? -> g, log_normalizer,
 * before; tokens that no sequence reads are 0. The state is m [H] | s [H] | rest [H] | g [D] at `offset`
 * in the slot, with e^l = (s + rest) 2^m (engine/tensor/ops/forgetting.h); its contents at position 0 do not matter.
 * Tokens are added one after another: state and outputs have the same bits however a sequence is cut. The gradient
 * needs sequences that all read N tokens, without start; earlier tokens are constants. */
typedef struct forgetting_stream_params {
	int64_t offset; /* floats from the start of a slot */
} forgetting_stream_params;
pooled_values op_forgetting_stream(graph *g, value v, value a, value f, value bonus, stream_values at, int64_t offset);
int64_t forgetting_state_floats(int64_t d, int64_t heads);

/* Softmax attention per head: H heads of queries and, G dividing H, G of keys and values; head n of the queries reads
 * head n / (H / G) of the others. q [B, N, H·h] [real], k [B, S, G·h] [real], v [B, S, G·w] [real]; or k and v absent
 * and q [B, N, 3D] = query | key | value of a token, with S = N, G = H and h = w = D / H. mask? [i32] [B, S] (0: no
 * query attends to the key), bias? [T, H], rng? [i32] [4] (with p > 0)
 *   -> y [B, N, H·w] [real], log_normalizer [B, N, H].
 *   s_ij = scale · q_i·k_j + bias[t_i - j - bias_first];  t_i = i + S - N, the place of query i among the keys;
 *   M_i = log Σ_{j∈W(i)} e^{s_ij};  p_ij = e^{s_ij - M_i};  y_i = Σ_{j∈W(i)} drop(p_ij) v_j.
 *   W(i): the keys that are not masked, with j ≤ t_i unless `bidirectional`, and with t_i - j < window if window > 0.
 * An empty W(i) has y = 0, M = -inf; with `uniform` it has p_ij = 1 / S for all keys, masked ones too, and M = log S:
 * its gradient goes to v alone. The bias has a row for each distance t_i - j of the pairs that meet but for the mask.
 * drop is dropout (below) on the matrix [B, H, N, S] in flat order, applied after the normaliser.
 * Blocked online softmax (Milakov and Gimelshein 2018; Dao et al. 2022): memory O(N + S). */
typedef struct softmax_params {
	int64_t heads, kv_heads; /* H and G; 0: H */
	int64_t window;          /* <= 0: no window */
	int64_t bias_first;      /* distance of the bias's first row, <= 0 */
	float scale;
	float p; /* dropout probability */
	uint32_t stream;
	bool bidirectional, uniform;
	bool frozen; /* gradient only */
} softmax_params;
value op_softmax_attention(graph *g, value q, value k, value v, value mask, value bias, value rng,
                           softmax_params params);
/* softmax_attention_grad: q, k?, v?, mask?, bias?, rng?, y, log_normalizer, dy
 *   -> dq [real], dk [real], dv [real], dbias [T, H]: each like its input; dk, dv and dbias of absent inputs are empty,
 *      and with q, k and v in one dq [B, N, 3D] is the gradient of all.
 *   D_i = dy_i·y_i;  ds_ij = p_ij (drop(dy_i·v_j) - D_i), 0 for an empty W(i);  dq_i = scale Σ_j ds_ij k_j;
 *   dk_j = scale Σ_i ds_ij q_i;  dv_j = Σ_i drop(p_ij) dy_i;  dbias[t] = Σ_{t_i - j = t + bias_first} ds_ij: sums over
 *   i and j also over the heads that read a head of keys, of dbias over B. `frozen`, where p is a constant: ds = 0. */

/* The recurrent form with a key-value cache: reads `length[b]` tokens into slot `slot[b]` of a state pool, as
 * additive_stream does. q [B, N, H·h], k? [B, N, G·h], v? [B, N, G·w], pool [slots, slot_floats] (updated in place),
 * slot, position, length [i32] [B], mask? [i32] [B, N], start? [i32] [S], memory_k? [m, G·h], memory_v? [m, G·w], bias?
 * [T, H], key_step? [rows of k]
 * -> y [B, N, H·w], log_normalizer [B, N, H]: log Σ e^s; tokens that no sequence reads are 0. Without k and v: q is
 * [B, N, 3D] = query | key | value of a token, G = H and h = w = D / H.
 * The cache is a ring of the last `window` ≥ 1 tokens. The query of the token at position t sees the c = min(t + 1,
 * window) newest tokens, its own included, with `segment` the c = min(t + 1, window - segment + t mod segment + 1)
 * newest, and before them m memories, keys and values of no token. Memory i is at place i, the tokens at m … m + c - 1.
 * With δ the place of the query, m + c - 1, minus that of the key:
 *   s = scale · q·k + bias[δ][head];  hidden are masked tokens and, with past > 0, what has δ > past.
 * A masked token keeps its place. With `stored` the slot has the memories, | key [m, G·h] | value [m, G·w] | as
 * source_store leaves them, in place of memory_k and memory_v. T ≥ window + m. Query head n reads key and value head ⌊n
 * / (H / G)⌋. Where nothing is seen y is 0 and log_normalizer -inf. The state of this layer is softmax_state_floats()
 * floats at `offset` in the slot; what is in it at position 0 does not matter. Layout:
 * engine/tensor/ops/softmax_stream.h.
 * With key_step the ring holds 8-bit codes in softmax_code_state_floats() floats, a quarter as many. The rows of k are
 * then those of a quantize with QUANTIZE_ROWS, and key_step is its step (one for each row). v are whole multiples of
 * value_step from -128 to 127 (QUANTIZE_FIXED). Nothing is rounded then, so results have the bits of the same call with
 * a ring of floats. k is not absent, and memories are floats. With query_step, q are such multiples too (h ≤ 2^16).
 * Then q·k may be computed as query_step · key_step times a sum of products of codes, exact in 32 bits. Scores then
 * differ from those of a ring of floats by their rounding.
 * With `bf16` the ring holds bf16 in softmax_bf16_state_floats() floats, half as many. Every k and v is rounded before
 * it is used, to nearest even, also that of the query's own token. So results are those of a ring of floats for rounded
 * k and v, however the tokens are cut into calls. Memories are not rounded. Not with key_step. */
typedef struct softmax_stream_params {
	int64_t heads, window;
	int64_t offset; /* floats from the start of a slot */
	float scale;
	int64_t kv_heads; /* G; 0: heads */
	int64_t past;     /* <= 0: no limit */
	int64_t segment;  /* 1 … window; 0: none */
	slot_rows stored;
	float value_step, query_step; /* with key_step: value_step > 0, query_step ≥ 0, 0: q are any floats; else 0 */
	bool bf16;
} softmax_stream_params;
value op_softmax_stream(graph *g, value q, value k, value v, value pool, value slot, value position, value length,
                        value mask, value start, value memory_k, value memory_v, value bias,
                        softmax_stream_params params);
/* Arguments without memories, and with key_step, which may be VALUE_NONE. */
typedef struct softmax_stream_values {
	value y, log_normalizer;
} softmax_stream_values;
softmax_stream_values op_softmax_stream_codes(graph *g, value q, value k, value v, value key_step, stream_values at,
                                              value bias, softmax_stream_params params);
/* Floats of state of one layer whose tokens have key_width = G·h and value_width = G·w channels, by format. */
int64_t softmax_state_floats(int64_t key_width, int64_t value_width, int64_t window);
int64_t softmax_bf16_state_floats(int64_t key_width, int64_t value_width, int64_t window);
int64_t softmax_code_state_floats(int64_t key_width, int64_t value_width, int64_t window);

/* Attention of a decoder to an encoded source, whose keys and values are in the slot. */
typedef struct source_params {
	int64_t heads, kv_heads; /* H, G; kv_heads 0: heads */
	int64_t value_width;     /* G·w */
	int64_t capacity;        /* tokens of the longest source, at most SOURCE_MOST */
	int64_t offset;          /* floats from the start of a slot */
	float scale;
} source_params;
enum { SOURCE_MOST = 1 << 24 };
/* source_store: puts a source into slot `slot[b]`. k [B, S, G·h], v [B, S, G·w], pool [slots, slot_floats] (updated in
 * place), slot [i32] [B], length? [i32] [B] (tokens of the source; absent: S), mask? [i32] [B, S]. S ≤ capacity. Masked
 * tokens are left out; values may have no channel. With length 0 the slot stays as it is; a source of masked tokens
 * alone leaves an empty one. Layout: engine/tensor/ops/softmax_stream.h. */
void op_source_store(graph *g, value k, value v, value pool, value slot, value length, value mask,
                     source_params params);
/* source_attention: every query sees the whole source of its slot, and m memories.
 * q [B, N, H·h], pool, slot, length [i32] [B], start? [i32] [S], memory_k? [m, G·h], memory_v? [m, G·w]
 * -> y [B, N, H·w], with softmax over scale · q·k; heads and what is 0 as in softmax_stream. */
value op_source_attention(graph *g, value q, value pool, value slot, value length, value start, value memory_k,
                          value memory_v, source_params params);
/* Floats of a source in a slot. */
int64_t source_state_floats(int64_t key_width, int64_t value_width, int64_t capacity);

/* dilated_attention: softmax attention in segments, of which each head keeps every r-th row (Ding et al. 2023,
 * LongNet), per head h of dh = D / heads channels. Branch i cuts the sequence into segments of w = min(segment[i], N)
 * tokens; head h keeps row p of a segment when p mod r = o, with r = dilation[i] and o = dilated_first (ops/dilated.h).
 * K_i(t): the unmasked kept tokens of t's segment, with `causal` those up to t; empty where t itself is not kept. q, k,
 * v [B, N, D] [real], mask? [i32] [B, N] (0: no token attends to it), mixture? [branches] f32
 *   -> y [B, N, D] [real], log_normalizer [branches, B, N, H].
 *   s_tj = scale · q_t·k_j;  L_i(t) = log(Σ_{j∈K_i(t)} e^{s_tj} + z_i(t));  o_i(t) = Σ_{j∈K_i(t)} e^{s_tj - L_i(t)}
 * v_j; y_t = Σ_i c_i(t) o_i(t),  c_i(t) = e^{L_i(t)} / Σ_l e^{L_l(t)}, or with mixture c = softmax(mixture). z is 0.
 * With `zero_keys` and without `causal` it counts keys and values of zeros that fill up segments to w, and w to a
 * multiple of r. A branch without a key has o = 0, L = -inf; without any, y = 0. O(N Σ_i w / r²) time in blocks of
 * keys, O(N) memory. */
enum { DILATED_MAX_BRANCHES = 16 };
typedef enum dilated_offset {
	DILATED_BLOCK, /* o = ⌊h / ⌈heads / r⌉⌋: torchscale's */
	DILATED_MOD,   /* o = h mod r: the paper's */
	DILATED_FIRST  /* o = 0 */
} dilated_offset;
typedef struct dilated_pattern {
	int64_t branches; /* 1 … DILATED_MAX_BRANCHES */
	int64_t segment[DILATED_MAX_BRANCHES], dilation[DILATED_MAX_BRANCHES];
	dilated_offset offset;
} dilated_pattern;
typedef struct dilated_params {
	dilated_pattern pattern;
	int64_t heads;
	float scale;
	bool causal, zero_keys;
	bool detach_weights; /* c is a constant for the gradient of q and k, as in torchscale */
} dilated_params;
typedef struct dilated_values {
	value y, log_normalizer;
} dilated_values;
dilated_values op_dilated_attention(graph *g, value q, value k, value v, value mask, value mixture,
                                    dilated_params params);
/* dilated_attention_grad: q, k, v, mask?, mixture?, y, log_normalizer, dy -> dq, dk, dv [B, N, D] [real],
 * dmixture [branches] (without mixture [0]).
 *   P_tj = c_i e^{s_tj - L_i};  ds_tj = P_tj (dy_t·v_j - D_t),  D_t = dy_t·o_i(t) where c is a constant or a mixture,
 *   else dy_t·y_t;  dq_t = scale Σ_i Σ_j ds_tj k_j;  dk_j = scale Σ_i Σ_t ds_tj q_t;  dv_j = Σ_i Σ_t P_tj dy_t;
 *   dmixture_i = c_i (a_i - Σ_l c_l a_l),  a_i = Σ_t dy_t·o_i(t). */

/* The recurrent form of the causal one without mixture: reads `length[b]` tokens into slot `slot[b]` of a state pool,
 * as additive_stream does. q, k, v [B, N, D], pool [slots, slot_floats] (updated in place), slot, position, length
 * [i32] [B], mask? [i32] [B, N], start? [i32] [S] -> y [B, N, D]; tokens that no sequence reads are 0. The state of
 * this layer is dilated_state_floats() floats at `offset` in the slot: keys and values of as many tokens as the longest
 * segment has. What is in it at position 0 does not matter. Layout: engine/tensor/ops/dilated.h. */
typedef struct dilated_stream_params {
	dilated_pattern pattern;
	int64_t heads;
	int64_t offset; /* floats from the start of a slot */
	float scale;
} dilated_stream_params;
value op_dilated_stream(graph *g, value q, value k, value v, value pool, value slot, value position, value length,
                        value mask, value start, dilated_stream_params params);
int64_t dilated_state_floats(int64_t d, const dilated_pattern *pattern);

/* linear_attention: attention whose weights are products of a feature map, φ(x) = elu(x) + 1 = x + 1 for x > 0, e^x
 * else (Katharopoulos et al. 2020), per head of dh = D / heads channels. No scale. q [B, N, D] [real], k, v [B, S, D]
 * [real], mask? [i32] [B, S] (0: the key has exactly no weight, whatever k and v hold there)
 *   -> y [B, N, D] [real], normalizer [B, N, H] f32.
 *   w_ij = φ(q_i)·φ(k_j);  normalizer_i = Σ_{j∈W(i)} w_ij;  y_i = Σ_{j∈W(i)} w_ij v_j / (normalizer_i + eps).
 * W(i): the unmasked keys; with `causal`, where S = N, those of them with j ≤ i. An empty W(i) has y = 0 and
 * normalizer 0, and takes part in no gradient. eps ≥ 0; y is 0 wherever the normalizer is.
 * Sums over tokens are states of dh x dh floats (f32 whatever the activations are): O(N + S) time, memory O(1). */
#define LINEAR_ATTENTION_EPS 1e-6f
typedef struct linear_attention_params {
	int64_t heads;
	bool causal;
	float eps;
} linear_attention_params;
typedef struct linear_attention_values {
	value y, normalizer;
} linear_attention_values;
linear_attention_values op_linear_attention(graph *g, value q, value k, value v, value mask,
                                            linear_attention_params params);
/* linear_attention_grad: q, k, v, mask?, y, normalizer, dy -> dq [B, N, D], dk, dv [B, S, D] [real].
 *   Z_i = 1 / (normalizer_i + eps), 0 where the normalizer is;  G_i = Z_i dy_i;  c_i = -Z_i dy_i·y_i;
 *   dq_i = φ'(q_i) ⊙ Σ_j (G_i·v_j + c_i) φ(k_j);  φ'(x) = min(φ(x), 1);
 *   dk_j = φ'(k_j) ⊙ Σ_i (G_i·v_j + c_i) φ(q_i);  dv_j = Σ_i w_ij G_i. */

/* The recurrent form: reads `length[b]` tokens into slot `slot[b]` of a state pool, as additive_stream does.
 * q, k, v [B, N, D], pool [slots, slot_floats] (updated in place), slot, position, length [i32] [B],
 * mask? [i32] [B, N], start? [i32] [S] -> y [B, N, D], normalizer [B, N, H]; tokens that no sequence reads are 0.
 *   S += φ(k) vᵀ,  z += φ(k)  (unmasked tokens);  normalizer = φ(q)·z;  y = Sᵀφ(q) / (normalizer + eps)
 * The state of this layer is linear_state_floats() floats at `offset` in the slot, all zero at position 0 (position 0
 * ignores and re-initialises its contents). Tokens are added one after another: state and outputs have the same bits
 * however a prompt is cut, whatever is beside it and at any number of threads. Layout:
 * engine/tensor/ops/linear_attention.h. The gradient, only without start, treats earlier tokens as constants. It is
 * that of linear_attention over the tokens of the call, given y and normalizer of the whole, plus that of
 * linear_stream_grad. It needs before? [slots, slot_floats], the pool as it was before the call, which the forward does
 * not read. */
typedef struct linear_stream_params {
	int64_t heads;
	int64_t offset; /* floats from the start of a slot */
	float eps;
} linear_stream_params;
linear_attention_values op_linear_stream(graph *g, value q, value k, value v, value pool, value slot, value position,
                                         value length, value mask, value start, value before,
                                         linear_stream_params params);
/* linear_stream_grad: q, before, slot, position, y, normalizer, dy -> [B, N, D], what queries have to do with the state
 * S, z of their slot before the call; 0 at position 0. With G, c and φ' of linear_attention_grad:
 *   dq_i = φ'(q_i) ⊙ (S G_i + c_i z). */
/* Floats of state of one layer: D (D / heads + 1). */
int64_t linear_state_floats(int64_t d, int64_t heads);

/* --- attention with its matrix in memory --------------------------------------------------------------------------
 *
 * These ops compose options that read or change the matrix between scores and result: mixed heads, only the largest
 * scores, scores that are added to those of another layer. Without such an option softmax_attention is faster and keeps
 * no matrix. Matrices are [B, H, N, S] f32 whatever the activations are: a row for each query, a column for each key.
 * Query i is at key position i + S - N, which may be negative. H = heads, G = kv_heads (0: heads), a divisor of H:
 * query head n reads head n / (H / G) of keys and values. */

/* attention_scores: x_ij = scale · q_i·k_j; q [B, N, H·h] [real], k [B, S, G·h] [real] -> [B, H, N, S] f32.
 * attention_apply: y_i = scale Σ_j x_ij v_j; x [B, H, N, S] f32, v [B, S, G·w] [real] -> y [B, N, H·w] [real]; the
 * builder takes heads and kv_heads of params, and 1 for the scale. attention_apply_transposed: z_j = scale Σ_{n of the
 * group} Σ_i x_nij y_ni; x, y [B, N, H·w] [real]
 *   -> z [B, S, G·w] [real].
 * Each is the gradient of the others. In a frozen network (graph_pull_back) x is a constant in attention_apply. */
typedef struct attention_matrix_params {
	int64_t heads, kv_heads;
	float scale;
} attention_matrix_params;
value op_attention_scores(graph *g, value q, value k, attention_matrix_params params);
value op_attention_apply(graph *g, value x, value v, attention_matrix_params params);

/* attention_weights: the softmax of what a query sees. scores [B, H, N, S] f32, mask? [i32] [B, S], visible? [i32]
 * [N, S], [H, N, S] or [B, H, N, S], bias? [T, H] f32 -> weights [B, H, N, S], log_normalizer [B, H, N].
 *   a_ij = scores_ij + bias[(i + S - N - j) - bias_first][head];  weights_ij = e^{a_ij - M_i},  M_i = log Σ_j e^{a_ij}
 * over the keys that are not hidden. Hidden are those where mask or visible is 0, those after the query unless
 * `bidirectional` (j > i + S - N), those `window` or more tokens before it (window <= 0: none), and with 0 < top_k < S
 * those whose a_ij is smaller than the top_k largest of the row; equal ones stay. A row that sees no key has M = -inf
 * and weights of 0 or, with `uniform`, of 1 / S at every key, hidden or not. bias has a row for each distance i + S - N
 * - j of a key that is neither after the query nor out of the window. */
typedef struct attention_weights_params {
	int64_t window, bias_first /* distance of the bias table's first row */, top_k /* <= 0: all */;
	bool bidirectional, uniform;
} attention_weights_params;
value op_attention_weights(graph *g, value scores, value mask, value visible, value bias,
                           attention_weights_params params);
/* attention_weights_grad: weights, dweights, log_normalizer? (needed with `uniform`), bias? [T, H], whose numbers are
 * not read -> dscores [B, H, N, S], dbias [T, H]. dscores_ij = weights_ij (dweights_ij - Σ_k weights_ik dweights_ik), 0
 * in a row that sees no key; dbias[t][h] = Σ of dscores at that head and distance, in a fixed order. */

/* mix_heads: y[b, f, ·] = Σ_h p[f][h] x[b, h, ·], or with `transposed` y[b, h, ·] = Σ_f p[f][h] x[b, f, ·];
 * x [B, H, N, S] ([B, F, N, S]) f32, p [F, H] f32, like? of y's shape, whose numbers are not read (then x may have
 * fewer dimensions) -> [B, F, N, S] ([B, H, N, S]). */
typedef struct mix_heads_params {
	bool transposed;
} mix_heads_params;
value op_mix_heads(graph *g, value x, value p);
/* mix_heads_grad: dp[f][h] = Σ_b Σ_ij dy[b, f, i, j] x[b, h, i, j], in a fixed order; x [B, H, N, S], dy [B, F, N, S]
 * (one of them may have fewer dimensions), p [F, H], whose numbers are not read -> dp [F, H]. */

/* The recurrent form: a token's row of the matrix has W = m + window columns, its last tokens at the end:
 *
 *   | hidden … | memory 0 … m - 1 | oldest token … the query's own |
 *
 * so that attention_weights with N = 1 and S = W finds every key at its distance, memories directly before the oldest
 * token; `visible` is its mask. R = B·N rows, or T with start (additive_stream). slot, position, length, mask and start
 * are as of additive_stream, memory_k? [m, G·h] and memory_v? [m, G·w] f32 keys and values that every query sees.
 *
 * With `stored` the slot has the memories, as in softmax_stream. With `source` the row is that of the last token of the
 * source in the slot (source_store, with capacity = window), for every token of the call. k and mask are absent, and v
 * may be any [B, N, ·]; the numbers of v and position are not read.
 *
 * A call may read a part of the columns alone, where a sequence is read in segments: near and far count segments back
 * from the query's own. The part has the tokens from `near` to far - 1 segments back or, with far = 0, all from `near`
 * on and the memories. Of the other columns scores are 0 and weights are not read; `visible` is that of all columns. So
 * the sum over the parts is the whole, and each part may have a state of its own.
 *
 * stream_scores: q [B, N, H·h], k? [B, N, G·h], … -> scores [R, H, 1, W] (0 where there is no key), visible [i32] [R,
 * W]. stream_apply: v [B, N, G·w], weights [R, H, 1, W], … -> y [B, N, H·w] = Σ_j weights_j v_j over the tokens and
 * memories. stream_store: the k and v of the call go into the state. The first two read what came before the call from
 * the state, and the call's own tokens from k and v, so stream_store comes after both. Tokens that no sequence reads
 * have zeros everywhere. A sequence's bits do not depend on what is beside it in the call. The state of this layer is
 * matrix_stream_floats() floats at `offset` in the slot; what is in it at position 0 does not matter. Layout:
 * engine/tensor/ops/matrix_stream.h. */
typedef struct matrix_stream_params {
	int64_t heads, kv_heads;
	int64_t window;                 /* tokens of the ring, ≥ 1 */
	int64_t offset;                 /* floats from the start of a slot */
	int64_t key_width, value_width; /* G·h, G·w */
	float scale;                    /* scale of the scores */
	int64_t segment;                /* as in softmax_stream */
	int64_t near, far;              /* the part; with segment 0 both are 0 */
	slot_rows stored;
	bool source; /* without segment */
} matrix_stream_params;
typedef struct stream_scores_values {
	value scores, visible;
} stream_scores_values;
stream_scores_values op_stream_scores(graph *g, value q, value k, value memory_k, stream_values at,
                                      matrix_stream_params params);
value op_stream_apply(graph *g, value v, value weights, value memory_v, stream_values at, matrix_stream_params params);
void op_stream_store(graph *g, value k, value v, stream_values at, matrix_stream_params params);
int64_t matrix_stream_floats(matrix_stream_params params);

/* --- attention that decays with distance, with a first key and a sink ---------------------------------------------
 *
 * A query sees the keys of the `window` tokens before its own, without its own. It also sees a first key [Q] with a
 * value [T], which is at position -1 and belongs to no token. The sink is a key with score 0 and value 0. q, k [B, N,
 * Q] [real], v [B, N, T] [real], mask? [i32] [B, N] (0: the token is no key), per head of Q / H and T / H channels
 *   -> u [B, N, T] [real], log_normalizer [B, N, H] f32 = ln Z.
 *   e_tj = scale · q_t·k_j - slope d + hyper / d, d = t - j;  Z_t = 1 + Σ_j 2^e_tj;  u_t = Σ_j 2^e_tj v_j / Z_t.
 * The share of a key is 2^e / Z, that of the sink 1 / Z.
 *
 * This is softmax attention over window + 1 tokens, with a table of biases that hides the query's own token and adds
 * the terms of the distance. decay_merge then adds the first key and the sink by the log-normalizer. Memory is O(N),
 * time O(N · window), and all kernels of softmax attention can be used. */
typedef struct decay_params {
	int64_t heads;
	int64_t window; /* <= 0: all tokens before */
	float scale, slope, hyper;
	bool bidirectional; /* a query also sees the tokens after its own, d = |t - j|; without a window */
} decay_params;
typedef struct decay_values {
	value u, log_normalizer;
} decay_values;
/* biases: of op_decay_biases for min(window + 1, N) distances or more, so that layers can share a table, with
 * `bidirectional` for the distances 1 - N … N - 1; or VALUE_NONE: the layer makes its own. */
decay_values op_decay_attention(graph *g, value q, value k, value v, value first_k, value first_v, value mask,
                                value biases, decay_params params);
/* The steps of softmax_stream whose ring holds codes; key_step VALUE_NONE: it holds floats. */
typedef struct decay_codes {
	value key_step;
	float value_step, query_step;
} decay_codes;
/* The recurrent form: softmax_stream on a ring of window + 1 tokens (window ≥ 1), and decay_merge. positions [i32] […]:
 * of each row of q; biases of window + 1 distances. offset: floats from the start of a slot. What u holds in rows that
 * no sequence reads means nothing. */
decay_values op_decay_stream(graph *g, value q, value k, value v, value first_k, value first_v, decay_codes codes,
                             stream_values at, value positions, value biases, int64_t offset, decay_params params);
/* Floats of state of one layer whose tokens have Q and T floats, or as many codes. */
int64_t decay_state_floats(int64_t key_width, int64_t value_width, int64_t window, bool codes);

/* decay_biases: the table of biases of distances first … first + count - 1: -> [count, heads] f32, the row of distance
 * d DECAY_HIDDEN (decay.h) if d = 0;  else ln 2 (-slope |d| + hyper / |d|). */
typedef struct decay_biases_params {
	int64_t count, heads;
	float slope, hyper;
	int64_t first; /* <= 0 */
} decay_biases_params;
value op_decay_biases(graph *g, decay_biases_params params);

/* decay_merge: combine the first key and the sink with y and M, the result of softmax attention over the tokens. q [B,
 * N, Q], first_k [Q], first_v [T], y [B, N, T] [real], M [B, N, H], positions? [i32], one for each row (absent: row n
 * of a sequence at n); and k?, v?, mask?, biases? of that attention, whose numbers are not read (no gradient without
 * them)
 *   -> u [B, N, T] [real], log_normalizer L [B, N, H].
 *   s = ln 2 (scale · q·first_k - slope d + hyper / d), d = position + 1;  L = ln(1 + e^s + e^M);
 *   u = e^{M - L} y + e^{s - L} first_v.
 * The gradient is that of the whole attention; y itself gets none. softmax_attention_grad with u and L in place of y
 * and M computes dk, dv and the tokens' part of dq, decay_merge_grad the rest. decay_merge_grad: q, first_k, first_v,
 * u, L, du, positions? -> dq [B, N, Q], dfirst_k [Q], dfirst_v [T] [real], with the sums over rows in a fixed order
 *   P = e^{s - L};  ds = ln 2 · scale · P (du·first_v - du·u);
 *   dq = ds first_k;  dfirst_k = Σ ds q;  dfirst_v = Σ P du. */

/* --- tables of position biases: a row for each distance first … first + count - 1 (query's position - key's)
 * ---------- */

/* t5_buckets: -> [i32] [count], the row of a [buckets, H] table for each distance (Raffel et al. 2020). One-sided: keys
 * after the query count as distance 0. Bidirectional: half of the buckets are for them. With b buckets of a side, e = b
 * / 2 and d ≥ 0: d for d < e, else min(b - 1, e + ⌊ln(d / e) / ln(max_distance / e) (b
 * - e)⌋), in floats, since near a bound a double can fall on its other side. */
typedef struct t5_buckets_params {
	int64_t first, count, buckets, max_distance;
	bool bidirectional;
} t5_buckets_params;
value op_t5_buckets(graph *g, t5_buckets_params params);

/* distances: -> [count, 1] f32: d; |d| if `absolute`; with `logarithmic` ln(|d| + 1), of d's sign unless `absolute`. */
typedef struct distances_params {
	int64_t first, count;
	bool absolute, logarithmic;
} distances_params;
value op_distances(graph *g, distances_params params);

/* alibi: -> y [count, heads] f32: -slope_h |d| for the first alibi_heads heads, 0 for the others (Press et al. 2022).
 * slope_h = e^{log_slopes[h]} with log_slopes? [heads] f32; else 2^(-8 (h + 1) / A) if A = alibi_heads is a power of
 * two. If not, they are those of the power P below it, then every other one of 2 P. */
typedef struct alibi_params {
	int64_t first, count, heads, alibi_heads;
} alibi_params;
value op_alibi(graph *g, value log_slopes, alibi_params params);

/* sinusoids: positions [i32] […] -> y […, width] f32 (Vaswani et al. 2017), of position p and pair i of width / 2
 *   y_2i = sin(p w_i), y_2i+1 = cos(p w_i), w_i = 10000^(-2i / width)
 * The forms differ in rounding. EXACT: w_i and its product with p are doubles. EXP and POW round both to float, with
 * w_i as e^(2i · c), c = -ln 10000 / width rounded to float, or as the power. Use these for models that were trained
 * with tables computed in floats. */
typedef enum sinusoids_form { SINUSOIDS_EXACT, SINUSOIDS_EXP, SINUSOIDS_POW } sinusoids_form;
typedef struct sinusoids_params {
	int64_t width; /* even */
	sinusoids_form form;
} sinusoids_params;
value op_sinusoids(graph *g, value positions, sinusoids_params params);

/* linear_cross_entropy: the loss of a vocabulary product that is never stored whole:
 * z = alpha (h Eᵀ + b), a few rows at a time; mean over rows whose label is a class (0…V-1) of
 *   (1-ε)(lse - z[label]) + ε (lse - mean_v z_v),  lse = log Σ_v e^{z_v},
 * each times its row's weight.
 * hidden […, D] [real], weight [V, D] of hidden's type or panels (hidden f32), bias? [V] f32, label [i32] [rows] (any
 * other label: ignored), row_weight? [rows] f32 (of any sign; absent: 1)
 *   -> loss scalar, count scalar (rows that counted, of any weight; loss is 0 if none), and, where wanted, by-products
 *   dhidden […, D] [real], dweight [V, D], dbias [V]: gradients of the loss, made while a row's z is at hand
 *   ([real] weights only), which the backward scales by dloss; and
 *   hit [rows]: 1 where the row counts and its label is the class of the largest z, the lowest of equals; else 0; and
 *   log_probability [rows]: z[label] - lse where the row counts, else 0. */
typedef struct linear_cross_entropy_params {
	float alpha, smoothing;
} linear_cross_entropy_params;
typedef struct linear_cross_entropy_values {
	value loss, count, hit, log_probability;
} linear_cross_entropy_values;
linear_cross_entropy_values op_linear_cross_entropy(graph *g, value hidden, value weight, value bias, value label,
                                                    value row_weight, linear_cross_entropy_params params);

/* fill: a tensor of one value, f32 or i32. */
typedef struct fill_params {
	shape shape;
	float value;
	bool integer; /* i32, of `whole` */
	int32_t whole;
} fill_params;
value op_fill(graph *g, shape shape, float value);
value op_fill_integer(graph *g, shape shape, int32_t value);

/* accumulate: sum += factor · x, in place. sum […], x […]. */
void op_accumulate(graph *g, value sum, value x, float factor);

/* lerp: p += rate · (x - p), in place. p […], x […], rate a scalar. */
void op_lerp(graph *g, value p, value x, value rate);

/* sum_squares: Σ x² as a scalar, accumulated in double in a fixed order. */
value op_sum_squares(graph *g, value x);

/* adamw on flat arenas, in place on p, m, v:
 *   c = clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1, norm = √norm2
 *   g' = c·g;  m = β1 m + (1-β1) g';  v = β2 v + (1-β2) g'²
 *   p = p (1 - lr·decay) - lr · (m / (1-β1^t)) / (√(v / (1-β2^t)) + eps)
 * or with `transformers` (the order of Hugging Face's AdamW: eps beside √v as it is, decay of the updated p)
 *   p = (p - lr · √(1-β2^t) / (1-β1^t) · m / (√v + eps)) (1 - lr·decay)
 * p [n], g [n], m [n], v [n], norm2 scalar, hyper [2] = {lr, t}. A non-finite norm2
 * leaves p, m and v untouched. narrow? [bf16] [n] is p rounded, written whenever the op runs. factors?
 * [⌈n / 16⌉, 2]: step_factors of every 16 numbers of p, ROW_SPAN_UNIT; 1 where they are not given.
 * (Loshchilov and Hutter 2019; PyTorch's AdamW.) */
typedef struct step_factors {
	float rate, decay; /* the rate multiplies lr, also where lr multiplies the decay */
} step_factors;
typedef struct adamw_params {
	float beta1, beta2, eps, decay, clip;
	bool transformers;
} adamw_params;
void op_adamw(graph *g, value p, value grad, value m, value v, value norm2, value hyper, value narrow, value factors,
              adamw_params params);

/* sgd on flat arenas, in place on p and m:
 *   c = normalize ? (norm > 0 ? 1 / norm : 0) : clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1, norm = √norm2
 *   m = μ m + c·g;  p = p (1 - lr·decay) - lr·m
 * p [n], g [n], m [n], norm2 scalar, hyper [2] = {lr, t} (t is not read), narrow? [bf16] [n], factors? [⌈n / 16⌉, 2].
 * A norm2 that is not finite, narrow and factors are treated as by adamw. (Polyak 1964, in PyTorch's form.) */
typedef struct sgd_params {
	float momentum, decay, clip;
	bool normalize;
} sgd_params;
void op_sgd(graph *g, value p, value grad, value m, value norm2, value hyper, value narrow, value factors,
            sgd_params params);

/* muon_direction: the momentum step of one matrix in flat arenas, divided by its Frobenius norm.
 *   u = c·g + μ (μ m + c·g) of the rows · columns numbers from `first` on, with c as of adamw (Nesterov 1983);
 *   x = u / ‖u‖, 0 where u is 0.
 * m [n], g [n], norm2 scalar -> x [rows, columns]. `first` is a multiple of ROW_SPAN_UNIT. If norm2 is not finite, x is
 * undefined. */
typedef struct muon_direction_params {
	int64_t first, rows, columns;
	float momentum, clip;
} muon_direction_params;
value op_muon_direction(graph *g, value m, value grad, value norm2, muon_direction_params params);

/* write_range: y = x, with the numbers from `first` on replaced by those of `part`. x [n], part f32 -> y [n]. `first`
 * is a multiple of ROW_SPAN_UNIT. */
typedef struct write_range_params {
	int64_t first;
} write_range_params;
value op_write_range(graph *g, value x, value part, int64_t first);

/* muon on flat arenas, in place on p, m and v. scales [⌈n / 16⌉]: s of every 16 numbers. With c as of adamw,
 *   s > 0:  m = μ m + c·g;  p = p (1 - lr·decay) - lr · s · d
 *   s = 0:  the step of adamw, without `transformers`
 * p, g, m, v, d [n], norm2 scalar, hyper [2] = {lr, t}, scales, narrow? [bf16] [n], factors? [⌈n / 16⌉, 2].
 * d is muon_direction's x of each matrix, which the caller has orthogonalised. A norm2 that is not finite, narrow and
 * factors are treated as by adamw. (Jordan 2024.) */
typedef struct muon_params {
	adamw_params adamw;
	float momentum;
} muon_params;
typedef struct muon_inputs {
	value p, grad, m, v, direction, norm2, hyper, scales, narrow, factors;
} muon_inputs;
void op_muon(graph *g, const muon_inputs *in, muon_params params);

/* row_squares: the sums of squares of the rows of the tensors in an arena, and of the tensors.
 * x [n] f32, spans [i32] [K, 4] (a row_span each) -> rows [R], tensors [K], both f32; each row and each tensor is
 * summed in double in a fixed order. Rows [span.row, next span's row) are those of the k-th tensor, each of `width`
 * numbers, contiguous from 16 · span.place on in x; the last tensor's end at R. Spans are in order and, with the
 * numbers of all rows, inside x: callers see to it. */
typedef struct row_span {
	int32_t row, place, width, by_row;
} row_span;
enum { ROW_SPAN_WORDS = 4, ROW_SPAN_UNIT = 16 };
typedef struct row_squares_params {
	int64_t rows; /* R */
} row_squares_params;
value op_row_squares(graph *g, value x, value spans, int64_t rows, value *tensors);

/* normalized_sgd on flat arenas, in place on p and s. Every tensor, or with span.by_row every row of it, steps along
 * its own gradient by a length that does not depend on the gradient's size. G: the tensor's gradient of N numbers, g:
 * that of a row of X numbers; |G|² and |g|² are what row_squares gave.
 *   tensor: c = |G|² / (rms ? N : 1)
 *   row:    s = ρ s + |g|² / (rms ? X : 1), also where g is 0;  c = s / Σ_{i<t} ρ^i
 *   p = p (1 - lr·decay) - lr · (G or g) / √c, where nothing is subtracted if G or g is 0
 * p [n], g [n], s [R], rows [R], tensors [K], spans [i32] [K, 4] (as row_squares has them), norm2 scalar,
 * hyper [2] = {lr, t}, narrow? [bf16] [n], factors? [⌈n / 16⌉, 2], of a tensor those where it begins. s of rows of
 * other tensors stays. A norm2 that is not finite, narrow and factors are treated as by adamw, but numbers between
 * tensors are not written. ρ is row_decay, from 0 to below 1. */
typedef struct normalized_sgd_params {
	float row_decay, decay;
	bool rms;
} normalized_sgd_params;
typedef struct normalized_sgd_inputs {
	value p, grad, statistics, rows, tensors, spans, norm2, hyper, narrow, factors;
} normalized_sgd_inputs;
void op_normalized_sgd(graph *g, const normalized_sgd_inputs *in, normalized_sgd_params params);

/* sample: a token from each row of logits, as engine/tensor/ops/sample.h says, to the same token on every backend.
 * logits [B, V], setting [i32] [B, SAMPLE_WORDS] (a sample_setting each), adjust [i32] [A, 3] (a sample_adjust each,
 * and masks), maxima? [B, ⌈V / LINEAR_BLOCK⌉] f32 (those of linear for these logits, which spare a kernel from reading
 * them all)
 * -> token [i32] [B], -1 where no logit is finite. */
value op_sample(graph *g, value logits, value setting, value adjust, value maxima);

#endif
