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

#endif
