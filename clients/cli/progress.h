/* progress.h - the progress of a job, as one line. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <jansson.h>

#include "clients/cli/text.h"

typedef struct progress {
	long long step, total;                                                                  /* -1: unknown */
	double train_loss, valid_loss, bits_per_byte, accuracy, tokens_per_second, eta_seconds; /* NaN: unknown */
	long long from_step, from_time, latest_time; /* basis of the estimate; from_step -1: none yet */
} progress;

void progress_init(progress *p);
/* Take what an event's data, or a job's "additive", says; what it leaves out stays. */
void progress_update(progress *p, const json_t *data);
/* Estimate eta_seconds if `data` at `time` (Unix seconds) lacks it. The pace is measured since the first step seen, or
 * since the latest silence of a minute, in which the job was paused or the service unavailable. Call after
 * progress_update. */
void progress_estimate(progress *p, const json_t *data, long long time);
/* Append a line of at most `width` columns; what has no room is left out from the right, then the bar. */
void progress_line(const progress *p, int width, text *out);
/* 0 … 100; 0 while the total is unknown. */
int progress_percent(const progress *p);

#endif
