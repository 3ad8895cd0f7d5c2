/* test_load.c - the histogram against sorted values; the rules of an answer, one broken at a time. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/load/answer.h"
#include "clients/load/histogram.h"
#include "clients/load/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void test_percentiles_are_at_most_one_64th_too_large(void **state)
{
	enum { N = 5000 };
	static const double percents[] = {0.001, 1, 50, 90, 99, 99.9, 100};
	static uint64_t values[N];
	histogram *h = calloc(1, sizeof *h);
	uint64_t random = 7;
	(void)state;
	for (int i = 0; i < N; i++) {
		values[i] = (uint64_t)pow(2, 63.9 * random_unit(&random));
		histogram_add(h, values[i]);
	}
	qsort(values, N, sizeof *values, ascending);
	for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
		const uint64_t exact = values[(int)ceil(percents[i] / 100 * N) - 1];
		const uint64_t found = histogram_percentile(h, percents[i]);
		assert_true(found >= exact && found - exact <= exact / 64);
	}
	assert_true(histogram_percentile(h, 100) == values[N - 1]);
	free(h);
}

static void test_small_and_extreme_values_are_exact(void **state)
{
	histogram *h = calloc(1, sizeof *h);
	(void)state;
	assert_int_equal(histogram_percentile(h, 50), 0);
	for (uint64_t i = 0; i < 128; i++)
		histogram_add(h, i);
	for (int i = 1; i <= 128; i++)
		assert_int_equal(histogram_percentile(h, i / 1.28), i - 1);
	histogram_add(h, UINT64_MAX);
	assert_true(histogram_percentile(h, 100) == UINT64_MAX);
	free(h);
}

#define TEXT(words) "data: {\"choices\":[{\"text\":\"" words "\",\"finish_reason\":null}]}\n\n"
#define FINISH(reason) "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"" reason "\"}]}\n\n"
#define USAGE "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3},\"session\":{\"id\":\"s\",\"tokens\":9}}\n\n"
#define DONE "data: [DONE]\n\n"

static answer take(const char *stream)
{
	answer a = {0};
	int texts;
	answer_begin(&a);
	assert_true(answer_feed(&a, stream, strlen(stream), &texts));
	return a;
}

/* The problem of a stream, "" if it has none. */
static const char *judge(const char *stream, outcome how)
{
	static char problem[200];
	answer expected = take(TEXT("one ") TEXT("two") FINISH("length") USAGE DONE), a = take(stream);
	const bool good = answer_check(&a, how, 3, &expected);
	assert_int_equal(good, a.problem[0] == '\0');
	snprintf(problem, sizeof problem, "%s", a.problem);
	answer_free(&a);
	answer_free(&expected);
	return problem;
}

static void test_an_answer_equal_to_the_expected_one_is_right(void **state)
{
	(void)state;
	assert_string_equal(judge(TEXT("one two") FINISH("length") USAGE DONE, OUTCOME_COMPLETE), "");
	assert_string_equal(judge(TEXT("o") TEXT("ne t"), OUTCOME_LEFT), "");
	assert_string_equal(judge("", OUTCOME_LOST), "");
}

static void test_each_broken_rule_is_named(void **state)
{
	(void)state;
	assert_string_equal(judge(TEXT("one") FINISH("length") USAGE DONE, OUTCOME_COMPLETE), "3 bytes of 7");
	assert_string_equal(judge(TEXT("one twO") FINISH("length") USAGE DONE, OUTCOME_COMPLETE),
	                    "the text differs from the undisturbed answer");
	assert_string_equal(judge(TEXT("two"), OUTCOME_LEFT), "the text differs from the undisturbed answer");
	assert_string_equal(judge(TEXT("one two, three"), OUTCOME_LOST),
	                    "the text differs from the undisturbed answer");
	assert_string_equal(judge(TEXT("one two") FINISH("length") FINISH("length") USAGE DONE, OUTCOME_COMPLETE),
	                    "2 finish reasons");
	assert_string_equal(judge(TEXT("one two") USAGE DONE, OUTCOME_COMPLETE), "no finish reason");
	assert_string_equal(judge(TEXT("one two") FINISH("stop") USAGE DONE, OUTCOME_COMPLETE),
	                    "finish reason stop, undisturbed length");
	assert_string_equal(judge(TEXT("one two") FINISH("length") USAGE DONE TEXT("x"), OUTCOME_COMPLETE),
	                    "events follow [DONE]");
	assert_string_equal(judge(TEXT("one two") FINISH("length") DONE, OUTCOME_COMPLETE),
	                    "-1 tokens, at position -1; undisturbed 3, 9");
	assert_string_equal(judge("data: nonsense\n\n" TEXT("one"), OUTCOME_LEFT), "an event is not JSON");
}

static void test_more_tokens_than_the_limit_break_a_rule(void **state)
{
	answer a = take(TEXT("x") FINISH("length") USAGE DONE);
	(void)state;
	assert_true(answer_check(&a, OUTCOME_COMPLETE, 3, NULL));
	assert_false(answer_check(&a, OUTCOME_COMPLETE, 2, NULL));
	assert_string_equal(a.problem, "3 tokens of at most 2");
	answer_free(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_percentiles_are_at_most_one_64th_too_large),
	                                   cmocka_unit_test(test_small_and_extreme_values_are_exact),
	                                   cmocka_unit_test(test_an_answer_equal_to_the_expected_one_is_right),
	                                   cmocka_unit_test(test_each_broken_rule_is_named),
	                                   cmocka_unit_test(test_more_tokens_than_the_limit_break_a_rule)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
