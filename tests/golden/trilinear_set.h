/* trilinear_set.h - golden sets of 3Lin, profile S, under their own names of tensors: E, F, bias and, for layer l,
 * L{l}.{QK,QV,K,V,C}, each with a prefix. In a layer with several attentions, number a is L{l}A{a}, where A is any text
 * that is not empty. A missing combiner C is 0 if others exist. Instead of weights a set may have their codes,
 * q.NAME of 8 bits, and steps, step.NAME [1].
 *
 * The rows of E begin with those of the start and of an unknown token, which the model stores after those of the
 * tokens. config: D, Q, T, V, window, wide_window; in "layers" or "alibi_v1" the attentions, [slope, hyper, wide] each,
 * in the order of their layers, with or without an array for each layer; and "flags", in which 8 trains F and 16 trains
 * E (by default both). */
#ifndef TESTS_GOLDEN_TRILINEAR_SET_H
#define TESTS_GOLDEN_TRILINEAR_SET_H

#include "tests/golden/golden.h"
#include "engine/model/trilinear/attentions.h"

enum {
	TRILINEAR_SET_BETWEEN_BYTES = 16,
	TRILINEAR_SET_NAME_BYTES = 64,
	TRILINEAR_SET_OWN_ROWS = 2,
	TRILINEAR_SET_MAX_TEXTS = 16,
	TRILINEAR_SET_MAX_LENGTH = 1 << 20
};

/* The set's numbering of attentions: number k of the model is number `index` of layer `layer`. */
typedef struct trilinear_names {
	char
	    between[TRILINEAR_SET_BETWEEN_BYTES]; /* the numbers of layer and attention; empty: layers have no second */
	int layers, attentions;
	int layer[ARCHITECTURE_MAX_LAYERS], index[ARCHITECTURE_MAX_LAYERS];
} trilinear_names;

/* Texts tokens_frag{0,1,…}, whose last tokens are targets only. A text has a node for the start and one for each token
 * that is read; the nodes of all texts are numbered one after the other. */
typedef struct trilinear_texts {
	golden *g;
	model *m;
	trilinear_names names;
	int vector_bits; /* bits of the vectors of m */
	int64_t texts, longest, nodes, targets;
	int64_t length[TRILINEAR_SET_MAX_TEXTS],
	    first[TRILINEAR_SET_MAX_TEXTS]; /* tokens that are read; the start's node */
	int32_t *ids, *labels;              /* [texts, longest] */
} trilinear_texts;

/* True if the set has a model's weights, or their codes, under that prefix. */
bool trilinear_set_has(const golden *g, const char *prefix);
/* t->g is given: t->m, of which weights and vectors are quantised to the given bits (32: not), its names, and
 * vector_bits. */
status trilinear_set_model(trilinear_texts *t, const char *prefix, int weight_bits, int vector_bits, error *err);
/* Write the set's name of a parameter of the model, or of attention number k. */
void trilinear_set_name(const trilinear_texts *t, const parameter_spec *p, char out[TRILINEAR_SET_NAME_BYTES]);
void trilinear_set_attention(const trilinear_texts *t, int k, char out[TRILINEAR_SET_NAME_BYTES]);
/* Add the result PREFIX NAME of a parameter: `factor` times values, in the parameter's layout. */
status trilinear_set_result(const trilinear_texts *t, const parameter_spec *p, const float *values, double factor,
                            const char *prefix, error *err);
/* Add q.NAME and step.NAME of weights for which the set has them, unless it has codes instead of weights. */
status trilinear_set_codes(const trilinear_texts *t, error *err);
/* The row of the set that is row r of a parameter of the model. */
int64_t trilinear_set_row(const parameter_spec *p, int64_t r);
/* t->g and t->m are given. */
status trilinear_set_texts(trilinear_texts *t, error *err);
/* Add label_arr, label_ptr, target_node, target_id and {narrow,wide}_span_{start,finish,ptr}: rows of E, targets, and
 * the spans of nodes that a node sees. */
status trilinear_set_graph(const trilinear_texts *t, error *err);

#endif
