/* States of prompts that take more than a turn to copy: they enter and leave slots beside the steps of others, and no
 * token depends on them. */
#include "tests/unit/serve/fixture.h"

enum { PLACES = 1024, PROMPT = 900, KEPT = 768, BUDGET = 32 << 20 };

/* Bytes of the keys and values of a token: 16 layers with 64 of each and the head's one number. */
static const int64_t token_bytes = 16 * (64 + 64 + 1) * (int64_t)sizeof(float);

static int32_t ids[PLACES];
static client with, without, other;
static double byte_ns; /* time to copy a byte, in place of the measured one; 0: as measured */

static int setup_large(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	scheduler_limits limits = roomy;
	limits.prefix_bytes = BUDGET;
	fixture_folder(f);
	write_configured(f->folder, f->backend, "gpt2",
	                 "{\"n_embd\": 64, \"vocab_size\": 259, \"n_head\": 1, \"n_positions\": 1024, \"n_layer\": 16, "
	                 "\"initializer_range\": 0.1}");
	fixture_serve(f, &limits);
	random_tokens(ids, PLACES, 7);
	byte_ns = 1e-6;
	*state = f;
	return 0;
}

static int64_t block_bytes(void)
{
	held_stats s;
	held_state_read_stats(&s);
	return s.bytes;
}

static int teardown_large(void **state)
{
	assert_int_equal(teardown(state), 0);
	assert_int_equal(block_bytes(), 0);
	return 0;
}

static prefix_cache *cache_of(const fixture *f)
{
	return &f->scheduler->prefixes;
}

