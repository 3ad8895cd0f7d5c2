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

json_t *job_schedule_show(const job_queue *q, const json_t *document)
{
	json_t *shown = job_document_public(document), *additive = json_object_get(shown, "additive");
	const char *id = job_document_text(document, "id");
	const bool waits = is_waiting(document);
	double start = 0;
	json_int_t position = 1;
	for (const job *j = job_table_first((const jobs *)q); waits && j && strcmp(j->base.id, id) != 0;
	     j = job_table_next(j)) {
		position += j->state == JOB_QUEUED;
		start += j->state == JOB_PAUSED ? 0 : seconds_left(j->base.document);
	}
	if (json_object_set_new(additive, "queue_position", waits ? json_integer(position) : json_null()) == 0 &&
	    json_object_set_new(additive, "expected_start", time_after(waits ? start : NAN)) == 0 &&
	    (!waits || json_object_set_new(shown, "estimated_finish", time_after(start + seconds_left(document))) == 0))
		return shown;
	json_decref(shown);
	return NULL;
}
