#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "server/metrics.h"
#include "server/router.h"

/* All metrics as a C string; free it. */
static char *text_of(const metrics *m, const char *engine)
{
	buffer out = {0};
	json_t *json = engine ? json_loads(engine, 0, NULL) : NULL;
	metrics_write(m, json != NULL, json, &out);
	buffer_append(&out, "", 1);
	assert_false(out.failed);
	json_decref(json);
	return out.data;
}

static void expect(const char *text, const char *line)
{
	if (!strstr(text, line))
		fail_msg("missing: %s", line);
}

static void a_request_is_counted_by_its_route_and_status(void **state)
{
	(void)state;
	metrics *m = metrics_new();
	assert_non_null(m);
	for (int i = 0; i < 3; i++)
		metrics_request_begins(m);
	metrics_request_ends(m, router_row(0), 200, 0.003);
	metrics_request_ends(m, NULL, 404, 100);
	char *text = text_of(m, NULL);
	expect(text, "additive_http_requests_in_flight 1\n");
	expect(text, "additive_engine_up 0\n");
	expect(text, "additive_http_requests_total{method=\"GET\",route=\"/v1/models\",status=\"200\"} 1\n");
	expect(text, "additive_http_requests_total{method=\"\",route=\"unmatched\",status=\"404\"} 1\n");
	expect(text, "_bucket{method=\"GET\",route=\"/v1/models\",le=\"0.0025\"} 0\n");
	expect(text, "_bucket{method=\"GET\",route=\"/v1/models\",le=\"0.005\"} 1\n");
	expect(text, "_bucket{method=\"GET\",route=\"/v1/models\",le=\"+Inf\"} 1\n");
	expect(text, "_sum{method=\"GET\",route=\"/v1/models\"} 0.003\n");
	expect(text, "_bucket{method=\"\",route=\"unmatched\",le=\"60\"} 0\n");
	expect(text, "_count{method=\"\",route=\"unmatched\"} 1\n");
	free(text);
	metrics_request_ends(m, router_row(0), 0, 1);
	text = text_of(m, NULL);
	expect(text, "route=\"/v1/models\",status=\"499\"} 1\n");
	free(text);
	metrics_free(m);
}

static void the_number_of_statuses_is_bounded(void **state)
{
	(void)state;
	metrics *m = metrics_new();
	for (int i = 0; i < 1000; i++) {
		metrics_request_begins(m);
		metrics_request_ends(m, NULL, 100 + i, 0.1);
	}
	char *text = text_of(m, NULL);
	assert_true(strlen(text) < 20000);
	expect(text, "_count{method=\"\",route=\"unmatched\"} 1000\n");
	free(text);
	metrics_free(m);
}

static void latencies_are_per_token(void **state)
{
	(void)state;
	metrics *m = metrics_new();
	metrics_first_token(m, 0.2);
	metrics_next_tokens(m, 0.4, 4);
	metrics_next_tokens(m, 0.4, 0);
	metrics_queue(m, 0.002);
	char *text = text_of(m, NULL);
	expect(text, "additive_time_to_first_token_seconds_count{} 1\n");
	expect(text, "additive_inter_token_latency_seconds_bucket{le=\"0.1\"} 4\n");
	expect(text, "additive_inter_token_latency_seconds_sum{} 0.4\n");
	expect(text, "additive_queue_time_seconds_bucket{le=\"0.0025\"} 1\n");
	free(text);
	metrics_free(m);
}

static void the_engines_metrics_may_have_any_value(void **state)
{
	(void)state;
	static const char *const odd[] = {
	    "{}",
	    "[]",
	    "{\"metrics\":7}",
	    "{\"metrics\":[null,[],{},{\"name\":7},{\"name\":\"a\",\"type\":\"b\"},{\"name\":\"1a\",\"type\":\"gauge\"}"
	    "]}",
	    "{\"metrics\":[{\"name\":\"x\",\"type\":\"gauge\",\"samples\":{}},{\"name\":\"y\",\"type\":\"gauge\","
	    "\"samples\":[1,{\"labels\":[],\"value\":\"x\"}]}]}",
	    "{\"metrics\":[{\"name\":\"z\",\"type\":\"histogram\",\"buckets\":[1,[],[\"a\",2],[null,3]]}]}"};
	metrics *m = metrics_new();
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		char *text = text_of(m, odd[i]);
		expect(text, "additive_engine_up 1\n");
		free(text);
	}
	metrics_free(m);
	metrics_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_request_is_counted_by_its_route_and_status),
	    cmocka_unit_test(the_number_of_statuses_is_bounded),
	    cmocka_unit_test(latencies_are_per_token),
	    cmocka_unit_test(the_engines_metrics_may_have_any_value),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
