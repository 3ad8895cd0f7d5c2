#include "engine/recipe/job_check.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/manifest.h"

bool job_check_is_damage(status s)
{
	switch (s) {
	case STATUS_STORAGE:
	case STATUS_CORRUPT:
	case STATUS_NOT_FOUND:
	case STATUS_TOO_LARGE:
	case STATUS_INVALID:
	case STATUS_UNSUPPORTED:
		return true;
	default:
		return false;
	}
}

status job_check_blame(error *err, status s, const char *what, const char *name)
{
	error_settle(err, s);
	if (!job_check_is_damage(s))
		return s;
	error blamed = ERROR_INIT;
	error_set(&blamed, STATUS_STORAGE, NULL, "the %s %.64s: %s", what, name, error_message(err));
	*err = blamed;
	return STATUS_STORAGE;
}

static status missing(const char *name, error *err)
{
	return error_set(err, STATUS_STORAGE, NULL, "%.64s is missing", name);
}

status job_check_file(const char *path, const char *id, error *err)
{
	char beside[PATH_MAX], parent[PATH_MAX];
	manifest *m;
	error cause = ERROR_INIT;
	if (access(path, F_OK) != 0)
		return missing(id, err);
	snprintf(parent, sizeof parent, "%s", path);
	char *slash = strrchr(parent, '/');
	if (!slash || (size_t)snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, path) >= sizeof beside)
		return error_set(err, STATUS_INVALID, NULL, "path too long");
	*slash = 0;
	status s = manifest_open(&m, beside, &cause);
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (s == STATUS_OK)
		s = manifest_check(m, parent, &cause);
	manifest_free(m);
	error_settle(&cause, s);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "%s", error_message(&cause));
}

status job_check_folder(const char *folder, const char *name, error *err)
{
	manifest *m;
	if (access(folder, F_OK) != 0)
		return missing(name, err);
	status s = manifest_open_folder(&m, folder, err);
	if (s == STATUS_OK && m)
		s = manifest_check(m, folder, err);
	manifest_free(m);
	return error_settle(err, s);
}

bool job_check_known_hash(const char *path, uint64_t *out)
{
	char beside[PATH_MAX + 16];
	manifest *m = NULL;
	snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, path);
	const char *text = manifest_open(&m, beside, NULL) == STATUS_OK
	                       ? json_string_value(json_object_get(manifest_about(m), "xxh3"))
	                       : NULL;
	const bool known = text && strlen(text) == DIGEST_TEXT_BYTES - 1 && digest_read(text, out);
	manifest_free(m);
	return known;
}

status job_check_hash(const char *path, uint64_t *out, error *err)
{
	file_map map;
	if (job_check_known_hash(path, out))
		return STATUS_OK;
	TRY(file_map_open(&map, path, err));
	*out = digest_bytes(map.data, map.bytes);
	file_map_close(&map);
	return STATUS_OK;
}
