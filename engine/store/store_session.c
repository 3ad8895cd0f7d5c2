/* Durable sessions: document and state change together. Each version of a state is a
 * file of its own, and the row's version number says which one counts; replacing one
 * file in place could leave a new state beside an old document after a crash. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/store/store_private.h"

/* 0 when there is no row. */
static status current_version(store *s, const char *id, int64_t *version, error *err)
{
	store_row row;
	status result = row_find(s, STORE_SESSIONS, id, &row, err);
	*version = row.number;
	row_fini(&row);
	return result == STATUS_NOT_FOUND ? STATUS_OK : result;
}

status store_session_next(store *s, const char *id, int64_t *version, char *path, error *err)
{
	assert(store_valid_name(id));
	path[0] = 0;
	TRY(current_version(s, id, version, err));
	++*version;
	snprintf(path, PATH_MAX, "%s/sessions/%s.%lld", s->folder, id, (long long)*version);
	return STATUS_OK;
}

status store_session_current(store *s, const char *id, int64_t *version, int64_t *bytes, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	*bytes = 0;
	TRY(current_version(s, id, version, err));
	store_session_version_path(s, id, *version, path);
	if (*version == 0 || stat(path, &st) != 0)
		return error_set(err, STATUS_STORAGE, NULL, "the stored state of %.64s is missing", id);
	*bytes = st.st_size;
	return STATUS_OK;
}

bool session_file_name(const char *name, char id[STORE_ID_BYTES], int64_t *version)
{
	const char *dot = strrchr(name, '.');
	size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
	if (!dot || digits == 0 || digits > 18 || dot[1 + digits] || dot - name >= STORE_ID_BYTES)
		return false;
	snprintf(id, STORE_ID_BYTES, "%.*s", (int)(dot - name), name);
	*version = strtoll(dot + 1, NULL, 10);
	return store_valid_name(id);
}

/* The version that a path names; -1: it names none. */
static int64_t version_of(const char *path)
{
	char id[STORE_ID_BYTES];
	int64_t version;
	const char *slash = strrchr(path, '/');
	return session_file_name(slash ? slash + 1 : path, id, &version) ? version : -1;
}

/* The file: a header, the row's document, the state. */
typedef struct state_header {
	char magic[8];
	int64_t version; /* that of the file's name: an older file under a newer name is damage */
	uint64_t document_bytes, state_bytes;
	uint64_t document, state; /* digests */
	uint64_t header;          /* digest of all before */
} state_header;
static const char magic[8] = "ADDSTAT1";
enum { HEAD_LIMIT = 1 << 20 }; /* bytes of header and document */

static bool is_sealed(const state_header *h)
{
	return memcmp(h->magic, magic, sizeof magic) == 0 &&
	       h->header == digest_bytes(h, offsetof(state_header, header));
}

status store_session_write(const char *path, const char *id, const json_t *session, const void *blob, size_t bytes,
                           error *err)
{
	if (bytes > STORE_SESSION_BYTES)
		return error_set(err, STATUS_TOO_LARGE, NULL, "a state of %zu bytes cannot be stored; at most %d can",
		                 bytes, STORE_SESSION_BYTES);
	char *text = store_text(session), named[STORE_ID_BYTES];
	int64_t version;
	if (!text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	bool fits = session_file_name(strrchr(path, '/') + 1, named, &version) && strcmp(named, id) == 0;
	assert(fits);
	size_t length = strlen(text);
	state_header h = {.version = version,
	                  .document_bytes = length,
	                  .state_bytes = bytes,
	                  .document = digest_bytes(text, length),
	                  .state = digest_bytes(blob, bytes)};
	memcpy(h.magic, magic, sizeof magic);
	h.header = digest_bytes(&h, offsetof(state_header, header));
	status s = file_write(path, (file_part[]){{&h, sizeof h}, {text, length}, {blob, bytes}}, 3, err);
	free(text);
	return s;
}

int64_t session_row_version(const store_row *row, size_t i)
{
	const json_t *list = json_object_get(row->document, "snapshots");
	return i == 0 ? row->number : json_integer_value(json_object_get(json_array_get(list, i - 1), "version"));
}

bool session_row_has(const store_row *row, int64_t version)
{
	for (size_t i = 0; session_row_version(row, i) > 0; i++)
		if (session_row_version(row, i) == version)
			return true;
	return false;
}

int64_t session_row_snapshot_bytes(const store_row *row)
{
	int64_t bytes = 0;
	size_t i;
	json_t *snapshot;
	json_array_foreach(json_object_get(row->document, "snapshots"), i, snapshot) bytes +=
	    json_integer_value(json_object_get(snapshot, "bytes"));
	return bytes;
}

/* Queue the files of a row for removal, except those that `now` names; NULL: all. */
static status remove_versions(store *s, const store_row *row, const store_row *now, error *err)
{
	char path[STORE_ID_BYTES + 48];
	for (size_t i = 0; session_row_version(row, i) > 0; i++) {
		const int64_t version = session_row_version(row, i);
		snprintf(path, sizeof path, "sessions/%.63s.%lld", row->id, (long long)version);
		if (!now || !session_row_has(now, version))
			TRY(removal_queue(s, path, err));
	}
	return STATUS_OK;
}

status store_session_keep(store *s, const char *id, int64_t version, const json_t *session, error *err)
{
	char file[PATH_MAX];
	struct stat st;
	store_row before, row = {.number = version, .document = (json_t *)(uintptr_t)session};
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id", "not a session id");
	snprintf(row.id, sizeof row.id, "%s", id);
	snprintf(file, sizeof file, "%s/sessions/%s.%lld", s->folder, id, (long long)version);
	if (stat(file, &st) != 0)
		return file_error(err, file, "cannot keep");
	row.bytes = st.st_size + session_row_snapshot_bytes(&row);
	TRY(store_begin(s, err));
	status result = row_find(s, STORE_SESSIONS, id, &before, err);
	if (result == STATUS_OK || result == STATUS_NOT_FOUND)
		result = row_put(s, STORE_SESSIONS, &row, err);
	if (result == STATUS_OK)
		result = remove_versions(s, &before, &row, err);
	row_fini(&before);
	return store_end(s, result, err);
}

void store_session_discard(const char *path)
{
	unlink(path);
}

static bool is_whole(const state_header *h, const char *data, size_t bytes, int64_t version)
{
	if (bytes < sizeof *h || !is_sealed(h) || h->version != version || h->document_bytes > bytes ||
	    h->state_bytes > bytes || sizeof *h + h->document_bytes + h->state_bytes != bytes)
		return false;
	const char *document = data + sizeof *h;
	return h->document == digest_bytes(document, h->document_bytes) &&
	       h->state == digest_bytes(document + h->document_bytes, h->state_bytes);
}

/* Read a whole state file; *data is malloc'ed. */
static status read_file(const char *path, char **data, state_header *h, error *err)
{
	size_t bytes;
	error cause = ERROR_INIT;
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	status s = file_read(path, (size_t)STORE_SESSION_BYTES + HEAD_LIMIT, data, &bytes, &cause);
	if (s != STATUS_OK)
		return error_set(err, s == STATUS_NOT_FOUND ? STATUS_STORAGE : s, NULL, "%s", error_message(&cause));
	memcpy(h, *data, bytes < sizeof *h ? bytes : sizeof *h);
	if (is_whole(h, *data, bytes, version_of(path)))
		return STATUS_OK;
	free(*data);
	*data = NULL;
	return error_set(err, STATUS_STORAGE, NULL, "the session state %.80s is damaged", name);
}

status store_session_read(const char *path, const char *id, void **blob, size_t *bytes, error *err)
{
	char *data;
	state_header h = {0};
	*blob = NULL;
	*bytes = 0;
	status s = read_file(path, &data, &h, err);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "the state of session \"%.64s\" cannot be read", id);
	memmove(data, data + sizeof h + h.document_bytes, h.state_bytes);
	*blob = data;
	*bytes = h.state_bytes;
	return STATUS_OK;
}

