/* Sampling on the host. Over 600 lines: every case is compared with the plain definition, a full sort, at the top. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/cpu/cpu.h"
#include "engine/serve/sample_plan.h"

enum { DRAWS = 4000 };

/* A sampler for one row of the vocabulary size last used. */
static struct {
	backend *backend;
	sample_plan *plan;
	void *row, *out; /* logits; a token followed by a setting */
	int64_t vocab;
} device;

static int open_device(void **state)
{
	(void)state;
	return cpu_open(&device.backend, 1, NULL) != STATUS_OK ||
	       device.backend->allocate(device.backend, 64 + sizeof(sample_setting), &device.out) != STATUS_OK;
}

static int close_device(void **state)
{
	(void)state;
	sample_plan_free(device.plan);
	device.backend->release(device.backend, device.row);
	device.backend->release(device.backend, device.out);
	backend_close(device.backend);
	return 0;
}

static void use_vocabulary(int64_t vocab)
{
	if (device.vocab == vocab)
		return;
	sample_plan_free(device.plan);
	device.backend->release(device.backend, device.row);
	device.vocab = vocab;
	assert_int_equal(device.backend->allocate(device.backend, (size_t)vocab * sizeof(float), &device.row),
	                 STATUS_OK);
	sample_place place = {.logits = device.row, .settings = (char *)device.out + 64, .tokens = device.out};
	assert_int_equal(sample_plan_new(&device.plan, device.backend, 1, vocab, &place, NULL), STATUS_OK);
}

/* counts[v]: occurrences of v (NULL: none). */
static int32_t pick_counted(const sampling *how, const float *logits, int64_t vocab, const uint32_t *counts,
                            uint64_t position)
{
	tally t = {0};
	int32_t token;
	use_vocabulary(vocab);
	assert_int_equal(device.backend->upload(device.backend, device.row, logits, (size_t)vocab * sizeof *logits),
	                 STATUS_OK);
	assert_int_equal(tally_init(&t, how), STATUS_OK);
	for (int32_t v = 0; counts && v < vocab; v++)
		for (uint32_t i = 0; i < counts[v]; i++) {
			assert_int_equal(tally_reserve(&t), STATUS_OK);
			tally_add(&t, v);
		}
	sample_row row = {how, &t, position, NULL};
	assert_int_equal(sample_plan_prepare(device.plan, t.count, NULL), STATUS_OK);
	assert_int_equal(sample_plan_run(device.plan, &row, 1), STATUS_OK);
	assert_int_equal(device.backend->download(device.backend, &token, device.out, sizeof token), STATUS_OK);
	tally_fini(&t);
	return token;
}

static int32_t pick(const sampling *how, const float *logits, int64_t vocab, uint64_t position)
{
	return pick_counted(how, logits, vocab, NULL, position);
}

static void fill(float *x, int64_t n, uint64_t seed, float spread)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = spread * (philox_uniform(philox(seed, 7, 0, (uint64_t)i).word[0]) - 0.5f);
}

/* --- the plain definition ----------------------------------------------------------- */

typedef struct ranked {
	float x;
	int32_t id;
	double w;
} ranked;

static int by_rank(const void *pa, const void *pb)
{
	const ranked *a = pa, *b = pb;
	if (a->x != b->x)
		return a->x > b->x ? -1 : 1;
	return a->id < b->id ? -1 : 1;
}

/* Mark the tokens that pass the filters, by a full sort. */
static void survivors(const sampling *how, const float *x, int n, bool *survives)
{
	ranked all[300];
	double mass = 0, reached = 0;
	for (int i = 0; i < n; i++)
		all[i] = (ranked){x[i], i, 0};
	qsort(all, (size_t)n, sizeof *all, by_rank);
	for (int i = 0; i < n; i++) {
		all[i].w = expf((all[i].x - all[0].x) / how->temperature);
		survives[i] = false;
	}
	int keep = how->top_k > 0 && how->top_k < n ? how->top_k : n;
	for (int i = 0; i < keep; i++)
		mass += all[i].w;
	for (int i = 0; i < keep && (i == 0 || (reached < how->top_p * mass && all[i].w >= how->min_p)); i++) {
		survives[all[i].id] = true;
		reached += all[i].w;
	}
}

