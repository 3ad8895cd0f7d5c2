/* lora.c - see lora.h. The names of the parameters follow from the names of the base's matrices, so nothing is listed
 * twice. */
#include "engine/model/lora.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/model/adapter.h"
#include "engine/model/model_private.h"

#define LORA_A "base_model.model.%s.lora_A.weight"
#define LORA_B "base_model.model.%s.lora_B.weight"

enum { NAME_BYTES = sizeof(((parameter_spec *)NULL)->name) };

/* --- layers ----------------------------------------------------------------------------- */

/* True for the matrix of a linear layer. */
static bool is_layer(const parameter_spec *p)
{
	return p->hidden && p->matrix && p->shape.rank == 2;
}

/* Write the name of a layer to out [NAME_BYTES]. */
static void module_of(const char *matrix, char *out)
{
	size_t n = strlen(matrix);
	if (parameter_name_ends(matrix, ".weight"))
		n -= strlen(".weight");
	memcpy(out, matrix, n);
	out[n] = '\0';
}

static bool is_target(const char *module, const char *target)
{
	char dotted[NAME_BYTES];
	snprintf(dotted, sizeof dotted, ".%s", target);
	return strcmp(module, target) == 0 || parameter_name_ends(module, dotted);
}

static bool is_chosen(const json_t *targets, const char *module)
{
	size_t i;
	json_t *target;
	json_array_foreach(targets, i, target) if (is_target(module, json_string_value(target))) return true;
	return targets == NULL;
}

/* --- options ---------------------------------------------------------------------------- */

lora_options lora_options_of(const json_t *json)
{
	return (lora_options){.rank = json_read_integer(json, "rank", 0),
	                      .alpha = json_read_real(json, "alpha", 0),
	                      .targets = json_object_get(json, "targets")};
}

static status check_targets(const parameter_list *parameters, const json_t *targets, error *err)
{
	size_t i;
	json_t *target;
	if (json_is_array(targets) && json_array_size(targets) == 0)
		return error_set(err, STATUS_INVALID, "targets", "names no linear layer");
	json_array_foreach(targets, i, target)
	{
		const char *name = json_string_value(target);
		bool found = false;
		if (!name)
			return error_set(err, STATUS_INVALID, "targets", "must be names of linear layers");
		for (int j = 0; j < parameters->count && !found; j++) {
			char module[NAME_BYTES];
			module_of(parameters->items[j].name, module);
			found = is_layer(&parameters->items[j]) && is_target(module, name);
		}
		if (!found)
			return error_set(err, STATUS_INVALID, "targets", "the model has no linear layer \"%.100s\"",
			                 name);
	}
	return STATUS_OK;
}

static status check_options(const parameter_list *parameters, const lora_options *o, error *err)
{
	if (o->rank < 1 || o->rank > LORA_MAX_RANK)
		return error_set(err, STATUS_INVALID, "rank", "must be from 1 to %d", LORA_MAX_RANK);
	if (!(o->alpha > 0 && o->alpha <= LORA_MAX_ALPHA))
		return error_set(err, STATUS_INVALID, "alpha", "must be above 0, and at most %g", LORA_MAX_ALPHA);
	return check_targets(parameters, o->targets, err);
}

status lora_parameters(const model *base, const lora_options *o, parameter_list *out, error *err)
{
	for (int i = 0; i < base->parameters.count; i++) {
		const parameter_spec *p = &base->parameters.items[i];
		char module[NAME_BYTES];
		module_of(p->name, module);
		if (!is_layer(p) || !is_chosen(o->targets, module))
			continue;
		if (strlen(module) + sizeof LORA_A > NAME_BYTES)
			return error_set(err, STATUS_UNSUPPORTED, "targets", "the name \"%s\" is too long", module);
		const int64_t outputs = p->shape.dim[0], inputs = p->shape.dim[1];
		const float deviation = (float)(1 / sqrt(3 * (double)inputs)); /* uniform within 1 / √inputs */
		parameter_list_add(out, INIT_UNIFORM, deviation, SHAPE2(o->rank, inputs), LORA_A, module);
		parameter_list_add(out, INIT_ZERO, 0, SHAPE2(outputs, o->rank), LORA_B, module);
	}
	return out->count ? STATUS_OK : error_set(err, STATUS_UNSUPPORTED, "model", "the model has no linear layers");
}

/* Check that the loss depends on every matrix: some matrices are read by other ops than a linear layer. */
static status check_use(const model *m, error *err)
{
	const int64_t length = model_dims_length(&m->dims);
	const forward_spec spec = {.batch = 1,
	                           .length = length < 2 ? length : 2,
	                           .source = m->dims.form->source ? 1 : 0,
	                           .train.loss = true,
	                           .train.backward = true};
	graph *g;
	status s = model_graph(&g, m, &spec, err);
	for (int i = 0; i < m->parameters.count && s == STATUS_OK; i++) {
		const char *name = m->parameters.items[i].name;
		if (graph_gradient(g, graph_find(g, name)) == VALUE_NONE)
			s = error_set(err, STATUS_UNSUPPORTED, "targets",
			              "the matrix of \"%s\" is not one of a linear layer that is trained", name);
	}
	graph_free(g);
	return s;
}

