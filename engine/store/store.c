/* Opening is: make the folders, take the lock, open the ledger, hold folders and rows against each other. After a crash
 * there is nothing to repair: every write orders itself so that any prefix of it is a legal state. */
#include "engine/store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/store/store_private.h"

static const char *const folders[] = {"blobs", "models", "adapters", "jobs", "sessions", "cache", "lost", "tmp"};

static status make_folders(const store *s, error *err)
{
	TRY(file_make_folders(s->folder, err));
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s", s->folder, folders[i]);
		TRY(file_make_folders(path, err));
	}
	return STATUS_OK;
}

static status open_lock(const store *s, const char *name, int *out, error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", s->folder, name);
	*out = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return *out >= 0 ? STATUS_OK : file_error(err, path, "cannot open");
}

static status take_lock(store *s, error *err)
{
	TRY(open_lock(s, "lock", &s->lock, err));
	if (flock(s->lock, LOCK_EX | LOCK_NB) != 0) {
		char holder[16] = "";
		ssize_t n = pread(s->lock, holder, sizeof holder - 1, 0);
		size_t digits = n > 0 ? strspn(holder, "0123456789") : 0;
		return error_set(err, STATUS_CONFLICT, NULL, "the data folder %s is in use by another process%s%.*s%s",
		                 s->folder, digits ? " (pid " : "", (int)digits, holder, digits ? ")" : "");
	}
	/* The lock file names the process that holds it, for the message of one that does not get it. On a full disk it
	 * stays empty. */
	if (ftruncate(s->lock, 0) == 0)
		dprintf(s->lock, "%ld\n", (long)getpid());
	return open_lock(s, "backup.lock", &s->backup, err);
}

/* --- the ledger ------------------------------------------------------------------------------- */

enum {
	LEDGER_LEAST_BYTES = 512, /* SQLite takes a shorter file for a new one */
	LEDGER_WAIT_MS = 50       /* in all, between two calls of store_tick() */
};

static void ledger_path(const store *s, char *out)
{
	snprintf(out, PATH_MAX, "%s/ledger.sqlite", s->folder);
}

static int count_entries(const store *s, const char *folder)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", s->folder, folder);
	DIR *dir = opendir(path);
	int n = 0;
	for (struct dirent *e; dir && (e = readdir(dir));)
		n += e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

/* A new ledger beside blobs is a lost ledger. */
static status refuse_lost_ledger(const store *s, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	int models = count_entries(s, "models"), jobs = count_entries(s, "jobs"), files = count_entries(s, "blobs") / 2,
	    sessions = count_entries(s, "sessions");
	ledger_path(s, path);
	if ((stat(path, &st) == 0 && st.st_size > 0) || models + jobs + files + sessions == 0)
		return STATUS_OK;
	return error_set(
	    err, STATUS_STORAGE, NULL,
	    "ledger.sqlite is missing or empty, but the data folder holds %d models, %d jobs, %d files and %d "
	    "session states: put the ledger back, restore a backup (additive restore), or make a new one from "
	    "what is stored (additive fsck --rebuild)",
	    models, jobs, files, sessions);
}

static status remember_ledger(store *s, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	ledger_path(s, path);
	if (stat(path, &st) != 0)
		return file_error(err, path, "cannot read");
	s->ledger_device = st.st_dev;
	s->ledger_inode = st.st_ino;
	return STATUS_OK;
}

/* Move the log into the ledger's file, and note how long that is now. */
static status checkpoint(store *s, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	TRY(ledger_checkpoint(s->db, err));
	ledger_path(s, path);
	if (stat(path, &st) == 0)
		s->ledger_bytes = st.st_size;
	return STATUS_OK;
}

/* salvaged: rows may be missing. */
static status open_ledger(store *s, bool *salvaged, error *err)
{
	char path[PATH_MAX];
	error cause = ERROR_INIT;
	bool damaged = false;
	ledger_path(s, path);
	struct stat st;
	status result;
	if (stat(path, &st) == 0 && st.st_size > 0 && st.st_size < LEDGER_LEAST_BYTES)
		result = error_set(&cause, STATUS_STORAGE, NULL, "the ledger is damaged: it is %d bytes long",
		                   (int)st.st_size);
	else
		result = ledger_open(&s->db, path, &cause);
	if (result == STATUS_FULL && reserve_release(s)) {
		cause = (error)ERROR_INIT;
		result = ledger_open(&s->db, path, &cause);
	}
	if (result == STATUS_OK)
		TRY(salvage_is_needed(s, &damaged, err));
	else if (result != STATUS_STORAGE)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	if (!damaged && result == STATUS_OK)
		return remember_ledger(s, err);
	log_line(LOG_ERROR, "%s; a new one is made from its whole rows and from the blobs",
	         damaged ? "the ledger has damaged rows" : error_message(&cause));
	sqlite3_close(s->db);
	s->db = NULL;
	*salvaged = true;
	TRY(salvage_ledger(s, err));
	return remember_ledger(s, err);
}

