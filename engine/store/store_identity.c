/* The identity of a data folder: a random name that the folder keeps in DATA/identity from its first start on. A restarted
 * engine opens the folder only if it has the same identity, so a folder from another place never takes its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static bool identity_path(const char *folder, char out[PATH_MAX])
{
	return (size_t)snprintf(out, PATH_MAX, "%s/identity", folder) < PATH_MAX;
}

/* "": the folder has none. */
static void read_identity(const char *folder, char out[STORE_ID_BYTES])
{
	char path[PATH_MAX], *text = NULL;
	size_t bytes;
	out[0] = 0;
	if (!identity_path(folder, path) || file_read(path, STORE_ID_BYTES, &text, &bytes, NULL) != STATUS_OK)
		return;
	text[strcspn(text, "\n")] = 0;
	if (store_valid_name(text))
		snprintf(out, STORE_ID_BYTES, "%s", text);
	free(text);
}

status identity_ensure(const store *s, error *err)
{
	char path[PATH_MAX], id[STORE_ID_BYTES];
	read_identity(s->folder, id);
	if (id[0])
		return STATUS_OK;
	store_new_id(id, "data-");
	identity_path(s->folder, path);
	return file_write(path, (file_part[]){{id, strlen(id)}, {"\n", 1}}, 2, err);
}

static bool has_ledger(const char *folder)
{
	char path[PATH_MAX];
	struct stat st;
	return (size_t)snprintf(path, sizeof path, "%s/ledger.sqlite", folder) < sizeof path && stat(path, &st) == 0 &&
	       st.st_size > 0;
}

status store_open_existing(store **out, const char *folder, const char *identity, error *err)
{
	char found[STORE_ID_BYTES];
	*out = NULL;
	if (!has_ledger(folder))
		return error_set(err, STATUS_STORAGE, NULL,
		                 "%.200s holds no data, but it must (data-must-exist): the folder has vanished or is not mounted",
		                 folder);
	read_identity(folder, found);
	if (identity && strcmp(found, identity) != 0)
		return error_set(err, STATUS_STORAGE, NULL,
		                 "%.200s is another data folder: its identity is \"%s\", not \"%.64s\" (data-identity)", folder,
		                 found, identity);
	return store_open(out, folder, err);
}
