#include "tests/golden/trilinear_set.h"

#include <stdio.h>
#include <string.h>

#include "tests/golden/label_results.h"
#include "tests/golden/matrix_codes.h"
#include "engine/tensor/ops/quantize.h"

#define CODES "q."
#define STEP "step."
enum { MAX_SIZE = 1 << 16, TUNE_HEAD = 8, TUNE_WORDS = 16 };

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- names ------------------------------------------------------------------------------------ */

static bool begins(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *name, const char *suffix)
{
	const size_t n = strlen(name), m = strlen(suffix);
	return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* True if the set has E and a combiner of layer 0. */
static bool has_weights(const golden *g, const char *prefix)
{
	char first[TRILINEAR_SET_NAME_BYTES];
	bool found = false;
	snprintf(first, sizeof first, "%sL0", prefix);
	for (int i = 0; i < g->count && !found; i++)
		found = begins(g->tensors[i].entry->name, first) && ends(g->tensors[i].entry->name, ".C");
	return found && golden_find(g, "%sE", prefix);
}

bool trilinear_set_has(const golden *g, const char *prefix)
{
	return has_weights(g, prefix) || (!prefix[0] && has_weights(g, CODES));
}

/* The text between the numbers in "PREFIX L0 … 0.QK", if there is any. */
static void find_between(const golden *g, const char *prefix, trilinear_names *out)
{
	char first[TRILINEAR_SET_NAME_BYTES];
	const int begin = snprintf(first, sizeof first, "%sL0", prefix);
	for (int i = 0; i < g->count && !out->between[0]; i++) {
		const char *name = g->tensors[i].entry->name;
		const int end = (int)strlen(name) - (int)strlen("0.QK");
		if (begins(name, first) && ends(name, "0.QK") && end > begin && end - begin < (int)sizeof out->between)
			memcpy(out->between, name + begin, (size_t)(end - begin));
	}
}

static void add_layer(trilinear_names *n, int64_t attentions)
{
	for (int64_t a = 0; a < attentions && n->attentions < ARCHITECTURE_MAX_LAYERS; a++, n->attentions++) {
		n->layer[n->attentions] = n->layers;
		n->index[n->attentions] = (int)a;
	}
	n->layers++;
}

static bool is_group(const json_t *layer)
{
	return json_is_array(json_array_get(layer, 0));
}

/* The attentions of each layer: as the config groups them, or else as names do. */
static void read_names(const golden *g, const json_t *layers, const char *prefix, trilinear_names *out)
{
	size_t i, used = 0;
	json_t *layer;
	*out = (trilinear_names){0};
	find_between(g, prefix, out);
	if (is_group(json_array_get(layers, 0))) {
		json_array_foreach(layers, i, layer) add_layer(out, (int64_t)json_array_size(layer));
		return;
	}
	for (size_t count = 1; used < json_array_size(layers); used += count) {
		for (count = 1;
		     out->between[0] && golden_find(g, "%sL%d%s%d.QK", prefix, out->layers, out->between, (int)count);)
			count++;
		add_layer(out, (int64_t)count);
	}
}

void trilinear_set_attention(const trilinear_texts *t, int k, char out[TRILINEAR_SET_NAME_BYTES])
{
	const trilinear_names *n = &t->names;
	if (n->between[0])
		snprintf(out, TRILINEAR_SET_NAME_BYTES, "L%d%s%d", n->layer[k], n->between, n->index[k]);
	else
		snprintf(out, TRILINEAR_SET_NAME_BYTES, "L%d", k);
}

void trilinear_set_name(const trilinear_texts *t, const parameter_spec *p, char out[TRILINEAR_SET_NAME_BYTES])
{
	static const struct {
		const char *ours, *theirs;
	} matrices[] = {{"query", "QK"}, {"key", "QV"}, {"gate", "K"}, {"value", "V"}, {"combiner", "C"}};
	int k;
	char name[16];
	if (sscanf(p->name, "attentions.%d.%15[a-z].weight", &k, name) != 2) {
		snprintf(out, TRILINEAR_SET_NAME_BYTES, "%s",
		         strcmp(p->name, "words.weight") == 0  ? "E"
		         : strcmp(p->name, "head.weight") == 0 ? "F"
		                                               : "bias");
		return;
	}
	trilinear_set_attention(t, k, out);
	for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
		if (strcmp(name, matrices[i].ours) == 0)
			snprintf(out + strlen(out), TRILINEAR_SET_NAME_BYTES - strlen(out), ".%s", matrices[i].theirs);
}

/* --- configuration --------------------------------------------------------------------------- */

static const json_t *layers_of(const golden *g)
{
	const json_t *layers = json_object_get(g->config, "layers");
	return layers ? layers : json_object_get(g->config, "alibi_v1");
}

/* An attention, as config.json lists it; *out is a new reference, NULL after a failure. */
static status read_attention(const json_t *from, const int64_t windows[2], json_t **out, error *err)
{
	const json_t *slope = json_array_get(from, 0), *hyper = json_array_get(from, 1),
	             *wide = json_array_get(from, 2);
	*out = NULL;
	if (json_array_size(from) != 3 || !json_is_number(slope) || !json_is_number(hyper) ||
	    !(json_is_number(wide) || json_is_boolean(wide)))
		return error_set(err, STATUS_INVALID, "layers", "every attention must be [slope, hyper, wide]");
	const bool is_wide = json_is_boolean(wide) ? json_boolean_value(wide) : json_number_value(wide) != 0;
	*out = json_pack("{s:f, s:f, s:I}", "slope", json_number_value(slope), "hyper", json_number_value(hyper),
	                 "window", (json_int_t)windows[is_wide]);
	return *out ? STATUS_OK : no_memory(err);
}

/* Attention number k of the config. */
static const json_t *attention_of(const json_t *layers, const trilinear_names *n, int k)
{
	const json_t *first = json_array_get(layers, 0);
	return is_group(first) ? json_array_get(json_array_get(layers, (size_t)n->layer[k]), (size_t)n->index[k])
	                       : json_array_get(layers, (size_t)k);
}

static status read_layers(const json_t *layers, const trilinear_names *n, const int64_t windows[2], json_t *out,
                          error *err)
{
	json_t *layer = NULL, *attention; /* layer: borrowed */
	for (int k = 0; k < n->attentions; k++) {
		TRY(read_attention(attention_of(layers, n, k), windows, &attention, err));
		if (n->index[k] == 0 && json_array_append_new(out, layer = json_array()) != 0) {
			json_decref(attention);
			return no_memory(err);
		}
		if (json_array_append_new(layer, attention) != 0)
			return no_memory(err);
	}
	return STATUS_OK;
}

/* --- weights --------------------------------------------------------------------------------- */

int64_t trilinear_set_row(const parameter_spec *p, int64_t r)
{
	const int64_t rows = shape_rows(p->shape), tokens = rows - TRILINEAR_SET_OWN_ROWS;
	if (strcmp(p->name, "words.weight") != 0)
		return r;
	return r < tokens ? r + TRILINEAR_SET_OWN_ROWS : rows - 1 - r;
}

/* Return the bits of a parameter of the model that the set stores as 8-bit codes. */
static int64_t bits_of(const parameter_spec *p, int weight_bits)
{
	return p->by_row ? 8 : weight_bits;
}

/* A weight from its codes, with fewer bits where they are asked for. */
static status read_codes(golden *g, const parameter_spec *p, const char *name, int weight_bits, const float **out,
                         error *err)
{
	const int64_t n = shape_count(p->shape);
	char whole[2 * TRILINEAR_SET_NAME_BYTES];
	const int32_t *codes;
	const float *step;
	void *memory;
	snprintf(whole, sizeof whole, CODES "%s", name);
	TRY(golden_integers(g, whole, extent_of(p->shape), -128, 127, &codes, err));
	snprintf(whole, sizeof whole, STEP "%s", name);
	TRY(golden_floats(g, whole, EXTENT(1), &step, err));
	TRY(golden_memory(g, n, sizeof(float), &memory, err));
	float *values = memory;
	for (int64_t i = 0; i < n; i++)
		values[i] = *step * (weight_bits == 32 ? (float)codes[i]
		                                       : quantize_recode((float)codes[i], bits_of(p, weight_bits)));
	*out = values;
	return STATUS_OK;
}

static status read_weight(trilinear_texts *t, const parameter_spec *p, const char *prefix, int weight_bits,
                          const float **out, error *err)
{
	char name[TRILINEAR_SET_NAME_BYTES], whole[2 * TRILINEAR_SET_NAME_BYTES];
	trilinear_set_name(t, p, name);
	snprintf(whole, sizeof whole, "%s%s", prefix, name);
	if (!golden_find(t->g, "%s", whole) && golden_find(t->g, CODES "%s", name))
		return read_codes(t->g, p, name, weight_bits, out, err);
	return golden_floats(t->g, whole, extent_of(p->shape), out, err);
}

static status load(trilinear_texts *t, int index, const char *prefix, int weight_bits, error *err)
{
	const parameter_spec *p = model_parameter(t->m, index);
	const int64_t rows = shape_rows(p->shape), width = shape_last(p->shape);
	char name[TRILINEAR_SET_NAME_BYTES];
	const float *found;
	void *values;
	trilinear_set_name(t, p, name);
	/* A new model's combiners are 0. */
	if (t->names.between[0] && ends(name, ".C") && !golden_find(t->g, "%s%s", prefix, name) &&
	    !golden_find(t->g, CODES "%s", name))
		return STATUS_OK;
	TRY(read_weight(t, p, prefix, weight_bits, &found, err));
	TRY(golden_memory(t->g, rows * width, sizeof(float), &values, err));
	for (int64_t r = 0; r < rows; r++)
		memcpy((float *)values + r * width, found + trilinear_set_row(p, r) * width,
		       (size_t)width * sizeof(float));
	backend *b = t->g->backend;
	status s = b->upload(b, model_arena(t->m) + model_parameter_offset(t->m, index), values,
	                     (size_t)(rows * width) * sizeof(float));
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot copy the weights to %s", b->name);
}

status trilinear_set_result(const trilinear_texts *t, const parameter_spec *p, const float *values, double factor,
                            const char *prefix, error *err)
{
	const int64_t rows = shape_rows(p->shape), width = shape_last(p->shape);
	char name[TRILINEAR_SET_NAME_BYTES];
	float *out;
	trilinear_set_name(t, p, name);
	TRY(golden_result(t->g, extent_of(p->shape), &out, err, "%s%s", prefix, name));
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < width; c++)
			out[trilinear_set_row(p, r) * width + c] = (float)(factor * (double)values[r * width + c]);
	return STATUS_OK;
}

