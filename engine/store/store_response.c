#include <stdint.h>
#include <stdio.h>

#include "engine/store/store_private.h"

static status put_response(store *s, const char *id, store_row row, error *err)
{
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id", "not the id of a response");
	snprintf(row.id, sizeof row.id, "%s", id);
	return row_put(s, STORE_RESPONSES, &row, err);
}

status store_response_put(store *s, const char *id, const json_t *document, error *err)
{
	return put_response(s, id, (store_row){.document = (json_t *)(uintptr_t)document}, err);
}

status store_response_put_text(store *s, const char *id, const char *text, error *err)
{
	return put_response(s, id, (store_row){.text = text}, err);
}

char *store_response_text(const json_t *document)
{
	return store_text(document);
}

static status remove_response(store *s, const char *id, int64_t number, error *err)
{
	bool found;
	(void)number;
	return row_delete(s, STORE_RESPONSES, id, &found, err);
}

status store_response_delete(store *s, const char *id, error *err)
{
	return store_with_reserve(s, remove_response, id, 0, err);
}
