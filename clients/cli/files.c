/* files.c - files on the service. */
#include "clients/cli/cli.h"
#include "clients/cli/source.h"
#include "clients/cli/transfer.h"

static int files_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"SIZE", "bytes", SHOW_BYTES},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {"EXPIRES", "expires_at", SHOW_TIME},
	                                      {"NAME", "filename", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/files?limit=1000", NULL), "data", columns);
}

static const option_row upload_options[] = {{"expires", OPTION_DURATION, "SECONDS",
                                             "delete the file after this time, an hour to 30 days: 86400, 36h, 7d",
                                             NULL},
                                            SOURCE_FORMAT_OPTION,
                                            {"purpose", OPTION_TEXT, "NAME:fine-tune|batch",
                                             "what the file is for: training and evaluations, or batches (fine-tune)",
                                             NULL},
                                            {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int files_upload(cli *c)
{
	const char *purpose = options_text(&c->options, "purpose");
	source s;
	int status = CLI_FAILED;

	if (source_open(&s, cli_argument(c, 0), options_text(&c->options, "format")))
		status = cli_answer(c, source_upload(c, &s, purpose ? purpose : "fine-tune",
		                                   options_duration(&c->options, "expires", -1)));
	source_close(&s);
	return status;
}

static const option_row statistics_options[] = {
    {"model", OPTION_TEXT, "ID", "the model whose tokenizer counts the tokens; without it bytes are counted", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int files_statistics(cli *c)
{
	static const show_column scripts[] = {{"SCRIPT", "script", SHOW_PLAIN},
	                                      {"CHARACTERS", "characters", SHOW_PLAIN},
	                                      {"SHARE", "share", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	const char *id = cli_argument(c, 0), *model = options_text(&c->options, "model");
	json_t *answer = http_json(c->http, "GET",
	                           model ? http_path(c->http, "/v1/files/%s/statistics?model=%s", id, model)
	                                 : http_path(c->http, "/v1/files/%s/statistics", id),
	                           NULL);

	if (!answer || c->json)
		return cli_answer(c, answer);
	json_t *shares = json_incref(json_object_get(answer, "scripts"));
	json_object_del(answer, "scripts");
	show_object(stdout, answer);
	if (json_array_size(shares) > 0) {
		putchar('\n');
		show_table(stdout, c->out.width, shares, scripts);
	}
	json_decref(shares);
	json_decref(answer);
	return CLI_OK;
}

CLI_ON_ID(files_show, "GET", "/v1/files/%s")
CLI_ON_ID(files_delete, "DELETE", "/v1/files/%s")

static int files_download(cli *c)
{
	const char *target = cli_argument(c, 1);

	return transfer_download(c, http_path(c->http, "/v1/files/%s/content", cli_argument(c, 0)),
	                         target ? target : "-");
}

const command files_commands[] = {
    {"files list", "", 0, 0, "list files, the newest first", NULL, NULL, files_list},
    {"files upload", "FILE", 1, 1, "upload a text; - is stdin", NULL, upload_options, files_upload},
    {"files show", "ID", 1, 1, "show a file", NULL, NULL, files_show},
    {"files statistics", "ID", 1, 1, "count the documents, tokens, duplicates and scripts of a file",
     "Lengths are those of documents: lines of running text, objects of data.", statistics_options, files_statistics},
    {"files delete", "ID", 1, 1, "delete a file", NULL, NULL, files_delete},
    {"files download", "ID [FILE]", 1, 2, "download a file, to stdout unless FILE is given", NULL, NULL,
     files_download},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
