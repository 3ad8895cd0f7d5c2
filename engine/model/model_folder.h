/* model_folder.h - the contents of a model's folder other than its weights. Any thread. */
#ifndef ENGINE_MODEL_MODEL_FOLDER_H
#define ENGINE_MODEL_MODEL_FOLDER_H

#include "engine/base/manifest.h"
#include "engine/model/architecture.h"

/* Maximum bytes of config.json, enough for the class names of a corpus (labelled.h), each written twice. */
enum { MODEL_FOLDER_MAX_CONFIG = 16 << 20 };

/* Read config.json (new reference) and find its architecture (architecture_of). about: the folder's manifest; NULL: do
 * not verify. STATUS_INVALID: not JSON, or unknown architecture; otherwise as manifest_read. */
status model_folder_config(const architecture **out, json_t **config, const manifest *about, const char *folder,
                           error *err);
/* Read such a configuration into `parsed` (architecture_read), and write it with every key: those of the architecture,
 * class names and keys common to all models. *out is a new reference. STATUS_NOMEM; errors of architecture_read. */
status model_folder_complete(json_t **out, const architecture *a, void *parsed, const json_t *config, error *err);

#endif
