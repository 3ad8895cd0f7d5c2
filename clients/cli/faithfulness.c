/* faithfulness.c - evaluate the methods of explanation: on one text at once, on a file as a job. The page contains the
 * numbers, so the shown results and those written with --html are one evaluation. */
#include "clients/cli/faithfulness.h"

#include <stdlib.h>
#include <string.h>

#include "clients/cli/explain.h"
#include "clients/cli/follow.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

static const char service_path[] = "/v1/explain/evaluate";

static const option_row faithfulness_options[] = {
    EXPLAIN_EVALUATE_OPTIONS,
    {"html", OPTION_TEXT, "FILE", "also write the evaluation as one page with charts", NULL},
    {"detach", OPTION_FLAG, NULL, "with --file: print the job's id and exit", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* --- the answer as a table ------------------------------------------------------------------------------- */

static void put_number(text *out, const json_t *number)
{
	if (json_is_number(number))
		text_format(out, "%+.4g", json_number_value(number));
	else
		text_string(out, "-");
}

/* {"mean", "interval"} */
static json_t *estimate(const json_t *of)
{
	const json_t *interval = json_object_get(of, "interval");
	text out = {0};

	put_number(&out, json_object_get(of, "mean"));
	if (json_array_size(interval) == 2) {
		text_string(&out, " [");
		put_number(&out, json_array_get(interval, 0));
		text_string(&out, ", ");
		put_number(&out, json_array_get(interval, 1));
		text_string(&out, "]");
	}
	json_t *string = json_string(text_get(&out));
	text_free(&out);
	return string;
}

/* Better or worse than recency, where the interval of the difference does not contain 0. */
static const char *verdict(const json_t *numbers, const json_t *metric)
{
	const json_t *interval = show_get(numbers, "less_recency.interval");
	const char *better = json_string_value(json_object_get(metric, "better"));
	bool lower = better && strcmp(better, "lower") == 0;

	if (json_array_size(interval) != 2)
		return "";
	if (json_number_value(json_array_get(interval, 0)) > 0)
		return lower ? "worse" : "better";
	if (json_number_value(json_array_get(interval, 1)) < 0)
		return lower ? "better" : "worse";
	return "";
}

static json_t *metric_name(const json_t *metric)
{
	const char *name = json_string_value(json_object_get(metric, "metric"));
	const json_t *fraction = json_object_get(metric, "fraction");
	text out = {0};

	text_string(&out, name ? name : "");
	if (fraction)
		text_format(&out, " %.3g %%", 100 * json_number_value(fraction));
	json_t *string = json_string(text_get(&out));
	text_free(&out);
	return string;
}

/* A row for each metric and method. */
static json_t *table_rows(const json_t *evaluation)
{
	const json_t *methods = json_object_get(evaluation, "methods");
	json_t *rows = json_array(), *metric, *method;
	size_t k, i;

	json_array_foreach(json_object_get(evaluation, "metrics"), k, metric) json_array_foreach(methods, i, method)
	{
		const json_t *numbers = json_array_get(json_object_get(method, "numbers"), k);

		json_array_append_new(rows, json_pack("{s:o, s:O, s:o, s:o, s:s}", "metric",
		                                      i == 0 ? metric_name(metric) : json_string(""), "method",
		                                      json_object_get(method, "method"), "mean", estimate(numbers),
		                                      "difference", estimate(json_object_get(numbers, "less_recency")),
		                                      "verdict", verdict(numbers, metric)));
	}
	return rows;
}

static int show(const cli *c, const json_t *evaluation)
{
	static const show_column columns[] = {{"METRIC", "metric", SHOW_PLAIN},
	                                      {"METHOD", "method", SHOW_PLAIN},
	                                      {"MEAN", "mean", SHOW_PLAIN},
	                                      {"LESS RECENCY", "difference", SHOW_PLAIN},
	                                      {"THAN RECENCY", "verdict", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	json_t *rows = table_rows(evaluation);
	bool whole = json_array_size(rows) > 0;

	if (whole) {
		show_table(stdout, c->out.width, rows, columns);
		printf("\nPredictions %.0f, texts %.0f. Intervals of %.4g %%. Mean log-probability %.4g, without all "
		       "tokens but "
		       "the reader %.4g.\n",
		       json_number_value(json_object_get(evaluation, "positions")),
		       json_number_value(json_object_get(evaluation, "texts")),
		       100 * json_number_value(show_get(evaluation, "settings.confidence")),
		       json_number_value(json_object_get(evaluation, "log_probability")),
		       json_number_value(json_object_get(evaluation, "empty")));
	}
	json_decref(rows);
	return whole ? CLI_OK : cli_fail("the service's answer is not an evaluation");
}

/* --- the answer as a page ---------------------------------------------------------------------------------- */

/* The JSON that a page holds, or NULL. */
static json_t *page_data(const text *page)
{
	static const char begin[] = "id=\"data\">", end[] = "</script>";
	const char *from = strstr(text_get(page), begin);
	const char *to = from ? strstr(from, end) : NULL;

	from = from ? from + sizeof(begin) - 1 : NULL;
	return to ? json_loadb(from, (size_t)(to - from), JSON_ALLOW_NUL, NULL) : NULL;
}

/* The JSON of an answer, which with --html comes as a page that is written to its file. body is stolen. NULL after a
 * complaint. */
static json_t *get(cli *c, const char *method, const char *path, json_t *body)
{
	const char *file = options_text(&c->options, "html");
	json_t *answer = NULL;
	text page = {0};

	if (!file) {
		answer = http_json(c->http, method, path, body);
		if (!answer)
			cli_complain(c);
		return answer;
	}
	if (!http_text(c->http, method, path, body, "text/html", &page))
		cli_complain(c);
	else if (!(answer = page_data(&page)))
		cli_fail("the service's answer is not an evaluation");
	else if (!transfer_write(file, text_get(&page), page.used)) {
		json_decref(answer);
		answer = NULL;
	}
	text_free(&page);
	return answer;
}

/* --- jobs ------------------------------------------------------------------------------------------------------ */

static void take_progress(progress *p, const json_t *job, long long time)
{
	json_t *data =
	    json_pack("{s:O, s:O}", "step", show_get(job, "texts.done"), "total_steps", show_get(job, "texts.total"));

	progress_update(p, data);
	progress_estimate(p, data, time);
	json_decref(data);
}

int faithfulness_follow(cli *c, const char *id)
{
	json_t *job = follow_wait(c, "/v1/explain/evaluations/%s", id, take_progress);
	const char *status = json_string_value(json_object_get(job, "status"));
	const char *message = json_string_value(show_get(job, "error.message"));
	int exit = CLI_FAILED;

	if (!job)
		return CLI_FAILED;
	if (status && strcmp(status, "succeeded") == 0 && options_text(&c->options, "html")) {
		json_decref(job);
		job = get(c, "GET", http_path(c->http, "/v1/explain/evaluations/%s", id), NULL);
		if (!job)
			return CLI_FAILED;
		status = json_string_value(json_object_get(job, "status"));
	}
	if (c->json)
		cli_print_json(job);
	if (status && strcmp(status, "succeeded") == 0)
		exit = c->json ? CLI_OK : show(c, json_object_get(job, "result"));
	else
		cli_fail("the job is %s%s%s", status ? status : "in an unknown state", message ? ": " : "",
		         message ? message : "");
	json_decref(job);
	return exit;
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static int evaluate_text(cli *c, json_t *request)
{
	json_t *answer = get(c, "POST", service_path, json_incref(request));
	int status = !answer ? CLI_FAILED : CLI_OK;

	if (answer && c->json)
		cli_print_json(answer);
	else if (answer)
		status = show(c, answer);
	json_decref(answer);
	return status;
}

static int evaluate(cli *c, const char *input)
{
	static const follow_kind kind = {service_path, "file", "fine-tune", "evaluation", faithfulness_follow};
	const char *file = options_text(&c->options, "file");
	json_t *request = input ? json_pack("{s:s}", "input", input) : json_object();
	int status;

	if (!request || !options_fill(&c->options, request) || !explain_add_kind(c, request))
		status = cli_fail("the text is not valid UTF-8");
	else
		status = file ? follow_create(c, &kind, request, file)
		              : evaluate_text(c, request);
	json_decref(request);
	return status;
}

static int evaluate_run(cli *c)
{
	bool file = options_text(&c->options, "file") != NULL;

	if (!options_text(&c->options, "model"))
		return cli_usage("say which --model (additive models list shows them)");
	if (file && cli_argument(c, 0))
		return cli_usage("give a TEXT or a --file, not both");
	if (!file && options_flag(&c->options, "detach"))
		return cli_usage("--detach goes with a --file");
	char *input = file ? NULL : cli_argument_or_stdin(c, 0);
	if (!file && !input)
		return cli_usage("give a TEXT or a --file, or pipe a text in");
	int status = evaluate(c, input);
	free(input);
	return status;
}

const command faithfulness_commands[] = {
    {"explain-evaluate", "--model ID [TEXT]", 0, 1, "measure how faithful explanations are",
     "Tokens are removed in the order in which each method ranks them, and the log-probability of the prediction is "
     "compared\n"
     "with that of the whole text. Beside each mean stands its difference from removing the latest tokens first "
     "(recency):\n"
     "a method says something only where it is better. No number is the effect that a token had; --html explains "
     "each.\n"
     "Without TEXT it is read from stdin. With --file, a file of this machine or the id of one of the service, it is a "
     "job\n"
     "over its texts; Ctrl-C leaves the job running.",
     faithfulness_options, evaluate_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
