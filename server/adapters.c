/* /v1/adapters: import (form). */
#include "gen/routes.h"
#include "server/upload.h"

static json_t *adapters_import_params(request *r, const char *file_name)
{
	(void)file_name;
	const char *model = upload_value(r, "model");
	if (model)
		return json_pack("{s:s}", "model", model);
	reply_refuse(r, 400, "missing_parameter", "model",
	             "form field 'model' is required, and must come before the files");
	return NULL;
}

static bool adapters_import_check(request *r)
{
	if (upload_value(r, "archive") || upload_value(r, "file"))
		return true;
	reply_refuse(r, 400, "missing_parameter", "file", "form field 'file' or 'archive' is required");
	return false;
}

void adapters_import(request *r)
{
	static const upload_form form = {.fields = {{.name = "model", .required = true, .early = true},
	                                            {.name = "file", .streamed = true, .named = true},
	                                            {.name = "archive", .streamed = true},
	                                            {.name = NULL}},
	                                 .params = adapters_import_params,
	                                 .check = adapters_import_check};
	upload_form_begin(r, &form);
}
