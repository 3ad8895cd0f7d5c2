/* Softmax attention, over complete sequences, continued from a state, and on a stored source. */
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "tests/unit/support/op_cases/family.h"

/* batch, length, channels, heads, window, masked, dropout in percent; negative: loud scores */
static value softmax_inputs(graph *g, const int64_t *arg, value *mask, value *rng, softmax_params *p)
{
	bool loud = arg[6] < 0;
	*p = (softmax_params){.heads = arg[3], .window = arg[4], .scale = 0.4f, .stream = 3};
	p->p = loud ? 0 : (float)(arg[6] % FROZEN) / 100;
	*mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	*rng = p->p > 0 ? i32(g, "rng", SHAPE1(4)) : VALUE_NONE;
	return real(g, arg, loud ? "qkv wide" : "qkv", SHAPE3(arg[0], arg[1], 3 * arg[2]));
}

static void build_softmax(graph *g, const int64_t *arg)
{
	softmax_params p;
	value mask, rng, qkv = softmax_inputs(g, arg, &mask, &rng, &p);
	op_softmax_attention(g, qkv, VALUE_NONE, VALUE_NONE, mask, VALUE_NONE, rng, p);
}

static void build_softmax_grad(graph *g, const int64_t *arg)
{
	softmax_params p;
	value in[9] = {VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE}, grads[4];
	in[0] = softmax_inputs(g, arg, &in[3], &in[5], &p);
	graph_apply(g, OP_softmax_attention, in, 6, &p, in + 6);
	in[8] = real(g, arg, "dy", SHAPE3(arg[0], arg[1], arg[2]));
	p.frozen = arg[6] >= FROZEN;
	graph_apply(g, OP_softmax_attention_grad, in, 9, &p, grads);
}

/* A form of softmax attention with options. dv 0: queries, keys and values are one tensor. */
typedef struct softmax_form {
	int64_t batch, queries, keys, dh, dv;
	const char *mask;
	int64_t bias; /* rows of the table */
	softmax_params p;
} softmax_form;

enum {
	SEPARATE,
	GROUPED,
	MULTI_QUERY,
	SEEN_BOTH_WAYS,
	BEHIND_OTHERS,
	BEFORE_OTHERS,
	CROSS,
	BLIND,
	ONE_BIASED,
	MANY_TILES,
	MANY_TILES_BOTH_WAYS,
	WIDE_HEADS,
	NO_KEY,
	NO_QUERY,
	SOFTMAX_FORMS
};

static const softmax_form softmax_forms[SOFTMAX_FORMS] = {
    [SEPARATE] = {2, 9, 9, 3, 3, NULL, 0, {.heads = 2}},
    [GROUPED] = {2, 13, 13, 3, 5, "mask", 0, {.heads = 4, .kv_heads = 2}},
    [MULTI_QUERY] = {1, 11, 11, 4, 2, "mask", 14, {.heads = 3, .kv_heads = 1, .p = 0.3f, .bias_first = -2}},
    [SEEN_BOTH_WAYS] = {2, 11, 11, 2, 3, NULL, 14, {.heads = 2, .window = 4, .bias_first = -10, .bidirectional = true}},
    [BEHIND_OTHERS] = {1, 5, 17, 3, 3, "mask", 6, {.heads = 2, .window = 6}},
    [BEFORE_OTHERS] = {2, 17, 5, 3, 2, "mask", 5, {.heads = 2, .kv_heads = 1, .uniform = true}},
    [CROSS] = {2, 7, 19, 3, 4, "mask", 0, {.heads = 2, .p = 0.3f, .bidirectional = true}},
    [BLIND] = {2,
               7,
               7,
               3,
               2,
               "mask all of the first",
               13,
               {.heads = 4, .kv_heads = 2, .p = 0.3f, .bias_first = -6, .bidirectional = true, .uniform = true}},
    [ONE_BIASED] = {2, 9, 9, 3, 0, "mask leading", 9, {.heads = 2, .p = 0.3f, .uniform = true}},
    [MANY_TILES] = {1,
                    130,
                    157,
                    36,
                    12,
                    "mask leading",
                    90,
                    {.heads = 4, .kv_heads = 2, .window = 90, .p = 0.3f, .uniform = true}},
    [MANY_TILES_BOTH_WAYS] = {2, 70, 133, 12, 40, "mask", 202, {.heads = 2, .bias_first = -69, .bidirectional = true}},
    [WIDE_HEADS] = {1, 67, 67, 129, 70, "mask", 67, {.heads = 2, .kv_heads = 1}},
    [NO_KEY] = {2, 3, 0, 2, 3, "mask", 0, {.heads = 2, .uniform = true}},
    [NO_QUERY] = {2, 0, 3, 2, 3, NULL, 1, {.heads = 2}},
};

