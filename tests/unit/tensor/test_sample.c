/* sample: the kernels of every instruction set, compared draw by draw with the full sort; and the draws compared with
 * the requested distribution. The CUDA plug-in's kernels are included if its folder is named, by ADDITIVE_PLUGIN_DIR,
 * or by ADDITIVE_EMULATOR for the emulated device. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/cpu/cpu.h"
#include "engine/model/safetensors.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/sample.h"
#include "engine/tensor/plan.h"

/* The reference, then the fast kernels; a machine without an instruction set repeats the next lower one. */
static const char *const isas[] = {"reference", "baseline", "avx2", "avx512", "CUDA"};
enum { DEVICE = 4, MOST_BACKENDS };
static int backends = DEVICE;

static int open_device(backend **out)
{
	const char *emulator = getenv("ADDITIVE_EMULATOR");
	error err = ERROR_INIT;
	if (emulator)
		setenv("ADDITIVE_PLUGIN_DIR", emulator, 0);
	if (!getenv("ADDITIVE_PLUGIN_DIR"))
		return 0;
	if (backend_open(out, "cuda", NULL, cpu_open, 0, &err) != STATUS_OK) {
		print_error("%s\n", error_message(&err));
		return 1;
	}
	backends = MOST_BACKENDS;
	return 0;
}

static int open_backends(void **state)
{
	backend **b = calloc(MOST_BACKENDS, sizeof *b);
	*state = b;
	if (!b || cpu_reference_open(&b[0], 0, NULL) != STATUS_OK)
		return 1;
	for (int i = 1; i < DEVICE; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i], 1);
		if (cpu_open(&b[i], 3, NULL) != STATUS_OK)
			return 1;
	}
	return unsetenv("ADDITIVE_CPU_ISA") || open_device(&b[DEVICE]);
}

static int close_backends(void **state)
{
	backend **b = *state;
	for (int i = 0; i < backends; i++)
		backend_close(b[i]);
	free(b);
	return 0;
}

static const sample_setting plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .active = 1};

/* [rows, ⌈vocab / LINEAR_BLOCK⌉] maxima of logits; malloc'd. */
static float *maxima_of(const float *logits, int64_t rows, int64_t vocab)
{
	const int64_t blocks = (vocab + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
	float *maxima = malloc((size_t)(rows * blocks) * sizeof *maxima + 1);
	assert_non_null(maxima);
	for (int64_t i = 0; i < rows * blocks; i++)
		maxima[i] = -INFINITY;
	for (int64_t i = 0; i < rows * vocab; i++) {
		float *most = &maxima[i / vocab * blocks + i % vocab / LINEAR_BLOCK];
		*most = sample_finite(logits[i]) && logits[i] > *most ? logits[i] : *most;
	}
	return maxima;
}

/* maxima: those of the logits' blocks, or NULL. */
static void sample_given(backend *b, const float *logits, const float *maxima, int64_t rows, int64_t vocab,
                         const sample_setting *setting, const sample_adjust *adjust, int64_t n_adjust, int32_t *token)
{
	plan *p;
	error err = ERROR_INIT;
	graph *g = graph_new();
	value in[] = {graph_input(g, "logits", DTYPE_F32, SHAPE2(rows, vocab)),
	              graph_input(g, "setting", DTYPE_I32, SHAPE2(rows, SAMPLE_WORDS)),
	              graph_input(g, "adjust", DTYPE_I32, SHAPE2(n_adjust, 3))};
	const shape blocks = SHAPE2(rows, (vocab + LINEAR_BLOCK - 1) / LINEAR_BLOCK);
	value given = maxima ? graph_input(g, "maxima", DTYPE_F32, blocks) : VALUE_NONE;
	value out = op_sample(g, in[0], in[1], in[2], given);
	graph_output(g, out, "token");
	if (plan_new(&p, g, b, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_write(p, in[0], logits), STATUS_OK);
	assert_int_equal(plan_write(p, in[1], setting), STATUS_OK);
	assert_int_equal(plan_write(p, in[2], adjust), STATUS_OK);
	if (maxima)
		assert_int_equal(plan_write(p, given, maxima), STATUS_OK);
	memset(token, 0x55, (size_t)rows * sizeof *token);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, out, token), STATUS_OK);
	plan_free(p);
}

