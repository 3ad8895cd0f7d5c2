#include <stdio.h>

#include "engine/store/store_private.h"

static json_t *document_of(const store_model *m)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:s*}", "id", m->id, "owned_by", m->owned_by, "architecture",
	                 m->architecture, "parameters", (json_int_t)m->parameters, "created", (json_int_t)m->created,
	                 "project", store_project_member(m->project));
}

status store_model_seal(const store_model *m, const char *folder, error *err)
{
	json_t *about = document_of(m);
	const status result = about ? folder_seal(STORE_MODELS, about, folder, err) : STATUS_NOMEM;
	json_decref(about);
	return result;
}

status store_model_add(store *s, const store_model *m, const char *temporary_folder, error *err)
{
	json_t *document = document_of(m);
	const status result = document ? folder_add(s, STORE_MODELS, m->id, "fp32", document, temporary_folder, err)
	                               : STATUS_NOMEM;
	json_decref(document);
	return result;
}

status store_model_get(store *s, const char *id, store_model *out, error *err)
{
	store_row row;
	*out = (store_model){0};
	status result = folder_find(s, STORE_MODELS, id, &row, err);
	if (result == STATUS_OK) {
		const char *owner = json_string_value(json_object_get(row.document, "owned_by"));
		const char *architecture = json_string_value(json_object_get(row.document, "architecture"));
		snprintf(out->id, sizeof out->id, "%s", row.id);
		snprintf(out->owned_by, sizeof out->owned_by, "%s", owner ? owner : "");
		store_read_project(row.document, out->project);
		snprintf(out->architecture, sizeof out->architecture, "%s", architecture ? architecture : "");
		out->parameters = json_integer_value(json_object_get(row.document, "parameters"));
		out->created = json_integer_value(json_object_get(row.document, "created"));
	}
	row_fini(&row);
	return result;
}

status store_model_delete(store *s, const char *id, error *err)
{
	return folder_delete(s, STORE_MODELS, id, err);
}

static status no_model(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
}

/* No model has the name of a checkpoint, so one id is one row of the two tables together. */
status store_dtype_get(store *s, const char *id, char out[STORE_DTYPE_BYTES], error *err)
{
	store_row row;
	status result = row_find(s, STORE_MODELS, id, &row, err);
	if (result == STATUS_NOT_FOUND) {
		row_fini(&row);
		result = row_find(s, STORE_CHECKPOINTS, id, &row, err);
	}
	snprintf(out, STORE_DTYPE_BYTES, "%.*s", STORE_DTYPE_BYTES - 1, row.state);
	row_fini(&row);
	return result == STATUS_NOT_FOUND ? no_model(err, id) : result;
}

status store_dtype_put(store *s, const char *id, const char *dtype, error *err)
{
	bool found;
	TRY(row_set_state(s, STORE_MODELS, id, dtype, &found, err));
	if (!found)
		TRY(row_set_state(s, STORE_CHECKPOINTS, id, dtype, &found, err));
	return found ? STATUS_OK : no_model(err, id);
}
