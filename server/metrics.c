/* Requests are counted per row of the router's tables; one extra row, the last, counts what fitted none. */
#include "server/metrics.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/router.h"

enum { METRICS_BUCKETS = 14, METRICS_STATUSES = 24 };

/* Seconds; from a token of a small model to a long generation. */
static const double metrics_bounds[METRICS_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                       0.25,  0.5,    1,     2.5,  5,     10,   60};

typedef struct histogram {
	uint64_t counts[METRICS_BUCKETS + 1]; /* the last: beyond every bound */
	uint64_t total;
	double sum;
} histogram;

/* Status codes are few; a table of those seen. */
typedef struct status_count {
	int status;
	uint64_t count;
} status_count;

typedef struct row_metrics {
	histogram seconds;
	status_count statuses[METRICS_STATUSES];
} row_metrics;

struct metrics {
	int n_rows;
	uint64_t connections, in_flight, traces_dropped;
	histogram first_token, next_token, queue;
	row_metrics rows[];
};

metrics *metrics_new(void)
{
	int n = 0;
	while (router_row(n))
		n++;
	metrics *m = calloc(1, sizeof *m + (size_t)(n + 1) * sizeof(row_metrics));
	if (m)
		m->n_rows = n;
	return m;
}

void metrics_free(metrics *m)
{
	free(m);
}

static void histogram_add(histogram *h, double seconds, uint64_t times)
{
	int i = 0;
	while (i < METRICS_BUCKETS && seconds > metrics_bounds[i])
		i++;
	h->counts[i] += times;
	h->total += times;
	h->sum += seconds * (double)times;
}

void metrics_connection_begins(metrics *m)
{
	m->connections++;
}

void metrics_connection_ends(metrics *m)
{
	m->connections--;
}

uint64_t metrics_connections(const metrics *m)
{
	return m->connections;
}

uint64_t metrics_requests(const metrics *m)
{
	return m->in_flight;
}

void metrics_request_begins(metrics *m)
{
	m->in_flight++;
}

void metrics_request_ends(metrics *m, const struct route *fitted, int status, double seconds)
{
	int row = 0;
	while (row < m->n_rows && router_row(row) != fitted)
		row++;
	m->in_flight--;
	histogram_add(&m->rows[row].seconds, seconds, 1);
	status_count *s = m->rows[row].statuses;
	int code = status ? status : 499;
	for (int i = 0; i < METRICS_STATUSES; i++)
		if (s[i].status == code || s[i].status == 0) {
			s[i].status = code;
			s[i].count++;
			return;
		}
}

void metrics_first_token(metrics *m, double seconds)
{
	histogram_add(&m->first_token, seconds, 1);
}

void metrics_next_tokens(metrics *m, double seconds, size_t tokens)
{
	if (tokens > 0)
		histogram_add(&m->next_token, seconds / (double)tokens, tokens);
}

void metrics_queue(metrics *m, double seconds)
{
	histogram_add(&m->queue, seconds, 1);
}

void metrics_traces_dropped(metrics *m, uint64_t requests)
{
	m->traces_dropped += requests;
}

/* --- writing --------------------------------------------------------------------------- */

