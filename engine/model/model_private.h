/* model_private.h - what model.c and model_loader.c share. Private to engine/model. */
#ifndef ENGINE_MODEL_MODEL_PRIVATE_H
#define ENGINE_MODEL_MODEL_PRIVATE_H

#include "engine/model/model.h"

struct model {
	const architecture *architecture;
	void *config;
	model_dims dims;
	json_t *class_names; /* of HEAD_CLASSES: an array of strings; else NULL */
	json_t *kept;        /* what config_keep keeps of the configuration */
	parameter_list parameters;
	state_list states, carried;
	dtype weights;
	int64_t *offset; /* of each parameter in the arena, in floats */
	int64_t floats, trained_floats, count;
	backend *backend;       /* NULL: only being checked */
	float *arena;           /* device memory */
	size_t reserved;        /* the arena is a reservation of that many bytes; 0: an allocation */
	uint64_t digest;        /* of the weights as they were read from a folder; 0: they were not */
	uint16_t *bf16_weights; /* its bf16 copy, or NULL */
};

status model_no_memory(error *err);
/* A model without memory. On error *out is NULL. */
status model_describe(model **out, const architecture *a, const json_t *config, dtype weights, error *err);
/* Build the graph of a spec, with its gradients, for a model that was only described. The caller frees *out, also on
 * failure; errors are those of model_plan. */
status model_graph(graph **out, const model *m, const forward_spec *spec, error *err);
/* Type of a parameter in the arena, and its bytes there without padding. */
dtype model_stored_type(const model *m, const parameter_spec *p);
size_t model_stored_bytes(const model *m, const parameter_spec *p);

#endif
