/* test_heat.c - weights over a text: grouping of tokens, and levels of heat. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/heat.h"
#include "clients/cli/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *tokens_of(const char *const *texts)
{
	json_t *tokens = json_array();

	for (int i = 0; texts[i]; i++)
		json_array_append_new(tokens, json_pack("{s:i, s:s, s:i}", "id", i, "text", texts[i], "offset", i));
	return tokens;
}

static json_t *weights_of(const double *weights, int n)
{
	json_t *list = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(list, json_real(weights[i]));
	return list;
}

static void a_character_of_several_tokens_gets_the_sum(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "", "", "☃", "b", NULL});
	json_t *weights = weights_of((const double[]){0.1, 0.2, 0.3, 0.1, 0.3}, 5);
	heat h;

	assert_true(heat_new(&h, tokens, weights));
	assert_int_equal(h.n, 3);
	assert_string_equal(h.pieces[1].text, "☃");
	assert_true(fabs(h.pieces[1].weight - 0.6) <= 1e-12);
	assert_int_equal(h.pieces[1].position, 3);
	assert_true(fabs(h.max - 0.6) <= 1e-12);
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

static void the_weight_of_an_unfinished_character_is_not_lost(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "", "", NULL});
	json_t *weights = weights_of((const double[]){0.5, 0.25, 0.25}, 3);
	heat h;

	assert_true(heat_new(&h, tokens, weights));
	assert_int_equal(h.n, 2);
	assert_string_equal(h.pieces[1].text, "");
	assert_true(fabs(h.pieces[1].weight - 0.5) <= 1e-12);
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

/* The unfinished end of the first text is not joined with the second text. */
static void a_token_without_text_keeps_its_weight_to_itself(void **state)
{
	(void)state;
	static const struct {
		const char *texts[8];
		size_t n, pieces;
		double second, third;
	} cases[] = {{{"a", "", "b", "", NULL}, 4, 4, 0.4, 0.2}, {{"a", "", "", "é", NULL}, 4, 3, 0.4, 0.4}};
	for (size_t i = 0; i < 2; i++) {
		json_t *tokens = tokens_of(cases[i].texts);
		json_t *weights = weights_of((const double[]){0.2, 0.4, 0.2, 0.2}, 4);
		heat h;

		assert_true(heat_new(&h, tokens, weights));
		assert_int_equal(h.n, cases[i].pieces);
		assert_string_equal(h.pieces[1].text, "");
		assert_int_equal(h.pieces[1].position, 1);
		assert_true(fabs(h.pieces[1].weight - cases[i].second) <= 1e-12);
		assert_true(fabs(h.pieces[2].weight - cases[i].third) <= 1e-12);
		heat_free(&h);
		json_decref(tokens);
		json_decref(weights);
	}
}

static void more_weights_than_tokens_are_refused(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", NULL});
	json_t *weights = weights_of((const double[]){0.5, 0.5}, 2);
	heat h;

	assert_false(heat_new(&h, tokens, weights));
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

static void no_tokens_make_an_empty_map(void **state)
{
	(void)state;
	heat h;
	text out = {0};

	assert_true(heat_new(&h, NULL, NULL));
	assert_int_equal(h.n, 0);
	heat_top(&h, 5, true, 0, &out);
	assert_string_equal(text_get(&out), "");
	heat_map(&h, 0, &out);
	text_free(&out);
	heat_free(&h);
}

static void heavier_tokens_are_hotter(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "b", "c", "\n", NULL});
	json_t *weights = weights_of((const double[]){0, 0.01, 0.96, 0.03}, 4);
	heat h;
	text out = {0};

	assert_true(heat_new(&h, tokens, weights));
	heat_map(&h, 0, &out);
	/* 0 has no colour; 0.01/0.96 is level 1, 0.03/0.96 level 2, the heaviest token level 7 */
	assert_true(strncmp(text_get(&out),
	                    "a\x1b[38;5;16;48;5;230mb\x1b[0m\x1b[38;5;16;48;5;196mc\x1b[0m\x1b[38;5;16;48;5;229m⏎\x1b["
	                    "0m\n\n\nweight ",
	                    strlen("a\x1b[38;5;16;48;5;230mb\x1b[0m\x1b[38;5;16;48;5;196mc\x1b[0m\x1b[38;5;16;48;5;"
	                           "229m⏎\x1b[0m\n\n\nweight ")) == 0);
	assert_non_null(strstr(text_get(&out), "≤0.96 "));
	text_free(&out);
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

static void control_characters_in_tokens_are_harmless(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"\x1b[2J", "\xc2\x9b", "\xe2\x80\xae", NULL});
	json_t *weights = weights_of((const double[]){0.2, 0.3, 0.5}, 3);
	heat h;
	text out = {0};

	assert_true(heat_new(&h, tokens, weights));
	heat_top(&h, 3, false, 0, &out);
	assert_null(strchr(text_get(&out), 0x1b));
	assert_non_null(strstr(text_get(&out), "'\\x1b[2J'"));
	assert_non_null(strstr(text_get(&out), "'\\u009b'"));
	assert_non_null(strstr(text_get(&out), "'\\u202e'"));
	text_free(&out);
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

