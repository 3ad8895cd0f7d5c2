/* The additive model: its forms agree with each other. The golden files check its numbers
 * (tests/e2e/test_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "tests/unit/model/fixture.h"
#include "tests/unit/support/compare.h"

enum { B = 2, N = 33, V = 37, D = 15, H = 3, LAYERS = 3, SLOTS = 4 };
#define LOGITS_TOLERANCE 1e-4
#define TOLERANCE 1e-5

static const int32_t slots[B] = {3, 1};

/* Everything a forward computes for each of N tokens. */
typedef struct outputs {
	float logits[B][N][V];
	float score[LAYERS][2][B][N][H], normalizer[LAYERS][2][B][N][H];
	float pooled[LAYERS][2][B][N][D];
} outputs;

typedef struct fixture {
	backend *backend;
	model *model;
	int32_t ids[B][N];
	outputs parallel; /* their outputs */
} fixture;

static void fill_positions(int32_t *positions, int64_t sequences, int64_t length, int32_t first)
{
	for (int64_t i = 0; i < sequences * length; i++)
		positions[i] = first + (int32_t)(i % length);
}

/* --- the parallel form --------------------------------------------------------------------- */

static void read_outputs(plan *p, outputs *out)
{
	static const char *const rounds[] = {"query", "key"};
	memset(out, 0xff, sizeof *out);
	fixture_read(p, "logits", out->logits);
	for (int l = 0; l < LAYERS; l++) {
		for (int r = 0; r < 2; r++) {
			char name[64];
			snprintf(name, sizeof name, "layers.%d.%s.score", l, rounds[r]);
			fixture_read(p, name, out->score[l][r]);
			snprintf(name, sizeof name, "layers.%d.%s.log_normalizer", l, rounds[r]);
			fixture_read(p, name, out->normalizer[l][r]);
			snprintf(name, sizeof name, "layers.%d.%s.pooled", l, rounds[r]);
			fixture_read(p, name, out->pooled[l][r]);
		}
	}
}

/* mask may be NULL. */
static void run_parallel(const fixture *f, const int32_t *ids, const int32_t *mask, outputs *out)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .masked = mask != NULL,
	                           .explain.log = true,
	                           .out.activations = true,
	                           .out.logits = LOGITS_ALL};
	int32_t positions[B * N];
	plan *p = fixture_plan(f->model, &spec, NULL, NULL);
	fill_positions(positions, B, N, 0);
	fixture_write(p, "input_ids", ids);
	fixture_write(p, "position_ids", positions);
	if (mask)
		fixture_write(p, "attention_mask", mask);
	assert_int_equal(plan_run(p), STATUS_OK);
	read_outputs(p, out);
	plan_free(p);
}

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	if (!f)
		return -1;
	f->backend = fixture_backend();
	f->model = fixture_model(SMALL_CONFIG, f->backend);
	random_integers(f->ids[0], B * N, 3, 0, V - 1);
	run_parallel(f, f->ids[0], NULL, &f->parallel);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	model_free(f->model);
	backend_close(f->backend);
	free(f);
	return 0;
}

static void changing_a_token_changes_no_earlier_output(void **state)
{
	const fixture *f = *state;
	outputs *changed = malloc(sizeof *changed);
	assert_non_null(changed);
	for (int j = 0; j < N; j += 8) {
		int32_t ids[B][N];
		memcpy(ids, f->ids, sizeof ids);
		ids[0][j] = (ids[0][j] + 1) % V;
		run_parallel(f, ids[0], NULL, changed);
		assert_true(
		    compare_close("before", changed->logits[0][0], f->parallel.logits[0][0], j * V, TOLERANCE, 0));
		assert_true(
		    compare_close("other row", changed->logits[1][0], f->parallel.logits[1][0], N * V, TOLERANCE, 0));
		float largest = 0;
		for (int v = 0; v < V; v++)
			largest = fmaxf(largest, fabsf(changed->logits[0][j][v] - f->parallel.logits[0][j][v]));
		assert_true(largest > 1e-3f);
	}
	free(changed);
}

