/* Opening is: make the folders, take the lock, open the ledger, throw away what no row
 * speaks for. There is no recovery step: every write orders itself so that any prefix of it is a legal state. */
#include "engine/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/store/store_private.h"

static status make_folders(const store *s, error *err)
{
	static const char *const names[] = {"blobs", "models", "jobs", "sessions", "tmp"};
	TRY(file_make_folders(s->folder, err));
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s", s->folder, names[i]);
		TRY(file_make_folders(path, err));
	}
	return file_sync_folder(s->folder, err);
}

static status take_lock(store *s, error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/lock", s->folder);
	s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->lock < 0)
		return error_set(err, STATUS_IO, NULL, "cannot open the lock of the data folder: %s", strerror(errno));
	if (flock(s->lock, LOCK_EX | LOCK_NB) != 0)
		return error_set(err, STATUS_CONFLICT, NULL, "the data folder is in use by another process");
	return STATUS_OK;
}

status store_open(store **out, const char *folder, error *err)
{
	char path[PATH_MAX];
	status result;
	*out = NULL;
	store *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->lock = -1;
	if (!folder[0] || (size_t)snprintf(s->folder, sizeof s->folder, "%s", folder) >= sizeof s->folder) {
		result = error_set(err, STATUS_INVALID, NULL, "the path of the data folder is empty or too long");
		goto fail;
	}
	if ((result = make_folders(s, err)) != STATUS_OK || (result = take_lock(s, err)) != STATUS_OK)
		goto fail;
	snprintf(path, sizeof path, "%s/ledger.sqlite", s->folder);
	if ((result = ledger_open(&s->db, path, err)) != STATUS_OK || (result = store_clean(s, err)) != STATUS_OK)
		goto fail;
	*out = s;
	return STATUS_OK;
fail:
	store_close(s);
	return result;
}

void store_close(store *s)
{
	if (!s)
		return;
	sqlite3_close(s->db);
	if (s->lock >= 0)
		close(s->lock);
	free(s);
}

status store_begin(store *s, error *err)
{
	return ledger_run(s->db, NULL, err, "BEGIN IMMEDIATE", "");
}

status store_commit(store *s, error *err)
{
	status result = ledger_run(s->db, NULL, err, "COMMIT", "");
	if (result != STATUS_OK)
		store_rollback(s);
	return result;
}

void store_rollback(store *s)
{
	if (!sqlite3_get_autocommit(s->db)) /* an error may have rolled back by itself */
		ledger_run(s->db, NULL, NULL, "ROLLBACK", "");
}

void store_new_id(char out[STORE_ID_BYTES], const char *prefix)
{
	unsigned char random[12];
	size_t have = 0;
	while (have <
	       sizeof random) { /* never short for so few bytes, but a signal may interrupt the first call after boot */
		ssize_t n = getrandom(random + have, sizeof random - have, 0);
		have += n > 0 ? (size_t)n : 0;
	}
	int used = snprintf(out, STORE_ID_BYTES, "%s", prefix);
	for (size_t i = 0; i < sizeof random; i++)
		used += snprintf(out + used, (size_t)(STORE_ID_BYTES - used), "%02x", random[i]);
}

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

bool store_valid_name(const char *id)
{
	size_t n = strlen(id);
	return n > 0 && n < STORE_ID_BYTES && strspn(id, LETTERS "._:-") == n && strspn(id, LETTERS) > 0;
}

char *store_text(const json_t *document)
{
	return json_dumps(document, JSON_COMPACT);
}