/* base: without memory. */
static status check_over(model *base, const lora_options *o, error *err)
{
	model *m;
	TRY(check_options(&base->parameters, o, err));
	TRY(model_describe_adapter(&m, base, o, err));
	const status s = check_use(m, err);
	model_free(m);
	return s;
}

/* Packed weights have no gradients, so the check is of a model with others. */
status model_new_lora(model **out, model *base, const lora_options *o, uint64_t seed, error *err)
{
	model *m, *twin;
	*out = NULL;
	if (base->base)
		return error_set(err, STATUS_UNSUPPORTED, "model", "an adapter has no adapter");
	TRY(model_describe_twin(&twin, base, err));
	const status s = check_over(twin, o, err);
	model_free(twin);
	TRY(s);
	TRY(model_describe_adapter(&m, base, o, err));
	return model_fill_adapter(out, m, seed, err);
}

status lora_check(const architecture *a, const json_t *config, const lora_options *o, error *err)
{
	model *base;
	TRY(model_describe(&base, a, config, DTYPE_F32, err));
	status s = check_over(base, o, err);
	if (s == STATUS_OK)
		s = lora_check_sessions(base, err);
	model_free(base);
	return s;
}

const lora_options *model_lora(const model *m)
{
	return m->lora.rank ? &m->lora : NULL;
}

/* --- files ------------------------------------------------------------------------------ */

/* Keys that change the equation of lora.h unless they are false, null or empty. */
static const char *const refused[] = {
    "use_dora",  "use_rslora", "rank_pattern",      "alpha_pattern",     "modules_to_save",
    "lora_bias", "use_qalora", "target_parameters", "layer_replication", "layers_to_transform",
    NULL};

static bool has_no_effect(const json_t *x)
{
	return !x || json_is_null(x) || json_is_false(x) || (json_is_array(x) && !json_array_size(x)) ||
	       (json_is_object(x) && !json_object_size(x));
}

status lora_read_config(lora_options *o, const json_t *config, error *err)
{
	const char *type = json_string_value(json_object_get(config, "peft_type"));
	const char *bias = json_string_value(json_object_get(config, "bias"));
	json_t *targets = json_object_get(config, "target_modules");
	const bool all = json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0;
	if (!type || strcmp(type, "LORA") != 0)
		return error_set(err, STATUS_INVALID, "peft_type", "must be \"LORA\"");
	if (bias && strcmp(bias, "none") != 0)
		return error_set(err, STATUS_INVALID, "bias", "must be \"none\"");
	for (int i = 0; refused[i]; i++)
		if (!has_no_effect(json_object_get(config, refused[i])))
			return error_set(err, STATUS_INVALID, refused[i], "is not supported");
	if (!all && !json_is_array(targets))
		return error_set(err, STATUS_INVALID, "target_modules", "must be a list of names or \"all-linear\"");
	*o = (lora_options){.rank = json_read_integer(config, "r", 0),
	                    .alpha = json_read_real(config, "lora_alpha", 0),
	                    .targets = all ? NULL : targets};
	return STATUS_OK;
}

/* Return the modules of an adapter's parameters, and set *transposed if their matrices are stored as [inputs, outputs].
 * New reference; NULL: out of memory. */
