/* Many generations at once: their order, and that none affects another. */
#include "tests/unit/serve/fixture.h"

static void tick(fixture *f)
{
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

/* --- together as alone ------------------------------------------------------------ */

static void every_generation_gets_the_same_tokens_together_and_alone(void **state)
{
	fixture *f = *state;
	enum { N = 13 };
	client alone[N], together[N];
	int32_t ids[N][40];
	generation_request r[N];
	for (int i = 0; i < N; i++) {
		random_tokens(ids[i], 40, (uint64_t)i);
		r[i] = request(&alone[i], ids[i], 1 + 3 * i, 48 - (1 + 3 * i) < 12 + i ? 48 - (1 + 3 * i) : 12 + i);
		r[i].sampling.temperature = (float)(i % 3);
		r[i].sampling.seed = (uint64_t)i;
		r[i].n_alpha = i % 4 == 0 ? 3 : 0;
		run(f, NULL, &alone[i], &r[i]);
	}
	for (int i = 0; i < N; i++) { /* they arrive while others are served */
		r[i].context = memset(&together[i], 0, sizeof together[i]);
		start(f, NULL, &together[i], &r[i]);
		tick(f);
		tick(f);
	}
	drain(f);
	for (int i = 0; i < N; i++) {
		assert_int_equal(together[i].finished, 1);
		assert_int_equal(together[i].n_tokens, alone[i].n_tokens);
		assert_memory_equal(together[i].tokens, alone[i].tokens, (size_t)alone[i].n_tokens * sizeof(int32_t));
		assert_int_equal(together[i].n_alpha, alone[i].n_alpha);
	}
	assert_int_equal(f->model->users, 0);
}

static void padding_a_batch_changes_no_idle_session(void **state)
{
	fixture *f = *state;
	session *idle[4], *busy[3];
	void *before[4], *after;
	size_t bytes[4], n;
	client c[3];
	int32_t ids[9];
	char id[16];
	random_tokens(ids, 9, 1);
	for (int i = 0; i < 4; i++) {
		snprintf(id, sizeof id, "i%d", i);
		idle[i] = open_session(f, id, POSITION_ERROR, false);
		append(f, idle[i], ids, 1 + 2 * i);
		if (i < 3) {
			snprintf(id, sizeof id, "b%d", i);
			busy[i] = open_session(f, id, POSITION_ERROR, false);
		}
		assert_int_equal(scheduler_session_export(f->scheduler, idle[i], &before[i], &bytes[i], NULL),
		                 STATUS_OK);
	}
	for (int i = 0; i < 3; i++) {
		generation_request r = request(&c[i], ids, 9, 20);
		start(f, busy[i], &c[i], &r);
	}
	drain(f);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(scheduler_session_export(f->scheduler, idle[i], &after, &n, NULL), STATUS_OK);
		assert_int_equal(n, bytes[i]);
		assert_memory_equal(after, before[i], n);
		free(after);
		free(before[i]);
		drop(f, idle[i]);
	}
	for (int i = 0; i < 3; i++)
		drop(f, busy[i]);
}

static void a_decode_step_serves_all_generations_up_to_the_batch_limit_in_turn(void **state)
{
	fixture *f = *state;
	enum { N = 11 }; /* max_batch is 8 */
	client c[N];
	int32_t ids[2];
	scheduler_stats before, after;
	random_tokens(ids, 2, 2);
	for (int i = 0; i < N; i++) {
		generation_request r = request(&c[i], ids, 2, 40);
		start(f, NULL, &c[i], &r);
	}
	while (c[N - 1].n_tokens == 0)
		tick(f);
	for (int i = 0; i < 24; i++) {
		scheduler_stats_read(f->scheduler, &before);
		tick(f);
		scheduler_stats_read(f->scheduler, &after);
		assert_int_equal(after.batched_sequences - before.batched_sequences, 8);
		assert_int_equal(after.running, N);
	}
	int least = c[0].n_tokens, most = least;
	for (int i = 0; i < N; i++) {
		least = c[i].n_tokens < least ? c[i].n_tokens : least;
		most = c[i].n_tokens > most ? c[i].n_tokens : most;
	}
	assert_true(most - least <= N); /* the first one also got turns during the others' prefills */
	drain(f);
	for (int i = 0; i < N; i++)
		assert_int_equal(c[i].n_tokens, 40);
}

