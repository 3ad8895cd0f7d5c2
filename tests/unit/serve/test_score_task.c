/* Sequences that are read in one pass: classes and embeddings. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/kinds.h"

#include <math.h>

#include "tests/unit/support/parallel_log.h"

enum { CLASSES = 3, MOST_WIDTH = HIDDEN, LONGEST = 300 };

/* The caller of a scoring. */
typedef struct caller {
	score_task *scoring;
	score_task_request request;
	score_sequence sequences[64];
	float out[64 * MOST_WIDTH];
	int finished, order;
	status status;
	char param[sizeof((error *)NULL)->param];
} caller;

static int finished_so_far;

static void finished(void *context, status s, const error *err)
{
	caller *c = context;
	c->finished++;
	c->status = s;
	c->order = ++finished_so_far;
	strcpy(c->param, err->param);
}

static void make_request(const fixture *f, caller *c, pooling embedding, int n, const score_sequence *sequences)
{
	const model_dims *d = model_dimensions(served_model_model(f->model));
	*c = (caller){.finished = 0};
	memcpy(c->sequences, sequences, (size_t)n * sizeof *sequences);
	for (size_t i = 0; i < sizeof c->out / sizeof *c->out; i++)
		c->out[i] = NAN;
	c->request = (score_task_request){.sequences = c->sequences,
	                                  .n_sequences = n,
	                                  .embedding = embedding,
	                                  .width = embedding == POOL_NONE ? d->outputs : d->hidden,
	                                  .out = c->out,
	                                  .finished = finished,
	                                  .context = c};
}

static void begin_scoring(const fixture *f, caller *c, pooling embedding, int n, const score_sequence *sequences)
{
	make_request(f, c, embedding, n, sequences);
	assert_int_equal(scheduler_score(f->scheduler, f->model, &c->request, &c->scoring, NULL), STATUS_OK);
}

static void score(fixture *f, caller *c, pooling embedding, int n, const score_sequence *sequences)
{
	begin_scoring(f, c, embedding, n, sequences);
	drain(f);
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->status, STATUS_OK);
}

/* Result of a plan with exactly this length and no mask. */
static void plain_values(const fixture *f, const score_sequence *q, pooling embedding, float *out)
{
	plan *p;
	const model *m = served_model_model(f->model);
	const forward_spec spec = {.batch = 1,
	                           .length = q->count,
	                           .out.logits = embedding == POOL_NONE ? LOGITS_LAST : LOGITS_NONE,
	                           .out.embedding = embedding};
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, q->ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, model_dimensions(m), q->ids, NULL), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(
	    plan_read(p, port_find(plan_graph(p), embedding == POOL_NONE ? PORT_LOGITS : PORT_EMBEDDING), out),
	    STATUS_OK);
	plan_free(p);
}

enum { LENGTHS = 5 };
static int32_t ids[LENGTHS][LONGEST];
static const int64_t lengths[LENGTHS] = {1, 16, 17, 48, LONGEST};

static void make_sequences(score_sequence out[LENGTHS])
{
	for (int i = 0; i < LENGTHS; i++) {
		random_tokens(ids[i], lengths[i], (uint64_t)i + 20);
		ids[i][lengths[i] > 20 ? lengths[i] - 3 : lengths[i] - 1] = 2; /* row that BART reads */
		out[i] = (score_sequence){.ids = ids[i], .count = lengths[i]};
	}
}

