#include "engine/daemon/requests/owned_file.h"

#include <stdio.h>

status owned_file_find(const stream *s, const char *id, store_file *out, error *err)
{
	TRY(store_file_get(s->net->store, id, out, err));
	return project_sees(&s->scope, out->project)
	           ? STATUS_OK
	           : error_set(err, STATUS_NOT_FOUND, "id", "there is no file \"%.64s\"", id);
}

status owned_file_use(const stream *s, const char *id, const char *param, store_file *out, error *err)
{
	status found = owned_file_find(s, id, out, err);
	if (found == STATUS_OK)
		found = store_check_blob(s->net->store, STORE_FILES, id, false, err);
	if (found == STATUS_NOT_FOUND)
		snprintf(err->param, sizeof err->param, "%s", param);
	return found;
}
