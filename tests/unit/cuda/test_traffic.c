/* Bytes that kernels move, as counted by the checked emulated device (tests/emulator/count.h).
 *
 * Each case runs one op. Its floor is every argument read once and every result written once, or a formula. Bounds:
 *   once     bytes of device memory that were touched, each counted once per launch, relative to the floor. It is 1
 *            plus partial sums, tiles' states and second kernels: the traffic of memory with perfect caches.
 *   asked    bytes that threads request, relative to the bytes touched: the traffic of the caches. Weights and rows
 *            that all blocks share count here.
 *   sectors  requested share of the 32-byte sectors that warps' requests move. It is 0.95 or more, except where a
 *            lane reads eight f32 weights in two halves (each leaves the other half of a sector to the cache), and
 *            where a warp reads or writes a statistic of a row, 4 bytes of a sector.
 * Sizes are small, so the additional bytes of a block or a tile look large; the bounds include them.
 *
 * TRAFFIC=1 in the environment prints all figures; TRAFFIC=NAME prints and tries only the cases of that op. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/sample.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/tensors.h"

static backend *device;
static emulator_counter counter;

static int open_all(void **state)
{
	(void)state;
	device = open_device();
	counter = emulator_counting();
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

/* --- calls: arg is the list in the table -------------------------------------------------------- */

typedef struct traffic_case traffic_case;
struct traffic_case {
	op_id id;
	const char *what;
	int types; /* F32, BF16 or both */
	void (*build)(op_call *call, const traffic_case *c, dtype type);
	int64_t arg[4];
	double once, asked, sectors;               /* upper bounds of once and asked, lower bound of sectors */
	double (*floor)(const op_call *call);      /* NULL: all arguments and results */
	const void *params;
	unsigned unwanted; /* bit i: output i is not requested */
};
enum { F32 = 1, BF16 = 2, BOTH = 3 };
#define LEAST 0.98 /* lower bound relative to the floor: a word of a header or of a generator's state may be unused */

static tensor normal(dtype type, shape s)
{
	return tensors_normal(device, type, s, 7);
}

static void elementwise(op_call *call, const traffic_case *c, dtype type) /* inputs, rows, width */
{
	for (int64_t i = 0; i < c->arg[0]; i++)
		call->in[call->n_in++] = normal(type, SHAPE2(c->arg[1], c->arg[2]));
}

static void dropout(op_call *call, const traffic_case *c, dtype type) /* rows, width */
{
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[1]));
	call->in[call->n_in++] = tensors_integers(device, SHAPE1(4), 1, 0, 9);
}

static void layernorm(op_call *call, const traffic_case *c, dtype type) /* rows, width */
{
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[1]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[1]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[1]));
}

static void layernorm_grad(op_call *call, const traffic_case *c, dtype type) /* rows, width */
{
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[1]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[1]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[0]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[0]));
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[1]));
}

static void attention(op_call *call, const traffic_case *c, dtype type) /* batch, length, d */
{
	const shape x = SHAPE3(c->arg[0], c->arg[1], c->arg[2]);
	call->in[call->n_in++] = normal(type, x);
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[2]));
	call->in[call->n_in++] = (tensor){0};
}

static void attention_grad(op_call *call, const traffic_case *c, dtype type) /* batch, length, d */
{
	const additive_attention_params *p = c->params;
	attention(call, c, type);
	call->in[call->n_in++] = normal(type, call->in[0].shape);
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE3(c->arg[0], c->arg[1], p->heads));
	call->in[call->n_in++] = normal(type, call->in[0].shape);
}

static void softmax(op_call *call, const traffic_case *c, dtype type) /* batch, length, d */
{
	call->in[0] = normal(type, SHAPE3(c->arg[0], c->arg[1], 3 * c->arg[2]));
	call->n_in = 6;
}

static void softmax_grad(op_call *call, const traffic_case *c, dtype type) /* batch, length, d */
{
	const softmax_params *p = c->params;
	softmax(call, c, type);
	call->in[call->n_in++] = normal(type, SHAPE3(c->arg[0], c->arg[1], c->arg[2]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE3(c->arg[0], c->arg[1], p->heads));
	call->in[call->n_in++] = normal(type, SHAPE3(c->arg[0], c->arg[1], c->arg[2]));
}

static void adamw(op_call *call, const traffic_case *c, dtype type) /* parameters */
{
	(void)type;
	for (int i = 0; i < 4; i++)
		call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[0]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE0());
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(2));
	call->in[call->n_in++] = normal(DTYPE_BF16, SHAPE1(c->arg[0]));
}
/* p, g, m, v are read; p, m, v and the narrow copy are written. */
static double adamw_floor(const op_call *call)
{
	return (double)shape_count(call->in[0].shape) * (4 * 4 + 3 * 4 + 2);
}

