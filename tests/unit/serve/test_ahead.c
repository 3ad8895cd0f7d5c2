/* Steps that are issued before the last one has ended: the same tokens are delivered and read, and the states are the
 * same. */
#include "tests/unit/support/bytes.h"
#include "tests/unit/serve/fixture.h"

enum { CLIENTS = 7, SCENES = 60, SAID = 16 };

/* One engine that waits for every step, and one that issues steps ahead. */
typedef struct pair {
	fixture waits, ahead;
} pair;

static int open_pair(void **state)
{
	pair *p = calloc(1, sizeof *p);
	fault_fetches = false;
	fixture_open(&p->waits, &roomy);
	fault_fetches = true;
	fixture_open(&p->ahead, &roomy);
	*state = p;
	return 0;
}

static int close_pair(void **state)
{
	pair *p = *state;
	fixture_close(&p->waits);
	fixture_close(&p->ahead);
	free(p);
	return 0;
}

static uint32_t chance(uint64_t scene, int i, int what, uint32_t n)
{
	return philox(scene, (uint32_t)i, (uint32_t)what, 77).word[0] % n;
}

/* Requests of all kinds; some do not allow a step to be issued ahead. */
static generation_request make_request(client *c, const int32_t *ids, uint64_t scene, int i, sampling_bias *bias)
{
	generation_request r = request(c, ids, 1 + chance(scene, i, 0, 20), 1 + chance(scene, i, 1, SAID));
	r.sampling.seed = scene * 100 + (uint64_t)i;
	r.sampling.temperature = chance(scene, i, 2, 3) ? 1 : 0;
	r.sampling.presence_penalty = chance(scene, i, 3, 9) ? 0 : 1;
	r.n_logprobs = chance(scene, i, 4, 9) ? -1 : 2;
	r.ignore_end = chance(scene, i, 5, 2);
	*bias = (sampling_bias){chance(scene, i, 6, 2) ? BYTES_END : 90, 4};
	r.sampling.bias = bias;
	r.sampling.n_bias = chance(scene, i, 7, 4) == 0;
	return r;
}

/* Tick until the end, giving parked generations a few more credits each time. */
static void drain_with_grants(fixture *f, client *clients, uint64_t scene)
{
	for (int round = 0; round < 1000; round++) {
		drain(f);
		int left = 0;
		for (int i = 0; i < CLIENTS; i++) {
			if (!clients[i].generation)
				continue;
			left++;
			clients[i].credit += 1 + chance(scene, i, 8 + round, 3);
			generation_grant(clients[i].generation, clients[i].credit - clients[i].generation->credit);
		}
		if (!left)
			return;
	}
	fail();
}

/* Half of the requests are on sessions, which then continue. */
static void play(fixture *f, uint64_t scene, const char *stop, client *clients, session **x)
{
	int32_t ids[40];
	sampling_bias bias[CLIENTS];
	char id[16];
	random_tokens(ids, 40, scene);
	for (int i = 0; i < CLIENTS; i++) {
		generation_request r = make_request(&clients[i], ids, scene, i, &bias[i]);
		snprintf(id, sizeof id, "s%d", i);
		x[i] = i % 2 ? open_session(f, id, POSITION_ERROR, i == 5 && scene % 5 == 0) : NULL;
		r.credit = chance(scene, i, 4, 2) ? 1 + chance(scene, i, 5, 5) : INT32_MAX;
		r.stops[0] = stop;
		r.n_stops = stop != NULL;
		start(f, x[i], &clients[i], &r);
		for (uint32_t tick = chance(scene, i, 6, 4); tick > 0; tick--)
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	drain_with_grants(f, clients, scene);
}

static void assert_same(const client *a, const client *b)
{
	assert_int_equal(a->finished, 1);
	assert_int_equal(b->finished, 1);
	assert_int_equal(a->result.status, b->result.status);
	assert_int_equal(a->result.finish, b->result.finish);
	assert_int_equal(a->n_tokens, b->n_tokens);
	assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
	assert_int_equal(a->text_bytes, b->text_bytes);
	assert_memory_equal(a->text, b->text, a->text_bytes);
	assert_int_equal(a->n_top, b->n_top);
	assert_memory_equal(a->top, b->top, (size_t)a->n_top * sizeof *a->top);
}

static void every_client_gets_the_same_tokens_and_sessions_hold_the_same(void **state)
{
	pair *p = *state;
	static client a[CLIENTS], b[CLIENTS], more;
	session *x[CLIENTS], *y[CLIENTS];
	char stop[2] = "";
	int stopped = 0;
	for (uint64_t scene = 0; scene < SCENES; scene++) {
		play(&p->waits, scene / 2, stop[0] ? stop : NULL, a, x);
		play(&p->ahead, scene / 2, stop[0] ? stop : NULL, b, y);
		stop[0] = '\0';
		for (int i = 0; i < CLIENTS; i++) {
			assert_same(&a[i], &b[i]);
			stopped += a[i].result.finish == FINISH_STOP;
			/* Use a part of one text as a stop sequence when the scene is repeated. */
			for (size_t at = 1; at < a[i].text_bytes && !stop[0]; at++)
				stop[0] = (unsigned char)a[i].text[at] < 128 && scene % 2 == 0 ? a[i].text[at] : '\0';
			if (!x[i])
				continue;
			assert_int_equal(x[i]->tokens, y[i]->tokens);
			assert_same_tokens(x[i], y[i]);
			assert_same_logits(x[i], y[i]);
			assert_equals_new_session(&p->ahead, y[i]);
			if (x[i]->tokens < POSITIONS - 2) {
				generation_request r = request(&more, NULL, 0, 2);
				run(&p->ahead, y[i], &more, &r);
				assert_int_equal(more.result.status, STATUS_OK);
				assert_equals_new_session(&p->ahead, y[i]);
			}
			drop(&p->waits, x[i]);
			drop(&p->ahead, y[i]);
		}
	}
	assert_true(stopped > 20); /* also by end of text */
}

/* A step is in flight when the engine ends, or when another session has tokens to read. */
static void tokens_in_flight_when_the_scheduler_ends_are_read(void **state)
{
	pair *p = *state;
	fixture *f = &p->ahead;
	client c, other;
	int32_t ids[6];
	random_tokens(ids, 6, 4);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&c, ids, 6, 20);
	start(f, x, &c, &r);
	while (c.n_tokens < 4)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_non_null(f->scheduler->ahead);
	assert_int_equal(x->tokens, 6 + 3);
	r = request(&other, ids, 1, 1); /* runs on the plan of the step in flight */
	start(f, NULL, &other, &r);
	while (!other.finished)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	generation_cancel(c.generation);
	drain(f);
	assert_int_equal(c.result.status, STATUS_CANCELLED);
	assert_int_equal(x->tokens, 6 + c.n_tokens);
	assert_equals_new_session(f, x);
	assert_null(f->scheduler->ahead);
	r = request(&c, ids, 1, 20);
	start(f, x, &c, &r);
	while (c.n_tokens < 4)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_non_null(f->scheduler->ahead);
	static int64_t tokens;
	scheduler_free(f->scheduler); /* frees the sessions too */
	tokens = c.n_tokens;
	assert_int_equal(c.result.status, STATUS_CANCELLED);
	assert_int_equal(c.result.completion_tokens, tokens);
	fixture_serve(f, &roomy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(every_client_gets_the_same_tokens_and_sessions_hold_the_same, open_pair,
	                                    close_pair),
	    cmocka_unit_test_setup_teardown(tokens_in_flight_when_the_scheduler_ends_are_read, open_pair, close_pair),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
