/* Events of one generation: tokens, text, stops, log-probabilities, importance weights. */
#include "engine/tensor/panel.h"
#include "tests/unit/support/bytes.h"
#include "engine/text/grammar/json_grammar.h"
#include "tests/unit/serve/fixture.h"

#include <math.h>

#include "engine/explain/explain.h"

/* --- tokens ------------------------------------------------------------------------ */

static void n_plus_m_tokens_are_n_and_then_m(void **state)
{
	fixture *f = *state;
	int32_t ids[6];
	random_tokens(ids, 6, 1);
	for (int seeded = 0; seeded < 3; seeded++)
		for (int n = 1; n <= 19; n += 3) {
			client all, first, second;
			session *x = open_session(f, "x", POSITION_ERROR, true),
			        *y = open_session(f, "y", POSITION_ERROR, true);
			generation_request r = request(&all, ids, 6, 20);
			if (seeded) {
				r.sampling.temperature = 1;
				r.sampling.seed = 1234567890123u;
			}
			if (seeded == 2)
				r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.5f;
			run(f, x, &all, &r);
			r.context = memset(&first, 0, sizeof first);
			r.max_tokens = n;
			run(f, y, &first, &r);
			r.context = memset(&second, 0, sizeof second);
			r.n_prompt = 0;
			r.max_tokens = 20 - n;
			run(f, y, &second, &r);
			assert_int_equal(all.n_tokens, 20);
			assert_int_equal(first.n_tokens + second.n_tokens, 20);
			assert_memory_equal(all.tokens, first.tokens, (size_t)n * sizeof(int32_t));
			assert_memory_equal(all.tokens + n, second.tokens, (size_t)(20 - n) * sizeof(int32_t));
			assert_same_logits(x, y);
			assert_same_tokens(x, y);
			assert_memory_equal(x->log, y->log, (size_t)(26 * f->model->log_floats) * sizeof(float));
			drop(f, x);
			drop(f, y);
		}
}

static void a_temporary_and_a_permanent_session_generate_the_same(void **state)
{
	fixture *f = *state;
	int32_t ids[20];
	random_tokens(ids, 20, 2);
	client a, b;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&a, ids, 20, 20);
	r.sampling.temperature = 0.8f;
	run(f, x, &a, &r);
	r.context = memset(&b, 0, sizeof b);
	run(f, NULL, &b, &r);
	assert_int_equal(b.n_tokens, 20);
	assert_memory_equal(a.tokens, b.tokens, 20 * sizeof(int32_t));
	assert_int_equal(a.text_bytes, b.text_bytes);
	assert_memory_equal(a.text, b.text, a.text_bytes);
	assert_int_equal(x->tokens, 40);
	assert_int_equal(f->model->users, 1);
	drop(f, x);
}

static void greedy_tokens_are_the_largest_logits_of_the_parallel_form(void **state)
{
	fixture *f = *state;
	enum { N = 30, PROMPT = 11 };
	int32_t ids[N], positions[N];
	float logits[N][VOCAB];
	random_tokens(ids, PROMPT, 3);
	client c;
	generation_request r = request(&c, ids, PROMPT, N - PROMPT);
	run(f, NULL, &c, &r);
	memcpy(ids + PROMPT, c.tokens, (N - PROMPT) * sizeof(int32_t));
	plan *p;
	forward_spec spec = {.batch = 1, .length = N, .out.logits = LOGITS_ALL};
	assert_int_equal(model_plan(&p, f->model->model, &spec, NULL, NULL, NULL), STATUS_OK);
	for (int i = 0; i < N; i++)
		positions[i] = i;
	assert_int_equal(plan_write(p, graph_find(plan_graph(p), "input_ids"), ids), STATUS_OK);
	assert_int_equal(plan_write(p, graph_find(plan_graph(p), "position_ids"), positions), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, graph_find(plan_graph(p), "logits"), logits), STATUS_OK);
	for (int i = PROMPT; i < N; i++) {
		int best = 0;
		for (int v = 1; v < VOCAB; v++)
			best = logits[i - 1][v] > logits[i - 1][best] ? v : best;
		assert_int_equal(best, ids[i]);
	}
	plan_free(p);
}

