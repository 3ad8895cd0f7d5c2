#include "engine/eval/trilinear_set.h"

#include <stdio.h>
#include <string.h>

#include "engine/eval/label_results.h"

enum { MAX_SIZE = 1 << 16, TUNE_HEAD = 8, TUNE_WORDS = 16 };

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- configuration --------------------------------------------------------------------------- */

static const json_t *layers_of(const golden *g)
{
	const json_t *layers = json_object_get(g->config, "layers");
	return layers ? layers : json_object_get(g->config, "alibi_v1");
}

/* A layer of one attention, as config.json lists it; *out is a new reference, NULL after a failure. */
static status read_layer(const json_t *from, const int64_t windows[2], json_t **out, error *err)
{
	const json_t *slope = json_array_get(from, 0), *hyper = json_array_get(from, 1),
	             *wide = json_array_get(from, 2);
	*out = NULL;
	if (json_array_size(from) != 3 || !json_is_number(slope) || !json_is_number(hyper) || !json_is_number(wide))
		return error_set(err, STATUS_INVALID, "layers", "every layer must be [slope, hyper, wide]");
	*out = json_pack("[{s:f, s:f, s:I}]", "slope", json_number_value(slope), "hyper", json_number_value(hyper),
	                 "window", (json_int_t)windows[json_number_value(wide) != 0]);
	return *out ? STATUS_OK : no_memory(err);
}

static status read_layers(const golden *g, const int64_t windows[2], json_t *out, error *err)
{
	const json_t *layers = layers_of(g);
	if (!json_is_array(layers))
		return error_set(err, STATUS_INVALID, "layers", "the config lacks \"layers\", an array");
	for (size_t l = 0; l < json_array_size(layers); l++) {
		json_t *layer;
		TRY(read_layer(json_array_get(layers, l), windows, &layer, err));
		if (json_array_append_new(out, layer) != 0)
			return no_memory(err);
	}
	return STATUS_OK;
}

/* --- weights --------------------------------------------------------------------------------- */

void trilinear_set_name(const parameter_spec *p, char out[TRILINEAR_SET_NAME_BYTES])
{
	static const struct {
		const char *ours, *theirs;
	} matrices[] = {{"query", "QK"}, {"key", "QV"}, {"gate", "K"}, {"value", "V"}, {"combiner", "C"}};
	int layer;
	char name[16];
	if (sscanf(p->name, "attentions.%d.%15[a-z].weight", &layer, name) != 2) {
		snprintf(out, TRILINEAR_SET_NAME_BYTES, "%s",
		         strcmp(p->name, "words.weight") == 0  ? "E"
		         : strcmp(p->name, "head.weight") == 0 ? "F"
		                                               : "bias");
		return;
	}
	for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
		if (strcmp(name, matrices[i].ours) == 0)
			snprintf(out, TRILINEAR_SET_NAME_BYTES, "L%d.%s", layer, matrices[i].theirs);
}

int64_t trilinear_set_row(const parameter_spec *p, int64_t r)
{
	const int64_t rows = shape_rows(p->shape), tokens = rows - TRILINEAR_SET_OWN_ROWS;
	if (strcmp(p->name, "words.weight") != 0)
		return r;
	return r < tokens ? r + TRILINEAR_SET_OWN_ROWS : rows - 1 - r;
}

static status load(golden *g, model *m, int index, const char *prefix, error *err)
{
	const parameter_spec *p = model_parameter(m, index);
	const int64_t rows = shape_rows(p->shape), width = shape_last(p->shape);
	char name[TRILINEAR_SET_NAME_BYTES], whole[2 * TRILINEAR_SET_NAME_BYTES];
	const float *found;
	void *values;
	trilinear_set_name(p, name);
	snprintf(whole, sizeof whole, "%s%s", prefix, name);
	TRY(golden_floats(g, whole, extent_of(p->shape), &found, err));
	TRY(golden_memory(g, rows * width, sizeof(float), &values, err));
	for (int64_t r = 0; r < rows; r++)
		memcpy((float *)values + r * width, found + trilinear_set_row(p, r) * width,
		       (size_t)width * sizeof(float));
	status s = g->backend->upload(g->backend, model_arena(m) + model_parameter_offset(m, index), values,
	                              (size_t)(rows * width) * sizeof(float));
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot copy the weights to %s", g->backend->name);
}

status trilinear_set_result(golden *g, const parameter_spec *p, const float *values, double factor, const char *prefix,
                            error *err)
{
	const int64_t rows = shape_rows(p->shape), width = shape_last(p->shape);
	char name[TRILINEAR_SET_NAME_BYTES];
	float *out;
	trilinear_set_name(p, name);
	TRY(golden_result(g, extent_of(p->shape), &out, err, "%s%s", prefix, name));
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < width; c++)
			out[trilinear_set_row(p, r) * width + c] = (float)(factor * (double)values[r * width + c]);
	return STATUS_OK;
}

status trilinear_set_model(golden *g, const char *prefix, int weight_bits, int vector_bits, model **out, error *err)
{
	int64_t d, q, t, v, windows[2];
	const struct {
		const char *key;
		int64_t *to;
	} sizes[] = {{"D", &d}, {"Q", &q}, {"T", &t}, {"V", &v}, {"window", &windows[0]}, {"wide_window", &windows[1]}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		TRY(golden_config_integer(g, sizes[i].key, MAX_SIZE, sizes[i].to, err));
	json_t *layers = json_array();
	status s = layers ? read_layers(g, windows, layers, err) : no_memory(err);
	const json_t *flags = json_object_get(g->config, "flags");
	const json_int_t tuned = flags ? json_integer_value(flags) : TUNE_HEAD | TUNE_WORDS;
	json_t *config = json_pack(
	    "{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:i, s:i, s:o}", "profile", "seed", "train_head",
	    (tuned & TUNE_HEAD) != 0, "train_embeddings", (tuned & TUNE_WORDS) != 0, "hidden_size", (json_int_t)d,
	    "key_size", (json_int_t)q, "value_size", (json_int_t)t, "vocab_size", (json_int_t)v, "weight_bits",
	    weight_bits, "vector_bits", vector_bits, "attentions", layers); /* which it takes over, also on failure */
	if (s == STATUS_OK)
		s = config ? golden_new_model(g, &architecture_trilinear, config, out, err) : no_memory(err);
	json_decref(config);
	for (int i = 0; s == STATUS_OK && i < model_tensor_count(*out); i++)
		s = load(g, *out, i, prefix, err);
	return s;
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

/* --- what the nodes are made from and what they see ------------------------------------------------------------- */

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