/* Every way to read, for every length, on new plans and on used ones. */
static void compare_with_plain_plans(fixture *f)
{
	static const pooling ways[] = {POOL_NONE, POOL_LAST, POOL_MEAN};
	score_sequence all[LENGTHS];
	caller *c = malloc(sizeof *c);
	/* The recurrent form adds in another order, and int8 products round their inputs. */
	const model *m = served_model_model(f->model);
	float tolerance = !model_dimensions(m)->form->stepwise        ? 1e-6f
	                  : model_weight_dtype(m) == DTYPE_PANEL_INT8 ? 1e-3f
	                                                              : 2e-5f;
	make_sequences(all);
	for (int w = 0; w < 3; w++) {
		if (ways[w] == POOL_NONE && model_dimensions(served_model_model(f->model))->form->head != HEAD_CLASSES)
			continue;
		for (int repeat = 0; repeat < (f->backend->record_begin ? 1 : 2); repeat++) {
			score(f, c, ways[w], LENGTHS, all);
			for (int i = 0; i < LENGTHS; i++) {
				float plain[MOST_WIDTH];
				plain_values(f, &all[i], ways[w], plain);
				for (int64_t k = 0; k < c->request.width; k++)
					if (!(fabsf(c->out[i * c->request.width + k] - plain[k]) <=
					      tolerance * fmaxf(1, fabsf(plain[k]))))
						fail_msg("%s, way %d, %lld tokens: %g for %g",
						         model_architecture(m)->name, w, (long long)lengths[i],
						         (double)c->out[i * c->request.width + k], (double)plain[k]);
			}
		}
	}
	free(c);
}

static void values_are_those_of_a_plan_of_the_exact_length(void **state)
{
	(void)state;
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	for (int kind = 0; kind <= BART; kind++)
		for (int t = 0; t < 3; t++) {
			fixture f;
			open_named(&f, kind, types[t], true);
			compare_with_plain_plans(&f);
			fixture_close(&f);
		}
}

static status never_records(backend *b)
{
	(void)b;
	return STATUS_UNSUPPORTED;
}

static void with_plans_of_fixed_shape_rows_after_a_sequence_are_masked(void **state)
{
	(void)state;
	for (int kind = 0; kind <= BART; kind++) {
		fixture f;
		open_named(&f, kind, DTYPE_PANEL_F32, false);
		f.backend->record_begin = never_records;
		compare_with_plain_plans(&f);
		f.backend->record_begin = NULL;
		fixture_close(&f);
	}
}

/* Scores of classes, and of vectors in pieces, on new plans and on plans used by passes without a log. */
static void an_explained_sequence_has_the_usual_values_and_the_log_of_the_parallel_form(void **state)
{
	(void)state;
	for (int kind = 0; kind <= BART; kind++) {
		fixture f;
		score_sequence all[LENGTHS];
		caller *plain = malloc(sizeof *plain), *c = malloc(sizeof *c);
		pooling way = kind >= ENCODER ? POOL_NONE : POOL_MEAN;
		open_named(&f, kind, DTYPE_PANEL_F32, false);
		make_sequences(all);
		score(&f, plain, way, LENGTHS, all);
		for (int i = 0; i < LENGTHS; i += 2)
			all[i].log = malloc((size_t)(all[i].count * f.model->log_floats) * sizeof *all[i].log);
		score(&f, c, way, LENGTHS, all);
		assert_memory_equal(c->out, plain->out, LENGTHS * (size_t)c->request.width * sizeof *c->out);
		for (int i = 0; i < LENGTHS; i += 2) {
			explain_log l;
			float *expected = parallel_log(f.model->model, all[i].ids, all[i].count, &l);
			for (int64_t k = 0; k < all[i].count * l.floats; k++)
				assert_true(fabsf(all[i].log[k] - expected[k]) <= 1e-4f * fmaxf(1, fabsf(expected[k])));
			free(expected);
			free(all[i].log);
		}
		free(plain);
		free(c);
		fixture_close(&f);
	}
}

