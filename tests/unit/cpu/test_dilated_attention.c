/* Dilated attention, its gradient and its recurrent form: known numbers, and properties that hold for all numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "engine/tensor/ops/dilated.h"
#include "tests/unit/cpu/fixture.h"
#include "tests/unit/support/backends.h"

enum { B = 2, N = 53, H = 4, DH = 3, D = H * DH };

static const dilated_pattern whole = {1, {64}, {1}, DILATED_BLOCK}, three = {3, {4, 8, 16}, {1, 2, 4}, DILATED_BLOCK},
                             uneven = {3, {5, 7, 40}, {1, 2, 3}, DILATED_MOD},
                             gaps = {2, {6, 12}, {2, 3}, DILATED_BLOCK};

static float *reals(const tensor *t)
{
	return t->data;
}

/* q, k, v [B, N, D] of a call without mask and mixture. */
static op_call attention(const dilated_params *p)
{
	const shape s = SHAPE3(B, N, D);
	return (op_call){.params = p,
	                 .n_in = 5,
	                 .in = {fixture_normal(s, 71, 1), fixture_normal(s, 72, 1), fixture_normal(s, 73, 1)}};
}

/* --- known numbers ----------------------------------------------------------------------------------------- */

/* q, k, v [h][t][x] = sin(id + 0.7h + 0.3t + 0.11x), ids 1, 2, 3. */
static op_call toy(const dilated_params *p, int64_t length)
{
	op_call call = {.params = p, .n_in = 3};
	for (int id = 0; id < 3; id++) {
		call.in[id] = fixture_tensor(DTYPE_F32, SHAPE3(1, length, 8));
		for (int64_t e = 0; e < 8 * length; e++)
			reals(&call.in[id])[e] = (float)sin(id + 1 + 0.7 * (double)(e / 2 % 4) + 0.3 * (double)(e / 8) +
			                                    0.11 * (double)(e % 2));
	}
	return call;
}

static void eight_rows_give_their_known_numbers(void **state)
{
	static const dilated_pattern both = {2, {4, 8}, {1, 2}, DILATED_BLOCK}, mod = {2, {4, 8}, {1, 2}, DILATED_MOD},
	                             dense = {1, {8}, {1}, DILATED_BLOCK}, four = {1, {4}, {1}, DILATED_BLOCK};
	static const struct {
		const dilated_pattern *pattern;
		bool causal, zero_keys;
		int length, head, row;
		float want[2];
	} cases[] = {
	    {&both, false, false, 8, 1, 5, {-0.756480f, -0.689750f}},
	    {&both, false, false, 8, 2, 5, {-0.375110f, -0.286881f}},
	    {&both, false, false, 8, 3, 7, {0.027735f, 0.120237f}},
	    {&mod, false, false, 8, 1, 5, {-0.763460f, -0.717166f}},
	    {&mod, false, false, 8, 2, 5, {-0.257777f, -0.156182f}},
	    {&mod, false, false, 8, 3, 7, {0.027735f, 0.120237f}},
	    {&both, true, false, 8, 1, 5, {-0.932306f, -0.890515f}},
	    {&both, true, false, 8, 2, 5, {-0.615497f, -0.536929f}},
	    {&mod, true, false, 8, 1, 5, {-0.902625f, -0.886734f}},
	    {&mod, true, false, 8, 2, 5, {-0.504450f, -0.408044f}},
	    {&dense, false, false, 8, 2, 5, {-0.558089f, -0.489579f}},
	    {&four, false, true, 6, 0, 5, {-0.415531f, -0.431205f}},
	};
	backends *b = *state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int fast = 0; fast < 2; fast++) {
			const dilated_params p = {.pattern = *cases[i].pattern,
			                          .heads = 4,
			                          .scale = (float)sqrt(0.5),
			                          .causal = cases[i].causal,
			                          .zero_keys = cases[i].zero_keys};
			op_call call = toy(&p, cases[i].length);
			fixture_run(b->each[fast], OP_dilated_attention, &call);
			assert_true(compare_close("y", reals(&call.out[0]) + cases[i].row * 8 + cases[i].head * 2,
			                          cases[i].want, 2, 1e-6, 0));
			fixture_free(&call);
		}
}

