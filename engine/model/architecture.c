#include "engine/model/architecture.h"

#include <math.h>
#include <string.h>

#include "engine/model/config.h"

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

void architecture_carried(const architecture *a, const void *config, state_list *list)
{
	state_list states = {0};
	if (a->carried)
		a->carried(config, list);
	if (!a->carries_states)
		return;
	architecture_states(a, config, &states);
	bool recurrent = true;
	for (int i = 0; i < states.count; i++)
		recurrent &= states.items[i].kind == STATE_RECURRENT;
	if (states.status == STATUS_OK && recurrent)
		state_list_add(list, STATE_CARRIED, state_list_slot(&states), STATE_POOL);
	if (states.status != STATUS_OK)
		list->status = states.status;
	state_list_free(&states);
}

status architecture_read(const architecture *a, void *config, const json_t *json, error *err)
{
	model_dims *d = config;
	TRY(a->config_read(config, json, err));
	state_list carried = {0};
	architecture_carried(a, config, &carried);
	d->carried = carried.floats;
	d->carries_states = a->carries_states && carried.floats > 0;
	const status s = carried.status;
	state_list_free(&carried);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "out of memory");
	TRY(config_token(json, CONFIG_MASK, model_dims_ids(d), &d->mask, err));
	d->start = -1;
	return d->form->source ? config_token(json, CONFIG_START, d->inputs, &d->start, err) : STATUS_OK;
}

const model_dims *architecture_dims(const void *config)
{
	return config;
}

int64_t architecture_count_parameters(const architecture *a, const void *config)
{
	parameter_list list = {0};
	int64_t total = 0;
	a->parameters(config, &list);
	bool ok = list.status == STATUS_OK;
	for (int i = 0; ok && i < list.count; i++)
		ok = shape_check(list.items[i].shape) == STATUS_OK &&
		     !__builtin_add_overflow(total, shape_count(list.items[i].shape), &total);
	parameter_list_free(&list);
	return ok ? total : -1;
}

int64_t model_dims_ids(const model_dims *d)
{
	return d->source > 0 && d->source_inputs < d->inputs ? d->source_inputs : d->inputs;
}

void architecture_train_on(void *config, int64_t length)
{
	model_dims *d = config;
	d->trained = length > d->trained ? length : d->trained;
}

void architecture_states(const architecture *a, const void *config, state_list *out)
{
	for (int64_t l = 0; l < architecture_dims(config)->layers; l++) {
		const void *options;
		a->mixer(config, l, &options)->states(options, l, out);
	}
	if (a->states)
		a->states(config, out);
}

bool architecture_attention(const architecture *a, const void *config, attention_place place, int64_t layer,
                            attention_site *out)
{
	const model_dims *d = architecture_dims(config);
	*out = (attention_site){.heads = d->heads};
	if (place != ATTENTION_OF_TOKENS)
		return a->source_attention && a->source_attention(config, place, layer, out);
	if (layer >= d->layers)
		return false;
	out->explainer = a->mixer(config, layer, &out->options)->explainer;
	if (out->explainer && out->explainer->heads)
		out->heads = out->explainer->heads(out->options);
	return true;
}

static bool same_rounds(const explainer *a, const explainer *b)
{
	bool same = a->n_rounds == b->n_rounds;
	for (int i = 0; same && i < a->n_rounds; i++)
		same = strcmp(a->rounds[i], b->rounds[i]) == 0;
	return same;
}

const explainer *architecture_explainer(const architecture *a, const void *config)
{
	const explainer *first[ATTENTION_PLACES] = {NULL};
	for (int place = 0; place < ATTENTION_PLACES; place++) {
		attention_site at;
		for (int64_t l = 0; architecture_attention(a, config, (attention_place)place, l, &at); l++) {
			if (!at.explainer || (l > 0 && !same_rounds(at.explainer, first[place])))
				return NULL;
			if (l == 0 || !at.explainer->scores)
				first[place] = at.explainer;
		}
	}
	return first[ATTENTION_OF_TOKENS];
}

enum { SMALL_HIDDEN = 128, SMALL_HEADS = 4, SMALL_LAYERS = 6, HEAD_WIDTH = 64, WIDTH_FOR_A_LAYER = 64 };

static int64_t at_least(int64_t n, int64_t least)
{
	return n > least ? n : least;
}

static void set_budget(model_size *s)
{
	double n = (double)s->parameters / 12;
	if (!s->hidden)
		s->hidden = at_least(llround(cbrt(n * WIDTH_FOR_A_LAYER) / HEAD_WIDTH), 1) * HEAD_WIDTH;
	if (!s->layers)
		s->layers = at_least(llround(n / ((double)s->hidden * (double)s->hidden)), 2);
	if (s->layers > ARCHITECTURE_MAX_LAYERS)
		s->layers = ARCHITECTURE_MAX_LAYERS;
}

void model_size_complete(model_size *s)
{
	if (s->parameters)
		set_budget(s);
	s->layers = s->layers ? s->layers : SMALL_LAYERS;
	s->hidden = s->hidden ? s->hidden : SMALL_HIDDEN;
	if (s->heads)
		return;
	s->usual_heads = true;
	s->heads = at_least(s->hidden / HEAD_WIDTH, SMALL_HEADS);
	while (s->hidden % s->heads != 0)
		s->heads--;
}