static void max_tokens_zero_only_reads_the_prompt(void **state)
{
	fixture *f = *state;
	int32_t ids[300];
	random_tokens(ids, 300, 4);
	client c;
	session *x = open_session(f, "x", POSITION_CLAMP, false);
	generation_request r = request(&c, ids, 300, 0);
	r.credit = 0; /* no event needs credit */
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_LENGTH);
	assert_int_equal(c.result.prompt_tokens, 300);
	assert_int_equal(c.result.completion_tokens, 0);
	assert_int_equal(x->tokens, 300);
	assert_int_equal(c.n_tokens, 0);
	drop(f, x);
}

static void a_result_has_counts_of_tokens_and_times(void **state)
{
	fixture *f = *state;
	int32_t ids[7];
	random_tokens(ids, 7, 5);
	client c;
	generation_request r = request(&c, ids, 7, 9);
	run(f, NULL, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_LENGTH);
	assert_int_equal(c.result.prompt_tokens, 7);
	assert_int_equal(c.result.completion_tokens, 9);
	assert_true(c.result.accepted_ns > 0 && c.result.started_ns >= c.result.accepted_ns);
	assert_true(c.result.prompted_ns > c.result.started_ns && c.result.ended_ns > c.result.prompted_ns);
	scheduler_stats stats;
	scheduler_stats_read(f->scheduler, &stats);
	assert_true(stats.generated_tokens >= 9 && stats.prompt_tokens >= 7);
	assert_int_equal(stats.running + stats.waiting, 0);
}

/* --- forcing the tokens -------------------------------------------------------------- */

/* A request whose tokens are the bytes of `text`, whatever the model predicts: the test changes the bias before every
 * token. */
typedef struct script {
	sampling_bias bias;
	const char *text;
} script;

static void next_byte(client *c)
{
	script *s = c->context;
	s->bias.token = 3 + (unsigned char)s->text[c->n_tokens];
	c->generation->tally.rows[0].token = s->bias.token;
}

static generation_request scripted(client *c, script *s, const int32_t *prompt, const char *text, int64_t max_tokens)
{
	generation_request r = request(c, prompt, 1, max_tokens);
	*s = (script){{3 + (unsigned char)text[0], 10000}, text};
	c->context = s;
	c->on_event = next_byte;
	r.sampling.bias = &s->bias;
	r.sampling.n_bias = 1;
	r.n_logprobs = 0; /* no step is issued before the bias is changed */
	return r;
}

static void assert_text(const client *c, const char *text)
{
	assert_int_equal(c->text_bytes, strlen(text));
	assert_memory_equal(c->text, text, c->text_bytes);
}

static void a_stop_sequence_ends_the_text_and_is_not_part_of_it(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	generation_request r = scripted(&c, &s, &start_token, "one two three", 13);
	r.stops[0] = "o th";
	r.stops[1] = "zzz";
	r.n_stops = 2;
	r.n_logprobs = 0;
	run(f, NULL, &c, &r);
	assert_text(&c, "one tw");
	assert_int_equal(c.n_tokens, 10); /* includes the tokens of the stop sequence */
	assert_int_equal(c.result.completion_tokens, 10);
	assert_int_equal(c.result.finish, FINISH_STOP);
	assert_int_equal(c.n_empty, 5); /* the "o" of "one" was held back for one token, too */
}

static void held_back_text_is_sent_when_the_length_is_reached(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	generation_request r = scripted(&c, &s, &start_token, "abcdef", 5);
	r.stops[0] = "cdefg";
	r.n_stops = 1;
	run(f, NULL, &c, &r);
	assert_text(&c, "abcde");
	assert_int_equal(c.result.finish, FINISH_LENGTH);
}

static void a_session_keeps_the_tokens_of_the_stop_sequence(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = scripted(&c, &s, &start_token, "ab.cd", 5);
	r.stops[0] = ".";
	r.n_stops = 1;
	run(f, x, &c, &r);
	assert_text(&c, "ab");
	assert_int_equal(x->tokens, 4);
	assert_int_equal(token_history_at(&x->history, 3), 3 + '.');
	drop(f, x);
}

static void events_have_only_complete_characters(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	generation_request r = scripted(&c, &s, &start_token, "a\xE2\x82\xAC\xF0\x9F\x98\x80z", 9);
	run(f, NULL, &c, &r);
	assert_text(&c, "a\xE2\x82\xAC\xF0\x9F\x98\x80z");
	assert_int_equal(c.n_empty, 5);
}

static void a_character_cut_by_the_length_is_a_replacement_character(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	generation_request r = scripted(&c, &s, &start_token, "a\xE2\x82\xAC", 3);
	run(f, NULL, &c, &r);
	assert_text(&c, "a\xEF\xBF\xBD");
}

