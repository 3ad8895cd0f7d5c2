/* Beam searches of a served model, compared with a plain search over texts that are read from the start. They run
 * beside other traffic, and with clients that do not read or that disconnect. Every call to the device and every
 * allocation fails in turn. */
#include "engine/serve/beams.h"
#include "tests/unit/serve/beam_reference.h"
#include "tests/unit/serve/fixture.h"
#include "tests/unit/support/allocations.h"

#include <math.h>

enum { PROMPT = 5, BEAMS = 4, TOKENS = 6 };

/* --- against a plain search ------------------------------------------------------- */

typedef struct reader {
	fixture *f;
	const int32_t *prompt;
	int n_prompt;
	session *base; /* for read_after_prompt */
} reader;

/* Logits after a text, from a session that reads it in one call. */
static void read_from_start(void *context, const int32_t *tokens, int n, float *out)
{
	const reader *x = context;
	int32_t ids[64];
	session *s = open_session(x->f, "plain", POSITION_ERROR, false);
	memcpy(ids, x->prompt, (size_t)x->n_prompt * sizeof *ids);
	memcpy(ids + x->n_prompt, tokens, (size_t)n * sizeof *ids);
	append(x->f, s, ids, x->n_prompt + n);
	memcpy(out, s->logits, VOCAB * sizeof *out);
	drop(x->f, s);
}

/* Logits after a prompt that `base` has read and a text. */
static void read_after_prompt(void *context, const int32_t *tokens, int n, float *out)
{
	const reader *x = context;
	session *s;
	assert_int_equal(scheduler_session_fork(x->f->scheduler, x->base, "plain", &s, NULL), STATUS_OK);
	if (n > 0)
		append(x->f, s, tokens, n);
	memcpy(out, s->logits, VOCAB * sizeof *out);
	drop(x->f, s);
}

static void assert_follows(const client *c, int64_t n_prompt, const plain_hypothesis *h)
{
	double sum = 0;
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->result.status, STATUS_OK);
	assert_int_equal(c->result.finish, h->ended ? FINISH_STOP : FINISH_LENGTH);
	assert_int_equal(c->n_tokens, h->length);
	assert_int_equal(c->result.completion_tokens, h->length);
	assert_int_equal(c->result.prompt_tokens, n_prompt);
	assert_memory_equal(c->tokens, h->tokens, (size_t)h->length * sizeof *h->tokens);
	for (int i = 0; i < c->n_tokens; i++) {
		assert_int_equal(c->logprobs[i].token, c->tokens[i]);
		sum += (double)c->logprobs[i].logprob;
	}
	assert_true(fabs(sum - h->sum) <= 1e-4 * (1 + fabs(h->sum)));
}

static void assert_is(const client *c, const plain_hypothesis *h)
{
	assert_follows(c, PROMPT, h);
}

static void compare_with_plain(fixture *f)
{
	static const beam_options options[] = {{BEAMS, 1, false}, {3, -1, true}, {BEAMS, 2, false}, {2, 0, true}};
	static plain_search p;
	static client c[BEAM_SEARCH_MAX];
	int32_t prompt[PROMPT], ends[2] = {-1, -1};
	int stopped = 0;
	random_tokens(prompt, PROMPT, 11);
	reader x = {f, prompt, PROMPT, NULL};
	for (int i = 0; i < 4; i++) {
		const beam_options *o = &options[i];
		p = (plain_search){.logits = read_from_start,
		                   .context = &x,
		                   .vocab = VOCAB,
		                   .max_tokens = TOKENS,
		                   .beams = o->beams,
		                   .length_penalty = o->length_penalty,
		                   .early_stopping = o->early_stopping,
		                   .ends = ends,
		                   .n_ends = i > 0 ? 2 : 0};
		plain_run(&p);
		generation_request r = search_request(prompt, PROMPT, TOKENS);
		r.n_stop_tokens = p.n_ends;
		memcpy(r.stop_tokens, ends, sizeof ends);
		start_search(f, o, &r, c, o->beams);
		drain(f);
		for (int k = 0; k < o->beams; k++) {
			assert_is(&c[k], &p.best[k]);
			stopped += p.best[k].ended;
		}
		ends[0] = p.best[0].tokens[2]; /* from now on texts end with likely tokens */
		ends[1] = p.best[1].tokens[1];
		assert_int_equal(f->model->users, 0);
	}
	assert_true(stopped > 2);
}

