/* Data held against a ledger without changing either: the read-only half of what store_arrange does at a start. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/store/store_private.h"

enum { VERIFY_PAUSE_MS = 200, VERIFY_LEAST_BYTES = 512 }; /* SQLite takes a shorter file for a new one */

/* --- the lock and the ledger --------------------------------------------------------------- */

static bool is_data_folder(const char *folder)
{
	char path[PATH_MAX];
	struct stat st;
	return folder[0] && (size_t)snprintf(path, sizeof path, "%s/models", folder) < sizeof path &&
	       stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A lock file that is made here belongs to the owner of the folder, under any user. */
status verify_lock(const char *folder, int *out, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	*out = -1;
	if (!is_data_folder(folder))
		return error_set(err, STATUS_NOT_FOUND, NULL, "there is no data folder at that place");
	if ((size_t)snprintf(path, sizeof path, "%s/backup.lock", folder) >= sizeof path)
		return error_set(err, STATUS_INVALID, NULL, "the path of the data folder is too long");
	*out = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (*out < 0 && errno == ENOENT) {
		*out = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (*out >= 0 && stat(folder, &st) == 0 && fchown(*out, st.st_uid, st.st_gid) != 0)
			errno = 0; /* ignored: the same user, or no right to change owners */
	}
	if (*out >= 0 && flock(*out, LOCK_SH) == 0)
		return STATUS_OK;
	status s = file_error(err, path, "cannot lock");
	if (*out >= 0)
		close(*out);
	*out = -1;
	return s;
}

status verify_open(store **out, const char *folder, const char *ledger, const char *copy, error *err)
{
	struct stat st;
	*out = NULL;
	if (stat(ledger, &st) != 0 || st.st_size == 0)
		return error_set(err, STATUS_NOT_FOUND, NULL, "ledger.sqlite is missing or empty");
	if (st.st_size < VERIFY_LEAST_BYTES)
		return error_set(err, STATUS_STORAGE, NULL, "the ledger is damaged: it is %d bytes long",
		                 (int)st.st_size);
	store *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->lock = s->backup = -1;
	status result = (size_t)snprintf(s->folder, sizeof s->folder, "%s", folder) < sizeof s->folder
	                    ? ledger_copy(&s->db, ledger, copy, err)
	                    : error_set(err, STATUS_INVALID, NULL, "the path of the data folder is too long");
	if (result == STATUS_OK)
		result = ledger_verify(s->db, err);
	if (result == STATUS_OK) {
		*out = s;
		return result;
	}
	store_close(s);
	return result;
}

/* --- one object ------------------------------------------------------------------------------ */

bool verify_manifest(const store *s, store_table table, const store_row *row)
{
	char path[PATH_MAX], *text;
	size_t bytes;
	store_manifest_path(s, table, row, path);
	if (file_read(path, MANIFEST_MAX_BYTES, &text, &bytes, NULL) != STATUS_OK)
		return false;
	bool same = strcmp(text, row->manifest) == 0;
	free(text);
	return same;
}

static status verify_blob(const store *s, store_table table, const store_row *row, error *err)
{
	char base[PATH_MAX];
	manifest *m;
	if (!row->manifest)
		return error_set(
		    err, STATUS_STORAGE, NULL,
		    "it has no manifest to be verified with: an engine of this version writes it at its start");
	TRY(manifest_parse(&m, row->manifest, strlen(row->manifest), "the ledger's copy of a manifest", err));
	store_manifest_base(s, table, row, base);
	status result = manifest_check(m, base, err);
	manifest_free(m);
	if (result == STATUS_OK && !verify_manifest(s, table, row))
		result =
		    error_set(err, STATUS_STORAGE, NULL,
		              "its manifest is missing or damaged; its contents are whole, and the next start writes "
		              "the manifest again");
	return result;
}

bool verify_job_copy(const store *s, const store_row *row)
{
	char path[PATH_MAX + 16];
	manifest *m;
	store_job_folder(s, row->id, path);
	strcat(path, "/job.json");
	bool same = manifest_open(&m, path, NULL) == STATUS_OK && json_equal(manifest_about(m), row->document);
	manifest_free(m);
	return same;
}

static status verify_job(const store *s, const store_row *row, error *err)
{
	char path[PATH_MAX + 16];
	manifest *m;
	store_job_folder(s, row->id, path);
	strcat(path, "/job.json");
	status result = manifest_open(&m, path, NULL);
	manifest_free(m);
	return result == STATUS_OK
	           ? STATUS_OK
	           : error_set(err, STATUS_STORAGE, NULL,
	                       "its copy job.json is missing or damaged; its row is whole, and the next start writes "
	                       "the copy again");
}

static status verify_session(const store *s, const store_row *row, error *err)
{
	char path[PATH_MAX];
	json_t *document;
	int64_t version;
	for (size_t i = 0; session_row_version(row, i) > 0; i++) {
		snprintf(path, sizeof path, "%s/sessions/%s.%lld", s->folder, row->id,
		         (long long)session_row_version(row, i));
		status result = session_file_document(path, &document, &version, err);
		json_decref(document);
		TRY(result);
	}
	return STATUS_OK;
}

/* Verify every byte of an object against its row. Changes nothing. */
static status verify_row(const store *s, store_table table, const store_row *row, error *err)
{
	switch (table) {
	case STORE_FILES:
	case STORE_MODELS:
	case STORE_ADAPTERS:
	case STORE_CHECKPOINTS:
		return verify_blob(s, table, row, err);
	case STORE_JOBS:
		return verify_job(s, row, err);
	case STORE_SESSIONS:
		return verify_session(s, row, err);
	case STORE_EVENTS:
	case STORE_RESPONSES:
	case STORE_KEYS:
		break;
	}
	return STATUS_OK;
}

/* --- all objects ------------------------------------------------------------------------------- */

typedef struct round {
	store *store;
	store_table table;
	int64_t objects, bytes;
} round_of;

static status verify_one(void *context, const store_row *row, error *err)
{
	round_of *r = context;
	error cause = ERROR_INIT;
	status result = verify_row(r->store, r->table, row, &cause);
	if (result == STATUS_NOMEM)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	if (result != STATUS_OK)
		store_note_damage(r->store, r->table, row->id, error_message(&cause));
	r->objects++;
	r->bytes += row->bytes;
	return STATUS_OK;
}

status verify_all(store *s, json_t *report, error *err)
{
	static const store_table order[] = {STORE_FILES,       STORE_MODELS,   STORE_ADAPTERS,  STORE_JOBS, STORE_EVENTS,
	                                    STORE_CHECKPOINTS, STORE_SESSIONS, STORE_RESPONSES, STORE_KEYS};
	json_t *objects = json_object();
	int64_t bytes = 0;
	status result = STATUS_OK;
	for (size_t i = 0; i < sizeof order / sizeof *order && result == STATUS_OK; i++) {
		round_of r = {s, order[i], 0, 0};
		result = row_walk(s, order[i], NULL, verify_one, &r, err);
		bytes += r.bytes;
		if (json_object_set_new(objects, store_kind(order[i]), json_integer(r.objects)) != 0)
			result = STATUS_NOMEM;
	}
	if (json_object_set_new(report, "objects", objects) != 0 ||
	    json_object_set_new(report, "bytes", json_integer(bytes)) != 0 ||
	    json_object_set_new(report, "damaged", store_damaged(s)) != 0)
		result = STATUS_NOMEM;
	return result;
}

/* --- what has changed since ---------------------------------------------------------------------- */

static bool same_row(store *before, store *now, const store_damage *d)
{
	store_table table;
	store_row a, b;
	if (!store_find_kind(d->kind, &table))
		return true;
	status was = row_find(before, table, d->id, &a, NULL), is = row_find(now, table, d->id, &b, NULL);
	bool same = was == is && a.number == b.number && !a.manifest == !b.manifest &&
	            (!a.manifest || strcmp(a.manifest, b.manifest) == 0);
	row_fini(&a);
	row_fini(&b);
	return same;
}

status verify_is_stale(store *s, const char *ledger, bool *stale, error *err)
{
	store *now;
	*stale = false;
	if (s->n_damaged == 0)
		return STATUS_OK;
	nanosleep(&(struct timespec){.tv_nsec = VERIFY_PAUSE_MS * 1000000L},
	          NULL); /* a blob changes shortly before its row */
	TRY(verify_open(&now, s->folder, ledger, ":memory:", err));
	for (int i = 0; i < s->n_damaged && !*stale; i++)
		*stale = !same_row(s, now, &s->damaged[i]);
	store_close(now);
	return STATUS_OK;
}