/* Sample with the blocks' maxima, if the backend's linear gives them, and without: the tokens must be equal. */
static void sample(backend *b, const float *logits, int64_t rows, int64_t vocab, const sample_setting *setting,
                   const sample_adjust *adjust, int64_t n_adjust, int32_t *token)
{
	sample_given(b, logits, NULL, rows, vocab, setting, adjust, n_adjust, token);
	if (!b->maxima)
		return;
	float *maxima = maxima_of(logits, rows, vocab);
	int32_t *again = malloc((size_t)rows * sizeof *again + 1);
	assert_non_null(again);
	sample_given(b, logits, maxima, rows, vocab, setting, adjust, n_adjust, again);
	assert_memory_equal(again, token, (size_t)rows * sizeof *again);
	free(again);
	free(maxima);
}

/* --- every backend against the full sort ------------------------------------------------------ */

enum { ROWS = 24, WIDEST = 5003, ADJUST = 7 };

static uint32_t word(uint64_t seed, uint64_t index)
{
	return philox(seed, 11, 0, index).word[0];
}

static float unit(uint64_t seed, uint64_t index)
{
	return philox_uniform(word(seed, index));
}

/* Logits of one kind: spread out, with ties, all equal, few finite, huge, steep, or one ahead of all. */
static void draw_logits(float *x, int64_t vocab, uint64_t seed)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, -0.0f, 0.0f, 1e-40f};
	const uint32_t kind = word(seed, 0) % 8;
	for (int64_t i = 0; i < vocab; i++) {
		const float u = unit(seed, (uint64_t)i + 1) - 0.5f;
		switch (kind) {
		case 0:
			x[i] = 8 * u;
			break;
		case 1:
			x[i] = roundf(6 * u);
			break;
		case 2:
			x[i] = -3.25f;
			break;
		case 3:
			x[i] = odd[word(seed, (uint64_t)i + 1) % 8];
			break;
		case 4:
			x[i] = 2 * u * FLT_MAX;
			break;
		case 5:
			x[i] = -0.01f * (float)i;
			break;
		case 6:
			x[i] = i == vocab / 2 ? 20 : u;
			break;
		default:
			x[i] = i % 3 ? NAN : 30 * u;
		}
	}
}

static sample_setting draw_setting(uint64_t seed, int64_t vocab)
{
	static const float temperatures[] = {0, 1, 0.7f, 1e-45f, 1e-6f, 3, FLT_MAX, 1};
	static const float parts[] = {0, 1, 0.5f, 0.9f, 0.999999f, 1e-30f, 0.05f, 1};
	sample_setting s = plain;
	s.temperature = temperatures[word(seed, 1) % 8];
	s.top_p = word(seed, 2) % 3 ? parts[word(seed, 3) % 8] : unit(seed, 4);
	s.min_p = word(seed, 5) % 3 ? 0 : word(seed, 5) % 2 ? parts[word(seed, 6) % 8] : 0.1f * unit(seed, 7);
	s.top_a = word(seed, 20) % 3 ? 0 : word(seed, 20) % 2 ? parts[word(seed, 21) % 8] : 0.1f * unit(seed, 22);
	s.top_a_power = word(seed, 23) % 2 ? 2 : 3 * unit(seed, 24);
	s.top_k = word(seed, 8) % 2 ? 0 : (int32_t)(word(seed, 9) % (uint32_t)(vocab + 3));
	if (word(seed, 10) % 2) {
		s.repetition_penalty = 0.5f + unit(seed, 11);
		s.presence_penalty = unit(seed, 12) - 0.5f;
		s.frequency_penalty = unit(seed, 13) - 0.5f;
	}
	s.seed_low = word(seed, 14);
	s.seed_high = word(seed, 15);
	s.position_low = word(seed, 16) % 2 ? word(seed, 17) : 3;
	s.position_high = word(seed, 18) % 4 ? 0 : 1;
	s.active = word(seed, 19) % 8 > 0;
	return s;
}

