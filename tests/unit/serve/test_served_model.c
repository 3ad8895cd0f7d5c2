/* Reading tokens in rows, on the backend that serves. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

typedef struct kind {
	const char *architecture;
	dtype weights;
} kind;

static const kind kinds[] = {
    {"additive", DTYPE_PANEL_F32}, {"additive", DTYPE_PANEL_BF16}, {"additive", DTYPE_PANEL_INT8},
    {"gpt2", DTYPE_PANEL_F32},     {"gpt2", DTYPE_PANEL_BF16},     {"gpt2", DTYPE_PANEL_INT8},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void open_kind(fixture *f, const kind *k)
{
	fixture_folder(f);
	backend_close(f->backend);
	assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	if (strcmp(k->architecture, "gpt2") == 0)
		write_gpt2(f->folder, f->backend, 1);
	fixture_serve_as(f, &roomy, k->weights);
}

static int setup_cpu(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	open_kind(f, &kinds[0]);
	*state = f;
	return 0;
}

static void step(fixture *f, session **x, int n, const int32_t *tokens)
{
	served_plan *p;
	served_row rows[8];
	bool log = false;
	for (int i = 0; i < n; i++) {
		assert_int_equal(session_reserve(x[i], 1, NULL), STATUS_OK);
		memset(x[i]->logits, 0xff, VOCAB * sizeof *x[i]->logits); /* results on the device are computed later */
		rows[i] = session_row(x[i], tokens + i, 1);
		log |= x[i]->log != NULL;
	}
	assert_int_equal(served_model_plan(f->model, n, 0, log, false, 0, &p, NULL), STATUS_OK);
	assert_int_equal(served_model_step(f->model, p, rows, n, NULL), STATUS_OK);
	for (int i = 0; i < n; i++) {
		session_commit(x[i], tokens + i, 1, p, i);
		assert_int_equal(session_fetch(x[i]), STATUS_OK);
	}
}

static void assert_same_reading(const fixture *f, const session *a, const session *b)
{
	assert_int_equal(a->tokens, b->tokens);
	assert_same_logits(a, b);
	if (a->log && b->log)
		assert_memory_equal(a->log, b->log, (size_t)(a->tokens * f->model->log_floats) * sizeof *a->log);
}

/* Sessions of different lengths, some with a log, read three tokens together and each alone. */
static void read_together_and_alone(fixture *f, int n)
{
	enum { STEPS = 3 };
	session *together[8], *alone[8];
	int32_t ids[40], tokens[STEPS][8];
	char id[16];
	random_tokens(ids, 40, 1);
	for (int s = 0; s < STEPS; s++)
		random_tokens(tokens[s], 8, (uint64_t)s + 7);
	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof id, "t%d", i);
		together[i] = open_session(f, id, POSITION_CLAMP, i % 3 == 1);
		append(f, together[i], ids, 1 + 4 * i);
		snprintf(id, sizeof id, "a%d", i);
		assert_int_equal(scheduler_session_fork(f->scheduler, together[i], id, &alone[i], NULL), STATUS_OK);
	}
	for (int s = 0; s < STEPS; s++) {
		step(f, together, n, tokens[s]);
		for (int i = 0; i < n; i++) {
			step(f, &alone[i], 1, &tokens[s][i]);
			assert_same_reading(f, together[i], alone[i]);
		}
	}
	for (int i = 0; i < n; i++) {
		drop(f, together[i]);
		drop(f, alone[i]);
	}
}

/* Open each kind with steps in one part, and then cut into parts. */
static void open_kind_undivided_or_in_parts(fixture *f, int i)
{
	open_kind(f, &kinds[i % KINDS]);
	f->model->way_is_fixed = i >= KINDS;
	f->model->way = THREADS_PARTS;
}

static void rows_of_a_batch_of_any_size_have_the_bits_of_each_alone(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * KINDS; i++) {
		fixture f = {0};
		open_kind_undivided_or_in_parts(&f, i);
		for (int n = 1; n <= 8; n++)
			read_together_and_alone(&f, n);
		fixture_close(&f);
	}
}

