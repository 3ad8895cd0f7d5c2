/* adapter.c - the mixers of the layers list the parameters, and convert them to states. A model with a layer of another
 * kind is refused as a whole: an adapter of some of its layers would be weaker without a word. */
#include "engine/model/adapter.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/model/mixers/mixer.h"
#include "engine/model/model_private.h"
#include "engine/model/safetensors.h"

/* The initial state of layer l; NULL: it has none. */
static const mixer_initial *initial_of(const architecture *a, const void *config, int64_t l, const void **options)
{
	const mixer_initial *i = a->mixer(config, l, options)->initial;
	return i && (!i->exists || i->exists(*options)) ? i : NULL;
}

status adapter_check_architecture(const architecture *a, const void *config, error *err)
{
	bool some = false;
	for (int64_t l = 0; l < architecture_dims(config)->layers; l++) {
		const void *options;
		const mixer *m = a->mixer(config, l, &options);
		if (!m->initial)
			return error_set(
			    err, STATUS_UNSUPPORTED, "model",
			    "layer %d of the architecture %s has attention of the kind \"%s\", which has no "
			    "initial state",
			    (int)l, a->name, m->name);
		some |= initial_of(a, config, l, &options) != NULL;
	}
	return some ? STATUS_OK
	            : error_set(err, STATUS_UNSUPPORTED, "model",
	                        "all layers have a window, and attention in a window has no initial state");
}

status adapter_check(const model *base, error *err)
{
	return base->base ? error_set(err, STATUS_UNSUPPORTED, "model", "an adapter has no adapter")
	                  : adapter_check_architecture(base->architecture, base->config, err);
}

status adapter_parameters(const model *base, parameter_list *out, error *err)
{
	TRY(adapter_check(base, err));
	for (int64_t l = 0; l < base->dims.layers; l++) {
		const void *options;
		const mixer_initial *i = initial_of(base->architecture, base->config, l, &options);
		if (i)
			i->parameters(options, (int)l, out);
	}
	return STATUS_OK;
}

/* arena: a host copy. values: room for an address of each parameter. */
static void write_states(const model *a, const float *arena, const float **values, float *slot)
{
	for (int i = 0; i < a->parameters.count; i++)
		values[i] = arena + a->offset[i];
	for (int64_t l = 0; l < a->dims.layers; l++) {
		const void *options;
		const mixer_initial *i = initial_of(a->architecture, a->config, l, &options);
		if (!i)
			continue;
		i->states(options, (int)l, values, &a->states, slot);
		values += i->count;
	}
}

status adapter_download(const model *a, float **out, error *err)
{
	const size_t bytes = (size_t)a->floats * sizeof **out;
	*out = memory_new(1, bytes);
	if (!*out)
		return error_no_memory(err, "an adapter");
	const status s = a->backend->download(a->backend, *out, a->arena, bytes);
	if (s == STATUS_OK)
		return s;
	free(*out);
	*out = NULL;
	return error_set(err, s, NULL, "cannot copy the adapter from %s", a->backend->name);
}

status adapter_slot(const model *adapter, float *slot, error *err)
{
	float *arena;
	TRY(adapter_download(adapter, &arena, err));
	const float **values = memory_new((size_t)adapter->parameters.count, sizeof *values);
	if (values) {
		memset(slot, 0, (size_t)model_state_floats(adapter) * sizeof *slot);
		write_states(adapter, arena, values, slot);
	}
	free(arena);
	free(values);
	return values ? STATUS_OK : error_no_memory(err, "an adapter");
}

const char *adapter_file(const model *adapter)
{
	return adapter->lora.rank ? LORA_FILE : ADAPTER_FILE;
}

/* --- files ------------------------------------------------------------------------------ */

status adapter_save(const model *adapter, const char *folder, error *err)
{
	char path[PATH_MAX];
	float *arena;
	TRY(path_join(path, folder, adapter_file(adapter), err));
	if (adapter->lora.rank)
		TRY(lora_write_config(adapter, folder, err));
	TRY(adapter_download(adapter, &arena, err));
	const int n = adapter->parameters.count;
	safetensors_item *items = memory_new((size_t)n, sizeof *items);
	for (int i = 0; i < n && items; i++) {
		const parameter_spec *p = &adapter->parameters.items[i];
		const shape stored = parameter_stored_shape(p);
		items[i] = (safetensors_item){
		    .name = p->name, .type = ST_F32, .rank = stored.rank, .data = arena + adapter->offset[i]};
		memcpy(items[i].dim, stored.dim, (size_t)stored.rank * sizeof *stored.dim);
	}
	const status s = items ? safetensors_write(path, items, n, NULL, err) : error_no_memory(err, "an adapter");
	free(items);
	free(arena);
	return s;
}

static status read_tensor(safetensors *file, const parameter_spec *p, float *out, error *err)
{
	const safetensors_entry *e = safetensors_find(file, p->name);
	const shape stored = parameter_stored_shape(p);
	const int64_t count = shape_count(stored);
	if (!e)
		return error_set(err, STATUS_INVALID, p->name, "tensor \"%s\" is missing", p->name);
	if (e->rank != stored.rank || e->count != count || e->dim[0] != stored.dim[0])
		return error_set(err, STATUS_INVALID, p->name,
		                 "tensor \"%s\" must have %lld numbers in %d dimension%s, the first of %lld", p->name,
		                 (long long)count, stored.rank, stored.rank > 1 ? "s" : "", (long long)stored.dim[0]);
	TRY(safetensors_load_f32(file, e, 0, count, out, err));
	for (int64_t i = 0; i < count; i++)
		if (!isfinite(out[i]))
			return error_set(err, STATUS_INVALID, p->name, "tensor \"%s\": number %lld is not finite",
			                 p->name, (long long)i);
	return STATUS_OK;
}

static status read_tensors(const model *a, safetensors *file, float *arena, error *err)
{
	for (int i = 0; i < a->parameters.count; i++)
		TRY(read_tensor(file, &a->parameters.items[i], arena + a->offset[i], err));
	for (int i = 0; i < safetensors_count(file); i++) {
		const char *name = safetensors_at(file, i)->name;
		bool known = false;
		for (int j = 0; j < a->parameters.count; j++)
			known |= strcmp(a->parameters.items[j].name, name) == 0;
		if (!known)
			return error_set(err, STATUS_INVALID, name, "tensor \"%.100s\" is not one of this adapter's",
			                 name);
	}
	return STATUS_OK;
}

status adapter_read(model *adapter, const char *path, const manifest *about, error *err)
{
	const size_t bytes = (size_t)adapter->floats * sizeof(float);
	safetensors *file;
	TRY(safetensors_open_verified(&file, path, about, err));
	float *arena = memory_new(1, bytes);
	status s = arena ? read_tensors(adapter, file, arena, err) : error_no_memory(err, "an adapter");
	if (s == STATUS_OK && adapter->backend) {
		s = adapter->backend->upload(adapter->backend, adapter->arena, arena, bytes);
		if (s != STATUS_OK)
			error_set(err, s, NULL, "cannot copy the adapter to %s", adapter->backend->name);
	}
	free(arena);
	safetensors_close(file);
	return s;
}
