/* model_private.h - shared by the sources of a model. Private to engine/model. */
#ifndef ENGINE_MODEL_MODEL_PRIVATE_H
#define ENGINE_MODEL_MODEL_PRIVATE_H

#include "engine/model/lora.h"
#include "engine/model/model.h"

struct model {
	const architecture *architecture;
	model *base; /* the model that an adapter belongs to; borrowed. NULL: it is no adapter */
	lora_options lora; /* options of a low-rank adapter, which owns the targets; rank 0: it is none */
	void *config;
	model_dims dims;
	json_t *class_names; /* for a classifier: an array of strings; otherwise NULL */
	json_t *kept;        /* keys of the configuration kept by config_keep */
	parameter_list parameters;
	state_list states, carried;
	dtype weights;
	int64_t *offset; /* for each parameter in the arena, in floats */
	int64_t floats, trained_floats, count;
	backend *backend;       /* NULL: the model is only being checked */
	float *arena;           /* device memory */
	size_t reserved;        /* bytes if the arena is a reservation; 0: it is an allocation */
	uint64_t digest;        /* hash of the weights as read from a folder; 0: not read from one */
	uint16_t *bf16_weights; /* bf16 copy of the arena, or NULL */
};

/* List the parameters of an adapter (adapter.h). STATUS_UNSUPPORTED: it can have none. STATUS_NOMEM. */
status adapter_parameters(const model *base, parameter_list *out, error *err);
/* List the parameters of a low-rank adapter. Errors as for model_new_lora. */
status lora_parameters(const model *base, const lora_options *o, parameter_list *out, error *err);
/* Describe an adapter of a base that may have no memory; o NULL: a state adapter. The base is borrowed. */
status model_describe_adapter(model **out, model *base, const lora_options *o, error *err);
/* Describe a model like m with f32 weights, which is no adapter. */
status model_describe_twin(model **out, const model *m, error *err);
/* Give a described model memory and initial values. *out is NULL on error, and m is freed. */
status model_fill_new(model **out, model *m, uint64_t seed, backend *b, error *err);
/* Likewise a described adapter on the backend of its base; without one it stays as it is. */
status model_fill_adapter(model **out, model *m, uint64_t seed, error *err);
/* Build the graph of a spec, with its gradients, for a model from model_describe. The caller frees *out, also on
 * failure. Errors as for model_plan. */
status model_graph(graph **out, const model *m, const forward_spec *spec, error *err);
/* Return the type of a parameter in the arena. */
dtype model_stored_type(const model *m, const parameter_spec *p);

#endif
