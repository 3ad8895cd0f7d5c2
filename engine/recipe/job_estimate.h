/* job_estimate.h - the work of a job, before it starts. */
#ifndef ENGINE_RECIPE_JOB_ESTIMATE_H
#define ENGINE_RECIPE_JOB_ESTIMATE_H

#include "engine/recipe/job_request.h"

typedef struct job_estimate {
	double parameters; /* scalars that the model has */
	double seconds;    /* that the job will take; NAN: unknown */
} job_estimate;

/* Estimate a settled request. valid: NULL without validation; speed: floating-point operations per second, 0: unknown.
 * STATUS_NOMEM. */
status job_estimate_make(job_estimate *out, const job_request *r, const dataset *valid, double speed);
/* "about 4 min"; "" where the time is unknown. */
const char *job_estimate_text(const job_estimate *e, char out[32]);

#endif
