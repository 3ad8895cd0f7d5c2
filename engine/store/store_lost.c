/* DATA/lost/KIND/NAME: blobs that no row names. They are set aside until an operator adopts or
 * removes them (maintenance.h), or until store_lost_sweep.c does. A name that is taken gets "~" and a number at its
 * end. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"

enum { LOST_TRIES = 10000 };

static status free_name(const char *folder, const char *name, char *out, error *err)
{
	struct stat st;
	for (int i = 0; i < LOST_TRIES; i++) {
		int n = i ? snprintf(out, PATH_MAX, "%s/%s~%d", folder, name, i)
		          : snprintf(out, PATH_MAX, "%s/%s", folder, name);
		if (n < 0 || n >= PATH_MAX)
			break;
		if (lstat(out, &st) != 0 && errno == ENOENT)
			return STATUS_OK;
	}
	return error_set(err, STATUS_STORAGE, NULL, "lost/ has no room for another \"%.64s\"", name);
}

status lost_keep(store *s, store_table table, const char *path, const char *name, error *err)
{
	char folder[PATH_MAX], kept[PATH_MAX], from[PATH_MAX + 16], to[PATH_MAX + 16];
	snprintf(folder, sizeof folder, "%s/lost/%s", s->folder, store_kind(table));
	TRY(file_make_folders(folder, err));
	TRY(free_name(folder, name, kept, err));
	snprintf(from, sizeof from, "%s" MANIFEST_SUFFIX, path);
	snprintf(to, sizeof to, "%s" MANIFEST_SUFFIX, kept);
	if (rename(path, kept) != 0)
		return file_error(err, path, "cannot set aside");
	rename(from, to); /* most have none */
	lost_date(kept);
	log_line(LOG_WARN, "%s \"%s\" has no row in the ledger: it is kept as lost/%s/%s (see additive fsck)",
	         store_kind(table), name, store_kind(table), strrchr(kept, '/') + 1);
	return file_sync_folder(folder, err);
}

/* --- back again ----------------------------------------------------------------------------------- */

/* A lost blob: its kind, its path, and the place it belongs to. */
typedef struct lost_blob {
	store_table table;
	char name[256];                       /* without the number of a name that was taken */
	char id[STORE_ID_BYTES];              /* id of its row, or of a checkpoint's job */
	int64_t step;                         /* step of a checkpoint */
	char place[3 * STORE_ID_BYTES + 256]; /* below the data folder */
	char from[PATH_MAX], to[PATH_MAX];
} lost_blob;

static bool is_plain(const char *name)
{
	return name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static status no_such(error *err, const char *kind, const char *name)
{
	return error_set(err, STATUS_NOT_FOUND, NULL, "lost/ holds no %.32s \"%.128s\"", kind, name);
}

/* Where a name of that kind belongs. */
static bool find_place(lost_blob *b)
{
	char *end;
	int64_t version;
	snprintf(b->id, sizeof b->id, "%.*s", STORE_ID_BYTES - 1, b->name);
	switch (b->table) {
	case STORE_FILES:
		snprintf(b->place, sizeof b->place, "blobs/%s", b->name);
		break;
	case STORE_MODELS:
	case STORE_ADAPTERS:
		snprintf(b->place, sizeof b->place, "%s/%s", folder_of_table(b->table), b->name);
		break;
	case STORE_JOBS:
		snprintf(b->place, sizeof b->place, "jobs/%s", b->name);
		break;
	case STORE_SESSIONS:
		snprintf(b->place, sizeof b->place, "sessions/%s", b->name);
		return session_file_name(b->name, b->id, &version);
	case STORE_CHECKPOINTS:
		end = strstr(b->name, ".step-");
		for (char *next; end && (next = strstr(end + 1, ".step-"));)
			end = next;
		b->step = end ? checkpoint_name_step(end + 1) : -1;
		if (b->step < 0 || end - b->name >= STORE_ID_BYTES)
			return false;
		b->id[end - b->name] = 0;
		snprintf(b->place, sizeof b->place, "jobs/%s/%s", b->id, end + 1);
		return store_valid_name(b->id);
	case STORE_EVENTS:
	case STORE_RESPONSES:
	case STORE_KEYS:
		return false;
	}
	return strlen(b->name) < STORE_ID_BYTES && store_valid_name(b->name);
}

static status find_lost(const store *s, const char *kind, const char *name, lost_blob *b, error *err)
{
	struct stat st;
	*b = (lost_blob){0};
	if (!is_plain(name) || !store_find_kind(kind, &b->table) ||
	    (size_t)snprintf(b->from, sizeof b->from, "%s/lost/%s/%s", s->folder, kind, name) >= sizeof b->from ||
	    lstat(b->from, &st) != 0)
		return no_such(err, kind, name);
	snprintf(b->name, sizeof b->name, "%.*s", (int)strcspn(name, "~"), name);
	if (!find_place(b) || (size_t)snprintf(b->to, sizeof b->to, "%s/%s", s->folder, b->place) >= sizeof b->to)
		return error_set(err, STATUS_STORAGE, NULL, "\"%.128s\" is no name of a %.32s", name, kind);
	return STATUS_OK;
}

static status require_free(store *s, const lost_blob *b, error *err)
{
	store_row row;
	struct stat st;
	bool taken = lstat(b->to, &st) == 0, has_job = true;
	store_table table = b->table == STORE_CHECKPOINTS ? STORE_JOBS : b->table;
	status found = row_find(s, table, b->id, &row, NULL);
	row_fini(&row);
	if (b->table == STORE_CHECKPOINTS)
		has_job = found == STATUS_OK;
	else
		taken = taken || found != STATUS_NOT_FOUND;
	if (!has_job)
		return error_set(err, STATUS_CONFLICT, NULL,
		                 "there is no job \"%s\" for this checkpoint: adopt the job first", b->id);
	return taken ? error_set(err, STATUS_CONFLICT, NULL, "there is a %s \"%s\" already", store_kind(b->table),
	                         b->name)
	             : STATUS_OK;
}

/* The blob and, for a file, the manifest beside it. */
static status move(const lost_blob *b, const char *from, const char *to, error *err)
{
	char beside[PATH_MAX + 16], target[PATH_MAX + 16], folder[PATH_MAX];
	snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, from);
	snprintf(target, sizeof target, "%s" MANIFEST_SUFFIX, to);
	if (b->table == STORE_FILES && rename(beside, target) != 0 && errno != ENOENT)
		return file_error(err, beside, "cannot move");
	if (rename(from, to) != 0) {
		status result = file_error(err, from, "cannot move");
		rename(target, beside);
		return result;
	}
	snprintf(folder, sizeof folder, "%s", to);
	*strrchr(folder, '/') = 0;
	return file_sync_folder(folder, err);
}

