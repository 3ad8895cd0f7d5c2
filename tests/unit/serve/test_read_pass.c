/* Inputs that are read to be explained: in chunks like prompts, or in one pass that runs in slices of nodes. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/unit/serve/fixture.h"
#include "tests/unit/support/parallel_log.h"

enum { LONG = 700, SOME = 100 };

/* Nanoseconds by which the clock runs ahead: each product takes the time of a slice. */
static _Atomic int64_t ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, clock, t);
	int64_t ns = t->tv_nsec + (clock == CLOCK_MONOTONIC ? ahead : 0);
	t->tv_sec += ns / 1000000000;
	t->tv_nsec = ns % 1000000000;
	return (int)rc;
}

static backend_kernel real_linear;
static int64_t products, most_rows; /* since they were last set to 0; most rows of a product */

static status counting_linear(backend *b, const op_call *call)
{
	int64_t rows = shape_count(call->in[0].shape) / shape_last(call->in[0].shape);
	products++;
	most_rows = rows > most_rows ? rows : most_rows;
	ahead += GENERATION_SLICE_NS;
	return real_linear(b, call);
}

static void serve(fixture *f, void (*write)(const char *folder, backend *b))
{
	make_folder(f->folder);
	assert_int_equal(cpu_reference_open(&f->backend, 1, NULL), STATUS_OK);
	real_linear = f->backend->kernel[OP_linear];
	f->backend->kernel[OP_linear] = counting_linear;
	write(f->folder, f->backend);
	fixture_serve(f, &roomy);
}

static void write_long(const char *folder, backend *b)
{
	write_model(folder, b, 1, LONG, POSITION_CLAMP);
}

static void write_encoder(const char *folder, backend *b)
{
	model *m;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "d_model", HIDDEN, "encoder_attention_heads",
	                           HEADS, "max_position_embeddings", SOME, "encoder_layers", LAYERS, "vocab_size",
	                           VOCAB, "encoder_ffn_dim", 48, "init_std", 0.3);
	assert_int_equal(model_create(&m, architecture_find("linear_encoder"), config, 1, b, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
}

static generation_request explaining(client *c, const int32_t *ids, int64_t n)
{
	generation_request r = request(c, ids, n, 0);
	c->keeps_log = true;
	r.explain = true;
	return r;
}

static void an_explained_input_is_read_in_chunks_beside_the_tokens_of_others(void **state)
{
	(void)state;
	fixture f;
	static int32_t ids[LONG];
	static client reader, speaker;
	random_tokens(ids, LONG, 1);
	serve(&f, write_long);
	generation_request speak = request(&speaker, ids, 3, 400);
	start(&f, NULL, &speaker, &speak);
	while (speaker.n_tokens == 0)
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	generation_request read = explaining(&reader, ids, LONG);
	start(&f, NULL, &reader, &read);
	int before = speaker.n_tokens, chunks = 0;
	const int most = (int)f.model->short_chunk;
	while (!reader.finished) {
		most_rows = 0;
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		assert_true(most_rows <= most + 1); /* the speaker's token is in the same step */
		chunks += most_rows > 1;
	}
	assert_int_equal(chunks, (LONG + most - 1) / most);
	assert_true(speaker.n_tokens - before >= chunks - 1);
	assert_int_equal(reader.result.status, STATUS_OK);
	session *x = open_session(&f, "x", POSITION_ERROR, true);
	append(&f, x, ids, LONG);
	assert_memory_equal(reader.result.log, x->log, (size_t)(LONG * f.model->log_floats) * sizeof(float));
	free(reader.result.log);
	drop(&f, x);
	drain(&f);
	fixture_close(&f);
}

static void a_sequence_is_read_node_by_node_and_gives_the_log_of_the_parallel_form(void **state)
{
	(void)state;
	fixture f;
	int32_t ids[SOME];
	static client c;
	explain_log l;
	int64_t slices = 0, all = 0;
	random_tokens(ids, SOME, 2);
	serve(&f, write_encoder);
	for (int64_t n = 1; n <= SOME; n += 33) {
		float *expected = parallel_log(f.model->model, ids, n, &l);
		generation_request r = explaining(&c, ids, n);
		start(&f, NULL, &c, &r);
		for (slices = all = 0; !c.finished; all += products, slices++) {
			products = 0;
			assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
			assert_true(products <= 1);
		}
		assert_int_equal(
		    all, (LAYERS - 1) * 6 +
		             2); /* q, k, v, output and the two of the feed-forward; only q and k in the last layer */
		assert_true(slices > all);
		assert_int_equal(c.result.status, STATUS_OK);
		assert_int_equal(c.result.prompt_tokens, n);
		assert_memory_equal(c.result.log, expected, (size_t)(n * l.floats) * sizeof *expected);
		free(c.result.log);
		free(expected);
	}
	fixture_close(&f);
}

static void a_cancelled_sequence_stops_between_two_slices(void **state)
{
	(void)state;
	fixture f;
	int32_t ids[SOME];
	static client c;
	random_tokens(ids, SOME, 3);
	serve(&f, write_encoder);
	for (int ticks = 0; ticks < 15; ticks += 4) {
		generation_request r = explaining(&c, ids, SOME);
		start(&f, NULL, &c, &r);
		for (int i = 0; i < ticks && !c.finished; i++)
			assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		assert_false(c.finished);
		generation_cancel(c.generation);
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		assert_int_equal(c.finished, 1);
		assert_int_equal(c.result.status, STATUS_CANCELLED);
		assert_null(c.result.log);
		assert_int_equal(f.model->users, 0);
	}
	generation_request r = explaining(&c, ids, SOME);
	start(&f, NULL, &c, &r);
	assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	fixture_close(&f); /* in the middle of a sequence */
	assert_int_equal(c.result.status, STATUS_CANCELLED);
}

static void a_model_without_a_recurrent_form_has_no_sessions_and_no_generations(void **state)
{
	(void)state;
	fixture f;
	int32_t ids[SOME + 1] = {0};
	static client c;
	session *x;
	session_options o = {.explain = true};
	error err = ERROR_INIT;
	serve(&f, write_encoder);
	assert_int_equal(scheduler_session_new(f.scheduler, f.model, "x", &o, &x, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "model");
	for (int i = 0; i < 3; i++) {
		generation_request r = explaining(&c, ids, i == 2 ? SOME + 1 : 4);
		r.max_tokens = i == 0;
		r.explain = i != 1;
		err = (error)ERROR_INIT;
		assert_int_equal(scheduler_generate(f.scheduler, f.model, NULL, &r, &c.generation, &err),
		                 i == 2 ? STATUS_INVALID : STATUS_UNSUPPORTED);
		assert_string_equal(err.param, i == 2 ? "prompt" : "model");
	}
	assert_int_equal(f.model->users, 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_explained_input_is_read_in_chunks_beside_the_tokens_of_others),
	    cmocka_unit_test(a_sequence_is_read_node_by_node_and_gives_the_log_of_the_parallel_form),
	    cmocka_unit_test(a_cancelled_sequence_stops_between_two_slices),
	    cmocka_unit_test(a_model_without_a_recurrent_form_has_no_sessions_and_no_generations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
