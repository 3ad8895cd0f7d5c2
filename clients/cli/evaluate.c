/* evaluate.c - a model's loss over a text: begin an evaluation and follow it (`evaluate`); evaluations on the service.
 */
#include <string.h>

#include "clients/cli/follow.h"
#include "gen/options.h"

static const char one_path[] = "/v1/evaluations/%s";

static const option_row evaluate_options[] = {EVALUATION_OPTIONS,
                                              {"detach", OPTION_FLAG, NULL, "print the evaluation's id and exit", NULL},
                                              {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* --- the report -------------------------------------------------------------------------------------------- */

static json_t *string_of(const char *format, const json_t *number)
{
	text out = {0};

	if (json_is_number(number))
		text_format(&out, format, json_number_value(number));
	else
		text_string(&out, "-");
	json_t *string = json_string(text_get(&out));
	text_free(&out);
	return string;
}

static json_t *position_row(const json_t *range)
{
	const json_int_t from = json_integer_value(json_object_get(range, "from"));
	const json_int_t to = json_integer_value(json_object_get(range, "to"));
	text name = {0};

	text_format(&name, from == to ? "%lld" : "%lld - %lld", (long long)from, (long long)to);
	json_t *row = json_pack("{s:s, s:O, s:o, s:o, s:o}", "positions", text_get(&name), "tokens",
	                        json_object_get(range, "tokens"), "nats",
	                        string_of("%.4f", json_object_get(range, "nats_per_token")), "perplexity",
	                        string_of("%.5g", json_object_get(range, "perplexity")), "accuracy",
	                        string_of("%.4f", json_object_get(range, "accuracy")));
	text_free(&name);
	return row;
}

static void show_positions(const cli *c, const json_t *report)
{
	static const show_column columns[] = {{"TOKENS BEFORE", "positions", SHOW_PLAIN},
	                                      {"TOKENS", "tokens", SHOW_PLAIN},
	                                      {"NATS", "nats", SHOW_PLAIN},
	                                      {"PERPLEXITY", "perplexity", SHOW_PLAIN},
	                                      {"ACCURACY", "accuracy", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	json_t *rows = json_array(), *range;
	size_t i;

	json_array_foreach(json_object_get(report, "positions"), i, range)
	    json_array_append_new(rows, position_row(range));
	putchar('\n');
	show_table(stdout, c->out.width, rows, columns);
	json_decref(rows);
}

/* In quotes, since many are a space. */
static json_t *quoted(const json_t *string)
{
	return json_is_string(string) ? json_sprintf("'%s'", json_string_value(string)) : json_null();
}

static json_t *token_row(const json_t *row)
{
	return json_pack("{s:O*, s:O*, s:o, s:o, s:o}", "nats", json_object_get(row, "nats"), "offset",
	                 json_object_get(row, "offset"), "token", quoted(show_get(row, "token.text")), "likeliest",
	                 quoted(show_get(row, "likeliest.text")), "before", quoted(json_object_get(row, "before")));
}

static void show_rows(const cli *c, const json_t *report)
{
	static const show_column columns[] = {{"NATS", "nats", SHOW_PLAIN},    {"OFFSET", "offset", SHOW_PLAIN},
	                                      {"TOKEN", "token", SHOW_PLAIN},  {"LIKELIEST", "likeliest", SHOW_PLAIN},
	                                      {"AFTER", "before", SHOW_PLAIN}, {NULL, NULL, SHOW_PLAIN}};
	json_t *rows = json_array(), *row;
	size_t i;

	json_array_foreach(json_object_get(report, "rows"), i, row) json_array_append_new(rows, token_row(row));
	if (json_array_size(rows) > 0) {
		putchar('\n');
		show_table(stdout, c->out.width, rows, columns);
	}
	json_decref(rows);
}

static int show(const cli *c, const json_t *report)
{
	static const char *const means[] = {"nats_per_token", "perplexity", "bits_per_byte", "accuracy"};

	if (!json_is_array(json_object_get(report, "positions")))
		return cli_fail("the service's answer is not an evaluation");
	printf("tokens %lld, bytes %lld", (long long)json_integer_value(json_object_get(report, "tokens")),
	       (long long)json_integer_value(json_object_get(report, "bytes")));
	for (size_t i = 0; i < sizeof means / sizeof *means; i++)
		if (json_is_number(json_object_get(report, means[i])))
			printf(", %s %.5g", means[i], json_number_value(json_object_get(report, means[i])));
	putchar('\n');
	show_positions(c, report);
	show_rows(c, report);
	return CLI_OK;
}

/* --- following ----------------------------------------------------------------------------------------------- */

static void take_progress(progress *p, const json_t *evaluation, long long time)
{
	const json_t *at = json_object_get(evaluation, "progress");
	json_t *data =
	    json_pack("{s:O*, s:O*, s:O*, s:O*, s:O*}", "step", json_object_get(at, "tokens"), "total_steps",
	              json_object_get(at, "total_tokens"), "train_loss", json_object_get(at, "nats_per_token"),
	              "tokens_per_second", json_object_get(at, "tokens_per_second"), "eta_seconds",
	              json_object_get(at, "eta_seconds"));

	(void)time; /* the service estimates */
	progress_update(p, data);
	json_decref(data);
}

static int follow(cli *c, const char *id)
{
	json_t *evaluation = follow_wait(c, one_path, id, take_progress);
	const char *status = json_string_value(json_object_get(evaluation, "status"));
	const char *message = json_string_value(show_get(evaluation, "error.message"));
	const bool succeeded = status && strcmp(status, "succeeded") == 0;
	int exit = succeeded ? CLI_OK : CLI_FAILED;

	if (!evaluation)
		return CLI_FAILED;
	if (c->json)
		cli_print_json(evaluation);
	if (!succeeded)
		cli_fail("the evaluation is %s%s%s", status ? status : "in an unknown state", message ? ": " : "",
		         message ? message : "");
	else if (!c->json)
		exit = show(c, json_object_get(evaluation, "result"));
	json_decref(evaluation);
	return exit;
}

/* --- the commands ---------------------------------------------------------------------------------------------- */

/* Before a text of any size is sent for it. */
static bool model_exists(cli *c)
{
	json_t *model = http_json(c->http, "GET", http_path(c->http, "/v1/models/%s", cli_argument(c, 0)), NULL);

	if (!model)
		cli_complain(c);
	json_decref(model);
	return model != NULL;
}

static int evaluate_run(cli *c)
{
	static const follow_kind kind = {"/v1/evaluations", "file", "fine-tune", "evaluation", follow};
	json_t *request = json_pack("{s:s}", "model", cli_argument(c, 0));
	int status = !model_exists(c) ? CLI_FAILED
	             : !request || !options_fill(&c->options, request)
	                 ? cli_fail("the arguments are not valid UTF-8")
	                 : follow_create(c, &kind, request, cli_argument(c, 1));

	json_decref(request);
	return status;
}

static int evaluate_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"STATUS", "status", SHOW_PLAIN},
	                                      {"CONTEXT", "settings.context", SHOW_PLAIN},
	                                      {"TOKENS", "progress.tokens", SHOW_PLAIN},
	                                      {"OF", "progress.total_tokens", SHOW_PLAIN},
	                                      {"NATS", "progress.nats_per_token", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"MODEL", "model", SHOW_PLAIN},
	                                      {"FILE", "file", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/evaluations?limit=100", NULL), "data", columns);
}

/* The lines omit values that are shown as tables. */
static int evaluate_show(cli *c)
{
	json_t *evaluation = http_json(c->http, "GET", http_path(c->http, one_path, cli_argument(c, 0)), NULL);
	json_t *report = json_incref(json_object_get(evaluation, "result"));

	if (!evaluation || c->json || !json_is_array(json_object_get(report, "positions"))) {
		json_decref(report);
		return cli_answer(c, evaluation);
	}
	json_object_set_new(evaluation, "result", json_copy(report));
	json_object_del(json_object_get(evaluation, "result"), "positions");
	json_object_del(json_object_get(evaluation, "result"), "rows");
	show_object(stdout, evaluation);
	show_positions(c, report);
	show_rows(c, report);
	json_decref(report);
	json_decref(evaluation);
	return CLI_OK;
}

static int evaluate_watch(cli *c)
{
	return follow(c, cli_argument(c, 0));
}

CLI_ON_ID(evaluate_cancel, "POST", "/v1/evaluations/%s/cancel")
CLI_ON_ID(evaluate_delete, "DELETE", one_path)

const command evaluate_commands[] = {
    {"evaluate", "MODEL FILE", 2, 2, "measure a model's loss over a text",
     "FILE is a file of this machine, - for stdin, or the id of one of the service. "
     "Ctrl-C leaves the evaluation running:\nadditive evaluations watch follows it again.\n"
     "Loss, perplexity, bits per byte and accuracy; the loss by the number of tokens "
     "before; the tokens with the highest\n"
     "losses. How faithful explanations are is measured by explain-evaluate.",
     evaluate_options, evaluate_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};

const command evaluations_commands[] = {
    {"evaluations list", "", 0, 0, "list evaluations, the newest first", NULL, NULL, evaluate_list},
    {"evaluations show", "ID", 1, 1, "show an evaluation", NULL, NULL, evaluate_show},
    {"evaluations watch", "ID", 1, 1, "follow an evaluation to its end, then show its report",
     "Ctrl-C stops watching; the evaluation continues.", NULL, evaluate_watch},
    {"evaluations cancel", "ID", 1, 1, "cancel an evaluation", NULL, NULL, evaluate_cancel},
    {"evaluations delete", "ID", 1, 1, "delete an evaluation that has ended", NULL, NULL, evaluate_delete},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
