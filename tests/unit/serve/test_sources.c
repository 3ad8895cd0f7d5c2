/* Encoder-decoders: sources are encoded between the steps of others, and sessions keep them. */
#include "tests/unit/serve/fixture.h"

#include "engine/base/digest.h"
#include "engine/serve/read_pass.h"
#include "tests/unit/support/allocations.h"

enum { START = 1, SOURCE = 700, ENCODER_VOCAB = 240, MORE = 9, CLIENTS = 6 };

#define STACK_KEYS "\"dim\": 32, \"depth\": 2, \"heads\": 4, \"attn_dim_head\": 8"
#define DECODER_KEYS STACK_KEYS ", \"num_tokens\": 259, \"max_seq_len\": 64, \"cross_attend\": true"
static const char *const decoders[] = {
    DECODER_KEYS,
    DECODER_KEYS ", \"rotary_pos_emb\": true, \"attn_kv_heads\": 2, \"attn_num_mem_kv\": 3, \"attn_qk_norm\": true,"
                 " \"attn_value_dim_head\": 5, \"attn_gate_values\": true",
    DECODER_KEYS ", \"only_cross\": true, \"attn_shared_kv\": true",
    DECODER_KEYS
    ", \"num_memory_tokens\": 3, \"shift_tokens\": 2, \"attn_num_mem_kv\": 2, \"cross_residual_attn\": true,"
    " \"attn_talking_heads\": true, \"attn_sparse_topk\": 5",
};
enum { DECODERS = sizeof decoders / sizeof *decoders };

static void write_encoder_decoder(const fixture *f, int kind)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"stack\": \"encoder_decoder\", \"encoder\": {" STACK_KEYS
	         ", \"num_tokens\": %d, \"max_seq_len\": %d},"
	         " \"decoder\": {%s}, \"decoder_start_token_id\": %d}",
	         ENCODER_VOCAB, SOURCE, decoders[kind], START);
	write_configured(f->folder, f->backend, "transformer", text);
}

static void open_decoder(fixture *f, int kind, dtype weights, bool fast)
{
	memset(f, 0, sizeof *f);
	fixture_folder_on(f, fast ? cpu_open : cpu_reference_open, fast ? 2 : 1);
	write_encoder_decoder(f, kind);
	fixture_serve_as(f, &roomy, weights);
}

static int setup_decoder(void **state)
{
	fixture *f = malloc(sizeof *f);
	open_decoder(f, 0, DTYPE_PANEL_F32, false);
	*state = f;
	return 0;
}

static const int32_t start_token = START;

/* Source i; each has another length. */
static int64_t source_of(int i, int32_t ids[SOURCE])
{
	static const int64_t lengths[CLIENTS] = {1, 40, 15, 16, 17, 300};
	random_tokens(ids, SOURCE, 50 + (uint64_t)i);
	for (int k = 0; k < SOURCE; k++)
		ids[k] %= ENCODER_VOCAB;
	return lengths[i];
}

/* Request tokens after the start token, with source i. */
static generation_request request_from(client *c, int i, int32_t source[SOURCE], int64_t more)
{
	generation_request r = request(c, &start_token, 1, more);
	r.source = source;
	r.n_source = source_of(i, source);
	r.n_logprobs = 0;
	return r;
}

static session *open_with_source(fixture *f, const char *id, int i)
{
	int32_t source[SOURCE];
	client c;
	session *x = open_session(f, id, POSITION_ERROR, false);
	generation_request r = request_from(&c, i, source, 0);
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	return x;
}

static void go_on(fixture *f, session *x, client *c, int64_t more)
{
	generation_request r = request(c, NULL, 0, more);
	run(f, x, c, &r);
	assert_int_equal(c->result.status, STATUS_OK);
}

