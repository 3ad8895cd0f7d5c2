/* States after the beginnings of prompts: which are kept, who may use them, and that no token depends on them. */
#include "tests/unit/serve/fixture.h"

enum { LONG = 4096, BUDGET = 64 << 20 };

static int open_with(void **state, void (*write)(const char *folder, backend *b, uint64_t seed))
{
	fixture *f = calloc(1, sizeof *f);
	scheduler_limits limits = roomy;
	limits.prefix_bytes = BUDGET;
	fixture_folder(f);
	if (write)
		write(f->folder, f->backend, 1);
	else
		write_model(f->folder, f->backend, 1, LONG, POSITION_ERROR);
	fixture_serve(f, &limits);
	*state = f;
	return 0;
}

static int setup_kept(void **state)
{
	return open_with(state, NULL);
}

static void write_long_gpt2(const char *folder, backend *b, uint64_t seed)
{
	(void)seed;
	write_configured(folder, b, "gpt2",
	                 "{\"n_embd\": 16, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 1024, \"n_layer\": 2, "
	                 "\"initializer_range\": 0.3}");
}

static int setup_gpt2(void **state)
{
	return open_with(state, write_long_gpt2);
}

static int32_t ids[LONG];
static client with, without;

/* Run a request with kept states and one that reads all of its prompt; both give the same tokens. Returns the number of
 * tokens that the first did not read. */
static int64_t ask(fixture *f, int64_t n, int64_t n_shared, int64_t max_tokens, const char *owner)
{
	generation_request r = request(&without, ids, n, max_tokens);
	r.sampling.temperature = 1;
	r.sampling.seed = (uint64_t)n;
	r.sampling.frequency_penalty = 0.7f;
	r.owner = owner;
	r.reads_all = true;
	run(f, NULL, &without, &r);
	assert_int_equal(without.result.cached_tokens, 0);
	r.context = memset(&with, 0, sizeof with);
	with.credit = INT32_MAX;
	r.reads_all = false;
	r.n_shared = n_shared;
	run(f, NULL, &with, &r);
	assert_int_equal(with.result.status, STATUS_OK);
	assert_int_equal(with.result.prompt_tokens, n);
	assert_int_equal(with.n_tokens, without.n_tokens);
	assert_memory_equal(with.tokens, without.tokens, (size_t)with.n_tokens * sizeof(int32_t));
	assert_int_equal(f->model->users, 0); /* a kept state is no user of the model */
	return with.result.cached_tokens;
}

static void the_second_prompt_begins_after_the_shared_tokens(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 60, 1);
	for (uint64_t i = 0; i < 4; i++) { /* each prompt continues differently */
		random_tokens(ids + 20, 30, 100 + i);
		assert_int_equal(ask(f, 50, 20, 8, NULL), i ? 20 : 0);
	}
	assert_int_equal(f->scheduler->prefixes.count, 1);
}

static void a_prompt_keeps_the_state_where_it_branches_off(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 500, 15);
	assert_int_equal(ask(f, 500, 0, 2, NULL), 0);
	for (uint64_t i = 0; i < 3; i++) {
		random_tokens(ids + 400, 100, 150 + i);
		assert_int_equal(ask(f, 500, 0, 2, NULL), i ? 400 : 0);
	}
}

static void fewer_shared_tokens_are_read_again(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 40, 2);
	assert_int_equal(ask(f, 30, PREFIXES_SHARED - 1, 4, NULL), 0);
	assert_int_equal(f->scheduler->prefixes.count, 0);
}

static void a_longer_prompt_begins_where_the_shorter_one_ended(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 400, 3);
	assert_int_equal(ask(f, 100, 0, 3, NULL), 0);
	assert_int_equal(ask(f, 100, 0, 3, NULL), 99);
	assert_int_equal(ask(f, 130, 0, 3, NULL), 99);
	assert_int_equal(ask(f, 300, 0, 3, NULL), 99);
	assert_int_equal(ask(f, 301, 0, 3, NULL), 299);
	ids[50]++;
	assert_int_equal(ask(f, 301, 0, 3, NULL), 0);
}

