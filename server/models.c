/* /v1/models: list, show, delete, import (form) and export (files). */
#include "gen/routes.h"
#include "server/upload.h"

static json_t *models_import_params(request *r, const char *file_name)
{
	(void)file_name;
	const char *id = upload_value(r, "id");
	if (!id)
		reply_refuse(r, 400, "missing_parameter", "id",
		             "form field 'id' is required, and must come before the files");
	else if (!uri_id_valid(id))
		reply_refuse(r, 400, "invalid_value", "id",
		             "'id' must be 1 to 63 letters, digits, dots, dashes, underscores or colons");
	else
		return json_pack("{s:s}", "id", id);
	return NULL;
}

/* A model is uploaded as an archive, as files under their own names, or as the three parts. The engine checks the
 * files; this function only refuses a form that has none of them. */
static bool models_import_check(request *r)
{
	static const char *const needed[] = {"config", "weights"};
	for (int i = 0; i < 2 && !upload_value(r, "archive") && !upload_value(r, "file"); i++) {
		if (!upload_value(r, needed[i])) {
			reply_refuse(r, 400, "missing_parameter", needed[i], "form field '%s' is required", needed[i]);
			return false;
		}
	}
	return true;
}

void models_import(request *r)
{
	static const upload_form form = {.fields = {{.name = "id", .required = true, .early = true},
	                                            {.name = "config", .streamed = true},
	                                            {.name = "weights", .streamed = true},
	                                            {.name = "tokenizer", .streamed = true},
	                                            {.name = "file", .streamed = true, .named = true},
	                                            {.name = "archive", .streamed = true},
	                                            {.name = NULL}},
	                                 .params = models_import_params,
	                                 .check = models_import_check};
	upload_form_begin(r, &form);
}