static void masked_tokens_after_the_text_do_not_change_its_outputs(void **state)
{
	const fixture *f = *state;
	enum { LENGTH = 20 };
	outputs *masked = malloc(sizeof *masked);
	int32_t ids[B][N], mask[B][N];
	assert_non_null(masked);
	memcpy(ids, f->ids, sizeof ids);
	for (int b = 0; b < B; b++)
		for (int n = 0; n < N; n++) {
			mask[b][n] = b == 1 || n < LENGTH;
			ids[b][n] = mask[b][n] ? ids[b][n] : 0;
		}
	run_parallel(f, ids[0], mask[0], masked);
	assert_true(
	    compare_close("text", masked->logits[0][0], f->parallel.logits[0][0], LENGTH * V, LOGITS_TOLERANCE, 0));
	assert_true(compare_close("row", masked->logits[1][0], f->parallel.logits[1][0], N * V, LOGITS_TOLERANCE, 0));
	assert_true(isfinite(compare_magnitude(masked->logits[0][0], B * N * V)));
	free(masked);
}

static void masked_tokens_before_the_text_do_not_enter_the_averages(void **state)
{
	const fixture *f = *state;
	enum { PADS = 9 };
	int32_t ids[B][N], mask[B][N];
	outputs *one = malloc(sizeof *one), *other = malloc(sizeof *other);
	assert_non_null(one);
	assert_non_null(other);
	for (int b = 0; b < B; b++)
		for (int n = 0; n < N; n++)
			mask[b][n] = n >= PADS;
	memcpy(ids, f->ids, sizeof ids);
	run_parallel(f, ids[0], mask[0], one);
	for (int n = 0; n < PADS; n++)
		ids[0][n] = (ids[0][n] + 5) % V;
	run_parallel(f, ids[0], mask[0], other);
	for (int b = 0; b < B; b++)
		assert_true(
		    compare_close("text", one->logits[b][PADS], other->logits[b][PADS], (N - PADS) * V, TOLERANCE, 0));
	assert_true(isfinite(compare_magnitude(one->logits[0][0], B * N * V)));
	free(one);
	free(other);
}

/* --- the recurrent form ------------------------------------------------------------------------ */

typedef struct stream {
	const fixture *f;
	plan *plan;
	float *pool;
	int64_t chunk;
	int32_t read[B]; /* tokens so far */
} stream;

static size_t pool_bytes(const fixture *f)
{
	return (size_t)(SLOTS * model_state_floats(f->model)) * sizeof(float);
}

static stream stream_new(const fixture *f, int64_t chunk, logits_rows logits)
{
	stream s = {.f = f, .chunk = chunk};
	bool all = logits == LOGITS_ALL;
	const forward_spec spec = {.batch = B,
	                           .length = chunk,
	                           .phase = PHASE_STEP,
	                           .slots = SLOTS,
	                           .explain.log = all,
	                           .out.activations = all,
	                           .out.logits = logits};
	assert_int_equal(f->backend->allocate(f->backend, pool_bytes(f), (void **)&s.pool), STATUS_OK);
	float *junk = malloc(pool_bytes(f));
	assert_non_null(junk);
	memset(junk, 0xff, pool_bytes(f)); /* position 0 must not depend on the slot's earlier content: NaN here */
	assert_int_equal(f->backend->upload(f->backend, s.pool, junk, pool_bytes(f)), STATUS_OK);
	free(junk);
	s.plan = fixture_plan(f->model, &spec, NULL, s.pool);
	return s;
}

static void stream_free(stream *s)
{
	plan_free(s->plan);
	s->f->backend->release(s->f->backend, s->pool);
}