static void exactly_the_tokens_that_a_full_sort_keeps_are_picked(void **state)
{
	(void)state;
	enum { V = 33 };
	float x[V];
	for (uint64_t trial = 0; trial < 60; trial++) {
		philox_block r = philox(99, 1, 0, trial);
		sampling how;
		sampling_default(&how);
		fill(x, V, trial, 6);
		if (trial % 3 == 0) /* ties */
			for (int i = 0; i < V; i++)
				x[i] = roundf(x[i]);
		how.temperature = 0.5f + philox_uniform(r.word[0]);
		how.top_k = trial % 2 ? (int32_t)(r.word[1] % 40) : 0;
		how.top_p = trial % 4 < 2 ? 0.3f + 0.7f * philox_uniform(r.word[2]) : 1;
		how.min_p = trial % 5 == 0 ? 0.2f * philox_uniform(r.word[3]) : 0;
		bool survives[V], seen[V] = {false};
		survivors(&how, x, V, survives);
		for (uint64_t p = 0; p < DRAWS; p++) {
			int32_t token = pick(&how, x, V, p);
			assert_in_range(token, 0, V - 1);
			assert_true(survives[token]);
			seen[token] = true;
		}
		for (int i = 0; i < V; i++) /* that many draws cannot miss the most likely one */
			if (survives[i] && expf((x[i] - 3) / how.temperature) > 0.05f)
				assert_true(seen[i]);
	}
}

static void draws_follow_the_softmax(void **state)
{
	(void)state;
	enum { V = 5, N = 40000 };
	float x[V] = {0, 1, 2, -1, 0.5f};
	int found[V] = {0};
	double total = 0;
	sampling how;
	sampling_default(&how);
	how.temperature = 0.7f;
	for (int i = 0; i < V; i++)
		total += exp(x[i] / 0.7);
	for (uint64_t p = 0; p < N; p++)
		found[pick(&how, x, V, p)]++;
	for (int i = 0; i < V; i++) { /* five standard deviations */
		double expected = exp(x[i] / 0.7) / total, sd = sqrt(expected * (1 - expected) / N);
		assert_true(fabs(found[i] / (double)N - expected) <= 5 * sd);
	}
}

static void temperature_zero_picks_the_largest_logit_and_the_lowest_id_on_ties(void **state)
{
	(void)state;
	float x[6] = {1, 3, -2, 3, 3, 0};
	sampling how;
	sampling_default(&how);
	how.temperature = 0;
	for (uint64_t p = 0; p < 20; p++)
		assert_int_equal(pick(&how, x, 6, p), 1);
}

static void a_tiny_temperature_picks_the_largest_logit(void **state)
{
	(void)state;
	float x[5] = {1, 3, 3.0001f, -2, 0}, tiny[] = {1e-7f, 1e-30f, FLT_MIN, 1e-45f};
	sampling how;
	sampling_default(&how);
	for (int i = 0; i < 4; i++)
		for (uint64_t p = 0; p < 50; p++) {
			how.temperature = tiny[i];
			assert_int_equal(pick(&how, x, 5, p), 2);
		}
}

static void a_huge_temperature_is_nearly_uniform(void **state)
{
	(void)state;
	float x[4] = {-50, 0, 50, 100};
	int found[4] = {0};
	sampling how;
	sampling_default(&how);
	how.temperature = FLT_MAX;
	for (uint64_t p = 0; p < DRAWS; p++)
		found[pick(&how, x, 4, p)]++;
	for (int i = 0; i < 4; i++)
		assert_in_range(found[i], DRAWS / 5, DRAWS / 3);
}

static void a_tiny_top_p_leaves_only_the_likeliest_token(void **state)
{
	(void)state;
	float x[4] = {0, 0.1f, 0, 0.05f};
	sampling how;
	sampling_default(&how);
	float tiny[] = {0, 1e-30f, 0.01f};
	for (int i = 0; i < 3; i++)
		for (uint64_t p = 0; p < 200; p++) {
			how.top_p = tiny[i];
			assert_int_equal(pick(&how, x, 4, p), 1);
		}
}

