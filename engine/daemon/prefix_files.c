#include "engine/daemon/prefix_files.h"

#include "engine/base/log.h"
#include "engine/base/memory.h"

/* Add the name of a row; false: out of memory. */
static bool add_name(void *context, const json_t *row)
{
	prefix_models *models = context;
	if (!MEMORY_ROOM(models->names, models->room, models->n + 1))
		return false;
	models->names[models->n++] = prefix_disk_name(json_string_value(json_object_get(row, "id")));
	return true;
}

/* List all models and checkpoints of the store. */
static status list_models(store *s, prefix_models *out, error *err)
{
	static const store_table tables[] = {STORE_MODELS, STORE_CHECKPOINTS};
	bool more;
	if (!MEMORY_ROOM(out->names, out->room, 1)) /* NULL would be any model */
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		TRY(store_list(s, tables[i], &(store_page){.ascending = true}, add_name, out, &more, err));
	return STATUS_OK;
}

static void lose_owner(void *context, const char *key)
{
	prefix_disk_remove_owner(context, key);
}

void prefix_files_open(engine *e)
{
	char folder[PATH_MAX];
	error err = ERROR_INIT;
	prefix_models models = {0};
	store_prefix_folder(e->store, folder);
	status s = list_models(e->store, &models, &err);
	if (s == STATUS_OK)
		s = prefix_disk_open(&e->prefix_disk, folder, e->options->prefix_disk_bytes, 0, &models, &err);
	free(models.names);
	if (s != STATUS_OK)
		log_line(LOG_ERROR, "no states of prompts are kept on the disk: %s", error_message(&err));
	keys_watch_revoked(e->keys, lose_owner, e->prefix_disk);
}