/* Read length[b] more tokens of each sequence. */
static void stream_read(stream *s, const int32_t length[B])
{
	int32_t ids[B * N], positions[B * N], last[B];
	const graph *g = plan_graph(s->plan);
	for (int b = 0; b < B; b++) {
		for (int64_t n = 0; n < s->chunk; n++) {
			bool present = n < length[b];
			ids[b * s->chunk + n] = present ? s->f->ids[b][s->read[b] + n] : 0;
			positions[b * s->chunk + n] = present ? s->read[b] + (int32_t)n : 0;
		}
		last[b] = (int32_t)(b * s->chunk + length[b] - 1);
	}
	fixture_write(s->plan, "input_ids", ids);
	fixture_write(s->plan, "position_ids", positions);
	fixture_write(s->plan, "slot", slots);
	fixture_write(s->plan, "position", s->read);
	fixture_write(s->plan, "length", length);
	if (graph_find(g, "last") != VALUE_NONE)
		fixture_write(s->plan, "last", last);
	assert_int_equal(plan_run(s->plan), STATUS_OK);
	for (int b = 0; b < B; b++)
		s->read[b] += length[b];
}

/* Compare the rows of one output, [B,chunk,width], with those of the parallel form, [B,N,width]. */
static void compare_rows(stream *s, const char *name, const float *want, int64_t width, const int32_t length[B],
                         double tolerance)
{
	float got[B * N * V];
	memset(got, 0xff, sizeof got);
	fixture_read(s->plan, name, got);
	for (int b = 0; b < B; b++)
		assert_true(compare_close(name, got + b * s->chunk * width,
		                          want + (b * N + s->read[b] - length[b]) * width, length[b] * width, tolerance,
		                          tolerance));
}

static void compare_chunk(stream *s, const int32_t length[B])
{
	static const char *const rounds[] = {"query", "key"};
	const outputs *want = &s->f->parallel;
	char name[64];
	compare_rows(s, "logits", want->logits[0][0], V, length, LOGITS_TOLERANCE);
	for (int l = 0; l < LAYERS; l++) {
		for (int r = 0; r < 2; r++) {
			snprintf(name, sizeof name, "layers.%d.%s.score", l, rounds[r]);
			compare_rows(s, name, want->score[l][r][0][0], H, length, TOLERANCE);
			snprintf(name, sizeof name, "layers.%d.%s.log_normalizer", l, rounds[r]);
			compare_rows(s, name, want->normalizer[l][r][0][0], H, length, TOLERANCE);
			snprintf(name, sizeof name, "layers.%d.%s.pooled", l, rounds[r]);
			compare_rows(s, name, want->pooled[l][r][0][0], D, length, TOLERANCE);
		}
	}
}

static void assert_same_state(const stream *a, const stream *b)
{
	const fixture *f = a->f;
	int64_t floats = model_state_floats(f->model);
	float *x = malloc(pool_bytes(f)), *y = malloc(pool_bytes(f));
	assert_non_null(x);
	assert_non_null(y);
	assert_int_equal(f->backend->download(f->backend, x, a->pool, pool_bytes(f)), STATUS_OK);
	assert_int_equal(f->backend->download(f->backend, y, b->pool, pool_bytes(f)), STATUS_OK);
	int64_t used = 0;
	for (int l = 0; l < LAYERS; l++)
		used += 2 * additive_state_floats(D, H,
		                                  ((const additive_options *)model_mixer_options(f->model, l))->window);
	for (int i = 0; i < B; i++)
		assert_true(
		    compare_close("state", x + slots[i] * floats, y + slots[i] * floats, used, TOLERANCE, TOLERANCE));
	free(x);
	free(y);
}

static void chunks_of_any_size_give_the_parallel_numbers_and_one_state(void **state)
{
	const fixture *f = *state;
	stream whole = stream_new(f, N, LOGITS_ALL);
	stream_read(&whole, (const int32_t[B]){N, N});
	compare_chunk(&whole, (const int32_t[B]){N, N});
	static const int32_t chunks[] = {1, 2, 5, 7, 32};
	for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
		stream s = stream_new(f, chunks[i], LOGITS_ALL);
		while (s.read[0] < N) {
			int32_t left = N - s.read[0], n = left < chunks[i] ? left : chunks[i];
			stream_read(&s, (const int32_t[B]){n, n});
			compare_chunk(&s, (const int32_t[B]){n, n});
		}
		assert_same_state(&s, &whole);
		stream_free(&s);
	}
	stream_free(&whole);
}

