/* test_progress.c - the progress line: its content, and that it fits. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/progress.h"

#include <math.h>
#include <string.h>

static progress of(const char *json)
{
	progress p;
	json_t *data = json_loads(json, 0, NULL);

	assert_non_null(data);
	progress_init(&p);
	progress_update(&p, data);
	json_decref(data);
	return p;
}

static void shows(const progress *p, int width, const char *line)
{
	text out = {0};

	progress_line(p, width, &out);
	assert_string_equal(text_get(&out), line);
	text_free(&out);
}

static void nothing_is_known_at_first(void **state)
{
	(void)state;
	progress p = of("{}");

	shows(&p, 80, "step 0 [..............................]   0%");
	assert_int_equal(progress_percent(&p), 0);
}

static void everything_is_shown_when_there_is_room(void **state)
{
	(void)state;
	progress p =
	    of("{\"step\":500,\"total_steps\":2000,\"train_loss\":2.34567,\"valid_loss\":2.5,\"bits_per_byte\":3.6067,"
	       "\"tokens_per_second\":12345.6,\"eta_seconds\":83.4}");

	shows(&p, 200,
	      "500/2000 [#######.......................]  25%  loss 2.346  ETA 1:23  valid 2.5  3.607 bits/byte  12.3k "
	      "tokens/s");
}

static void parts_without_room_are_left_out_from_the_right(void **state)
{
	(void)state;
	progress p =
	    of("{\"step\":500,\"total_steps\":2000,\"train_loss\":2.34567,\"valid_loss\":2.5,\"bits_per_byte\":3.6067,"
	       "\"tokens_per_second\":12345.6,\"eta_seconds\":83.4}");

	for (int width = 1; width < 200; width++) {
		text out = {0};

		progress_line(&p, width, &out);
		assert_true((int)out.used <= width);
		assert_true(width < 60 || strstr(text_get(&out), "loss 2.346"));
		text_free(&out);
	}
	shows(&p, 40, "500/2000 [###.........]  25%  loss 2.346");
}

static void a_later_update_keeps_values_that_it_lacks(void **state)
{
	(void)state;
	progress p = of("{\"step\":1,\"total_steps\":4,\"valid_loss\":3}");
	json_t *data = json_pack("{s:i, s:f, s:n}", "step", 2, "train_loss", 1.5, "valid_loss");

	progress_update(&p, data);
	json_decref(data);
	assert_int_equal(p.step, 2);
	assert_int_equal(p.total, 4);
	assert_true(p.valid_loss == 3 && p.train_loss == 1.5);
	progress_update(&p, NULL);
	assert_int_equal(p.step, 2);
}

static void nonsense_from_the_service_changes_nothing(void **state)
{
	(void)state;
	progress p = of("{\"step\":-5,\"total_steps\":\"many\",\"train_loss\":[],\"eta_seconds\":true}");

	assert_int_equal(p.step, -1);
	assert_int_equal(p.total, -1);
	assert_true(isnan(p.train_loss) && isnan(p.eta_seconds));
}

static void the_end_is_exactly_100_percent(void **state)
{
	(void)state;
	progress almost = of("{\"step\":1999,\"total_steps\":2000}");
	progress done = of("{\"step\":2000,\"total_steps\":2000,\"eta_seconds\":0}");
	progress over = of("{\"step\":2001,\"total_steps\":2000}");

	assert_int_equal(progress_percent(&almost), 99);
	assert_int_equal(progress_percent(&done), 100);
	assert_int_equal(progress_percent(&over), 100);
	shows(&done, 60, "2000/2000 [##############################] 100%");
}

static void times_and_rates_are_readable(void **state)
{
	(void)state;
	static const struct {
		const char *json, *part;
	} cases[] = {
	    {"{\"eta_seconds\":0.4}", "ETA 0:00"},
	    {"{\"eta_seconds\":59.6}", "ETA 1:00"},
	    {"{\"eta_seconds\":3599}", "ETA 59:59"},
	    {"{\"eta_seconds\":3600}", "ETA 1:00:00"},
	    {"{\"eta_seconds\":90000}", "ETA 1d 1h"},
	    {"{\"eta_seconds\":1e300}", "ETA 11574d 1h"},
	    {"{\"eta_seconds\":-3}", "ETA 0:00"},
	    {"{\"tokens_per_second\":950}", "950 tokens/s"},
	    {"{\"tokens_per_second\":83210}", "83.2k tokens/s"},
	    {"{\"tokens_per_second\":2.5e6}", "2.5M tokens/s"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		progress p = of(cases[i].json);
		text out = {0};

		progress_line(&p, 120, &out);
		assert_non_null(strstr(text_get(&out), cases[i].part));
		text_free(&out);
	}
}

static void step_at(progress *p, int step, long long time)
{
	json_t *data = json_pack("{s:i, s:i}", "step", step, "total_steps", 1000);

	progress_update(p, data);
	progress_estimate(p, data, time);
	json_decref(data);
}

static void the_remaining_time_follows_from_the_pace(void **state)
{
	(void)state;
	progress p;

	progress_init(&p);
	step_at(&p, 1, 5000);
	assert_true(isnan(p.eta_seconds));
	step_at(&p, 51, 5000);
	assert_true(isnan(p.eta_seconds));
	step_at(&p, 101, 5010);
	assert_true(fabs(p.eta_seconds - 89.9) <= 1e-9);
	/* paused for an hour */
	step_at(&p, 102, 8610);
	assert_true(isnan(p.eta_seconds));
	step_at(&p, 202, 8620);
	assert_true(fabs(p.eta_seconds - 79.8) <= 1e-9);
	/* set back to a checkpoint */
	step_at(&p, 50, 8621);
	assert_true(isnan(p.eta_seconds));
	step_at(&p, 60, 8631);
	assert_true(fabs(p.eta_seconds - 940) <= 1e-9);
}

static void an_estimate_of_the_service_is_used(void **state)
{
	(void)state;
	progress p = of("{\"step\":1,\"total_steps\":10,\"eta_seconds\":5}");
	json_t *data = json_pack("{s:i, s:f}", "step", 2, "eta_seconds", 4.0);

	progress_update(&p, data);
	progress_estimate(&p, data, 100);
	progress_estimate(&p, NULL, 100);
	assert_true(p.eta_seconds == 4);
	json_decref(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nothing_is_known_at_first),
	    cmocka_unit_test(everything_is_shown_when_there_is_room),
	    cmocka_unit_test(parts_without_room_are_left_out_from_the_right),
	    cmocka_unit_test(a_later_update_keeps_values_that_it_lacks),
	    cmocka_unit_test(nonsense_from_the_service_changes_nothing),
	    cmocka_unit_test(the_end_is_exactly_100_percent),
	    cmocka_unit_test(times_and_rates_are_readable),
	    cmocka_unit_test(the_remaining_time_follows_from_the_pace),
	    cmocka_unit_test(an_estimate_of_the_service_is_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