/* Every row of the table is read once. */
static void gather(op_call *call, const traffic_case *c, dtype type) /* rows, width */
{
	int32_t *index = tensors_room((size_t)c->arg[0] * sizeof *index);
	for (int64_t i = 0; i < c->arg[0]; i++)
		index[i] = (int32_t)(i * 7 % c->arg[0]);
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[1]));
	call->in[call->n_in++] = (tensor){tensors_put(device, index, (size_t)c->arg[0] * sizeof *index), DTYPE_I32, SHAPE2(1, c->arg[0])};
	free(index);
}

static void cross_entropy(op_call *call, const traffic_case *c, dtype type) /* rows, classes, d */
{
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[0], c->arg[2]));
	call->in[call->n_in++] = normal(type, SHAPE2(c->arg[1], c->arg[2]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[1]));
	call->in[call->n_in++] = tensors_integers(device, SHAPE1(c->arg[0]), 1, 0, (int32_t)c->arg[1]);
}
/* Traffic in addition to the products: a row's logits are replaced by their gradients. */
static double cross_entropy_floor(const op_call *call)
{
	return (double)(shape_rows(call->in[0].shape) * call->in[1].shape.dim[0]) * 2 * (double)dtype_bytes(call->in[0].type);
}

static void forgetting(op_call *call, const traffic_case *c, dtype type) /* batch, length, d, heads */
{
	const shape scores = SHAPE3(c->arg[0], c->arg[1], c->arg[3]);
	call->in[call->n_in++] = normal(type, SHAPE3(c->arg[0], c->arg[1], c->arg[2]));
	call->in[call->n_in++] = normal(DTYPE_F32, scores);
	call->in[call->n_in++] = normal(DTYPE_F32, scores);
	call->in[call->n_in++] = (tensor){0};
}

static void forgetting_grad(op_call *call, const traffic_case *c, dtype type) /* as forgetting */
{
	forgetting(call, c, type);
	call->in[call->n_in++] = normal(type, call->in[0].shape);
	call->in[call->n_in++] = normal(DTYPE_F32, call->in[1].shape);
	call->in[call->n_in++] = normal(type, call->in[0].shape);
}

/* Slots, positions within a history and one token for each session. */
static void one_token(op_call *call, int64_t rows)
{
	int32_t *numbers = tensors_room((size_t)rows * sizeof *numbers);
	for (int i = 0; i < 3; i++) {
		for (int64_t r = 0; r < rows; r++)
			numbers[r] = i == 0 ? (int32_t)(rows - 1 - r) : i == 1 ? (int32_t)(300 + r) : 1;
		call->in[call->n_in++] = (tensor){tensors_put(device, numbers, (size_t)rows * sizeof *numbers), DTYPE_I32, SHAPE1(rows)};
	}
	free(numbers);
}