static status open_all(store *s, bool rebuild, error *err)
{
	TRY(make_folders(s, err));
	TRY(take_lock(s, err));
	if (!rebuild)
		TRY(refuse_lost_ledger(s, err));
	TRY(open_ledger(s, &rebuild, err));
	TRY(commit_init(s, err));
	if (rebuild)
		TRY(salvage_rebuild(s, err));
	TRY(store_arrange(s, err));
	TRY(identity_ensure(s, err));
	reserve_take(s);
	TRY(checkpoint(s, err));
	s->wait_ms = LEDGER_WAIT_MS;
	ledger_wait(s->db, &s->wait_ms);
	return STATUS_OK;
}

static status open_folder(store **out, const char *folder, bool rebuild, error *err)
{
	*out = NULL;
	store *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->lock = s->backup = -1;
	status result;
	if (!folder[0] || (size_t)snprintf(s->folder, sizeof s->folder, "%s", folder) >= sizeof s->folder)
		result = error_set(err, STATUS_INVALID, NULL, "the path of the data folder is empty or too long");
	else
		result = open_all(s, rebuild, err);
	if (result == STATUS_OK)
		*out = s;
	else
		store_close(s);
	return result;
}

status store_open(store **out, const char *folder, error *err)
{
	return open_folder(out, folder, false, err);
}

status store_rebuild(store **out, const char *folder, error *err)
{
	return open_folder(out, folder, true, err);
}

void store_close(store *s)
{
	if (!s)
		return;
	commit_fini(s);
	sqlite3_close(s->db);
	if (s->lock >= 0)
		close(s->lock);
	if (s->backup >= 0)
		close(s->backup);
	free(s->damaged);
	free(s);
}

/* Return what is wrong with the ledger's file, or NULL. Writes to a file that was moved or replaced are lost at the
 * next start. The file never shrinks: SQLite keeps its free pages. */
static const char *ledger_problem(const store *s)
{
	char path[PATH_MAX];
	struct stat st;
	ledger_path(s, path);
	if (stat(path, &st) != 0)
		return errno == ENOENT ? "the ledger is missing" : "the ledger cannot be reached";
	if (st.st_dev != s->ledger_device || st.st_ino != s->ledger_inode)
		return "the ledger was replaced by another file";
	return st.st_size < s->ledger_bytes ? "the ledger is shorter than it was" : NULL;
}

status store_writable(const store *s, error *err)
{
	const char *problem = ledger_problem(s);
	if (!problem && s->depth > 0 && sqlite3_get_autocommit(s->db))
		return error_set(err, STATUS_IO, NULL, "an earlier failure has ended the commit");
	return problem ? error_set(err, STATUS_STORAGE, NULL, "%s", problem) : STATUS_OK;
}

/* --- now and then ------------------------------------------------------------------------------------ */

static status clean_up(store *s, error *err)
{
	TRY(store_writable(s, err));
	TRY(ledger_probe(s->db, err));
	if (!s->dirty && !s->removals_left)
		return STATUS_OK;
	reserve_take(s);
	TRY(removal_sweep(s, err));
	TRY(checkpoint(s, err));
	s->dirty = false;
	return STATUS_OK;
}

/* The thread that calls this answers requests, so nothing waits for a lock here, and while the ledger is locked no
 * commit waits either. */
void store_tick(store *s)
{
	error err = ERROR_INIT;
	s->wait_ms = 0;
	status result = clean_up(s, &err);
	s->wait_ms = result == STATUS_UNAVAILABLE ? 0 : LEDGER_WAIT_MS;
	s->stuck[0] = 0;
	/* reading continues after these two */
	if (result != STATUS_OK && result != STATUS_FULL && result != STATUS_NOMEM)
		snprintf(s->stuck, sizeof s->stuck, "%s",
		         err.status == STATUS_OK ? status_text(result) : error_message(&err));
	store_problem(s);
}