static void assert_same_answer(const client *a, const client *b)
{
	assert_int_equal(a->result.status, STATUS_OK);
	assert_int_equal(b->result.status, STATUS_OK);
	assert_int_equal(a->n_tokens, b->n_tokens);
	assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
	for (int i = 0; i < a->n_tokens; i++)
		assert_memory_equal(&a->logprobs[i].logprob, &b->logprobs[i].logprob, sizeof(float));
}

/* Most likely token after `ids`, computed from source and tokens in one call. */
static int32_t likeliest(const fixture *f, int i, const int32_t *ids, int64_t n)
{
	int32_t source[SOURCE], best = 0;
	float logits[VOCAB];
	const forward_spec spec = {.batch = 1, .length = n, .source = source_of(i, source), .out.logits = LOGITS_LAST};
	plan *p;
	assert_int_equal(model_plan(&p, f->model->model, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE, source), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(f->model->model), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, model_dimensions(f->model->model), NULL, NULL), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits), STATUS_OK);
	plan_free(p);
	for (int32_t v = 0; v < VOCAB; v++)
		best = logits[v] > logits[best] ? v : best;
	return best;
}

static void generated_tokens_equal_those_of_one_parallel_call(void **state)
{
	(void)state;
	for (int kind = 0; kind < DECODERS; kind++) {
		fixture f;
		open_decoder(&f, kind, DTYPE_PANEL_F32, true);
		for (int i = 0; i < CLIENTS; i++) {
			int32_t source[SOURCE], ids[1 + MORE] = {START};
			client c;
			generation_request r = request_from(&c, i, source, MORE);
			run(&f, NULL, &c, &r);
			assert_int_equal(c.result.prompt_tokens, 1 + r.n_source);
			for (int k = 0; k < MORE; k++)
				assert_int_equal(ids[k + 1] = c.tokens[k], likeliest(&f, i, ids, k + 1));
		}
		fixture_close(&f);
	}
}

static void sources_of_different_lengths_together_have_the_bits_of_each_alone(void **state)
{
	static const dtype weights[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	(void)state;
	for (int w = 0; w < 3; w++)
		for (int parts = 0; parts < 2; parts++) {
			fixture f;
			static client together[CLIENTS], alone;
			static int32_t source[SOURCE];
			open_decoder(&f, w + 1, weights[w], true);
			f.model->way_is_fixed = parts;
			f.model->way = THREADS_PARTS;
			for (int i = 0; i < CLIENTS; i++) {
				generation_request r = request_from(&together[i], i, source, MORE);
				start(&f, NULL, &together[i], &r);
			}
			drain(&f);
			for (int i = 0; i < CLIENTS; i++) {
				generation_request r = request_from(&alone, i, source, MORE);
				run(&f, NULL, &alone, &r);
				assert_same_answer(&together[i], &alone);
			}
			fixture_close(&f);
		}
}

static void a_session_keeps_its_source_in_copies_of_every_kind(void **state)
{
	fixture *f = *state;
	static client all, first, rest;
	int32_t source[SOURCE];
	generation_request r = request_from(&all, 1, source, 2 * MORE);
	run(f, NULL, &all, &r);
	session *x = open_with_source(f, "x", 1), *copies[3] = {x};
	session_info info;
	scheduler_session_info(x, &info);
	assert_int_equal(info.source, r.n_source);
	assert_int_equal(info.tokens, 1);
	go_on(f, x, &first, MORE);
	assert_memory_equal(first.tokens, all.tokens, MORE * sizeof *all.tokens);
	void *blob, *again;
	size_t bytes, bytes_again;
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_fork(f->scheduler, x, "fork", &copies[1], NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f->scheduler, f->model, "import", blob, bytes, &copies[2], NULL),
	                 STATUS_OK);
	assert_int_equal(scheduler_session_export(f->scheduler, copies[2], &again, &bytes_again, NULL), STATUS_OK);
	assert_int_equal(bytes_again, bytes);
	assert_memory_equal(again, blob, bytes);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(copies[i]->n_source, r.n_source);
		assert_memory_equal(copies[i]->source, source, (size_t)r.n_source * sizeof *source);
		go_on(f, copies[i], &rest, MORE);
		assert_memory_equal(rest.tokens, all.tokens + MORE, MORE * sizeof *all.tokens);
		drop(f, copies[i]);
	}
	free(again);
	free(blob);
}