/* --- invariants -------------------------------------------------------------------------------------------- */

/* y of one head and token by softmax over all tokens, or over those up to the token. */
static void dense(const op_call *call, int64_t row, int64_t h, bool causal, float *y)
{
	const int64_t t = row % N, first = row - t;
	double weight[N], sum = 0, out[DH] = {0};
	for (int64_t j = 0; j < (causal ? t + 1 : N); j++) {
		double score = 0;
		for (int64_t d = h * DH; d < (h + 1) * DH; d++)
			score +=
			    (double)reals(&call->in[0])[row * D + d] * (double)reals(&call->in[1])[(first + j) * D + d];
		sum += weight[j] = exp(0.4 * score);
	}
	for (int64_t j = 0; j < (causal ? t + 1 : N); j++)
		for (int64_t d = 0; d < DH; d++)
			out[d] += weight[j] / sum * (double)reals(&call->in[2])[(first + j) * D + h * DH + d];
	for (int64_t d = 0; d < DH; d++)
		y[d] = (float)out[d];
}

static void one_segment_with_every_row_is_dense_attention(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		const dilated_params p = {.pattern = whole, .heads = H, .scale = 0.4f, .causal = i % 2};
		op_call call = attention(&p);
		fixture_run(b->each[i / 2], OP_dilated_attention, &call);
		for (int64_t e = 0; e < B * N * H; e++) {
			float want[DH];
			dense(&call, e / H, e % H, p.causal, want);
			assert_true(compare_close("y", reals(&call.out[0]) + e * DH, want, DH, 1e-5, 0));
		}
		fixture_free(&call);
	}
}

static void a_duplicated_branch_has_no_effect(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		dilated_params p = {.pattern = uneven, .heads = H, .scale = 0.4f, .causal = i % 2}, twice = p;
		twice.pattern.branches = 6;
		for (int k = 0; k < 3; k++) {
			twice.pattern.segment[3 + k] = p.pattern.segment[k];
			twice.pattern.dilation[3 + k] = p.pattern.dilation[k];
		}
		op_call one = attention(&p), two = attention(&twice);
		fixture_run(b->each[i / 2], OP_dilated_attention, &one);
		fixture_run(b->each[i / 2], OP_dilated_attention, &two);
		assert_true(compare_close("y", two.out[0].data, one.out[0].data, B * N * D, 1e-6, 1e-6));
		fixture_free(&one);
		fixture_free(&two);
	}
}

/* y = Σ e^{L_i} o_i / Σ e^{L_i}, with o_i and L_i of calls with one branch each. */
static void branches_are_weighted_by_their_denominators(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		const dilated_params p = {
		    .pattern = i % 2 ? gaps : three, .heads = H, .scale = 0.4f, .zero_keys = i % 2};
		op_call all = attention(&p);
		double sum[B * N * D] = {0}, total[B * N * H] = {0};
		fixture_run(b->each[i / 2], OP_dilated_attention, &all);
		for (int64_t k = 0; k < p.pattern.branches; k++) {
			dilated_params single = p;
			single.pattern.branches = 1;
			single.pattern.segment[0] = p.pattern.segment[k];
			single.pattern.dilation[0] = p.pattern.dilation[k];
			op_call one = attention(&single);
			fixture_run(b->each[i / 2], OP_dilated_attention, &one);
			for (int64_t e = 0; e < B * N * D; e++)
				sum[e] += exp((double)reals(&one.out[1])[e / DH]) * (double)reals(&one.out[0])[e];
			for (int64_t e = 0; e < B * N * H; e++) {
				total[e] += exp((double)reals(&one.out[1])[e]);
				assert_true(reals(&all.out[1])[k * B * N * H + e] == reals(&one.out[1])[e]);
			}
			fixture_free(&one);
		}
		for (int64_t e = 0; e < B * N * D; e++) {
			const double want = total[e / DH] > 0 ? sum[e] / total[e / DH] : 0;
			assert_true(fabs((double)reals(&all.out[0])[e] - want) <= 1e-5);
		}
		fixture_free(&all);
	}
}

