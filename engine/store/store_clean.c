/* Walks the folders and removes each name that no row speaks for. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

/* Remove the entries of DATA/folder for which `sql` (arguments: the name, the parent) gives no
 * row; sql NULL: all of them. A missing folder is an empty one. */
static status clean_folder(store *s, const char *folder, const char *sql, const char *parent, error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", s->folder, folder);
	DIR *dir = opendir(path);
	if (!dir && errno == ENOENT)
		return STATUS_OK;
	if (!dir)
		return error_set(err, STATUS_IO, NULL, "cannot open the folder \"%s\": %s", folder, strerror(errno));
	status result = STATUS_OK;
	for (struct dirent *e; result == STATUS_OK && (e = readdir(dir));) {
		bool known = false;
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (sql)
			result = ledger_has(s->db, &known, err, sql, e->d_name, parent);
		if (result != STATUS_OK || known ||
		    (size_t)snprintf(path, sizeof path, "%s/%s/%s", s->folder, folder, e->d_name) >= sizeof path)
			continue;
		log_line(LOG_INFO, "removing %s/%s, which was never finished", folder, e->d_name);
		result = file_remove_tree(path, err);
	}
	closedir(dir);
	return result;
}

/* The checkpoints of every job; a name that is no checkpoint's is a save cut short. */
static status clean_checkpoints(store *s, error *err)
{
	sqlite3_stmt *jobs;
	TRY(ledger_prepare(s->db, &jobs, err, "SELECT id FROM jobs", ""));
	status result;
	while (ledger_step(s->db, jobs, &result, err)) {
		char id[STORE_ID_BYTES], folder[STORE_ID_BYTES + 8];
		ledger_text(jobs, 0, id, sizeof id);
		snprintf(folder, sizeof folder, "jobs/%s", id);
		result =
		    clean_folder(s, folder, "SELECT 1 FROM checkpoints WHERE 'step-'||step=?1 AND job=?2", id, err);
		if (result != STATUS_OK)
			break;
	}
	sqlite3_finalize(jobs);
	return result;
}

status store_clean(store *s, error *err)
{
	TRY(clean_folder(s, "tmp", NULL, NULL, err));
	TRY(clean_folder(s, "blobs", "SELECT 1 FROM files WHERE id=?", NULL, err));
	TRY(clean_folder(s, "models", "SELECT 1 FROM models WHERE id=?", NULL, err));
	TRY(clean_folder(s, "sessions", "SELECT 1 FROM sessions WHERE id||'.'||version=?", NULL, err));
	TRY(clean_folder(s, "jobs", "SELECT 1 FROM jobs WHERE id=?", NULL, err));
	return clean_checkpoints(s, err);
}
