/* The choices of a beam search, compared with a plain search (beam_reference.h) and with all possible texts, over a
 * tiny vocabulary with random logits. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/base/philox.h"
#include "engine/serve/beam_search.h"
#include "tests/unit/serve/beam_reference.h"
#include "tests/unit/support/allocations.h"

enum { WORDS = 5, LENGTH = 6 };

static const double penalties[] = {0, 1, -1, 2};

/* A model with random logits for every text. */
typedef struct chance {
	uint64_t seed;
	const sampling *bias; /* NULL: none */
	int32_t hidden;       /* a token that is never possible; -1: no such token */
} chance;

static void logits_of(const chance *c, const int32_t *tokens, int n, float *out)
{
	uint64_t text = 1;
	for (int i = 0; i < n; i++)
		text = text * 31 + (uint64_t)tokens[i] + 1;
	for (int32_t t = 0; t < WORDS; t++) {
		out[t] = 6 * philox_uniform(philox(c->seed, (uint32_t)t, 7, text).word[0]);
		out[t] = t == c->hidden ? -INFINITY : out[t];
	}
}

static void biased_logits(void *context, const int32_t *tokens, int n, float *out)
{
	const chance *c = context;
	logits_of(c, tokens, n, out);
	for (int i = 0; c->bias && i < c->bias->n_bias; i++)
		out[c->bias->bias[i].token] += c->bias->bias[i].bias;
}

static beam_search *make(const plain_search *p, const sampling *s, int n_top)
{
	beam_search *b;
	sampling plain;
	const beam_options o = {p->beams, p->length_penalty, p->early_stopping};
	sampling_default(&plain);
	assert_int_equal(beam_search_new(&b, &o, p->vocab, p->max_tokens, s ? s : &plain, p->ends, p->n_ends, n_top),
	                 STATUS_OK);
	return b;
}

/* Run b with the logits of the last beam first: the order must not matter. */
static int drive(beam_search *b, const chance *c)
{
	int32_t texts[BEAM_SEARCH_MAX][LENGTH], before[BEAM_SEARCH_MAX][LENGTH];
	float logits[WORDS], copy[WORDS];
	int length = 0;
	while (!beam_search_ended(b)) {
		for (int i = beam_search_live(b); i-- > 0;) {
			logits_of(c, texts[i], length, logits);
			memcpy(copy, logits, sizeof copy);
			beam_search_read(b, i, logits);
			assert_memory_equal(copy, logits, sizeof copy);
		}
		assert_int_equal(beam_search_advance(b), STATUS_OK);
		memcpy(before, texts, sizeof before);
		for (int i = 0; i < beam_search_live(b); i++) {
			memcpy(texts[i], before[beam_search_parent(b, i)], sizeof texts[i]);
			texts[i][length] = beam_search_token(b, i);
		}
		length++;
	}
	return length;
}

static void assert_finds(const beam_search *b, const plain_search *p, const chance *c)
{
	assert_int_equal(beam_search_count(b), p->n_best);
	for (int i = 0; i < p->n_best; i++) {
		const plain_hypothesis *want = &p->best[i];
		const beam_hypothesis *h = beam_search_best(b, i);
		token_logprob tokens[LENGTH], top[LENGTH * 2];
		double sum = 0;
		assert_int_equal(h->length, want->length);
		assert_int_equal(h->ended, want->ended);
		assert_true(fabs(h->sum - want->sum) <= 1e-5 * (1 + fabs(want->sum)));
		assert_true(fabs(h->score - want->score) <= 1e-5 * (1 + fabs(want->score)));
		beam_search_tokens(b, i, tokens, top);
		for (int k = 0; k < want->length; k++) {
			float logits[WORDS];
			token_logprob best[2], own;
			logits_of(c, want->tokens, k, logits);
			own = sampler_logprob(logits, WORDS, want->tokens[k], best, 2);
			assert_int_equal(tokens[k].token, want->tokens[k]);
			assert_true(tokens[k].logprob == own.logprob);
			assert_memory_equal(top + 2 * k, best, sizeof best);
			sum += (double)tokens[k].logprob;
		}
		assert_true(c->bias || fabs(sum - h->sum) <= 1e-5 * (1 + fabs(sum)));
	}
}

