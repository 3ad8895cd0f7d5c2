/* explain.c - which tokens a prediction read. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/heat.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

enum { TOP = 10 };

static const option_row explain_options[] = {
    EXPLAIN_OPTIONS,
    {"top", OPTION_INTEGER, "K", "how many tokens to list (10)", NULL},
    {"html", OPTION_TEXT, "FILE", "also write the whole explanation as one page", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static json_t *make_request(cli *c, const char *input)
{
	json_t *request = json_pack("{s:s}", "aggregate", EXPLAIN_OPTIONS_AGGREGATE);

	if (request && input && json_object_set_new(request, "input", json_string(input)) != 0) {
		json_decref(request);
		return NULL;
	}
	if (request && options_fill(&c->options, request))
		return request;
	json_decref(request);
	return NULL;
}

static int write_page(cli *c, json_t *request, const char *file)
{
	text page = {0};
	int status = CLI_OK;

	if (!http_text(c->http, "POST", "/v1/explain", json_incref(request), "text/html", &page))
		status = cli_complain(c);
	else if (!transfer_write(file, text_get(&page), page.used))
		status = CLI_FAILED;
	text_free(&page);
	return status;
}

static int print(cli *c, const json_t *answer)
{
	heat h;
	text out = {0};
	double k = options_number(&c->options, "top", TOP);

	if (!heat_new(&h, json_object_get(answer, "tokens"), show_get(answer, "aggregate.alpha")))
		return cli_fail("the service's answer is not an explanation");
	heat_show(&h, k < 0 ? 0 : (size_t)k, c->out.colour, c->out.width, &out);
	fputs(text_get(&out), stdout);
	text_free(&out);
	heat_free(&h);
	return CLI_OK;
}

static int explain(cli *c, const char *input)
{
	const char *page = options_text(&c->options, "html");
	json_t *request = make_request(c, input);

	if (!request)
		return cli_fail("the text is not valid UTF-8");
	json_t *answer = http_json(c->http, "POST", "/v1/explain", json_incref(request));
	int status = answer && !c->json ? print(c, answer) : cli_answer(c, json_incref(answer));
	json_decref(answer);
	if (status == CLI_OK && page)
		status = write_page(c, request, page);
	json_decref(request);
	return status;
}

static int explain_run(cli *c)
{
	bool session = options_text(&c->options, "session") != NULL;

	if (!session && !options_text(&c->options, "model"))
		return cli_usage("say which --model (additive models list shows them), or --session");
	if (session && cli_argument(c, 0))
		return cli_usage("a --session has its text already");
	char *input = session ? NULL : cli_argument_or_stdin(c, 0);
	if (!session && !input)
		return cli_usage("give a TEXT, or pipe one in");
	int status = explain(c, input);
	free(input);
	return status;
}

const command explain_commands[] = {{"explain", "--model ID [TEXT]", 0, 1, "show which tokens a prediction read",
                                     "The weight of a token is the share with which the model's own attention pooled "
                                     "it; the weights of a position sum to 1.\n"
                                     "Without TEXT it is read from stdin.",
                                     explain_options, explain_run},
                                    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