static json_t *modules_of(const model *adapter, bool *transposed)
{
	const parameter_list *parameters = &adapter->base->parameters;
	json_t *all = json_array();
	*transposed = false;
	for (int i = 0; i < parameters->count && all; i++) {
		const parameter_spec *p = &parameters->items[i];
		char module[NAME_BYTES];
		module_of(p->name, module);
		if (!is_layer(p) || !is_chosen(adapter->lora.targets, module))
			continue;
		*transposed |= p->transposed;
		if (json_array_append_new(all, json_string(module)) != 0) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

status lora_write_config(const model *adapter, const char *folder, error *err)
{
	const lora_options *o = &adapter->lora;
	char path[PATH_MAX];
	bool transposed;
	TRY(path_join(path, folder, LORA_CONFIG_FILE, err));
	json_t *modules = modules_of(adapter, &transposed);
	json_t *config =
	    json_pack("{s:s, s:I, s:f, s:f, s:o, s:s, s:b, s:b, s:s, s:n, s:n, s:n}", "peft_type", "LORA", "r",
	              (json_int_t)o->rank, "lora_alpha", o->alpha, "lora_dropout", 0.0, "target_modules", modules,
	              "bias", "none", "fan_in_fan_out", transposed, "inference_mode", 1, "task_type", "CAUSAL_LM",
	              "modules_to_save", "base_model_name_or_path", "revision");
	char *text = json_text(config, JSON_INDENT(2));
	json_decref(config);
	if (!text)
		return error_no_memory(err, "an adapter");
	const status s = file_write(path, (file_part[]){{text, strlen(text)}, {"\n", 1}}, 2, err);
	free(text);
	return s;
}

static status open_described(model **out, model *base, const json_t *config, const char *folder, const manifest *about,
                             error *err)
{
	lora_options o;
	model *m;
	char path[PATH_MAX];
	TRY(path_join(path, folder, LORA_FILE, err));
	TRY(lora_read_config(&o, config, err));
	TRY(model_new_lora(&m, base, &o, 0, err));
	const status s = adapter_read(m, path, about, err);
	if (s == STATUS_OK)
		*out = m;
	else
		model_free(m);
	return s;
}

status lora_open(model **out, model *base, const char *folder, const manifest *about, error *err)
{
	char *text;
	size_t bytes;
	json_t *config;
	*out = NULL;
	TRY(manifest_read(about, folder, LORA_CONFIG_FILE, LORA_CONFIG_BYTES, &text, &bytes, err));
	status s = json_read(&config, text, bytes, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	if (s != STATUS_OK)
		return error_set(err, s, LORA_CONFIG_FILE, "is no JSON");
	s = open_described(out, base, config, folder, about, err);
	json_decref(config);
	return s;
}

/* --- graphs ----------------------------------------------------------------------------- */

typedef struct lora_place {
	int64_t part, offset;
} lora_place;

static int64_t part_floats(const parameter_spec *p)
{
	return p->shape.dim[0] + p->shape.dim[1];
}

/* Return the place of the layer of this matrix; NULL: that of the end. part -1: the matrix is not one of a layer. */
static lora_place layer_place(const parameter_list *parameters, const char *matrix)
{
	lora_place at = {0, 0};
	for (int i = 0; i < parameters->count; i++) {
		const parameter_spec *p = &parameters->items[i];
		const bool found = matrix && strcmp(p->name, matrix) == 0;
		if (found && is_layer(p))
			return at;
		if (found)
			break;
		at.part += is_layer(p);
		at.offset += is_layer(p) ? part_floats(p) : 0;
	}
	return matrix ? (lora_place){-1, 0} : at;
}

int64_t lora_strip_floats(const model *base)
{
	return layer_place(&base->parameters, NULL).offset;
}

int64_t lora_parts(const model *base)
{
	return layer_place(&base->parameters, NULL).part;
}

void lora_begin(builder *b, float scale)
{
	const forward_spec *spec = b->spec;
	b->lora_scale = scale;
	if (!spec->adapters)
		return;
	const int64_t batch = spec->phase == PHASE_READ ? 1 : spec->batch;
	b->entry = graph_input(b->g, port_name(PORT_ENTRY), DTYPE_I32, SHAPE3(batch, spec->length, 1));
	const lora_place all = layer_place(b->parameters, NULL);
	b->lora_rank = graph_weight(b->g, LORA_RANKS, DTYPE_I32, SHAPE2(LORA_ENTRIES, all.part));
	b->lora_places = graph_weight(b->g, LORA_PLACES, DTYPE_I32, SHAPE2(LORA_ENTRIES, LORA_MAX_RANK));
	b->lora_bank = graph_weight(b->g, LORA_BANK, DTYPE_F32, SHAPE2(LORA_STRIPS, all.offset));
}

static value own_type(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_BF16) : v;
}

value lora_layer(const builder *b, value x, value y, const char *matrix)
{
	if (b->entry != VALUE_NONE) {
		const lora_place at = layer_place(b->parameters, matrix);
		return at.part < 0 ? y
		                   : op_lora(b->g, y, x, b->entry, b->lora_rank, b->lora_places, b->lora_bank,
		                             (lora_params){at.part, at.offset});
	}
	if (b->lora_scale == 0)
		return y;
	char module[NAME_BYTES], name[2 * NAME_BYTES];
	module_of(matrix, module);
	snprintf(name, sizeof name, LORA_A, module);
	const value a = graph_find(b->g, name);
	snprintf(name, sizeof name, LORA_B, module);
	if (a == VALUE_NONE)
		return y;
	const value inner = op_linear(b->g, x, own_type(b, a), VALUE_NONE, 1);
	return op_add(b->g, y, op_linear(b->g, inner, own_type(b, graph_find(b->g, name)), VALUE_NONE, b->lora_scale));
}

/* --- the bank --------------------------------------------------------------------------- */

status lora_check_sessions(const model *base, error *err)
{
	forward_spec spec = {.batch = 1, .length = 1, .slots = 1, .adapters = true, .out.logits = LOGITS_LAST};
	model *twin; /* without memory: a graph needs none */
	TRY(model_describe_twin(&twin, base, err));
	status s = base->dims.form->source ? STATUS_UNSUPPORTED : STATUS_OK;
	for (int i = 0; i < 2 && s == STATUS_OK; i++) {
		graph *g;
		spec.phase = i ? PHASE_STEP : PHASE_READ;
		s = model_graph(&g, twin, &spec, NULL);
		graph_free(g);
	}
	model_free(twin);
	return s == STATUS_OK || s == STATUS_NOMEM
	           ? error_settle(err, s)
	           : error_set(err, STATUS_UNSUPPORTED, "model", "sessions of this model can have no low-rank adapter");
}

struct lora_image {
	int64_t parts, rank, floats; /* floats: of a strip */
	int32_t *ranks;              /* [parts] */
	float *strips;               /* [rank, floats] */
};

void lora_image_free(lora_image *i)
{
	if (!i)
		return;
	free(i->ranks);
	free(i->strips);
	free(i);
}

/* Append the matrices A [rank, inputs] and B [outputs, rank], parameters k and k + 1, of the layer at a place. arena:
 * host memory. */
static void add_part(lora_image *i, const model *a, int k, const float *arena, lora_place at)
{
	const int64_t inputs = shape_last(a->parameters.items[k].shape),
	              outputs = a->parameters.items[k + 1].shape.dim[0];
	const float *in = arena + a->offset[k], *out = arena + a->offset[k + 1];
	const double scale = a->lora.alpha / (double)a->lora.rank;
	for (int64_t r = 0; r < i->rank; r++) {
		float *strip = i->strips + r * i->floats + at.offset;
		memcpy(strip, in + r * inputs, (size_t)inputs * sizeof *strip);
		for (int64_t o = 0; o < outputs; o++)
			strip[inputs + o] = (float)(scale * (double)out[o * i->rank + r]);
	}
	i->ranks[at.part] = (int32_t)i->rank;
}

static void add_parts(lora_image *i, const model *a, const float *arena)
{
	const parameter_list *layers = &a->base->parameters;
	for (int j = 0, k = 0; j < layers->count; j++) {
		char module[NAME_BYTES];
		module_of(layers->items[j].name, module);
		if (!is_layer(&layers->items[j]) || !is_chosen(a->lora.targets, module))
			continue;
		add_part(i, a, k, arena, layer_place(layers, layers->items[j].name));
		k += 2;
	}
}

status lora_image_new(lora_image **out, const model *a, error *err)
{
	float *arena;
	*out = NULL;
	TRY(adapter_download(a, &arena, err));
	lora_image *i = memory_new(1, sizeof *i);
	if (i) {
		i->parts = lora_parts(a->base);
		i->rank = a->lora.rank;
		i->floats = lora_strip_floats(a->base);
		i->ranks = memory_new((size_t)i->parts, sizeof *i->ranks);
		i->strips = memory_new((size_t)(i->rank * i->floats), sizeof *i->strips);
	}
	const bool fits = i && i->ranks && i->strips;
	if (fits)
		add_parts(i, a, arena);
	free(arena);
	if (fits)
		*out = i;
	else
		lora_image_free(i);
	return fits ? STATUS_OK : error_no_memory(err, "an adapter");
}

static size_t strip_bytes(const lora_image *i)
{
	return (size_t)i->floats * sizeof *i->strips;
}

uint64_t lora_image_hash(const lora_image *i)
{
	const uint64_t parts[] = {digest_bytes(i->ranks, (size_t)i->parts * sizeof *i->ranks),
	                          digest_bytes(i->strips, (size_t)i->rank * strip_bytes(i))};
	return digest_bytes(parts, sizeof parts);
}

size_t lora_image_bytes(const lora_image *i)
{
	return sizeof *i + (size_t)i->parts * sizeof *i->ranks + (size_t)i->rank * strip_bytes(i);
}

int64_t lora_image_rank(const lora_image *i)
{
	return i->rank;
}

status lora_image_write(const lora_image *i, backend *b, const lora_tables *to, int entry, const int32_t *strips)
{
	int32_t places[LORA_MAX_RANK];
	for (int64_t r = 0; r < LORA_MAX_RANK; r++)
		places[r] = r < i->rank ? strips[r] : -1;
	for (int64_t r = 0; r < i->rank; r++)
		TRY(b->upload(b, to->bank + strips[r] * i->floats, i->strips + r * i->floats, strip_bytes(i)));
	TRY(b->upload(b, to->places + entry * LORA_MAX_RANK, places, sizeof places));
	return b->upload(b, to->ranks + entry * i->parts, i->ranks, (size_t)i->parts * sizeof *i->ranks);
}
