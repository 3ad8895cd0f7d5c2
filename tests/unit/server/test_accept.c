#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "server/accept.h"

static const char *const offers[] = {"application/json", "text/html"};

static void the_best_quality_wins_and_then_the_first_offer(void **state)
{
	(void)state;
	static const struct {
		const char *accept;
		int expected;
	} cases[] = {{"", 0},
	             {"*/*", 0},
	             {"text/html", 1},
	             {"TEXT/HTML", 1},
	             {"text/*", 1},
	             {"text/html, application/json", 0},
	             {"application/json;q=0.5, text/html", 1},
	             {"text/html;level=1;q=0.2, */*;q=0.1", 1},
	             {"text/html;q=0.2;*/*", 1},
	             {"*/*;q=0.9, application/json;q=0.1", 1},
	             {"text/html;q=0, */*", 0},
	             {"text/html;q=1.0,application/xhtml+xml,*/*;q=0.8", 1},
	             {" , ,text/html", 1},
	             {"image/png", -1},
	             {"text/htm", -1},
	             {"*", -1},
	             {"application/json;q=0, text/html;q=0", -1},
	             {"/", -1},
	             {";q=1", -1},
	             {"text/html;q=x", -1}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (accept_pick(cases[i].accept, offers, 2) != cases[i].expected)
			fail_msg("Accept: %s", cases[i].accept);
	assert_int_equal(accept_pick(NULL, offers, 2), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_quality_wins_and_then_the_first_offer)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
