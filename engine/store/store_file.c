/* Uploaded files: blob first, then row; to delete, row first, then blob. So a row always
 * has its blob, and a blob without a row is only garbage. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status no_file(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "id", "there is no file \"%.64s\"", id);
}

/* Sync a finished upload and tell its size. */
static status sync_blob(const char *path, int64_t *bytes, error *err)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	int rc = fd < 0 || fstat(fd, &st) != 0 ? -1 : fsync(fd);
	int saved = errno;
	if (fd >= 0)
		close(fd);
	if (rc != 0)
		return error_set(err, STATUS_IO, NULL, "cannot sync the upload: %s", strerror(saved));
	*bytes = st.st_size;
	return STATUS_OK;
}

status store_file_add(store *s, store_file *f, const char *temporary, error *err)
{
	char blob[PATH_MAX], folder[PATH_MAX];
	store_new_id(f->id, "file-");
	f->created = clock_unix();
	TRY(sync_blob(temporary, &f->bytes, err));
	store_blob_path(s, f->id, blob);
	if (rename(temporary, blob) != 0)
		return error_set(err, STATUS_IO, NULL, "cannot keep the upload: %s", strerror(errno));
	snprintf(folder, sizeof folder, "%s/blobs", s->folder);
	status result = file_sync_folder(folder, err);
	if (result == STATUS_OK)
		result = ledger_run(s->db, NULL, err,
		                    "INSERT INTO files(id, filename, purpose, bytes, created) VALUES(?,?,?,?,?)",
		                    "tttii", f->id, f->filename, f->purpose, f->bytes, f->created);
	if (result != STATUS_OK)
		unlink(blob);
	return result;
}

status store_file_get(store *s, const char *id, store_file *out, error *err)
{
	sqlite3_stmt *row;
	*out = (store_file){0};
	TRY(ledger_prepare(s->db, &row, err, "SELECT id, filename, purpose, bytes, created FROM files WHERE id=?", "t",
	                   id));
	status result;
	if (ledger_step(s->db, row, &result, err)) {
		ledger_text(row, 0, out->id, sizeof out->id);
		ledger_text(row, 1, out->filename, sizeof out->filename);
		ledger_text(row, 2, out->purpose, sizeof out->purpose);
		out->bytes = sqlite3_column_int64(row, 3);
		out->created = sqlite3_column_int64(row, 4);
	} else if (result == STATUS_OK) {
		result = no_file(err, id);
	}
	sqlite3_finalize(row);
	return result;
}

status store_file_delete(store *s, const char *id, error *err)
{
	char blob[PATH_MAX];
	int changes;
	TRY(ledger_run(s->db, &changes, err, "DELETE FROM files WHERE id=?", "t", id));
	if (!changes)
		return no_file(err, id);
	store_blob_path(s, id, blob);
	unlink(blob); /* a failure leaves garbage that the next start removes */
	return STATUS_OK;
}
