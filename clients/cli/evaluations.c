/* evaluations.c - jobs that evaluate explanations over a file: list, show, watch, cancel, delete. */
#include "clients/cli/cli.h"
#include "clients/cli/evaluate.h"

static const option_row watch_options[] = {
    {"html", OPTION_TEXT, "FILE", "also write the evaluation as one page with charts", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int evaluations_list(cli *c)
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

static int evaluations_show(cli *c)
{
	return cli_on_id(c, "GET", "/v1/explain/evaluations/%s");
}

static int evaluations_watch(cli *c)
{
	return evaluate_follow(c, cli_argument(c, 0));
}

static int evaluations_cancel(cli *c)
{
	return cli_on_id(c, "POST", "/v1/explain/evaluations/%s/cancel");
}

static int evaluations_delete(cli *c)
{
	return cli_on_id(c, "DELETE", "/v1/explain/evaluations/%s");
}

const command evaluations_commands[] = {
    {"evaluations list", "", 0, 0, "list evaluations over files, the newest first", NULL, NULL, evaluations_list},
    {"evaluations show", "ID", 1, 1, "show an evaluation over a file", NULL, NULL, evaluations_show},
    {"evaluations watch", "ID", 1, 1, "follow an evaluation to its end, then show its numbers",
     "Ctrl-C ends the watching, not the evaluation.", watch_options, evaluations_watch},
    {"evaluations cancel", "ID", 1, 1, "end an evaluation for good", NULL, NULL, evaluations_cancel},
    {"evaluations delete", "ID", 1, 1, "delete an evaluation that has ended", NULL, NULL, evaluations_delete},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
