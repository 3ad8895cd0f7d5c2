#include "engine/daemon/generation/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* Read a list of numbers below n. `room`: size of the mask; entries from n on exist only for an attention to a
 * source. */
static status read_numbers(bool **out, const json_t *chosen, int64_t n, int64_t room, const char *key, error *err)
{
	*out = memory_new((size_t)room, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	memset(*out, !json_is_array(chosen), (size_t)room);
	for (size_t i = 0; i < json_array_size(chosen); i++) {
		json_int_t number = json_integer_value(json_array_get(chosen, i));
		if (number >= n)
			return error_set(err, STATUS_INVALID, key, "the model has %lld %s, counted from 0",
			                 (long long)n, key);
		(*out)[number] = true;
	}
	return STATUS_OK;
}

static status refuse_round(const char *name, const explainer *e, error *err)
{
	char names[128] = "";
	for (int r = 0, used = 0; r < e->n_rounds && used < (int)sizeof names; r++)
		used += snprintf(names + used, sizeof names - (size_t)used, "%s\"%s\"", r ? ", " : "", e->rounds[r]);
	return error_set(err, STATUS_INVALID, "rounds", "there is no round \"%.32s\"; the model has %s", name, names);
}

/* e NULL: no layer has rounds, and the selection is unused. */
static status read_rounds(bool **out, const json_t *chosen, const explainer *e, error *err)
{
	if (!e)
		return chosen ? error_set(err, STATUS_INVALID, "rounds", "the model has no importance weights")
		              : STATUS_OK;
	*out = memory_new((size_t)e->n_rounds + 1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	memset(*out, !json_is_array(chosen), (size_t)e->n_rounds);
	for (size_t i = 0; i < json_array_size(chosen); i++) {
		const char *name = json_string_value(json_array_get(chosen, i));
		int r = 0;
		while (r < e->n_rounds && strcmp(e->rounds[r], name) != 0)
			r++;
		if (r == e->n_rounds)
			return refuse_round(name, e, err);
		(*out)[r] = true;
	}
	return STATUS_OK;
}

status selection_read(selection *out, const json_t *object, const model_entry *m, error *err)
{
	TRY(read_numbers(&out->layers, json_object_get(object, "layers"), m->dims.layers,
	                 m->dims.layers + ARCHITECTURE_MAX_LAYERS, "layers", err));
	TRY(read_numbers(&out->heads, json_object_get(object, "heads"), m->dims.heads, m->dims.heads, "heads", err));
	return read_rounds(&out->rounds, json_object_get(object, "rounds"), m->explainer, err);
}

void selection_fini(selection *s)
{
	free(s->layers);
	free(s->heads);
	free(s->rounds);
	*s = (selection){0};
}

explain_selection selection_pick(const selection *s)
{
	return (explain_selection){s->layers, s->heads, s->rounds};
}
