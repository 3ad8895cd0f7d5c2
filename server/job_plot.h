/* job_plot.h - a picture of a job's losses over its steps. A job of any length is reduced to JOB_PLOT_COLUMNS ranges of
 * steps, each with the mean training loss and the last validation loss. */
#ifndef SERVER_JOB_PLOT_H
#define SERVER_JOB_PLOT_H

#include <jansson.h>

#include "server/buffer.h"

enum { JOB_PLOT_COLUMNS = 640 };

typedef struct job_plot {
	json_int_t total, latest; /* steps of the job; the latest one seen */
	double sum[JOB_PLOT_COLUMNS], valid[JOB_PLOT_COLUMNS];
	int count[JOB_PLOT_COLUMNS], valid_count[JOB_PLOT_COLUMNS];
} job_plot;

/* Add the data of a metrics event. Values that are not finite numbers are left out. */
void job_plot_add(job_plot *p, const json_t *data);
/* Append the picture: SVG without scripts, fonts or network. id: that of the job. */
void job_plot_write(const job_plot *p, const char *id, buffer *out);

#endif
