/* trilinear_set.h - golden sets of 3Lin, profile S, under their own names of tensors: E, F, bias and of layer l
 * L{l}.{QK,QV,K,V,C}, each with a prefix. The rows of E begin with those of the start and of an unknown token, which
 * the model has behind those of the tokens. config: D, Q, T, V, window, wide_window, and the layers, [slope, hyper,
 * wide] each, in "layers" or "alibi_v1"; and "flags", of which 8 trains F and 16 E (by default
 * both). */
#ifndef ENGINE_EVAL_TRILINEAR_SET_H
#define ENGINE_EVAL_TRILINEAR_SET_H

#include "engine/eval/golden.h"

enum {
	TRILINEAR_SET_NAME_BYTES = 64,
	TRILINEAR_SET_OWN_ROWS = 2,
	TRILINEAR_SET_MAX_TEXTS = 16,
	TRILINEAR_SET_MAX_LENGTH = 1 << 20
};

/* Texts tokens_frag0, tokens_frag1, …, whose last tokens are targets only. A text has a node for the start and one for
 * each token that is read; the nodes of all texts lie one behind the other. */
typedef struct trilinear_texts {
	golden *g;
	model *m;
	int64_t texts, longest, nodes, targets;
	int64_t length[TRILINEAR_SET_MAX_TEXTS],
	    first[TRILINEAR_SET_MAX_TEXTS]; /* tokens that are read; the start's node */
	int32_t *ids, *labels;              /* [texts, longest] */
} trilinear_texts;

/* Weights and vectors quantised to so many bits; 32: not. */
status trilinear_set_model(golden *g, const char *prefix, int weight_bits, int vector_bits, model **out, error *err);
/* What the set calls a parameter of the model. */
void trilinear_set_name(const parameter_spec *p, char out[TRILINEAR_SET_NAME_BYTES]);
/* Add the result PREFIX NAME of a parameter: `factor` times values, which lie as the parameter does. */
status trilinear_set_result(golden *g, const parameter_spec *p, const float *values, double factor, const char *prefix,
                            error *err);
/* The row of the set that is row r of a parameter of the model. */
int64_t trilinear_set_row(const parameter_spec *p, int64_t r);
/* t->g and t->m are given. */
status trilinear_set_texts(trilinear_texts *t, error *err);
/* Add label_arr, label_ptr, target_node, target_id and {narrow,wide}_span_{start,finish,ptr}: rows of E, targets, and
 * the spans of nodes that a node sees. */
status trilinear_set_graph(const trilinear_texts *t, error *err);

#endif