static void a_constant_value_is_the_result_of_every_kept_row(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		const dilated_params p = {.pattern = i % 2 ? gaps : uneven, .heads = H, .scale = 0.4f, .causal = i / 2};
		op_call call = attention(&p);
		for (int64_t e = 0; e < B * N * D; e++)
			reals(&call.in[2])[e] = 2.5f;
		fixture_run(b->each[i % 2], OP_dilated_attention, &call);
		int64_t covered = 0;
		for (int64_t e = 0; e < B * N * D; e++) {
			float most = -INFINITY;
			for (int64_t k = 0; k < p.pattern.branches; k++)
				most = fmaxf(most, reals(&call.out[1])[k * B * N * H + e / DH]);
			covered += most > -INFINITY;
			assert_true(fabsf(reals(&call.out[0])[e] - (most > -INFINITY ? 2.5f : 0.0f)) <= 1e-6f);
		}
		assert_true(i % 2 ? covered < B * N * D && covered > 0 : covered == B * N * D);
		fixture_free(&call);
	}
}

static void each_row_is_kept_by_heads_over_r_heads(void **state)
{
	(void)state;
	for (int64_t r = 1; r <= H; r *= 2) {
		const dilated_pattern p = {1, {16}, {r}, DILATED_BLOCK};
		for (int64_t row = 0; row < 16; row++) {
			int64_t heads = 0;
			for (int64_t h = 0; h < H; h++)
				heads += row % r == dilated_first(&p, 0, H, h);
			assert_int_equal(heads, H / r);
		}
	}
	/* The number of heads is no multiple of the rate: no head has the last offset. */
	const dilated_pattern p = {1, {16}, {3}, DILATED_BLOCK};
	for (int64_t h = 0; h < H; h++)
		assert_int_equal(dilated_first(&p, 0, H, h), h / 2);
}

static void a_constant_added_to_all_scores_of_a_query_has_no_effect(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 2; i++) {
		const dilated_params p = {.pattern = three, .heads = H, .scale = 0.4f};
		op_call call = attention(&p), more = attention(&p);
		for (int64_t e = 0; e < B * N * H; e++) {
			reals(&call.in[1])[e * DH] = reals(&more.in[1])[e * DH] = 1;
			reals(&more.in[0])[e * DH] += (float)(e % 7);
		}
		fixture_run(b->each[i], OP_dilated_attention, &call);
		fixture_run(b->each[i], OP_dilated_attention, &more);
		assert_true(compare_close("y", more.out[0].data, call.out[0].data, B * N * D, 3e-6, 3e-6));
		fixture_free(&call);
		fixture_free(&more);
	}
}

static void a_causal_head_reads_no_later_token(void **state)
{
	enum { AT = 29 };
	backends *b = *state;
	for (int i = 0; i < 2; i++) {
		const dilated_params p = {.pattern = uneven, .heads = H, .scale = 0.4f, .causal = true};
		op_call before = attention(&p), after = attention(&p);
		for (int in = 0; in < 3; in++)
			for (int64_t d = 0; d < D; d++)
				reals(&after.in[in])[AT * D + d] += 1;
		fixture_run(b->each[i], OP_dilated_attention, &before);
		fixture_run(b->each[i], OP_dilated_attention, &after);
		assert_memory_equal(before.out[0].data, after.out[0].data, sizeof(float[AT * D]));
		assert_memory_equal(reals(&before.out[0]) + N * D, reals(&after.out[0]) + N * D, sizeof(float[N * D]));
		for (int64_t h = 0; h < H; h++)
			assert_true(reals(&before.out[0])[AT * D + h * DH] != reals(&after.out[0])[AT * D + h * DH]);
		fixture_free(&before);
		fixture_free(&after);
	}
}

