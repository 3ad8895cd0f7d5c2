/* /v1/files. A form may name the purpose "fine-tune" before or after the file: an upload without a purpose begins with
 * it. Another purpose must come before the file. A form that names none, or an unknown one, is refused before the last
 * frame is sent. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "gen/routes.h"
#include "server/upload.h"

static const char files_purpose[] = "fine-tune", files_batch[] = "batch";

/* The client's name of a file; "upload" when it says none. */
static const char *files_name(const char *given)
{
	const char *name = uri_base_name(given);
	return name[0] && strlen(name) <= 255 && uri_utf8_valid(name) ? name : "upload";
}

static const char files_checksum[] = "checksum", files_format[] = "format";
static const char files_anchor[] = "expires_after[anchor]", files_seconds[] = "expires_after[seconds]";

static bool files_create_check(request *r)
{
	const char *purpose = upload_value(r, "purpose");
	const bool batch = strcmp(purpose, files_batch) == 0;
	if (strcmp(purpose, files_purpose) == 0 || (batch && !upload_is_late(r, "purpose")))
		return true;
	if (batch)
		reply_refuse(r, 400, "invalid_value", "purpose", "'purpose' '%s' must come before the file",
		             files_batch);
	else
		reply_refuse(r, 400, "invalid_value", "purpose", "'purpose' must be '%s' or '%s'", files_purpose,
		             files_batch);
	return false;
}

/* OpenAI's two fields as the member expires_after of params, whose values the engine checks. */
static bool files_add_expiry(request *r, json_t *params)
{
	const char *anchor = upload_value(r, files_anchor), *seconds = upload_value(r, files_seconds);
	if (!anchor && !seconds)
		return true;
	char *end = NULL;
	long long count = seconds ? strtoll(seconds, &end, 10) : 0;
	if (!seconds || *end || end == seconds || isspace((unsigned char)*seconds)) {
		reply_refuse(r, 400, "invalid_value", files_seconds, "'%s' must be a number of seconds", files_seconds);
		return false;
	}
	json_t *expiry = json_pack("{s:s?, s:I}", "anchor", anchor, "seconds", (json_int_t)count);
	if (json_object_set_new(params, "expires_after", expiry) == 0)
		return true;
	reply_out_of_memory(r);
	return false;
}

static json_t *files_create_params(request *r, const char *file_name)
{
	const char *purpose = upload_value(r, "purpose");
	if (purpose && !files_create_check(r))
		return NULL;
	json_t *params = json_pack("{s:s, s:s, s:s*, s:s*}", "filename", files_name(file_name), "purpose",
	                           purpose ? purpose : files_purpose, files_checksum, upload_value(r, files_checksum),
	                           files_format, upload_value(r, files_format));
	if (!params)
		reply_out_of_memory(r);
	if (params && files_add_expiry(r, params))
		return params;
	json_decref(params);
	return NULL;
}

void files_create(request *r)
{
	static const upload_form form = {.fields = {{.name = "file", .streamed = true, .required = true},
	                                            {.name = "purpose", .required = true},
	                                            {.name = files_checksum, .early = true},
	                                            {.name = files_format, .early = true},
	                                            {.name = files_anchor, .early = true},
	                                            {.name = files_seconds, .early = true},
	                                            {.name = NULL}},
	                                 .params = files_create_params,
	                                 .check = files_create_check};
	upload_form_begin(r, &form);
}
