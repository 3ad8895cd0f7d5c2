#include "engine/daemon/jobs/job_store.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/jobs/rank_training.h"
#include "engine/daemon/requests/owned_file.h"

static status find_file(void *context, const char *name, char id[STORE_ID_BYTES], error *err)
{
	const job_store_view *view = context;
	store_file f;
	TRY(view->request ? owned_file_use(view->request, name, "id", &f, err)
	                  : store_file_use(view->parts->store, name, &f, err));
	snprintf(id, STORE_ID_BYTES, "%s", f.id);
	return STATUS_OK;
}

static status find_model(void *context, const char *name, job_base *out, error *err)
{
	const job_store_view *view = context;
	model_entry *m;
	TRY(catalog_open(view->parts->catalog, name, &m, err));
	*out = (job_base){.architecture = m->architecture,
	                  .config = json_incref(m->config),
	                  .parsed = memory_new(1, m->architecture->config_bytes),
	                  .dims = m->dims};
	if (out->parsed)
		memcpy(out->parsed, m->parsed, m->architecture->config_bytes);
	snprintf(out->id, sizeof out->id, "%s", m->id);
	snprintf(out->folder, sizeof out->folder, "%s", m->folder);
	catalog_release(m);
	if (out->parsed)
		return STATUS_OK;
	job_base_fini(out);
	return STATUS_NOMEM;
}

static void path_of(const void *context, const char *id, char path[PATH_MAX])
{
	store_blob_path(context, id, path);
}

corpus_paths job_store_paths(const store *s)
{
	return (corpus_paths){path_of, s};
}

job_sources job_store_sources(const job_store_view *view)
{
	const job_parts *parts = view->parts;
	job_sources s = {.find_file = find_file,
	                 .find_model = find_model,
	                 .context = (void *)(uintptr_t)view,
	                 .paths = job_store_paths(parts->store),
	                 .cache = {parts->cache_folder, parts->cache_budget, 0},
	                 .backend_name = fleet_backend_name(parts->fleet),
	                 .bf16 = device_bf16(fleet_device(parts->fleet, 0)),
	                 .adapters = true,
	                 .no_ranks = rank_training_obstacle()};
	store_cache_room(parts->store, &s.cache.room,
	                 NULL); /* without its ledger the store refuses the job in any case */
	store_temporary_path(parts->store, s.temporary);
	return s;
}
