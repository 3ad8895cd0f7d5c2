/* job_check.h - verify the inputs of a run: files and folders against their manifests.
 *
 * Damage is STATUS_STORAGE with the file's name in the message. A file or folder of an older version, without a
 * manifest, only has to exist. All functions read everything, so they must run on the pool. Any thread. */
#ifndef ENGINE_RECIPE_JOB_CHECK_H
#define ENGINE_RECIPE_JOB_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* The uploaded file `id` at `path`. */
status job_check_file(const char *path, const char *id, error *err);
/* Set *out to the hash that the manifest of a stored file has; false if an earlier version has written none. */
bool job_check_known_hash(const char *path, uint64_t *out);
/* The hash of a stored file, from its manifest, or from its bytes where an earlier version has written none. */
status job_check_hash(const char *path, uint64_t *out, error *err);
/* The folder of a model or checkpoint, called `name` in messages. */
status job_check_folder(const char *folder, const char *name, error *err);
/* True if an intact folder never fails with this status: the folder is damaged. */
bool job_check_is_damage(status s);
/* Make such a failure one of storage, "the WHAT NAME: …"; others stay. Returns the status. */
status job_check_blame(error *err, status s, const char *what, const char *name);

#endif