static void long_and_short_scorings_take_turns_without_affecting_each_other(void **state)
{
	(void)state;
	fixture f;
	score_sequence all[64], *one;
	caller *alone = malloc(sizeof *alone), *first = malloc(sizeof *first), *second = malloc(sizeof *second);
	client before, meanwhile;
	int32_t prompt[20];
	open_named(&f, 0, DTYPE_PANEL_F32, false);
	random_tokens(prompt, 20, 9);
	make_sequences(all);
	for (int i = LENGTHS; i < 64; i++)
		all[i] = all[i % LENGTHS];
	one = &all[2];
	generation_request r = request(&before, prompt, 20, 12);
	run(&f, NULL, &before, &r);
	score(&f, alone, POOL_MEAN, 64, all);
	r = request(&meanwhile, prompt, 20, 12);
	begin_scoring(&f, first, POOL_MEAN, 64, all);
	start(&f, NULL, &meanwhile, &r);
	begin_scoring(&f, second, POOL_MEAN, 1, one);
	drain(&f);
	assert_true(second->order < first->order);
	assert_memory_equal(first->out, alone->out, sizeof alone->out);
	assert_memory_equal(second->out, alone->out + 2 * HIDDEN, HIDDEN * sizeof(float));
	assert_int_equal(meanwhile.n_tokens, 12);
	assert_memory_equal(meanwhile.tokens, before.tokens, 12 * sizeof *before.tokens);
	free(alone);
	free(first);
	free(second);
	fixture_close(&f);
}

static void a_model_stays_loaded_while_it_scores_and_cancelled_scorings_end(void **state)
{
	(void)state;
	fixture f;
	score_sequence all[LENGTHS];
	caller *c = malloc(sizeof *c);
	open_named(&f, ENCODER, DTYPE_PANEL_F32, false);
	make_sequences(all);
	begin_scoring(&f, c, POOL_NONE, LENGTHS, all);
	assert_int_equal(scheduler_model_unload(f.scheduler, "m", NULL), STATUS_CONFLICT);
	assert_true(scheduler_runnable(f.scheduler));
	score_task_cancel(c->scoring);
	drain(&f);
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->status, STATUS_CANCELLED);
	begin_scoring(&f, c, POOL_NONE, LENGTHS, all);
	scheduler_free(f.scheduler);
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->status, STATUS_CANCELLED);
	fixture_serve(&f, &roomy);
	score(&f, c, POOL_NONE, LENGTHS, all);
	assert_int_equal(scheduler_model_unload(f.scheduler, "m", NULL), STATUS_OK);
	free(c);
	fixture_close(&f);
}

/* --- rows of a sequence ------------------------------------------------------------------ */

enum { FILLER_WIDTH = VOCAB, FILLER_ROWS = 6 };

/* A model that is not causal, with a vocabulary head. */
static void open_filler(fixture *f)
{
	const architecture *a = architecture_find("transformer");
	model_size size = {.hidden = HIDDEN,
	                   .heads = 4,
	                   .layers = 2,
	                   .inputs = FILLER_WIDTH,
	                   .positions = LONGEST,
	                   .length = LONGEST,
	                   .padding = -1,
	                   .dropout = 0};
	json_t *config = json_pack("{s:s}", "stack", "encoder");
	model *m;
	fixture_folder(f);
	assert_true(a->complete(config, &size));
	assert_int_equal(model_create(&m, a, config, 1, f->backend, NULL), STATUS_OK);
	stir(m, 5);
	assert_int_equal(model_save(m, f->folder, NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
	fixture_serve_as(f, &roomy, DTYPE_PANEL_F32);
}

/* The logits of each token, from a plan of exactly this length. */
static void plain_logits(const fixture *f, const score_sequence *q, float *out)
{
	plan *p;
	const model *m = served_model_model(f->model);
	const forward_spec spec = {.batch = 1, .length = q->count, .out.logits = LOGITS_ALL};
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, q->ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOGITS), out), STATUS_OK);
	plan_free(p);
}

