/* Sessions with low-rank adapters: in batches with others, over packed weights, in copies, and more than there are
 * places. */
#include "tests/unit/serve/adapters.h"
#include "tests/unit/serve/kinds.h"

enum { ADAPTERS = LORA_ENTRIES + 1 };

static void rig_open(rig *r, int kind, dtype weights, const scheduler_limits *limits)
{
	fixture *f = &r->f;
	fixture_begin(f, cpu_open, 1);
	r->count = ADAPTERS;
	write_named(f, kind);
	fixture_serve_as(f, limits, weights);
	for (int i = 0; i < ADAPTERS; i++) {
		char id[16];
		snprintf(id, sizeof id, "a%d", i);
		write_lora(f, &(lora_options){.rank = 2 + i % 5, .alpha = 9}, 60 + (uint64_t)i);
		error err = ERROR_INIT;
		if (served_adapter_open_lora(&r->adapters[i], f->model, id, f->folder, NULL, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
	}
}

static void a_session_reads_as_the_trained_adapter_and_pieces_change_no_bit(void **state)
{
	(void)state;
	rig r;
	model *base, *a;
	rig_open(&r, 5, DTYPE_PANEL_F32, &roomy);
	assert_int_equal(model_open(&base, r.f.folder, DTYPE_F32, r.f.backend, NULL), STATUS_OK);
	assert_int_equal(lora_open(&a, base, r.f.folder, NULL, NULL), STATUS_OK); /* the last one */
	assert_sessions_read_as(&r.f, r.adapters[ADAPTERS - 1], a, base);
	model_free(a);
	model_free(base);
	rig_close(&r);
}

/* Rows without an adapter, and of several, over weights of every type and in models of several kinds. */
static void a_batch_has_rows_of_several_adapters_that_predict_as_alone(void **state)
{
	(void)state;
	enum { ROWS = 6 };
	static const struct {
		int kind;
		dtype weights;
	} cases[] = {{5, DTYPE_PANEL_F32},  {5, DTYPE_PANEL_BF16}, {5, DTYPE_PANEL_INT8},
	             {1, DTYPE_PANEL_INT8}, {0, DTYPE_PANEL_F32},  {9, DTYPE_PANEL_F32}};
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		rig r;
		int32_t ids[PROMPT], plain[NEW_TOKENS];
		client alone[ROWS], together[ROWS];
		rig_open(&r, cases[k].kind, cases[k].weights, &roomy);
		random_tokens(ids, PROMPT, 4);
		for (int i = 0; i < ROWS; i++) {
			generation_request q = request(&alone[i], ids, PROMPT, NEW_TOKENS);
			q.adapter = i % 3 ? r.adapters[i] : NULL;
			run(&r.f, NULL, &alone[i], &q);
		}
		memcpy(plain, alone[0].tokens, sizeof plain);
		for (int i = 0; i < ROWS; i++) {
			generation_request q = request(&together[i], ids, PROMPT, NEW_TOKENS);
			q.adapter = i % 3 ? r.adapters[i] : NULL;
			start(&r.f, NULL, &together[i], &q);
		}
		drain(&r.f);
		int differ = 0;
		for (int i = 0; i < ROWS; i++) {
			assert_int_equal(together[i].n_tokens, NEW_TOKENS);
			assert_memory_equal(together[i].tokens, alone[i].tokens, NEW_TOKENS * sizeof(int32_t));
			differ += memcmp(alone[i].tokens, plain, sizeof plain) != 0;
		}
		assert_int_equal(differ, 4);
		rig_close(&r);
	}
}

static void a_session_and_its_copy_share_an_entry_and_continue_alike(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	client a, b;
	session *copy;
	rig_open(&r, 5, DTYPE_PANEL_F32, &roomy);
	random_tokens(ids, PROMPT, 5);
	session *x = open_with(&r.f, "x", r.adapters[2]);
	append(&r.f, x, ids, PROMPT);
	assert_int_equal(session_fork(&copy, x, "copy", NULL), STATUS_OK);
	assert_int_equal(session_copy_all(&copy, x), STATUS_OK);
	assert_int_equal(copy->entry, x->entry);
	assert_true(x->entry > 0);
	generation_request q = request(&a, ids, 1, NEW_TOKENS);
	run(&r.f, x, &a, &q);
	q = request(&b, ids, 1, NEW_TOKENS);
	run(&r.f, copy, &b, &q);
	assert_memory_equal(a.tokens, b.tokens, NEW_TOKENS * sizeof(int32_t));
	session_free(copy);
	rig_close(&r);
}

static void more_adapters_than_places_take_turns(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	session *x[LORA_ENTRIES], *one;
	client said[2][ADAPTERS];
	error err = ERROR_INIT;
	rig_open(&r, 5, DTYPE_PANEL_F32, &roomy);
	random_tokens(ids, PROMPT, 6);
	for (int i = 0; i < 2 * ADAPTERS; i++) { /* forwards, then back */
		const int back = i / ADAPTERS, a = back ? 2 * ADAPTERS - 1 - i : i;
		generation_request q = request(&said[back][a], ids, PROMPT, NEW_TOKENS);
		q.adapter = r.adapters[a];
		run(&r.f, NULL, &said[back][a], &q);
	}
	for (int i = 0; i < ADAPTERS; i++) {
		assert_memory_equal(said[0][i].tokens, said[1][i].tokens, NEW_TOKENS * sizeof(int32_t));
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(said[0][i].tokens, said[0][j].tokens, NEW_TOKENS * sizeof(int32_t));
	}
	for (int i = 1; i < LORA_ENTRIES; i++) {
		char id[16];
		snprintf(id, sizeof id, "x%d", i);
		x[i] = open_with(&r.f, id, r.adapters[i]);
	}
	const session_options o = {.policy = POSITION_ERROR, .adapter = r.adapters[LORA_ENTRIES]};
	assert_int_equal(scheduler_session_new(r.f.scheduler, r.f.model, "more", &o, &one, &err), STATUS_BUSY);
	assert_non_null(strstr(err.message, "in use"));
	one = open_with(&r.f, "same", r.adapters[1]);
	assert_int_equal(one->entry, x[1]->entry);
	drop(&r.f, one);
	drop(&r.f, x[3]);
	one = open_with(&r.f, "more", r.adapters[LORA_ENTRIES]);
	assert_true(one->entry > 0);
	rig_close(&r);
}

static void prompts_are_not_scored_with_an_adapter(void **state)
{
	(void)state;
	rig r;
	int32_t ids[PROMPT];
	client c;
	generation *g;
	error err = ERROR_INIT;
	rig_open(&r, 5, DTYPE_PANEL_F32, &roomy);
	random_tokens(ids, PROMPT, 7);
	generation_request q = request(&c, ids, PROMPT, NEW_TOKENS);
	q.n_logprobs = 0;
	q.score_prompt = true;
	q.adapter = r.adapters[0];
	assert_int_equal(scheduler_generate(r.f.scheduler, r.f.model, NULL, &q, &g, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "adapter");
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_session_reads_as_the_trained_adapter_and_pieces_change_no_bit),
	    cmocka_unit_test(a_batch_has_rows_of_several_adapters_that_predict_as_alone),
	    cmocka_unit_test(a_session_and_its_copy_share_an_entry_and_continue_alike),
	    cmocka_unit_test(more_adapters_than_places_take_turns),
	    cmocka_unit_test(prompts_are_not_scored_with_an_adapter),
	};
	return RUN_ALL_WAYS(tests);
}