static void a_session_continues_within_a_character(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	script s;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = scripted(&c, &s, &start_token, "a\xF0\x9F", 3);
	run(f, x, &c, &r);
	assert_text(&c, "a");
	r = scripted(&c, &s, NULL, "\x98", 1);
	r.n_prompt = 0;
	run(f, x, &c, &r);
	assert_text(&c, "");
	r = scripted(&c, &s, NULL, "\x80z", 2);
	r.n_prompt = 0;
	run(f, x, &c, &r);
	assert_text(&c, "\xF0\x9F\x98\x80z");
	/* A prompt starts a new character. */
	r = scripted(&c, &s, NULL, "\xF0", 1);
	r.n_prompt = 0;
	run(f, x, &c, &r);
	r = scripted(&c, &s, &start_token, "b", 1);
	run(f, x, &c, &r);
	assert_text(&c, "b");
	drop(f, x);
}

static void end_of_text_stops_unless_it_is_ignored(void **state)
{
	fixture *f = *state;
	int32_t start_token = 40;
	client c;
	sampling_bias end = {BYTES_END, 10000};
	session *x = open_session(f, "x", POSITION_ERROR, false);
	for (int ignore = 0; ignore < 2; ignore++) {
		generation_request r = request(&c, &start_token, 1, 5);
		r.sampling.bias = &end;
		r.sampling.n_bias = 1;
		r.ignore_end = ignore;
		run(f, x, &c, &r);
		assert_int_equal(c.n_tokens, ignore ? 5 : 1);
		assert_int_equal(c.result.finish, ignore ? FINISH_LENGTH : FINISH_STOP);
		assert_int_equal(c.text_bytes, 0);
		assert_int_equal(x->tokens, ignore ? 8 : 2); /* the end of text was read */
	}
	drop(f, x);
}

static void a_stop_token_ends_the_generation_as_the_end_of_text_does(void **state)
{
	fixture *f = *state;
	int32_t ids[6];
	random_tokens(ids, 6, 15);
	client all, cut;
	generation_request r = request(&all, ids, 6, 20);
	run(f, NULL, &all, &r);
	int at = 0; /* index of the first occurrence of the tenth token */
	while (all.tokens[at] != all.tokens[9])
		at++;
	r.context = memset(&cut, 0, sizeof cut);
	cut.credit = INT32_MAX;
	r.stop_tokens[0] = 1 << 20;
	r.stop_tokens[1] = all.tokens[9];
	r.n_stop_tokens = 2;
	run(f, NULL, &cut, &r);
	assert_int_equal(cut.n_tokens, at + 1);
	assert_memory_equal(cut.tokens, all.tokens, (size_t)cut.n_tokens * sizeof(int32_t));
	assert_int_equal(cut.result.finish, FINISH_STOP);
	assert_int_equal(all.result.finish, FINISH_LENGTH);
}

static void stops_and_ends_within_a_scored_prompt_are_ignored(void **state)
{
	fixture *f = *state;
	int32_t end = tokenizer_end(f->model->tokenizer);
	int32_t ids[8] = {'a' + 3, 'b' + 3, end, 0xe2 + 3, 0x98 + 3, 0x83 + 3, 'c' + 3, 'd' + 3};
	client c;
	generation_request r = request(&c, ids, 8, 0);
	r.n_logprobs = 0;
	r.score_prompt = true;
	r.ignore_end = false;
	r.stops[0] = "b";
	r.n_stops = 1;
	run(f, NULL, &c, &r);
	assert_int_equal(c.n_tokens, 7);
	assert_int_equal(c.text_bytes, strlen("b\u2603cd"));
	assert_memory_equal(c.text, "b\u2603cd", c.text_bytes);
}

