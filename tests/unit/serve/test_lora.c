/* Sessions with low-rank adapters: in batches with others, over packed weights, in copies, and more than there are
 * places. */
#include "engine/serve/lora_bank.h"
#include "tests/unit/serve/adapters.h"
#include "tests/unit/serve/kinds.h"

/* PLACES: for adapters that have the largest rank. */
enum { PLACES = LORA_STRIPS / LORA_MAX_RANK, ADAPTERS = PLACES + 1 };

/* rank 0: they have several. */
static void rig_open_as(rig *r, int kind, dtype weights, const scheduler_limits *limits, int64_t rank)
{
	fixture *f = &r->f;
	fixture_begin(f, cpu_open, 1);
	r->count = ADAPTERS;
	write_named(f, kind);
	fixture_serve_as(f, limits, weights);
	for (int i = 0; i < ADAPTERS; i++) {
		char id[16];
		snprintf(id, sizeof id, "a%d", i);
		write_lora(f, &(lora_options){.rank = rank ? rank : 2 + i % 5, .alpha = 9}, 60 + (uint64_t)i);
		error err = ERROR_INIT;
		if (served_adapter_open_lora(&r->adapters[i], f->model, id, f->folder, NULL, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
	}
}

static void rig_open(rig *r, int kind, dtype weights, const scheduler_limits *limits)
{
	rig_open_as(r, kind, weights, limits, 0);
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
	session *x[ADAPTERS], *one;
	client said[2][ADAPTERS];
	error err = ERROR_INIT;
	rig_open_as(&r, 5, DTYPE_PANEL_F32, &roomy, LORA_MAX_RANK);
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
	for (int i = 0; i < PLACES; i++) {
		char id[16];
		snprintf(id, sizeof id, "x%d", i);
		x[i] = open_with(&r.f, id, r.adapters[i]);
	}
	const session_options o = {.policy = POSITION_ERROR, .adapter = r.adapters[PLACES]};
	assert_int_equal(scheduler_session_new(r.f.scheduler, r.f.model, "more", &o, &one, &err), STATUS_BUSY);
	assert_non_null(strstr(err.message, "in use"));
	one = open_with(&r.f, "same", r.adapters[1]);
	assert_int_equal(one->entry, x[1]->entry);
	drop(&r.f, one);
	drop(&r.f, x[3]);
	one = open_with(&r.f, "more", r.adapters[PLACES]);
	assert_true(one->entry > 0);
	rig_close(&r);
}

/* Take an entry for an adapter with the contents of `a` and this hash; -1: there is no room. */
static int32_t take(rig *r, served_adapter *a, uint64_t hash)
{
	int32_t entry;
	error err = ERROR_INIT;
	a->hash = hash;
	const status s = lora_bank_take(r->f.model, a, &entry, &err);
	assert_true(s == STATUS_OK || (s == STATUS_BUSY && strcmp(err.param, "adapter") == 0));
	return s == STATUS_OK ? entry : -1;
}

enum { MANY = LORA_ENTRIES - 1, SMALL_RANK = LORA_STRIPS / MANY, FIRST_HASH = 1000 };

/* Fill the bank with adapters of a small rank. */
static void rig_open_full(rig *r, int32_t entry[MANY])
{
	rig_open_as(r, 5, DTYPE_PANEL_F32, &roomy, SMALL_RANK);
	for (int i = 0; i < MANY; i++)
		entry[i] = take(r, r->adapters[0], FIRST_HASH + (uint64_t)i);
}

static void a_bank_has_room_for_many_small_adapters(void **state)
{
	(void)state;
	rig r;
	int32_t entry[MANY];
	rig_open_full(&r, entry);
	served_adapter *a = r.adapters[0];
	for (int i = 0; i < MANY; i++) {
		assert_true(entry[i] > 0 && entry[i] < LORA_ENTRIES);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(entry[i], entry[k]);
	}
	assert_int_equal(take(&r, a, 1), -1);
	assert_int_equal(take(&r, a, FIRST_HASH + 7), entry[7]); /* shared */
	lora_bank_give(r.f.model, entry[7]);
	assert_int_equal(take(&r, a, 1), -1);
	lora_bank_give(r.f.model, entry[7]);
	assert_int_equal(take(&r, a, 1), entry[7]);
	assert_int_equal(take(&r, a, FIRST_HASH + 7), -1);
	rig_close(&r);
}

/* A large adapter replaces small ones, wherever their strips are, and only where that is enough. */
static void strips_of_unused_adapters_are_used_again(void **state)
{
	(void)state;
	rig r, large;
	int32_t entry[MANY];
	rig_open_full(&r, entry);
	rig_open_as(&large, 5, DTYPE_PANEL_F32, &roomy, LORA_MAX_RANK);
	for (int i = 0; i < LORA_MAX_RANK / SMALL_RANK; i++) {
		assert_int_equal(take(&r, large.adapters[0], 1), -1);
		assert_int_equal(take(&r, r.adapters[0], FIRST_HASH + 3 * (uint64_t)i), entry[3 * i]); /* still there */
		lora_bank_give(r.f.model, entry[3 * i]);
		lora_bank_give(r.f.model, entry[3 * i]);
	}
	assert_true(take(&r, large.adapters[0], 1) > 0);
	assert_int_equal(take(&r, r.adapters[0], FIRST_HASH), -1);
	assert_int_equal(take(&r, r.adapters[0], FIRST_HASH + 1), entry[1]);
	rig_close(&r);
	rig_close(&large);
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
	    cmocka_unit_test(a_bank_has_room_for_many_small_adapters),
	    cmocka_unit_test(strips_of_unused_adapters_are_used_again),
	    cmocka_unit_test(prompts_are_not_scored_with_an_adapter),
	};
	return RUN_ALL_WAYS(tests);
}