/* Prompts of all lengths arrive together, some with a log; compare with each alone. */
static void read_prompts(fixture *f, const int64_t *lengths, int n)
{
	static int32_t ids[700];
	static client c[8];
	session *together[8];
	char id[16];
	random_tokens(ids, 700, 5);
	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof id, "t%d", i);
		together[i] = open_session(f, id, POSITION_WRAP, i % 3 == 1);
		generation_request r = request(&c[i], ids + i, lengths[i], 0);
		start(f, together[i], &c[i], &r);
	}
	drain(f);
	for (int i = 0; i < n; i++) {
		session *alone = open_session(f, "alone", POSITION_WRAP, together[i]->log != NULL);
		append(f, alone, ids + i, lengths[i]);
		assert_int_equal(c[i].result.status, STATUS_OK);
		assert_same_reading(f, together[i], alone);
		drop(f, alone);
		drop(f, together[i]);
	}
}

static void prompts_that_share_steps_have_the_bits_of_each_alone(void **state)
{
	static const int64_t lengths[][8] = {
	    {27, 27, 27, 27, 27, 27, 27, 27},
	    {1, 2, 3, 4, 5, 6, 7, 8},
	    {60, 1, 33, 64, 3, 17, 70, 8},
	    {300, 20, 600, 1, 257, 100, 44, 256},
	};
	(void)state;
	for (int k = 0; k < 2 * KINDS; k++) {
		fixture f = {0};
		open_kind_undivided_or_in_parts(&f, k);
		for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
			read_prompts(&f, lengths[i], 8);
		fixture_close(&f);
	}
}

/* Largest difference between two sessions' logits, relative to the largest logit. */
static double distance(const float *a, const float *b)
{
	double largest = 0, worst = 0;
	for (int v = 0; v < VOCAB; v++) {
		largest = fmax(largest, fabs((double)b[v]));
		worst = fmax(worst, fabs((double)a[v] - (double)b[v]));
		if (!isfinite(a[v]))
			return INFINITY;
	}
	return worst / largest;
}

/* Also past the positions. Softmax attention adds up a long piece in another order than single tokens, which int8
 * products can amplify to a step of an activation. */
static void chunks_give_the_logits_of_single_tokens_and_additive_ones_the_same_bits(void **state)
{
	static const double tolerances[KINDS] = {0, 0, 0, 1e-5, 1e-5, 0.02};
	(void)state;
	static int32_t ids[300];
	static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 33, 64, 65, 255, 256, 257, 300};
	random_tokens(ids, 300, 2);
	for (int k = 0; k < KINDS; k++) {
		fixture f = {0};
		open_kind(&f, &kinds[k]);
		session *y = open_session(&f, "tokens", POSITION_WRAP, true);
		for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
			session *x = open_session(&f, "chunks", POSITION_WRAP, true);
			append(&f, x, ids, lengths[i]);
			while (y->tokens < lengths[i])
				step(&f, &y, 1, ids + y->tokens);
			if (tolerances[k] == 0)
				assert_same_reading(&f, x, y);
			if (!(distance(x->logits, y->logits) <= tolerances[k]))
				fail_msg("kind %d: %g", k, distance(x->logits, y->logits));
			drop(&f, x);
		}
		drop(&f, y);
		fixture_close(&f);
	}
}

static int threads_now, fewest_threads;

static void note_threads(backend *b, int threads)
{
	(void)b;
	threads_now = threads;
	fewest_threads = threads < fewest_threads ? threads : fewest_threads;
}

static void the_first_step_uses_one_thread_and_then_restores_all(void **state)
{
	fixture *f = *state;
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	threads_now = fewest_threads = f->backend->threads;
	assert_int_equal(fewest_threads, 2);
	f->backend->use_threads = note_threads;
	append(f, x, (int32_t[]){5}, 1);
	assert_int_equal(fewest_threads, 1);
	assert_int_equal(threads_now, 2);
	drop(f, x);
}