/* As many entries as a row can have; some cause ties, some are outside the vocabulary. */
static int32_t draw_adjust(sample_adjust *a, uint64_t seed, int64_t vocab, const float *x)
{
	int32_t n = 0;
	for (int64_t token = word(seed, 1) % 3; n < ADJUST && token < vocab + 2; token += 1 + word(seed, 2) % 5, n++) {
		a[n] = (sample_adjust){.token = (int32_t)token, .count = (int32_t)(word(seed, (uint64_t)n + 3) % 3)};
		if (n % 2 && token < vocab)
			a[n].bias = x[0] - x[token];
		else if (n % 3 == 0)
			a[n].bias = 100 * (unit(seed, (uint64_t)n + 20) - 0.5f);
	}
	return n;
}

/* A row's mask that leaves few tokens, most or none; bits past the vocabulary are arbitrary. Returns the number of its
 * rows. */
static int32_t draw_mask(sample_adjust *rows, uint64_t seed, int64_t vocab)
{
	const int32_t n = sample_mask_rows(vocab);
	uint32_t words[3];
	for (int32_t row = 0; row < n; row++) {
		for (uint64_t k = 0; k < 3; k++) {
			const uint64_t i = 100 + 3 * (uint64_t)row + k;
			const uint32_t some = word(seed, i) & word(seed, i + 5000) & word(seed, i + 9000);
			words[k] = seed % 5 == 0 ? 0 : seed % 2 ? some : ~some;
		}
		memcpy(&rows[row], words, sizeof words);
	}
	return n;
}

static void every_kernel_draws_the_tokens_of_the_full_sort(void **state)
{
	backend *const *b = *state;
	static const int64_t vocabularies[] = {1, 2, 3, 31, 33, 64, 257, 1000, WIDEST};
	static float logits[ROWS * WIDEST];
	int64_t drawn = 0;
	for (uint64_t trial = 0; trial < 270; trial++) {
		int64_t vocab = vocabularies[trial % 9];
		sample_setting setting[ROWS];
		static sample_adjust adjust[ROWS * (ADJUST + WIDEST / SAMPLE_MASK_ROW + 1)];
		int32_t want[ROWS], got[ROWS], n = 0;
		for (uint64_t row = 0; row < ROWS; row++) {
			const uint64_t seed = trial * ROWS + row;
			draw_logits(logits + (int64_t)row * vocab, vocab, seed);
			setting[row] = draw_setting(seed + 1000000, vocab);
			setting[row].first = n;
			setting[row].count = draw_adjust(adjust + n, seed, vocab, logits + (int64_t)row * vocab);
			if (row % 2)
				setting[row].count = 0;
			n += setting[row].count;
			setting[row].masked = row % 3 == 0;
			if (setting[row].masked)
				n += draw_mask(adjust + n, seed, vocab);
		}
		sample(b[0], logits, ROWS, vocab, setting, adjust, n, want);
		for (int i = 1; i < (trial % 4 ? DEVICE : backends); i++) { /* an emulated device is slow */
			sample(b[i], logits, ROWS, vocab, setting, adjust, n, got);
			for (int row = 0; row < ROWS; row++)
				if (got[row] != want[row])
					fail_msg("%s, trial %d, row %d of %lld tokens: %d, must be %d", isas[i],
					         (int)trial, row, (long long)vocab, got[row], want[row]);
		}
		for (int row = 0; row < ROWS; row++) {
			assert_true(want[row] >= -1 && want[row] < vocab);
			assert_true(setting[row].active || want[row] == -1);
			drawn += want[row] >= 0;
		}
	}
	assert_true(drawn > 270 * ROWS / 2);
}