static void a_mask_removes_keys_and_a_token_without_keys_gets_zeros(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 2; i++) {
		const dilated_params p = {.pattern = {1, {8}, {2}, DILATED_MOD}, .heads = H, .scale = 0.4f};
		op_call call = attention(&p), other = attention(&p);
		call.in[3] = fixture_tensor(DTYPE_I32, SHAPE2(B, N));
		other.in[3] = fixture_tensor(DTYPE_I32, SHAPE2(B, N));
		for (int64_t t = 0; t < B * N; t++) {
			const int32_t visible = t >= 8 && t % 3 != 0; /* no token of the first segment */
			((int32_t *)call.in[3].data)[t] = ((int32_t *)other.in[3].data)[t] = visible;
			for (int64_t d = 0; d < D && !visible; d++) {
				reals(&other.in[1])[t * D + d] = -3;
				reals(&other.in[2])[t * D + d] = 1e6f;
			}
		}
		fixture_run(b->each[i], OP_dilated_attention, &call);
		fixture_run(b->each[i], OP_dilated_attention, &other);
		assert_true(compare_close("y", other.out[0].data, call.out[0].data, B * N * D, 0, 0));
		for (int64_t e = 0; e < 8 * D; e++)
			assert_true(reals(&call.out[0])[e] == 0.0f);
		assert_true(reals(&call.out[1])[0] == -INFINITY && reals(&call.out[0])[9 * D + DH] != 0.0f);
		fixture_free(&call);
		fixture_free(&other);
	}
}

/* --- the gradient ------------------------------------------------------------------------------------------ */

static op_call gradient(const dilated_params *p, const op_call *forward)
{
	return (op_call){.params = p,
	                 .n_in = 8,
	                 .in = {forward->in[0], forward->in[1], forward->in[2], forward->in[3], forward->in[4],
	                        forward->out[0], forward->out[1], fixture_normal(forward->out[0].shape, 75, 1)}};
}

/* With one branch no weight is constant, and dv never depends on it. */
static void constant_weights_matter_only_with_several_branches_and_for_queries_and_keys(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		dilated_params p = {.pattern = i % 2 ? three : whole, .heads = H, .scale = 0.4f};
		op_call forward = attention(&p);
		fixture_run(b->each[i / 2], OP_dilated_attention, &forward);
		op_call exact = gradient(&p, &forward);
		fixture_run(b->each[i / 2], OP_dilated_attention_grad, &exact);
		dilated_params detached = p;
		detached.detach_weights = true;
		op_call constant = gradient(&detached, &forward);
		fixture_run(b->each[i / 2], OP_dilated_attention_grad, &constant);
		float most[3] = {0};
		for (int o = 0; o < 3; o++)
			for (int64_t e = 0; e < B * N * D; e++)
				most[o] = fmaxf(most[o], fabsf(reals(&exact.out[o])[e] - reals(&constant.out[o])[e]));
		assert_true(most[2] == 0.0f);
		assert_true(i % 2 ? most[0] > 1e-2f && most[1] > 1e-2f : most[0] < 1e-5f && most[1] < 1e-5f);
		buffer_free(exact.in[7].data);
		buffer_free(constant.in[7].data);
		fixture_free_outputs(&exact);
		fixture_free_outputs(&constant);
		fixture_free(&forward);
	}
}

/* --- the recurrent form ------------------------------------------------------------------------------------ */