status trilinear_set_codes(const trilinear_texts *t, error *err)
{
	for (int i = 0; i < model_tensor_count(t->m); i++) {
		const parameter_spec *p = model_parameter(t->m, i);
		const extent e = extent_of(p->shape);
		char name[TRILINEAR_SET_NAME_BYTES];
		const float *weight;
		float *codes, *step;
		trilinear_set_name(t, p, name);
		if (!golden_find(t->g, "%s", name) || !golden_find(t->g, CODES "%s", name))
			continue;
		TRY(golden_floats(t->g, name, e, &weight, err));
		TRY(golden_result(t->g, e, &codes, err, CODES "%s", name));
		TRY(golden_result(t->g, EXTENT(1), &step, err, STEP "%s", name));
		TRY(matrix_codes(t->g, weight, extent_count(e), 8, codes, step, err));
	}
	return STATUS_OK;
}

static status new_model(trilinear_texts *t, int weight_bits, int vector_bits, error *err)
{
	const json_t *list = layers_of(t->g), *flags = json_object_get(t->g->config, "flags");
	const json_int_t tuned = flags ? json_integer_value(flags) : TUNE_HEAD | TUNE_WORDS;
	int64_t d, q, width, v, windows[2];
	const struct {
		const char *key;
		int64_t *to;
	} sizes[] = {
	    {"D", &d}, {"Q", &q}, {"T", &width}, {"V", &v}, {"window", &windows[0]}, {"wide_window", &windows[1]}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		TRY(golden_config_integer(t->g, sizes[i].key, MAX_SIZE, sizes[i].to, err));
	json_t *layers = json_array();
	status s = layers ? read_layers(list, &t->names, windows, layers, err) : no_memory(err);
	json_t *config = json_pack(
	    "{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:i, s:i, s:o}", "profile", "seed", "train_head",
	    (tuned & TUNE_HEAD) != 0, "train_embeddings", (tuned & TUNE_WORDS) != 0, "hidden_size", (json_int_t)d,
	    "key_size", (json_int_t)q, "value_size", (json_int_t)width, "vocab_size", (json_int_t)v, "weight_bits",
	    weight_bits, "vector_bits", vector_bits, "attentions", layers); /* taken over, also on failure */
	if (s == STATUS_OK)
		s = config ? golden_new_model(t->g, &architecture_trilinear, config, &t->m, err) : no_memory(err);
	json_decref(config);
	return s;
}

status trilinear_set_model(trilinear_texts *t, const char *prefix, int weight_bits, int vector_bits, error *err)
{
	const bool coded = !has_weights(t->g, prefix);
	const json_t *list = layers_of(t->g);
	if (!json_is_array(list) || json_array_size(list) == 0)
		return error_set(err, STATUS_INVALID, "layers", "the config lacks \"layers\", an array");
	read_names(t->g, list, coded ? CODES : prefix, &t->names);
	t->vector_bits = vector_bits;
	/* Weights from codes are not quantised again. */
	TRY(new_model(t, coded ? 32 : weight_bits, vector_bits, err));
	for (int i = 0; i < model_tensor_count(t->m); i++)
		TRY(load(t, i, prefix, weight_bits, err));
	return STATUS_OK;
}

/* --- texts ------------------------------------------------------------------------------------------------- */

static status read_text(trilinear_texts *t, int32_t vocabulary, const int32_t **out, error *err)
{
	char name[TRILINEAR_SET_NAME_BYTES];
	extent e;
	snprintf(name, sizeof name, "tokens_frag%d", (int)t->texts);
	TRY(golden_rank(t->g, name, 1, &e, err));
	if (e.dim[0] < 2 || e.dim[0] > TRILINEAR_SET_MAX_LENGTH)
		return error_set(err, STATUS_INVALID, name, "tensor \"%s\" must have 2 to %d tokens", name,
		                 TRILINEAR_SET_MAX_LENGTH);
	t->length[t->texts] = e.dim[0] - 1;
	t->first[t->texts] = t->nodes;
	t->nodes += e.dim[0];
	t->targets += e.dim[0] - 1;
	t->longest = e.dim[0] - 1 > t->longest ? e.dim[0] - 1 : t->longest;
	t->texts++;
	return golden_integers(t->g, name, e, 0, vocabulary - 1, out, err);
}

status trilinear_set_texts(trilinear_texts *t, error *err)
{
	const int32_t vocabulary = (int32_t)model_dimensions(t->m)->inputs, *tokens[TRILINEAR_SET_MAX_TEXTS];
	void *ids, *labels;
	while (t->texts < TRILINEAR_SET_MAX_TEXTS && golden_find(t->g, "tokens_frag%d", (int)t->texts))
		TRY(read_text(t, vocabulary, &tokens[t->texts], err));
	TRY(golden_memory(t->g, t->texts * t->longest, sizeof(int32_t), &ids, err));
	TRY(golden_memory(t->g, t->texts * t->longest, sizeof(int32_t), &labels, err));
	t->ids = ids;
	t->labels = labels;
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < t->longest; i++) {
			t->ids[b * t->longest + i] = i < t->length[b] ? tokens[b][i] : 0;
			t->labels[b * t->longest + i] = i < t->length[b] ? tokens[b][i + 1] : -1;
		}
	return STATUS_OK;
}

/* --- labels and spans of the nodes ------------------------------------------------------------------------------ */

status trilinear_set_graph(const trilinear_texts *t, error *err)
{
	label_options o = {.vocabulary = model_dimensions(t->m)->inputs, .keep = 1, .document = -1};
	label_fragment texts[TRILINEAR_SET_MAX_TEXTS];
	label_graph nodes;
	mt19937 random; /* nothing is dropped, whatever is drawn */
	TRY(golden_config_integer(t->g, "window", TRILINEAR_SET_MAX_LENGTH, &o.window[LABEL_GRAPH_NARROW], err));
	TRY(golden_config_integer(t->g, "wide_window", TRILINEAR_SET_MAX_LENGTH, &o.window[LABEL_GRAPH_WIDE], err));
	for (int64_t b = 0; b < t->texts; b++)
		texts[b] = (label_fragment){
		    .text = t->ids + b * t->longest, .target = t->labels + b * t->longest, .count = t->length[b]};
	mt19937_seed(&random, 0);
	if (label_graph_new(&nodes, &o, texts, (int)t->texts, &random) != STATUS_OK)
		return no_memory(err);
	status s = label_results_add(t->g, &nodes, "", err);
	label_graph_free(&nodes);
	return s;
}