/* A normal variate. */
static float normal(uint64_t seed, uint64_t index)
{
	const double u = 1 - (double)philox_uniform(word(seed, 2 * index)), v = (double)unit(seed, 2 * index + 1);
	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* Rows like those of models: flat, spread, peaked, one token far ahead, rounded to ties, masked. */
static void draw_model_logits(float *x, int64_t vocab, uint64_t seed)
{
	static const float spread[] = {0.2f, 1, 4, 0.01f, 1, 1};
	const uint64_t kind = seed % 6;
	for (int64_t i = 0; i < vocab; i++) {
		x[i] = spread[kind] * normal(seed, (uint64_t)i);
		if (kind == 3 && i == vocab / 3)
			x[i] = 12;
		else if (kind == 4)
			x[i] = roundf(8 * x[i]) / 8;
		else if (kind == 5 && i % 7 > 2)
			x[i] = i % 7 == 3 ? NAN : i % 7 == 4 ? INFINITY : -INFINITY;
	}
}

static sample_setting usual_setting(uint64_t seed)
{
	static const struct {
		float temperature, top_p, min_p;
		int32_t top_k;
		float top_a, top_a_power;
	} usual[] = {{1, 1, 0, 0, 0, 2},           {0.8f, 1, 0, 0, 0, 2},
	             {0.8f, 0.95f, 0, 50, 0, 2},   {0.8f, 0.95f, 0, 0, 0, 2},
	             {1, 0.5f, 0, 0, 0, 2},        {0.8f, 1, 0.05f, 0, 0, 2},
	             {1, 0.9f, 0.02f, 0, 0, 2},    {0.7f, 1, 0, 50, 0, 2},
	             {1, 0.95f, 0, 1000, 0, 2},    {0.3f, 1, 0, 1, 0, 2},
	             {1.5f, 0.99f, 0, 0, 0, 2},    {1e-7f, 0.9f, 0, 0, 0, 2},
	             {1e7f, 0.9f, 0.1f, 0, 0, 2},  {1, 0.001f, 1e-6f, 0, 0, 2},
	             {1, 1, 1, 0, 0, 2},           {1, 0.7f, 0, 1 << 30, 0, 2},
	             {1, 1, 0, 0, 0.02f, 2},       {0.8f, 0.95f, 0, 0, 0.2f, 2},
	             {0.8f, 1, 0, 50, 0.3f, 0.5f}, {1, 1, 0.01f, 0, 1e-3f, 0},
	             {1, 1, 0, 0, 1, 1.5f},        {1.2f, 0.9f, 0.001f, 200, 0.5f, 1.2f}}; /* not a multiple of 7 */
	const uint64_t i = seed * 7 % (sizeof usual / sizeof usual[0]);
	sample_setting s = plain;
	s.temperature = usual[i].temperature;
	s.top_p = usual[i].top_p;
	s.min_p = usual[i].min_p;
	s.top_k = usual[i].top_k;
	s.top_a = usual[i].top_a;
	s.top_a_power = usual[i].top_a_power;
	s.seed_low = (uint32_t)seed;
	return s;
}

static void rows_of_models_draw_the_tokens_of_the_full_sort(void **state)
{
	backend *const *b = *state;
	enum { MOST_ROWS = 48, MOST = 50257, SHAPES = 7 };
	static const int64_t vocabularies[SHAPES] = {1, 7, 31, 33, 2047, 8192, MOST};
	float *logits = malloc((size_t)MOST_ROWS * MOST * sizeof *logits);
	assert_non_null(logits);
	for (uint64_t i = 0; i < SHAPES; i++) {
		const int64_t vocab = vocabularies[i], rows = vocab < MOST ? MOST_ROWS : MOST_ROWS / 3;
		sample_setting setting[MOST_ROWS];
		int32_t want[MOST_ROWS], got[MOST_ROWS];
		for (int64_t row = 0; row < rows; row++) {
			draw_model_logits(logits + row * vocab, vocab, i * 1000 + (uint64_t)row);
			setting[row] = usual_setting(i * 1000 + (uint64_t)row);
		}
		sample(b[0], logits, rows, vocab, setting, NULL, 0, want);
		for (int k = 1; k < (vocab > 8192 ? DEVICE : backends); k++) { /* an emulated device is slow */
			sample(b[k], logits, rows, vocab, setting, NULL, 0, got);
			for (int row = 0; row < rows; row++)
				if (got[row] != want[row])
					fail_msg("%s, row %d of %lld tokens: %d, must be %d", isas[k], row,
					         (long long)vocab, got[row], want[row]);
		}
	}
	free(logits);
}

static void a_row_gives_the_same_token_in_any_batch(void **state)
{
	backend *const *b = *state;
	enum { V = 301 };
	float logits[ROWS * V];
	sample_setting setting[ROWS];
	for (uint64_t row = 0; row < ROWS; row++) {
		draw_logits(logits + row * V, V, row);
		setting[row] = draw_setting(row + 77, V);
	}
	for (int i = 0; i < backends; i++) {
		int32_t together[ROWS], alone;
		sample(b[i], logits, ROWS, V, setting, NULL, 0, together);
		for (int row = 0; row < ROWS; row++) {
			sample(b[i], logits + row * V, 1, V, &setting[row], NULL, 0, &alone);
			assert_int_equal(alone, together[row]);
		}
	}
}

static void no_token_is_sampled_from_an_empty_vocabulary(void **state)
{
	backend *const *b = *state;
	for (int i = 0; i < backends; i++) {
		int32_t token[2] = {7, 7};
		sample_setting setting[2] = {plain, plain};
		sample(b[i], (float[]){0}, 2, 0, setting, NULL, 0, token);
		assert_true(token[0] == -1 && token[1] == -1);
		sample(b[i], (float[]){0}, 0, 3, setting, NULL, 0, token);
	}
}

/* --- the distribution --------------------------------------------------------------------------- */

/* χ² of DRAWS draws against probabilities that sum to one; tokens of probability 0 must not be drawn. */
static double chi_square(backend *b, const float *logits, int64_t vocab, sample_setting s, const double *p)
{
	enum { DRAWS = 40000, BATCH = 400, MOST = 64 };
	static float rows[BATCH * MOST];
	static sample_setting setting[BATCH];
	int32_t token[BATCH];
	int64_t found[MOST] = {0};
	assert_true(vocab <= MOST);
	for (int i = 0; i < BATCH; i++)
		memcpy(rows + i * vocab, logits, (size_t)vocab * sizeof *logits);
	for (int draw = 0; draw < DRAWS; draw += BATCH) {
		for (int i = 0; i < BATCH; i++) {
			setting[i] = s;
			setting[i].position_low = (uint32_t)(draw + i);
		}
		sample(b, rows, BATCH, vocab, setting, NULL, 0, token);
		for (int i = 0; i < BATCH; i++)
			found[token[i]]++;
	}
	double sum = 0;
	for (int64_t i = 0; i < vocab; i++) {
		if (p[i] == 0)
			assert_int_equal(found[i], 0);
		else
			sum += ((double)found[i] - DRAWS * p[i]) * ((double)found[i] - DRAWS * p[i]) / (DRAWS * p[i]);
	}
	return sum;
}

/* Probabilities of the remaining tokens, by a sort in double; returns their number. */
static int probabilities(const float *x, int vocab, const sample_setting *s, double *p)
{
	int order[64], left = 0;
	double total = 0, reached = 0, kept = 0, limit = s->min_p;
	for (int i = 0; i < vocab; i++) {
		int at = i;
		for (; at > 0 && x[i] > x[order[at - 1]]; at--)
			order[at] = order[at - 1];
		order[at] = i;
		p[i] = 0;
	}
	int k = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
	for (int i = 0; i < k; i++)
		total += exp(((double)x[order[i]] - x[order[0]]) / s->temperature);
	int front = 0;
	for (; front < k && (front == 0 || reached < s->top_p * total); front++)
		reached += exp(((double)x[order[front]] - x[order[0]]) / s->temperature);
	if (s->top_a > 0) /* as a share of the likeliest token's weight 1, whose probability is 1 / reached */
		limit = fmax(limit, fmin(1, s->top_a * pow(1 / reached, s->top_a_power) * reached));
	for (int i = 0; i < front; i++) {
		double w = exp(((double)x[order[i]] - x[order[0]]) / s->temperature);
		if (w >= limit) {
			p[order[i]] = w;
			kept += w;
			left++;
		}
	}
	for (int i = 0; i < vocab; i++)
		p[i] /= kept;
	return left;
}

static void draws_follow_the_requested_distribution(void **state)
{
	backend *const *b = *state;
	enum { V = 37 };
	float x[V];
	double p[V];
	for (uint64_t trial = 0; trial < 12; trial++) {
		sample_setting s = plain;
		s.temperature = 0.4f + unit(5, trial);
		s.top_k = trial % 3 == 1 ? 11 : 0;
		s.top_p = trial % 2 ? 0.83f : 1;
		s.min_p = trial % 4 == 2 ? 0.07f : 0;
		s.top_a = trial % 3 == 2 ? 0.4f : 0;
		s.top_a_power = trial == 5 ? 0.7f : 1.5f;
		s.seed_low = (uint32_t)trial;
		for (int i = 0; i < V; i++)
			x[i] = 4 * unit(trial, (uint64_t)i);
		int left = probabilities(x, V, &s, p);
		/* mean left - 1, variance 2 (left - 1): five standard deviations */
		double limit = left - 1 + 5 * sqrt(2.0 * (left - 1)), found = chi_square(b[trial % 2], x, V, s, p);
		if (!(found <= limit))
			fail_msg("trial %d: chi-square %g of at most %g with %d tokens", (int)trial, found, limit,
			         left);
		p[0] += 0.05; /* a slightly different distribution is detected */
		for (int i = 0; i < V; i++)
			p[i] /= 1.05;
		assert_true(chi_square(b[1], x, V, s, p) > limit);
	}
}

enum { GOLDEN_VOCAB = 30, GOLDEN_ROWS = 5 };

/* Every backend draws the same tokens; the reference's have these probabilities. */
static void draw_golden(backend *const *b, const float *x, int vocab, const sample_setting *s, const double *p)
{
	float rows[ROWS * GOLDEN_VOCAB];
	sample_setting setting[ROWS];
	int32_t want[ROWS], got[ROWS];
	int left = 0;
	for (int i = 0; i < vocab; i++)
		left += p[i] > 0;
	for (uint32_t i = 0; i < ROWS; i++) {
		memcpy(rows + i * (uint32_t)vocab, x, (size_t)vocab * sizeof *x);
		setting[i] = *s;
		setting[i].position_low = i;
	}
	sample(b[0], rows, ROWS, vocab, setting, NULL, 0, want);
	for (int i = 1; i < backends; i++) {
		sample(b[i], rows, ROWS, vocab, setting, NULL, 0, got);
		assert_memory_equal(got, want, sizeof want);
	}
	assert_int_equal(left, s->top_k);
	assert_true(chi_square(b[1], x, vocab, *s, p) <= left - 1 + 5 * sqrt(2.0 * (left - 1)));
}

/* x-transformers applies top-k before the temperature, which makes no difference. */
static void draws_from_golden_logits_have_the_golden_probabilities(void **state)
{
	static const char *const temperatures[] = {"0.5", "1", "1.7", "1.75"};
	int compared = 0;
	safetensors *st;
	assert_int_equal(safetensors_open(&st, "tests/data/golden/sources/sampling.safetensors", NULL), STATUS_OK);
	for (int t = 0; t < 4; t++) {
		char name[64];
		float x[GOLDEN_ROWS * GOLDEN_VOCAB], share[GOLDEN_ROWS * GOLDEN_VOCAB];
		snprintf(name, sizeof name, "probs_top_k_0_8.temp_%s", temperatures[t]);
		const safetensors_entry *e = safetensors_find(st, name);
		if (!e)
			continue;
		const int64_t rows = e->dim[0], vocab = e->dim[1];
		assert_true(rows <= GOLDEN_ROWS && vocab <= GOLDEN_VOCAB);
		assert_int_equal(safetensors_read_f32(e, share, NULL), STATUS_OK);
		assert_int_equal(safetensors_read_f32(safetensors_find(st, "logits"), x, NULL), STATUS_OK);
		for (int64_t row = 0; row < rows; row++) {
			sample_setting s = plain;
			double p[GOLDEN_VOCAB];
			s.temperature = strtof(temperatures[t], NULL);
			s.top_k = (int32_t)ceil((1 - 0.8) * (double)vocab);
			for (int64_t i = 0; i < vocab; i++)
				p[i] = (double)share[row * vocab + i];
			draw_golden(*state, x + row * vocab, (int)vocab, &s, p);
			compared++;
		}
	}
	safetensors_close(st);
	assert_true(compared >= 3 * GOLDEN_ROWS);
}

/* --- the arithmetic ------------------------------------------------------------------------------- */

static void weights_are_the_exponential_rounded(void **state)
{
	(void)state;
	uint64_t before = UINT64_MAX;
	assert_true(sample_weight(0) == (uint64_t)1 << SAMPLE_BITS);
	for (float t = 0; t < SAMPLE_FAR; t += t < 1e-4f ? 1e-8f : 1e-5f) {
		uint64_t weight = sample_weight(t);
		double exact = ldexp(exp(-(double)t), SAMPLE_BITS);
		if (!(fabs((double)weight - exact) <= 0.5 + 2e-8 * exact))
			fail_msg("e^-%.9g: %.17g, must be %.17g", (double)t, (double)weight, exact);
		assert_true((double)weight <= (double)before * (1 + 2e-9));
		before = weight;
	}
	assert_true(sample_weight(SAMPLE_FAR) == 0);
}

static void distances_of_logits_that_are_not_finite_are_far(void **state)
{
	(void)state;
	static const float far[] = {NAN, INFINITY, -INFINITY, -FLT_MAX, -100};
	for (int i = 0; i < 5; i++)
		assert_true(sample_distance(far[i], 1, 1) == SAMPLE_FAR);
	assert_true(sample_distance(-FLT_MAX, FLT_MAX, 0.5f) == SAMPLE_FAR);
	assert_true(sample_distance(0.25f, 1, 0.5f) == 1.5f);
	assert_true(sample_distance(-0.0f, 0, 1e-45f) == 0);
}

static void shares_are_exact(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 100000; i++) {
		philox_block r = philox(3, 1, 0, i);
		uint64_t mass = ((uint64_t)r.word[0] << 32 | r.word[1]) >> (1 + r.word[2] % 50);
		uint32_t part = r.word[3] >> 8;
		unsigned __int128 product = (unsigned __int128)part * mass;
		assert_true(sample_share(part, mass) == (uint64_t)(product >> 24));
		float top_p = (float)part * 0x1p-24f;
		assert_true(sample_goal(top_p, mass) == (uint64_t)((product + 0xffffff) >> 24));
	}
	assert_true(sample_goal(1, UINT64_MAX >> 1) == UINT64_MAX >> 1);
	assert_true(sample_goal(0, 77) == 0 && sample_goal(1e-30f, 77) == 1);
	assert_true(sample_least(0) == 1 && sample_least(1e-30f) == 1 && sample_least(1) == (uint64_t)1 << SAMPLE_BITS);
	assert_true(sample_least(0.1f) == (uint64_t)ldexp((double)0.1f, SAMPLE_BITS));
}