status session_file_document(const char *path, json_t **document, int64_t *version, error *err)
{
	char *data;
	state_header h = {0};
	*document = NULL;
	TRY(read_file(path, &data, &h, err));
	*version = h.version;
	*document = json_loadb(data + sizeof h, h.document_bytes, JSON_ALLOW_NUL, NULL);
	free(data);
	return *document ? STATUS_OK : STATUS_NOMEM;
}

static status delete_session(store *s, const char *id, int64_t number, error *err)
{
	(void)number;
	bool found = false;
	store_row row;
	error cause = ERROR_INIT;
	/* The versions of a damaged row are unknown: its states then go to lost/. */
	status known = row_find(s, STORE_SESSIONS, id, &row, &cause);
	status result = known == STATUS_OK || known == STATUS_NOT_FOUND || known == STATUS_STORAGE
	                    ? store_begin(s, err)
	                    : error_set(err, known, NULL, "%s", error_message(&cause));
	if (result != STATUS_OK) {
		row_fini(&row);
		return result;
	}
	result = row_delete(s, STORE_SESSIONS, id, &found, err);
	if (result == STATUS_OK && !found)
		result = error_set(err, STATUS_NOT_FOUND, "id", "there is no session \"%.64s\"", id);
	if (result == STATUS_OK && known == STATUS_OK)
		result = remove_versions(s, &row, NULL, err);
	row_fini(&row);
	return store_end(s, result, err);
}

status store_session_delete(store *s, const char *id, error *err)
{
	return store_with_reserve(s, delete_session, id, 0, err);
}

/* --- states without a row ------------------------------------------------------------------------ */

/* Check that the disk of a file has room for these bytes and the spare. A file system that cannot tell is no error. */
static status check_spare(const char *path, size_t bytes, error *err)
{
	char folder[PATH_MAX];
	struct statvfs disk;
	snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
	if (statvfs(folder, &disk) != 0 ||
	    (uint64_t)disk.f_bavail * disk.f_frsize >= (uint64_t)bytes + STORE_AWAY_SPARE)
		return STATUS_OK;
	return error_set(err, STATUS_FULL, NULL, "fewer than %d MiB of the disk would stay free",
	                 STORE_AWAY_SPARE >> 20);
}

status store_session_put_away(const char *path, const void *blob, size_t bytes, error *err)
{
	TRY(check_spare(path, bytes, err));
	return file_write_scratch(path, blob, bytes, err);
}

status store_session_take_back(const char *path, void **blob, size_t *bytes, error *err)
{
	char *data;
	error cause = ERROR_INIT;
	const status s = file_read(path, STORE_SESSION_BYTES, &data, bytes, &cause);
	*blob = data;
	if (s == STATUS_OK || s == STATUS_NOMEM || s == STATUS_UNAVAILABLE)
		return s == STATUS_OK ? s : error_set(err, s, NULL, "%s", error_message(&cause));
	return error_set(err, STATUS_STORAGE, NULL, "%s", error_message(&cause));
}
