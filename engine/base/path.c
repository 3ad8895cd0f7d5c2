#include "engine/base/path.h"

#include <stdio.h>

static status path_set(char out[PATH_MAX], const char *first, const char *between, const char *last, error *err)
{
	return (size_t)snprintf(out, PATH_MAX, "%s%s%s", first, between, last) < PATH_MAX
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, NULL, "path too long");
}

status path_join(char out[PATH_MAX], const char *folder, const char *name, error *err)
{
	return path_set(out, folder, "/", name, err);
}

status path_extend(char out[PATH_MAX], const char *path, const char *suffix, error *err)
{
	return path_set(out, path, "", suffix, err);
}