/* Fill the slot with NaN, the worst that another session can leave. */
static void earlier_content_of_a_slot_has_no_effect_and_is_never_exported(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k += 3) {
		fixture f = {0};
		open_kind(&f, &kinds[k]);
		int32_t ids[20], slot;
		client clean, used;
		void *blob[2];
		size_t bytes[2];
		random_tokens(ids, 20, 6);
		generation_request r = request(&clean, ids, 20, 60);
		r.max_tokens = POSITIONS - 20;
		run(&f, NULL, &clean, &r);
		for (int i = 0; i < 2; i++) {
			session *x = open_session(&f, "x", POSITION_ERROR, false);
			append(&f, x, ids, 9);
			assert_int_equal(scheduler_session_export(f.scheduler, x, &blob[i], &bytes[i], NULL),
			                 STATUS_OK);
			drop(&f, x);
			assert_int_equal(served_model_take(f.model, &slot, NULL), STATUS_OK);
			memset((char *)statepool_data(f.model->pool) +
			           (size_t)slot * statepool_slot_bytes(f.model->pool),
			       0xff, statepool_slot_bytes(f.model->pool));
			served_model_give(f.model, slot);
		}
		r.context = memset(&used, 0, sizeof used);
		run(&f, NULL, &used, &r);
		assert_memory_equal(used.tokens, clean.tokens, (size_t)clean.n_tokens * sizeof *clean.tokens);
		assert_int_equal(bytes[0], bytes[1]);
		assert_memory_equal(blob[0], blob[1], bytes[0]);
		free(blob[0]);
		free(blob[1]);
		fixture_close(&f);
	}
}

static void weights_of_every_type_give_nearly_the_same_logits(void **state)
{
	(void)state;
	static const double tolerances[] = {0, 0.02, 0.1};
	float logits[KINDS][VOCAB];
	int32_t ids[20];
	random_tokens(ids, 20, 3);
	for (int k = 0; k < KINDS; k++) {
		fixture f = {0};
		open_kind(&f, &kinds[k]);
		assert_int_equal(model_weight_dtype(served_model_model(f.model)), kinds[k].weights);
		session *x = open_session(&f, "x", POSITION_ERROR, false);
		append(&f, x, ids, 20);
		memcpy(logits[k], x->logits, sizeof logits[k]);
		drop(&f, x);
		fixture_close(&f);
		double away = distance(logits[k], logits[k / 3 * 3]);
		if (!(away <= tolerances[k % 3]))
			fail_msg("kind %d: %g", k, away);
		assert_true(k % 3 == 0 || away > 0);
	}
}

static void a_model_is_loaded_again_for_weights_of_another_type(void **state)
{
	fixture *f = *state;
	served_model *m;
	error err = ERROR_INIT;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_INT8, &m, &err), STATUS_CONFLICT);
	assert_null(m);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	assert_ptr_equal(m, f->model);
	drop(f, x);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_INT8, &m, NULL), STATUS_OK);
	assert_int_equal(model_weight_dtype(served_model_model(m)), DTYPE_PANEL_INT8);
}

