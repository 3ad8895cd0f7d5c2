/* adapter.c - the mixers of the layers list the parameters, and convert them to states. A model with a layer of another
 * kind is refused as a whole: an adapter of some of its layers would be weaker without a word. */
#include "engine/model/adapter.h"

#include <string.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"
#include "engine/model/model_private.h"

status adapter_check(const model *base, error *err)
{
	if (base->base)
		return error_set(err, STATUS_UNSUPPORTED, "model", "an adapter has no adapter");
	for (int64_t l = 0; l < base->dims.layers; l++) {
		const void *options;
		const mixer *m = base->architecture->mixer(base->config, l, &options);
		if (!m->initial)
			return error_set(
			    err, STATUS_UNSUPPORTED, "model",
			    "layer %d of the architecture %s has attention of the kind \"%s\", which has no "
			    "initial state",
			    (int)l, base->architecture->name, m->name);
	}
	return STATUS_OK;
}

status adapter_parameters(const model *base, parameter_list *out, error *err)
{
	TRY(adapter_check(base, err));
	for (int64_t l = 0; l < base->dims.layers; l++) {
		const void *options;
		base->architecture->mixer(base->config, l, &options)->initial->parameters(options, (int)l, out);
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
		const mixer_initial *first = a->architecture->mixer(a->config, l, &options)->initial;
		first->states(options, (int)l, values, &a->states, slot);
		values += first->count;
	}
}

status adapter_slot(const model *adapter, float *slot, error *err)
{
	const size_t bytes = (size_t)adapter->floats * sizeof(float);
	float *arena = memory_new(1, bytes);
	const float **values = memory_new((size_t)adapter->parameters.count, sizeof *values);
	status s = arena && values ? STATUS_OK : error_no_memory(err, "an adapter");
	if (s == STATUS_OK)
		s = adapter->backend->download(adapter->backend, arena, adapter->arena, bytes);
	if (s == STATUS_OK) {
		memset(slot, 0, (size_t)model_state_floats(adapter) * sizeof *slot);
		write_states(adapter, arena, values, slot);
	}
	free(values);
	free(arena);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the initial state cannot be read: %s", status_text(s));
}
