/* batches.c - run the requests of a file, and write their results (`batch`); batches on the service. */
#include <string.h>

#include "clients/cli/follow.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

static const char one_path[] = "/v1/batches/%s";

#define RESULT_OPTIONS                                                                                                 \
	{"output", OPTION_TEXT, "FILE", "write the results there, not to stdout", NULL},                               \
	{                                                                                                              \
		"errors", OPTION_TEXT, "FILE", "write the lines of failed requests there", NULL                        \
	}

static const option_row batch_options[] = {BATCH_OPTIONS,
                                           RESULT_OPTIONS,
                                           {"detach", OPTION_FLAG, NULL, "print the batch's id and exit", NULL},
                                           {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row watch_options[] = {RESULT_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static void take_progress(progress *p, const json_t *batch, long long time)
{
	const json_t *counts = json_object_get(batch, "request_counts");
	const json_int_t done = json_integer_value(json_object_get(counts, "completed")) +
	                        json_integer_value(json_object_get(counts, "failed"));
	json_t *data = json_pack("{s:I, s:O*}", "step", done, "total_steps", json_object_get(counts, "total"));

	progress_update(p, data);
	progress_estimate(p, data, time);
	json_decref(data);
}

/* Download a result file of the batch, if it has one. */
static int download(cli *c, const json_t *batch, const char *member, const char *target)
{
	const char *id = json_string_value(json_object_get(batch, member));

	if (!id || !target)
		return CLI_OK;
	return transfer_download(c, http_path(c->http, "/v1/files/%s/content", id), target);
}

static int complain(const json_t *batch)
{
	const char *status = json_string_value(json_object_get(batch, "status"));
	const json_t *reason = json_array_get(show_get(batch, "errors.data"), 0);
	const char *message = json_string_value(json_object_get(reason, "message"));
	const json_t *line = json_object_get(reason, "line");
	const long long failed = (long long)json_integer_value(show_get(batch, "request_counts.failed"));

	if (!status || strcmp(status, "completed") != 0)
		return json_is_integer(line)
		           ? cli_fail("the batch is %s: line %lld: %s", status ? status : "in an unknown state",
		                      (long long)json_integer_value(line), message ? message : "")
		           : cli_fail("the batch is %s%s%s", status ? status : "in an unknown state",
		                      message ? ": " : "", message ? message : "");
	return failed == 0 ? CLI_OK : cli_fail("%lld requests failed; --errors writes their lines", failed);
}

static int batch_follow(cli *c, const char *id)
{
	json_t *batch = follow_wait(c, one_path, id, take_progress);
	const char *output = options_text(&c->options, "output");

	if (!batch)
		return CLI_FAILED;
	if (c->json)
		cli_print_json(batch);
	int status = download(c, batch, "output_file_id", output ? output : c->json ? NULL : "-");
	if (status == CLI_OK)
		status = download(c, batch, "error_file_id", options_text(&c->options, "errors"));
	if (status == CLI_OK)
		status = complain(batch);
	json_decref(batch);
	return status;
}

static int batch_run(cli *c)
{
	static const follow_kind kind = {"/v1/batches", "input_file_id", "batch", "batch", batch_follow};
	json_t *request = json_pack("{s:s}", "completion_window", "24h");

	if (!options_text(&c->options, "endpoint")) {
		json_decref(request);
		return cli_usage("say which --endpoint, such as /v1/chat/completions");
	}
	int status = !request || !options_fill(&c->options, request)
	                 ? cli_fail("the arguments are not valid UTF-8")
	                 : follow_create(c, &kind, request, cli_argument(c, 0));
	json_decref(request);
	return status;
}

static int batches_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"STATUS", "status", SHOW_PLAIN},
	                                      {"COMPLETED", "request_counts.completed", SHOW_PLAIN},
	                                      {"FAILED", "request_counts.failed", SHOW_PLAIN},
	                                      {"OF", "request_counts.total", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"ENDPOINT", "endpoint", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/batches?limit=100", NULL), "data", columns);
}

CLI_ON_ID(batches_show, "GET", one_path)

static int batches_watch(cli *c)
{
	return batch_follow(c, cli_argument(c, 0));
}

CLI_ON_ID(batches_cancel, "POST", "/v1/batches/%s/cancel")
CLI_ON_ID(batches_delete, "DELETE", one_path)

const command batches_commands[] = {
    {"batch", "--endpoint URL FILE", 1, 1, "run the requests of a file",
     "FILE is a file of this machine, - for stdin, or the id of one of the service. Each line is a request:\n"
     "{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": …, \"prompt\": "
     "…}}\n"
     "They run while the service has nothing else to do, for at most 24h. Ctrl-C leaves the batch running:\n"
     "additive batches watch follows it again. The exit status is 1 if a request failed.",
     batch_options, batch_run},
    {"batches list", "", 0, 0, "list batches, the newest first", NULL, NULL, batches_list},
    {"batches show", "ID", 1, 1, "show a batch", NULL, NULL, batches_show},
    {"batches watch", "ID", 1, 1, "follow a batch to its end, then write its results",
     "Ctrl-C stops watching; the batch continues.", watch_options, batches_watch},
    {"batches cancel", "ID", 1, 1, "cancel a batch, keeping its results", NULL, NULL, batches_cancel},
    {"batches delete", "ID", 1, 1, "delete a batch that has ended; its files stay", NULL, NULL, batches_delete},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
