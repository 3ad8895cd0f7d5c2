/* train.c - upload a text, train on it, show how it goes. A dry run checks the options before the text is sent. */
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/source.h"
#include "clients/cli/watch.h"
#include "gen/options.h"

static const option_row train_options[] = {
    {"validation", OPTION_TEXT, "FILE", "text to validate on (default: the end of FILE is held back)", NULL},
    FINE_TUNING_JOB_OPTIONS,
    /* Keys of an additive model's configuration. */
    {"windows", OPTION_INTEGERS, "4,8,...", "attention window of each layer", "additive.config.window_sizes"},
    {"position-embedding", OPTION_TEXT, "NAME",
     "of a new additive model: none (the default; texts of any length), or learned, a table of --positions",
     "additive.config.position_embedding"},
    {"follow", OPTION_FLAG, NULL, "watch the job (the default)", NULL},
    {"detach", OPTION_FLAG, NULL, "print the job's id and leave", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* The options alone, before anything is uploaded. */
static bool check(cli *c, const json_t *request)
{
	json_t *dry = json_deep_copy(request);

	json_object_set_new(dry, "dry_run", json_true());
	json_t *answer = http_json(c->http, "POST", "/v1/fine_tuning/jobs", dry);
	if (!answer)
		cli_complain(c);
	json_decref(answer);
	return answer != NULL;
}

/* The job, or NULL after a complaint; then nothing is left of it on the service. */
static json_t *create(cli *c, json_t *request, source *training, source *validation)
{
	json_t *job = NULL;

	if (check(c, request) && source_send(c, training) && (!validation->name || source_send(c, validation))) {
		json_object_set_new(request, "training_file", json_string(training->id));
		if (validation->name)
			json_object_set_new(request, "validation_file", json_string(validation->id));
		job = http_json(c->http, "POST", "/v1/fine_tuning/jobs", json_incref(request));
		if (!job)
			cli_complain(c);
	}
	if (!job) {
		source_take_back(c, training);
		source_take_back(c, validation);
	}
	return job;
}

static int follow(cli *c, const json_t *job)
{
	const char *id = json_string_value(json_object_get(job, "id"));

	if (!id)
		return cli_fail("the service's answer is not a job");
	if (!options_flag(&c->options, "detach"))
		return watch_job(c, id);
	if (c->json)
		cli_print_json(job);
	else
		printf("%s\n", id);
	return CLI_OK;
}

static int train(cli *c, json_t *request)
{
	const char *validation = options_text(&c->options, "validation");
	source texts[2] = {0};
	int status = CLI_FAILED;

	if (source_open(&texts[0], cli_argument(c, 0)) && (!validation || source_open(&texts[1], validation))) {
		json_t *job = create(c, request, &texts[0], &texts[1]);

		status = job ? follow(c, job) : CLI_FAILED;
		json_decref(job);
	}
	source_close(&texts[0]);
	source_close(&texts[1]);
	return status;
}

/* What is trained unless --model says it. */
static const char *default_model(const cli *c)
{
	const char *objective = options_text(&c->options, "objective");

	return objective && strcmp(objective, "classification") == 0 ? "linear_encoder" : FINE_TUNING_JOB_OPTIONS_MODEL;
}

static int train_run(cli *c)
{
	json_t *request = json_pack("{s:s}", "model", default_model(c));
	const char *validation = options_text(&c->options, "validation");
	int status;

	if (options_flag(&c->options, "detach") && options_flag(&c->options, "follow"))
		status = cli_usage("--follow and --detach exclude each other");
	else if (validation && strcmp(validation, "-") == 0 && strcmp(cli_argument(c, 0), "-") == 0)
		status = cli_usage("only one text can come from stdin");
	else if (!request || !options_fill(&c->options, request))
		status = cli_fail("out of memory");
	else
		status = train(c, request);
	json_decref(request);
	return status;
}

const command train_commands[] = {{"train", "FILE", 1, 1, "train a model on a text",
                                   "FILE is plain UTF-8 text, or JSON lines with \"text\" or \"prompt\" and "
                                   "\"completion\"; \"-\" is stdin. A text\n"
                                   "that the service has already is not sent again. The new model's id is printed at "
                                   "the end. Ctrl-C leaves the job running.",
                                   train_options, train_run},
                                  {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