/* form, keys, FROZEN or 0, 0, keys (for the masks) */
static softmax_params softmax_form_inputs(graph *g, const int64_t *arg, value in[6])
{
	const softmax_form *f = &softmax_forms[arg[0]];
	softmax_params p = f->p;
	const int64_t kv_heads = p.kv_heads ? p.kv_heads : p.heads;
	const bool one = f->dv == 0;
	p.scale = 0.4f;
	p.stream = 3;
	in[0] = real(g, arg, one ? "qkv" : "q", SHAPE3(f->batch, f->queries, (one ? 3 : 1) * p.heads * f->dh));
	in[1] = one ? VALUE_NONE : real(g, arg, "k", SHAPE3(f->batch, f->keys, kv_heads * f->dh));
	in[2] = one ? VALUE_NONE : real(g, arg, "value", SHAPE3(f->batch, f->keys, kv_heads * f->dv));
	in[3] = f->mask ? i32(g, f->mask, SHAPE2(f->batch, f->keys)) : VALUE_NONE;
	in[4] = f->bias ? f32(g, "bias", SHAPE2(f->bias, p.heads)) : VALUE_NONE;
	in[5] = p.p > 0 ? i32(g, "rng", SHAPE1(4)) : VALUE_NONE;
	return p;
}

static void build_softmax_form(graph *g, const int64_t *arg)
{
	value in[6];
	const softmax_params p = softmax_form_inputs(g, arg, in);
	op_softmax_attention(g, in[0], in[1], in[2], in[3], in[4], in[5], p);
}

static void build_softmax_form_grad(graph *g, const int64_t *arg)
{
	const softmax_form *f = &softmax_forms[arg[0]];
	value in[9], grads[4];
	softmax_params p = softmax_form_inputs(g, arg, in);
	graph_apply(g, OP_softmax_attention, in, 6, &p, in + 6);
	in[8] = real(g, arg, "dy", SHAPE3(f->batch, f->queries, p.heads * (f->dv ? f->dv : f->dh)));
	p.frozen = arg[2] >= FROZEN;
	graph_apply(g, OP_softmax_attention_grad, in, 9, &p, grads);
}

/* As softmax_inputs, of a stream; window 0: as long as both calls together. */
static void softmax_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	const int64_t window = arg[4] ? arg[4] : 2 * arg[1] + 1;
	const softmax_stream_params p = {.heads = arg[3], .window = window, .offset = STREAM_OFFSET, .scale = 0.4f};
	const stream_values before =
	    stream_before(g, arg, STREAM_OFFSET + softmax_state_floats(arg[2], arg[2], window) + 1);
	value x = f32(g, "x before", stream_shape(arg, 3 * arg[2], false));
	op_softmax_stream(g, x, VALUE_NONE, VALUE_NONE, before.pool, before.slot, before.position, before.length,
	                  before.mask, before.start, VALUE_NONE, VALUE_NONE, VALUE_NONE, p);
	const stream_values at = stream_now(g, arg, before, ragged);
	x = f32(g, arg[6] < 0 ? "x wide" : "x", stream_shape(arg, 3 * arg[2], ragged));
	op_softmax_stream(g, x, VALUE_NONE, VALUE_NONE, at.pool, at.slot, at.position, at.length, at.mask, at.start,
	                  VALUE_NONE, VALUE_NONE, VALUE_NONE, p);
}

static void build_softmax_stream(graph *g, const int64_t *arg)
{
	softmax_stream_case(g, arg, false);
}

static void build_ragged_softmax_stream(graph *g, const int64_t *arg)
{
	softmax_stream_case(g, arg, true);
}

/* Factors of the options of softmax_stream and source_attention in a case's arg[6]. */
enum { GROUPS = 1, MEMORIES = 100, PAST = 10000, WITH_BIAS = 1000000, SEGMENT = 10000000 };
#define CODES 10000000000 /* 1: keys and values are codes; 2: so are queries; 3: the ring holds bf16 */
#define OPTIONS(groups, memories, past, biased)                                                                        \
	((groups)*GROUPS + (memories)*MEMORIES + (past)*PAST + (biased)*WITH_BIAS)

