/* /v1/models: list, show, delete, import (form) and export (files). */
#include "gen/routes.h"
#include "server/download.h"
#include "server/forward.h"
#include "server/upload.h"

static json_t *models_import_params(request *r, const char *file_name)
{
	(void)file_name;
	const char *id = upload_value(r, "id");
	if (!id)
		reply_refuse(r, 400, "missing_parameter", "id",
		             "form field 'id' is required, and must stand before the files");
	else if (!uri_id_valid(id))
		reply_refuse(r, 400, "invalid_value", "id",
		             "'id' must be 1 to 63 letters, digits, dots, dashes, underscores or colons");
	else
		return json_pack("{s:s}", "id", id);
	return NULL;
}

void models_import(request *r)
{
	static const upload_form form = {.fields = {{.name = "id", .required = true, .early = true},
	                                            {.name = "config", .streamed = true, .required = true},
	                                            {.name = "weights", .streamed = true, .required = true},
	                                            {.name = "tokenizer", .streamed = true},
	                                            {.name = NULL}},
	                                 .params = models_import_params};
	upload_form_begin(r, &form);
}
