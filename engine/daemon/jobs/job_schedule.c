#include "engine/daemon/jobs/job_schedule.h"

#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/recipe/job_document.h"

/* Return the seconds that a job will still run, as its progress or else its estimate says; NAN: unknown. */
static double seconds_left(const json_t *document)
{
	const json_t *left = json_object_get(json_object_get(document, "additive"), "eta_seconds");
	if (!json_is_number(left))
		left = json_object_get(json_object_get(document, "resolved"), "estimated_seconds");
	return json_is_number(left) ? json_number_value(left) : NAN;
}

static json_t *time_after(double seconds)
{
	return isfinite(seconds) ? json_integer(clock_unix() + (json_int_t)ceil(seconds)) : json_null();
}

static bool is_waiting(const json_t *document)
{
	const char *state = job_document_text(document, "status");
	return state && strcmp(state, "queued") == 0;
}

/* The jobs that run before another one. */
typedef struct line {
	json_int_t waiting, running;
	double seconds; /* NAN: unknown */
} line;

/* id: of the other one, which may not be in the queue yet. */
static line jobs_before(const job_queue *q, const char *id)
{
	line l = {0};
	for (const job *j = job_table_first((const jobs *)q); j && strcmp(j->base.id, id) != 0; j = job_table_next(j)) {
		if (j->state == JOB_PAUSED)
			continue;
		l.waiting += j->state == JOB_QUEUED;
		l.running += j->state == JOB_RUNNING;
		l.seconds += seconds_left(j->base.document);
	}
	return l;
}

json_t *job_schedule_event(const job_queue *q)
{
	char time[32];
	const line l = jobs_before(q, "");
	const json_int_t n = l.waiting + l.running;
	job_estimate_text(&(job_estimate){.seconds = l.seconds}, time);
	return n == 0 ? NULL
	              : job_document_event("info", "%lld %s before this one%s%s", (long long)n,
	                                   n == 1 ? "job runs" : "jobs run", time[0] ? ": " : "", time);
}

json_t *job_schedule_show(const job_queue *q, const json_t *document)
{
	json_t *shown = job_document_public(document), *additive = json_object_get(shown, "additive");
	const bool waits = is_waiting(document);
	const line l = waits ? jobs_before(q, job_document_text(document, "id")) : (line){.seconds = NAN};
	json_t *finish = waits ? time_after(l.seconds + seconds_left(document)) : NULL;
	if (json_object_set_new(additive, "queue_position", waits ? json_integer(l.waiting + 1) : json_null()) == 0 &&
	    json_object_set_new(additive, "expected_start", time_after(l.seconds)) == 0 &&
	    (!waits || json_object_set_new(shown, "estimated_finish", finish) == 0))
		return shown;
	json_decref(shown);
	return NULL;
}