static void a_long_prompt_delays_a_decoder_by_at_most_one_chunk(void **state)
{
	fixture *f = *state;
	static int32_t ids[4000];
	client decoder, reader;
	int64_t chunk = f->model->short_chunk;
	random_tokens(ids, 4000, 3);
	session *x = open_session(f, "x", POSITION_CLAMP, false), *y = open_session(f, "y", POSITION_CLAMP, false);
	generation_request r = request(&decoder, ids, 2, 100);
	start(f, x, &decoder, &r);
	while (decoder.n_tokens < 3)
		tick(f);
	r = request(&reader, ids, 4000, 1);
	start(f, y, &reader, &r);
	tick(f);
	tick(f); /* a step of streams may have been in flight */
	while (reader.n_tokens == 0 && !decoder.finished) {
		int n = decoder.n_tokens;
		int64_t read = y->tokens;
		tick(f);
		assert_int_equal(decoder.n_tokens, n + 1);
		assert_true(y->tokens - read <= chunk);
	}
	assert_int_equal(reader.n_tokens, 1); /* one token for each chunk, in the same step */
	drain(f);
	session *alone = open_session(f, "alone", POSITION_CLAMP, false); /* in full chunks */
	append(f, alone, ids, 4000);
	r = request(&reader, NULL, 0, 1);
	run(f, alone, &reader, &r);
	assert_same_logits(alone, y);
	drop(f, alone);
	drop(f, x);
	drop(f, y);
}

/* Tick until x has read another piece of its prompt; returns the number of its tokens. */
static int64_t next_piece(fixture *f, const session *x)
{
	const int64_t before = x->tokens;
	for (int i = 0; i < 4 && x->tokens == before; i++)
		tick(f);
	return x->tokens - before;
}

static void a_long_prompt_is_read_in_short_pieces_for_a_while_after_a_short_one(void **state)
{
	enum { LONG = SCHEDULER_PREFILL_SHORT * SCHEDULER_SHORT_STEPS + 6 * SCHEDULER_PREFILL_LONG };
	fixture *f = *state;
	static int32_t ids[LONG];
	client reader, other;
	random_tokens(ids, LONG, 3);
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generation_request r = request(&reader, ids, LONG, 1);
	start(f, x, &reader, &r);
	for (int more = 1; more >= 0; more--) { /* the first one is not short */
		assert_int_equal(next_piece(f, x), SCHEDULER_PREFILL_CHUNK);
		session *y = open_session(f, "y", POSITION_CLAMP, false);
		r = request(&other, ids, f->model->short_chunk + more, 1);
		start(f, y, &other, &r);
		while (!other.finished)
			tick(f);
		drop(f, y);
	}
	int pieces = 0;
	while (next_piece(f, x) == f->model->short_chunk)
		pieces++;
	assert_true(pieces >= SCHEDULER_SHORT_STEPS - 2 && pieces < SCHEDULER_SHORT_STEPS);
	assert_int_equal(next_piece(f, x), SCHEDULER_PREFILL_CHUNK);
	drain(f);
	session *alone = open_session(f, "alone", POSITION_CLAMP, false);
	append(f, alone, ids, LONG);
	r = request(&reader, NULL, 0, 1);
	run(f, alone, &reader, &r);
	assert_same_logits(alone, x);
	drop(f, alone);
	drop(f, x);
}