static void sequences_of_one_batch_may_read_different_numbers_of_tokens(void **state)
{
	const fixture *f = *state;
	stream s = stream_new(f, 6, LOGITS_ALL);
	static const int32_t pace[][B] = {{6, 1}, {0, 6}, {5, 2}, {1, 0}, {6, 5}};
	for (size_t i = 0; i < sizeof pace / sizeof pace[0]; i++) {
		stream_read(&s, pace[i]);
		compare_chunk(&s, pace[i]);
	}
	stream_free(&s);
}

static void a_session_does_not_write_to_other_slots(void **state)
{
	const fixture *f = *state;
	stream s = stream_new(f, 4, LOGITS_NONE);
	int64_t floats = model_state_floats(f->model);
	stream_read(&s, (const int32_t[B]){4, 4});
	unsigned char *bytes = malloc(pool_bytes(f));
	assert_non_null(bytes);
	assert_int_equal(f->backend->download(f->backend, bytes, s.pool, pool_bytes(f)), STATUS_OK);
	for (size_t i = 0; i < (size_t)floats * sizeof(float); i++) {
		assert_int_equal(bytes[i], 0xff);                                      /* slot 0 */
		assert_int_equal(bytes[2 * (size_t)floats * sizeof(float) + i], 0xff); /* slot 2 */
	}
	free(bytes);
	stream_free(&s);
}

static void logits_of_the_last_tokens_equal_those_rows_of_all_logits(void **state)
{
	const fixture *f = *state;
	stream s = stream_new(f, 7, LOGITS_LAST);
	static const int32_t lengths[][B] = {{7, 3}, {2, 7}, {1, 1}};
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		float got[B][V], hidden[B][D];
		memset(got, 0xff, sizeof got);
		memset(hidden, 0xff, sizeof hidden);
		stream_read(&s, lengths[i]);
		fixture_read(s.plan, "logits", got);
		fixture_read(s.plan, "hidden", hidden);
		for (int b = 0; b < B; b++)
			assert_true(compare_close("last", got[b], f->parallel.logits[b][s.read[b] - 1], V,
			                          LOGITS_TOLERANCE, 0));
		assert_true(isfinite(compare_magnitude(hidden[0], B * D)));
	}
	stream_free(&s);
}

/* --- the graph ----------------------------------------------------------------------------------- */

static void the_vocabulary_product_of_a_prefill_has_a_row_per_sequence(void **state)
{
	const fixture *f = *state;
	const forward_spec spec = {.batch = B, .length = N, .out.logits = LOGITS_LAST};
	graph *g = fixture_graph(&architecture_additive, model_config(f->model), &spec);
	int products = 0;
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		shape out = node->n_out ? graph_value(g, node->out[0])->shape : SHAPE0();
		if (node->id != OP_linear || shape_last(out) != V)
			continue;
		assert_int_equal(shape_rows(out), B);
		products++;
	}
	assert_int_equal(products, 1);
	graph_free(g);
}

static void every_dropout_has_its_own_random_stream(void **state)
{
	const fixture *f = *state;
	const forward_spec spec = {.batch = B, .length = N, .train.dropout = true, .train.loss = true};
	graph *g = fixture_graph(&architecture_additive, model_config(f->model), &spec);
	uint32_t expected = 0;
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		if (node->id != OP_dropout)
			continue;
		const dropout_params *p = node->params;
		assert_int_equal(p->stream, expected++);
		assert_true(p->p == 0.25f);
	}
	assert_int_equal(expected, 1 + 3 * LAYERS);
	graph_free(g);
}