/* Run a turn before which one piece is copied. */
static void tick(fixture *f)
{
	f->scheduler->turn_ns = 0;
	cache_of(f)->byte_ns = byte_ns > 0 ? byte_ns : cache_of(f)->byte_ns;
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

static generation_request request_of(client *c, int64_t n, bool reads_all)
{
	generation_request r = request(c, ids, n, 6);
	r.sampling.temperature = 1;
	r.sampling.seed = (uint64_t)n;
	r.reads_all = reads_all;
	return r;
}

static void begin(fixture *f, client *c, int64_t n)
{
	const generation_request r = request_of(c, n, false);
	start(f, NULL, c, &r);
}

static bool copies(const client *c)
{
	return !c->finished && session_copies(c->generation->session);
}

/* Let `with` begin to keep its state. */
static void read_until_it_copies(fixture *f)
{
	begin(f, &with, PROMPT);
	while (!copies(&with)) {
		assert_int_equal(with.n_tokens, 0);
		tick(f);
	}
}

/* End `with`, and check its tokens against a prompt that is read as a whole. Returns the tokens that it did not read.
 */
static int64_t finish(fixture *f, int64_t n)
{
	while (!with.finished)
		tick(f);
	drain(f);
	assert_int_equal(with.result.status, STATUS_OK);
	const generation_request r = request_of(&without, n, true);
	run(f, NULL, &without, &r);
	assert_int_equal(with.n_tokens, without.n_tokens);
	assert_memory_equal(with.tokens, without.tokens, (size_t)with.n_tokens * sizeof(int32_t));
	assert_int_equal(f->model->users, 0);
	return with.result.cached_tokens;
}

static int64_t ask(fixture *f, int64_t n)
{
	begin(f, &with, n);
	return finish(f, n);
}

static void a_prompt_begins_after_a_large_state(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(cache_of(f)->count, 1);
	assert_int_equal(block_bytes(), KEPT * token_bytes);
	assert_int_equal(ask(f, PROMPT), KEPT);
	random_tokens(ids + KEPT, PROMPT - KEPT, 8);
	assert_int_equal(ask(f, PROMPT), KEPT);
	assert_int_equal(cache_of(f)->thinned, 0);
}

/* A longer state costs only its new blocks. */
static void a_longer_prompt_adds_its_new_blocks(void **state)
{
	fixture *f = *state;
	assert_int_equal(ask(f, 600), 0);
	assert_int_equal(ask(f, PROMPT), 512);
	assert_int_equal(ask(f, PROMPT), KEPT);
	assert_int_equal(cache_of(f)->count, 2);
	assert_int_equal(block_bytes(), KEPT * token_bytes);
	assert_in_range(cache_of(f)->bytes, KEPT * token_bytes, KEPT * token_bytes + (64 << 10));
}

/* Count the turns in which `with` waits for its copy. A stream gets a token in each but one at most. */
static int count_waits(fixture *f)
{
	const int before = other.n_tokens;
	int n = 0;
	for (; copies(&with); n++)
		tick(f);
	assert_in_range(other.n_tokens, before + n - 1, before + n);
	return n;
}

static void streams_continue_while_a_state_is_copied(void **state)
{
	fixture *f = *state;
	const int pieces = (int)(KEPT * token_bytes / SESSION_STEP);
	generation_request r = request(&other, ids + 1000, 3, 500);
	start(f, NULL, &other, &r);
	while (other.n_tokens == 0)
		tick(f);
	read_until_it_copies(f);
	assert_int_equal(cache_of(f)->count, 0); /* it is complete first */
	assert_true(count_waits(f) >= pieces);
	assert_int_equal(cache_of(f)->count, 1);
	while (with.n_tokens == 0)
		tick(f);
	generation_cancel(with.generation);
	while (!with.finished)
		tick(f);
	begin(f, &with, PROMPT);
	assert_true(count_waits(f) >= pieces);
	generation_cancel(other.generation);
	assert_int_equal(finish(f, PROMPT), KEPT);
}

/* The time of a copy does not contain that of the step. */
static void a_copy_begins_after_the_step_in_flight(void **state)
{
	fixture *f = *state;
	generation_request r = request(&other, ids + 1000, 3, 500);
	start(f, NULL, &other, &r);
	read_until_it_copies(f);
	tick(f);
	if (f->scheduler->ahead) {
		assert_false(f->scheduler->ahead->waited);
		assert_int_equal(scheduler_copy_states(f->scheduler), STATUS_OK);
		assert_true(f->scheduler->ahead->waited);
	}
	generation_cancel(other.generation);
	finish(f, PROMPT);
}

/* A request whose state is copied is not idle. */
static void the_background_waits_for_a_copy(void **state)
{
	fixture *f = *state;
	generation_request r = request(&other, ids + 1000, 3, 500);
	r.background = true;
	start(f, NULL, &other, &r);
	while (other.n_tokens == 0)
		tick(f);
	read_until_it_copies(f);
	const int before = other.n_tokens;
	while (copies(&with)) {
		tick(f);
		assert_int_equal(other.n_tokens, before);
	}
	generation_cancel(other.generation);
	finish(f, PROMPT);
}

/* The longer a turn takes, the more may be copied before the next one. */
static void a_long_turn_allows_larger_pieces(void **state)
{
	fixture *f = *state;
	prefix_cache *c = cache_of(f);
	c->byte_ns = 2;
	assert_int_equal(prefixes_copy_room(c, 0), SESSION_STEP);
	assert_int_equal(prefixes_copy_room(c, 160000000), 10000000);
	assert_int_equal(prefixes_copy_room(c, UINT64_MAX), (size_t)((double)UINT64_MAX / 16));
	read_until_it_copies(f);
	c->byte_ns = 1;
	f->scheduler->turn_ns = UINT32_MAX;
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_false(copies(&with));
	finish(f, PROMPT);
}

static void a_cancelled_prompt_ends_its_copy(void **state)
{
	fixture *f = *state;
	read_until_it_copies(f);
	tick(f);
	generation_cancel(with.generation);
	assert_false(generation_runnable(with.generation)); /* its state is not complete */
	drain(f);
	assert_int_equal(with.result.status, STATUS_CANCELLED);
	assert_null(cache_of(f)->leaving);
	assert_int_equal(block_bytes(), 0);
	assert_int_equal(ask(f, PROMPT), 0);
	begin(f, &with, PROMPT);
	tick(f);
	assert_true(copies(&with));
	generation_cancel(with.generation);
	drain(f);
	assert_int_equal(ask(f, PROMPT), KEPT);
}

/* The state that a prompt begins with leaves memory, and the slot still gets all of it. */
static void a_state_that_leaves_memory_still_enters(void **state)
{
	fixture *f = *state;
	ask(f, PROMPT);
	begin(f, &with, PROMPT);
	tick(f);
	assert_true(copies(&with));
	prefixes_free(cache_of(f), f->model);
	assert_int_equal(cache_of(f)->bytes, 0);
	assert_int_equal(block_bytes(), KEPT * token_bytes);
	while (copies(&with))
		tick(f);
	assert_int_equal(block_bytes(), 0);
	assert_int_equal(finish(f, PROMPT), KEPT);
}

/* A prompt that began with a large state keeps one of its own, of which no byte is in memory. */
static void a_large_state_leaves_after_another_has_entered(void **state)
{
	fixture *f = *state;
	ask(f, 600);
	begin(f, &with, PROMPT);
	tick(f);
	assert_true(copies(&with));
	prefixes_free(cache_of(f), f->model);
	assert_int_equal(finish(f, PROMPT), 512);
	assert_int_equal(ask(f, PROMPT), KEPT);
}

static void equal_prompts_at_once_keep_one_state(void **state)
{
	fixture *f = *state;
	read_until_it_copies(f);
	begin(f, &other, PROMPT);
	while (!with.finished || !other.finished)
		tick(f);
	assert_memory_equal(with.tokens, other.tokens, 6 * sizeof(int32_t));
	assert_int_equal(cache_of(f)->count, 1);
	assert_int_equal(block_bytes(), KEPT * token_bytes);
	assert_int_equal(ask(f, PROMPT), KEPT);
}

/* One state at a time leaves its slot in pieces. */
static void another_state_does_not_wait_to_be_kept(void **state)
{
	fixture *f = *state;
	const session *copy;
	read_until_it_copies(f);
	copy = cache_of(f)->leaving;
	assert_non_null(copy);
	with.generation->session->kept->copies = false; /* this one keeps its slot while others read */
	with.credit = with.generation->credit = 0;
	ids[0]++;
	begin(f, &other, PROMPT);
	while (!other.finished) {
		tick(f);
		assert_false(copies(&other));
		assert_ptr_equal(cache_of(f)->leaving, copy);
	}
	assert_int_equal(cache_of(f)->thinned, 1);
	ids[0]--;
	with.generation->session->kept->copies = true;
	with.credit = 100;
	generation_grant(with.generation, 100);
	finish(f, PROMPT);
}

static void what_costs_too_much_is_not_kept(void **state)
{
	fixture *f = *state;
	prefix_cache *c = cache_of(f);
	byte_ns = 1e9; /* copying takes longer than reading */
	f->model->prompt_ns = 1;
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(c->thinned, 2);
	byte_ns = 1e-6;
	c->limit = (PREFIXES_ROOM - 1) * token_bytes; /* KEPT tokens fit, but no more than one such state */
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(c->thinned, 3);
	assert_int_equal(c->too_large, 0);
	c->limit = PREFIXES_ROOM * token_bytes;
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(ask(f, PROMPT), KEPT);
	assert_int_equal(c->thinned, 3);
	ids[0]++;
	c->limit = KEPT * token_bytes;
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(c->too_large, 1);
	assert_int_equal(c->count, 1);
}

/* The time of a byte is measured only while states are copied. */
static void a_slow_period_does_not_refuse_states_for_good(void **state)
{
	fixture *f = *state;
	prefix_cache *c = cache_of(f);
	byte_ns = 0;
	c->byte_ns = 1e9;
	f->model->prompt_ns = 1;
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(c->thinned, 1);
	assert_true(c->byte_ns < 1e9 && c->byte_ns > 0.9e9);
	const double lower = c->byte_ns;
	c->limit = (PREFIXES_ROOM - 1) * token_bytes; /* the time is not the reason */
	assert_int_equal(ask(f, PROMPT), 0);
	assert_int_equal(c->thinned, 2);
	assert_true(c->byte_ns == lower);
}

static void a_scheduler_that_ends_frees_its_copies(void **state)
{
	fixture *f = *state;
	read_until_it_copies(f);
	ids[0]++;
	begin(f, &other, PROMPT);
}

/* A state that cannot be read is not kept; one that cannot be written ends its request. */
static void a_copy_that_fails_changes_no_token(void **state)
{
	fixture *f = *state;
	fault_backend *faults = (fault_backend *)f->backend;
	if (!fault_fetches && !fault_parts)
		skip(); /* the backend cannot fail */
	faults->refuses = true;
	read_until_it_copies(f);
	tick(f);
	fault_arm(faults, FAULT_TRANSFER, 0, false);
	tick(f);
	assert_true(faults->struck);
	assert_false(copies(&with));
	assert_int_equal(finish(f, PROMPT), 0);
	assert_int_equal(cache_of(f)->count, 0);
	assert_int_equal(ask(f, PROMPT), 0);
	begin(f, &with, PROMPT);
	tick(f);
	fault_arm(faults, FAULT_TRANSFER, 0, false);
	tick(f);
	assert_true(faults->struck);
	assert_int_equal(with.result.status, STATUS_DEVICE);
	assert_int_equal(ask(f, PROMPT), KEPT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_large, teardown_large)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_prompt_begins_after_a_large_state),      TEST(a_longer_prompt_adds_its_new_blocks),
	    TEST(streams_continue_while_a_state_is_copied), TEST(a_long_turn_allows_larger_pieces),
	    TEST(a_cancelled_prompt_ends_its_copy),         TEST(a_state_that_leaves_memory_still_enters),
	    TEST(equal_prompts_at_once_keep_one_state),     TEST(another_state_does_not_wait_to_be_kept),
	    TEST(what_costs_too_much_is_not_kept),          TEST(a_slow_period_does_not_refuse_states_for_good),
	    TEST(a_scheduler_that_ends_frees_its_copies),   TEST(a_copy_that_fails_changes_no_token),
	    TEST(a_copy_begins_after_the_step_in_flight),   TEST(the_background_waits_for_a_copy),
	    TEST(a_large_state_leaves_after_another_has_entered),
	};
	return RUN_ALL_WAYS(tests);
}