/* A device that should read DEVICE tokens in a step: one prompt fills it, as long as its memory suffices. */
static void a_device_reads_prompts_in_steps_of_its_own_size(void **state)
{
	enum { DEVICE = 4 * SCHEDULER_PREFILL_CHUNK, LONG = 2 * DEVICE + 10, SAID = 5 };
	static int32_t ids[LONG];
	fixture *f = *state, wide = {0};
	client expected, c;
	random_tokens(ids, LONG, 19);
	session *x = open_session(f, "x", POSITION_WRAP, false);
	generation_request r = request(&expected, ids, LONG, SAID);
	run(f, x, &expected, &r);
	fixture_folder(&wide);
	fault_backend *device = fault_backend_new(wide.backend);
	device->base.prompt_tokens = DEVICE;
	wide.backend = &device->base;
	fixture_serve(&wide, &roomy);
	for (int short_of_memory = 0; short_of_memory < 2; short_of_memory++) {
		x = open_session(&wide, "x", POSITION_WRAP, false);
		r = request(&c, ids, LONG, SAID);
		start(&wide, x, &c, &r);
		if (short_of_memory) {
			served_model_free_plans(wide.model);
			fault_arm(device, FAULT_ALLOCATE, 0, false); /* the first plan, not one of half its size */
		}
		for (const int64_t most = short_of_memory ? DEVICE / 2 : DEVICE; x->tokens == 0;) {
			tick(&wide);
			assert_true(x->tokens == 0 || x->tokens == most);
		}
		drain(&wide);
		assert_int_equal(c.n_tokens, SAID);
		assert_memory_equal(c.tokens, expected.tokens, SAID * sizeof *c.tokens);
		drop(&wide, x);
	}
	fixture_close(&wide);
}

/* Prompts of many sessions share a device's step, so that the last is ready soon. */
static void a_device_reads_many_prompts_in_one_step(void **state)
{
	(void)state;
	enum { N = 6, LENGTH = 300, DEVICE = 8 * SCHEDULER_PREFILL_CHUNK };
	static int32_t ids[LENGTH];
	fixture wide = {0};
	client c[N];
	fixture_folder(&wide);
	fault_backend *device = fault_backend_new(wide.backend);
	device->base.prompt_tokens = DEVICE;
	wide.backend = &device->base;
	write_gpt2(wide.folder, wide.backend, 1); /* its prompts are read by SCHEDULER_PREFILL_CHUNK */
	fixture_serve(&wide, &roomy);
	for (int i = 0; i < N; i++) {
		char id[16];
		snprintf(id, sizeof id, "s%d", i);
		random_tokens(ids, LENGTH, 20);
		generation_request r = request(&c[i], ids, LENGTH, 1);
		start(&wide, open_session(&wide, id, POSITION_WRAP, false), &c[i], &r);
	}
	tick(&wide);
	tick(&wide);
	for (int i = 0; i < N; i++)
		assert_int_equal(c[i].n_tokens, 1);
	drain(&wide);
	fixture_close(&wide);
}

static void prompts_of_one_length_are_read_in_the_order_of_arrival(void **state)
{
	fixture *f = *state;
	enum { LENGTH = 700 };
	static int32_t ids[LENGTH];
	client c[3];
	session *x[3];
	char id[16];
	random_tokens(ids, LENGTH, 4);
	for (int i = 0; i < 3; i++) {
		snprintf(id, sizeof id, "x%d", i);
		x[i] = open_session(f, id, POSITION_WRAP, false);
		generation_request r = request(&c[i], ids, LENGTH, 1);
		start(f, x[i], &c[i], &r);
	}
	scheduler_stats stats;
	scheduler_stats_read(f->scheduler, &stats);
	assert_int_equal(stats.waiting, 3);
	assert_int_equal(stats.sessions, 3);
	while (!c[2].finished) {
		tick(f);
		assert_true(x[1]->tokens == 0 || x[0]->tokens >= LENGTH || fault_parts); /* two prompts at a time */
		assert_true(x[2]->tokens == 0 || x[fault_parts ? 0 : 1]->tokens >= LENGTH);
	}
	drain(f);
	for (int i = 0; i < 3; i++)
		drop(f, x[i]);
}

/* There is always a short prompt, which fills a step or half of it. */
static void a_long_prompt_is_read_although_short_ones_keep_coming(void **state)
{
	fixture *f = *state;
	enum { CHUNKS = 10, SHORT = SCHEDULER_PREFILL_CHUNK };
	static int32_t ids[CHUNKS * SCHEDULER_PREFILL_CHUNK];
	client reader, c;
	random_tokens(ids, CHUNKS * SCHEDULER_PREFILL_CHUNK, 16);
	session *x = open_session(f, "x", POSITION_WRAP, false);
	generation_request r = request(&reader, ids, CHUNKS * SCHEDULER_PREFILL_CHUNK, 1);
	start(f, x, &reader, &r);
	int ticks = 0, shorts = 0;
	for (c.finished = 1; reader.n_tokens == 0; ticks++) {
		if (c.finished) {
			session *y = scheduler_session_find(f->scheduler, "y");
			if (y)
				drop(f, y);
			y = open_session(f, "y", POSITION_WRAP, false);
			r = request(&c, ids, SHORT, 0);
			start(f, y, &c, &r);
			shorts++;
		}
		tick(f);
	}
	assert_in_range(ticks, fault_parts ? CHUNKS : 2 * CHUNKS, 4 * CHUNKS);
	assert_true(shorts >= (fault_parts ? CHUNKS : 2 * CHUNKS));
	drain(f);
	drop(f, scheduler_session_find(f->scheduler, "y"));
	drop(f, x);
}