static void a_search_finds_the_texts_of_a_plain_search(void **state)
{
	(void)state;
	static plain_search p;
	const int32_t ends[] = {3, 1};
	sampling_bias bias[] = {{1, -2.5f}, {4, 1.5f}};
	sampling s;
	int early = 0, by_length = 0, rest = 0;
	sampling_default(&s);
	s.bias = bias;
	s.n_bias = 2;
	for (uint64_t seed = 0; seed < 40; seed++)
		for (int beams = 1; beams <= 7; beams++)
			for (int way = 0; way < 16; way++) {
				chance c = {seed, seed % 3 == 0 ? &s : NULL, seed % 4 == 0 ? 2 : -1};
				p = (plain_search){.logits = biased_logits,
				                   .context = &c,
				                   .vocab = WORDS,
				                   .max_tokens = LENGTH,
				                   .beams = beams,
				                   .length_penalty = penalties[way % 4],
				                   .early_stopping = way / 4 % 2,
				                   .ends = ends,
				                   .n_ends = 1 + way / 8};
				plain_run(&p);
				beam_search *b = make(&p, c.bias, 2);
				assert_int_equal(drive(b, &c), p.steps);
				assert_finds(b, &p, &c);
				beam_search_free(b);
				early += p.steps < LENGTH && p.early_stopping;
				rest += p.steps < LENGTH && !p.early_stopping;
				by_length += p.n_best > 0 && !p.best[0].ended;
			}
	assert_true(early > 100 && rest > 100 && by_length > 100); /* every way to end occurs */
}

/* The best of all texts that begin with `text`. */
static void best_of_all(const plain_search *p, plain_hypothesis text, plain_hypothesis *best)
{
	float logits[WORDS];
	double sum = 0;
	p->logits(p->context, text.tokens, text.length, logits);
	for (int t = 0; t < p->vocab; t++)
		sum += exp(logits[t]);
	for (int32_t t = 0; t < p->vocab; t++) {
		plain_hypothesis next = text;
		next.tokens[next.length++] = t;
		next.sum += logits[t] - log(sum);
		next.score = next.sum / pow(next.length, p->length_penalty);
		if (!plain_ends(p, t) && next.length < p->max_tokens)
			best_of_all(p, next, best);
		else if (best->length == 0 || next.score > best->score)
			*best = next;
	}
}

/* Three tokens, one of which ends a text, make 31 texts of at most four tokens; that many beams drop none. */
static void with_a_beam_for_every_text_the_best_text_is_found(void **state)
{
	(void)state;
	static plain_search p;
	const int32_t end = 0;
	int better_than_greedy = 0;
	for (uint64_t seed = 0; seed < 60; seed++) {
		chance c = {seed, NULL, -1};
		p = (plain_search){.logits = biased_logits,
		                   .context = &c,
		                   .vocab = 3,
		                   .max_tokens = 4,
		                   .beams = 32,
		                   .length_penalty = penalties[seed % 4],
		                   .ends = &end,
		                   .n_ends = 1};
		plain_hypothesis best = {.length = 0};
		best_of_all(&p, (plain_hypothesis){.length = 0}, &best);
		for (int beams = 1; beams <= 32; beams += 31) {
			token_logprob tokens[LENGTH];
			p.beams = beams;
			beam_search *b = make(&p, NULL, -1);
			drive(b, &c);
			const beam_hypothesis *h = beam_search_best(b, 0);
			bool same = h->length == best.length;
			beam_search_tokens(b, 0, tokens, NULL);
			for (int i = 0; same && i < best.length; i++)
				same = tokens[i].token == best.tokens[i];
			assert_int_equal(beam_search_count(b), beams == 1 ? 1 : 31);
			assert_true(same || beams == 1);
			better_than_greedy += !same;
			beam_search_free(b);
		}
	}
	assert_true(better_than_greedy > 10);
}

