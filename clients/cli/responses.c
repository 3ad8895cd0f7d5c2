/* responses.c - responses that the service generates in the background and keeps. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/follow.h"
#include "gen/options.h"

static const option_row create_options[] = {RESPONSE_OPTIONS,
                                            {"detach", OPTION_FLAG, NULL, "print the response's id and exit", NULL},
                                            {NULL, OPTION_FLAG, NULL, NULL, NULL}};

typedef struct reader {
	const cli *c;
	json_t *ended;      /* the response after its end; NULL before */
	bool within_a_line; /* the text so far does not end with a newline */
} reader;

static bool responses_take_event(void *context, const char *id, const json_t *event, const char *raw)
{
	reader *r = context;
	const char *type = json_string_value(json_object_get(event, "type"));
	const char *status = json_string_value(show_get(event, "response.status"));
	const json_t *delta = json_object_get(event, "delta");
	const size_t n = json_string_length(delta);

	(void)id;
	if (status && strcmp(status, "queued") != 0 && strcmp(status, "in_progress") != 0)
		r->ended = json_incref(json_object_get(event, "response"));
	if (r->c->json) {
		puts(raw);
	} else if (type && strcmp(type, "response.output_text.delta") == 0 && n > 0) {
		cli_print_text(r->c, json_string_value(delta), n);
		r->within_a_line = json_string_value(delta)[n - 1] != '\n';
	}
	return fflush(stdout) == 0 && !r->ended;
}

static int responses_report(const json_t *response)
{
	const char *status = json_string_value(json_object_get(response, "status"));
	const char *message = json_string_value(show_get(response, "error.message"));

	if (strcmp(status, "completed") == 0 || strcmp(status, "incomplete") == 0)
		return CLI_OK;
	return cli_fail("the response is %s%s%s", status, message ? ": " : "", message ? message : "");
}

static int follow(cli *c, const char *id)
{
	reader r = {.c = c};
	follow_stream stream = {.each = responses_take_event, .context = &r};
	const http_end end = follow_events(c, "/v1/responses/%s?stream=true", id, &stream);

	if (c->out.tty && r.within_a_line && !c->json)
		putchar('\n');
	fflush(stdout);
	const int status = r.ended ? responses_report(r.ended) : end == HTTP_STOPPED ? CLI_FAILED : cli_complain(c);
	json_decref(r.ended);
	return status;
}

static json_t *responses_request(const cli *c, const char *input)
{
	json_t *request = json_pack("{s:s, s:b}", "input", input, "background", 1);

	if (request && options_fill(&c->options, request))
		return request;
	json_decref(request);
	return NULL;
}

static int responses_create(cli *c)
{
	if (!options_text(&c->options, "model"))
		return cli_usage("say which --model");
	char *input = cli_argument_or_stdin(c, 0);
	if (!input)
		return cli_usage("give an INPUT, or pipe one in");
	json_t *request = responses_request(c, input);
	free(input);
	if (!request)
		return cli_fail("the input is not valid UTF-8");
	json_t *response = http_json(c->http, "POST", "/v1/responses", request);
	return response ? follow_created(c, "response", response, follow) : cli_complain(c);
}

static int responses_follow(cli *c)
{
	return follow(c, cli_argument(c, 0));
}

CLI_ON_ID(responses_show, "GET", "/v1/responses/%s")
CLI_ON_ID(responses_input, "GET", "/v1/responses/%s/input_items?order=asc")
CLI_ON_ID(responses_cancel, "POST", "/v1/responses/%s/cancel")
CLI_ON_ID(responses_delete, "DELETE", "/v1/responses/%s")

const command responses_commands[] = {
    {"responses create", "--model ID [INPUT]", 0, 1, "answer a message in the background, and follow the answer",
     "Without INPUT it is read from stdin. Ctrl-C leaves the response running:\n"
     "additive responses follow prints it from its beginning.",
     create_options, responses_create},
    {"responses follow", "ID", 1, 1, "print the text of a response as it is written",
     "A connection that is lost is made again, and the text continues where it was cut.\n"
     "Ctrl-C stops following; the response continues.",
     NULL, responses_follow},
    {"responses show", "ID", 1, 1, "show a response", NULL, NULL, responses_show},
    {"responses input", "ID", 1, 1, "show the messages of a response's input", NULL, NULL, responses_input},
    {"responses cancel", "ID", 1, 1, "cancel a response, keeping its text so far", NULL, NULL, responses_cancel},
    {"responses delete", "ID", 1, 1, "delete a response; cancels it if it is running", NULL, NULL, responses_delete},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
