#include "engine/serve/served_adapter.h"

#include <assert.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"
#include "engine/model/adapter.h"

/* Read the file as an adapter of m, and its state. */
static status read_state(served_adapter *a, const served_model *m, const char *path, const manifest *about, error *err)
{
	model *adapter;
	TRY(model_new_adapter(&adapter, m->model, err));
	status s = adapter_read(adapter, path, about, err);
	if (s == STATUS_OK)
		s = adapter_slot(adapter, a->slot, err);
	model_free(adapter);
	return s;
}

static served_adapter *new_for(const served_model *m, const char *id, size_t bytes)
{
	served_adapter *a = memory_new(1, sizeof *a + bytes);
	if (!a)
		return NULL;
	assert(strlen(id) < sizeof a->id);
	strcpy(a->id, id);
	a->users = 1;
	a->model = m->hash;
	a->bytes = sizeof *a + bytes;
	return a;
}

status served_adapter_open(served_adapter **out, const served_model *m, const char *id, const char *path,
                           const manifest *about, error *err)
{
	const size_t bytes = (size_t)model_state_floats(m->model) * sizeof(float);
	served_adapter *a = new_for(m, id, bytes);
	*out = NULL;
	if (!a)
		return error_no_memory(err, "an adapter");
	const status s = read_state(a, m, path, about, err);
	if (s != STATUS_OK) {
		served_adapter_free(a);
		return s;
	}
	a->hash = digest_bytes(a->slot, bytes);
	*out = a;
	return STATUS_OK;
}

static status read_image(lora_image **out, const served_model *m, const char *folder, const manifest *about, error *err)
{
	model *adapter;
	TRY(lora_check_sessions(m->model, err));
	TRY(lora_open(&adapter, m->model, folder, about, err));
	const status s = lora_image_new(out, adapter, err);
	model_free(adapter);
	return s;
}

status served_adapter_open_lora(served_adapter **out, const served_model *m, const char *id, const char *folder,
                                const manifest *about, error *err)
{
	served_adapter *a = new_for(m, id, 0);
	*out = NULL;
	if (!a)
		return error_no_memory(err, "an adapter");
	const status s = read_image(&a->lora, m, folder, about, err);
	if (s != STATUS_OK) {
		served_adapter_free(a);
		return s;
	}
	a->hash = lora_image_hash(a->lora);
	a->bytes += lora_image_bytes(a->lora);
	*out = a;
	return STATUS_OK;
}

bool served_adapter_is(const served_adapter *a, const char *id, const served_model *m)
{
	return a->model == m->hash && strcmp(a->id, id) == 0;
}

size_t served_adapter_bytes(const served_adapter *a)
{
	return a ? a->bytes : 0;
}

served_adapter *served_adapter_share(served_adapter *a)
{
	if (a)
		atomic_fetch_add(&a->users, 1);
	return a;
}

void served_adapter_free(served_adapter *a)
{
	if (!a || atomic_fetch_sub(&a->users, 1) > 1)
		return;
	lora_image_free(a->lora);
	free(a);
}

uint64_t served_adapter_hash(const served_adapter *a)
{
	return a ? a->hash : 0;
}

status served_adapter_start(const served_adapter *a, const served_model *m, int32_t slot)
{
	return statepool_write(m->pool, slot, 0, a->slot, (size_t)model_state_floats(m->model) * sizeof *a->slot);
}
