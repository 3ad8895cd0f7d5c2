#include "engine/daemon/compute/adapter_cache.h"

#include <limits.h>

#include "engine/base/log.h"
#include "engine/base/path.h"
#include "engine/model/adapter.h"
#include "engine/model/lora.h"

static status read_folder(served_adapter **out, const served_model *m, const char *id, const char *folder, error *err)
{
	char path[PATH_MAX];
	manifest *about;
	uint64_t digest;
	TRY(path_join(path, folder, ADAPTER_FILE, err));
	TRY(manifest_open_folder(&about, folder, err));
	const bool lora = about && manifest_file_digest(about, LORA_FILE, &digest);
	const status s = lora ? served_adapter_open_lora(out, m, id, folder, about, err)
	                      : served_adapter_open(out, m, id, path, about, err);
	manifest_free(about);
	return s;
}

/* The request is valid, so any fault of the stored file is damage. */
static status blame(const char *id, status s, const error *reason, error *err)
{
	if (s != STATUS_STORAGE && s != STATUS_CORRUPT && s != STATUS_INVALID && s != STATUS_NOT_FOUND)
		return error_set(err, s, reason->param, "%s", reason->message[0] ? reason->message : status_text(s));
	log_line(LOG_ERROR, "the adapter \"%s\" is damaged: %s", id, error_message(reason));
	return error_set(err, STATUS_STORAGE, "adapter", "the adapter \"%s\" is damaged: %s", id,
	                 error_message(reason));
}

/* Free the oldest entries until `more` bytes have room. */
static void free_oldest(adapter_cache *c, size_t more)
{
	size_t bytes = more;
	for (int i = 0; i < ADAPTER_CACHE_ITEMS; i++)
		bytes += served_adapter_bytes(c->items[i]);
	for (unsigned i = 0; i < ADAPTER_CACHE_ITEMS && bytes > c->limit; i++) {
		served_adapter **oldest = &c->items[(c->next + i) % ADAPTER_CACHE_ITEMS];
		bytes -= served_adapter_bytes(*oldest);
		served_adapter_free(*oldest);
		*oldest = NULL;
	}
}

status adapter_cache_get(adapter_cache *c, const served_model *m, const char *id, const char *folder,
                         served_adapter **out, error *err)
{
	error reason = ERROR_INIT;
	served_adapter *read;
	*out = NULL;
	for (int i = 0; i < ADAPTER_CACHE_ITEMS && !*out; i++)
		if (c->items[i] && served_adapter_is(c->items[i], id, m))
			*out = served_adapter_share(c->items[i]);
	if (*out)
		return STATUS_OK;
	const status s = read_folder(&read, m, id, folder, &reason);
	if (s != STATUS_OK)
		return blame(id, s, &reason, err);
	free_oldest(c, served_adapter_bytes(read));
	served_adapter_free(c->items[c->next]);
	c->items[c->next] = read;
	c->next = (c->next + 1) % ADAPTER_CACHE_ITEMS;
	*out = served_adapter_share(read);
	return STATUS_OK;
}

void adapter_cache_fini(adapter_cache *c)
{
	for (int i = 0; i < ADAPTER_CACHE_ITEMS; i++)
		served_adapter_free(c->items[i]);
}