#define SEGMENTS(segment, groups, memories, past, biased) ((segment)*SEGMENT + OPTIONS(groups, memories, past, biased))

static value memories_of(graph *g, const int64_t *arg, const char *name, int64_t width)
{
	const int64_t count = arg[6] / MEMORIES % 100;
	return count ? f32(g, name, SHAPE2(count, width)) : VALUE_NONE;
}

/* Round k and v, and with `queries` also q, to multiples of steps; return the step of each row of k. */
static value make_codes(graph *g, bool queries, value qkv[3])
{
	const quantize_values k = op_quantize_with_step(g, qkv[1], (quantize_params){QUANTIZE_ROWS, 8});
	if (queries)
		qkv[0] = op_quantize(g, qkv[0], (quantize_params){QUANTIZE_FIXED, 8});
	qkv[1] = k.y;
	qkv[2] = op_quantize(g, qkv[2], (quantize_params){QUANTIZE_FIXED, 8});
	return k.step;
}

/* sequences, tokens in all, channels of a key, heads, window, masked (2: and the slots hold the memories), OPTIONS;
 * values have 3 channels more */
static void build_softmax_stream_options(graph *g, const int64_t *arg)
{
	enum { OFFSET = 4 };
	const int64_t heads = arg[3], groups = arg[6] % 100, memories = arg[6] / MEMORIES % 100;
	const softmax_format format = softmax_format_of(arg[6] / CODES % 3 != 0, arg[6] / CODES == 3);
	softmax_stream_params p = {.heads = heads,
	                           .window = arg[4],
	                           .offset = OFFSET,
	                           .scale = 0.4f,
	                           .kv_heads = groups,
	                           .past = arg[6] / PAST % 100,
	                           .segment = arg[6] / SEGMENT % 1000,
	                           .value_step = format == SOFTMAX_CODES ? QUANTIZE_FIXED_STEP : 0,
	                           .query_step = arg[6] / CODES == 2 ? QUANTIZE_FIXED_STEP : 0,
	                           .bf16 = format == SOFTMAX_BF16};
	const int64_t widths[] = {heads * arg[2], groups * arg[2], groups * (arg[2] + 3)};
	const int64_t state = softmax_ring_floats(softmax_store_of(widths[1], widths[2], p.window, format));
	const int64_t end = OFFSET + state + 4;
	const int64_t floats = end + source_state_floats(widths[1], widths[2], memories);
	value memory_k = memories_of(g, arg, "memory_k", widths[1]),
	      memory_v = memories_of(g, arg, "memory_v", widths[2]);
	value bias = arg[6] / WITH_BIAS % 10 ? f32(g, "bias", SHAPE2(p.window + memories, heads)) : VALUE_NONE;
	stream_values at = stream_before(g, arg, (floats + 3) / 4 * 4);
	if (arg[5] == 2) {
		const source_params store = {heads, groups, widths[2], memories, end, 0.4f};
		p.stored = (slot_rows){memories, end};
		memory_k = memory_v = VALUE_NONE;
		op_source_store(g, f32(g, "memory keys", SHAPE3(arg[0], memories, widths[1])),
		                f32(g, "memory values", SHAPE3(arg[0], memories, widths[2])), at.pool, at.slot,
		                VALUE_NONE, VALUE_NONE, store);
	}
	for (int now = 0; now < 2; now++) {
		static const char *const names[2][3] = {{"q before", "k before", "v before"}, {"q", "k", "v"}};
		value in[3], out[2], key_step = VALUE_NONE;
		for (int i = 0; i < 3; i++)
			in[i] = f32(g, names[now][i], stream_shape(arg, widths[i], now));
		if (now)
			at = stream_now(g, arg, at, true);
		if (p.value_step > 0)
			key_step = make_codes(g, p.query_step > 0, in);
		graph_apply(g, OP_softmax_stream,
		            (value[]){in[0], in[1], in[2], at.pool, at.slot, at.position, at.length, at.mask, at.start,
		                      memory_k, memory_v, bias, key_step},
		            13, &p, out);
	}
}

