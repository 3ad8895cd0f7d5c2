/* tokenize.c - text to tokens and back. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"

static const option_row tokenize_options[] = {{"model", OPTION_TEXT, "ID", "the model", NULL},
                                              {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int print_pieces(const cli *c, json_t *answer)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"OFFSET", "offset", SHOW_PLAIN},
	                                      {"TEXT", "text", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, answer, "pieces", columns);
}

static int tokenize_run(cli *c)
{
	const char *model = options_text(&c->options, "model");
	char *string = model ? cli_argument_or_stdin(c, 0) : NULL;
	json_t *request = string ? json_pack("{s:s, s:s}", "model", model, "text", string) : NULL;
	int status;

	if (!model)
		status = cli_usage("say which --model");
	else if (!string)
		status = cli_usage("give a TEXT, or pipe one in");
	else if (!request)
		status = cli_fail("the text is not valid UTF-8");
	else
		status = print_pieces(c, http_json(c->http, "POST", "/v1/tokenize", request));
	free(string);
	return status;
}

static int detokenize_run(cli *c)
{
	const char *model = options_text(&c->options, "model");
	json_t *tokens = json_array();

	for (int i = 0; i < c->options.n_arguments; i++) {
		char *end;
		const char *argument = cli_argument(c, i);

		json_array_append_new(tokens, json_integer(strtoll(argument, &end, 10)));
		if (end == argument || *end) {
			json_decref(tokens);
			return cli_usage("%s is not a token's id", argument);
		}
	}
	if (!model) {
		json_decref(tokens);
		return cli_usage("say which --model");
	}
	json_t *answer =
	    http_json(c->http, "POST", "/v1/detokenize", json_pack("{s:s, s:o}", "model", model, "tokens", tokens));
	const json_t *string = json_object_get(answer, "text");
	if (!string || c->json)
		return cli_answer(c, answer);
	text shown = {0};
	if (c->out.tty)
		terminal_escape(&shown, json_string_value(string), json_string_length(string), true);
	else
		text_append(&shown, json_string_value(string), json_string_length(string));
	printf("%s\n", text_get(&shown));
	text_free(&shown);
	json_decref(answer);
	return CLI_OK;
}

const command tokenize_commands[] = {
    {"tokenize", "--model ID [TEXT]", 0, 1, "show a text's tokens (default: stdin)", NULL, tokenize_options,
     tokenize_run},
    {"detokenize", "--model ID N...", 1, 1 << 20, "show the text of tokens", NULL, tokenize_options, detokenize_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
