/* Scores of a target without sets of tokens, compared with texts that are read without them in one call. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/kinds.h"

#include <math.h>

#include "engine/model/feed.h"
#include "engine/serve/read_pass.h"

enum { N = 21, LONG = 280, SETS = 6, REPLACEMENT = 9 };

typedef struct caller {
	score_task *scoring;
	score_sequence sequence;
	score_task_request request;
	explain_parts parts;
	explain_removals removals;
	bool absent[SETS][LONG];
	double log_probabilities[SETS], scores[SETS];
	int32_t ids[LONG];
	int finished;
	status status;
} caller;

static void finished(void *context, status s, const error *err)
{
	caller *c = context;
	(void)err;
	c->finished++;
	c->status = s;
}

/* Sets 0 and 4 are equal, set 3 is empty; no set has the last token. */
static void fill(caller *c, int64_t count, int32_t replacement)
{
	bool *rows = &c->absent[0][0];
	*c = (caller){0};
	for (int64_t i = 0; i < count; i++)
		c->ids[i] = (int32_t)(i * 37 % 250 + 5);
	for (int64_t i = 0; i + 1 < count; i++) {
		rows[0 * count + i] = rows[4 * count + i] = i % 3 == 1;
		rows[1 * count + i] = true;
		rows[2 * count + i] = i == count / 2;
		rows[5 * count + i] = i > count / 2;
	}
	c->parts = (explain_parts){0};
	c->removals = (explain_removals){.n = SETS,
	                                 .absent = rows,
	                                 .replacement = replacement,
	                                 .log_probabilities = c->log_probabilities,
	                                 .scores = c->scores};
	c->sequence = (score_sequence){.ids = c->ids,
	                               .count = count,
	                               .target = {.token = 2, .other = -1},
	                               .parts = &c->parts,
	                               .removals = &c->removals};
	c->request = (score_task_request){.sequences = &c->sequence,
	                                  .n_sequences = 1,
	                                  .explain = {.method = EXPLAIN_REMOVALS, .replacement = replacement},
	                                  .finished = finished,
	                                  .context = c};
}

static void remove_filled(fixture *f, caller *c)
{
	assert_int_equal(scheduler_score(f->scheduler, f->model, &c->request, &c->scoring, NULL), STATUS_OK);
	drain(f);
	assert_int_equal(c->finished, 1);
	assert_int_equal(c->status, STATUS_OK);
	assert_int_equal(f->model->users, 0);
}

static void remove_sets(fixture *f, caller *c, int64_t count, int32_t replacement)
{
	fill(c, count, replacement);
	remove_filled(f, c);
}

/* Log-probability of token 2 after the tokens without a set, in one call. */
static double read_alone(const fixture *f, const caller *c, int set)
{
	const int64_t count = c->sequence.count;
	const bool *absent = c->removals.absent + set * count;
	int32_t ids[LONG], slot;
	float logits[300];
	bool done = false;
	read_pass *r;
	assert_int_equal(served_model_take(f->model, &slot, NULL), STATUS_OK);
	for (int64_t i = 0; i < count; i++)
		ids[i] = absent[i] && c->removals.replacement >= 0 ? c->removals.replacement : c->ids[i];
	const read_pass_form form = {.logits = LOGITS_LAST, .masked = c->removals.replacement < 0};
	const read_pass_piece p = {.ids = ids, .count = count, .slot = slot, .absent = absent};
	assert_int_equal(read_pass_begin(&r, f->model, form, &p, NULL), STATUS_OK);
	while (!done)
		assert_int_equal(read_pass_step(r, &done), STATUS_OK);
	assert_int_equal(read_pass_values(r, logits), STATUS_OK);
	read_pass_end(f->model, r);
	served_model_give(f->model, slot);
	return explain_log_probability_of(logits, model_dimensions(f->model->model)->outputs, 2);
}

static void removing_a_set_equals_reading_the_text_without_it(void **state)
{
	(void)state;
	static caller c;
	for (int kind = 0; kind < MODELS; kind++)
		for (int32_t replacement = -1; replacement <= REPLACEMENT; replacement += REPLACEMENT + 1) {
			fixture f;
			open_named(&f, kind, DTYPE_PANEL_F32, false);
			remove_sets(&f, &c, N, replacement);
			for (int i = 0; i < SETS; i++)
				if (!(fabs(c.log_probabilities[i] - read_alone(&f, &c, i)) < 1e-5))
					fail_msg("%s, set %d: %g, must be %g", models[kind].name, i,
					         c.log_probabilities[i], read_alone(&f, &c, i));
			/* A model that reads padding also reads masked tokens. */
			if (replacement >= 0 || !model_dimensions(f.model->model)->reads_padding)
				assert_true(fabs(c.log_probabilities[0] - c.parts.log_probability) > 1e-2);
			assert_true(c.log_probabilities[3] == c.parts.log_probability);
			assert_true(c.scores[3] == c.parts.score);
			fixture_close(&f);
		}
}

/* The row stays that of the end token of the original text, although an earlier end token precedes it. */
static void a_text_whose_end_token_is_replaced_is_read_at_the_same_row(void **state)
{
	(void)state;
	static caller c;
	fixture f;
	plan *p;
	float logits[3];
	int32_t last = N - 1;
	const forward_spec spec = {.batch = 1, .length = N, .out.logits = LOGITS_LAST};
	open_named(&f, BART, DTYPE_PANEL_F32, false);
	fill(&c, N, REPLACEMENT);
	c.ids[4] = c.ids[N - 1] = 2;
	memset(c.absent, 0, sizeof c.absent);
	(&c.absent[0][0])[N - 1] = true;
	remove_filled(&f, &c);
	c.ids[N - 1] = REPLACEMENT;
	assert_int_equal(model_plan(&p, f.model->model, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, c.ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(f.model->model), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LAST, &last), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits), STATUS_OK);
	assert_true(fabs(c.log_probabilities[0] - explain_log_probability_of(logits, 3, 2)) < 1e-5);
	assert_true(fabs(c.log_probabilities[0] - c.parts.log_probability) > 1e-4);
	plan_free(p);
	fixture_close(&f);
}

/* Longer than a piece: the state before the first removed token is several pieces long. */
static void long_texts_are_read_in_pieces(void **state)
{
	(void)state;
	static caller c;
	for (int kind = 0; kind < ENCODER; kind++) {
		fixture f;
		open_named(&f, kind, DTYPE_PANEL_F32, false);
		remove_sets(&f, &c, LONG, -1);
		for (int i = 0; i < SETS; i++)
			assert_true(fabs(c.log_probabilities[i] - read_alone(&f, &c, i)) < 1e-4);
		fixture_close(&f);
	}
}

static void equal_sets_are_read_once(void **state)
{
	(void)state;
	static caller c;
	fixture f;
	open_named(&f, 0, DTYPE_PANEL_F32, false);
	remove_sets(&f, &c, N, -1);
	assert_true(c.log_probabilities[0] == c.log_probabilities[4] && c.scores[0] == c.scores[4]);
	/* the complete text, four sets from their first tokens 0, 1, 10 and 11 on, and three stretches between these */
	assert_int_equal(c.removals.readings, 1 + 4 + 3);
	assert_int_equal(c.removals.tokens, N + N + (N - 1) + (N - 10) + (N - 11) + 11);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(removing_a_set_equals_reading_the_text_without_it),
	    cmocka_unit_test(a_text_whose_end_token_is_replaced_is_read_at_the_same_row),
	    cmocka_unit_test(long_texts_are_read_in_pieces),
	    cmocka_unit_test(equal_sets_are_read_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