static void roll_back(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_rollback_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static void snapshot(fixture *f, session *x, const char *id)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		assert_int_equal(scheduler_session_snapshot_step(f->scheduler, x, id, &moved, &done, NULL), STATUS_OK);
}

static void a_rollback_restores_the_source_that_the_snapshot_has(void **state)
{
	fixture *f = *state;
	static client c, expected[2];
	static int32_t source[SOURCE];
	session *x = open_session(f, "x", POSITION_ERROR, false);
	snapshot(f, x, "empty");
	for (int i = 0; i < 2; i++) {
		char name[16];
		generation_request r = request_from(&expected[i], 1 + 2 * i, source, MORE);
		run(f, NULL, &expected[i], &r);
		r = request_from(&c, 1 + 2 * i, source, 0);
		run(f, x, &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
		snprintf(name, sizeof name, "%d", i);
		snapshot(f, x, name);
		go_on(f, x, &c, 3);
		roll_back(f, x, "empty");
		assert_int_equal(x->n_source, 0);
	}
	for (int i = 0; i < 2; i++) {
		roll_back(f, x, i ? "1" : "0");
		const int64_t n = source_of(1 + 2 * i, source);
		assert_int_equal(x->n_source, n);
		assert_memory_equal(x->source, source, (size_t)n * sizeof *source);
		go_on(f, x, &c, MORE);
		assert_memory_equal(c.tokens, expected[i].tokens, MORE * sizeof *c.tokens);
	}
	drop(f, x);
}

/* Exact copies, so that a sanitizer detects a read past the end. */
static status import_resealed(fixture *f, const unsigned char *blob, size_t bytes)
{
	unsigned char *copy = malloc(bytes);
	session *x;
	memcpy(copy, blob, bytes);
	uint64_t sum = digest_bytes(copy, bytes - sizeof sum);
	memcpy(copy + bytes - sizeof sum, &sum, sizeof sum);
	status s = scheduler_session_import(f->scheduler, f->model, "forged", copy, bytes, &x, NULL);
	free(copy);
	if (s == STATUS_OK)
		drop(f, x);
	return s;
}

static void a_forged_source_is_refused(void **state)
{
	fixture *f = *state;
	enum { VERSION_AT = 8, SOURCE_AT = 56 };
	session *x = open_with_source(f, "x", 2);
	void *out;
	size_t bytes;
	assert_int_equal(scheduler_session_export(f->scheduler, x, &out, &bytes, NULL), STATUS_OK);
	unsigned char *blob = out;
	const uint64_t right = (uint64_t)x->n_source,
	               wrong[] = {0, right - 1, right + 1, SOURCE, SOURCE + 1, INT32_MAX, UINT64_MAX / 4, UINT64_MAX};
	assert_memory_equal(blob + SOURCE_AT, &right, sizeof right);
	assert_int_equal(import_resealed(f, blob, bytes), STATUS_OK);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		memcpy(blob + SOURCE_AT, &wrong[i], sizeof right);
		assert_int_equal(import_resealed(f, blob, bytes), STATUS_CORRUPT);
	}
	memcpy(blob + SOURCE_AT, &right, sizeof right);
	blob[VERSION_AT] = 1; /* a session without a source */
	assert_int_equal(import_resealed(f, blob, bytes), STATUS_CORRUPT);
	blob[VERSION_AT] = 2;
	const int32_t unknown[] = {-1, ENCODER_VOCAB};
	for (int i = 0; i < 2; i++) {
		unsigned char *last = blob + bytes - sizeof(uint64_t) - sizeof(int32_t), kept[sizeof(int32_t)];
		memcpy(kept, last, sizeof kept);
		memcpy(last, &unknown[i], sizeof kept);
		assert_int_equal(import_resealed(f, blob, bytes), STATUS_CORRUPT);
		memcpy(last, kept, sizeof kept);
	}
	for (size_t n = 0; n < bytes; n += n < 80 ? 1 : 997)
		if (n >= sizeof(uint64_t))
			assert_int_equal(import_resealed(f, blob, n), STATUS_CORRUPT);
	free(out);
	drop(f, x);
}