/* A prompt of 16 chunks is first; five short ones arrive when half of it is read. */
static void short_prompts_beside_a_long_one_are_read_within_a_few_ticks(void **state)
{
	fixture *f = *state;
	enum { LONG = 16 * SCHEDULER_PREFILL_CHUNK, SHORTS = 5, SHORT = 30 };
	static int32_t ids[LONG];
	client reader, c[SHORTS], alone;
	random_tokens(ids, LONG, 14);
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generation_request r = request(&alone, ids, SHORT, 3);
	run(f, NULL, &alone, &r);
	r = request(&reader, ids, LONG, 1);
	start(f, x, &reader, &r);
	while (x->tokens < LONG / 2)
		tick(f);
	for (int i = 0; i < SHORTS; i++) {
		r = request(&c[i], ids, SHORT, 3);
		start(f, NULL, &c[i], &r);
	}
	tick(f);
	tick(f); /* the first tick may have read the long prompt */
	for (int i = 0; i < SHORTS; i++)
		assert_true(c[i].n_tokens > 0); /* one step reads all of them */
	assert_true(x->tokens <= LONG / 2 + SCHEDULER_PREFILL_CHUNK);
	drain(f);
	for (int i = 0; i < SHORTS; i++)
		assert_memory_equal(c[i].tokens, alone.tokens, 3 * sizeof(int32_t));
	assert_int_equal(x->tokens, LONG + 1);
	drop(f, x);
}

/* 100 + 1 + 150 tokens, then 7 + 40 + 40 + 30, which did not fit. They pass the prompt of 256, which does not fit
 * beside 7. */
static void prompts_that_come_together_share_steps(void **state)
{
	fixture *f = *state;
	enum { N = 8 };
	static const int64_t lengths[N] = {100, 1, 150, 7, 256, 40, 40, 30};
	static const int step[N] = {0, 0, 0, 1, 2, 1, 1, 1}; /* tick of the first token */
	static int32_t ids[256];
	static client c[N];
	int seen[N];
	session *x[N];
	char id[16];
	random_tokens(ids, 256, 15);
	for (int i = 0; i < N; i++) {
		snprintf(id, sizeof id, "x%d", i);
		x[i] = open_session(f, id, POSITION_WRAP, false);
		generation_request r = request(&c[i], ids, lengths[i], 1);
		start(f, x[i], &c[i], &r);
		seen[i] = -1;
	}
	for (int t = 0; scheduler_runnable(f->scheduler); t++) {
		tick(f);
		for (int i = 0; i < N; i++)
			if (seen[i] < 0 && c[i].n_tokens > 0)
				seen[i] = t;
	}
	for (int i = 0; i < N; i++) {
		assert_int_equal(seen[i], step[i]);
		assert_int_equal(c[i].finished, 1);
		assert_equals_new_session(f, x[i]);
		drop(f, x[i]);
	}
}

static void two_models_take_turns(void **state)
{
	fixture *f = *state;
	served_model *other;
	client a, b;
	int32_t ids[2];
	random_tokens(ids, 2, 5);
	assert_int_equal(scheduler_model(f->scheduler, "other", f->folder, DTYPE_PANEL_F32, &other, NULL), STATUS_OK);
	generation_request r = request(&a, ids, 2, 30);
	start(f, NULL, &a, &r);
	r = request(&b, ids, 2, 30);
	assert_int_equal(scheduler_generate(f->scheduler, other, NULL, &r, &b.generation, NULL), STATUS_OK);
	while (!a.finished && !b.finished) {
		tick(f);
		assert_in_range(a.n_tokens - b.n_tokens + 2, 0, 4);
	}
	drain(f);
	assert_memory_equal(a.tokens, b.tokens, 30 * sizeof(int32_t));
}

