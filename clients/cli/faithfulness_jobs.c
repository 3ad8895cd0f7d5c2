/* faithfulness_jobs.c - jobs that evaluate explanations over a file: list, show, watch, cancel, delete. */
#include "clients/cli/cli.h"
#include "clients/cli/faithfulness.h"

static const option_row watch_options[] = {
    {"html", OPTION_TEXT, "FILE", "also write the evaluation as one page with charts", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int faithfulness_jobs_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"STATUS", "status", SHOW_PLAIN},
	                                      {"TEXTS", "texts.done", SHOW_PLAIN},
	                                      {"OF", "texts.total", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"MODEL", "model", SHOW_PLAIN},
	                                      {"FILE", "file", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/explain/evaluations?limit=100", NULL), "data", columns);
}

CLI_ON_ID(faithfulness_jobs_show, "GET", "/v1/explain/evaluations/%s")

static int faithfulness_jobs_watch(cli *c)
{
	return faithfulness_follow(c, cli_argument(c, 0));
}

CLI_ON_ID(faithfulness_jobs_cancel, "POST", "/v1/explain/evaluations/%s/cancel")
CLI_ON_ID(faithfulness_jobs_delete, "DELETE", "/v1/explain/evaluations/%s")

const command faithfulness_jobs_commands[] = {
    {"explain-evaluations list", "", 0, 0, "list evaluations of explanations, the newest first", NULL, NULL,
     faithfulness_jobs_list},
    {"explain-evaluations show", "ID", 1, 1, "show an evaluation of explanations", NULL, NULL, faithfulness_jobs_show},
    {"explain-evaluations watch", "ID", 1, 1, "follow an evaluation to its end, then show its numbers",
     "Ctrl-C stops watching; the evaluation continues.", watch_options, faithfulness_jobs_watch},
    {"explain-evaluations cancel", "ID", 1, 1, "cancel an evaluation of explanations", NULL, NULL,
     faithfulness_jobs_cancel},
    {"explain-evaluations delete", "ID", 1, 1, "delete an evaluation of explanations", NULL, NULL,
     faithfulness_jobs_delete},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