static void metrics_head(buffer *out, const char *name, const char *type, const char *help)
{
	buffer_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* labels: `a="b",` or "". */
static void metrics_histogram(buffer *out, const char *name, const char *labels, const histogram *h)
{
	uint64_t below = 0;
	for (int i = 0; i < METRICS_BUCKETS; i++) {
		below += h->counts[i];
		buffer_format(out, "%s_bucket{%sle=\"%g\"} %llu\n", name, labels, metrics_bounds[i],
		              (unsigned long long)below);
	}
	int bytes = (int)strlen(labels) - (labels[0] != '\0'); /* without the comma */
	buffer_format(out, "%s_bucket{%sle=\"+Inf\"} %llu\n", name, labels, (unsigned long long)h->total);
	buffer_format(out, "%s_sum{%.*s} %.9g\n", name, bytes, labels, h->sum);
	buffer_format(out, "%s_count{%.*s} %llu\n", name, bytes, labels, (unsigned long long)h->total);
}

static void metrics_write_rows(const metrics *m, buffer *out)
{
	static const char total[] = "additive_http_requests_total";
	static const char seconds[] = "additive_http_request_duration_seconds";
	metrics_head(out, total, "counter", "Requests answered, by endpoint and status; 499: the client left first.");
	for (int i = 0; i <= m->n_rows; i++) {
		const route *row = router_row(i);
		for (const status_count *s = m->rows[i].statuses;
		     s < m->rows[i].statuses + METRICS_STATUSES && s->status; s++)
			buffer_format(out, "%s{method=\"%s\",route=\"%s\",status=\"%d\"} %llu\n", total,
			              row ? row->method : "", row ? row->path : "unmatched", s->status,
			              (unsigned long long)s->count);
	}
	metrics_head(out, seconds, "histogram", "From a request's first line to the last byte of its answer.");
	for (int i = 0; i <= m->n_rows; i++) {
		const route *row = router_row(i);
		buffer labels = {0};
		buffer_format(&labels, "method=\"%s\",route=\"%s\",", row ? row->method : "",
		              row ? row->path : "unmatched");
		buffer_append(&labels, "", 1);
		out->failed |= labels.failed;
		if (m->rows[i].seconds.total && !labels.failed)
			metrics_histogram(out, seconds, labels.data, &m->rows[i].seconds);
		buffer_fini(&labels);
	}
}

/* --- the engine's ------------------------------------------------------------------------- */

/* [a-zA-Z_:][a-zA-Z0-9_:]* */
static bool metrics_name_valid(const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";
	size_t bytes = name ? strlen(name) : 0;
	return bytes > 0 && strspn(name, letters) == bytes && (name[0] < '0' || name[0] > '9');
}

/* True if a metric of that name has been written already. */
static bool metrics_name_taken(const char *name, buffer *written)
{
	buffer mark = {0};
	buffer_format(&mark, "# TYPE %s ", name);
	written->failed |= mark.failed;
	bool taken =
	    mark.failed || written->failed || memmem(written->data, written->used, mark.data, mark.used) != NULL;
	buffer_fini(&mark);
	return taken;
}

/* Text with backslash, newline and (labels) quote escaped. */
static void metrics_escape(buffer *out, const char *text, bool quote)
{
	for (const char *c = text ? text : ""; *c; c++) {
		if (*c == '\n')
			buffer_string(out, "\\n");
		else if (*c == '\\' || (quote && *c == '"'))
			buffer_format(out, "\\%c", *c);
		else
			buffer_append(out, c, 1);
	}
}

static void metrics_value(buffer *out, double value)
{
	if (isnan(value))
		buffer_string(out, " NaN\n");
	else if (isinf(value))
		buffer_string(out, value > 0 ? " +Inf\n" : " -Inf\n");
	else
		buffer_format(out, " %.15g\n", value);
}

static void metrics_engine_samples(buffer *out, const char *name, const json_t *samples)
{
	size_t i;
	json_t *sample, *value;
	const char *key;
	json_array_foreach(samples, i, sample)
	{
		buffer_format(out, "%s{", name);
		json_t *labels = json_object_get(sample, "labels");
		bool first = true;
		json_object_foreach(labels, key, value)
		{
			if (!metrics_name_valid(key) || !json_is_string(value))
				continue;
			buffer_format(out, "%s%s=\"", first ? "" : ",", key);
			metrics_escape(out, json_string_value(value), true);
			buffer_string(out, "\"");
			first = false;
		}
		buffer_string(out, "}");
		metrics_value(out, json_number_value(json_object_get(sample, "value")));
	}
}

static void metrics_engine_histogram(buffer *out, const char *name, const json_t *metric)
{
	size_t i;
	json_t *pair;
	double count = json_number_value(json_object_get(metric, "count"));
	json_array_foreach(json_object_get(metric, "buckets"), i, pair)
	{
		const json_t *bound = json_array_get(pair, 0);
		if (!json_is_number(bound))
			continue; /* "+Inf" is written below for every histogram */
		buffer_format(out, "%s_bucket{le=\"%g\"}", name, json_number_value(bound));
		metrics_value(out, json_number_value(json_array_get(pair, 1)));
	}
	buffer_format(out, "%s_bucket{le=\"+Inf\"}", name);
	metrics_value(out, count);
	buffer_format(out, "%s_sum", name);
	metrics_value(out, json_number_value(json_object_get(metric, "sum")));
	buffer_format(out, "%s_count", name);
	metrics_value(out, count);
}

static void metrics_write_engine(const json_t *engine, buffer *out)
{
	size_t i;
	json_t *metric;
	json_array_foreach(json_object_get(engine, "metrics"), i, metric)
	{
		const char *name = json_string_value(json_object_get(metric, "name"));
		const char *type = json_string_value(json_object_get(metric, "type"));
		if (!type || !metrics_name_valid(name) || metrics_name_taken(name, out))
			continue;
		bool is_histogram = strcmp(type, "histogram") == 0;
		if (!is_histogram && strcmp(type, "counter") != 0 && strcmp(type, "gauge") != 0)
			continue;
		buffer_format(out, "# HELP %s ", name);
		metrics_escape(out, json_string_value(json_object_get(metric, "help")), false);
		buffer_format(out, "\n# TYPE %s %s\n", name, type);
		if (is_histogram)
			metrics_engine_histogram(out, name, metric);
		else
			metrics_engine_samples(out, name, json_object_get(metric, "samples"));
	}
}

void metrics_write(const metrics *m, bool engine_up, const json_t *engine, buffer *out)
{
	metrics_head(out, "additive_engine_up", "gauge", "1 while the engine is connected.");
	buffer_format(out, "additive_engine_up %d\n", engine_up);
	metrics_head(out, "additive_http_connections", "gauge", "Open connections.");
	buffer_format(out, "additive_http_connections %llu\n", (unsigned long long)m->connections);
	metrics_head(out, "additive_http_requests_in_flight", "gauge",
	             "Requests in memory: being read, worked on or answered.");
	buffer_format(out, "additive_http_requests_in_flight %llu\n", (unsigned long long)m->in_flight);
	metrics_write_rows(m, out);
	metrics_head(out, "additive_time_to_first_token_seconds", "histogram",
	             "From a request's first line to its first token.");
	metrics_histogram(out, "additive_time_to_first_token_seconds", "", &m->first_token);
	metrics_head(out, "additive_inter_token_latency_seconds", "histogram", "Between two tokens of one answer.");
	metrics_histogram(out, "additive_inter_token_latency_seconds", "", &m->next_token);
	metrics_head(out, "additive_queue_time_seconds", "histogram", "A generation's wait in the engine's queue.");
	metrics_histogram(out, "additive_queue_time_seconds", "", &m->queue);
	metrics_head(out, "additive_traces_dropped_total", "counter",
	             "Requests and jobs whose spans no collector has taken.");
	buffer_format(out, "additive_traces_dropped_total %llu\n", (unsigned long long)m->traces_dropped);
	metrics_write_engine(engine, out);
}