static void a_served_search_finds_the_texts_of_a_plain_search(void **state)
{
	fixture *f = *state;
	compare_with_plain(f);
	served_model *gpt2;
	char folder[64];
	make_folder(folder);
	write_gpt2(folder, f->backend, 3);
	assert_int_equal(scheduler_model(f->scheduler, "g", folder, DTYPE_PANEL_F32, &gpt2, NULL), STATUS_OK);
	f->model = gpt2;
	compare_with_plain(f);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_bias_counts_and_the_end_of_text_ends(void **state)
{
	fixture *f = *state;
	static client c[2];
	const beam_options o = {BEAMS, 0, true};
	int32_t prompt[PROMPT];
	random_tokens(prompt, PROMPT, 1);
	sampling_bias bias = {tokenizer_end(f->model->tokenizer), 50};
	generation_request r = search_request(prompt, PROMPT, TOKENS);
	r.sampling.bias = &bias;
	r.sampling.n_bias = 1;
	r.ignore_end = false;
	start_search(f, &o, &r, c, 2);
	drain(f);
	assert_int_equal(c[0].n_tokens, 1);
	assert_int_equal(c[0].tokens[0], bias.token);
	assert_int_equal(c[0].result.finish, FINISH_STOP);
	assert_true(c[0].logprob.logprob < -1); /* log-probabilities are the model's own, without the bias */
	assert_int_equal(c[1].tokens[c[1].n_tokens - 1], bias.token);
	r.ignore_end = true;
	start_search(f, &o, &r, c, 1);
	drain(f);
	assert_int_equal(c[0].n_tokens, TOKENS);
	assert_int_equal(c[0].tokens[TOKENS - 1], bias.token);
	assert_int_equal(c[0].result.finish, FINISH_LENGTH);
}

static void a_search_ends_at_the_last_position(void **state)
{
	fixture *f = *state;
	static client c[2];
	const beam_options o = {3, 1, false};
	int32_t prompt[POSITIONS];
	random_tokens(prompt, POSITIONS, 1);
	for (int left = 0; left <= 2; left += 2) {
		generation_request r = search_request(prompt, POSITIONS - left, 30);
		start_search(f, &o, &r, c, 2);
		drain(f);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(c[i].result.status, STATUS_OK);
			assert_int_equal(c[i].result.finish, FINISH_LENGTH);
			assert_int_equal(c[i].n_tokens, left);
		}
	}
	assert_int_equal(f->model->users, 0);
}

/* --- beside others ------------------------------------------------------------------ */

static void assert_same_text(const client *a, const client *b)
{
	assert_int_equal(a->result.status, STATUS_OK);
	assert_int_equal(b->result.status, STATUS_OK);
	assert_int_equal(a->n_tokens, b->n_tokens);
	assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
	assert_int_equal(a->text_bytes, b->text_bytes);
	assert_memory_equal(a->text, b->text, a->text_bytes);
}

static void assert_same_answer(const client *a, const client *b)
{
	assert_same_text(a, b);
	assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n_tokens * sizeof *a->logprobs);
	assert_memory_equal(a->top, b->top, (size_t)a->n_top * sizeof *a->top);
}

/* With steps of three rows a search never fits into one step. With log-probabilities a step waits for the last one;
 * without them only the beams wait. */