/* One that cannot be adopted waits in its place: the next start sets it aside. */
static void adopt_checkpoints(store *s, const lost_blob *job)
{
	DIR *dir = opendir(job->to);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		error err = ERROR_INIT;
		if (checkpoint_name_step(e->d_name) >= 0 && adopt_checkpoint(s, job->id, e->d_name, &err) != STATUS_OK)
			log_line(LOG_WARN, "%s of %s gets no row: %s", e->d_name, job->id, error_message(&err));
	}
	if (dir)
		closedir(dir);
}

static status adopt_in_place(store *s, const lost_blob *b, error *err)
{
	status result;
	switch (b->table) {
	case STORE_FILES:
		return adopt_file(s, b->name, err);
	case STORE_MODELS:
	case STORE_ADAPTERS:
		return adopt_folder_object(s, b->table, b->name, err);
	case STORE_SESSIONS:
		return adopt_session(s, b->name, err);
	case STORE_CHECKPOINTS:
		return adopt_checkpoint(s, b->id, strrchr(b->place, '/') + 1, err);
	case STORE_JOBS:
		result = adopt_job(s, b->name, err);
		if (result == STATUS_OK)
			adopt_checkpoints(s, b);
		return result;
	case STORE_EVENTS:
	case STORE_RESPONSES:
	case STORE_KEYS:
		break;
	}
	return STATUS_INTERNAL;
}

/* Otherwise the next sweep would unlink the path, which is listed for removal. */
static status cancel_removal(store *s, const lost_blob *b, error *err)
{
	char beside[sizeof b->place + 16];
	TRY(removal_cancel(s, b->place, err));
	snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, b->place);
	return b->table == STORE_FILES ? removal_cancel(s, beside, err) : STATUS_OK;
}

status lost_adopt(store *s, const char *kind, const char *name, error *err)
{
	lost_blob b;
	TRY(find_lost(s, kind, name, &b, err));
	TRY(require_free(s, &b, err));
	TRY(move(&b, b.from, b.to, err));
	status result = store_begin(s, err);
	if (result == STATUS_OK) {
		result = cancel_removal(s, &b, err);
		if (result == STATUS_OK)
			result = adopt_in_place(s, &b, err);
		result = store_end(s, result, err);
	}
	if (result != STATUS_OK)
		move(&b, b.to, b.from, NULL);
	return result;
}

status lost_remove(const char *data, const char *kind, const char *name, error *err)
{
	char path[PATH_MAX], beside[PATH_MAX + 16];
	struct stat st;
	if (!is_plain(kind) || !is_plain(name) ||
	    (size_t)snprintf(path, sizeof path, "%s/lost/%s/%s", data, kind, name) >= sizeof path ||
	    lstat(path, &st) != 0)
		return no_such(err, kind, name);
	snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, path);
	unlink(beside);
	return file_remove_tree(path, err);
}