static void filters_that_remove_nothing_change_nothing(void **state)
{
	(void)state;
	enum { V = 257 };
	float x[V];
	fill(x, V, 4, 5);
	sampling plain, wide;
	sampling_default(&plain);
	wide = plain;
	wide.top_k = 100000;
	wide.min_p = 1e-20f;
	for (uint64_t p = 0; p < 500; p++)
		assert_int_equal(pick(&plain, x, V, p), pick(&wide, x, V, p));
	wide.top_k = V;
	for (uint64_t p = 0; p < 500; p++)
		assert_int_equal(pick(&plain, x, V, p), pick(&wide, x, V, p));
}

static void among_equal_logits_top_k_takes_the_lowest_ids(void **state)
{
	(void)state;
	float x[31];
	bool seen[31] = {false};
	for (int i = 0; i < 31; i++)
		x[i] = 2.5f;
	sampling how;
	sampling_default(&how);
	how.top_k = 4;
	for (uint64_t p = 0; p < DRAWS; p++) {
		int32_t token = pick(&how, x, 31, p);
		assert_in_range(token, 0, 3);
		seen[token] = true;
	}
	assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
}

static void among_equal_logits_every_token_is_drawn(void **state)
{
	(void)state;
	float x[31] = {0};
	bool seen[31] = {false};
	sampling how;
	sampling_default(&how);
	for (uint64_t p = 0; p < DRAWS; p++)
		seen[pick(&how, x, 31, p)] = true;
	for (int i = 0; i < 31; i++)
		assert_true(seen[i]);
}

static void logits_that_are_not_finite_are_never_picked(void **state)
{
	(void)state;
	float x[6] = {NAN, INFINITY, 1, -INFINITY, 0.5f, NAN};
	sampling how;
	for (int kind = 0; kind < 4; kind++) {
		sampling_default(&how);
		how.temperature = kind == 0 ? 0 : 1;
		how.top_k = kind == 2 ? 5 : 0;
		how.top_p = kind == 3 ? 0.99f : 1;
		for (uint64_t p = 0; p < 500; p++) {
			int32_t token = pick(&how, x, 6, p);
			assert_true(token == 2 || token == 4);
		}
	}
}

static void a_rank_counts_the_likelier_tokens(void **state)
{
	(void)state;
	static const float x[6] = {0, 2, -1, 2, -INFINITY, 1};
	static const int32_t ranks[6] = {4, 1, 5, 2, 6, 3};
	token_logprob top[3];
	for (int32_t t = 0; t < 6; t++)
		assert_int_equal(sampler_logprob(x, 6, t, top, 3).rank, ranks[t]);
	for (int32_t i = 0; i < 3; i++) {
		assert_int_equal(top[i].rank, i + 1);
		assert_int_equal(ranks[top[i].token], i + 1);
	}
}

static void without_a_finite_logit_the_token_is_minus_one(void **state)
{
	(void)state;
	float x[3] = {NAN, INFINITY, -INFINITY};
	token_logprob top[2];
	sampling how;
	sampling_default(&how);
	how.top_k = 2;
	assert_int_equal(pick(&how, x, 3, 0), -1);
	how.temperature = 0;
	assert_int_equal(pick(&how, x, 3, 0), -1);
	sampler_logprob(x, 3, 0, top, 2);
	assert_int_equal(top[0].token, -1);
}

static void the_draw_depends_only_on_seed_and_position(void **state)
{
	(void)state;
	enum { V = 64 };
	float x[V];
	fill(x, V, 11, 1);
	sampling how, other;
	sampling_default(&how);
	how.seed = 42;
	other = how;
	other.seed = 43;
	int same = 0;
	for (uint64_t p = 0; p < 200; p++) {
		assert_int_equal(pick(&how, x, V, p), pick(&how, x, V, p));
		same += pick(&how, x, V, p) == pick(&other, x, V, p);
	}
	assert_true(same < 20);
}

static void a_bias_of_100_forces_and_of_minus_100_forbids(void **state)
{
	(void)state;
	float x[8];
	fill(x, 8, 5, 4);
	sampling_bias force = {3, 100}, forbid[7];
	sampling how;
	sampling_default(&how);
	how.bias = &force;
	how.n_bias = 1;
	for (uint64_t p = 0; p < 300; p++)
		assert_int_equal(pick(&how, x, 8, p), 3);
	for (int i = 0; i < 7; i++)
		forbid[i] = (sampling_bias){i, -100};
	how.bias = forbid;
	how.n_bias = 7;
	for (uint64_t p = 0; p < 300; p++)
		assert_int_equal(pick(&how, x, 8, p), 7);
}