/* --- credit ---------------------------------------------------------------------------- */

static void a_generation_without_credit_parks_and_others_continue(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	client parked, other, reference;
	random_tokens(ids, 5, 6);
	generation_request r = request(&reference, ids, 5, 20);
	run(f, NULL, &reference, &r);
	r.context = memset(&parked, 0, sizeof parked);
	r.credit = 3;
	start(f, NULL, &parked, &r);
	r = request(&other, ids, 5, 20);
	start(f, NULL, &other, &r);
	drain(f);
	assert_int_equal(other.finished, 1);
	assert_int_equal(parked.finished, 0);
	assert_int_equal(parked.n_tokens, 3);
	assert_false(scheduler_runnable(f->scheduler));
	tick(f); /* an extra tick is harmless */
	assert_int_equal(parked.n_tokens, 3);
	parked.credit = 1;
	generation_grant(parked.generation, 1);
	assert_true(scheduler_runnable(f->scheduler));
	drain(f);
	assert_int_equal(parked.n_tokens, 4);
	parked.credit = 100;
	generation_grant(parked.generation, 100);
	drain(f);
	assert_int_equal(parked.finished, 1);
	assert_int_equal(parked.n_tokens, 20);
	assert_memory_equal(parked.tokens, reference.tokens, 20 * sizeof(int32_t));
}

static void a_generation_that_starts_without_credit_waits_for_it(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	client c;
	random_tokens(ids, 5, 7);
	generation_request r = request(&c, ids, 5, 4);
	r.credit = 0;
	start(f, NULL, &c, &r);
	assert_false(scheduler_runnable(f->scheduler));
	c.credit = 4;
	generation_grant(c.generation, 4);
	generation_grant(c.generation, INT64_MAX); /* more than the counter holds */
	drain(f);
	assert_int_equal(c.finished, 1);
	assert_int_equal(c.n_tokens, 4);
}

static void the_last_credit_is_enough_to_finish(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	client c;
	random_tokens(ids, 5, 8);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&c, ids, 5, 4);
	r.credit = 4;
	run(f, x, &c, &r);
	assert_int_equal(x->tokens, 9); /* the last token was read although the credit was used up */
	drop(f, x);
}

/* --- cancelling -------------------------------------------------------------------------- */

static void cancelling_at_any_tick_ends_once_and_keeps_the_delivered_tokens(void **state)
{
	fixture *f = *state;
	enum { PROMPT = 600, TOKENS = 8 };
	static int32_t ids[PROMPT];
	random_tokens(ids, PROMPT, 9);
	for (int lasting = 0; lasting < 2; lasting++)
		for (int when = 0;; when++) {
			client c;
			session *x = open_session(f, "x", POSITION_CLAMP, false);
			generation_request r = request(&c, ids, lasting ? PROMPT : 40, TOKENS);
			start(f, lasting ? x : NULL, &c, &r);
			int ticks = 0;
			for (; ticks < when && !c.finished; ticks++)
				tick(f);
			bool late = c.finished;
			int delivered = c.n_tokens;
			if (!late)
				generation_cancel(c.generation);
			drain(f);
			assert_int_equal(c.finished, 1);
			assert_int_equal(c.n_tokens, delivered); /* none after the cancellation */
			assert_true(delivered == TOKENS || c.result.status == STATUS_CANCELLED);
			assert_int_equal(c.result.completion_tokens, delivered);
			assert_false(x->busy);
			if (lasting && delivered > 0)
				assert_int_equal(x->tokens, PROMPT + delivered);
			else
				assert_int_equal(x->tokens, !lasting   ? 0
				                            : when < 3 ? when * SCHEDULER_PREFILL_CHUNK
				                                       : PROMPT);
			assert_int_equal(f->model->users, 1);
			if (x->tokens > 0)
				assert_equals_new_session(f, x);
			drop(f, x);
			if (late)
				break;
		}
}

/* The i-th of some sessions that continue without a prompt: greedy, sampled, or with penalties. */
static generation_request continuing(client *c, int i)
{
	generation_request r = request(c, NULL, 0, 40);
	r.sampling.temperature = (float)(i % 3);
	r.sampling.seed = (uint64_t)i;
	r.sampling.frequency_penalty = i % 4 == 1 ? 0.5f : 0;
	return r;
}