/* sources, tokens of the longest, channels of a key, heads, capacity, masked, OPTIONS; also sets pool and slot */
static source_params source_case(graph *g, const int64_t *arg, value *pool, value *slot)
{
	const int64_t groups = arg[6] % 100, key = groups * arg[2], values = groups * (arg[2] + 3);
	const source_params p = {arg[3], groups, values, arg[4], 4, 0.4f};
	const int64_t floats = p.offset + source_state_floats(key, values, p.capacity) + 4;
	*pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, (floats + 3) / 4 * 4));
	*slot = i32(g, "slot", SHAPE1(arg[0]));
	op_source_store(g, f32(g, "k", SHAPE3(arg[0], arg[1], key)), f32(g, "v", SHAPE3(arg[0], arg[1], values)), *pool,
	                *slot, arg[5] ? i32(g, "length", SHAPE1(arg[0])) : VALUE_NONE,
	                arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE, p);
	return p;
}

static void build_source_store(graph *g, const int64_t *arg)
{
	value pool, slot;
	source_case(g, arg, &pool, &slot);
}

/* The queries of all sequences are concatenated, as many in all as the longest source has tokens. */
static void build_source_attention(graph *g, const int64_t *arg)
{
	value pool, slot;
	const source_params p = source_case(g, arg, &pool, &slot);
	op_source_attention(g, f32(g, "q", SHAPE3(1, arg[1], arg[3] * arg[2])), pool, slot,
	                    i32(g, "length ragged", SHAPE1(arg[0])), i32(g, "start", SHAPE1(arg[0])),
	                    memories_of(g, arg, "memory_k", p.kv_heads * arg[2]),
	                    memories_of(g, arg, "memory_v", p.value_width), p);
}

/* clang-format off */
#define FROZEN_SOFTMAX(name, B, N, D, H, window, masked, dropout) \
	{OP_softmax_attention_grad, "frozen, " name, build_softmax_grad, {B, N, D, H, window, masked, FROZEN + dropout}, \
	 0, 0, 2e-5, 2e-5, 0}