/* "ab" and "ba" are equally likely, and so are all tokens after them. */
static void equal_candidates_are_ordered_by_beam_and_then_by_token(void **state)
{
	(void)state;
	beam_search *b;
	sampling s;
	const beam_options o = {4, 1, false};
	float logits[WORDS] = {0, 0, 0, 0, 0};
	sampling_default(&s);
	assert_int_equal(beam_search_new(&b, &o, WORDS, 2, &s, NULL, 0, -1), STATUS_OK);
	beam_search_read(b, 0, logits);
	assert_int_equal(beam_search_advance(b), STATUS_OK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(beam_search_token(b, i), i);
	for (int i = 3; i >= 0; i--)
		beam_search_read(b, i, logits);
	assert_int_equal(beam_search_advance(b), STATUS_OK);
	for (int i = 0; i < 4; i++) {
		token_logprob tokens[2];
		assert_int_equal(beam_search_parent(b, i), 0);
		beam_search_tokens(b, i, tokens, NULL);
		assert_int_equal(tokens[0].token, 0);
		assert_int_equal(tokens[1].token, i);
		assert_true(beam_search_best(b, i)->score == beam_search_best(b, 0)->score);
	}
	beam_search_free(b);
}

static void logits_that_are_not_finite_end_a_search_without_a_text(void **state)
{
	(void)state;
	beam_search *b;
	sampling s;
	const beam_options o = {4, 1, false};
	float logits[WORDS] = {NAN, INFINITY, -INFINITY, NAN, NAN};
	sampling_default(&s);
	assert_int_equal(beam_search_new(&b, &o, WORDS, 2, &s, NULL, 0, -1), STATUS_OK);
	beam_search_read(b, 0, logits);
	assert_int_equal(beam_search_advance(b), STATUS_OK);
	assert_true(beam_search_ended(b));
	assert_int_equal(beam_search_count(b), 0);
	beam_search_free(b);
}

static void without_memory_a_search_is_unchanged(void **state)
{
	(void)state;
	static plain_search p;
	chance c = {5, NULL, -1};
	p = (plain_search){
	    .logits = biased_logits, .context = &c, .vocab = WORDS, .max_tokens = 1, .beams = 3, .length_penalty = 1};
	sampling s;
	sampling_default(&s);
	const beam_options o = {3, 1, false};
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		beam_search *b;
		allocations_limit(n);
		refused = beam_search_new(&b, &o, WORDS, 1, &s, NULL, 0, 2) != STATUS_OK;
		allocations_limit(-1);
		assert_true(refused == (b == NULL));
		beam_search_free(b);
	}
	beam_search *b = make(&p, NULL, 2);
	float logits[WORDS];
	logits_of(&c, NULL, 0, logits);
	beam_search_read(b, 0, logits);
	for (int64_t n = 0; n < 2; n++) { /* first the nodes, then their alternatives */
		allocations_limit(n);
		assert_int_equal(beam_search_advance(b), STATUS_NOMEM);
		allocations_limit(-1);
		assert_false(beam_search_ended(b));
	}
	assert_int_equal(beam_search_advance(b), STATUS_OK);
	plain_run(&p);
	assert_finds(b, &p, &c);
	beam_search_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_search_finds_the_texts_of_a_plain_search),
	    cmocka_unit_test(with_a_beam_for_every_text_the_best_text_is_found),
	    cmocka_unit_test(equal_candidates_are_ordered_by_beam_and_then_by_token),
	    cmocka_unit_test(logits_that_are_not_finite_end_a_search_without_a_text),
	    cmocka_unit_test(without_memory_a_search_is_unchanged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
