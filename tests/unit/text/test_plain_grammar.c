/* Texts constrained by a regular expression, a list of choices or GBNF. */
#include "tests/unit/support/allocations.h"
#include "tests/unit/text/grammar.h"

static constraint *plain_constraint(const vocabulary *v, const char *gbnf, const char *regex)
{
	error err = ERROR_INIT;
	grammar *g;
	constraint *c;
	if ((gbnf ? gbnf_grammar_new(&g, gbnf, strlen(gbnf), &err)
	          : regex_grammar_new(&g, regex, strlen(regex), &err)) != STATUS_OK)
		fail_msg("%s: %s", gbnf ? gbnf : regex, error_message(&err));
	assert_int_equal(constraint_new(&c, g, v->trie), STATUS_OK);
	return c;
}

/* Texts of 2 to 4 of these characters in quotation marks, with tokens that are parts of characters. */
static void tokens_may_be_parts_of_characters(void **state)
{
	(void)state;
	static const char *const grammars[][2] = {
	    {"root ::= \"\\\"\" any{2,4} \"\\\"\"\nany ::= [\u00e9\u20ac] | \"\\U0001f600\"", NULL},
	    {"root ::= [\"] rest\nrest ::= [\u00e9\u20ac\xf0\x9f\x98\x80] next\nnext ::= "
	     "[^\\x00-\\xe8\\xea-\\u20ab\\u20ad-\\U0001f5ff"
	     "\\U0001f601-\\U0010ffff] ([\u00e9\u20ac\xf0\x9f\x98\x80]{0,2} | next{0}) \"\\x22\"",
	     NULL},
	    {NULL, "\"[\u00e9\u20ac\xf0\x9f\x98\x80]{2,4}\""}};
	for (uint64_t seed = 0; seed < 120; seed++) {
		const vocabulary *v = &vocabularies[seed % 2];
		constraint *c = plain_constraint(v, grammars[seed % 3][0], grammars[seed % 3][1]);
		constrained_text *x = text_of(c);
		static written w;
		memset(&w, 0, sizeof w);
		while (!constrained_text_done(x)) {
			assert_true(constrained_text_continues(x) && w.n < 30);
			if (seed < 6)
				assert_mask(c, x, v, &w);
			const int32_t token = choose(x, v, &w, seed, false);
			assert_false(tokenizer_ends(v->tokenizer, token));
			append(&w, v, token);
			assert_int_equal(constrained_text_push(x, token), STATUS_OK);
		}
		size_t n = 0;
		const char *p = w.text + 1;
		for (; *p != '"'; n++) {
			static const char *const characters[] = {"\u00e9", "\u20ac", "\xf0\x9f\x98\x80"};
			int k = 0;
			while (k < 3 && strncmp(p, characters[k], strlen(characters[k])) != 0)
				k++;
			assert_true(k < 3);
			p += strlen(characters[k]);
		}
		assert_true(n >= 2 && n <= 4 && w.text[0] == '"' && !p[1]);
		constrained_text_free(x);
		constraint_free(c);
	}
}

static void a_text_may_end_where_it_is_whole(void **state)
{
	(void)state;
	const vocabulary *v = &vocabularies[0];
	const int32_t end = tokenizer_end(v->tokenizer);
	static const struct {
		const char *gbnf, *regex, *text;
		bool ends[6], done; /* ends: after each byte */
	} cases[] = {{NULL, "a|abc?", "abc", {false, true, true, true}, true},
	             {NULL, "(ab)*", "abab", {true, false, true, false, true}, false},
	             {NULL, "", "", {true}, true},
	             {"root ::= \"a\" root? \"b\"?", NULL, "aab", {false, true, true, true}, false},
	             {"root ::= (\"a\"? \"b\"?)*", NULL, "bab", {true, true, true, true}, false},
	             {"root ::= \"\" | \"x\" root \"y\"", NULL, "xxyy", {true, false, false, false, true}, true}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		constraint *c = plain_constraint(v, cases[i].gbnf, cases[i].regex);
		constrained_text *x = text_of(c);
		for (size_t k = 0; k <= strlen(cases[i].text); k++) {
			assert_int_equal(is_allowed(x, end), cases[i].ends[k]);
			if (cases[i].text[k])
				assert_int_equal(constrained_text_push(x, 3 + (unsigned char)cases[i].text[k]),
				                 STATUS_OK);
		}
		assert_int_equal(constrained_text_done(x), cases[i].done);
		assert_int_equal(constrained_text_push(x, 3 + 'z'), STATUS_INVALID);
		constrained_text_free(x);
		constraint_free(c);
	}
}