static void assert_refused(fixture *f, session *x, const generation_request *r, status expected, const char *param)
{
	error err = ERROR_INIT;
	generation *g;
	assert_int_equal(scheduler_generate(f->scheduler, f->model, x, r, &g, &err), expected);
	assert_string_equal(err.param, param);
	assert_true(err.message[0] != '\0');
	assert_null(g);
}

static void a_missing_unfit_or_extra_source_is_refused_by_name(void **state)
{
	fixture *f = *state, plain;
	client c;
	int32_t source[SOURCE + 1] = {0};
	generation_request r = request_from(&c, 0, source, 1);
	r.n_source = 0;
	assert_refused(f, NULL, &r, STATUS_INVALID, "source");
	r.n_source = SOURCE + 1;
	assert_refused(f, NULL, &r, STATUS_INVALID, "source");
	r.n_source = SOURCE;
	source[SOURCE - 1] = ENCODER_VOCAB;
	assert_refused(f, NULL, &r, STATUS_INVALID, "source");
	source[SOURCE - 1] = -1;
	assert_refused(f, NULL, &r, STATUS_INVALID, "source");
	session *x = open_with_source(f, "x", 0);
	r.n_source = 1;
	assert_refused(f, x, &r, STATUS_INVALID, "source");
	drop(f, x);
	score_task *s;
	float out[VOCAB];
	score_sequence q = {.ids = source, .count = 1};
	score_task_request score = {.sequences = &q, .n_sequences = 1, .embedding = POOL_LAST, .width = 32, .out = out};
	error err = ERROR_INIT;
	assert_int_equal(scheduler_score(f->scheduler, f->model, &score, &s, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "model");
	memset(&plain, 0, sizeof plain);
	fixture_open(&plain, &roomy);
	assert_refused(&plain, NULL, &r, STATUS_INVALID, "source");
	fixture_close(&plain);
}

/* On the reference kernels the longest source takes some hundred slices of nodes. */
static void a_stream_continues_while_a_source_is_encoded_and_a_cancelled_source_can_be_sent_again(void **state)
{
	fixture *f = *state;
	static client stream, long_one, again, alone;
	int32_t source[SOURCE], other[SOURCE];
	generation_request r = request_from(&stream, 1, source, 50);
	start(f, NULL, &stream, &r);
	while (stream.n_tokens == 0)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	r = request_from(&long_one, 5, other, MORE);
	r.n_source = SOURCE;
	start(f, x, &long_one, &r);
	const int before = stream.n_tokens;
	for (int i = 0; i < 8; i++)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_true(generation_must_encode(long_one.generation));
	assert_true(stream.n_tokens >= before + 3);
	generation_cancel(long_one.generation);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_int_equal(long_one.result.status, STATUS_CANCELLED);
	assert_int_equal(x->n_source, 0);
	r = request_from(&again, 2, other, MORE);
	run(f, x, &again, &r);
	r = request_from(&alone, 2, other, MORE);
	run(f, NULL, &alone, &r);
	assert_same_answer(&again, &alone);
	drop(f, x);
}

/* --- faults ------------------------------------------------------------------------------------------- */

/* A session with a source, copied and moved, beside a request with its own source; every result is right or an
 * error. */
static void run_scenario(fixture *f, const client *golden)
{
	int32_t source[SOURCE];
	client c[2];
	session *x = NULL, *y = NULL, *z = NULL;
	const session_options o = {.policy = POSITION_ERROR};
	void *blob = NULL;
	size_t bytes;
	bool accepted[2] = {false, false};
	if (scheduler_session_new(f->scheduler, f->model, "x", &o, &x, NULL) != STATUS_OK)
		x = NULL;
	for (int i = x ? 0 : 1; i < 2; i++) {
		generation_request r = request_from(&c[i], 4, source, MORE);
		accepted[i] =
		    scheduler_generate(f->scheduler, f->model, i ? NULL : x, &r, &c[i].generation, NULL) == STATUS_OK;
	}
	for (int i = 0; scheduler_runnable(f->scheduler); i++) {
		assert_true(i < 1000);
		scheduler_tick(f->scheduler);
	}
	for (int i = 0; i < 2; i++) {
		if (!accepted[i])
			continue;
		assert_int_equal(c[i].finished, 1);
		assert_true(c[i].result.status == STATUS_OK ? c[i].n_tokens == MORE : c[i].n_tokens <= MORE);
		assert_memory_equal(c[i].tokens, golden->tokens, (size_t)c[i].n_tokens * sizeof *c[i].tokens);
	}
	if (x && scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL) == STATUS_OK)
		scheduler_session_import(f->scheduler, f->model, "y", blob, bytes, &y, NULL);
	if (x)
		scheduler_session_fork(f->scheduler, x, "z", &z, NULL);
	free(blob);
	assert_true(!y || (y->n_source == x->n_source && y->tokens == x->tokens));
	assert_true(!z || (z->n_source == x->n_source && z->tokens == x->tokens));
}