static void no_bit_depends_on_other_requests(void **state)
{
	fixture *f = *state;
	static client alone[2], beside[2], other[3], streams[2], stream;
	const beam_options o = {BEAMS, 1, false}, three = {3, 2, false};
	const scheduler_limits narrow = {.max_models = 1, .max_sessions = 4, .max_generations = 16, .max_batch = 3};
	int32_t prompt[PROMPT], longer[12];
	random_tokens(prompt, PROMPT, 5);
	random_tokens(longer, 12, 6);
	generation_request r = search_request(prompt, PROMPT, 20), l = search_request(longer, 12, 9);
	generation_request g = request(&stream, longer, 12, 25);
	start_search(f, &o, &r, alone, 2);
	drain(f);
	run(f, NULL, &stream, &g);
	for (int way = 0; way < 4; way++) {
		r.n_logprobs = l.n_logprobs = way % 2 ? -1 : 2;
		start_search(f, &o, &r, beside, 2);
		for (int i = 0; i < 2; i++) {
			g = request(&streams[i], longer, 12, 25);
			start(f, NULL, &streams[i], &g);
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
		}
		start_search(f, &three, &l, other, 3);
		drain(f);
		for (int i = 0; i < 2; i++) {
			(way % 2 ? assert_same_text : assert_same_answer)(&alone[i], &beside[i]);
			assert_int_equal(streams[i].n_tokens, 25);
			assert_memory_equal(streams[i].tokens, stream.tokens, 25 * sizeof *stream.tokens);
		}
		scheduler_free(f->scheduler);
		fixture_serve(f, way == 0 ? &roomy : &narrow);
	}
	assert_true(alone[0].n_tokens == 20 && memcmp(alone[0].tokens, alone[1].tokens, sizeof alone[0].tokens) != 0);
}

/* --- states ----------------------------------------------------------------------- */

static fault_backend *open_counted(fixture *f)
{
	fixture_folder(f);
	fault_backend *counted = fault_backend_new(f->backend);
	f->backend = &counted->base;
	return counted;
}

static void only_the_states_of_dropped_beams_become_copies(void **state)
{
	(void)state;
	fixture f;
	fault_backend *counted = open_counted(&f);
	static plain_search p;
	static client c[1];
	const beam_options o = {BEAMS, 1, false};
	int32_t prompt[PROMPT];
	fixture_serve(&f, &roomy);
	random_tokens(prompt, PROMPT, 11);
	reader x = {&f, prompt, PROMPT, NULL};
	p = (plain_search){.logits = read_from_start,
	                   .context = &x,
	                   .vocab = VOCAB,
	                   .max_tokens = 10,
	                   .beams = BEAMS,
	                   .length_penalty = 1};
	plain_run(&p);
	const size_t slot = statepool_slot_bytes(f.model->pool), before = counted->copied;
	generation_request r = search_request(prompt, PROMPT, 11); /* the eleventh token is not read */
	start_search(&f, &o, &r, c, 1);
	assert_int_equal(f.model->users, BEAMS);
	drain(&f);
	assert_true(p.moved >= BEAMS - 1 && p.moved < 10 * (BEAMS - 1));
	/* Bytes may differ by the unused end of a slot, and by the sampled tokens of parts of steps. */
	assert_int_equal((counted->copied - before + slot / 2) / slot, p.moved);
	fixture_close(&f);
}

/* A GPT-2 whose caches have 4.4 MB after the prompt: the first copies have all of it, later ones only the places that
 * differ. */
