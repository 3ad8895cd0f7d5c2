/* models.c - models: list, show, delete, and in and out as the files of their ecosystem. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/model_folder.h"
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

CLI_ON_ID(models_show, "GET", "/v1/models/%s")
CLI_ON_ID(models_card, "GET", "/v1/models/%s/card")
CLI_ON_ID(models_delete, "DELETE", "/v1/models/%s")

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

CLI_ON_ID(models_unload, "POST", "/v1/models/%s/unload")

static int models_import(cli *c)
{
	return model_folder_push(c, cli_argument(c, 1), cli_argument(c, 0));
}

static int models_export(cli *c)
{
	return model_folder_pull(c, cli_argument(c, 0), cli_argument(c, 1));
}

/* The id is by default what the folder, or the archive without ".tar", is called. */
static int models_push(cli *c)
{
	const char *folder = cli_argument(c, 0), *id = cli_argument(c, 1);
	char *path = realpath(folder, NULL), *suffix;

	if (!path)
		return cli_fail("cannot read %s: %s", folder, strerror(errno));
	if (!id) {
		id = strrchr(path, '/') + 1;
		suffix = strstr(id, ".tar");
		if (suffix && !suffix[4])
			*suffix = '\0';
	}
	int status = model_folder_push(c, folder, id);
	free(path);
	return status;
}

static int models_pull(cli *c)
{
	const char *id = cli_argument(c, 0), *folder = cli_argument(c, 1);

	return model_folder_pull(c, id, folder ? folder : id);
}

static const option_row models_load_options[] = {MODEL_LOAD_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

const command models_commands[] = {
    {"models list", "", 0, 0, "list models", NULL, NULL, models_list},
    {"models show", "ID", 1, 1, "show a model", NULL, NULL, models_show},
    {"models card", "ID", 1, 1, "show where a model comes from: parents, files, settings, results, evaluations", NULL,
     NULL, models_card},
    {"models delete", "ID", 1, 1, "delete a model", NULL, NULL, models_delete},
    {"models load", "ID", 1, 1, "load a model before its first request, or in another type", NULL, models_load_options,
     models_load},
    {"models unload", "ID", 1, 1, "free a model's memory", NULL, NULL, models_unload},
    {"models push", "DIR [ID]", 1, 2,
     "create a model from a folder or tar archive: config.json, model.safetensors or shards, tokenizer",
     "Weights in shards are stored, and pulled, as one model.safetensors. Other files are pulled as they came.", NULL,
     models_push},
    {"models pull", "ID [DIR]", 1, 2, "download and verify all files of a model", NULL, NULL, models_pull},
    {"models import", "ID DIR", 2, 2, "like push, with the id first", NULL, NULL, models_import},
    {"models export", "ID DIR", 2, 2, "like pull", NULL, NULL, models_export},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