/* One token of each session. */
static void stream(op_call *call, const traffic_case *c, dtype type) /* sessions, d */
{
	const additive_stream_params *p = c->params;
	const int64_t rows = c->arg[0], floats = additive_state_floats(c->arg[1], p->heads, p->window);
	call->in[call->n_in++] = normal(type, SHAPE3(rows, 1, c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE1(c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE2(rows, floats));
	one_token(call, rows);
}

/* One session's first tokens. */
static void whole_prompt(op_call *call, int32_t tokens)
{
	const shape one = SHAPE1(1);
	call->in[call->n_in++] = tensors_integers(device, one, 1, 0, 0);
	call->in[call->n_in++] = tensors_integers(device, one, 1, 0, 0);
	call->in[call->n_in++] = tensors_integers(device, one, 1, tokens, tokens);
}

static void additive_prompt(op_call *call, const traffic_case *c, dtype type) /* tokens, d */
{
	const additive_stream_params *p = c->params;
	call->in[call->n_in++] = normal(type, SHAPE3(1, c->arg[0], c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE1(c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE2(1, additive_state_floats(c->arg[1], p->heads, p->window)));
	whole_prompt(call, (int32_t)c->arg[0]);
}

static void linear_prompt(op_call *call, const traffic_case *c, dtype type) /* tokens, d */
{
	const linear_stream_params *p = c->params;
	for (int i = 0; i < 3; i++)
		call->in[call->n_in++] = normal(type, SHAPE3(1, c->arg[0], c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE2(1, linear_state_floats(c->arg[1], p->heads)));
	whole_prompt(call, (int32_t)c->arg[0]);
}

static int64_t softmax_floats(const softmax_stream_params *p, int64_t d)
{
	return p->bf16 ? softmax_bf16_state_floats(d, d, p->window) : softmax_state_floats(d, d, p->window);
}

static void softmax_prompt(op_call *call, const traffic_case *c, dtype type) /* tokens, d */
{
	const softmax_stream_params *p = c->params;
	const int64_t tokens = c->arg[0], d = c->arg[1];
	call->in[0] = normal(type, SHAPE3(1, tokens, 3 * d));
	call->in[3] = normal(type, SHAPE2(1, softmax_floats(p, d)));
	call->n_in = 4;
	whole_prompt(call, (int32_t)tokens);
}

static void dilated_prompt(op_call *call, const traffic_case *c, dtype type) /* tokens, d */
{
	const dilated_stream_params *p = c->params;
	for (int i = 0; i < 3; i++)
		call->in[call->n_in++] = normal(type, SHAPE3(1, c->arg[0], c->arg[1]));
	call->in[call->n_in++] = normal(type, SHAPE2(1, dilated_state_floats(c->arg[1], &p->pattern)));
	whole_prompt(call, (int32_t)c->arg[0]);
}

/* q, k and v are read, y and the ring's keys and values written. */
static double dilated_prompt_floor(const op_call *call)
{
	return (double)shape_count(call->in[0].shape) * 6 * 4;
}

/* q, k and v are read; y and the ring's keys and values are written. */
static double softmax_prompt_floor(const op_call *call)
{
	const softmax_stream_params *p = call->params;
	return (double)shape_count(call->in[0].shape) / 3 * (3 * 4 + 4 + (p->bf16 ? 2 * 2 : 2 * 4));
}

/* Sessions whose rings are full read a token each. */
static void softmax_decode(op_call *call, const traffic_case *c, dtype type) /* sessions, d */
{
	const int64_t rows = c->arg[0], floats = softmax_floats(c->params, c->arg[1]);
	const shape rings = SHAPE2(rows, floats);
	float *ones = tensors_room((size_t)(rows * floats) * sizeof *ones);
	for (int64_t i = 0; i < rows * floats; i++) /* as bf16 0 and 1 */
		ones[i] = 1;
	call->in[0] = normal(type, SHAPE3(rows, 1, 3 * c->arg[1]));
	call->in[3] = (tensor){tensors_put(device, ones, (size_t)(rows * floats) * sizeof *ones), DTYPE_F32, rings};
	call->n_in = 4;
	one_token(call, rows);
	free(ones);
}

/* The rings are read, all but the place that the token takes. */
static double softmax_decode_floor(const op_call *call)
{
	const softmax_stream_params *p = call->params;
	return (double)shape_count(call->in[3].shape) * 4 * (double)(p->window - 1) / (double)p->window;
}

static void forgetting_stream(op_call *call, const traffic_case *c, dtype type) /* sessions, 1, d, heads */
{
	const int64_t rows = c->arg[0], floats = forgetting_state_floats(c->arg[2], c->arg[3]);
	call->in[call->n_in++] = normal(type, SHAPE3(rows, 1, c->arg[2]));
	call->in[call->n_in++] = normal(type, SHAPE3(rows, 1, c->arg[3]));
	call->in[call->n_in++] = normal(type, SHAPE2(rows, floats));
	one_token(call, rows);
	call->n_in += 2;
	call->in[call->n_in++] = normal(type, SHAPE3(rows, 1, c->arg[3]));
}

/* Bytes per channel: 8 for the token and the result, 8 for a number of the state that is read and written (16 with a
 * window). */
static double stream_floor(const op_call *call)
{
	const additive_stream_params *p = call->params;
	return (double)shape_count(call->in[0].shape) * (8 + (p->window > 0 ? 16 : 8));
}

static tensor packed(dtype type, shape s)
{
	size_t bytes;
	assert_true(shape_bytes(s, type, &bytes));
	float *w = tensors_room((size_t)shape_count(s) * sizeof *w);
	void *room = tensors_room(bytes);
	random_normal(w, shape_count(s), 3, 1);
	panel_pack(type, w, shape_rows(s), shape_last(s), room);
	const tensor on_device = {tensors_put(device, room, bytes), type, s};
	free(w);
	free(room);
	return on_device;
}

static void panels(op_call *call, const traffic_case *c, dtype type) /* rows, outputs, inputs, type of weight */
{
	(void)type;
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE2(c->arg[0], c->arg[2]));
	call->in[call->n_in++] = packed((dtype)c->arg[3], SHAPE2(c->arg[1], c->arg[2]));
	call->in[call->n_in++] = normal(DTYPE_F32, SHAPE1(c->arg[1]));
}

static void sample(op_call *call, const traffic_case *c, dtype type) /* rows, vocabulary */
{
	const int64_t rows = c->arg[0];
	sample_setting *s = calloc((size_t)rows, sizeof *s);
	assert_non_null(s);
	for (int64_t i = 0; i < rows; i++)
		s[i] = *(const sample_setting *)c->params, s[i].seed_low = (uint32_t)i;
	call->params = NULL;
	call->in[call->n_in++] = normal(type, SHAPE2(rows, c->arg[1]));
	call->in[call->n_in++] = (tensor){tensors_put(device, s, (size_t)rows * sizeof *s), DTYPE_I32, SHAPE2(rows, SAMPLE_WORDS)};
	call->in[call->n_in++] = tensors_integers(device, SHAPE2(1, 3), 1, 0, 9);
	free(s);
}
static double sample_floor(const op_call *call)
{
	return (double)shape_count(call->in[0].shape) * 4;
}

static const sample_setting greedy = {.top_p = 1, .repetition_penalty = 1, .active = 1};
static const sample_setting nucleus = {.temperature = 0.8f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1, .active = 1};
static const additive_attention_params everything = {.heads = 4}, near = {.heads = 4, .window = 16}, far = {.heads = 4, .window = 200};
static const additive_stream_params stream_everything = {4, 0, 0}, stream_near = {4, 64, 0};
static const dilated_stream_params dilated_segments = {
    .pattern = {4, {64, 128, 256, 512}, {1, 2, 4, 8}, DILATED_BLOCK}, .heads = 2, .scale = 0.1f};
static const softmax_params two_heads = {.heads = 2, .scale = 0.125f};
static const softmax_stream_params softmax_everything = {.heads = 2, .window = 512, .scale = 0.1f},
                                   softmax_bf16 = {.heads = 2, .window = 512, .scale = 0.1f, .bf16 = true},
                                   softmax_full = {.heads = 2, .window = 256, .scale = 0.1f},
                                   softmax_full_bf16 = {.heads = 2, .window = 256, .scale = 0.1f, .bf16 = true};
static const forgetting_params pooling_weights = {false};
static const forgetting_stream_params stream_from_0 = {0};
static const linear_stream_params linear_heads = {2, 0, 1e-6f};
static const linear_params by_one = {.alpha = 1};
static const linear_cross_entropy_params plain_loss = {1, 0};
enum { HITS = 1 << 5, LOG_PROBABILITIES = 1 << 6 }; /* outputs of the loss */
static const layernorm_params epsilon = {.eps = 1e-5f};
static const layernorm_grad_params not_frozen = {0};
static const secant_params half = {0.5f};
static const scale_params unscaled = {1};
static const dropout_params tenth = {0.1f, 1};
static const adamw_params betas = {0.9f, 0.95f, 1e-8f, 0.1f, 1, false};
static const gelu_params erf_form = {false};

/* clang-format off */
static const traffic_case cases[] = {
	/* op                        what                types  arguments              arguments' sizes          once  asked sectors */
	{OP_add,                     "",                 BOTH, elementwise,     {2, 512, 128},                   1.001, 1.001, 0.95, NULL, NULL, 0},
	{OP_gate,                    "",                 BOTH, elementwise,     {3, 512, 128},                   1.001, 1.001, 0.95, NULL, NULL, 0},
	{OP_gelu,                    "",                 BOTH, elementwise,     {1, 512, 128},                   1.001, 1.001, 0.95, NULL, &erf_form, 0},
	{OP_gelu_grad,               "",                 BOTH, elementwise,     {2, 512, 128},                   1.001, 1.001, 0.95, NULL, &erf_form, 0},
	{OP_secant_grad,             "",                 F32,  elementwise,     {3, 512, 128},                   1.001, 1.001, 0.95, NULL, &half, 0},
	{OP_dot_rows,                "",                 F32,  elementwise,     {2, 512, 128},                   1.001, 1.001, 0.95, NULL, &unscaled, 0},
	{OP_dropout,                 "",                 BOTH, dropout,         {512, 128},                      1.001, 1.51,  0.97, NULL, &tenth, 0},
	{OP_layernorm,               "",                 BOTH, layernorm,       {512, 128},                      1.001, 3.0,   0.74, NULL, &epsilon, 0},
	{OP_layernorm_grad,          "",                 BOTH, layernorm_grad,  {512, 128},                      1.12,  1.5,   0.86, NULL, &not_frozen, 0},
	{OP_sum_squares,             "",                 F32,  elementwise,     {1, 512, 128},                   1.02,  1.02,  0.95, NULL, NULL, 0},
	{OP_adamw,                   "",                 F32,  adamw,           {1 << 16},                       1.001, 1.01,  0.95, adamw_floor, &betas, 0},
	{OP_gather,                  "",                 BOTH, gather,          {512, 128},                      1.001, 1.3,   0.94, NULL, &(gather_params){-1}, 0},
	{OP_additive_attention,      "everything",       BOTH, attention,       {2, 512, 128},                   1.02,  1.2,   0.90, NULL, &everything, 2},
	{OP_additive_attention,      "window 16",        BOTH, attention,       {2, 512, 128},                   1.02,  1.7,   0.92, NULL, &near, 2},
	{OP_additive_attention,      "window 200",       BOTH, attention,       {2, 512, 128},                   1.02,  1.8,   0.92, NULL, &far, 2},
	{OP_additive_attention_grad, "everything",       BOTH, attention_grad,  {2, 512, 128},                   1.02,  1.2,   0.88, NULL, &everything, 0},
	{OP_additive_attention_grad, "window 16",        BOTH, attention_grad,  {2, 512, 128},                   1.02,  1.8,   0.86, NULL, &near, 0},
	{OP_additive_attention_grad, "window 200",       BOTH, attention_grad,  {2, 512, 128},                   1.03,  1.8,   0.86, NULL, &far, 0},
	/* f32: logits are read once. bf16 has its own products, which read rows and classes
	 * again. */
	{OP_linear_cross_entropy,    "beside products",  F32,  cross_entropy,   {256, 512, 64},                  1.6,   1.6,   0.55, cross_entropy_floor, &plain_loss, HITS | LOG_PROBABILITIES},
	{OP_linear_cross_entropy,    "with products",    BF16, cross_entropy,   {256, 512, 64},                  1.7,   2.2,   0.88, cross_entropy_floor, &plain_loss, HITS | LOG_PROBABILITIES},
	{OP_additive_stream,         "everything",       F32,  stream,          {8, 128},                        1.1,   1.7,   0.95, stream_floor, &stream_everything, 6},
	{OP_additive_stream,         "window 64",        F32,  stream,          {8, 128},                        2.0,   1.3,   0.94, stream_floor, &stream_near, 6},
	{OP_additive_stream,         "a prompt, everything", F32, additive_prompt, {512, 128},                    1.01,  1.6,   0.98, NULL, &stream_everything, 6},
	{OP_additive_stream,         "a prompt, window 64", F32, additive_prompt, {512, 128},                     3.1,   2.7,   0.95, NULL, &stream_near, 6},
	{OP_linear_stream,           "a prompt",         F32,  linear_prompt,   {512, 128},                      1.55,  2.6,   0.90, NULL, &linear_heads, 2},
	{OP_softmax_attention,       "causal",           BF16, softmax,         {1, 256, 128},                   1.001, 1.3,   0.82, NULL, &two_heads, 0},
	/* by wgmma, in blocks of 128 rows */
	{OP_softmax_attention_grad,  "causal",           BF16, softmax_grad,    {1, 256, 128},                   1.7,   1.25,  0.77, NULL, &two_heads, 0},
	{OP_softmax_stream,          "a prompt",         F32,  softmax_prompt,  {512, 128},                      1.36,  2.2,   0.96, softmax_prompt_floor, &softmax_everything, 2},
	{OP_dilated_stream,          "a prompt",         F32,  dilated_prompt,  {512, 128},                      1.34,  2.4,   0.90, dilated_prompt_floor, &dilated_segments, 0},
	{OP_softmax_stream,          "a prompt, bf16",   F32,  softmax_prompt,  {512, 128},                      1.41,  2.2,   0.96, softmax_prompt_floor, &softmax_bf16, 2},
	{OP_softmax_stream,          "a token",          F32,  softmax_decode,  {8, 128},                        1.1,   1.3,   0.95, softmax_decode_floor, &softmax_full, 2},
	{OP_softmax_stream,          "a token, bf16",    F32,  softmax_decode,  {8, 128},                        1.1,   1.3,   0.95, softmax_decode_floor, &softmax_full_bf16, 2},
	{OP_forgetting_attention,    "tiles",            BOTH, forgetting,      {2, 512, 128, 16},               1.7,   1.01,  0.95, NULL, NULL, 0},
	{OP_forgetting_attention,    "one tile each",    BOTH, forgetting,      {32, 64, 128, 16},               1.001, 1.01,  0.99, NULL, NULL, 0},
	{OP_forgetting_attention_grad, "tiles",          BOTH, forgetting_grad, {2, 512, 128, 16},               1.85,  1.1,   0.95, NULL, &pooling_weights, 0},
	{OP_forgetting_attention_grad, "one tile each",  BOTH, forgetting_grad, {32, 64, 128, 16},               1.001, 1.1,   0.99, NULL, &pooling_weights, 0},
	{OP_forgetting_stream,       "",                 F32,  forgetting_stream, {8, 1, 128, 16},               1.001, 1.35,  0.93, NULL, &stream_from_0, 0},
	{OP_forgetting_stream,       "heads of one channel", F32, forgetting_stream, {8, 1, 128, 128},           1.001, 1.3,   0.94, NULL, &stream_from_0, 0},
	{OP_linear,                  "panels, 1 row",    F32,  panels,          {1, 512, 256, DTYPE_PANEL_BF16}, 1.001, 1.5,   0.95, NULL, &by_one, 0},
	{OP_linear,                  "panels, 8 rows",   F32,  panels,          {8, 512, 256, DTYPE_PANEL_BF16}, 1.001, 4.1,   0.95, NULL, &by_one, 0},
	{OP_linear,                  "panels, 256 rows", F32,  panels,          {256, 256, 128, DTYPE_PANEL_BF16}, 1.001, 2.1,   0.90, NULL, &by_one, 0},
	{OP_linear,                  "panels, 64 rows",  F32,  panels,          {64, 128, 1024, DTYPE_PANEL_BF16}, 1.001, 1.5,   0.99, NULL, &by_one, 0},
	/* by wgmma, where the blocks of a pair share x: without pairs `asked` is 1.61 and 1.67 */
	{OP_linear,                  "panels, pairs",    F32,  panels,          {128, 512, 256, DTYPE_PANEL_BF16}, 1.001, 1.3,   0.95, NULL, &by_one, 0},
	{OP_linear,                  "int8, pairs",      F32,  panels,          {128, 512, 1024, DTYPE_PANEL_INT8}, 1.2,   1.55,  0.80, NULL, &by_one, 0},
	{OP_linear,                  "int8, 1 row",      F32,  panels,          {1, 512, 256, DTYPE_PANEL_INT8}, 1.001, 2.4,   0.67, NULL, &by_one, 0},
	{OP_sample,                  "greedy",           F32,  sample,          {4, 4096},                       1.01,  3.15,  0.95, sample_floor, &greedy, 0},
	{OP_sample,                  "top-k, top-p",     F32,  sample,          {4, 4096},                       1.01,  4.3,   0.92, sample_floor, &nucleus, 0},
};
/* clang-format on */

/* --- trying them ------------------------------------------------------------------------------ */

static double bytes_of(tensor t)
{
	size_t bytes = 0;
	assert_true(shape_bytes(t.shape, t.type, &bytes));
	return t.data ? (double)bytes : 0;
}

static double floor_of(const traffic_case *c, const op_call *call)
{
	double bytes = 0;
	if (c->floor)
		return c->floor(call);
	for (int i = 0; i < call->n_in; i++)
		bytes += bytes_of(call->in[i]) * (1 + (op_get(c->id)->mutates >> i & 1));
	for (int i = 0; i < call->n_out; i++)
		bytes += bytes_of(call->out[i]);
	return bytes;
}

typedef struct figures {
	double once, asked, moved, used;
	char kernels[600];
} figures;

static figures count(const traffic_case *c, op_call *call)
{
	figures f = {0};
	size_t n;
	call->scratch = tensors_put(device, NULL, device->scratch[c->id] ? device->scratch[c->id](device, call) : 0);
	assert_int_equal(device->kernel[c->id](device, call), STATUS_OK); /* the backend's memory grows here */
	counter.begin();
	assert_int_equal(device->kernel[c->id](device, call), STATUS_OK);
	const emulator_work *w = counter.end(&n);
	device->release(device, call->scratch);
	for (size_t i = 0; i < n; i++) {
		if (w[i].kind == EMULATOR_PRODUCT)
			continue;
		f.once += (double)(w[i].read_once + w[i].written_once);
		f.asked += (double)(w[i].read + w[i].written);
		f.moved += (double)w[i].moved;
		f.used += (double)w[i].used;
		size_t end = strlen(f.kernels);
		snprintf(f.kernels + end, sizeof f.kernels - end, "%s%s", end ? ", " : "", w[i].name);
	}
	return f;
}

static bool holds(const traffic_case *c, dtype type)
{
	op_call call = {.params = c->params};
	error err = ERROR_INIT;
	c->build(&call, c, type);
	call.n_out = op_get(c->id)->n_out;
	if (op_get(c->id)->check(&call, &err) != STATUS_OK)
		fail_msg("%s: %s", op_get(c->id)->name, error_message(&err));
	for (int i = 0; i < call.n_out; i++)
		if (!(c->unwanted >> i & 1))
			call.out[i] = tensors_empty(device, call.out[i].type, call.out[i].shape);
	const figures f = count(c, &call);
	const double floor = floor_of(c, &call), once = f.once / floor, asked = f.asked / f.once, sectors = f.used / f.moved;
	const bool good = once >= LEAST && once <= c->once && asked <= c->asked && sectors >= c->sectors;
	if (!good || getenv("TRAFFIC"))
		printf("%s %s, %s: floor %.0f bytes, once %.3f (%.3f), asked %.3f (%.3f), sectors %.3f (%.3f)%s\n    %s\n",
		       op_get(c->id)->name, dtype_name(type), c->what, floor, once, c->once, asked, c->asked, sectors, c->sectors,
		       good ? "" : "  <-- NOT SO", f.kernels);
	for (int i = 0; i < call.n_in; i++)
		device->release(device, call.in[i].data);
	for (int i = 0; i < call.n_out; i++)
		device->release(device, call.out[i].data);
	return good;
}

static void kernels_move_only_the_necessary_bytes(void **state)
{
	(void)state;
	int failed = 0;
	const char *only = getenv("TRAFFIC");
	if (!counter.begin)
		skip();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const traffic_case *c = &cases[i];
		if (only && strcmp(only, "1") != 0 && strcmp(only, op_get(c->id)->name) != 0)
			continue;
		if (c->types & F32)
			failed += !holds(c, DTYPE_F32);
		if (c->types & BF16)
			failed += !holds(c, DTYPE_BF16);
	}
	assert_int_equal(failed, 0);
}

static void call_ready(op_id id, op_call *call, unsigned unwanted)
{
	assert_int_equal(op_get(id)->check(call, &(error)ERROR_INIT), STATUS_OK);
	call->n_out = op_get(id)->n_out;
	for (int i = 0; i < call->n_out; i++)
		if (!(unwanted >> i & 1))
			call->out[i] = tensors_empty(device, call->out[i].type, call->out[i].shape);
	call->scratch = tensors_put(device, NULL, device->scratch[id](device, call));
}

static void call_release(op_call *call)
{
	device->release(device, call->scratch);
	for (int i = 0; i < call->n_in; i++)
		device->release(device, call->in[i].data);
	for (int i = 0; i < call->n_out; i++)
		device->release(device, call->out[i].data);
}

/* The vocabulary's matrix and its rows of logits are both larger than half of the emulated device's L2 cache. */
static void a_loss_reads_a_matrix_larger_than_the_cache_twice_in_a_hundred_rows(void **state)
{
	(void)state;
	const traffic_case c = {.id = OP_linear_cross_entropy, .arg = {256, 512, 136}};
	op_call call = {.params = &plain_loss};
	size_t n;
	if (!counter.begin)
		skip();
	cross_entropy(&call, &c, DTYPE_BF16);
	call_ready(c.id, &call, LOG_PROBABILITIES);
	counter.begin();
	assert_int_equal(device->kernel[c.id](device, &call), STATUS_OK);
	const emulator_work *w = counter.end(&n);
	double read = 0;
	for (size_t i = 0; i < n; i++)
		read += w[i].kind == EMULATOR_PRODUCT ? (double)w[i].read : 0;
	/* h of z and of dE, dz of dh and of dE, then the matrix */
	const double rest = 2 * bytes_of(call.in[0]) + 2 * cross_entropy_floor(&call) / 2;
	const double reads = (read - rest) / bytes_of(call.in[1]);
	if (!(reads <= 2.0 * 256 / 100))
		fail_msg("the products read the matrix %.1f times", reads);
	call_release(&call);
}

/* --- blocks ------------------------------------------------------------------------------------------ */

/* Largest number of bytes that a kernel with this name prefix reads per thread. */
static double read_per_thread(op_id id, const op_call *call, const char *prefix)
{
	double most = 0;
	size_t n;
	counter.begin();
	assert_int_equal(device->kernel[id](device, call), STATUS_OK);
	const emulator_work *w = counter.end(&n);
	for (size_t i = 0; i < n; i++) {
		const double threads = (double)w[i].grid[0] * w[i].grid[1] * w[i].grid[2] * w[i].threads;
		const double each = (double)w[i].read / threads;
		if (strncmp(w[i].name, prefix, strlen(prefix)) == 0)
			most = each > most ? each : most;
	}
	assert_true(most > 0);
	return most;
}

/* One sequence of 16 chunks with one head of 15 channels: 15 · 16 numbers of each chunk. A thread reads one number of
 * two chunks, twice. */
static void a_long_scan_is_shared_by_groups_of_threads(void **state)
{
	(void)state;
	const linear_attention_params params = {.heads = 1, .causal = true, .eps = LINEAR_ATTENTION_EPS};
	op_call call = {.params = &params};
	if (!counter.begin)
		skip();
	for (int i = 0; i < 3; i++)
		call.in[call.n_in++] = normal(DTYPE_F32, SHAPE3(1, 16 * 64, 15));
	call_ready(OP_linear_attention, &call, 0);
	assert_true(read_per_thread(OP_linear_attention, &call, "linear_scan_kernel") <= 2 * 2 * 4);
	call_release(&call);
}

/* D has 4 bytes for each of 2 branches, 512 rows and 4 heads, 64 bytes for each thread of one block. The last kernel
 * also reads the mixture, 20 bytes for each weight that a thread computes. */
static void the_gradient_of_a_mixture_is_summed_by_many_blocks(void **state)
{
	(void)state;
	const dilated_params params = {
	    .pattern = {2, {16, 32}, {1, 2}, DILATED_BLOCK}, .heads = 4, .scale = 1, .detach_weights = true};
	const shape s = SHAPE3(1, 512, 16);
	op_call call = {.params = &params};
	if (!counter.begin)
		skip();
	for (int i = 0; i < 3; i++)
		call.in[call.n_in++] = normal(DTYPE_F32, s);
	call.in[call.n_in++] = (tensor){0};
	call.in[call.n_in++] = normal(DTYPE_F32, SHAPE1(2));
	call.in[call.n_in++] = normal(DTYPE_F32, s);
	call.in[call.n_in++] = normal(DTYPE_F32, SHAPE4(2, 1, 512, 4));
	call.in[call.n_in++] = normal(DTYPE_F32, s);
	call_ready(OP_dilated_attention_grad, &call, 0);
	assert_true(read_per_thread(OP_dilated_attention_grad, &call, "dilated_sum_along") <= 4);
	assert_true(read_per_thread(OP_dilated_attention_grad, &call, "dilated_mixture") <= 48);
	call_release(&call);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(kernels_move_only_the_necessary_bytes),
	    cmocka_unit_test(a_loss_reads_a_matrix_larger_than_the_cache_twice_in_a_hundred_rows),
	    cmocka_unit_test(a_long_scan_is_shared_by_groups_of_threads),
	    cmocka_unit_test(the_gradient_of_a_mixture_is_summed_by_many_blocks),
	};
	return cmocka_run_group_tests(tests, open_all, close_all);
}
