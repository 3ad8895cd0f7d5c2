/* Evaluations without memory: each allocation fails in turn. An answer is complete or an error, and a job's state is
 * the one in the ledger. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/faithfulness/faithfulness_report.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

enum { ROWS = 3, MAX_ALLOCATIONS = 100000 };

static const faithfulness_settings settings = {
    .n_orders = 3,
    .orders = {FAITHFULNESS_ALPHA, FAITHFULNESS_RANDOM, FAITHFULNESS_RECENCY},
    .measure = {.n_fractions = 1, .fractions = {0.5}, .grid = 2, .far = 1},
    .n_positions = 1,
    .positions = {-1},
    .replacement = -1,
    .bootstrap = 10,
    .confidence = 0.9,
};

typedef struct subject {
	model_entry model;
	json_t *params, *object;
	faithfulness_row rows[ROWS];
	faithfulness_cost cost;
} subject;

static void make_subject(subject *x)
{
	*x = (subject){.model = {.id = "model", .class_names = json_pack("[s, s]", "this", "that")}};
	x->params = json_object();
	x->object = faithfulness_settings_write(&settings, x->params);
	for (int i = 0; i < ROWS; i++) {
		assert_int_equal(faithfulness_row_init(&x->rows[i], &settings), STATUS_OK);
		x->rows[i].text = i / 2;
		x->rows[i].position = 5 + i;
		x->rows[i].token = i % 2;
		for (int64_t k = 0; k < faithfulness_row_numbers(&settings); k++)
			x->rows[i].memory[k] = (double)(float)((double)k / 7 + i * i);
	}
}

static void free_subject(subject *x)
{
	for (int i = 0; i < ROWS; i++)
		faithfulness_row_fini(&x->rows[i]);
	json_decref(x->model.class_names);
	json_decref(x->params);
	json_decref(x->object);
}

static json_t *make_settings(const subject *x)
{
	return faithfulness_settings_write(&settings, x->params);
}

static json_t *make_rows(const subject *x)
{
	return faithfulness_report_rows(&settings, &x->model, x->rows, ROWS);
}

static json_t *make_evaluation(const subject *x)
{
	return faithfulness_report_make(&settings, x->object, &x->model, x->rows, ROWS, &x->cost);
}

static void an_answer_without_memory_is_complete_or_an_error(void **state)
{
	static json_t *(*const makers[])(const subject *x) = {make_settings, make_rows, make_evaluation};
	(void)state;
	subject x;
	make_subject(&x);
	for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
		json_t *whole = makers[i](&x);
		bool refused = true;
		assert_non_null(whole);
		for (int64_t n = 0; refused && n < MAX_ALLOCATIONS; n++) {
			allocations_fail(n, false);
			json_t *found = makers[i](&x);
			refused = allocations_refused();
			allocations_limit(-1);
			assert_true(!found || json_equal(found, whole));
			assert_true(found || refused);
			json_decref(found);
		}
		assert_false(refused);
		json_decref(whole);
	}
	free_subject(&x);
}

static void rows_read_from_the_ledger_are_unchanged(void **state)
{
	(void)state;
	subject x;
	make_subject(&x);
	x.rows[1].memory[2] = (double)NAN; /* NaN: this metric is absent */
	json_t *array = make_rows(&x);
	for (int i = 0; i < ROWS; i++) {
		faithfulness_row back = {0};
		assert_int_equal(faithfulness_report_read(&settings, json_array_get(array, (size_t)i), &back),
		                 STATUS_OK);
		assert_true(back.position == x.rows[i].position && back.token == x.rows[i].token);
		for (int64_t k = 0; k < faithfulness_metrics(&settings.measure) * (int64_t)settings.n_orders; k++)
			assert_true(back.values.values[k] == x.rows[i].values.values[k] || (i == 1 && k == 2));
		faithfulness_row_fini(&back);
	}
	json_array_append_new(json_object_get(json_array_get(array, 0), "methods"), json_null());
	faithfulness_row damaged = {0};
	assert_int_equal(faithfulness_report_read(&settings, json_array_get(array, 0), &damaged), STATUS_CORRUPT);
	faithfulness_row_fini(&damaged);
	json_decref(array);
	free_subject(&x);
}

extern const job_kind faithfulness_jobs;

static void ask(engine *e, const char *name, const char *id, int64_t allocations)
{
	stream *s = stream_new(&e->net, NULL, 0, 0);
	s->params = json_object();
	strcpy(s->target, id);
	allocations_limit(allocations);
	parts_begin_method(e, s, name);
	allocations_limit(-1);
	assert_int_equal(e->net.streams, 0);
}

static void a_job_is_cancelled_in_memory_and_ledger_or_in_neither(void **state)
{
	(void)state;
	char folder[64];
	engine *e = memory_new(1, sizeof *e);
	folder_new(folder);
	log_init("test", LOG_ERROR + 1);
	assert_int_equal(store_open(&e->store, folder, NULL), STATUS_OK);
	job_queue *q = parts_open_kind(e, &faithfulness_jobs);
	job_queue_stop(q);
	json_t *params = json_pack("{s:s, s:s}", "model", "m", "file", "file-1");
	json_t *document = job_queue_document_new(q, "evaluation-1", params, json_object());
	assert_int_equal(job_queue_put(q, document, NULL), STATUS_OK);
	job_queue_append(q, job_queue_make(q, "evaluation-1", document));
	int64_t n = 0;
	for (bool ended = false; !ended && n < MAX_ALLOCATIONS; n += 3) {
		json_t *row;
		ask(e, "faithfulness.cancel", "evaluation-1", n);
		ended = !job_queue_find(q, "evaluation-1");
		assert_int_equal(store_job_get(e->store, "evaluation-1", &row, NULL), STATUS_OK);
		assert_string_equal(json_string_value(json_object_get(row, "status")), ended ? "cancelled" : "queued");
		json_decref(row);
	}
	assert_in_range(n, 4, MAX_ALLOCATIONS - 1);
	/* In the ledger it is not a training job, and after a restart it has ended. */
	job_machine_free(e->job_machine);
	assert_null(job_queue_find(parts_open_kind(e, &faithfulness_jobs), "evaluation-1"));
	json_decref(document);
	json_decref(params);
	job_machine_free(e->job_machine);
	store_close(e->store);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_answer_without_memory_is_complete_or_an_error),
	    cmocka_unit_test(rows_read_from_the_ledger_are_unchanged),
	    cmocka_unit_test(a_job_is_cancelled_in_memory_and_ledger_or_in_neither),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
