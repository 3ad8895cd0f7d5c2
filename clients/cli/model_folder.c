#include "clients/cli/model_folder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/checksum.h"
#include "clients/cli/transfer.h"
#include "proto/model_files.h"

/* --- push ------------------------------------------------------------------------------------------ */

typedef struct push {
	const char *folder;
	json_t *paths; /* path of each file by its name */
	text sums;     /* as sha256sum writes them */
	http_part *parts;
} push;

/* Add a file if it exists. False: out of memory. */
static bool add_file(push *p, const char *name)
{
	text path = {0};
	struct stat st;
	bool kept = text_format(&path, "%s/%s", p->folder, name);

	if (kept && stat(text_get(&path), &st) == 0 && S_ISREG(st.st_mode))
		kept = json_object_set_new(p->paths, name, json_string(text_get(&path))) == 0;
	text_free(&path);
	return kept;
}

/* With an index, the files that it names in place of the one; what is missing here is the service's to name. */
static bool add_shards(push *p)
{
	const char *path = json_string_value(json_object_get(p->paths, MODEL_WEIGHTS_INDEX)), *tensor;
	json_t *index = path ? json_load_file(path, 0, NULL) : NULL, *file;
	bool kept = true;

	if (path)
		json_object_del(p->paths, "model.safetensors");
	json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
	{
		const char *name = json_string_value(file);

		if (kept && name && !strchr(name, '/') && !json_object_get(p->paths, name))
			kept = add_file(p, name);
	}
	json_decref(index);
	return kept;
}

static bool collect(push *p)
{
	static const char *const names[] = {
#define MODEL_FILE(name, type, most) name,
#include "proto/model_files.def"
#undef MODEL_FILE
	    MODEL_SUMS};
	enum { NAMES = sizeof(names) / sizeof(*names) };
	bool kept = (p->paths = json_object()) != NULL;

	for (int i = 0; kept && i < NAMES; i++)
		kept = add_file(p, names[i]);
	kept = kept && add_file(p, MODEL_WEIGHTS_INDEX) && add_shards(p);
	if (!kept)
		cli_fail("out of memory");
	return kept;
}

static bool add_sums(push *p)
{
	const char *name;
	json_t *path;
	char sum[CHECKSUM_BYTES];

	json_object_foreach(p->paths, name, path)
	{
		if (!checksum_file(json_string_value(path), sum)) {
			cli_fail("cannot read %s: %s", json_string_value(path), strerror(errno));
			return false;
		}
		if (!text_format(&p->sums, "%s  %s\n", sum, name)) {
			cli_fail("out of memory");
			return false;
		}
	}
	return true;
}

static bool make_parts(push *p, const char *id)
{
	const char *name;
	json_t *path;
	size_t n = 0;

	p->parts = calloc(json_object_size(p->paths) + 3, sizeof(*p->parts));
	if (!p->parts) {
		cli_fail("out of memory");
		return false;
	}
	p->parts[n++] = (http_part){"id", id, NULL, NULL};
	json_object_foreach(p->paths, name, path) p->parts[n++] =
	    (http_part){"file", NULL, json_string_value(path), name};
	if (!json_object_get(p->paths, MODEL_SUMS))
		p->parts[n++] = (http_part){"file", text_get(&p->sums), NULL, MODEL_SUMS};
	return true;
}

int model_folder_push(cli *c, const char *folder, const char *id)
{
	push p = {.folder = folder};
	struct stat st;
	int status = CLI_FAILED;

	if (stat(folder, &st) != 0)
		return cli_fail("cannot read %s: %s", folder, strerror(errno));
	if (!S_ISDIR(st.st_mode)) {
		const http_part parts[] = {
		    {"id", id, NULL, NULL}, {"archive", NULL, folder, NULL}, {NULL, NULL, NULL, NULL}};

		return cli_answer(c, http_form(c->http, "/v1/models", parts));
	}
	if (collect(&p) && (json_object_get(p.paths, MODEL_SUMS) || add_sums(&p)) && make_parts(&p, id))
		status = cli_answer(c, http_form(c->http, "/v1/models", p.parts));
	free(p.parts);
	text_free(&p.sums);
	json_decref(p.paths);
	return status;
}

/* --- pull ------------------------------------------------------------------------------------------ */

static int pull_file(cli *c, const char *id, const char *folder, const json_t *file)
{
	const char *name = json_string_value(json_object_get(file, "name"));
	const char *sum = json_string_value(json_object_get(file, "sha256"));
	text path = {0};
	int status = CLI_FAILED;

	if (!name || !sum || !name[0] || name[0] == '.' || strchr(name, '/'))
		return cli_fail("the service names a file that no model has");
	if (text_format(&path, "%s/%s", folder, name))
		status =
		    transfer_checked(c, http_path(c->http, "/v1/models/%s/files/%s", id, name), text_get(&path), sum);
	text_free(&path);
	return status;
}

int model_folder_pull(cli *c, const char *id, const char *folder)
{
	json_t *list = http_json(c->http, "GET", http_path(c->http, "/v1/models/%s/files", id), NULL), *file;
	int status = CLI_OK;
	double bytes = 0;
	size_t i;

	if (!list)
		return cli_complain(c);
	if (mkdir(folder, 0777) != 0 && errno != EEXIST)
		status = cli_fail("cannot make the folder %s: %s", folder, strerror(errno));
	json_array_foreach(json_object_get(list, "data"), i, file)
	{
		if (status == CLI_OK)
			status = pull_file(c, id, folder, file);
		bytes += (double)json_integer_value(json_object_get(file, "bytes"));
	}
	if (status == CLI_OK)
		cli_note(c, "%zu files of %s, %.1f MB, are in %s", i, id, bytes / 1e6, folder);
	json_decref(list);
	return status;
}
