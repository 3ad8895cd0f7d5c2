/* ps.c - the service's current activity: generations, several devices, jobs that have not ended, models in memory,
 * sessions. Combined from the lists and /metrics, which cost the service nothing. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/progress.h"
#include "clients/cli/scrape.h"

enum { PS_DETAIL = 60 }; /* columns of a job's progress */

/* A number of one of several devices. */
static long long device_metric(const text *metrics, const char *name, long number)
{
	char full[80];

	snprintf(full, sizeof(full), "additive_device_%s{device=\"%ld\"}", name, number);
	return scrape_number(metrics, full);
}

/* The devices of an engine with several: those of which /metrics has numbers. */
static void add_devices(json_t *all, const text *metrics)
{
	static const char first[] = "additive_device_ok{device=\"";
	json_t *devices = json_array();

	for (const char *at = text_get(metrics); (at = strstr(at, first));) {
		char id[16];
		at += sizeof(first) - 1;
		const long number = strtol(at, NULL, 10);
		snprintf(id, sizeof(id), "%ld", number);
		json_array_append_new(
		    devices,
		    json_pack("{s:s, s:b, s:I, s:I, s:I}", "id", id, "ok", device_metric(metrics, "ok", number) != 0,
		              "sessions", (json_int_t)device_metric(metrics, "sessions_live", number), "state_bytes",
		              (json_int_t)device_metric(metrics, "state_bytes", number), "running",
		              (json_int_t)device_metric(metrics, "generations_running", number)));
	}
	if (json_array_size(devices) > 0)
		json_object_set(all, "devices", devices);
	json_decref(devices);
}

static bool is_loaded(const json_t *model)
{
	return json_is_true(show_get(model, "additive.loaded"));
}

static bool is_open_job(const json_t *job)
{
	static const char *const ended[] = {"succeeded", "failed", "cancelled"};
	const char *status = json_string_value(json_object_get(job, "status"));

	for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]); i++)
		if (!status || strcmp(status, ended[i]) == 0)
			return false;
	return true;
}

static bool is_any(const json_t *entry)
{
	return entry != NULL;
}

/* Ask for a list, and keep of it what `keep` says as `name` of `all`. */
static bool add_list(cli *c, json_t *all, const char *name, const char *path, bool (*keep)(const json_t *entry))
{
	json_t *answer = http_json(c->http, "GET", path, NULL), *kept = json_array(), *entry;
	size_t i;

	json_array_foreach(json_object_get(answer, "data"), i, entry) if (keep(entry)) json_array_append(kept, entry);
	json_object_set_new(all, name, kept);
	json_decref(answer);
	return answer != NULL;
}

static json_t *look(cli *c)
{
	text metrics = {0};
	json_t *all = json_object();

	if (!http_text(c->http, "GET", "/metrics", NULL, NULL, &metrics) ||
	    !add_list(c, all, "jobs", "/v1/fine_tuning/jobs?limit=1000", is_open_job) ||
	    !add_list(c, all, "models", "/v1/models", is_loaded) ||
	    !add_list(c, all, "sessions", "/v1/sessions", is_any)) {
		json_decref(all);
		all = NULL;
	} else {
		json_object_set_new(
		    all, "generations",
		    json_pack("{s:I, s:I}", "running",
		              (json_int_t)scrape_number(&metrics, "additive_engine_generations_running"), "waiting",
		              (json_int_t)scrape_number(&metrics, "additive_engine_generations_waiting")));
		add_devices(all, &metrics);
	}
	text_free(&metrics);
	return all;
}

/* --- as a table --------------------------------------------------------------------------- */

static void add_row(json_t *rows, const char *kind, const json_t *entry, const char *status, const text *detail)
{
	json_array_append_new(rows, json_pack("{s:O, s:s, s:s, s:s}", "id", json_object_get(entry, "id"), "kind", kind,
	                                      "status", status ? status : "-", "detail", text_get(detail)));
}

static void add_job(json_t *rows, const json_t *job)
{
	progress p;
	text detail = {0};
	const char *reason = json_string_value(show_get(job, "additive.paused_reason.message"));

	progress_init(&p);
	progress_update(&p, json_object_get(job, "additive"));
	progress_line(&p, PS_DETAIL, &detail);
	if (reason)
		text_format(&detail, "  %s", reason);
	add_row(rows, "job", job, json_string_value(json_object_get(job, "status")), &detail);
	text_free(&detail);
}

static void add_model(json_t *rows, const json_t *model)
{
	text detail = {0};

	text_format(&detail, "%s, %lld parameters", json_string_value(show_get(model, "additive.dtype")),
	            (long long)json_integer_value(show_get(model, "additive.parameters")));
	add_row(rows, "model", model, "loaded", &detail);
	text_free(&detail);
}

static void add_session(json_t *rows, const json_t *session)
{
	text detail = {0};
	const char *model = json_string_value(json_object_get(session, "model"));

	text_format(&detail, "%lld tokens of %s", (long long)json_integer_value(json_object_get(session, "tokens")),
	            model ? model : "?");
	add_row(rows, "session", session, json_is_true(json_object_get(session, "durable")) ? "durable" : "open",
	        &detail);
	text_free(&detail);
}

static void add_device(json_t *rows, const json_t *device)
{
	text detail = {0};

	text_format(&detail, "%lld sessions, %lld bytes, %lld generations",
	            (long long)json_integer_value(json_object_get(device, "sessions")),
	            (long long)json_integer_value(json_object_get(device, "state_bytes")),
	            (long long)json_integer_value(json_object_get(device, "running")));
	add_row(rows, "device", device, json_is_true(json_object_get(device, "ok")) ? "ok" : "lost", &detail);
	text_free(&detail);
}

static void print(const cli *c, const json_t *all)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"KIND", "kind", SHOW_PLAIN},
	                                      {"STATUS", "status", SHOW_PLAIN},
	                                      {"DETAIL", "detail", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	json_t *rows = json_array(), *entry;
	size_t i;

	json_array_foreach(json_object_get(all, "devices"), i, entry) add_device(rows, entry);
	json_array_foreach(json_object_get(all, "jobs"), i, entry) add_job(rows, entry);
	json_array_foreach(json_object_get(all, "models"), i, entry) add_model(rows, entry);
	json_array_foreach(json_object_get(all, "sessions"), i, entry) add_session(rows, entry);
	printf("generations: %lld running, %lld waiting\n",
	       (long long)json_integer_value(show_get(all, "generations.running")),
	       (long long)json_integer_value(show_get(all, "generations.waiting")));
	if (json_array_size(rows) > 0)
		show_table(stdout, c->out.width, rows, columns);
	json_decref(rows);
}

static int ps_run(cli *c)
{
	json_t *all = look(c);

	if (!all || c->json)
		return cli_answer(c, all);
	print(c, all);
	json_decref(all);
	return CLI_OK;
}

const command ps_commands[] = {{"ps", "", 0, 0, "show what runs: generations, jobs, loaded models, sessions",
                                "With --json: {\"generations\": {\"running\", \"waiting\"}, \"jobs\": […], \"models\": "
                                "[…], \"sessions\": […]}.",
                                NULL, ps_run},
                               {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