static void penalties_follow_their_formulas(void **state)
{
	(void)state;
	/* The penalized logits are all nearly equal to the third, so that the lowest id just wins or just loses. */
	float x[3] = {4, -1, 2};
	uint32_t counts[3] = {1, 1, 0};
	sampling how;
	sampling_default(&how);
	how.temperature = 0;
	how.repetition_penalty = 2; /* 4 / 2 = 2: a tie, the lower id */
	assert_int_equal(pick_counted(&how, x, 3, counts, 0), 0);
	how.repetition_penalty = 2.01f;
	assert_int_equal(pick_counted(&how, x, 3, counts, 0), 2);
	float negative[2] = {-2, -3};
	uint32_t first[2] = {1, 0};
	how.repetition_penalty = 1.4f; /* -2 · 1.4 > -3 */
	assert_int_equal(pick_counted(&how, negative, 2, first, 0), 0);
	how.repetition_penalty = 1.6f;
	assert_int_equal(pick_counted(&how, negative, 2, first, 0), 1);
	sampling_default(&how);
	how.temperature = 0;
	how.presence_penalty = 1.5f;
	how.frequency_penalty = 0.25f; /* 4 - 1.5 - 0.25 c against 2: loses for c >= 3 */
	for (uint32_t c = 0; c < 5; c++) {
		counts[0] = c;
		assert_int_equal(pick_counted(&how, x, 3, counts, 0), c < 3 ? 0 : 2);
	}
	assert_int_equal(pick(&how, x, 3, 0), 0);
}

static void log_probabilities_ignore_the_sampling_settings(void **state)
{
	(void)state;
	float x[6] = {1, -INFINITY, 3, NAN, 2, 3};
	double lse = log(exp(1) + exp(3) + exp(2) + exp(3));
	token_logprob top[8];
	memset(top, 0xff, sizeof top);
	token_logprob p = sampler_logprob(x, 6, 4, top, 6);
	assert_int_equal(p.token, 4);
	assert_true(fabs(p.logprob - (2 - lse)) <= 1e-6);
	int32_t order[6] = {2, 5, 4, 0, -1, -1};
	for (int i = 0; i < 6; i++)
		assert_int_equal(top[i].token, order[i]);
	assert_true(fabs(top[0].logprob - (3 - lse)) <= 1e-6 && fabs(top[3].logprob - (1 - lse)) <= 1e-6);
	assert_true(top[4].logprob == -INFINITY);
	unsigned char untouched[sizeof top[0]];
	memset(untouched, 0xff, sizeof untouched);
	assert_memory_equal(&top[6], untouched, sizeof untouched);
	p = sampler_logprob(x, 6, 4, top, 0); /* no alternatives, only the chosen token's */
	assert_true(fabs(p.logprob - (2 - lse)) <= 1e-6);
}

static void the_likeliest_tokens_are_those_of_a_full_sort(void **state)
{
	(void)state;
	enum { V = 300, TOP = 20 };
	float x[V];
	ranked all[V];
	token_logprob top[TOP];
	for (uint64_t trial = 0; trial < 20; trial++) {
		fill(x, V, trial, 9);
		for (int i = 0; i < V; i++) {
			x[i] = trial % 2 ? roundf(x[i]) : x[i];
			all[i] = (ranked){x[i], i, 0};
		}
		qsort(all, V, sizeof *all, by_rank);
		sampler_logprob(x, V, 0, top, TOP);
		for (int i = 0; i < TOP; i++)
			assert_int_equal(top[i].token, all[i].id);
	}
}

static void huge_logits_do_not_overflow(void **state)
{
	(void)state;
	float x[4] = {FLT_MAX, -FLT_MAX, FLT_MAX, 0};
	sampling how;
	token_logprob top[1];
	sampling_default(&how);
	how.top_p = 0.9f;
	for (uint64_t p = 0; p < 100; p++) {
		int32_t token = pick(&how, x, 4, p);
		assert_true(token == 0 || token == 2);
		assert_true(isfinite(sampler_logprob(x, 4, token, top, 1).logprob));
	}
}