static void the_next_turn_of_a_chat_begins_after_the_answer(void **state)
{
	fixture *f = *state;
	int64_t n = 40, before = 0;
	random_tokens(ids, n, 4);
	for (int turn = 0; turn < 4; turn++) {
		const int64_t cached = ask(f, n, 0, 80, NULL);
		assert_int_equal(cached, before);
		memcpy(ids + n, with.tokens, (size_t)with.n_tokens * sizeof *ids);
		n += with.n_tokens;
		before = n - 1; /* the last token has not been read */
		random_tokens(ids + n, 5, 40 + (uint64_t)turn);
		n += 5;
	}
}

static void a_state_that_a_step_in_flight_changes_is_not_kept(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 40, 16);
	generation_request r = request(memset(&with, 0, sizeof with), ids, 40, 300);
	with.credit = INT32_MAX;
	with.cancel_after = 90;
	start(f, NULL, &with, &r);
	drain(f);
	assert_int_equal(with.result.status, STATUS_CANCELLED);
	memcpy(ids + 40, with.tokens, (size_t)with.n_tokens * sizeof *ids);
	random_tokens(ids + 40 + with.n_tokens, 5, 17);
	ask(f, 40 + with.n_tokens + 5, 0, 30, NULL);
}

static void states_inside_a_long_prompt_are_kept(void **state)
{
	fixture *f = *state;
	const int64_t device = f->backend->prompt_tokens, every = device > PREFIXES_EVERY ? device : PREFIXES_EVERY;
	random_tokens(ids, LONG, 5);
	assert_int_equal(ask(f, 3 * every + 200, 0, 2, NULL), 0);
	random_tokens(ids + 2 * every + 100, 500, 6);
	assert_int_equal(ask(f, 2 * every + 300, 0, 2, NULL), 2 * every);
	random_tokens(ids + every - 1, 500, 7);
	assert_int_equal(ask(f, every + 100, 0, 2, NULL), 0);
}

static void an_owner_uses_its_own_states_only(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 200, 8);
	assert_int_equal(ask(f, 150, 0, 2, "a"), 0);
	assert_int_equal(ask(f, 150, 0, 2, "b"), 0);
	assert_int_equal(ask(f, 150, 0, 2, NULL), 0);
	assert_int_equal(ask(f, 150, 0, 2, "a"), 149);
	assert_int_equal(f->scheduler->prefixes.count, 3);
}

static void the_least_recently_used_states_leave_the_budget(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 200, 9);
	ask(f, 150, 0, 2, NULL);
	f->scheduler->prefixes.limit = 3 * f->scheduler->prefixes.bytes;
	for (int i = 1; i < 4; i++) {
		ids[0] = i;
		ask(f, 150, 0, 2, NULL);
		ids[0] = 1;
		assert_int_equal(ask(f, 150, 0, 2, NULL), 149); /* stays in use */
		assert_in_range(f->scheduler->prefixes.bytes, 1, f->scheduler->prefixes.limit);
	}
	assert_int_equal(f->scheduler->prefixes.count, 3);
	ids[0] = 3;
	assert_int_equal(ask(f, 150, 0, 2, NULL), 149);
	f->scheduler->prefixes.limit = 100;
	ids[0] = 9;
	ask(f, 150, 0, 2, NULL);
	assert_int_equal(f->scheduler->prefixes.count, 3); /* too large for the budget: nothing is dropped for it */
}

static void states_leave_with_their_model(void **state)
{
	fixture *f = *state;
	random_tokens(ids, 200, 10);
	ask(f, 150, 0, 2, NULL);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_OK);
	assert_int_equal(f->scheduler->prefixes.count, 0);
	assert_int_equal(f->scheduler->prefixes.bytes, 0);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &f->model, NULL), STATUS_OK);
}

