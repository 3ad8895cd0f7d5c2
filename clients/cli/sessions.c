/* sessions.c - recurrent state on the service. */
#include <stdlib.h>

#include "clients/cli/cli.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

static const option_row new_options[] = {SESSION_OPTIONS,
                                         {"prompt", OPTION_TEXT, "TEXT", "text that the session reads first", "prompt"},
                                         {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row fork_options[] = {SESSION_FORK_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row restore_options[] = {{"model", OPTION_TEXT, "ID", "the model that the state belongs to", NULL},
                                             {"adapter", OPTION_TEXT, "ID", "the session's adapter", NULL},
                                             {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int sessions_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"TOKENS", "tokens", SHOW_PLAIN},
	                                      {"STATE", "state_bytes", SHOW_BYTES},
	                                      {"DURABLE", "durable", SHOW_PLAIN},
	                                      {"EXPIRES", "expires_at", SHOW_TIME},
	                                      {"MODEL", "model", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/sessions", NULL), "data", columns);
}

static int sessions_new(cli *c)
{
	json_t *request = json_object();

	if (!options_text(&c->options, "model")) {
		json_decref(request);
		return cli_usage("say which --model");
	}
	if (!request || !options_fill(&c->options, request)) {
		json_decref(request);
		return cli_fail("the prompt is not valid UTF-8");
	}
	return cli_answer(c, http_json(c->http, "POST", "/v1/sessions", request));
}

CLI_ON_ID(sessions_show, "GET", "/v1/sessions/%s")
CLI_ON_ID(sessions_delete, "DELETE", "/v1/sessions/%s")

/* POST to a path of the session, with one member of the body unless its value is NULL. */
static int post_member(cli *c, const char *path, const char *name, const char *value)
{
	json_t *request = value ? json_pack("{s:s}", name, value) : json_object();

	if (!request)
		return cli_fail("the %s is not valid UTF-8", name);
	return cli_answer(c, http_json(c->http, "POST", http_path(c->http, path, cli_argument(c, 0)), request));
}

static int sessions_fork(cli *c)
{
	return post_member(c, "/v1/sessions/%s/fork", "snapshot", options_text(&c->options, "snapshot"));
}

static int sessions_snapshot(cli *c)
{
	return post_member(c, "/v1/sessions/%s/snapshots", "name", cli_argument(c, 1));
}

static int sessions_rollback(cli *c)
{
	return post_member(c, "/v1/sessions/%s/rollback", "snapshot", cli_argument(c, 1));
}

static int sessions_snapshots(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"TOKENS", "tokens", SHOW_PLAIN},
	                                      {"BYTES", "bytes", SHOW_BYTES},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"DAMAGED", "damaged", SHOW_PLAIN},
	                                      {"NAME", "name", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	const char *path = http_path(c->http, "/v1/sessions/%s/snapshots", cli_argument(c, 0));

	return cli_table(c, http_json(c->http, "GET", path, NULL), "data", columns);
}

static bool add_row(json_t *rows, const json_t *x, const char *kind, const json_t *from, const char *created)
{
	return json_array_append_new(rows, json_pack("{s:O, s:s, s:O, s:O*, s:O, s:O*}", "id", json_object_get(x, "id"),
	                                             "kind", kind, "tokens", json_object_get(x, "tokens"), "from", from,
	                                             "created", json_object_get(x, created), "name",
	                                             json_object_get(x, "name"))) == 0;
}

/* Append a row for a session of a tree, and one for each of its snapshots. */
static bool add_branch(json_t *rows, const json_t *branch)
{
	const json_t *parent = json_object_get(branch, "parent"), *from = json_object_get(parent, "snapshot");
	bool complete = add_row(rows, branch, "session",
	                        json_is_string(from) ? from : json_object_get(parent, "session"), "created");
	json_t *snapshot;
	size_t i;

	json_array_foreach(json_object_get(branch, "snapshots"), i, snapshot) complete =
	    complete && add_row(rows, snapshot, "snapshot", json_object_get(branch, "id"), "created_at");
	return complete;
}

static int sessions_tree(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},          {"KIND", "kind", SHOW_PLAIN},
	                                      {"TOKENS", "tokens", SHOW_PLAIN},  {"FROM", "from", SHOW_OPTIONAL},
	                                      {"CREATED", "created", SHOW_TIME}, {"NAME", "name", SHOW_OPTIONAL},
	                                      {NULL, NULL, SHOW_PLAIN}};
	json_t *answer =
	    http_json(c->http, "GET", http_path(c->http, "/v1/sessions/%s/tree", cli_argument(c, 0)), NULL);
	json_t *rows = answer && !c->json ? json_array() : NULL, *branch;
	bool complete = rows;
	size_t i;

	if (!answer || c->json)
		return cli_answer(c, answer);
	json_array_foreach(json_object_get(answer, "data"), i, branch) complete = complete && add_branch(rows, branch);
	json_decref(answer);
	answer = complete ? json_pack("{s:o}", "data", rows) : NULL;
	if (!complete)
		json_decref(rows);
	return answer ? cli_table(c, answer, "data", columns) : cli_fail("out of memory");
}

static int sessions_append(cli *c)
{
	char *string = cli_argument_or_stdin(c, 1);
	json_t *request = string ? json_pack("{s:s}", "text", string) : NULL;
	int status;

	if (!string)
		status = cli_usage("give a TEXT, or pipe one in");
	else if (!request)
		status = cli_fail("the text is not valid UTF-8");
	else
		status =
		    cli_answer(c, http_json(c->http, "POST",
		                            http_path(c->http, "/v1/sessions/%s/append", cli_argument(c, 0)), request));
	free(string);
	return status;
}

static int sessions_export(cli *c)
{
	return transfer_download(c, http_path(c->http, "/v1/sessions/%s/state", cli_argument(c, 0)),
	                         cli_argument(c, 1));
}

static int sessions_restore(cli *c)
{
	const char *model = options_text(&c->options, "model"), *adapter = options_text(&c->options, "adapter");

	if (!model)
		return cli_usage("say which --model");
	const char *path = adapter ? http_path(c->http, "/v1/sessions?model=%s&adapter=%s", model, adapter)
	                           : http_path(c->http, "/v1/sessions?model=%s", model);
	return cli_answer(c, http_octets(c->http, path, cli_argument(c, 0)));
}

const command sessions_commands[] = {
    {"sessions list", "", 0, 0, "list sessions", NULL, NULL, sessions_list},
    {"sessions new", "--model ID", 0, 0, "open a session", NULL, new_options, sessions_new},
    {"sessions show", "ID", 1, 1, "show a session", NULL, NULL, sessions_show},
    {"sessions append", "ID [TEXT]", 1, 2, "append a text to a session (default: stdin)", NULL, NULL, sessions_append},
    {"sessions fork", "ID", 1, 1, "copy a session", NULL, fork_options, sessions_fork},
    {"sessions snapshot", "ID [NAME]", 1, 2, "keep a session's present state", NULL, NULL, sessions_snapshot},
    {"sessions snapshots", "ID", 1, 1, "list a session's snapshots", NULL, NULL, sessions_snapshots},
    {"sessions rollback", "ID SNAPSHOT", 2, 2, "return a session to a snapshot", NULL, NULL, sessions_rollback},
    {"sessions tree", "ID", 1, 1, "show a session's snapshots and forks", NULL, NULL, sessions_tree},
    {"sessions delete", "ID", 1, 1, "close a session", NULL, NULL, sessions_delete},
    {"sessions export", "ID FILE", 2, 2, "write a session's state to a file", NULL, NULL, sessions_export},
    {"sessions restore", "--model ID FILE", 1, 1, "open a session from a state file", NULL, restore_options,
     sessions_restore},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
