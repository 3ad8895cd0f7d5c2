#include "engine/model/model_folder.h"

#include <stdlib.h>

status model_folder_config(const architecture **out, json_t **config, const manifest *about, const char *folder,
                           error *err)
{
	char *text;
	size_t bytes;
	json_error_t reason;
	*out = NULL;
	*config = NULL;
	TRY(manifest_read(about, folder, "config.json", MODEL_FOLDER_MAX_CONFIG, &text, &bytes, err));
	json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
	free(text);
	if (!json)
		return error_set(err, STATUS_INVALID, NULL, "config.json is not valid JSON: line %d: %.100s",
		                 reason.line, reason.text);
	*out = architecture_of(json);
	if (*out) {
		*config = json;
		return STATUS_OK;
	}
	const char *type = json_string_value(json_object_get(json, "model_type"));
	error_set(err, STATUS_INVALID, "model_type", "config.json names an unknown model_type%s%.64s", type ? " " : "",
	          type ? type : "");
	json_decref(json);
	return STATUS_INVALID;
}
