/* model_folder.h - the contents of a model's folder other than its weights. Any thread. */
#ifndef ENGINE_MODEL_MODEL_FOLDER_H
#define ENGINE_MODEL_MODEL_FOLDER_H

#include "engine/base/manifest.h"
#include "engine/model/architecture.h"

/* Bytes of config.json: room for the class names that a corpus may have (labelled.h), each written twice. */
enum { MODEL_FOLDER_MAX_CONFIG = 16 << 20 };

/* Read config.json (new reference) and find its architecture (architecture_of). about: the folder's manifest; NULL:
 * nothing to verify. STATUS_INVALID: it is not JSON, or names an unknown architecture; else as manifest_read. */
status model_folder_config(const architecture **out, json_t **config, const manifest *about, const char *folder,
                           error *err);
/* Read such a configuration into `parsed` (architecture_read), and write it with every key: those of the architecture,
 * class names and what any model may have beside them. *out is a new reference. STATUS_NOMEM; errors of
 * architecture_read. */
status model_folder_complete(json_t **out, const architecture *a, void *parsed, const json_t *config, error *err);

#endif