static void a_min_p_of_one_keeps_all_ties_of_the_likeliest_token(void **state)
{
	(void)state;
	float x[5] = {1, 2, 1.999f, 2, 0};
	int found[5] = {0};
	sampling how;
	sampling_default(&how);
	how.min_p = 1;
	for (uint64_t p = 0; p < DRAWS; p++)
		found[pick(&how, x, 5, p)]++;
	assert_int_equal(found[1] + found[3], DRAWS);
	assert_in_range(found[1], DRAWS * 4 / 10, DRAWS * 6 / 10);
}

/* Probabilities are 0.5, 0.2, 0.2 and 0.1; the limit is 0.5² · ratio. At temperature 0.5 they are 0.735, 0.118, 0.118
 * and 0.029, which changes the tokens that are kept. */
static void top_a_leaves_out_tokens_that_are_unlikely_beside_a_likely_one(void **state)
{
	(void)state;
	static const struct {
		float ratio, power, temperature;
		int left;
	} cases[] = {{0, 2, 1, 4},        {0.39f, 2, 1, 4},   {0.41f, 2, 1, 3}, {0.79f, 2, 1, 3},   {0.81f, 2, 1, 1},
	             {0.39f, 2, 0.5f, 1}, {0.2f, 2, 0.5f, 3}, {0.39f, 1, 1, 3}, {0.41f, 1, 1, 1},   {0.09f, 0, 1, 4},
	             {0.11f, 0, 1, 3},    {0.9f, 0, 1, 1},    {1, 0.5f, 1, 1},  {0.14f, 0.5f, 1, 4}};
	const float x[4] = {logf(0.2f), logf(0.1f), logf(0.5f), logf(0.2f)};
	const int rank[4] = {1, 3, 0, 1};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		int seen[4] = {0}, left = 0;
		sampling how;
		sampling_default(&how);
		assert_true(how.top_a == 0 && how.top_a_power == 2);
		how.top_a = cases[i].ratio;
		how.top_a_power = cases[i].power;
		how.temperature = cases[i].temperature;
		for (uint64_t p = 0; p < DRAWS; p++)
			seen[pick(&how, x, 4, p)]++;
		for (int token = 0; token < 4; token++) {
			assert_true(seen[token] == 0 || rank[token] < cases[i].left);
			left += seen[token] > 0;
		}
		if (left != cases[i].left)
			fail_msg("case %d: %d tokens, must be %d", (int)i, left, cases[i].left);
	}
}

static void a_vocabulary_of_one_always_gives_its_token(void **state)
{
	(void)state;
	float x[1] = {-3};
	sampling how;
	sampling_default(&how);
	how.top_k = 1;
	how.top_p = 0.5f;
	how.min_p = 1;
	how.top_a = 1;
	assert_int_equal(pick(&how, x, 1, 0), 0);
}

static void an_impossible_vocabulary_is_refused(void **state)
{
	(void)state;
	sample_plan *p = (sample_plan *)&p;
	error err = ERROR_INIT;
	float x;
	sample_place place = {.logits = &x, .settings = &x, .tokens = device.out};
	assert_int_equal(sample_plan_new(&p, device.backend, 1, SAMPLE_MAX_VOCAB + 1, &place, &err), STATUS_INVALID);
	assert_null(p);
	assert_non_null(strstr(err.message, "vocabulary"));
	sample_plan_free(NULL);
}

/* --- tallies and batches -------------------------------------------------------------- */