static void a_sequence_gives_the_logits_of_each_requested_token(void **state)
{
	(void)state;
	static const int32_t rows[] = {16, 0, 5, 2, 299, 7};
	static float out[FILLER_ROWS * FILLER_WIDTH], plain[LONGEST * FILLER_WIDTH];
	fixture f;
	score_task *x;
	caller *c = calloc(1, sizeof *c);
	open_filler(&f);
	/* 3 rows, 1 and 2: the second plan for 16 tokens has another number of rows than the first. */
	score_sequence all[] = {{.ids = ids[0], .count = 17, .rows = rows, .n_rows = 3},
	                        {.ids = ids[1], .count = 17, .rows = rows + 3, .n_rows = 1},
	                        {.ids = ids[2], .count = LONGEST, .rows = rows + 4, .n_rows = 2}};
	for (int i = 0; i < 3; i++)
		for (int64_t k = 0; k < all[i].count; k++)
			ids[i][k] = (int32_t)(philox(8, 0, (uint32_t)i, (uint64_t)k).word[0] % FILLER_WIDTH);
	const score_task_request r = {
	    .sequences = all, .n_sequences = 3, .width = FILLER_WIDTH, .out = out, .finished = finished, .context = c};
	for (int repeat = 0; repeat < 2; repeat++) { /* on new plans, then on used ones */
		for (size_t i = 0; i < sizeof out / sizeof *out; i++)
			out[i] = NAN;
		assert_int_equal(scheduler_score(f.scheduler, f.model, &r, &x, NULL), STATUS_OK);
		drain(&f);
		assert_int_equal(c->finished, repeat + 1);
		assert_int_equal(c->status, STATUS_OK);
		int64_t row = 0;
		for (int i = 0; i < 3; i++) {
			plain_logits(&f, &all[i], plain);
			for (int64_t n = 0; n < all[i].n_rows; n++, row++)
				for (int64_t k = 0; k < FILLER_WIDTH; k++) {
					float want = plain[all[i].rows[n] * FILLER_WIDTH + k];
					assert_true(fabsf(out[row * FILLER_WIDTH + k] - want) <=
					            1e-4f * fmaxf(1, fabsf(want)));
				}
		}
	}
	static const int32_t behind[] = {17};
	error err = ERROR_INIT;
	all[1].rows = behind;
	assert_int_equal(scheduler_score(f.scheduler, f.model, &r, &x, &err), STATUS_INVALID);
	assert_string_equal(err.param, "input");
	fixture_close(&f);
	open_named(&f, 0, DTYPE_PANEL_F32, true);
	all[1].rows = rows;
	assert_int_equal(scheduler_score(f.scheduler, f.model, &r, &x, &err), STATUS_INVALID); /* the model is causal */
	fixture_close(&f);
	free(c);
}

/* Log-probability of each next token, by the parallel form. */
static void plain_scores(const fixture *f, const int32_t *tokens, int64_t n, double *out)
{
	plan *p;
	const model *m = served_model_model(f->model);
	const forward_spec spec = {.batch = 1, .length = n, .out.logits = LOGITS_ALL};
	float *logits = malloc((size_t)(n * VOCAB) * sizeof *logits);
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, tokens), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits), STATUS_OK);
	for (int64_t i = 0; i + 1 < n; i++) {
		double sum = 0;
		for (int v = 0; v < VOCAB; v++)
			sum += exp((double)logits[i * VOCAB + v]);
		out[i] = (double)logits[i * VOCAB + tokens[i + 1]] - log(sum);
	}
	free(logits);
	plan_free(p);
}

typedef struct scored {
	int32_t ids[LONGEST], next[LONGEST];
	token_logprob scores[LONGEST], best[LONGEST];
} scored;

/* Tokens from … to - 1; every next token is scored, except each seventh. */
static score_sequence scored_sequence(scored *x, int64_t from, int64_t to, void *state)
{
	for (int64_t i = from; i < to; i++) {
		x->next[i] = i % 7 == 0 || i + 1 == LONGEST ? -1 : x->ids[i + 1];
		x->scores[i] = x->best[i] = (token_logprob){.token = -2, .logprob = NAN};
	}
	return (score_sequence){.ids = x->ids + from,
	                        .count = to - from,
	                        .next = x->next + from,
	                        .scores = x->scores + from,
	                        .best = x->best + from,
	                        .carried = state,
	                        .before = from};
}

static void assert_scores(const scored *x, const double *plain, const char *name)
{
	for (int64_t i = 0; i < LONGEST; i++) {
		const token_logprob score = x->scores[i], best = x->best[i];
		if (x->next[i] < 0) {
			assert_true(score.token == -2 && best.token == -2);
			continue;
		}
		assert_int_equal(score.token, x->ids[i + 1]);
		assert_true(best.logprob >= score.logprob &&
		            (best.token == score.token) == (best.logprob == score.logprob));
		if (!(fabs((double)score.logprob - plain[i]) <= 5e-5))
			fail_msg("%s, token %lld: %g for %g", name, (long long)i, (double)score.logprob, plain[i]);
	}
}