static void a_model_without_a_score_per_token_is_served_without_weights(void **state)
{
	(void)state;
	fixture f = {0};
	open_kind(&f, &kinds[3]);
	int32_t ids[30];
	client c;
	error err = ERROR_INIT;
	session *x = open_session(&f, "x", POSITION_CLAMP, false), *y, *z;
	void *blob;
	size_t bytes;
	random_tokens(ids, 30, 4);
	append(&f, x, ids, 30);
	assert_int_equal(scheduler_session_fork(f.scheduler, x, "y", &y, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_export(f.scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f.scheduler, f.model, "z", blob, bytes, &z, NULL), STATUS_OK);
	free(blob);
	session *copies[] = {x, y, z};
	int32_t said[3][40];
	for (int i = 0; i < 3; i++) { /* past the positions */
		generation_request r = request(&c, NULL, 0, 40);
		run(&f, copies[i], &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
		assert_int_equal(c.n_tokens, 40);
		memcpy(said[i], c.tokens, sizeof said[i]);
		assert_memory_equal(said[i], said[0], sizeof said[i]);
		assert_same_reading(&f, copies[i], x);
	}
	session *explained = open_session(&f, "e", POSITION_CLAMP, true);
	append(&f, explained, ids, 30);
	generation_request r = request(&c, NULL, 0, 4);
	generation *g;
	r.n_alpha = 3;
	assert_int_equal(scheduler_generate(f.scheduler, f.model, explained, &r, &g, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "alpha");
	drop(&f, explained);
	for (int i = 0; i < 3; i++)
		drop(&f, copies[i]);
	fixture_close(&f);
}

static void a_plan_is_made_once_for_any_number_of_states(void **state)
{
	fixture *f = *state;
	served_plan *two, *other, *scored, *chunk;
	int32_t slot;
	assert_int_equal(served_model_plan(f->model, 2, 0, false, false, 0, &two, NULL), STATUS_OK);
	assert_int_equal(served_model_plan(f->model, 1, 0, false, false, 0, &other, NULL), STATUS_OK);
	assert_ptr_not_equal(other, two);
	assert_int_equal(served_model_plan(f->model, 2, 0, false, false, 0, &other, NULL), STATUS_OK);
	assert_ptr_equal(other, two);
	assert_int_equal(served_model_plan(f->model, 3, 0, false, false, 0, &other, NULL), STATUS_OK);
	assert_ptr_not_equal(other, two);
	assert_int_equal(served_model_plan(f->model, 2, 0, true, false, 0, &scored, NULL), STATUS_OK);
	assert_ptr_not_equal(scored, two);
	assert_int_equal(served_model_plan(f->model, 1, 17, false, false, 0, &chunk, NULL), STATUS_OK);
	assert_int_equal(served_model_plan(f->model, 1, 64, false, false, 0, &other, NULL), STATUS_OK);
	assert_ptr_equal(other, chunk);
	const float *data = statepool_data(f->model->pool);
	for (int i = 0; i < 17; i++)
		assert_int_equal(served_model_take(f->model, &slot, NULL), STATUS_OK);
	assert_ptr_equal(statepool_data(f->model->pool), data);
	assert_int_equal(served_model_plan(f->model, 2, 0, false, false, 1000, &other, NULL), STATUS_OK);
	assert_ptr_equal(other, two);
	for (int i = 0; i < 17; i++)
		served_model_give(f->model, i);
}

static void the_hash_covers_weights_their_type_and_the_configuration(void **state)
{
	fixture *f = *state;
	served_model *m;
	char folder[64];
	uint64_t hash = f->model->hash;
	assert_int_equal(scheduler_model(f->scheduler, "same", f->folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	assert_true(m->hash == hash);
	assert_int_equal(scheduler_model_unload(f->scheduler, "same", NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "smaller", f->folder, DTYPE_PANEL_INT8, &m, NULL), STATUS_OK);
	assert_true(m->hash != hash);
	assert_int_equal(scheduler_model_unload(f->scheduler, "smaller", NULL), STATUS_OK);
	for (int i = 0; i < 2; i++) { /* first other weights, then another configuration */
		make_folder(folder);
		write_model(folder, f->backend, i == 0 ? 2 : 1, POSITIONS + i, POSITION_ERROR);
		assert_int_equal(scheduler_model(f->scheduler, "other", folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
		assert_true(m->hash != hash);
		assert_int_equal(scheduler_model_unload(f->scheduler, "other", NULL), STATUS_OK);
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rows_of_a_batch_of_any_size_have_the_bits_of_each_alone),
	    cmocka_unit_test(prompts_that_share_steps_have_the_bits_of_each_alone),
	    cmocka_unit_test(chunks_give_the_logits_of_single_tokens_and_additive_ones_the_same_bits),
	    cmocka_unit_test_setup_teardown(the_first_step_uses_one_thread_and_then_restores_all, setup_cpu, teardown),
	    cmocka_unit_test(earlier_content_of_a_slot_has_no_effect_and_is_never_exported),
	    cmocka_unit_test(weights_of_every_type_give_nearly_the_same_logits),
	    cmocka_unit_test(a_model_without_a_score_per_token_is_served_without_weights),
	    cmocka_unit_test_setup_teardown(a_model_is_loaded_again_for_weights_of_another_type, setup_cpu, teardown),
	    cmocka_unit_test_setup_teardown(a_plan_is_made_once_for_any_number_of_states, setup_cpu, teardown),
	    cmocka_unit_test_setup_teardown(the_hash_covers_weights_their_type_and_the_configuration, setup_cpu,
	                                    teardown),
	};
	return RUN_ALL_WAYS(tests);
}
