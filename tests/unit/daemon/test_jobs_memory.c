/* Changes of a job without memory: for every allocation in turn, it and all later ones fail. The change is made or not.
 * Once there is memory again, job table and ledger agree, and nothing is lost or leaked. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/sessions/sessions.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

enum { MAX_ALLOCATIONS = 20000, STEPS = 7 }; /* the most in one change; every STEPS-th allocation is tried */

static engine *make_engine(char folder[64])
{
	engine *e = memory_new(1, sizeof *e);
	folder_new(folder);
	log_init("test", LOG_ERROR + 1);
	assert_int_equal(store_open(&e->store, folder, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&e->catalog, e->store), STATUS_OK);
	parts_open_sessions(e);
	job_queue_stop(parts_open_kind(e, &training_jobs));
	return e;
}

static void free_engine(engine *e, const char *folder)
{
	job_machine_free(e->job_machine);
	sessions_free(e->sessions);
	catalog_free(e->catalog);
	store_close(e->store);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	free(e);
}

static job *add(engine *e, const char *id)
{
	json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:{s:i}, s:{s:s, s:i}}", "id", id, "status", "queued",
	                        "training_file", "file-1", "model", "additive", "additive", "step", 3, "request",
	                        "result", "ft:additive:1", "keep_checkpoints", 2);
	error err = ERROR_INIT;
	status s = job_state_add(jobs_of(e->job_machine), id, row, json_array(), &err);
	if (s != STATUS_OK)
		fail_msg("%s: %s", id, error_message(&err));
	json_decref(row);
	return job_table_find(jobs_of(e->job_machine), id);
}

static bool ask(engine *e, const char *method, const char *id, int64_t allocations)
{
	uint64_t before = e->net.requests + e->net.failures;
	stream *s = stream_new(&e->net, NULL, 0, 0);
	s->params = json_object();
	strcpy(s->target, id);
	allocations_limit(allocations);
	parts_begin_method(e, s, method);
	allocations_limit(-1);
	assert_int_equal(e->net.streams, 0);
	assert_int_equal(e->net.requests + e->net.failures, before + 1); /* answered once */
	return true;
}

/* Restore memory: job table and ledger agree on a state, which is returned. */
static const char *settled(engine *e, const char *id)
{
	static const char *const names[] = {"queued", "running", "paused"};
	static char in_ledger[16];
	json_t *row;
	job *j = job_table_find(jobs_of(e->job_machine), id);
	if (j && j->late_ns)
		j->late_ns = 1; /* a second later */
	job_state_tick(jobs_of(e->job_machine));
	j = job_table_find(jobs_of(e->job_machine), id);
	assert_int_equal(store_job_get(e->store, id, &row, NULL), STATUS_OK);
	snprintf(in_ledger, sizeof in_ledger, "%s", job_document_text(row, "status"));
	json_decref(row);
	if (j) {
		assert_false(j->unsettled);
		assert_string_equal(job_document_text(j->base.document, "status"), names[j->state]);
		assert_string_equal(in_ledger, names[j->state]);
		assert_int_equal(json_array_size(j->unwritten), 0);
		assert_int_equal(
		    json_integer_value(json_object_get(json_object_get(j->base.document, "additive"), "step")), 3);
	}
	return in_ledger;
}

typedef struct trial {
	const char *before, *after; /* states */
	const char *method;         /* NULL: a failure of the run, */
	status failure;             /* this failure */
} trial;

static bool try_change(engine *e, const trial *t, const char *id, int64_t allocations)
{
	job *j = add(e, id);
	if (strcmp(t->before, "paused") == 0)
		ask(e, "job.pause", id, -1);
	if (strcmp(t->before, "running") == 0)
		assert_int_equal(job_state_change(jobs_of(e->job_machine), j, JOB_RUNNING,
		                                  job_document_in_state(j->base.document, "running"), json_array(),
		                                  NULL),
		                 STATUS_OK);
	if (t->method) {
		ask(e, t->method, id, allocations);
	} else {
		allocations_limit(allocations);
		job_state_fail(jobs_of(e->job_machine), j, &(error){.status = t->failure});
		allocations_limit(-1);
	}
	const char *after = settled(e, id);
	bool changed = strcmp(after, t->after) == 0;
	/* A failure that could not be written counts as one of memory: the job is retried. */
	assert_true(changed || strcmp(after, t->method ? t->before : "paused") == 0);
	return changed;
}

static void a_change_without_memory_is_made_completely_or_not_at_all(void **state)
{
	static const trial trials[] = {
	    {"queued", "cancelled", "job.cancel", 0}, {"queued", "paused", "job.pause", 0},
	    {"running", "paused", "job.pause", 0},    {"paused", "queued", "job.resume", 0},
	    {"running", "paused", NULL, STATUS_FULL}, {"running", "failed", NULL, STATUS_INVALID}};
	char folder[64], id[STORE_ID_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
		engine *e = make_engine(folder);
		int64_t before = allocations_count();
		assert_true(try_change(e, &trials[i], "ftjob-0", -1));
		int64_t most = allocations_count() - before;
		assert_true(most > 10 && most < MAX_ALLOCATIONS);
		int unmade = 0;
		for (int64_t n = 0; n < most; n += STEPS) {
			snprintf(id, sizeof id, "ftjob-%d", (int)n + 1);
			unmade += !try_change(e, &trials[i], id, n);
			if (n % 50 == 49) { /* each change walks over all jobs */
				free_engine(e, folder);
				e = make_engine(folder);
			}
		}
		assert_true(unmade > 0 || !trials[i].method);
		free_engine(e, folder);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_change_without_memory_is_made_completely_or_not_at_all),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