static void constrained_text_fits_beside_unconstrained_text(void **state)
{
	fixture *f = *state;
	enum { EACH = 3 };
	static client free_before[EACH], free_beside[EACH], fitting[EACH];
	token_trie *trie;
	grammar *g;
	constraint *c;
	json_t *schema = json_pack("{s:[s, s, [i, i]]}", "enum", "abc", "abd", 12, 123);
	int32_t ids[5];
	random_tokens(ids, 5, 23);
	assert_int_equal(token_trie_new(&trie, f->model->tokenizer, VOCAB, false), STATUS_OK);
	assert_int_equal(json_grammar_new(&g, schema, NULL), STATUS_OK);
	assert_int_equal(constraint_new(&c, g, trie), STATUS_OK);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < EACH; i++) {
			client *x = round == 0 ? &free_before[i] : &free_beside[i];
			generation_request r = request(x, ids, 5, 20);
			r.sampling.temperature = 1;
			r.sampling.seed = (uint64_t)i;
			start(f, NULL, x, &r);
			if (round == 0)
				continue;
			r = request(&fitting[i], ids, 5, i == 2 ? 4 : 20);
			r.sampling.temperature = (float)i;
			r.sampling.frequency_penalty = (float)i;
			r.ignore_end = i == 1;
			r.constraint = c;
			r.constraint_field = "response_format";
			start(f, NULL, &fitting[i], &r);
		}
		drain(f);
	}
	for (int i = 0; i < EACH; i++) {
		json_t *parsed = json_loadb(fitting[i].text, fitting[i].text_bytes, JSON_DECODE_ANY, NULL);
		bool listed = i == 2;
		for (size_t k = 0; k < 3; k++)
			listed |= parsed && json_equal(parsed, json_array_get(json_object_get(schema, "enum"), k));
		if (!listed)
			fail_msg("%.*s", (int)fitting[i].text_bytes, fitting[i].text);
		assert_int_equal(fitting[i].result.finish, i == 2 ? FINISH_LENGTH : FINISH_STOP);
		assert_memory_equal(free_beside[i].tokens, free_before[i].tokens, 20 * sizeof *ids);
		json_decref(parsed);
	}
	constraint_free(c);
	token_trie_free(trie);
	json_decref(schema);
}

static void the_request_is_copied(void **state)
{
	fixture *f = *state;
	int32_t ids[4];
	char stop[] = "stop";
	sampling_bias bias = {3 + 's', 10000};
	random_tokens(ids, 4, 6);
	client c;
	generation_request r = request(&c, ids, 4, 6);
	r.stops[0] = stop;
	r.n_stops = 1;
	r.sampling.bias = &bias;
	r.sampling.n_bias = 1;
	start(f, NULL, &c, &r);
	memset(ids, 0xff, sizeof ids);
	memset(stop, 's', sizeof stop - 1);
	memset(&bias, 0xff, sizeof bias);
	memset(&r, 0xff, sizeof r);
	drain(f);
	assert_text(&c, "ssssss");
}

/* --- other parts of an event ------------------------------------------------------------- */

static void log_probabilities_come_with_alternatives_best_first(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	random_tokens(ids, 5, 7);
	client c;
	generation_request r = request(&c, ids, 5, 4);
	r.n_logprobs = 5;
	run(f, NULL, &c, &r);
	assert_int_equal(c.n_top, 5);
	assert_int_equal(c.logprob.token, c.tokens[3]);
	assert_int_equal(c.top[0].token, c.tokens[3]); /* greedy */
	assert_true(c.logprob.logprob == c.top[0].logprob && c.logprob.logprob <= 0);
	for (int i = 1; i < 5; i++)
		assert_true(c.top[i].logprob <= c.top[i - 1].logprob);
}

static void alpha_is_the_mean_row_of_the_last_token_read(void **state)
{
	fixture *f = *state;
	enum { N = 14 };
	int32_t ids[N];
	double mean[N + 3];
	bool all[4] = {true, true, true, true};
	explain_selection everything = {all, all, all};
	explain_log log;
	random_tokens(ids, N, 8);
	client c;
	session *x = open_session(f, "x", POSITION_ERROR, true);
	generation_request r = request(&c, ids, N, 4);
	r.n_alpha = 6;
	run(f, x, &c, &r);
	/* The fourth token was sampled after 17 tokens had been read. */
	explain_log_init(&log, model_architecture(f->model->model), model_config(f->model->model), x->log, x->tokens);
	assert_int_equal(explain_mean(&log, &everything, N + 3 - 1, mean), STATUS_OK);
	assert_int_equal(c.n_alpha, 6);
	for (int i = 0; i < 6; i++) {
		assert_in_range(c.alpha[i].position, 0, N + 2);
		assert_true(c.alpha[i].weight == (float)mean[c.alpha[i].position]);
		assert_int_equal(c.alpha[i].token, token_history_at(&x->history, c.alpha[i].position));
		int before = 0;
		for (int j = 0; j < N + 3; j++)
			before += (float)mean[j] > c.alpha[i].weight;
		assert_int_equal(before, i);
	}
	client temporary;
	r.context = memset(&temporary, 0, sizeof temporary);
	run(f, NULL, &temporary, &r);
	assert_memory_equal(temporary.alpha, c.alpha, 6 * sizeof *c.alpha);
	drop(f, x);
}

