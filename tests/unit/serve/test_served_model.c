/* Reading tokens in rows, on the backend that serves. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

static int setup_cpu(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	fixture_folder(f);
	backend_close(f->backend);
	assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	fixture_serve(f, &roomy);
	*state = f;
	return 0;
}

static void assert_close(const float *a, const float *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(a[i] - b[i]) <= 1e-4 * (1 + fabs(b[i]))))
			fail_msg("element %lld: %g and %g", (long long)i, a[i], b[i]);
}

static void step(fixture *f, session **x, int n, const int32_t *tokens)
{
	served_plan *p;
	served_row rows[8];
	bool scores = false;
	for (int i = 0; i < n; i++) {
		assert_int_equal(session_reserve(x[i], 1, NULL), STATUS_OK);
		memset(x[i]->logits, 0xff, VOCAB * sizeof *x[i]->logits);
		rows[i] = session_row(x[i], tokens + i, 1);
		scores |= x[i]->scores != NULL;
	}
	assert_int_equal(served_model_plan(f->model, n, 1, scores, &p, NULL), STATUS_OK);
	assert_int_equal(served_model_step(f->model, p, rows, n), STATUS_OK);
	for (int i = 0; i < n; i++)
		session_commit(x[i], tokens + i, 1);
}

static void rows_of_a_batch_of_any_size_agree_with_each_alone(void **state)
{
	fixture *f = *state;
	enum { STEPS = 3 };
	session *together[8], *alone[8];
	int32_t ids[40], tokens[STEPS][8];
	char id[16];
	random_tokens(ids, 40, 1);
	for (int s = 0; s < STEPS; s++)
		random_tokens(tokens[s], 8, (uint64_t)s + 7);
	for (int n = 1; n <= 8; n++) {
		for (int i = 0; i < n; i++) { /* different lengths, some with scores */
			snprintf(id, sizeof id, "t%d", i);
			together[i] = open_session(f, id, POSITION_CLAMP, i % 3 == 1);
			append(f, together[i], ids, 1 + 4 * i);
			snprintf(id, sizeof id, "a%d", i);
			assert_int_equal(scheduler_session_fork(f->scheduler, together[i], id, &alone[i], NULL),
			                 STATUS_OK);
		}
		for (int s = 0; s < STEPS; s++) {
			step(f, together, n, tokens[s]);
			for (int i = 0; i < n; i++) {
				step(f, &alone[i], 1, &tokens[s][i]);
				assert_close(together[i]->logits, alone[i]->logits, VOCAB);
			}
		}
		for (int i = 0; i < n; i++) {
			if (together[i]->scores)
				assert_close(together[i]->scores, alone[i]->scores,
				             together[i]->tokens * f->model->score_floats);
			assert_int_equal(scheduler_session_delete(f->scheduler, together[i], NULL), STATUS_OK);
			assert_int_equal(scheduler_session_delete(f->scheduler, alone[i], NULL), STATUS_OK);
		}
	}
}

static void chunks_agree_with_token_by_token(void **state)
{
	fixture *f = *state;
	static int32_t ids[300];
	static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 33, 64, 65, 255, 256, 257, 300};
	random_tokens(ids, 300, 2);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		session *x = open_session(f, "chunks", POSITION_WRAP, true);
		session *y = open_session(f, "tokens", POSITION_WRAP, true);
		append(f, x, ids, lengths[i]);
		for (int64_t t = 0; t < lengths[i]; t++)
			step(f, &y, 1, ids + t);
		assert_int_equal(x->tokens, y->tokens);
		assert_close(x->logits, y->logits, VOCAB);
		assert_close(x->scores, y->scores, x->tokens * f->model->score_floats);
		assert_int_equal(scheduler_session_delete(f->scheduler, x, NULL), STATUS_OK);
		assert_int_equal(scheduler_session_delete(f->scheduler, y, NULL), STATUS_OK);
	}
}

static void a_plan_is_made_once_and_again_when_the_pool_has_moved(void **state)
{
	fixture *f = *state;
	served_plan *two, *other, *scored, *chunk;
	int32_t slot;
	assert_int_equal(served_model_plan(f->model, 2, 1, false, &two, NULL), STATUS_OK);
	assert_int_equal(served_model_plan(f->model, 1, 1, false, &other, NULL), STATUS_OK);
	assert_ptr_equal(other, two); /* a decode step has two rows at least */
	assert_int_equal(served_model_plan(f->model, 3, 1, false, &other, NULL), STATUS_OK);
	assert_ptr_not_equal(other, two);
	assert_int_equal(served_model_plan(f->model, 2, 1, true, &scored, NULL), STATUS_OK);
	assert_ptr_not_equal(scored, two);
	assert_int_equal(served_model_plan(f->model, 1, 17, false, &chunk, NULL), STATUS_OK);
	assert_int_equal(served_model_plan(f->model, 1, 64, false, &other, NULL), STATUS_OK);
	assert_ptr_equal(other, chunk);
	for (int i = 0; i < 5; i++)
		assert_int_equal(served_model_take(f->model, &slot, NULL), STATUS_OK);
	assert_null(f->model->plans);
	for (int i = 0; i < 5; i++)
		served_model_give(f->model, i);
}

static void the_hash_is_of_weights_and_configuration(void **state)
{
	fixture *f = *state;
	served_model *same, *other;
	uint64_t a, b;
	char folder[64];
	assert_int_equal(served_model_hash(f->model, &a, NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "same", f->folder, &same, NULL), STATUS_OK);
	assert_int_equal(served_model_hash(same, &b, NULL), STATUS_OK);
	assert_true(a == b);
	assert_int_equal(scheduler_model_unload(f->scheduler, "same", NULL), STATUS_OK);
	make_folder(folder);
	write_model(folder, f->backend, 1, POSITIONS + 1, POSITION_CLAMP);
	assert_int_equal(scheduler_model(f->scheduler, "other", folder, &other, NULL), STATUS_OK);
	assert_int_equal(served_model_hash(other, &b, NULL), STATUS_OK);
	assert_true(a != b);
	other->hashed = false;
	model_arena(other->model)[model_arena_floats(other->model) - 1] += 1;
	assert_int_equal(served_model_hash(other, &a, NULL), STATUS_OK);
	assert_true(a != b);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void the_checksum_is_fnv1a(void **state)
{
	(void)state;
	assert_true(served_model_fnv1a(FNV1A_INIT, "", 0) == UINT64_C(0xcbf29ce484222325));
	assert_true(served_model_fnv1a(FNV1A_INIT, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
	assert_true(served_model_fnv1a(FNV1A_INIT, "foobar", 6) == UINT64_C(0x85944171f73967e8));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(rows_of_a_batch_of_any_size_agree_with_each_alone, setup_cpu, teardown),
	    cmocka_unit_test_setup_teardown(chunks_agree_with_token_by_token, setup_cpu, teardown),
	    cmocka_unit_test_setup_teardown(a_plan_is_made_once_and_again_when_the_pool_has_moved, setup_cpu, teardown),
	    cmocka_unit_test_setup_teardown(the_hash_is_of_weights_and_configuration, setup_cpu, teardown),
	    cmocka_unit_test(the_checksum_is_fnv1a),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