/* Read a call's tokens `piece` at a time into slots full of NaN, and write y [B, N, D]. */
static void read_in_pieces(backend *b, const op_call *call, const dilated_pattern *pattern, int64_t piece, float *y)
{
	const dilated_stream_params p = {.pattern = *pattern, .heads = H, .scale = 0.4f};
	tensor pool = fixture_tensor(DTYPE_F32, SHAPE2(B, dilated_state_floats(D, pattern)));
	memset(pool.data, 0xff, (size_t)shape_count(pool.shape) * sizeof(float));
	for (int64_t at = 0; at < N; at += piece) {
		const int64_t count = piece < N - at ? piece : N - at;
		op_call step = {.params = &p, .n_in = 7};
		for (int i = 0; i < 3; i++) {
			step.in[i] = fixture_tensor(DTYPE_F32, SHAPE3(B, piece, D));
			for (int64_t s = 0; s < B; s++)
				memcpy(reals(&step.in[i]) + s * piece * D, reals(&call->in[i]) + (s * N + at) * D,
				       (size_t)(count * D) * sizeof(float));
		}
		step.in[3] = pool;
		for (int i = 4; i < 7; i++)
			step.in[i] = fixture_tensor(DTYPE_I32, SHAPE1(B));
		for (int32_t s = 0; s < B; s++) {
			((int32_t *)step.in[4].data)[s] = B - 1 - s;
			((int32_t *)step.in[5].data)[s] = (int32_t)at;
			((int32_t *)step.in[6].data)[s] = (int32_t)count;
		}
		fixture_run(b, OP_dilated_stream, &step);
		for (int64_t s = 0; s < B; s++)
			memcpy(y + (s * N + at) * D, reals(&step.out[0]) + s * piece * D,
			       (size_t)(count * D) * sizeof(float));
		step.in[3].data = NULL;
		fixture_free(&step);
	}
	buffer_free(pool.data);
}

static void pieces_of_any_size_give_the_parallel_form_across_the_borders_of_all_segments(void **state)
{
	static const int64_t pieces[] = {1, 3, 4, 5, 16, 23, N};
	const dilated_pattern *patterns[] = {&three, &uneven, &gaps, &whole};
	backends *b = *state;
	for (int k = 0; k < 4; k++) {
		const dilated_params p = {.pattern = *patterns[k], .heads = H, .scale = 0.4f, .causal = true};
		op_call call = attention(&p);
		fixture_run(b->each[0], OP_dilated_attention, &call);
		for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
			for (int fast = 0; fast < 2; fast++) {
				float y[B * N * D];
				memset(y, 0xff, sizeof y);
				read_in_pieces(b->each[fast], &call, patterns[k], pieces[i], y);
				assert_true(compare_close("y", y, call.out[0].data, B * N * D, 2e-6, 2e-6));
			}
		fixture_free(&call);
	}
}

/* --- the same bits ----------------------------------------------------------------------------------------- */

static void any_number_of_threads_gives_the_same_bits(void **state)
{
	enum { LONG = 2500, WIDE = 64 };
	const dilated_pattern pattern = {3, {64, 300, 2000}, {1, 2, 5}, DILATED_BLOCK};
	const dilated_params p = {
	    .pattern = pattern, .heads = H, .scale = 0.2f, .causal = true, .detach_weights = true};
	const shape s = SHAPE3(1, LONG, WIDE);
	backend *b = fixture_open(2);
	op_call forward[2], backward[2];
	(void)state;
	for (int i = 0; i < 2; i++) {
		forward[i] =
		    (op_call){.params = &p,
		              .n_in = 5,
		              .in = {fixture_normal(s, 71, 1), fixture_normal(s, 72, 1), fixture_normal(s, 73, 1)}};
		forward[i].in[4] = fixture_normal(SHAPE1(3), 74, 1);
		fixture_narrow(b, i + 1, OP_dilated_attention, &forward[i]);
		backward[i] = gradient(&p, &forward[i]);
		fixture_narrow(b, i + 1, OP_dilated_attention_grad, &backward[i]);
	}
	for (int o = 0; o < 2; o++)
		assert_memory_equal(forward[0].out[o].data, forward[1].out[o].data,
		                    (size_t)shape_count(forward[0].out[o].shape) * sizeof(float));
	for (int o = 0; o < 4; o++)
		assert_memory_equal(backward[0].out[o].data, backward[1].out[o].data,
		                    (size_t)shape_count(backward[0].out[o].shape) * sizeof(float));
	for (int i = 0; i < 2; i++) {
		buffer_free(backward[i].in[7].data);
		fixture_free_outputs(&backward[i]);
		fixture_free(&forward[i]);
	}
	backend_close(b);
}

