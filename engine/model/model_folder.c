#include "engine/model/model_folder.h"

#include <stdlib.h>

#include "engine/base/json_read.h"
#include "engine/model/class_names.h"
#include "engine/model/config.h"

status model_folder_config(const architecture **out, json_t **config, const manifest *about, const char *folder,
                           error *err)
{
	char *text;
	size_t bytes;
	json_error_t reason;
	*out = NULL;
	*config = NULL;
	TRY(manifest_read(about, folder, "config.json", MODEL_FOLDER_MAX_CONFIG, &text, &bytes, err));
	json_t *json;
	status s = json_read(&json, text, bytes, JSON_REJECT_DUPLICATES, &reason);
	free(text);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	if (s != STATUS_OK)
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

status model_folder_complete(json_t **out, const architecture *a, void *parsed, const json_t *config, error *err)
{
	*out = NULL;
	TRY(architecture_read(a, parsed, config, err));
	const model_dims *dims = architecture_dims(parsed);
	json_t *whole = a->config_write(parsed);
	json_t *names = dims->form->head == HEAD_CLASSES ? class_names_read(config, dims->outputs) : NULL;
	bool ok = whole && (dims->form->head != HEAD_CLASSES || (names && class_names_write(whole, names)));
	ok = ok && config_keep(whole, config);
	json_decref(names);
	if (ok) {
		*out = whole;
		return STATUS_OK;
	}
	json_decref(whole);
	return STATUS_NOMEM;
}