static void requesting_more_alpha_than_there_are_tokens_gives_all(void **state)
{
	fixture *f = *state;
	int32_t ids[3];
	double sum = 0;
	random_tokens(ids, 3, 9);
	client c;
	generation_request r = request(&c, ids, 3, 1);
	r.n_alpha = 50;
	run(f, NULL, &c, &r);
	assert_int_equal(c.n_alpha, 3);
	for (int i = 0; i < 3; i++)
		sum += c.alpha[i].weight;
	assert_true(fabs(sum - 1) <= 1e-6);
}

static void frequency_penalties_see_prompt_session_and_completion(void **state)
{
	fixture *f = *state;
	int32_t ids[8];
	random_tokens(ids, 8, 10);
	client c;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 4);
	generation_request r = request(&c, ids + 4, 4, 30);
	r.sampling.temperature = 0;
	r.sampling.presence_penalty = r.sampling.frequency_penalty = 2;
	r.sampling.repetition_penalty = 10; /* together more than the spread of this model's logits */
	run(f, x, &c, &r);
	bool seen[VOCAB] = {false};
	for (int64_t i = 0; i < x->tokens; i++) {
		const int32_t token = token_history_at(&x->history, i);
		assert_true(i < 8 || !seen[token]);
		seen[token] = true;
	}
	drop(f, x);
}