static void a_tally_counts_every_token_and_keeps_them_sorted(void **state)
{
	(void)state;
	enum { V = 97, N = 3000 };
	int32_t counts[V] = {0};
	sampling_bias bias[] = {{50, 1.5f}, {3, -2}, {50, 0.25f}, {96, 7}};
	sampling how;
	sampling_default(&how);
	how.frequency_penalty = 0.1f;
	how.bias = bias;
	how.n_bias = 4;
	tally t = {0};
	assert_int_equal(tally_init(&t, &how), STATUS_OK);
	assert_int_equal(t.count, 3);
	for (uint64_t i = 0; i < N; i++) {
		int32_t token = (int32_t)(philox(1, 2, 0, i).word[0] % V);
		counts[token]++;
		assert_int_equal(tally_reserve(&t), STATUS_OK);
		tally_add(&t, token);
	}
	assert_int_equal(t.count, V);
	for (int32_t v = 0; v < V; v++) {
		assert_int_equal(t.rows[v].token, v);
		assert_int_equal(t.rows[v].count, counts[v]);
		assert_true(t.rows[v].bias == (v == 50 ? 1.75f : v == 3 ? -2 : v == 96 ? 7 : 0));
	}
	tally_fini(&t);
	how.frequency_penalty = 0; /* no counts are needed */
	assert_int_equal(tally_init(&t, &how), STATUS_OK);
	tally_add(&t, 5);
	assert_int_equal(t.count, 3);
	tally_fini(&t);
}

static void each_active_row_is_sampled_with_its_own_settings(void **state)
{
	(void)state;
	enum { V = 131, ROWS = 9 };
	float x[ROWS][V];
	void *logits, *settings, *tokens;
	sample_setting plain[ROWS];
	sample_plan *p;
	sampling how[ROWS];
	tally t[ROWS] = {{0}};
	sample_row rows[ROWS];
	sampling_bias bias[ROWS];
	int32_t token[ROWS], alone[ROWS];
	int64_t adjusts = 0;
	for (int i = 0; i < ROWS; i++) {
		fill(x[i], V, (uint64_t)i, 5);
		bias[i] = (sampling_bias){7 * i, 3};
		sampling_default(&how[i]);
		how[i].seed = (uint64_t)i;
		how[i].presence_penalty = i % 2 ? 4 : 0;
		how[i].bias = &bias[i];
		how[i].n_bias = i % 3 > 0;
		assert_int_equal(tally_init(&t[i], &how[i]), STATUS_OK);
		for (int n = 0; n < 40; n++) {
			assert_int_equal(tally_reserve(&t[i]), STATUS_OK);
			tally_add(&t[i], (int32_t)(philox(9, (uint32_t)i, 0, (uint64_t)n).word[0] % V));
		}
		rows[i] = (sample_row){i % 4 == 3 ? NULL : &how[i], &t[i], (uint64_t)(1000 + i), NULL};
		adjusts += rows[i].settings ? t[i].count : 0;
		uint32_t counts[V] = {0};
		for (int32_t r = 0; r < t[i].count; r++)
			counts[t[i].rows[r].token] = (uint32_t)t[i].rows[r].count;
		alone[i] = rows[i].settings ? pick_counted(&how[i], x[i], V, counts, rows[i].position) : -1;
	}
	assert_true(adjusts > 64); /* more than the smallest plan holds */
	assert_int_equal(device.backend->allocate(device.backend, sizeof x, &logits), STATUS_OK);
	assert_int_equal(device.backend->upload(device.backend, logits, x, sizeof x), STATUS_OK);
	assert_int_equal(device.backend->allocate(device.backend, sizeof plain, &settings), STATUS_OK);
	assert_int_equal(device.backend->allocate(device.backend, sizeof token, &tokens), STATUS_OK);
	sample_place place = {.logits = logits, .settings = settings, .tokens = tokens};
	assert_int_equal(sample_plan_new(&p, device.backend, ROWS, V, &place, NULL), STATUS_OK);
	assert_int_equal(sample_plan_prepare(p, adjusts, NULL), STATUS_OK);
	for (int n = ROWS; n > 0; n--) { /* the last rows may be absent */
		memset(token, 0x55, sizeof token);
		assert_int_equal(device.backend->upload(device.backend, tokens, token, sizeof token), STATUS_OK);
		assert_int_equal(sample_plan_run(p, rows, n), STATUS_OK);
		assert_int_equal(device.backend->download(device.backend, token, tokens, sizeof token), STATUS_OK);
		assert_memory_equal(token, alone, (size_t)n * sizeof *token);
		bool adjusted = false;
		for (int i = 0; i < n; i++)
			adjusted |= rows[i].settings && t[i].count > 0;
		assert_int_equal(sample_plan_settings(p, rows, n, plain), !adjusted);
		for (int i = 0; i < ROWS; i++)
			assert_int_equal(plain[i].active, !adjusted && i < n && rows[i].settings);
	}
	sample_plan_free(p);
	device.backend->release(device.backend, settings);
	device.backend->release(device.backend, tokens);
	device.backend->release(device.backend, logits);
	for (int i = 0; i < ROWS; i++)
		tally_fini(&t[i]);
}

