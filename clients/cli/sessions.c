/* sessions.c - recurrent state on the service. */
#include <stdlib.h>

#include "clients/cli/cli.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

static const option_row new_options[] = {SESSION_OPTIONS,
                                         {"prompt", OPTION_TEXT, "TEXT", "text that the session reads first", "prompt"},
                                         {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row restore_options[] = {{"model", OPTION_TEXT, "ID", "the model that the state belongs to", NULL},
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

static int sessions_show(cli *c)
{
	return cli_on_id(c, "GET", "/v1/sessions/%s");
}

static int sessions_delete(cli *c)
{
	return cli_on_id(c, "DELETE", "/v1/sessions/%s");
}

static int sessions_fork(cli *c)
{
	return cli_on_id(c, "POST", "/v1/sessions/%s/fork");
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
	const char *model = options_text(&c->options, "model");

	if (!model)
		return cli_usage("say which --model");
	return cli_answer(c,
	                  http_octets(c->http, http_path(c->http, "/v1/sessions?model=%s", model), cli_argument(c, 0)));
}

const command sessions_commands[] = {
    {"sessions list", "", 0, 0, "list sessions", NULL, NULL, sessions_list},
    {"sessions new", "--model ID", 0, 0, "open a session", NULL, new_options, sessions_new},
    {"sessions show", "ID", 1, 1, "show a session", NULL, NULL, sessions_show},
    {"sessions append", "ID [TEXT]", 1, 2, "append a text to a session (default: stdin)", NULL, NULL, sessions_append},
    {"sessions fork", "ID", 1, 1, "copy a session", NULL, NULL, sessions_fork},
    {"sessions delete", "ID", 1, 1, "close a session", NULL, NULL, sessions_delete},
    {"sessions export", "ID FILE", 2, 2, "write a session's state to a file", NULL, NULL, sessions_export},
    {"sessions restore", "--model ID FILE", 1, 1, "open a session from a state file", NULL, restore_options,
     sessions_restore},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
