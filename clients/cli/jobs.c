/* jobs.c - training jobs: list, show, watch, pause, resume, cancel, delete. */
#include "clients/cli/cli.h"
#include "clients/cli/watch.h"

static const option_row watch_options[] = {WATCH_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int jobs_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"STATUS", "status", SHOW_PLAIN},
	                                      {"PLACE", "additive.queue_position", SHOW_OPTIONAL},
	                                      {"STEP", "additive.step", SHOW_PLAIN},
	                                      {"OF", "additive.total_steps", SHOW_PLAIN},
	                                      {"LOSS", "additive.train_loss", SHOW_PLAIN},
	                                      {"VALID", "additive.valid_loss", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"MODEL", "fine_tuned_model", SHOW_PLAIN},
	                                      {"PAUSED BECAUSE", "additive.paused_reason.message", SHOW_OPTIONAL},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/fine_tuning/jobs?limit=100", NULL), "data", columns);
}

CLI_ON_ID(jobs_show, "GET", "/v1/fine_tuning/jobs/%s")

static int jobs_watch(cli *c)
{
	return watch_job(c, cli_argument(c, 0));
}

CLI_ON_ID(jobs_cancel, "POST", "/v1/fine_tuning/jobs/%s/cancel")
CLI_ON_ID(jobs_pause, "POST", "/v1/fine_tuning/jobs/%s/pause")
CLI_ON_ID(jobs_resume, "POST", "/v1/fine_tuning/jobs/%s/resume")

static int jobs_delete(cli *c)
{
	const char *id = cli_argument(c, 0), *checkpoint = cli_argument(c, 1);

	if (!checkpoint)
		return cli_on_id(c, "DELETE", "/v1/fine_tuning/jobs/%s");
	return cli_answer(c, http_json(c->http, "DELETE",
	                               http_path(c->http, "/v1/fine_tuning/jobs/%s/checkpoints/%s", id, checkpoint),
	                               NULL));
}

static int jobs_checkpoints(cli *c)
{
	static const show_column columns[] = {{"STEP", "step_number", SHOW_PLAIN},
	                                      {"MODEL", "fine_tuned_model_checkpoint", SHOW_PLAIN},
	                                      {"LOSS", "metrics.train_loss", SHOW_PLAIN},
	                                      {"VALID", "metrics.valid_loss", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"DAMAGED", "additive.damaged", SHOW_OPTIONAL},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(
	    c,
	    http_json(c->http, "GET",
	              http_path(c->http, "/v1/fine_tuning/jobs/%s/checkpoints?limit=100", cli_argument(c, 0)), NULL),
	    "data", columns);
}

const command jobs_commands[] = {
    {"jobs list", "", 0, 0, "list training jobs, the newest first", NULL, NULL, jobs_list},
    {"jobs show", "ID", 1, 1, "show a job", NULL, NULL, jobs_show},
    {"jobs watch", "ID", 1, 1, "follow a job to its end", "Ctrl-C ends the watching, not the job.", watch_options,
     jobs_watch},
    {"jobs cancel", "ID", 1, 1, "cancel a job", NULL, NULL, jobs_cancel},
    {"jobs pause", "ID", 1, 1, "pause a job", NULL, NULL, jobs_pause},
    {"jobs resume", "ID", 1, 1, "resume a job that is paused, or one that failed or was cancelled",
     "A failed or cancelled job continues from its newest checkpoint.", NULL, jobs_resume},
    {"jobs delete", "ID [CHECKPOINT]", 1, 2, "delete a job that has ended, or one checkpoint of a job",
     "A job's events and checkpoints are deleted with it; its model is kept.", NULL, jobs_delete},
    {"jobs checkpoints", "ID", 1, 1, "list a job's checkpoints, which are models", NULL, NULL, jobs_checkpoints},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