static void large_states_are_copied_in_several_turns(void **state)
{
	(void)state;
	fixture f;
	fault_backend *counted = open_counted(&f);
	static plain_search p;
	static client c[2], stream, late;
	const beam_options o = {3, 1, false};
	enum { LONG_PROMPT = 700, MANY_LAYERS = 24 };
	int32_t prompt[LONG_PROMPT];
	served_model *gpt2;
	model *m;
	char folder[64];
	make_folder(folder);
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:f}", "n_embd", HIDDEN, "vocab_size", VOCAB, "n_head",
	                           HEADS, "n_positions", 1024, "n_layer", MANY_LAYERS, "initializer_range", 0.3);
	assert_int_equal(model_create(&m, architecture_find("gpt2"), config, 3, f.backend, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
	fixture_serve(&f, &roomy);
	assert_int_equal(scheduler_model(f.scheduler, "g", folder, DTYPE_PANEL_F32, &gpt2, NULL), STATUS_OK);
	f.model = gpt2;
	random_tokens(prompt, LONG_PROMPT, 11);
	reader x = {&f, prompt, LONG_PROMPT, open_session(&f, "base", POSITION_ERROR, false)};
	append(&f, x.base, prompt, LONG_PROMPT);
	p = (plain_search){
	    .logits = read_after_prompt, .context = &x, .vocab = VOCAB, .max_tokens = 4, .beams = 3, .length_penalty = 1};
	plain_run(&p);
	drop(&f, x.base);
	generation_request r = search_request(prompt, LONG_PROMPT, 4), g = request(&stream, prompt, LONG_PROMPT, 40);
	start(&f, NULL, &stream, &g);
	start_search(&f, &o, &r, c, 2);
	int busy = 0, waited = 0;
	const generation_request l = request(&late, prompt, LONG_PROMPT, 1);
	const size_t first = counted->copied;
	while (!c[0].finished) {
		size_t before = counted->copied;
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		assert_true(counted->copied - before < BEAMS_COPY_BYTES + SESSION_STEP);
		const bool copies = counted->copied - before > SESSION_STEP;
		waited += copies && busy > 0 && late.n_tokens == 0;
		if (copies && busy++ == 0)
			start(&f, NULL, &late, &l);
	}
	assert_true(waited <= 1); /* every fourth turn is given to the oldest request */
	assert_true(busy > 2);
	assert_true(p.moved > 2); /* at least p.moved - 2 copies are partial */
	assert_true(counted->copied - first < 2 * statepool_slot_bytes(gpt2->pool) + (256 << 10));
	assert_true(stream.n_tokens >= busy - 1); /* it continued meanwhile */
	drain(&f);
	assert_follows(&c[0], LONG_PROMPT, &p.best[0]);
	assert_follows(&c[1], LONG_PROMPT, &p.best[1]);
	fixture_close(&f);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* --- clients ------------------------------------------------------------------------ */

static void the_answer_comes_at_the_end_and_uses_credit(void **state)
{
	fixture *f = *state;
	static client whole[2], c[2];
	const beam_options o = {3, 1, false};
	int32_t prompt[PROMPT];
	random_tokens(prompt, PROMPT, 7);
	generation_request r = search_request(prompt, PROMPT, 20);
	start_search(f, &o, &r, whole, 2);
	for (int i = 0; whole[0].n_tokens == 0; i++) {
		assert_true(i < 1000);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	assert_int_equal(whole[0].n_tokens, 20); /* not before the answer is complete */
	drain(f);
	r.credit = 0;
	start_search(f, &o, &r, c, 2);
	drain(f);
	assert_int_equal(c[0].n_tokens + c[1].n_tokens, 0);
	assert_int_equal(f->model->users, 2); /* the third beam has ended */
	for (int events = 1; events <= 3; events++) {
		c[0].credit++;
		generation_grant(c[0].generation, 1);
		drain(f);
		assert_int_equal(c[0].n_tokens, events < 3 ? 8 * events : 20);
	}
	assert_same_answer(&whole[0], &c[0]);
	generation_cancel(c[1].generation);
	drain(f);
	assert_int_equal(c[1].result.status, STATUS_CANCELLED);
	assert_int_equal(f->model->users, 0);
}

static void cancelling_one_client_ends_the_search(void **state)
{
	fixture *f = *state;
	static client c[2], stream, alone;
	const beam_options o = {3, 1, false};
	int32_t prompt[PROMPT];
	random_tokens(prompt, PROMPT, 7);
	generation_request g = request(&alone, prompt, PROMPT, 30), r = search_request(prompt, PROMPT, 20);
	run(f, NULL, &alone, &g);
	for (int ticks = 0; ticks < 12; ticks += 3) {
		g = request(&stream, prompt, PROMPT, 30);
		start(f, NULL, &stream, &g);
		start_search(f, &o, &r, c, 2);
		for (int i = 0; i < ticks; i++)
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
		generation_cancel(c[ticks % 2].generation);
		drain(f);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(c[i].finished, 1);
			assert_int_equal(c[i].result.status, STATUS_CANCELLED);
			assert_int_equal(c[i].n_tokens, 0);
		}
		assert_memory_equal(stream.tokens, alone.tokens, 30 * sizeof *alone.tokens);
		assert_int_equal(f->model->users, 0);
		scheduler_stats stats;
		scheduler_stats_read(f->scheduler, &stats);
		assert_int_equal(stats.running, 0);
		assert_int_equal(stats.waiting, 0);
	}
}

static void a_search_counts_as_many_generations_as_it_has_beams(void **state)
{
	fixture *f = *state;
	static client c[1], more[1];
	const beam_options o = {12, 1, false}, five = {5, 1, false}, four = {4, 1, false};
	int32_t prompt[PROMPT];
	generation *g;
	error err = ERROR_INIT;
	random_tokens(prompt, PROMPT, 7);
	generation_request r = search_request(prompt, PROMPT, 3);
	start_search(f, &o, &r, c, 1);
	r.context = more;
	assert_int_equal(scheduler_search(f->scheduler, f->model, &five, &r, 1, &g, &err), STATUS_BUSY);
	start_search(f, &four, &r, more, 1);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_CONFLICT);
	drain(f);
	assert_int_equal(c[0].result.status, STATUS_OK);
	assert_int_equal(more[0].result.status, STATUS_OK);
	assert_int_equal(scheduler_model_unload(f->scheduler, "m", NULL), STATUS_OK);
}

static void options_that_a_search_cannot_have_are_refused_by_name(void **state)
{
	fixture *f = *state;
	int32_t prompt[PROMPT];
	random_tokens(prompt, PROMPT, 7);
	for (int i = 0;; i++) {
		client c = {0};
		generation *g[4];
		error err = ERROR_INIT;
		beam_options o = {4, 1, false};
		generation_request r = search_request(prompt, PROMPT, 3);
		const char *param = NULL;
		int n = 1;
		r.context = &c;
#define CASE(number, name, change)                                                                                     \
	if (i == (number)) {                                                                                           \
		param = name;                                                                                          \
		change;                                                                                                \
	}
		CASE(0, "num_beams", o.beams = BEAM_SEARCH_MAX + 1)
		CASE(1, "num_beams", o.beams = 0)
		CASE(2, "length_penalty", o.length_penalty = NAN)
		CASE(3, "length_penalty", o.length_penalty = -11)
		CASE(4, "n", n = 5)
		CASE(5, "temperature", r.sampling.temperature = 0)
		CASE(6, "top_k", r.sampling.top_k = 5)
		CASE(7, "repetition_penalty", r.sampling.repetition_penalty = 1.5f)
		CASE(8, "stop", r.stops[r.n_stops++] = "x")
		CASE(9, "alpha", r.n_alpha = 1)
		CASE(10, "echo", r.score_prompt = true)
		CASE(11, "max_tokens", r.max_tokens = 0)
		CASE(12, "response_format", r.constraint = (constraint *)&c; r.constraint_field = "response_format")
		CASE(13, "prompt", r.n_prompt = 0)
		CASE(14, "alpha", r.explain = true)
#undef CASE
		if (!param)
			break;
		assert_int_not_equal(scheduler_search(f->scheduler, f->model, &o, &r, n, g, &err), STATUS_OK);
		assert_string_equal(err.param, param);
		assert_int_equal(f->model->users, 0);
		assert_false(scheduler_runnable(f->scheduler));
	}
}

/* --- faults -------------------------------------------------------------------------- */

typedef struct day {
	client found[2], stream;
	bool accepted;
} day;

/* Run a search beside a stream. */
static void run_day(fixture *f, day *d, bool *device)
{
	const beam_options o = {3, 1, false};
	generation_request each[2];
	generation *g[2];
	int32_t prompt[PROMPT];
	memset(d, 0, sizeof *d);
	random_tokens(prompt, PROMPT, 9);
	generation_request s = request(&d->stream, prompt, PROMPT, 6);
	status code = scheduler_generate(f->scheduler, f->model, NULL, &s, &d->stream.generation, NULL);
	assert_true(code == STATUS_OK || code == STATUS_NOMEM);
	for (int i = 0; i < 2; i++) {
		each[i] = search_request(prompt, PROMPT, 4);
		each[i].context = &d->found[i];
		d->found[i].credit = each[i].credit;
	}
	error err = ERROR_INIT;
	code = scheduler_search(f->scheduler, f->model, &o, each, 2, g, &err);
	d->accepted = code == STATUS_OK;
	assert_true(d->accepted || (code == STATUS_NOMEM && err.message[0]));
	for (int i = 0; i < 2; i++)
		d->found[i].generation = d->accepted ? g[i] : NULL;
	for (int i = 0; scheduler_runnable(f->scheduler); i++) {
		assert_true(i < 1000);
		*device |= scheduler_tick(f->scheduler) == STATUS_DEVICE;
	}
}

static void judge(const day *d, const day *golden, status fault, bool device)
{
	for (int i = 0; i < 2; i++) {
		const client *c = &d->found[i];
		assert_int_equal(c->finished, d->accepted);
		if (!d->accepted)
			continue;
		if (c->result.status == STATUS_OK) {
			assert_same_answer(c, &golden->found[i]);
		} else { /* the status is the fault's, not "cancelled" */
			assert_int_equal(c->result.status, fault);
			assert_true(c->result.error.message[0] != '\0');
			assert_true(fault != STATUS_DEVICE || device);
		}
	}
	assert_memory_equal(d->stream.tokens, golden->stream.tokens, (size_t)d->stream.n_tokens * sizeof(int32_t));
}

/* refuses: no failure loses the device. */
static void fail_each_call(bool refuses)
{
	static day golden, d;
	fixture f;
	bool device = false;
	int64_t met = 0;
	fault_backend *fault = open_counted(&f);
	fault->refuses = refuses;
	fixture_serve(&f, &roomy);
	run_day(&f, &golden, &device);
	assert_true(golden.accepted && !device);
	for (int kind = FAULT_KERNEL; kind <= FAULT_MALLOC; kind++) {
		bool struck = true;
		for (int64_t n = 0; struck; n += n < 20 ? 1 : kind == FAULT_KERNEL ? 41 : 7, met += struck) {
			device = false;
			if (kind == FAULT_ALLOCATE || kind == FAULT_MALLOC) { /* so that plans are compiled again */
				scheduler_free(f.scheduler);
				fixture_serve(&f, &roomy);
			}
			if (kind == FAULT_MALLOC)
				allocations_fail(n, true);
			else
				fault_arm(fault, (fault_kind)kind, n, false);
			run_day(&f, &d, &device);
			struck = kind == FAULT_MALLOC ? allocations_refused() : fault->struck;
			allocations_limit(-1);
			fault->left = -1;
			judge(&d, &golden, kind >= FAULT_ALLOCATE ? STATUS_NOMEM : STATUS_DEVICE, device || refuses);
			assert_false(device && refuses);
			assert_int_equal(f.model->users, 0);
			run_day(&f, &d, &device);
			judge(&d, &golden, STATUS_OK, false);
		}
	}
	assert_true(met > 80);
	fixture_close(&f);
}

static void after_any_failure_a_search_ends_once_and_frees_everything(void **state)
{
	(void)state;
	fail_each_call(false);
}

static void after_any_refused_call_a_search_ends_once_and_the_device_works(void **state)
{
	(void)state;
	fail_each_call(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_served_search_finds_the_texts_of_a_plain_search, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_bias_counts_and_the_end_of_text_ends, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_search_ends_at_the_last_position, setup, teardown),
	    cmocka_unit_test_setup_teardown(no_bit_depends_on_other_requests, setup, teardown),
	    cmocka_unit_test(only_the_states_of_dropped_beams_become_copies),
	    cmocka_unit_test(large_states_are_copied_in_several_turns),
	    cmocka_unit_test_setup_teardown(the_answer_comes_at_the_end_and_uses_credit, setup, teardown),
	    cmocka_unit_test_setup_teardown(cancelling_one_client_ends_the_search, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_search_counts_as_many_generations_as_it_has_beams, setup, teardown),
	    cmocka_unit_test_setup_teardown(options_that_a_search_cannot_have_are_refused_by_name, setup, teardown),
	    cmocka_unit_test(after_any_failure_a_search_ends_once_and_frees_everything),
	    cmocka_unit_test(after_any_refused_call_a_search_ends_once_and_the_device_works),
	};
	return RUN_ALL_WAYS(tests);
}
