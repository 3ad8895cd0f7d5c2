/* Models: a folder is filled elsewhere (DATA/tmp), then moved in whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status no_model(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
}

/* fsync every file of a folder, then the folder. */
static status sync_tree(const char *folder, error *err)
{
	DIR *dir = opendir(folder);
	if (!dir)
		return error_set(err, STATUS_IO, NULL, "cannot open the model's folder: %s", strerror(errno));
	status result = STATUS_OK;
	for (struct dirent *e; result == STATUS_OK && (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0 || fsync(fd) != 0)
			result =
			    error_set(err, STATUS_IO, NULL, "cannot sync \"%.64s\": %s", e->d_name, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	return result == STATUS_OK ? file_sync_folder(folder, err) : result;
}

status store_model_add(store *s, const store_model *m, const char *temporary_folder, error *err)
{
	char folder[PATH_MAX], parent[PATH_MAX];
	bool exists;
	if (!store_valid_name(m->id))
		return error_set(err, STATUS_INVALID, "id",
		                 "a model's id is 1 to 63 of A-Z a-z 0-9 . _ : - and begins with a letter or digit");
	TRY(ledger_has(s->db, &exists, err, "SELECT 1 FROM models WHERE id=?", m->id, NULL));
	if (exists)
		return error_set(err, STATUS_CONFLICT, "id", "a model \"%s\" exists already", m->id);
	TRY(sync_tree(temporary_folder, err));
	store_model_folder(s, m->id, folder);
	if (rename(temporary_folder, folder) != 0)
		return error_set(err, STATUS_IO, NULL, "cannot keep the model: %s", strerror(errno));
	snprintf(parent, sizeof parent, "%s/models", s->folder);
	status result = file_sync_folder(parent, err);
	if (result == STATUS_OK)
		result =
		    ledger_run(s->db, NULL, err,
		               "INSERT INTO models(id, owned_by, architecture, parameters, created) VALUES(?,?,?,?,?)",
		               "tttii", m->id, m->owned_by, m->architecture, m->parameters, m->created);
	if (result != STATUS_OK)
		file_remove_tree(folder, NULL);
	return result;
}

status store_model_get(store *s, const char *id, store_model *out, error *err)
{
	sqlite3_stmt *row;
	*out = (store_model){0};
	TRY(ledger_prepare(s->db, &row, err,
	                   "SELECT id, owned_by, architecture, parameters, created FROM models WHERE id=?", "t", id));
	status result;
	if (ledger_step(s->db, row, &result, err)) {
		ledger_text(row, 0, out->id, sizeof out->id);
		ledger_text(row, 1, out->owned_by, sizeof out->owned_by);
		ledger_text(row, 2, out->architecture, sizeof out->architecture);
		out->parameters = sqlite3_column_int64(row, 3);
		out->created = sqlite3_column_int64(row, 4);
	} else if (result == STATUS_OK) {
		result = no_model(err, id);
	}
	sqlite3_finalize(row);
	return result;
}

status store_model_delete(store *s, const char *id, error *err)
{
	char folder[PATH_MAX];
	int changes;
	TRY(ledger_run(s->db, &changes, err, "DELETE FROM models WHERE id=?", "t", id));
	if (!changes)
		return no_model(err, id);
	store_model_folder(s, id, folder);
	file_remove_tree(folder, NULL); /* a failure leaves garbage that the next start removes */
	return STATUS_OK;
}

/* No model has the name of a checkpoint, so one id is one row of the two tables together. */
status store_dtype_get(store *s, const char *id, char out[STORE_DTYPE_BYTES], error *err)
{
	sqlite3_stmt *row;
	status result;
	out[0] = 0;
	TRY(ledger_prepare(s->db, &row, err,
	                   "SELECT dtype FROM models WHERE id=? UNION ALL SELECT dtype FROM checkpoints WHERE id=?",
	                   "tt", id, id));
	if (ledger_step(s->db, row, &result, err))
		ledger_text(row, 0, out, STORE_DTYPE_BYTES);
	else if (result == STATUS_OK)
		result = no_model(err, id);
	sqlite3_finalize(row);
	return result;
}

status store_dtype_put(store *s, const char *id, const char *dtype, error *err)
{
	int changes;
	TRY(ledger_run(s->db, &changes, err, "UPDATE models SET dtype=? WHERE id=?", "tt", dtype, id));
	if (!changes)
		TRY(ledger_run(s->db, &changes, err, "UPDATE checkpoints SET dtype=? WHERE id=?", "tt", dtype, id));
	return changes ? STATUS_OK : no_model(err, id);
}