static void refused(const sampling *how, const char *param)
{
	error err = ERROR_INIT;
	assert_int_equal(sampling_check(how, 10, &err), STATUS_INVALID);
	assert_string_equal(err.param, param);
}

static void settings_out_of_range_are_refused_by_name(void **state)
{
	(void)state;
	sampling how;
	sampling_default(&how);
	assert_int_equal(sampling_check(&how, 10, NULL), STATUS_OK);
#define REFUSED(field, value) sampling_default(&how), how.field = (value), refused(&how, #field)
	REFUSED(temperature, -0.1f);
	REFUSED(temperature, NAN);
	REFUSED(temperature, INFINITY);
	REFUSED(top_p, 1.01f);
	REFUSED(top_p, NAN);
	REFUSED(min_p, -1);
	REFUSED(min_p, NAN);
	REFUSED(top_a, 1.01f);
	REFUSED(top_a, NAN);
	REFUSED(top_a_power, -1);
	REFUSED(top_a_power, INFINITY);
	REFUSED(top_k, -1);
	REFUSED(repetition_penalty, 0);
	REFUSED(repetition_penalty, NAN);
	REFUSED(presence_penalty, INFINITY);
	REFUSED(frequency_penalty, NAN);
#undef REFUSED
	sampling_bias bias = {10, 1};
	sampling_default(&how);
	how.bias = &bias;
	how.n_bias = 1;
	refused(&how, "logit_bias");
	bias.token = -1;
	refused(&how, "logit_bias");
	bias = (sampling_bias){9, NAN};
	refused(&how, "logit_bias");
	bias.bias = -100;
	assert_int_equal(sampling_check(&how, 10, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(exactly_the_tokens_that_a_full_sort_keeps_are_picked),
	    cmocka_unit_test(draws_follow_the_softmax),
	    cmocka_unit_test(temperature_zero_picks_the_largest_logit_and_the_lowest_id_on_ties),
	    cmocka_unit_test(a_tiny_temperature_picks_the_largest_logit),
	    cmocka_unit_test(a_huge_temperature_is_nearly_uniform),
	    cmocka_unit_test(a_tiny_top_p_leaves_only_the_likeliest_token),
	    cmocka_unit_test(filters_that_remove_nothing_change_nothing),
	    cmocka_unit_test(among_equal_logits_top_k_takes_the_lowest_ids),
	    cmocka_unit_test(among_equal_logits_every_token_is_drawn),
	    cmocka_unit_test(logits_that_are_not_finite_are_never_picked),
	    cmocka_unit_test(a_rank_counts_the_likelier_tokens),
	    cmocka_unit_test(without_a_finite_logit_the_token_is_minus_one),
	    cmocka_unit_test(the_draw_depends_only_on_seed_and_position),
	    cmocka_unit_test(a_bias_of_100_forces_and_of_minus_100_forbids),
	    cmocka_unit_test(penalties_follow_their_formulas),
	    cmocka_unit_test(log_probabilities_ignore_the_sampling_settings),
	    cmocka_unit_test(the_likeliest_tokens_are_those_of_a_full_sort),
	    cmocka_unit_test(huge_logits_do_not_overflow),
	    cmocka_unit_test(a_min_p_of_one_keeps_all_ties_of_the_likeliest_token),
	    cmocka_unit_test(top_a_leaves_out_tokens_that_are_unlikely_beside_a_likely_one),
	    cmocka_unit_test(a_vocabulary_of_one_always_gives_its_token),
	    cmocka_unit_test(an_impossible_vocabulary_is_refused),
	    cmocka_unit_test(a_tally_counts_every_token_and_keeps_them_sorted),
	    cmocka_unit_test(each_active_row_is_sampled_with_its_own_settings),
	    cmocka_unit_test(settings_out_of_range_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_device, close_device);
}