static void any_call_to_the_device_and_any_allocation_may_fail(void **state)
{
	static const fault_kind kinds[] = {FAULT_KERNEL, FAULT_TRANSFER, FAULT_ALLOCATE, FAULT_MALLOC};
	(void)state;
	fixture f = {0};
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	write_encoder_decoder(&f, 1);
	for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
		bool struck = true;
		for (int64_t n = 0; struck; n += n < 40 ? 1 : 29) {
			int32_t source[SOURCE];
			client golden, after;
			fixture_serve(&f, &roomy);
			generation_request r = request_from(&golden, 4, source, MORE);
			run(&f, NULL, &golden, &r);
			if (n % 2 == 0) { /* so that plans are compiled again */
				scheduler_free(f.scheduler);
				fixture_serve(&f, &roomy);
			}
			if (kinds[kind] == FAULT_MALLOC) {
				const int64_t before = allocations_count();
				allocations_limit(n);
				run_scenario(&f, &golden);
				allocations_limit(-1);
				struck = allocations_count() - before > n;
			} else {
				fault_arm(fault, kinds[kind], n, false);
				run_scenario(&f, &golden);
				struck = fault->struck;
				fault->left = -1;
			}
			r = request_from(&after, 4, source, MORE);
			run(&f, NULL, &after, &r);
			assert_same_answer(&golden, &after);
			scheduler_free(f.scheduler);
			assert_int_equal(fault->memory, 0);
		}
	}
	f.scheduler = NULL;
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest in_all_ways[] = {
	    cmocka_unit_test_setup_teardown(a_rollback_restores_the_source_that_the_snapshot_has, setup_decoder,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_session_keeps_its_source_in_copies_of_every_kind, setup_decoder,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(
	        a_stream_continues_while_a_source_is_encoded_and_a_cancelled_source_can_be_sent_again, setup_decoder,
	        teardown),
	};
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(generated_tokens_equal_those_of_one_parallel_call),
	    cmocka_unit_test(sources_of_different_lengths_together_have_the_bits_of_each_alone),
	    cmocka_unit_test_setup_teardown(a_forged_source_is_refused, setup_decoder, teardown),
	    cmocka_unit_test_setup_teardown(a_missing_unfit_or_extra_source_is_refused_by_name, setup_decoder,
	                                    teardown),
	    cmocka_unit_test(any_call_to_the_device_and_any_allocation_may_fail),
	};
	return cmocka_run_group_tests_name("sources", tests, NULL, NULL) + RUN_ALL_WAYS(in_all_ways);
}
