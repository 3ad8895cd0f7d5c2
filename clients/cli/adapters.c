/* adapters.c - adapters: list, show, delete, and in and out as files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/cli.h"
#include "clients/cli/transfer.h"

static const option_row push_options[] = {{"model", OPTION_TEXT, "ID", "the model that it is for", NULL},
                                          {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int adapters_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"KIND", "kind", SHOW_PLAIN},
	                                      {"MODEL", "base", SHOW_PLAIN},
	                                      {"PARAMETERS", "parameters", SHOW_PLAIN},
	                                      {"CREATED", "created_at", SHOW_TIME},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/adapters", NULL), "data", columns);
}

CLI_ON_ID(adapters_show, "GET", "/v1/adapters/%s")
CLI_ON_ID(adapters_delete, "DELETE", "/v1/adapters/%s")

/* The file's default name is the adapter's id. */
static int adapters_pull(cli *c)
{
	const char *id = cli_argument(c, 0), *file = cli_argument(c, 1);
	json_t *adapter = http_json(c->http, "GET", http_path(c->http, "/v1/adapters/%s", id), NULL);
	const char *kind = json_string_value(json_object_get(adapter, "kind"));
	text name = {0};
	int status = CLI_FAILED;

	if (!adapter)
		return cli_complain(c);
	if (text_format(&name, "%s.%s", id, kind && strcmp(kind, "lora") == 0 ? "tar" : "safetensors"))
		status = transfer_download(c, http_path(c->http, "/v1/adapters/%s/content", id),
		                           file ? file : text_get(&name));
	text_free(&name);
	json_decref(adapter);
	return status;
}

/* Send those of the files that the folder has. */
static int push_folder(cli *c, const char *model, const char *folder)
{
	static const char *const names[] = {"adapter.safetensors", "adapter_config.json", "adapter_model.safetensors"};
	enum { NAMES = sizeof(names) / sizeof(*names) };
	http_part parts[NAMES + 2] = {{"model", model, NULL, NULL}};
	text paths[NAMES] = {{0}};
	struct stat st;
	size_t n = 1;
	bool kept = true;
	int status = CLI_FAILED;

	for (int i = 0; i < NAMES; i++) {
		kept = kept && text_format(&paths[i], "%s/%s", folder, names[i]);
		if (kept && stat(text_get(&paths[i]), &st) == 0 && S_ISREG(st.st_mode))
			parts[n++] = (http_part){"file", NULL, text_get(&paths[i]), names[i]};
	}
	if (!kept)
		cli_fail("out of memory");
	else if (n == 1)
		cli_fail("%s has no adapter: adapter.safetensors, or adapter_config.json and adapter_model.safetensors",
		         folder);
	else
		status = cli_answer(c, http_form(c->http, "/v1/adapters", parts));
	for (int i = 0; i < NAMES; i++)
		text_free(&paths[i]);
	return status;
}

/* True if the file begins as a tar archive does. */
static bool is_archive(const char *path)
{
	enum { MAGIC = 257 };
	char head[MAGIC + 5];
	FILE *f = fopen(path, "rb");
	const bool is = f && fread(head, 1, sizeof head, f) == sizeof head && memcmp(head + MAGIC, "ustar", 5) == 0;

	if (f)
		fclose(f);
	return is;
}

static int adapters_push(cli *c)
{
	const char *path = cli_argument(c, 0), *model = options_text(&c->options, "model");
	struct stat st;

	if (!model)
		return cli_usage("say which --model");
	if (stat(path, &st) != 0)
		return cli_fail("cannot read %s: %s", path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return push_folder(c, model, path);
	const bool archive = is_archive(path);
	const http_part parts[] = {{"model", model, NULL, NULL},
	                           {archive ? "archive" : "file", NULL, path, archive ? NULL : "adapter.safetensors"},
	                           {NULL, NULL, NULL, NULL}};

	return cli_answer(c, http_form(c->http, "/v1/adapters", parts));
}

const command adapters_commands[] = {
    {"adapters list", "", 0, 0, "list adapters", NULL, NULL, adapters_list},
    {"adapters show", "ID", 1, 1, "show an adapter", NULL, NULL, adapters_show},
    {"adapters delete", "ID", 1, 1, "delete an adapter", NULL, NULL, adapters_delete},
    {"adapters push", "--model ID PATH", 1, 1,
     "create an adapter from a safetensors file, a tar archive, or a folder that PEFT has written", NULL, push_options,
     adapters_push},
    {"adapters pull", "ID [FILE]", 1, 2, "download an adapter", NULL, NULL, adapters_pull},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
