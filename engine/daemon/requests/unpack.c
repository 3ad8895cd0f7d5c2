#include "engine/daemon/requests/unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"

static int slashes(const char *path)
{
	int n = 0;
	for (; *path; path++)
		n += *path == '/';
	return n;
}

/* Decide whether a file of a folder (its path with a final slash) is kept. A folder nearer to the top replaces the one
 * chosen before. */
static status choose_folder(unpack *u, const char *folder, bool *chosen, error *err)
{
	int depth = slashes(folder);
	*chosen = u->depth == depth && strcmp(u->folder, folder) == 0;
	if (*chosen || (u->depth >= 0 && depth > u->depth))
		return STATUS_OK;
	if (depth == u->depth) {
		strcpy(u->other, folder);
		return STATUS_OK;
	}
	if (u->depth >= 0)
		TRY(received_clear(u->files, err));
	u->depth = depth;
	strcpy(u->folder, folder);
	u->other[0] = '\0';
	*chosen = true;
	return STATUS_OK;
}

/* --- files that do not decide ------------------------------------------------------------- */

/* The i-th has the name i in a folder of its own. */
static status begin_aside(unpack *u, const char *path, int64_t bytes, int64_t limit, error *err)
{
	char name[16];
	if (!u->aside.folder[0]) {
		snprintf(u->aside.folder, sizeof u->aside.folder, "%.*s-aside", PATH_MAX - 16, u->files->folder);
		TRY(received_open(&u->aside, err));
	}
	char *kept = MEMORY_ROOM(u->asides, u->room, u->n_asides + 1) ? strdup(path) : NULL;
	if (!kept)
		return error_no_memory(err, "an archive");
	u->asides[u->n_asides] = (unpack_aside){.path = kept, .large = bytes > limit};
	snprintf(name, sizeof name, "%d", u->n_asides++);
	return received_begin(&u->aside, name, limit, err);
}

/* Move a file to the others if it is of their folder. */
static status take_aside(unpack *u, int i, error *err)
{
	char from[PATH_MAX + 16], to[PATH_MAX + RECEIVED_NAME_BYTES];
	const char *path = u->asides[i].path, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (strlen(u->folder) != (size_t)(name - path) || strncmp(u->folder, path, (size_t)(name - path)) != 0)
		return STATUS_OK;
	if (u->asides[i].large)
		return error_set(err, STATUS_TOO_LARGE, name, "%s is over the limit of %lld bytes", name,
		                 (long long)u->accepts(name));
	snprintf(from, sizeof from, "%s/%d", u->aside.folder, i);
	snprintf(to, sizeof to, "%s/%s", u->files->folder, name);
	if (access(to, F_OK) == 0)
		return error_set(err, STATUS_INVALID, name, "the file \"%s\" came twice", name);
	return rename(from, to) == 0 ? STATUS_OK : file_error(err, to, "cannot keep the upload");
}

/* --- events of the archive ------------------------------------------------------------------ */

static status unpack_begin_file(void *context, const char *path, int64_t bytes, error *err)
{
	unpack *u = context;
	char folder[TAR_MAX_PATH];
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	int64_t limit = received_valid_name(name) ? u->accepts(name) : -1;
	bool chosen;
	if (limit < 0)
		return STATUS_OK;
	if (u->decides && !u->decides(name)) {
		u->into = bytes > limit ? NULL : &u->aside;
		return begin_aside(u, path, bytes, limit, err);
	}
	snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
	TRY(choose_folder(u, folder, &chosen, err));
	if (!chosen)
		return STATUS_OK;
	if (bytes > limit)
		return error_set(err, STATUS_TOO_LARGE, name, "%s is over the limit of %lld bytes", name,
		                 (long long)limit);
	u->into = u->files;
	return received_begin(u->files, name, limit, err);
}

static status data(void *context, const void *bytes, size_t count, error *err)
{
	unpack *u = context;
	return u->into ? received_write(u->into, bytes, count, err) : STATUS_OK;
}

static status unpack_end(void *context, error *err)
{
	unpack *u = context;
	(void)err;
	if (u->into)
		received_end(u->into);
	u->into = NULL;
	return STATUS_OK;
}

void unpack_begin(unpack *u, received *files, int64_t (*accepts)(const char *name), bool (*decides)(const char *name))
{
	*u = (unpack){.tar = {.events = {unpack_begin_file, data, unpack_end}, .context = u},
	              .files = files,
	              .accepts = accepts,
	              .decides = decides,
	              .depth = -1};
}

status unpack_feed(unpack *u, const void *bytes, size_t count, error *err)
{
	return tar_feed(&u->tar, bytes, count, err);
}

status unpack_finish(unpack *u, error *err)
{
	TRY(tar_finish(&u->tar, err));
	if (u->depth < 0)
		return error_set(err, STATUS_INVALID, NULL, "the archive has none of the expected files");
	if (u->other[0])
		return error_set(err, STATUS_INVALID, NULL,
		                 "the archive holds files in \"%.100s\" and in \"%.100s\", of which one is expected",
		                 u->folder, u->other);
	for (int i = 0; i < u->n_asides; i++)
		TRY(take_aside(u, i, err));
	return STATUS_OK;
}

void unpack_fini(unpack *u)
{
	tar_fini(&u->tar);
	if (u->aside.folder[0])
		received_remove(&u->aside);
	for (int i = 0; i < u->n_asides; i++)
		free(u->asides[i].path);
	free(u->asides);
}
