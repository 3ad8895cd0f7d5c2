#include "engine/daemon/requests/unpack.h"

#include <stdio.h>
#include <string.h>

static int slashes(const char *path)
{
	int n = 0;
	for (; *path; path++)
		n += *path == '/';
	return n;
}

/* Decide whether a file of a folder (its path with a final slash) is kept. A folder nearer to the top replaces the one
 * chosen before; until one is decided, each other folder does. */
static status choose_folder(unpack *u, const char *folder, bool decides, bool *chosen, error *err)
{
	int depth = slashes(folder);
	const bool decided = u->decided;
	*chosen = u->depth == depth && strcmp(u->folder, folder) == 0;
	u->decided |= decides;
	if (*chosen || (decided && (!decides || depth > u->depth)))
		return STATUS_OK;
	if (decided && depth == u->depth) {
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

static status unpack_begin_file(void *context, const char *path, int64_t bytes, error *err)
{
	unpack *u = context;
	char folder[TAR_MAX_PATH];
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	int64_t limit = received_valid_name(name) ? u->accepts(name) : -1;
	bool chosen;
	received_end(u->files);
	if (limit < 0)
		return STATUS_OK;
	snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
	TRY(choose_folder(u, folder, !u->decides || u->decides(name), &chosen, err));
	if (!chosen)
		return STATUS_OK;
	if (bytes > limit)
		return error_set(err, STATUS_TOO_LARGE, name, "%s is over the limit of %lld bytes", name,
		                 (long long)limit);
	return received_begin(u->files, name, limit, err);
}

static status data(void *context, const void *bytes, size_t count, error *err)
{
	unpack *u = context;
	return u->files->fd < 0 ? STATUS_OK : received_write(u->files, bytes, count, err);
}

static status unpack_end(void *context, error *err)
{
	(void)err;
	received_end(((unpack *)context)->files);
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
	if (!u->decided)
		return error_set(err, STATUS_INVALID, NULL, "the archive has none of the expected files");
	if (u->other[0])
		return error_set(err, STATUS_INVALID, NULL,
		                 "the archive holds files in \"%.100s\" and in \"%.100s\", of which one is expected",
		                 u->folder, u->other);
	return STATUS_OK;
}

void unpack_fini(unpack *u)
{
	tar_fini(&u->tar);
}