static void a_long_text_is_tallied_in_slices_and_others_run_between_them(void **state)
{
	enum { READ = 40, LONG = 200000 };
	fixture *f = *state;
	client c, beside;
	int32_t *ids = malloc((READ + LONG) * sizeof *ids), short_prompt[3] = {5, 6, 7};
	int64_t expected[VOCAB] = {0};
	assert_non_null(ids);
	random_tokens(ids, READ + LONG, 12);
	for (int i = 0; i < READ + LONG; i++)
		expected[ids[i]]++;
	session *x = open_session(f, "x", POSITION_WRAP, false);
	append(f, x, ids, READ);
	generation_request r = request(&c, ids + READ, LONG, 1), other = request(&beside, short_prompt, 3, 4);
	r.sampling.frequency_penalty = 1;
	start(f, x, &c, &r);
	const generation *g = c.generation;
	assert_false(generation_tallied(g));
	start(f, NULL, &beside, &other);
	for (int64_t before = -1; !generation_tallied(g); before = g->n_tallied) {
		assert_true(g->n_tallied - (before < 0 ? g->n_tallied : before) < LONG / 2);
		assert_int_equal(g->n_read, 0);
		assert_int_equal(x->tokens, READ);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	assert_int_equal(beside.finished, 1);
	for (int i = 0; i < g->tally.count; i++)
		assert_int_equal(g->tally.rows[i].count, expected[g->tally.rows[i].token]);
	generation_cancel(c.generation);
	drain(f);
	assert_int_equal(c.finished, 1);
	drop(f, x);
	free(ids);
}

/* --- refusals -------------------------------------------------------------------------- */

static void refused(fixture *f, session *x, const generation_request *r, status expected, const char *param)
{
	error err = ERROR_INIT;
	generation *g = (generation *)&g;
	int users = f->model->users;
	assert_int_equal(scheduler_generate(f->scheduler, f->model, x, r, &g, &err), expected);
	assert_null(g);
	assert_string_equal(err.param, param);
	assert_true(err.message[0] != '\0');
	assert_int_equal(f->model->users, users);
}

static void impossible_requests_are_refused_by_name_and_never_start(void **state)
{
	fixture *f = *state;
	int32_t ids[POSITIONS + 1], strange[2] = {5, VOCAB}, negative[1] = {-1};
	client c;
	session *empty = open_session(f, "empty", POSITION_ERROR, false);
	random_tokens(ids, POSITIONS + 1, 11);
	generation_request r, good = request(&c, ids, 3, 3);
	r = good, r.n_prompt = 0, refused(f, empty, &r, STATUS_INVALID, "prompt");
	r = good, r.n_prompt = 0, refused(f, NULL, &r, STATUS_INVALID, "prompt");
	r = good, r.n_prompt = -1, refused(f, NULL, &r, STATUS_INVALID, "prompt");
	r = good, r.n_prompt = POSITIONS + 1, refused(f, NULL, &r, STATUS_INVALID, "prompt");
	r = good, r.prompt = strange, r.n_prompt = 2, refused(f, NULL, &r, STATUS_INVALID, "prompt");
	r = good, r.prompt = negative, r.n_prompt = 1, refused(f, NULL, &r, STATUS_INVALID, "prompt");
	r = good, r.max_tokens = -1, refused(f, NULL, &r, STATUS_INVALID, "max_tokens");
	r = good, r.sampling.top_p = 2, refused(f, NULL, &r, STATUS_INVALID, "top_p");
	r = good, r.n_stops = SCHEDULER_MAX_STOPS + 1, refused(f, NULL, &r, STATUS_INVALID, "stop");
	r = good, r.n_logprobs = 21, refused(f, NULL, &r, STATUS_INVALID, "logprobs");
	r = good, r.n_logprobs = -2, refused(f, NULL, &r, STATUS_INVALID, "logprobs");
	r = good, r.score_prompt = true, refused(f, NULL, &r, STATUS_INVALID, "logprobs");
	r = good, r.n_alpha = -1, refused(f, NULL, &r, STATUS_INVALID, "alpha");
	r = good, r.n_alpha = 1 << 20, refused(f, NULL, &r, STATUS_INVALID, "alpha");
	r = good, r.n_alpha = 1, refused(f, empty, &r, STATUS_INVALID, "alpha");
	assert_false(scheduler_runnable(f->scheduler));
	assert_int_equal(c.finished, 0);
	assert_int_equal(empty->tokens, 0);
	drop(f, empty);
}

static void logits_that_are_not_finite_end_the_generation(void **state)
{
	fixture *f = *state;
	int32_t ids[3];
	random_tokens(ids, 3, 12);
	float *arena = model_arena(f->model->model); /* the panels of the tied word embedding are first */
	for (int64_t i = 0; i < VOCAB; i++)
		arena[i / PANEL_WIDTH * PANEL_WIDTH * HIDDEN + i % PANEL_WIDTH] += NAN;
	client c;
	session *x = open_session(f, "x", POSITION_ERROR, false);
	generation_request r = request(&c, ids, 3, 5);
	run(f, x, &c, &r);
	assert_int_equal(c.result.status, STATUS_INVALID); /* the error names the requested model, not the service */
	assert_string_equal(c.result.error.param, "model");
	assert_non_null(strstr(c.result.error.message, "not finite"));
	assert_int_equal(c.n_tokens, 0);
	assert_int_equal(x->tokens, 3);
	drop(f, x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(n_plus_m_tokens_are_n_and_then_m, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_temporary_and_a_permanent_session_generate_the_same, setup, teardown),
	    cmocka_unit_test_setup_teardown(greedy_tokens_are_the_largest_logits_of_the_parallel_form, setup, teardown),
	    cmocka_unit_test_setup_teardown(max_tokens_zero_only_reads_the_prompt, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_result_has_counts_of_tokens_and_times, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_stop_sequence_ends_the_text_and_is_not_part_of_it, setup, teardown),
	    cmocka_unit_test_setup_teardown(held_back_text_is_sent_when_the_length_is_reached, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_keeps_the_tokens_of_the_stop_sequence, setup, teardown),
	    cmocka_unit_test_setup_teardown(events_have_only_complete_characters, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_character_cut_by_the_length_is_a_replacement_character, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_continues_within_a_character, setup, teardown),
	    cmocka_unit_test_setup_teardown(end_of_text_stops_unless_it_is_ignored, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_stop_token_ends_the_generation_as_the_end_of_text_does, setup, teardown),
	    cmocka_unit_test_setup_teardown(stops_and_ends_within_a_scored_prompt_are_ignored, setup, teardown),
	    cmocka_unit_test_setup_teardown(constrained_text_fits_beside_unconstrained_text, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_request_is_copied, setup, teardown),
	    cmocka_unit_test_setup_teardown(log_probabilities_come_with_alternatives_best_first, setup, teardown),
	    cmocka_unit_test_setup_teardown(alpha_is_the_mean_row_of_the_last_token_read, setup, teardown),
	    cmocka_unit_test_setup_teardown(requesting_more_alpha_than_there_are_tokens_gives_all, setup, teardown),
	    cmocka_unit_test_setup_teardown(frequency_penalties_see_prompt_session_and_completion, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_long_text_is_tallied_in_slices_and_others_run_between_them, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(impossible_requests_are_refused_by_name_and_never_start, setup, teardown),
	    cmocka_unit_test_setup_teardown(logits_that_are_not_finite_end_the_generation, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