const char *store_problem(store *s)
{
	char path[PATH_MAX];
	const bool before = s->problem[0];
	const char *now = NULL;
	for (size_t i = 0; i < sizeof folders / sizeof *folders && !now; i++) {
		snprintf(path, sizeof path, "%s/%s", s->folder, folders[i]);
		if (access(path, W_OK) != 0)
			now = errno == ENOENT  ? "a folder of the data folder is missing"
			      : errno == EROFS ? "the data folder is on a read-only disk"
			                       : "the data folder cannot be written";
	}
	if (!now)
		now = ledger_problem(s);
	if (!now && s->stuck[0])
		now = s->stuck;
	if (!now && before)
		log_line(LOG_INFO, "the data folder can be written again");
	s->problem[0] = 0;
	if (!now)
		return NULL;
	snprintf(s->problem, sizeof s->problem, "%s (data folder %.300s)", now, s->folder);
	if (!before)
		log_line(LOG_ERROR, "%s", s->problem);
	return s->problem;
}

void store_death_log_path(const store *s, char *out)
{
	snprintf(out, PATH_MAX, "%s/deaths", s->folder);
}

/* --- damage --------------------------------------------------------------------------------------------- */

void store_note_damage(store *s, store_table table, const char *id, const char *problem)
{
	const char *kind = store_kind(table);
	for (int i = 0; i < s->n_damaged; i++)
		if (s->damaged[i].kind == kind && strcmp(s->damaged[i].id, id) == 0)
			return;
	log_line(LOG_ERROR, "%s \"%s\" is damaged: %s", kind, id, problem);
	store_damage *more =
	    s->n_damaged < STORE_MAX_DAMAGED ? realloc(s->damaged, (size_t)(s->n_damaged + 1) * sizeof *more) : NULL;
	if (!more)
		return;
	s->damaged = more;
	store_damage *d = &more[s->n_damaged++];
	d->kind = kind;
	snprintf(d->id, sizeof d->id, "%s", id);
	snprintf(d->problem, sizeof d->problem, "%s", problem);
	utf8_repair(d->problem);
}

int store_damaged_count(const store *s)
{
	return s->n_damaged;
}

json_t *store_damaged(const store *s)
{
	json_t *list = json_array();
	for (int i = 0; i < s->n_damaged && list; i++) {
		const store_damage *d = &s->damaged[i];
		json_t *one = json_pack("{s:s, s:s, s:s}", "kind", d->kind, "id", d->id, "problem", d->problem);
		if (json_array_append_new(list, one) != 0) {
			json_decref(list);
			list = NULL;
		}
	}
	return list;
}

status store_check_blob(store *s, store_table table, const char *id, bool contents, error *err)
{
	store_row row;
	status result = row_find(s, table, id, &row, err);
	if (result == STATUS_OK)
		result = row_check_blob(s, table, &row, contents, err);
	else if (result == STATUS_NOT_FOUND)
		error_set(err, STATUS_NOT_FOUND, NULL, "there is no %s \"%.64s\"", store_kind(table), id);
	if (result == STATUS_STORAGE && err)
		store_note_damage(s, table, id, error_message(err));
	row_fini(&row);
	return result;
}

status store_manifest(store *s, store_table table, const char *id, manifest **out, error *err)
{
	store_row row;
	*out = NULL;
	status result = row_find(s, table, id, &row, err);
	if (result == STATUS_NOT_FOUND)
		error_set(err, result, NULL, "there is no %s \"%.64s\"", store_kind(table), id);
	if (result == STATUS_OK && row.manifest)
		result =
		    manifest_parse(out, row.manifest, strlen(row.manifest), "the ledger's copy of a manifest", err);
	row_fini(&row);
	return result;
}

/* --- names -------------------------------------------------------------------------------------------------- */

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
	return json_text(document, JSON_COMPACT);
}

const char *store_project_member(const char *project)
{
	return project[0] ? project : NULL;
}

void store_read_project(const json_t *document, char out[STORE_ID_BYTES])
{
	const char *project = json_string_value(json_object_get(document, "project"));
	snprintf(out, STORE_ID_BYTES, "%s", project ? project : "");
}