/* Push a byte until it fails or there are `most`. */
static status push_many(constraint *c, char byte, int most, int *pushed)
{
	constrained_text *x;
	status s = constrained_text_new(&x, c, NULL, 0, false);
	for (*pushed = 0; s == STATUS_OK && *pushed < most; ++*pushed)
		s = constrained_text_push(x, 3 + (unsigned char)byte);
	constrained_text_free(x);
	return s;
}

/* Grammars whose stacks multiply or get deep: they are followed as far as the bounds allow. */
static void ambiguous_grammars_are_bounded(void **state)
{
	(void)state;
	static const struct {
		const char *gbnf;
		int most;
		status ends;
	} cases[] = {
	    {"root ::= \"a\" (root \"x\"? | root \"y\"?)?", 100, STATUS_TOO_LARGE},
	    {"root ::= \"a\" root? \"b\"?", 20000, STATUS_TOO_LARGE},
	    {"root ::= \"a\" root \"b\" | \"c\"", 3000, STATUS_OK},
	    {"root ::= \"a\" root?", 3000, STATUS_OK},
	    {"root ::= r | r\nr ::= s | s\ns ::= t | t\nt ::= \"a\" root? root?", 1000, STATUS_TOO_LARGE},
	    {"root ::= x* \"b\"\nx ::= \"a\" | \"aa\" | [a]{3} | \"(\" root \")\"", 3000, STATUS_OK},
	    {"root ::= [ab]* \"a\" [ab]{3000}", 400, STATUS_OK},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		constraint *c = plain_constraint(&vocabularies[0], cases[i].gbnf, NULL);
		int pushed;
		const status s = push_many(c, 'a', cases[i].most, &pushed);
		if (s != cases[i].ends)
			fail_msg("%s: %s after %d", cases[i].gbnf, status_name(s), pushed);
		constraint_free(c);
	}
}

/* 2^18 ways to a node, each through a hundred repetitions. */
static void an_expansion_is_bounded(void **state)
{
	(void)state;
	char text[2048], *at = text + sprintf(text, "root ::= r1 | r1\n");
	for (int i = 1; i < 18; i++)
		at += sprintf(at, "r%d ::= r%d | r%d\n", i, i + 1, i + 1);
	at += sprintf(at, "r18 ::= (\"x\" root | \"x\")");
	for (int i = 0; i < 100; i++)
		at += sprintf(at, "{1}");
	grammar *g;
	grammar_stacks stacks = {0};
	bool ends = false;
	assert_int_equal(gbnf_grammar_new(&g, text, strlen(text), NULL), STATUS_OK);
	const int32_t top = grammar_push(&stacks, grammar_root(g), 0, FRAME_NONE);
	assert_int_equal(grammar_expand(g, &stacks, top, &ends), STATUS_TOO_LARGE);
	assert_true(stacks.work <= GRAMMAR_MOST_WORK + 1);
	grammar_stacks_fini(&stacks);
	grammar_free(g);
}

/* --- memory ------------------------------------------------------------------------------------------- */

static status make_plain(int kind, const json_t *listed)
{
	static const char gbnf[] = "root ::= \"a\" root [b-\u20ac] | [x] [y]? | (\"ab\" | \"c\"){2,3}",
	                  regex[] = "^(?=a)[a-z\u20ac]*";
	grammar *g = NULL;
	error err = ERROR_INIT;
	const status s = kind == 0   ? gbnf_grammar_new(&g, gbnf, strlen(gbnf), &err)
	                 : kind == 1 ? regex_grammar_new(&g, regex, strlen(regex), &err)
	                             : choice_grammar_new(&g, listed, &err);
	grammar_free(g);
	return s;
}

static void every_allocation_of_a_plain_grammar_may_fail(void **state)
{
	(void)state;
	json_t *listed = json_pack("[s, s, s]", "a", "ab", "\u20ac");
	for (int kind = 0; kind < 3; kind++) {
		status s = STATUS_NOMEM;
		int64_t n = 0;
		for (; s == STATUS_NOMEM; n++) {
			allocations_fail(n, true);
			s = make_plain(kind, listed);
			allocations_limit(-1);
		}
		assert_int_equal(s, STATUS_OK);
		assert_true(n > 8);
	}
	json_decref(listed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(tokens_may_be_parts_of_characters),
	    cmocka_unit_test(a_text_may_end_where_it_is_whole),
	    cmocka_unit_test(ambiguous_grammars_are_bounded),
	    cmocka_unit_test(an_expansion_is_bounded),
	    cmocka_unit_test(every_allocation_of_a_plain_grammar_may_fail),
	};
	return cmocka_run_group_tests(tests, make_vocabularies, free_vocabularies);
}