static void the_states_of_the_rounds_are_adjacent(void **state)
{
	const fixture *f = *state;
	const forward_spec spec = {.batch = B, .length = 4, .phase = PHASE_STEP, .slots = SLOTS};
	graph *g = fixture_graph(&architecture_additive, model_config(f->model), &spec);
	int64_t offset = 0;
	int rounds = 0;
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		if (node->id != OP_additive_stream)
			continue;
		const additive_stream_params *p = node->params;
		assert_int_equal(p->offset, offset);
		assert_int_equal(p->window,
		                 ((const additive_options *)model_mixer_options(f->model, rounds++ / 2))->window);
		offset += additive_state_floats(D, H, p->window);
	}
	assert_int_equal(rounds, 2 * LAYERS);
	assert_true(offset <= model_state_floats(f->model));
	graph_free(g);
}

/* --- the loss ------------------------------------------------------------------------------------ */

/* The loss of the fixture's text; rng NULL: no dropout. */
static float loss_of(const fixture *f, const int32_t *rng, float *count)
{
	const forward_spec spec = {.batch = B, .length = N, .train.loss = true, .train.dropout = rng != NULL};
	int32_t positions[B * N], labels[B][N];
	float loss = NAN;
	plan *p = fixture_plan(f->model, &spec, NULL, NULL);
	fill_positions(positions, B, N, 0);
	for (int b = 0; b < B; b++)
		for (int n = 0; n < N; n++)
			labels[b][n] = n + 1 < N ? f->ids[b][n + 1] : -1;
	fixture_write(p, "input_ids", f->ids);
	fixture_write(p, "position_ids", positions);
	fixture_write(p, "labels", labels);
	if (rng)
		fixture_write(p, "rng", rng);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &loss);
	fixture_read(p, "count", count);
	plan_free(p);
	return loss;
}

static void the_loss_is_the_mean_cross_entropy_of_the_next_token(void **state)
{
	const fixture *f = *state;
	double sum = 0;
	float count;
	for (int b = 0; b < B; b++) {
		for (int n = 0; n + 1 < N; n++) {
			const float *z = f->parallel.logits[b][n];
			double total = 0;
			for (int v = 0; v < V; v++)
				total += exp((double)z[v]);
			sum += log(total) - (double)z[f->ids[b][n + 1]];
		}
	}
	float loss = loss_of(f, NULL, &count);
	assert_true(count == B * (N - 1));
	assert_true(fabs((double)loss - sum / (B * (N - 1))) <= 1e-5);
}

static void dropout_depends_only_on_seed_and_step(void **state)
{
	const fixture *f = *state;
	float count;
	float first = loss_of(f, (const int32_t[4]){5, 0, 1, 0}, &count);
	assert_true(first == loss_of(f, (const int32_t[4]){5, 0, 1, 0}, &count));
	assert_true(first != loss_of(f, (const int32_t[4]){5, 0, 2, 0}, &count));
	assert_true(first != loss_of(f, (const int32_t[4]){6, 0, 1, 0}, &count));
	assert_true(first != loss_of(f, NULL, &count));
	assert_true(isfinite(first));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(changing_a_token_changes_no_earlier_output),
	    cmocka_unit_test(masked_tokens_after_the_text_do_not_change_its_outputs),
	    cmocka_unit_test(masked_tokens_before_the_text_do_not_enter_the_averages),
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_numbers_and_one_state),
	    cmocka_unit_test(sequences_of_one_batch_may_read_different_numbers_of_tokens),
	    cmocka_unit_test(a_session_does_not_write_to_other_slots),
	    cmocka_unit_test(logits_of_the_last_tokens_equal_those_rows_of_all_logits),
	    cmocka_unit_test(the_vocabulary_product_of_a_prefill_has_a_row_per_sequence),
	    cmocka_unit_test(every_dropout_has_its_own_random_stream),
	    cmocka_unit_test(the_states_of_the_rounds_are_adjacent),
	    cmocka_unit_test(the_loss_is_the_mean_cross_entropy_of_the_next_token),
	    cmocka_unit_test(dropout_depends_only_on_seed_and_step),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
