/* The numbers of a job's metrics events, the oldest first, as a table or a picture. Events are read page by page, the
 * next page when the client has taken the rows of the one before, so a slow client holds one page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/routes.h"
#include "server/forward.h"
#include "server/job_plot.h"

enum { JOB_METRICS_PAGE = 200, JOB_METRICS_ID_BYTES = 64 };

static const char *const job_metrics_columns[] = {
    "step",           "total_steps",    "train_loss",  "learning_rate",     "gradient_norm",
    "gradient_noise", "skipped_steps",  "empty_steps", "tokens_per_second", "valid_loss",
    "bits_per_byte",  "perplexity",     "accuracy",    "macro_f1",          "matthews",
    "exact",          "blank_accuracy", "margin",      "chosen_reward",     "rejected_reward"};
enum { JOB_METRICS_COLUMNS = sizeof job_metrics_columns / sizeof *job_metrics_columns };

typedef struct job_metrics {
	char after[JOB_METRICS_ID_BYTES]; /* the last event that was read; "" before the first page */
	bool started, more;               /* the answer has begun; more events follow `after` */
	job_plot *plot;                   /* for a picture; NULL: a table */
} job_metrics;

static void job_metrics_page(request *r);

/* Nothing where there is no number. */
static void job_metrics_number(buffer *out, const json_t *number)
{
	if (json_is_integer(number))
		buffer_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
	else if (json_is_real(number))
		buffer_format(out, "%.9g", json_real_value(number));
}

static void job_metrics_row(buffer *out, const json_t *event)
{
	const json_t *data = json_object_get(event, "data");
	job_metrics_number(out, json_object_get(event, "created_at"));
	for (int i = 0; i < JOB_METRICS_COLUMNS; i++) {
		buffer_string(out, ",");
		job_metrics_number(out, json_object_get(data, job_metrics_columns[i]));
	}
	buffer_string(out, "\n");
}

static void job_metrics_begin(request *r, buffer *rows)
{
	job_metrics *m = r->state;
	m->started = true;
	reply_begin(r, m->plot ? "image/svg+xml" : "text/csv; charset=utf-8", REPLY_SIZE_UNKNOWN, false);
	if (!m->plot) {
		buffer_string(rows, "created_at");
		for (int i = 0; i < JOB_METRICS_COLUMNS; i++)
			buffer_format(rows, ",%s", job_metrics_columns[i]);
		buffer_string(rows, "\n");
	}
}

static void job_metrics_take(job_metrics *m, const json_t *event, buffer *rows)
{
	const char *type = json_string_value(json_object_get(event, "type"));
	if (!type || strcmp(type, "metrics") != 0)
		return;
	if (m->plot)
		job_plot_add(m->plot, json_object_get(event, "data"));
	else
		job_metrics_row(rows, event);
}

static void job_metrics_write(request *r, const json_t *page)
{
	job_metrics *m = r->state;
	buffer rows = {0};
	size_t i;
	json_t *event;
	if (!m->started)
		job_metrics_begin(r, &rows);
	json_array_foreach(json_object_get(page, "data"), i, event)
	{
		job_metrics_take(m, event, &rows);
		const char *id = json_string_value(json_object_get(event, "id"));
		snprintf(m->after, sizeof m->after, "%s", id ? id : "");
	}
	m->more = json_is_true(json_object_get(page, "has_more")) && m->after[0];
	if (m->plot && !m->more)
		job_plot_write(m->plot, r->params[0], &rows);
	if (rows.failed)
		reply_out_of_memory(r);
	else if (rows.used > 0)
		reply_write(r, rows.data, rows.used);
	if (!rows.failed && !m->more)
		reply_end(r, true);
	else if (!rows.failed && rows.used == 0)
		job_metrics_page(r);
	buffer_fini(&rows);
}

static void job_metrics_read(void *context, const frame *f)
{
	request *r = context;
	if (forward_failed(r, f))
		return;
	json_t *page = forward_json(r, f);
	if (page)
		job_metrics_write(r, page);
	json_decref(page);
}

static void job_metrics_page(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = job_metrics_read};
	job_metrics *m = r->state;
	m->more = false;
	json_t *params = json_pack("{s:s, s:s, s:i, s:s*}", "id", r->params[0], "order", "asc", "limit",
	                           JOB_METRICS_PAGE, "after", m->after[0] ? m->after : NULL);
	if (params)
		request_call(r, "job.events", params, 0, false, &events);
	else
		reply_out_of_memory(r);
}

static void job_metrics_drained(request *r)
{
	if (((const job_metrics *)r->state)->more && !r->call)
		job_metrics_page(r);
}

static void job_metrics_release(request *r)
{
	free(((job_metrics *)r->state)->plot);
	free(r->state);
}

static void job_metrics_start(request *r, bool plots)
{
	job_metrics *m = r->state = calloc(1, sizeof *m);
	if (m && plots)
		m->plot = calloc(1, sizeof *m->plot);
	if (!m || (plots && !m->plot)) {
		free(m);
		r->state = NULL;
		reply_out_of_memory(r);
		return;
	}
	r->drained = job_metrics_drained;
	r->release = job_metrics_release;
	job_metrics_page(r);
}

void job_metrics_csv(request *r)
{
	job_metrics_start(r, false);
}

void job_metrics_svg(request *r)
{
	job_metrics_start(r, true);
}
