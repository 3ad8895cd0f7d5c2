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
    {"files delete", "ID", 1, 1, "delete a file", NULL, NULL, files_delete},
    {"files download", "ID [FILE]", 1, 2, "download a file, to stdout unless FILE is given", NULL, NULL,
     files_download},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
