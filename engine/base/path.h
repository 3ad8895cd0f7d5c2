/* path.h - paths in buffers of PATH_MAX bytes. STATUS_INVALID: the path is too long. */
#ifndef ENGINE_BASE_PATH_H
#define ENGINE_BASE_PATH_H

#include <limits.h>

#include "engine/base/error.h"

/* Write FOLDER/NAME. */
status path_join(char out[PATH_MAX], const char *folder, const char *name, error *err);
/* Write PATH followed by `suffix`. */
status path_extend(char out[PATH_MAX], const char *path, const char *suffix, error *err);

#endif
