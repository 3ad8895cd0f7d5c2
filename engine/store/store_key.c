/* API keys have no blob: a key is its row. The file DATA/keys is written after the first row, so that no failure leaves a
 * service that needs a key and has none. It is never removed. */
#include <stdio.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

static bool mark_exists(const store *s, char path[PATH_MAX])
{
	struct stat st;
	return (size_t)snprintf(path, PATH_MAX, "%s/keys", s->folder) < PATH_MAX && stat(path, &st) == 0;
}

static status put_mark(const store *s, error *err)
{
	static const char text[] = "This service needs API keys.\n";
	char path[PATH_MAX];
	return mark_exists(s, path) ? STATUS_OK : file_write(path, &(file_part){text, sizeof text - 1}, 1, err);
}

status store_key_put(store *s, const json_t *key, error *err)
{
	store_row row = {.document = (json_t *)(uintptr_t)key};
	snprintf(row.id, sizeof row.id, "%s", json_string_value(json_object_get(key, "id")));
	error mark = ERROR_INIT;
	TRY(row_put(s, STORE_KEYS, &row, err));
	if (put_mark(s, &mark) != STATUS_OK) /* the next start writes it */
		log_line(LOG_ERROR, "that the service has had API keys is not recorded: %s", error_message(&mark));
	return STATUS_OK;
}

status store_key_delete(store *s, const char *id, error *err)
{
	bool found;
	TRY(row_delete(s, STORE_KEYS, id, &found, err));
	return found ? STATUS_OK : STATUS_NOT_FOUND;
}

status store_keys_had(store *s, bool *had, error *err)
{
	char path[PATH_MAX];
	*had = mark_exists(s, path);
	if (*had)
		return STATUS_OK;
	/* A restored folder has the rows alone. */
	TRY(ledger_has(s->db, had, err, "SELECT 1 FROM objects WHERE kind=?", store_kind(STORE_KEYS), NULL));
	return *had ? put_mark(s, err) : STATUS_OK;
}
