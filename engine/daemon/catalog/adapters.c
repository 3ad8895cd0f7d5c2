#include "engine/daemon/catalog/adapters.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/manifest.h"
#include "engine/model/adapter.h"

static json_t *describe(const model *adapter, const adapter_origin *from)
{
	char digest[20];
	snprintf(digest, sizeof digest, "%016llx", (unsigned long long)model_digest(model_base(adapter)));
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:s?, s:s*}", "id", from->id, "object", "adapter",
	                 "created_at", (json_int_t)clock_unix(), "base", from->base, "base_digest", digest, "kind",
	                 "state", "parameters", (json_int_t)model_scalar_count(adapter), "job", from->job, "project",
	                 from->project[0] ? from->project : NULL);
}

status adapters_write(const model *adapter, const adapter_origin *from, const char *folder, error *err)
{
	TRY(adapter_save(adapter, folder, err));
	json_t *document = describe(adapter, from);
	const status s = document ? store_adapter_seal(document, folder, err) : STATUS_NOMEM;
	json_decref(document);
	return s;
}

bool adapters_are_of(const json_t *adapter, const char *project)
{
	const char *own = json_string_value(json_object_get(adapter, "project"));
	return !project || !own || strcmp(own, project) == 0;
}

static bool belongs_to(const void *id, const json_t *adapter)
{
	const char *base = json_string_value(json_object_get(adapter, "base"));
	return base && strcmp(base, id) == 0;
}

static bool note_found(void *found, const json_t *adapter)
{
	(void)adapter;
	*(bool *)found = true;
	return false;
}

status adapters_of_model(store *s, const char *id, bool *found, error *err)
{
	const store_page page = {.match = belongs_to, .match_context = id};
	bool more;
	*found = false;
	return store_list(s, STORE_ADAPTERS, &page, note_found, found, &more, err);
}

status adapters_add(store *s, const char *folder, error *err)
{
	manifest *about;
	TRY(manifest_open_folder(&about, folder, err));
	if (!about)
		return error_set(err, STATUS_STORAGE, NULL, "the adapter has no manifest");
	const status result = store_adapter_add(s, manifest_about(about), folder, err);
	manifest_free(about);
	return result;
}