static void the_list_is_sorted_and_cut(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "b", "c", "d", NULL});
	json_t *weights = weights_of((const double[]){0.1, 0.4, 0.1, 0.4}, 4);
	heat h;
	text out = {0};

	assert_true(heat_new(&h, tokens, weights));
	heat_top(&h, 3, false, 0, &out);
	assert_string_equal(text_get(&out), "  0.4000        1  ##############################  'b'\n"
	                                    "  0.4000        3  ##############################  'd'\n"
	                                    "  0.1000        0  ########                        'a'\n");
	text_free(&out);
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

static void signs_have_their_own_hues_lines_and_bars(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "b", "c", NULL});
	json_t *numbers = weights_of((const double[]){-0.8, 0.2, 0}, 3);
	heat h;
	text out = {0};

	assert_true(heat_new_signed(&h, tokens, numbers, false));
	assert_true(fabs(h.max - 0.8) <= 1e-12);
	heat_top(&h, 2, false, 0, &out);
	assert_string_equal(text_get(&out), " -0.8000        0  ------------------------------  'a'\n"
	                                    " +0.2000        1  ++++++++                        'b'\n");
	text_clear(&out);
	heat_map(&h, 0, &out);
	const char *map = "\x1b[4;38;5;16;48;5;69ma\x1b[0m\x1b[38;5;16;48;5;215mb\x1b[0mc\n\nlogits  ";
	assert_true(strncmp(text_get(&out), map, strlen(map)) == 0);
	assert_non_null(strstr(text_get(&out), "\x1b[4;38;5;16;48;5;69m -0.8 "));
	assert_non_null(strstr(text_get(&out), "\x1b[38;5;16;48;5;196m +0.8 "));
	text_free(&out);
	heat_free(&h);
	json_decref(tokens);
	json_decref(numbers);
}

/* Also where it completes a character of several tokens. */
static void the_reader_is_in_the_map_and_not_in_the_list(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "", "é", NULL});
	json_t *numbers = weights_of((const double[]){-0.5, 0.25, 9}, 3);
	heat h;
	text out = {0};

	assert_true(heat_new_signed(&h, tokens, numbers, true));
	assert_int_equal(h.n, 3);
	assert_true(fabs(h.max - 0.5) <= 1e-12);
	heat_top(&h, 9, false, 0, &out);
	assert_string_equal(text_get(&out), " -0.5000        0  ------------------------------  'a'\n"
	                                    " +0.2500        1  +++++++++++++++                 ''\n");
	text_clear(&out);
	heat_map(&h, 0, &out);
	assert_non_null(strstr(text_get(&out), "\x1b[38;5;16;48;5;196mé\x1b[0m"));
	text_free(&out);
	heat_free(&h);
	assert_true(heat_new_signed(&h, NULL, NULL, true));
	assert_int_equal(h.n, 0);
	heat_free(&h);
	json_decref(tokens);
	json_decref(numbers);
}

static void lines_fit_the_terminal(void **state)
{
	(void)state;
	json_t *tokens = tokens_of((const char *const[]){"a", "a long piece of text 漢字", "c", NULL});
	json_t *weights = weights_of((const double[]){0.1, 0.7, 0.2}, 3);
	heat h;

	assert_true(heat_new(&h, tokens, weights));
	for (int width = 32; width < 90; width++) {
		text out = {0};

		heat_top(&h, 3, false, width, &out);
		heat_map(&h, width, &out);
		assert_true(width < 61 || strstr(text_get(&out), "##############################"));
		for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n"))
			if (!strchr(line, 0x1b)) /* colours have no width */
				assert_true(terminal_columns(line, strlen(line)) <= width);
		text_free(&out);
	}
	heat_free(&h);
	json_decref(tokens);
	json_decref(weights);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_character_of_several_tokens_gets_the_sum),
	    cmocka_unit_test(the_weight_of_an_unfinished_character_is_not_lost),
	    cmocka_unit_test(a_token_without_text_keeps_its_weight_to_itself),
	    cmocka_unit_test(more_weights_than_tokens_are_refused),
	    cmocka_unit_test(no_tokens_make_an_empty_map),
	    cmocka_unit_test(heavier_tokens_are_hotter),
	    cmocka_unit_test(control_characters_in_tokens_are_harmless),
	    cmocka_unit_test(the_list_is_sorted_and_cut),
	    cmocka_unit_test(signs_have_their_own_hues_lines_and_bars),
	    cmocka_unit_test(the_reader_is_in_the_map_and_not_in_the_list),
	    cmocka_unit_test(lines_fit_the_terminal),
	};

	terminal_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