static void the_limit_of_top_a_is_its_formula(void **state)
{
	(void)state;
	static const float powers[] = {2, 1, 0, 0.5f, 1.5f, 10, 1 + 0x1p-23f, 1 - 0x1p-24f};
	const double most = ldexp(1, SAMPLE_BITS);
	for (uint64_t i = 0; i < 20000; i++) {
		const philox_block r = philox(5, 1, 0, i);
		const uint64_t mass =
		    ((uint64_t)1 << SAMPLE_BITS) + (((uint64_t)r.word[0] << 31 | r.word[1]) >> r.word[2] % 50);
		const float top_a = philox_uniform(r.word[3]), power = powers[i % 8];
		const double log = log2((double)mass);
		const uint64_t least = sample_least_a(top_a, power, mass);
		const double limit = fmin(most, top_a * most * pow((double)mass / most, 1 - (double)power));
		if (!(fabs(sample_log2(mass) - log) <= 0x1p-31))
			fail_msg("log2 of %.17g: %.17g, must be %.17g", (double)mass, sample_log2(mass), log);
		if (!(fabs((double)least - limit) <= 1 + 2e-8 * limit))
			fail_msg("%g of %.17g to the power of %g: %.17g, must be %.17g", (double)top_a, (double)mass,
			         (double)power, (double)least, limit);
		assert_true(power != 1 || least == sample_least(top_a) || top_a == 0);
	}
	assert_true(sample_least_a(1, 2, (uint64_t)1 << SAMPLE_BITS) == (uint64_t)1 << SAMPLE_BITS);
	assert_true(sample_least_a(1, 2, (uint64_t)5 << SAMPLE_BITS) <= ((uint64_t)1 << SAMPLE_BITS) / 5 + 8000);
	assert_true(sample_least_a(1e-30f, 10, UINT64_MAX >> 1) == 1);
}

