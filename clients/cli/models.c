/* models.c - models: list, show, delete, and in and out as the files of their ecosystem. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/cli.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

static int models_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"ARCHITECTURE", "additive.architecture", SHOW_PLAIN},
	                                      {"PARAMETERS", "additive.parameters", SHOW_PLAIN},
	                                      {"STATE", "additive.state_bytes", SHOW_BYTES},
	                                      {"DTYPE", "additive.dtype", SHOW_PLAIN},
	                                      {"LOADED", "additive.loaded", SHOW_PLAIN},
	                                      {"CREATED", "created", SHOW_TIME},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/models", NULL), "data", columns);
}

static int models_show(cli *c)
{
	return cli_on_id(c, "GET", "/v1/models/%s");
}

static int models_delete(cli *c)
{
	return cli_on_id(c, "DELETE", "/v1/models/%s");
}

static int models_load(cli *c)
{
	json_t *request = json_object();

	if (!request || !options_fill(&c->options, request)) {
		json_decref(request);
		return cli_fail("out of memory");
	}
	return cli_answer(
	    c, http_json(c->http, "POST", http_path(c->http, "/v1/models/%s/load", cli_argument(c, 0)), request));
}

static int models_unload(cli *c)
{
	return cli_on_id(c, "POST", "/v1/models/%s/unload");
}

static int models_import(cli *c)
{
	const char *folder = cli_argument(c, 1);
	text config = {0}, weights = {0}, tokenizer = {0};
	int status = CLI_FAILED;

	if (text_format(&config, "%s/config.json", folder) && text_format(&weights, "%s/model.safetensors", folder) &&
	    text_format(&tokenizer, "%s/tokenizer.json", folder)) {
		bool has_tokenizer = access(text_get(&tokenizer), F_OK) == 0;
		const http_part parts[] = {{"id", cli_argument(c, 0), NULL, NULL},
		                           {"config", NULL, text_get(&config), NULL},
		                           {"weights", NULL, text_get(&weights), NULL},
		                           {has_tokenizer ? "tokenizer" : NULL, NULL, text_get(&tokenizer), NULL},
		                           {NULL, NULL, NULL, NULL}};
		status = cli_answer(c, http_form(c->http, "/v1/models", parts));
	}
	text_free(&config);
	text_free(&weights);
	text_free(&tokenizer);
	return status;
}

static int models_export(cli *c)
{
	static const char *const names[] = {"config.json", "tokenizer.json", "model.safetensors"};
	const char *folder = cli_argument(c, 1);
	int status = CLI_OK;

	if (mkdir(folder, 0777) != 0 && errno != EEXIST)
		return cli_fail("cannot make the folder %s: %s", folder, strerror(errno));
	for (int i = 0; i < 3 && status == CLI_OK; i++) {
		text file = {0};

		text_format(&file, "%s/%s", folder, names[i]);
		status = transfer_download(
		    c, http_path(c->http, "/v1/models/%s/files/%s", cli_argument(c, 0), names[i]), text_get(&file));
		text_free(&file);
	}
	return status;
}

static const option_row models_load_options[] = {MODEL_LOAD_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

const command models_commands[] = {
    {"models list", "", 0, 0, "list models", NULL, NULL, models_list},
    {"models show", "ID", 1, 1, "show a model", NULL, NULL, models_show},
    {"models delete", "ID", 1, 1, "delete a model", NULL, NULL, models_delete},
    {"models load", "ID", 1, 1, "load a model before it is asked for, or in another type", NULL, models_load_options,
     models_load},
    {"models unload", "ID", 1, 1, "free a model's memory", NULL, NULL, models_unload},
    {"models import", "ID DIR", 2, 2, "make a model of DIR/config.json, model.safetensors and tokenizer.json", NULL,
     NULL, models_import},
    {"models export", "ID DIR", 2, 2, "write a model's files to a folder", NULL, NULL, models_export},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
