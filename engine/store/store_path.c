/* Builds every path of the store from names that the store made or checked itself. An id that is not a valid name
 * cannot reach this file, which is asserted. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/store/store_private.h"

static void store_path_join(const store *s, const char *folder, const char *name, char *out)
{
	assert(store_valid_name(name));
	int n = snprintf(out, PATH_MAX, "%s/%s/%s", s->folder, folder, name);
	assert(n > 0 && n < PATH_MAX);
}

void store_blob_path(const store *s, const char *id, char *out)
{
	store_path_join(s, "blobs", id, out);
}

void store_cache_folder(const store *s, char *out)
{
	snprintf(out, PATH_MAX, "%s/cache", s->folder);
}

void store_prefix_folder(const store *s, char *out)
{
	snprintf(out, PATH_MAX, "%s/cache/prefixes", s->folder);
}

const char *folder_of_table(store_table table)
{
	return table == STORE_MODELS ? "models" : table == STORE_ADAPTERS ? "adapters" : NULL;
}

void folder_path(const store *s, store_table table, const char *id, char *out)
{
	store_path_join(s, folder_of_table(table), id, out);
}

void store_model_folder(const store *s, const char *id, char *out)
{
	folder_path(s, STORE_MODELS, id, out);
}

void store_adapter_folder(const store *s, const char *id, char *out)
{
	folder_path(s, STORE_ADAPTERS, id, out);
}

void store_job_folder(const store *s, const char *id, char *out)
{
	store_path_join(s, "jobs", id, out);
}

void store_checkpoint_folder(const store *s, const char *job, int64_t step, char *out)
{
	store_path_join(s, "jobs", job, out);
	size_t used = strlen(out);
	int n = snprintf(out + used, PATH_MAX - used, "/step-%lld", (long long)step);
	assert(n > 0 && (size_t)n < PATH_MAX - used);
}

status store_session_path(store *s, const char *id, char *out, error *err)
{
	char name[2 * STORE_ID_BYTES];
	store_row row;
	out[0] = 0;
	status found = row_find(s, STORE_SESSIONS, id, &row, err);
	snprintf(name, sizeof name, "%.63s.%lld", id, (long long)row.number);
	row_fini(&row);
	if (found == STATUS_OK)
		store_path_join(s, "sessions", name, out);
	return found == STATUS_NOT_FOUND ? STATUS_OK : found;
}

void store_session_version_path(const store *s, const char *id, int64_t version, char *out)
{
	char name[2 * STORE_ID_BYTES];
	snprintf(name, sizeof name, "%.63s.%lld", id, (long long)version);
	store_path_join(s, "sessions", name, out);
}

/* --- by kind ------------------------------------------------------------------------- */

void store_manifest_base(const store *s, store_table table, const store_row *row, char *out)
{
	if (table == STORE_FILES)
		snprintf(out, PATH_MAX, "%s/blobs", s->folder);
	else if (folder_of_table(table))
		folder_path(s, table, row->id, out);
	else
		store_checkpoint_folder(s, row->parent, row->number, out);
}

void store_manifest_path(const store *s, store_table table, const store_row *row, char *out)
{
	store_manifest_base(s, table, row, out);
	size_t used = strlen(out);
	if (table == STORE_FILES)
		snprintf(out + used, PATH_MAX - used, "/%s" MANIFEST_SUFFIX, row->id);
	else
		snprintf(out + used, PATH_MAX - used, "/" MANIFEST_NAME);
}

int64_t checkpoint_name_step(const char *name)
{
	size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
	return digits > 0 && digits <= 18 && !name[5 + digits] ? strtoll(name + 5, NULL, 10) : -1;
}

void store_temporary_path(store *s, char *out)
{
	char name[STORE_ID_BYTES];
	snprintf(name, sizeof name, "%llu", (unsigned long long)++s->temporaries);
	store_path_join(s, "tmp", name, out);
}

void store_session_away_path(const store *s, const char *id, char *out)
{
	store_path_join(s, "tmp", id, out);
}
