#include "engine/model/architecture.h"

#include <string.h>

static const architecture *const architectures[] = {
#define ARCHITECTURE(name) &architecture_##name,
#include "gen/architectures.def"
#undef ARCHITECTURE
};
enum { ARCHITECTURE_COUNT = sizeof architectures / sizeof architectures[0] };

const architecture *architecture_at(int index)
{
	return index >= 0 && index < ARCHITECTURE_COUNT ? architectures[index] : NULL;
}

const architecture *architecture_find(const char *name)
{
	for (int i = 0; i < ARCHITECTURE_COUNT; i++)
		if (strcmp(name, architectures[i]->name) == 0 || strcmp(name, architectures[i]->model_type) == 0)
			return architectures[i];
	return NULL;
}

const architecture *architecture_of(const json_t *config)
{
	const json_t *type = json_object_get(config, "model_type");
	if (!type)
		return &architecture_additive;
	return json_is_string(type) ? architecture_find(json_string_value(type)) : NULL;
}

void architecture_states(const architecture *a, const void *config, state_list *out)
{
	model_dims d;
	a->dims(config, &d);
	for (int l = 0; l < d.layers; l++) {
		const void *options;
		a->mixer(config, l, &options)->states(options, l, out);
	}
	if (a->states)
		a->states(config, out);
}

const explainer *architecture_explainer(const architecture *a, const void *config)
{
	model_dims d;
	const void *options;
	a->dims(config, &d);
	const explainer *first = a->mixer(config, 0, &options)->explainer;
	for (int64_t l = 1; l < d.layers; l++)
		if (a->mixer(config, l, &options)->explainer != first)
			return NULL;
	return first;
}