/* Starting one per step would make the others wait. */
static void sessions_that_continue_without_a_prompt_start_together(void **state)
{
	enum { N = 8, TURNS = 6 };
	fixture *f = *state;
	client c[N], alone[N];
	session *x[N];
	int started = 0;
	for (int i = 0; i < N; i++) {
		char id[24];
		int32_t ids[3];
		random_tokens(ids, 3, (uint64_t)i);
		snprintf(id, sizeof id, "alone %d", i);
		x[i] = open_session(f, id, POSITION_CLAMP, false);
		append(f, x[i], ids, 3);
		generation_request r = continuing(&alone[i], i);
		run(f, x[i], &alone[i], &r);
		drop(f, x[i]);
		snprintf(id, sizeof id, "%d", i);
		x[i] = open_session(f, id, POSITION_CLAMP, false);
		append(f, x[i], ids, 3);
	}
	for (int i = 0; i < N; i++) {
		generation_request r = continuing(&c[i], i);
		start(f, x[i], &c[i], &r);
	}
	for (int turn = 0; turn < TURNS; turn++)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	for (int i = 0; i < N; i++)
		started += c[i].n_tokens > 0;
	assert_int_equal(started, N);
	drain(f);
	for (int i = 0; i < N; i++)
		assert_memory_equal(c[i].tokens, alone[i].tokens, 40 * sizeof *c[i].tokens);
}

static void a_cancelled_session_continues_from_the_tokens_it_has_read(void **state)
{
	fixture *f = *state;
	int32_t ids[10];
	client c, all, rest;
	random_tokens(ids, 10, 10);
	session *x = open_session(f, "x", POSITION_ERROR, false), *y = open_session(f, "y", POSITION_ERROR, false);
	generation_request r = request(&all, ids, 10, 20);
	run(f, x, &all, &r);
	r = request(&c, ids, 10, 20);
	c.cancel_after = 7;
	run(f, y, &c, &r);
	assert_int_equal(c.result.status, STATUS_CANCELLED);
	r = request(&rest, NULL, 0, 13);
	run(f, y, &rest, &r);
	assert_memory_equal(c.tokens, all.tokens, 7 * sizeof(int32_t));
	assert_memory_equal(rest.tokens, all.tokens + 7, 13 * sizeof(int32_t));
	drop(f, x);
	drop(f, y);
}

static void a_parked_generation_can_be_cancelled(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	random_tokens(ids, 5, 11);
	for (int credit = 0; credit < 3; credit++) {
		client c;
		generation_request r = request(&c, ids, 5, 10);
		r.credit = credit;
		start(f, NULL, &c, &r);
		drain(f);
		assert_int_equal(c.finished, 0);
		generation_cancel(c.generation);
		generation_cancel(c.generation); /* a second cancellation has no effect */
		assert_true(scheduler_runnable(f->scheduler));
		drain(f);
		assert_int_equal(c.finished, 1);
		assert_int_equal(c.result.status, STATUS_CANCELLED);
		assert_int_equal(c.n_tokens, credit);
	}
	assert_int_equal(f->model->users, 0);
}

static void cancelling_in_the_last_event_is_too_late(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	client c;
	random_tokens(ids, 5, 12);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&c, ids, 5, 6);
	c.cancel_after = 6;
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_LENGTH);
	assert_int_equal(x->tokens, 11);
	drop(f, x);
}

/* --- callbacks that do things ---------------------------------------------------------------- */

typedef struct rivals {
	client victim, canceller;
	int delivered; /* tokens of the victim when it was cancelled */
} rivals;

static void cancel_the_other(client *c)
{
	rivals *r = c->context;
	if (c->n_tokens == 4) {
		generation_cancel(r->victim.generation);
		r->delivered = r->victim.n_tokens;
	}
}

