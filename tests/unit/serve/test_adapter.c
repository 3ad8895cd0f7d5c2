/* Sessions that start from an adapter's state: alone, in batches, in copies, and kept for other prompts. */
#include "tests/unit/serve/adapters.h"

enum { ADAPTERS = 2 };

static const char config[] = "{\"hidden_size\": 32, \"n_heads\": 4, \"n_layer\": 3, \"vocab_size\": 259,"
                             " \"intermediate_size\": 40}";

/* Write an adapter of random states for the model in f's folder. */
static void write_adapter(const fixture *f, uint64_t seed)
{
	model *base, *a;
	assert_int_equal(model_open(&base, f->folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	assert_int_equal(model_new_adapter(&a, base, NULL), STATUS_OK);
	stir(a, seed);
	for (int64_t i = 0; i < model_arena_floats(a); i++)
		model_arena(a)[i] *= 10;
	assert_int_equal(adapter_save(a, f->folder, NULL), STATUS_OK);
	model_free(a);
	model_free(base);
}

static void rig_open(rig *r, const scheduler_limits *limits)
{
	fixture *f = &r->f;
	fixture_begin(f, cpu_open, 1);
	r->count = ADAPTERS;
	write_configured(f->folder, f->backend, "additive2", config);
	fixture_serve(f, limits);
	for (uint64_t i = 0; i < ADAPTERS; i++) {
		char path[128];
		snprintf(path, sizeof path, "%s/" ADAPTER_FILE, f->folder);
		write_adapter(f, 40 + i);
		assert_int_equal(served_adapter_open(&r->adapters[i], f->model, i ? "b" : "a", path, NULL, NULL), STATUS_OK);
	}
}

static void a_session_reads_as_the_trained_adapter_and_pieces_change_no_bit(void **state)
{
	(void)state;
	rig r;
	rig_open(&r, &roomy);
	model *base, *a;
	char path[128];
	snprintf(path, sizeof path, "%s/" ADAPTER_FILE, r.f.folder); /* that of adapter 1 */
	assert_int_equal(model_open(&base, r.f.folder, DTYPE_F32, r.f.backend, NULL), STATUS_OK);
	assert_int_equal(model_new_adapter(&a, base, NULL), STATUS_OK);
	assert_int_equal(adapter_read(a, path, NULL, NULL), STATUS_OK);
	assert_sessions_read_as(&r.f, r.adapters[1], a, base);
	model_free(a);
	model_free(base);
	rig_close(&r);
}

/* One row without an adapter and one of each. */
static void a_batch_has_rows_of_several_adapters_that_predict_as_alone(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	client alone[ADAPTERS + 1], together[ADAPTERS + 1];
	rig_open(&r, &roomy);
	random_tokens(ids, PROMPT, 4);
	for (int i = 0; i <= ADAPTERS; i++) {
		generation_request q = request(&alone[i], ids, PROMPT, NEW_TOKENS);
		q.adapter = i ? r.adapters[i - 1] : NULL;
		run(&r.f, NULL, &alone[i], &q);
	}
	for (int i = 0; i <= ADAPTERS; i++) {
		generation_request q = request(&together[i], ids, PROMPT, NEW_TOKENS);
		q.adapter = i ? r.adapters[i - 1] : NULL;
		start(&r.f, NULL, &together[i], &q);
	}
	drain(&r.f);
	for (int i = 0; i <= ADAPTERS; i++) {
		assert_int_equal(together[i].n_tokens, NEW_TOKENS);
		assert_memory_equal(together[i].tokens, alone[i].tokens, NEW_TOKENS * sizeof(int32_t));
		assert_memory_not_equal(alone[i].tokens, alone[(i + 1) % (ADAPTERS + 1)].tokens,
		                        NEW_TOKENS * sizeof(int32_t));
	}
	for (int i = 0; i < ADAPTERS; i++)
		assert_int_equal(r.adapters[i]->users, 1);
	rig_close(&r);
}

static void copies_of_a_session_start_from_its_adapter(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	rig_open(&r, &roomy);
	random_tokens(ids, PROMPT, 5);
	session *x = open_with(&r.f, "x", r.adapters[0]), *fork, *want = open_with(&r.f, "want", r.adapters[0]);
	append(&r.f, want, ids, PROMPT);
	size_t moved = 0;
	bool done = false;
	assert_int_equal(scheduler_session_fork(r.f.scheduler, x, "fork", &fork, NULL), STATUS_OK);
	while (!done)
		assert_int_equal(scheduler_session_snapshot_step(r.f.scheduler, x, "s", &moved, &done, NULL),
		                 STATUS_OK);
	append(&r.f, fork, ids, PROMPT);
	assert_same_logits(fork, want);
	append(&r.f, x, ids + 1, 20);
	for (moved = 0, done = false; !done;)
		assert_int_equal(scheduler_session_rollback_step(r.f.scheduler, x, "s", &moved, &done, NULL),
		                 STATUS_OK);
	append(&r.f, x, ids, PROMPT);
	assert_same_logits(x, want);
	rig_close(&r);
}

/* An export after `read` tokens. */
static void check_export(rig *r, const int32_t *ids, int64_t read)
{
	session *x = open_with(&r->f, "x", r->adapters[0]), *want = open_with(&r->f, "want", r->adapters[0]), *y = NULL;
	void *blob;
	size_t bytes;
	append(&r->f, want, ids, PROMPT);
	if (read)
		append(&r->f, x, ids, read);
	assert_int_equal(scheduler_session_export(r->f.scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		session_transfer t = {
		    .blob = blob, .bytes = bytes, .adapter = i < 2 ? (i ? r->adapters[1] : NULL) : r->adapters[0]};
		status s = STATUS_OK;
		while (s == STATUS_OK && !t.done)
			s = scheduler_session_import_step(r->f.scheduler, r->f.model, "y", &t, &y, NULL);
		assert_int_equal(s, i < 2 ? STATUS_INVALID : STATUS_OK);
	}
	append(&r->f, y, ids + read, PROMPT - read);
	assert_same_logits(y, want);
	free(blob);
	drop(&r->f, y);
	drop(&r->f, x);
	drop(&r->f, want);
}

static void an_exported_session_returns_to_its_own_adapter_alone(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	rig_open(&r, &roomy);
	random_tokens(ids, PROMPT, 6);
	check_export(&r, ids, 0);
	check_export(&r, ids, 30);
	rig_close(&r);
}

static void a_state_kept_for_other_prompts_is_of_one_adapter(void **state)
{
	(void)state;
	scheduler_limits limits = roomy;
	limits.prefix_bytes = 1 << 20;
	rig r;
	int32_t ids[2 * PROMPT];
	client first[ADAPTERS + 1], again;
	rig_open(&r, &limits);
	random_tokens(ids, 2 * PROMPT, 7);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i <= ADAPTERS; i++) {
			client *c = round ? &again : &first[i];
			generation_request q = request(c, ids, 2 * PROMPT, NEW_TOKENS);
			q.adapter = i ? r.adapters[i - 1] : NULL;
			run(&r.f, NULL, c, &q);
			assert_true((c->result.cached_tokens > 0) == (round > 0));
			assert_memory_equal(c->tokens, first[i].tokens, NEW_TOKENS * sizeof(int32_t));
		}
	rig_close(&r);
}

static void adapters_of_other_models_and_explanations_are_refused(void **state)
{
	(void)state;
	rig r;
	session *x;
	error err = ERROR_INIT;
	rig_open(&r, &roomy);
	session_options o = {.explain = true, .adapter = r.adapters[0]};
	assert_int_equal(scheduler_session_new(r.f.scheduler, r.f.model, "x", &o, &x, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "explain");
	o.explain = false;
	r.adapters[0]->model++;
	err = (error)ERROR_INIT;
	assert_int_equal(scheduler_session_new(r.f.scheduler, r.f.model, "x", &o, &x, &err), STATUS_INVALID);
	assert_string_equal(err.param, "adapter");
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_session_reads_as_the_trained_adapter_and_pieces_change_no_bit),
	    cmocka_unit_test(a_batch_has_rows_of_several_adapters_that_predict_as_alone),
	    cmocka_unit_test(copies_of_a_session_start_from_its_adapter),
	    cmocka_unit_test(an_exported_session_returns_to_its_own_adapter_alone),
	    cmocka_unit_test(a_state_kept_for_other_prompts_is_of_one_adapter),
	    cmocka_unit_test(adapters_of_other_models_and_explanations_are_refused),
	};
	return RUN_ALL_WAYS(tests);
}
