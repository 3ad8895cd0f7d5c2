#include "engine/train/parameter_depth.h"

#include <stdlib.h>
#include <string.h>

/* The number in a parameter's name, or -1. */
static int named_part(const char *name)
{
	for (const char *at = name; at; at = strchr(at, '.'), at += at != NULL) {
		char *end;
		const long part = strtol(at, &end, 10);
		if (end > at && *end == '.' && part >= 0 && part < ARCHITECTURE_MAX_LAYERS * 8)
			return (int)part;
	}
	return -1;
}

parameter_depths parameter_depths_of(const model *m)
{
	parameter_depths d = {.first = model_tensor_count(m)};
	for (int i = model_tensor_count(m) - 1; i >= 0; i--) {
		const int part = named_part(model_parameter(m, i)->name);
		if (part < 0)
			continue;
		d.first = i;
		if (part >= d.parts)
			d.parts = part + 1;
	}
	return d;
}

int64_t parameter_layers_above(const parameter_depths *d, const model *m, int i)
{
	const int64_t layers = model_dimensions(m)->layers, part = named_part(model_parameter(m, i)->name);
	if (d->parts == 0)
		return 0;
	if (part < 0)
		return i < d->first ? layers + 1 : 0;
	return layers - part * layers / d->parts;
}