/* --- refusals ------------------------------------------------------------------------------------- */

static void refused_maxima(shape maxima)
{
	error err = ERROR_INIT;
	graph *g = graph_new();
	op_sample(g, graph_input(g, "logits", DTYPE_F32, SHAPE2(2, 33)),
	          graph_input(g, "setting", DTYPE_I32, SHAPE2(2, SAMPLE_WORDS)),
	          graph_input(g, "adjust", DTYPE_I32, SHAPE2(0, 3)), graph_input(g, "maxima", DTYPE_F32, maxima));
	assert_int_equal(graph_status(g, &err), STATUS_INVALID);
	assert_non_null(strstr(err.param, "maxima"));
	graph_free(g);
}

static void refused(shape logits, dtype type, shape setting, shape adjust, const char *param)
{
	error err = ERROR_INIT;
	graph *g = graph_new();
	op_sample(g, graph_input(g, "logits", type, logits), graph_input(g, "setting", DTYPE_I32, setting),
	          graph_input(g, "adjust", DTYPE_I32, adjust), VALUE_NONE);
	assert_int_equal(graph_status(g, &err), STATUS_INVALID);
	assert_non_null(strstr(err.param, param));
	graph_free(g);
}

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
	(void)state;
	const shape setting = SHAPE2(2, SAMPLE_WORDS), none = SHAPE2(0, 3);
	refused(SHAPE1(5), DTYPE_F32, setting, none, "logits");
	refused(SHAPE2(2, 5), DTYPE_I32, setting, none, "logits");
	refused(SHAPE2(2, SAMPLE_MAX_VOCAB + 1), DTYPE_F32, setting, none, "logits");
	refused(SHAPE2(3, 5), DTYPE_F32, setting, none, "setting");
	refused(SHAPE2(2, 5), DTYPE_F32, SHAPE2(2, SAMPLE_WORDS - 1), none, "setting");
	refused(SHAPE2(2, 5), DTYPE_F32, setting, SHAPE2(4, 2), "adjust");
	refused(SHAPE2(2, 5), DTYPE_F32, setting, SHAPE1(3), "adjust");
	refused_maxima(SHAPE2(2, 1));
	refused_maxima(SHAPE2(1, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_kernel_draws_the_tokens_of_the_full_sort),
	    cmocka_unit_test(rows_of_models_draw_the_tokens_of_the_full_sort),
	    cmocka_unit_test(a_row_gives_the_same_token_in_any_batch),
	    cmocka_unit_test(no_token_is_sampled_from_an_empty_vocabulary),
	    cmocka_unit_test(draws_follow_the_requested_distribution),
	    cmocka_unit_test(draws_from_golden_logits_have_the_golden_probabilities),
	    cmocka_unit_test(weights_are_the_exponential_rounded),
	    cmocka_unit_test(distances_of_logits_that_are_not_finite_are_far),
	    cmocka_unit_test(shares_are_exact),
	    cmocka_unit_test(the_limit_of_top_a_is_its_formula),
	    cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
