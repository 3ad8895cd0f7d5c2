/* test_job_trace.c - the phases of a job. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/daemon/queue/job_trace.h"

static json_t *new_document(void)
{
	const stream traced = {.trace = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"};
	json_t *document = json_pack("{s:s, s:s, s:s}", "id", "job", "object", "evaluation", "status", "queued");
	job_trace_begin(document, &traced);
	return document;
}

static void set_status(json_t *document, const char *value)
{
	json_object_set_new(document, "status", json_string(value));
	job_trace_follow(document);
}

/* Return a span as it is recorded; borrowed. */
static const json_t *span_at(const json_t *document, size_t i)
{
	return json_array_get(json_object_get(json_object_get(document, JOB_TRACE), "spans"), i);
}

static void a_phase_ends_with_the_next_one_also_if_that_is_dropped(void **state)
{
	json_t *document = new_document();
	(void)state;
	for (int i = 1; i < JOB_TRACE_SPANS; i++)
		job_trace_phase(document, i % 2 ? "running" : "finalizing");
	const json_t *last = span_at(document, JOB_TRACE_SPANS - 1);
	assert_string_equal(json_string_value(json_object_get(last, "name")), "running");
	assert_null(json_object_get(last, "to"));
	set_status(document, "paused");
	assert_true(json_is_integer(json_object_get(span_at(document, JOB_TRACE_SPANS - 1), "to")));
	job_trace_run(document, NULL);
	assert_null(json_object_get(span_at(document, JOB_TRACE_SPANS - 1), "interrupted"));
	assert_null(span_at(document, JOB_TRACE_SPANS));
	json_decref(document);
}

static void a_step_of_the_run_before_is_left_out(void **state)
{
	json_t *document = new_document();
	(void)state;
	job_trace_run(document, NULL);
	job_trace_step(document, "checkpoint", 5, 0);
	assert_int_equal(json_integer_value(json_object_get(span_at(document, 2), "step")), 5);
	set_status(document, "cancelled");
	set_status(document, "queued");
	job_trace_step(document, "checkpoint", 6, 1000000000);
	assert_non_null(span_at(document, 0));
	assert_null(span_at(document, 1));
	json_decref(document);
}

static void a_phase_that_no_run_has_ended_is_marked(void **state)
{
	json_t *document = new_document();
	(void)state;
	job_trace_run(document, NULL);
	job_trace_run(document, NULL);
	assert_null(json_object_get(span_at(document, 0), "interrupted"));
	assert_true(json_is_true(json_object_get(span_at(document, 1), "interrupted")));
	assert_null(json_object_get(span_at(document, 2), "interrupted"));
	json_decref(document);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_phase_ends_with_the_next_one_also_if_that_is_dropped),
	    cmocka_unit_test(a_step_of_the_run_before_is_left_out),
	    cmocka_unit_test(a_phase_that_no_run_has_ended_is_marked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
