/* Durable sessions: document and state change together. Each version of a state is a
 * file of its own, and the row's version number says which one counts; replacing one
 * file in place could leave a new state beside an old document after a crash. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status current_version(store *s, const char *id, int64_t *version, error *err)
{
	sqlite3_stmt *row;
	*version = 0;
	TRY(ledger_prepare(s->db, &row, err, "SELECT version FROM sessions WHERE id=?", "t", id));
	status result;
	if (ledger_step(s->db, row, &result, err))
		*version = sqlite3_column_int64(row, 0);
	sqlite3_finalize(row);
	return result;
}

int64_t store_session_next(store *s, const char *id, char *path)
{
	int64_t version = 0;
	assert(store_valid_name(id));
	current_version(s, id, &version, NULL); /* a ledger that fails now fails again when the version is to be kept */
	snprintf(path, PATH_MAX, "%s/sessions/%s.%lld", s->folder, id, (long long)version + 1);
	return version + 1;
}

/* The file: a header, the row's document, the state. */
typedef struct state_header {
	char magic[8];
	uint64_t document_bytes, state_bytes;
	uint64_t document, state; /* digests */
	uint64_t header;          /* digest of all before */
} state_header;
static const char magic[8] = "ADDSTAT1";
enum { STATE_LIMIT = 1 << 30 };

static void seal_header(state_header *h)
{
	memcpy(h->magic, magic, sizeof magic);
	h->header = digest_bytes(h, offsetof(state_header, header));
}

static bool is_sealed(const state_header *h)
{
	return memcmp(h->magic, magic, sizeof magic) == 0 &&
	       h->header == digest_bytes(h, offsetof(state_header, header));
}

status store_session_write(const char *path, const char *id, const json_t *session, const void *blob, size_t bytes,
                           error *err)
{
	json_t *whole = json_pack("{s:s, s:O}", "id", id, "session", session);
	char *text = whole ? store_text(whole) : NULL;
	json_decref(whole);
	if (!text)
		return STATUS_NOMEM;
	size_t length = strlen(text);
	state_header h = {.document_bytes = length,
	                  .state_bytes = bytes,
	                  .document = digest_bytes(text, length),
	                  .state = digest_bytes(blob, bytes)};
	seal_header(&h);
	status s = file_write(path, (file_part[]){{&h, sizeof h}, {text, length}, {blob, bytes}}, 3, err);
	free(text);
	return s;
}

status store_session_keep(store *s, const char *id, int64_t version, const json_t *session, error *err)
{
	char before[PATH_MAX];
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id", "not a session id");
	store_session_path(s, id, before);
	char *text = store_text(session);
	status result = text ? STATUS_OK : STATUS_NOMEM;
	if (result == STATUS_OK)
		result =
		    ledger_run(s->db, NULL, err,
		               "INSERT INTO sessions(id, version, document) VALUES(?,?,?) "
		               "ON CONFLICT(id) DO UPDATE SET version=excluded.version, document=excluded.document",
		               "tit", id, version, text);
	free(text);
	if (result == STATUS_OK && before[0])
		unlink(before);
	return result;
}

void store_session_discard(const char *path)
{
	unlink(path);
}

static bool is_whole(const state_header *h, const char *data, size_t bytes)
{
	if (bytes < sizeof *h || !is_sealed(h) || h->document_bytes > bytes || h->state_bytes > bytes ||
	    sizeof *h + h->document_bytes + h->state_bytes != bytes)
		return false;
	const char *document = data + sizeof *h;
	return h->document == digest_bytes(document, h->document_bytes) &&
	       h->state == digest_bytes(document + h->document_bytes, h->state_bytes);
}

status store_session_read(const char *path, const char *id, void **blob, size_t *bytes, error *err)
{
	char *data;
	size_t all;
	error why = ERROR_INIT;
	state_header h = {0};
	*blob = NULL;
	*bytes = 0;
	status s = file_read(path, STATE_LIMIT, &data, &all, &why);
	if (s != STATUS_OK)
		return error_set(err, s == STATUS_NOT_FOUND ? STATUS_STORAGE : s, NULL, "the state of %.64s: %s", id,
		                 error_message(&why));
	if (all < sizeof magic || memcmp(data, magic, sizeof magic) != 0) { /* of a version without headers */
		*blob = data;
		*bytes = all;
		return STATUS_OK;
	}
	memcpy(&h, data, all < sizeof h ? all : sizeof h);
	if (!is_whole(&h, data, all)) {
		free(data);
		return error_set(err, STATUS_STORAGE, NULL, "the state of %.64s is damaged", id);
	}
	memmove(data, data + sizeof h + h.document_bytes, h.state_bytes);
	*blob = data;
	*bytes = h.state_bytes;
	return STATUS_OK;
}

status store_session_delete(store *s, const char *id, error *err)
{
	char path[PATH_MAX];
	int changes;
	store_session_path(s, id, path);
	TRY(ledger_run(s->db, &changes, err, "DELETE FROM sessions WHERE id=?", "t", id));
	if (!changes)
		return error_set(err, STATUS_NOT_FOUND, "id", "there is no session \"%.64s\"", id);
	unlink(path);
	return STATUS_OK;
}