#define SOFTMAX(id, build, dropout, step) \
	{id, "one token", build, {1, 1, 4, 4, 0, 0, dropout}, 0, 1, 2e-6, 2e-6, step}, \
	{id, "global, dropout " #dropout, build, {2, 33, 6, 2, 0, 0, dropout}, 0, 33, 1e-5, 1e-5, step}, \
	{id, "masked, dropout " #dropout, build, {2, 21, 10, 2, 0, 1, dropout}, 0, 21, 1e-5, 1e-5, step}, \
	{id, "window 1, dropout " #dropout, build, {2, 19, 6, 2, 1, 0, dropout}, 0, 19, 1e-5, 1e-5, step}, \
	{id, "window 7, masked, dropout " #dropout, build, {2, 33, 6, 2, 7, 1, dropout}, 0, 33, 1e-5, 1e-5, step}, \
	{id, "one wide head, dropout " #dropout, build, {1, 70, 129, 1, 0, 0, dropout}, 0, 70, 2e-5, 2e-5, 0}, \
	{id, "tiles, dropout " #dropout, build, {2, 197, 64, 2, 0, 1, dropout}, 0, 197, 2e-5, 2e-5, 0}, \
	{id, "tiles, window 50, dropout " #dropout, build, {1, 263, 96, 3, 50, 0, dropout}, 0, 263, 2e-5, 2e-5, 0}, \
	{id, "tiles, window 129, dropout " #dropout, build, {1, 300, 35, 5, 129, 1, dropout}, 0, 300, 2e-5, 2e-5, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 3, 1, dropout}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 3, 0, dropout}, 0, 5, 0, 0, 0}
#define SOFTMAX_FORM(id, name, build, form, keys, frozen, tolerance, step) \
	{id, name, build, {form, keys, frozen, 0, keys}, 0, 0, tolerance, tolerance, step}
#define SOFTMAX_FORMS_OF(id, build, step) \
	SOFTMAX_FORM(id, "keys of their own", build, SEPARATE, 9, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "heads in groups, wider values", build, GROUPED, 13, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "one head of keys, bias, dropout", build, MULTI_QUERY, 11, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "bidirectional, window 4, bias", build, SEEN_BOTH_WAYS, 11, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "fewer queries, window 6, bias", build, BEHIND_OTHERS, 17, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "more queries, bias, uniform", build, BEFORE_OTHERS, 5, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "cross, masked, dropout", build, CROSS, 19, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "nothing to attend to, uniform, dropout", build, BLIND, 7, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "all in one, bias, uniform", build, ONE_BIASED, 9, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "tiles, all options", build, MANY_TILES, 157, 0, 2e-5, 0), \
	SOFTMAX_FORM(id, "tiles, bidirectional, bias", build, MANY_TILES_BOTH_WAYS, 133, 0, 2e-5, 0), \
	SOFTMAX_FORM(id, "wide heads, one of keys, bias", build, WIDE_HEADS, 67, 0, 5e-5, 0), \
	SOFTMAX_FORM(id, "no key", build, NO_KEY, 0, 0, 0, 0), \
	SOFTMAX_FORM(id, "no query, but keys", build, NO_QUERY, 3, 0, 0, 0)
#define STREAM_OPTIONS(name, longest, ...) \
	{OP_softmax_stream, name, build_softmax_stream_options, {__VA_ARGS__}, 0, longest, 1e-5, 1e-5, 0}
#define SOURCE(op, name, shortest, longest, tolerance, ...) \
	{OP_##op, name, build_##op, {__VA_ARGS__}, shortest, longest, tolerance, tolerance, 0}
/* clang-format on */

static const op_case cases[] = {
    SOFTMAX(OP_softmax_attention, build_softmax, 0, STEP),
    SOFTMAX(OP_softmax_attention, build_softmax, 30, STEP),
    SOFTMAX_FORMS_OF(OP_softmax_attention, build_softmax_form, STEP),
    {OP_softmax_attention, "loud scores", build_softmax, {2, 80, 32, 2, 7, 1, -1}, 0, 0, 1e-4, 1e-5, 0},
    SOFTMAX(OP_softmax_attention_grad, build_softmax_grad, 0, 0),
    SOFTMAX(OP_softmax_attention_grad, build_softmax_grad, 30, 0),
    SOFTMAX_FORMS_OF(OP_softmax_attention_grad, build_softmax_form_grad, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, groups", build_softmax_form_grad, GROUPED, 13, FROZEN, 1e-5, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, uniform", build_softmax_form_grad, BLIND, 7, FROZEN, 1e-5, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, bias", build_softmax_form_grad, MULTI_QUERY, 11, FROZEN, 1e-5, 0),
    FROZEN_SOFTMAX("no token", 2, 0, 4, 2, 3, 1, 0),
    FROZEN_SOFTMAX("global, masked", 2, 21, 10, 2, 0, 1, 0),
    FROZEN_SOFTMAX("window 7", 2, 33, 6, 2, 7, 0, 0),
    FROZEN_SOFTMAX("one wide head", 1, 21, 129, 1, 0, 0, 0),
    FROZEN_SOFTMAX("tiles, window 50, masked", 1, 133, 16, 1, 50, 1, 0),
    FROZEN_SOFTMAX("dropout 30", 2, 33, 6, 2, 0, 1, 30),
    SOFTMAX(OP_softmax_stream, build_softmax_stream, 0, 0),
    {OP_softmax_stream, "ragged, one sequence", build_ragged_softmax_stream, {1, 40, 6, 2, 5, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged", build_ragged_softmax_stream, {7, 97, 31, 1, 0, 0}, 0, 97, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, masked", build_ragged_softmax_stream, {9, 200, 64, 4, 50, 1}, 0, 60, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, tiles", build_ragged_softmax_stream, {4, 300, 96, 3, 129, 0}, 0, 200, 2e-5, 2e-5, 0},
    {OP_softmax_stream, "ragged, many short", build_ragged_softmax_stream, {64, 64, 24, 2, 4, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, no token", build_ragged_softmax_stream, {3, 0, 4, 2, 3, 0}, 0, 0, 0, 0, 0},
    {OP_softmax_stream, "loud scores", build_softmax_stream, {2, 80, 32, 2, 7, 1, -1}, 0, 80, 1e-4, 1e-5, 0},
    STREAM_OPTIONS("apart", 40, 3, 40, 5, 2, 9, 0, OPTIONS(2, 0, 0, 0)),
    STREAM_OPTIONS("grouped", 90, 5, 120, 13, 6, 70, 1, OPTIONS(2, 0, 0, 0)),
    STREAM_OPTIONS("biased", 99, 3, 150, 16, 2, 80, 0, OPTIONS(2, 0, 0, 1)),
    STREAM_OPTIONS("memories", 40, 3, 60, 9, 2, 17, 1, OPTIONS(1, 3, 0, 0)),
    STREAM_OPTIONS("many memories", 40, 2, 90, 33, 3, 5, 0, OPTIONS(3, 70, 72, 1)),
    STREAM_OPTIONS("memories in the slots", 40, 3, 60, 9, 2, 17, 2, OPTIONS(1, 3, 0, 0)),
    STREAM_OPTIONS("many memories in the slots", 40, 2, 90, 33, 4, 35, 2, OPTIONS(2, 70, 72, 1)),
    STREAM_OPTIONS("near past", 60, 3, 90, 8, 4, 30, 1, OPTIONS(4, 0, 6, 0)),
    STREAM_OPTIONS("every option", 60, 3, 160, 61, 4, 40, 1, OPTIONS(2, 5, 20, 1)),
    STREAM_OPTIONS("codes", 40, 3, 40, 5, 2, 9, 0, CODES + OPTIONS(2, 0, 0, 0)),
    STREAM_OPTIONS("codes in fours, masked", 90, 5, 120, 16, 2, 70, 1, CODES + OPTIONS(2, 0, 0, 1)),
    STREAM_OPTIONS("codes of queries too", 9, 12, 40, 48, 1, 30, 1, 2 * CODES + OPTIONS(1, 0, 0, 1)),
    STREAM_OPTIONS("codes, many short", 4, 30, 60, 33, 4, 12, 0, 2 * CODES + OPTIONS(2, 0, 0, 0)),
    STREAM_OPTIONS("codes, every option", 60, 3, 160, 61, 4, 40, 2, 2 * CODES + OPTIONS(2, 5, 20, 1)),
    STREAM_OPTIONS("codes, segments", 90, 3, 160, 13, 4, 70, 1, CODES + SEGMENTS(37, 2, 5, 45, 1)),
    STREAM_OPTIONS("bf16", 40, 3, 40, 5, 2, 9, 0, 3 * CODES + OPTIONS(1, 0, 0, 0)),
    STREAM_OPTIONS("bf16 in fours, masked", 90, 5, 120, 16, 2, 70, 1, 3 * CODES + OPTIONS(2, 0, 0, 1)),
    STREAM_OPTIONS("bf16, many short", 4, 30, 60, 33, 4, 12, 0, 3 * CODES + OPTIONS(2, 0, 0, 0)),
    STREAM_OPTIONS("bf16, every option", 60, 3, 160, 61, 4, 40, 2, 3 * CODES + OPTIONS(2, 5, 20, 1)),
    STREAM_OPTIONS("bf16, segments", 90, 3, 160, 13, 4, 70, 1, 3 * CODES + SEGMENTS(37, 2, 5, 45, 1)),
    STREAM_OPTIONS("segments", 60, 3, 90, 8, 4, 29, 1, SEGMENTS(20, 4, 0, 0, 0)),
    STREAM_OPTIONS("segments of one token", 30, 2, 40, 5, 2, 4, 0, SEGMENTS(1, 1, 2, 0, 1)),
    STREAM_OPTIONS("segments alone", 40, 4, 60, 6, 2, 7, 1, SEGMENTS(7, 2, 0, 0, 0)),
    STREAM_OPTIONS("segments, every option", 90, 3, 160, 61, 4, 70, 1, SEGMENTS(37, 2, 5, 45, 1)),
    SOURCE(source_store, "plain", 0, 0, 0, 3, 21, 5, 2, 30, 0, OPTIONS(2, 0, 0, 0)),
    SOURCE(source_store, "masked, of any length", 0, 75, 0, 6, 75, 5, 4, 75, 1, OPTIONS(2, 0, 0, 0)),
    SOURCE(source_store, "no token", 0, 0, 0, 2, 0, 4, 2, 3, 0, OPTIONS(1, 0, 0, 0)),
    SOURCE(source_attention, "plain", 0, 0, 1e-5, 3, 21, 5, 2, 30, 0, OPTIONS(2, 0, 0, 0)),
    SOURCE(source_attention, "grouped, masked", 9, 130, 1e-5, 4, 130, 13, 6, 130, 1, OPTIONS(2, 0, 0, 0)),
    SOURCE(source_attention, "memories", 1, 90, 1e-5, 2, 90, 33, 3, 99, 1, OPTIONS(3, 70, 0, 0)),
    SOURCE(source_attention, "no token", 0, 0, 0, 2, 0, 4, 2, 3, 0, OPTIONS(1, 0, 0, 0)),
};

const op_case_family op_cases_softmax_attention = OP_CASES(cases);