/* Prompts that branch at random, several at once. */
static void random_conversations_have_the_same_tokens(void **state)
{
	fixture *f = *state;
	enum { N = 40, TOGETHER = 4 };
	uint64_t random = 11;
	int64_t cached = 0;
	static client c[TOGETHER];
	static int32_t prompts[TOGETHER][700];
	random_tokens(ids, 700, 12);
	for (int i = 0; i < N; i++) {
		generation_request r[TOGETHER];
		for (int k = 0; k < TOGETHER; k++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			const int64_t n = 2 + (int64_t)(random >> 33) % 600, from = (int64_t)(random >> 43) % n;
			memcpy(prompts[k], ids, sizeof prompts[k]);
			random_tokens(prompts[k] + from, n - from, random);
			if (k == 0) /* becomes the conversation that the next ones branch off */
				memcpy(ids, prompts[k], sizeof prompts[k]);
			r[k] = request(memset(&c[k], 0, sizeof c[k]), prompts[k], n, 1 + (int64_t)(random >> 50) % 90);
			c[k].credit = INT32_MAX;
			r[k].sampling.temperature = (float)(k % 2);
			r[k].sampling.seed = random;
			r[k].n_shared = from;
			r[k].owner = k % 2 ? "a" : "b";
			start(f, NULL, &c[k], &r[k]);
		}
		drain(f);
		for (int k = 0; k < TOGETHER; k++) {
			assert_int_equal(c[k].result.status, STATUS_OK);
			cached += c[k].result.cached_tokens;
			r[k].context = memset(&without, 0, sizeof without);
			without.credit = INT32_MAX;
			r[k].reads_all = true;
			run(f, NULL, &without, &r[k]);
			assert_int_equal(without.n_tokens, c[k].n_tokens);
			assert_memory_equal(without.tokens, c[k].tokens, (size_t)c[k].n_tokens * sizeof(int32_t));
		}
	}
	assert_true(cached > 1000);
}

static void a_model_with_pieces_keeps_whole_pieces(void **state)
{
	fixture *f = *state;
	assert_false(f->model->any_pieces);
	random_tokens(ids, 900, 13);
	assert_int_equal(ask(f, 700, 300, 3, NULL), 0);
	assert_int_equal(ask(f, 700, 300, 3, NULL), 512);
	random_tokens(ids + 400, 100, 14);
	assert_int_equal(ask(f, 700, 300, 3, NULL), 256);
}

/* Begin a prompt, and return its session before it has read a token. */
static session *begin_prompt(fixture *f, client *c, int64_t n, const char *owner)
{
	generation_request r = request(memset(c, 0, sizeof *c), ids, n, 2);
	c->credit = INT32_MAX;
	r.owner = owner;
	start(f, NULL, c, &r);
	return f->scheduler->last->session;
}

/* The blocks of another owner's tokens, or of others of the same owner, are not taken for its own. */
static void states_with_the_same_hash_share_nothing(void **state)
{
	enum { N = 700 };
	fixture *f = *state;
	static const char *const owners[] = {"a", "b", "b"};
	static client c;
	session_kept first;
	for (int i = 0; i < 3; i++) {
		random_tokens(ids, N, 20 + (uint64_t)i);
		session *x = begin_prompt(f, &c, N, owners[i]);
		if (i > 0) { /* as if its first tokens had led to the hash of the first prompt's */
			x->kept->hash = first.hash;
			x->kept->hashed = first.hashed;
		}
		while (c.n_tokens == 0) {
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
			first = i == 0 && x->kept->hashed > 0 ? *x->kept : first;
		}
		drain(f);
		assert_int_equal(f->scheduler->prefixes.count, i + 1);
	}
	ask(f, N, 0, 3, "b");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_second_prompt_begins_after_the_shared_tokens, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(a_prompt_keeps_the_state_where_it_branches_off, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(fewer_shared_tokens_are_read_again, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(a_longer_prompt_begins_where_the_shorter_one_ended, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(the_next_turn_of_a_chat_begins_after_the_answer, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(a_state_that_a_step_in_flight_changes_is_not_kept, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(states_inside_a_long_prompt_are_kept, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(an_owner_uses_its_own_states_only, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(the_least_recently_used_states_leave_the_budget, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(states_leave_with_their_model, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(random_conversations_have_the_same_tokens, setup_kept, teardown),
	    cmocka_unit_test_setup_teardown(a_model_with_pieces_keeps_whole_pieces, setup_gpt2, teardown),
	    cmocka_unit_test_setup_teardown(states_with_the_same_hash_share_nothing, setup_gpt2, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