static void score_next(fixture *f, caller *c, const score_sequence *q)
{
	*c = (caller){.finished = 0};
	c->request =
	    (score_task_request){.sequences = q, .n_sequences = 1, .width = VOCAB, .finished = finished, .context = c};
	assert_int_equal(scheduler_score(f->scheduler, f->model, &c->request, &c->scoring, NULL), STATUS_OK);
	drain(f);
	assert_true(c->finished == 1 && c->status == STATUS_OK);
}

static void a_carried_state_gives_the_scores_of_one_pass_whatever_is_read_between(void **state)
{
	(void)state;
	static const int64_t cuts[] = {0, 1, 40, 41, 256, LONGEST};
	for (int kind = 0; kind < ENCODER; kind++) {
		fixture f;
		scored *x = malloc(sizeof *x);
		double plain[LONGEST];
		caller *c = malloc(sizeof *c);
		open_named(&f, kind, DTYPE_PANEL_F32, false);
		random_tokens(x->ids, LONGEST, 77);
		plain_scores(&f, x->ids, LONGEST, plain);
		score_sequence whole = scored_sequence(x, 0, LONGEST, NULL), other = {.ids = x->ids, .count = 50};
		score_next(&f, c, &whole);
		assert_scores(x, plain, models[kind].name);
		void *carried = malloc(statepool_slot_bytes(f.model->pool));
		for (size_t k = 0; k + 1 < sizeof cuts / sizeof *cuts; k++) {
			const score_sequence part = scored_sequence(x, cuts[k], cuts[k + 1], carried);
			score_next(&f, c, &part);
			other.ids = x->ids + 1; /* uses the slot meanwhile */
			score(&f, c, POOL_LAST, 1, &other);
		}
		assert_scores(x, plain, models[kind].name);
		free(carried);
		free(c);
		free(x);
		fixture_close(&f);
	}
}

static void owners_that_are_gone_leave_the_shares(void **state)
{
	(void)state;
	fixture f;
	int32_t tokens[] = {3, 4, 5};
	const score_sequence q = {.ids = tokens, .count = 3};
	caller *c = malloc(sizeof *c);
	open_named(&f, 0, DTYPE_PANEL_F32, false);
	for (int i = 0; i < 2; i++) {
		make_request(&f, c, POOL_LAST, 1, &q);
		c->request.owner = i ? "b" : "a";
		assert_int_equal(scheduler_score(f.scheduler, f.model, &c->request, &c->scoring, NULL), STATUS_OK);
		share *owner = c->scoring->share;
		drain(&f);
		assert_int_equal(f.scheduler->score_shares.table.count, 1);
		owner->left_ns -= 2 * (uint64_t)SHARES_KEPT_SECONDS * 1000000000u; /* as if it had been long ago */
	}
	free(c);
	fixture_close(&f);
}

