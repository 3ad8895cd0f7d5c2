#include "engine/store/store_private.h"

status store_adapter_seal(const json_t *adapter, const char *folder, error *err)
{
	return folder_seal(STORE_ADAPTERS, adapter, folder, err);
}

status store_adapter_add(store *s, const json_t *adapter, const char *temporary_folder, error *err)
{
	const char *id = json_string_value(json_object_get(adapter, "id"));
	return folder_add(s, STORE_ADAPTERS, id ? id : "", "", adapter, temporary_folder, err);
}

status store_adapter_get(store *s, const char *id, json_t **out, error *err)
{
	store_row row;
	const status result = folder_find(s, STORE_ADAPTERS, id, &row, err);
	*out = result == STATUS_OK ? json_incref(row.document) : NULL;
	row_fini(&row);
	return result;
}

status store_adapter_delete(store *s, const char *id, error *err)
{
	return folder_delete(s, STORE_ADAPTERS, id, err);
}