/* Longer than a span, unlike the other kernels' cases. */
static void long_sequences_agree_with_the_reference(void **state)
{
	enum { LONG = 1500 };
	const dilated_pattern pattern = {3, {64, 300, 1000}, {1, 3, 7}, DILATED_MOD};
	const shape s = SHAPE3(1, LONG, 8);
	backends *b = *state;
	for (int causal = 0; causal < 2; causal++) {
		const dilated_params p = {.pattern = pattern, .heads = 2, .scale = 0.4f, .causal = causal};
		op_call call[2];
		for (int i = 0; i < 2; i++) {
			call[i] = (op_call){
			    .params = &p,
			    .n_in = 3,
			    .in = {fixture_normal(s, 71, 1), fixture_normal(s, 72, 1), fixture_normal(s, 73, 1)}};
			fixture_run(b->each[i], OP_dilated_attention, &call[i]);
		}
		assert_true(compare_close("y", call[1].out[0].data, call[0].out[0].data, LONG * 8, 1e-5, 1e-5));
		fixture_free(&call[0]);
		fixture_free(&call[1]);
	}
}

/* --- bad arguments ----------------------------------------------------------------------------------------- */

static void bad_patterns_are_refused_by_name(void **state)
{
	static const struct {
		dilated_params p;
		const char *param;
	} cases[] = {
	    {{.heads = H, .scale = 1}, "branches"},
	    {{.pattern = {17, {1}, {1}, 0}, .heads = H, .scale = 1}, "branches"},
	    {{.pattern = {2, {4, 0}, {1, 1}, 0}, .heads = H, .scale = 1}, "segment"},
	    {{.pattern = {2, {4, 8}, {1, 0}, 0}, .heads = H, .scale = 1}, "dilation"},
	    {{.pattern = {1, {4}, {1}, (dilated_offset)3}, .heads = H, .scale = 1}, "offset"},
	    {{.pattern = {1, {4}, {1}, 0}, .heads = 5, .scale = 1}, "heads"},
	    {{.pattern = {1, {4}, {1}, 0}, .heads = H, .scale = INFINITY}, "scale"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		op_call call = attention(&cases[i].p);
		error err = ERROR_INIT;
		assert_int_equal(op_get(OP_dilated_attention)->check(&call, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].param);
		fixture_free(&call);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(eight_rows_give_their_known_numbers),
	    cmocka_unit_test(one_segment_with_every_row_is_dense_attention),
	    cmocka_unit_test(a_duplicated_branch_has_no_effect),
	    cmocka_unit_test(branches_are_weighted_by_their_denominators),
	    cmocka_unit_test(a_constant_value_is_the_result_of_every_kept_row),
	    cmocka_unit_test(each_row_is_kept_by_heads_over_r_heads),
	    cmocka_unit_test(a_constant_added_to_all_scores_of_a_query_has_no_effect),
	    cmocka_unit_test(a_causal_head_reads_no_later_token),
	    cmocka_unit_test(a_mask_removes_keys_and_a_token_without_keys_gets_zeros),
	    cmocka_unit_test(constant_weights_matter_only_with_several_branches_and_for_queries_and_keys),
	    cmocka_unit_test(pieces_of_any_size_give_the_parallel_form_across_the_borders_of_all_segments),
	    cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
	    cmocka_unit_test(long_sequences_agree_with_the_reference),
	    cmocka_unit_test(bad_patterns_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