static void bad_requests_are_refused_by_name(void **state)
{
	(void)state;
	int32_t tokens[LONGEST + 1] = {3, 4, 5}, unknown[] = {3, VOCAB}, negative[] = {-1};
	const struct {
		int kind;
		pooling embedding;
		score_sequence sequence;
		const char *param, *words;
	} cases[] = {
	    {0, POOL_NONE, {.ids = tokens, .count = 3}, "model", "no head for classes"},
	    {ENCODER, POOL_NONE, {.ids = tokens, .count = 0}, "input", "1 to 300 are read"},
	    {ENCODER, POOL_MEAN, {.ids = tokens, .count = LONGEST + 1}, "input", "has 301 tokens"},
	    {ENCODER, POOL_MEAN, {.ids = unknown, .count = 2}, "input", "token 259 of input 0"},
	    {0, POOL_LAST, {.ids = negative, .count = 1}, "input", "token -1"},
	    {BART, POOL_NONE, {.ids = tokens, .count = 3}, "input", "input 0 lacks the token 2"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		fixture f;
		score_task *x;
		float out[MOST_WIDTH];
		error err = ERROR_INIT;
		open_named(&f, cases[i].kind, DTYPE_PANEL_F32, false);
		score_task_request r = {.sequences = &cases[i].sequence,
		                        .n_sequences = 1,
		                        .embedding = cases[i].embedding,
		                        .width = cases[i].embedding == POOL_NONE ? CLASSES : HIDDEN,
		                        .out = out,
		                        .finished = finished};
		assert_int_equal(scheduler_score(f.scheduler, f.model, &r, &x, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].param);
		assert_non_null(strstr(error_message(&err), cases[i].words));
		assert_null(x);
		assert_false(scheduler_runnable(f.scheduler));
		fixture_close(&f);
	}
}

static void scorings_have_the_same_limit_as_generations(void **state)
{
	(void)state;
	fixture f;
	score_sequence all[LENGTHS];
	static caller callers[2];
	score_task *x;
	error err = ERROR_INIT;
	scheduler_limits limits = roomy;
	limits.max_generations = 2;
	fixture_open(&f, &limits);
	make_sequences(all);
	for (int i = 0; i < 2; i++)
		begin_scoring(&f, &callers[i], POOL_MEAN, 1, all);
	assert_int_equal(scheduler_score(f.scheduler, f.model, &callers[0].request, &x, &err), STATUS_BUSY);
	drain(&f);
	assert_int_equal(callers[0].status, STATUS_OK);
	assert_int_equal(callers[1].status, STATUS_OK);
	fixture_close(&f);
}

/* --- their order ------------------------------------------------------------ */

enum { ORDERED = 4 };

/* Begin scorings of one sequence, each with its owner, weight and priority. */
static void begin_ordered(fixture *f, caller *c, const score_task_request order[ORDERED])
{
	score_sequence all[64];
	make_sequences(all);
	for (int i = 0; i < 64; i++)
		all[i] = all[LENGTHS - 1];
	for (int i = 0; i < ORDERED; i++) {
		make_request(f, &c[i], POOL_MEAN, 64, all);
		score_task_request *r = &c[i].request;
		r->owner = order[i].owner, r->weight = order[i].weight, r->priority = order[i].priority;
		assert_int_equal(scheduler_score(f->scheduler, f->model, r, &c[i].scoring, NULL), STATUS_OK);
	}
}

static void slices_are_divided_among_owners_by_weight(void **state)
{
	static const score_task_request order[ORDERED] = {
	    {.owner = "a"}, {.owner = "a"}, {.owner = "a"}, {.owner = "b", .weight = 2}};
	fixture f;
	caller *c = calloc(ORDERED, sizeof *c);
	int ticks = 0;
	(void)state;
	open_named(&f, 0, DTYPE_PANEL_F32, false);
	begin_ordered(&f, c, order);
	const share *a = c[0].scoring->share, *b = c[3].scoring->share;
	assert_ptr_equal(a, c[2].scoring->share);
	for (; !c[0].finished && !c[3].finished; ticks++) {
		assert_true(fabs(a->served - b->served) <= 1);
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	}
	assert_true(ticks > 12);
	drain(&f);
	for (int i = 0; i < ORDERED; i++)
		assert_int_equal(c[i].status, STATUS_OK);
	assert_int_equal(a->generations + b->generations, 0);
	free(c);
	fixture_close(&f);
}

static void a_lower_priority_number_goes_first_and_overtakes_a_bounded_number_of_times(void **state)
{
	static const score_task_request order[ORDERED] = {
	    {.owner = "a", .priority = 5}, {.owner = "a"}, {.owner = "a", .priority = -1}, {.owner = "b", .priority = 9}};
	fixture f;
	caller *c = calloc(ORDERED, sizeof *c);
	(void)state;
	open_named(&f, 0, DTYPE_PANEL_F32, false);
	begin_ordered(&f, c, order);
	for (int i = 0; i < 6; i++) /* b has every second one */
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	assert_int_equal(c[0].scoring->overtaken, 3);
	assert_int_equal(c[1].scoring->overtaken, 3);
	assert_int_equal(c[2].scoring->overtaken, 0);
	c[0].scoring->overtaken = SCHEDULER_OVERTAKES;
	for (int i = 0; i < 2; i++)
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	assert_int_equal(c[0].scoring->overtaken, 0);
	assert_int_equal(c[1].scoring->overtaken, 3);
	drain(&f);
	assert_true(c[2].order < c[1].order && c[1].order < c[0].order);
	free(c);
	fixture_close(&f);
}

/* The n-th call of each kind fails in turn. `refuses`: no failure loses the device. */
static void fail_calls(bool refuses)
{
	fixture f;
	score_sequence all[LENGTHS];
	caller *good = malloc(sizeof *good), *c = malloc(sizeof *c);
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	fault->refuses = refuses;
	write_named(&f, ENCODER);
	fixture_serve(&f, &roomy);
	make_sequences(all);
	score(&f, good, POOL_NONE, 3, all);
	for (int kind = 0; kind < 3; kind++) {
		static const fault_kind kinds[] = {FAULT_KERNEL, FAULT_TRANSFER, FAULT_ALLOCATE};
		static const status expected[] = {STATUS_DEVICE, STATUS_DEVICE, STATUS_NOMEM};
		bool struck = true;
		for (int64_t n = 0; struck; n += kind == 0 ? 7 : 1) {
			read_pass_free_all(f.model);
			fault_arm(fault, kinds[kind], n, false);
			begin_scoring(&f, c, POOL_NONE, 3, all);
			status s = STATUS_OK;
			while (s == STATUS_OK && scheduler_runnable(f.scheduler))
				s = scheduler_tick(f.scheduler);
			struck = fault->struck;
			fault->left = -1;
			assert_int_equal(c->finished, 1);
			assert_int_equal(c->status, struck ? expected[kind] : STATUS_OK);
			assert_int_equal(s, struck && kind < 2 && !refuses ? STATUS_DEVICE : STATUS_OK);
			assert_int_equal(f.model->users, 0);
		}
		assert_memory_equal(c->out, good->out, 3 * CLASSES * sizeof(float));
	}
	free(good);
	free(c);
	fixture_close(&f);
}

static void a_failure_ends_the_affected_scorings_and_later_ones_give_the_same(void **state)
{
	(void)state;
	fail_calls(false);
}

static void a_refused_call_ends_the_affected_scoring_and_later_ones_give_the_same(void **state)
{
	(void)state;
	fail_calls(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(values_are_those_of_a_plan_of_the_exact_length),
	    cmocka_unit_test(with_plans_of_fixed_shape_rows_after_a_sequence_are_masked),
	    cmocka_unit_test(an_explained_sequence_has_the_usual_values_and_the_log_of_the_parallel_form),
	    cmocka_unit_test(long_and_short_scorings_take_turns_without_affecting_each_other),
	    cmocka_unit_test(a_model_stays_loaded_while_it_scores_and_cancelled_scorings_end),
	    cmocka_unit_test(a_sequence_gives_the_logits_of_each_requested_token),
	    cmocka_unit_test(a_carried_state_gives_the_scores_of_one_pass_whatever_is_read_between),
	    cmocka_unit_test(bad_requests_are_refused_by_name),
	    cmocka_unit_test(owners_that_are_gone_leave_the_shares),
	    cmocka_unit_test(scorings_have_the_same_limit_as_generations),
	    cmocka_unit_test(slices_are_divided_among_owners_by_weight),
	    cmocka_unit_test(a_lower_priority_number_goes_first_and_overtakes_a_bounded_number_of_times),
	    cmocka_unit_test(a_failure_ends_the_affected_scorings_and_later_ones_give_the_same),
	    cmocka_unit_test(a_refused_call_ends_the_affected_scoring_and_later_ones_give_the_same),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