static void a_callback_may_cancel_another_of_the_same_batch(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	rivals both;
	random_tokens(ids, 5, 13);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&both.canceller, ids, 5, 20);
	start(f, NULL, &both.canceller, &r);
	r = request(&both.victim, ids, 5, 20);
	start(f, x, &both.victim, &r);
	both.canceller.context = &both;
	both.canceller.on_event = cancel_the_other;
	while (both.canceller.n_tokens < 3)
		tick(f);
	assert_ptr_equal(f->scheduler->first, both.canceller.generation); /* the canceller is first in the batch */
	drain(f);
	assert_int_equal(both.victim.finished, 1);
	assert_int_equal(both.victim.result.status, STATUS_CANCELLED);
	assert_int_equal(both.victim.n_tokens,
	                 both.delivered + fault_fetches); /* none after the token that is being read */
	assert_int_equal(x->tokens, 5 + both.victim.n_tokens);
	assert_int_equal(both.canceller.result.status, STATUS_OK);
	assert_int_equal(both.canceller.n_tokens, 20);
	assert_equals_new_session(f, x);
	drop(f, x);
}

typedef struct chain {
	fixture *f;
	client next;
	int left;
} chain;

static void begin_again(client *c)
{
	static const int32_t token = 50;
	chain *k = c->context;
	if (k->left-- == 0)
		return;
	int finished = c->finished;
	generation_request r = request(c, &token, 1, 3);
	c->finished = finished - 1;
	c->context = k;
	c->on_finished = begin_again;
	c->credit = r.credit;
	assert_int_equal(scheduler_generate(k->f->scheduler, k->f->model, NULL, &r, &c->generation, NULL), STATUS_OK);
}

static void finished_may_start_the_next_generation(void **state)
{
	fixture *f = *state;
	static const int32_t token = 50;
	chain k = {.f = f, .left = 5};
	generation_request r = request(&k.next, &token, 1, 3);
	k.next.context = &k;
	k.next.on_finished = begin_again;
	run(f, NULL, &k.next, &r);
	assert_int_equal(k.left, -1);
	assert_int_equal(f->model->users, 0);
}

static void delete_session_and_model(client *c)
{
	fixture *f = c->context;
	assert_int_equal(scheduler_session_delete(f->scheduler, scheduler_session_find(f->scheduler, "x"), NULL),
	                 STATUS_OK);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_OK);
	assert_false(scheduler_model_loaded(f->scheduler, "m"));
}

static void finished_may_delete_the_session_and_unload_the_model(void **state)
{
	fixture *f = *state;
	static const int32_t token = 50;
	client c;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&c, &token, 1, 3);
	c.context = f;
	c.on_finished = delete_session_and_model;
	run(f, x, &c, &r);
	assert_int_equal(scheduler_model(f->scheduler, "m", f->folder, DTYPE_PANEL_F32, &f->model, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(every_generation_gets_the_same_tokens_together_and_alone, setup, teardown),
	    cmocka_unit_test_setup_teardown(padding_a_batch_changes_no_idle_session, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_decode_step_serves_all_generations_up_to_the_batch_limit_in_turn, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_long_prompt_delays_a_decoder_by_at_most_one_chunk, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_long_prompt_is_read_in_short_pieces_for_a_while_after_a_short_one, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_device_reads_prompts_in_steps_of_its_own_size, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_device_reads_many_prompts_in_one_step, setup, teardown),
	    cmocka_unit_test_setup_teardown(prompts_of_one_length_are_read_in_the_order_of_arrival, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_long_prompt_is_read_although_short_ones_keep_coming, setup, teardown),
	    cmocka_unit_test_setup_teardown(short_prompts_beside_a_long_one_are_read_within_a_few_ticks, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(prompts_that_come_together_share_steps, setup, teardown),
	    cmocka_unit_test_setup_teardown(two_models_take_turns, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_generation_without_credit_parks_and_others_continue, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_generation_that_starts_without_credit_waits_for_it, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_last_credit_is_enough_to_finish, setup, teardown),
	    cmocka_unit_test_setup_teardown(cancelling_at_any_tick_ends_once_and_keeps_the_delivered_tokens, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(sessions_that_continue_without_a_prompt_start_together, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_cancelled_session_continues_from_the_tokens_it_has_read, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_parked_generation_can_be_cancelled, setup, teardown),
	    cmocka_unit_test_setup_teardown(cancelling_in_the_last_event_is_too_late, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_callback_may_cancel_another_of_the_same_batch, setup, teardown),
	    cmocka_unit_test_setup_teardown(finished_may_start_the_next_generation, setup, teardown),
	    cmocka_unit_test_setup_teardown(finished_may_delete_the_session_and_unload_the_model, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
