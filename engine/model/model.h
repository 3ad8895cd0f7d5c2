/* model.h - a model: architecture, configuration and weights on a backend.
 *
 * On disk a model is a folder: config.json, model.safetensors (the architecture's tensor names, f32) and tokenizer
 * files (engine/text). The folder of an additive model is also that of the reference model in Hugging Face's form: both
 * read what the other has written. In memory the parameters are in one flat arena: trained ones first, each part in
 * parameter order, each parameter aligned to 64 bytes. Padding is zero.
 *
 * The weights have a type. With DTYPE_F32 every parameter is stored as plain floats, which an optimiser treats as one
 * vector; the model can be trained and saved. With a panel type (panel.h) the matrices are packed as they are read and
 * everything else is f32; the model can only be served.
 *
 * An f32 model may have a bf16 copy of the whole arena with the same element offsets (so parameters are aligned to 32
 * bytes). A forward in bf16 reads matrices and tables from the copy and vectors from the arena. A model is read-only
 * while it is served; a trainer owns the one it trains.
 *
 * Threads: one thread at a time uses a backend (backend.h) and the models on it. model_check needs no backend: any
 * thread. Pointers that these functions return are borrowed until model_free. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/model/architecture.h"
#include "engine/tensor/backend.h"
#include "engine/tensor/plan.h"

typedef struct model model;

/* Read a model folder with weights of type `weights`, DTYPE_F32 or a panel type. A config.json without model_type
 * selects the first architecture. model_loader.h does the same in steps.
 *
 * STATUS_INVALID names the tensor: missing, extra or misshapen; tied names with different data (one of them is enough);
 * an element that is not finite after conversion to f32, or so large that products overflow. Every number type is
 * converted. STATUS_STORAGE: a file differs from the folder's manifest.json, if it has one. */
status model_open(model **out, const char *folder, dtype weights, backend *b, error *err);
/* Create an f32 model initialised from `seed` (Philox, the same on every machine). config: the keys of config.json. */
status model_create(model **out, const architecture *a, const json_t *config, uint64_t seed, backend *b, error *err);
/* Copy a model on the same backend. STATUS_UNSUPPORTED: its weights are packed. */
status model_copy(model **out, const model *m, error *err);
/* Create a model without memory. On error *out is NULL. */
status model_describe(model **out, const architecture *a, const json_t *config, dtype weights, error *err);
/* Create an adapter of `base` (adapter.h), which is borrowed and must outlive it. Of a base that is only described
 * (model_describe) it is only described, too. STATUS_UNSUPPORTED names the attention
 * that has no initial state. */
status model_new_adapter(model **out, model *base, error *err);
/* Return the model that an adapter belongs to; NULL: it is no adapter. */
const model *model_base(const model *m);
/* Set the weights of a new model that depend on token counts; counts [inputs] of its training texts. */
status model_set_counts(model *m, const int64_t *counts, error *err);
void model_free(model *m);

/* Write model.safetensors and config.json to an existing folder, each atomically, in this order. Tied weights have the
 * names that the reference writes. Of an adapter, write ADAPTER_FILE alone (adapter.h). STATUS_UNSUPPORTED: the weights
 * are packed. */
status model_save(const model *m, const char *folder, error *err);
/* Check a folder and all its data as model_open does, without a device. */
status model_check(const char *folder, error *err);

const architecture *model_architecture(const model *m);
const void *model_config(const model *m);
/* Return the explainer of its attention; NULL: none. */
const explainer *model_explainer(const model *m);
/* Return the options of a layer's mixer. */
const void *model_mixer_options(const model *m, int64_t layer);
const model_dims *model_dimensions(const model *m);
/* Return the class names of a classifier (class_names.h), which model_save keeps; NULL for other heads. */
const json_t *model_class_names(const model *m);
/* Record training on sequences of `length` tokens, at most the model's positions. */
void model_train_on(model *m, int64_t length);
backend *model_backend(const model *m);
/* Return the number of scalars without padding. */
int64_t model_scalar_count(const model *m);
dtype model_weight_dtype(const model *m);
/* Return the size of the flat arena including padding, in units of 4 bytes whatever its type, and its device
 * address. */
int64_t model_arena_floats(const model *m);
/* Return the size of its first part, which has the trained parameters (parameter_spec.fixed). */
int64_t model_trained_floats(const model *m);
float *model_arena(const model *m);
/* Return a hash of the weights as read from a folder: of the file, if the folder has a manifest. Otherwise it is of the
 * arena's types, and depends on neither the file's order nor the backend. 0: not read from a folder. */
uint64_t model_digest(const model *m);
/* Create or update the bf16 copy (round to nearest even); complete on return. For an adapter: that of its base. Code that changes
 * the arena updates the copy itself (adamw's `narrow`) or calls this. STATUS_UNSUPPORTED: packed weights. STATUS_NOMEM. */
status model_update_bf16_copy(model *m, error *err);
/* Return the copy's device address, model_arena_floats elements; NULL before model_update_bf16_copy. */
uint16_t *model_bf16_weights(const model *m);
int model_tensor_count(const model *m);
const parameter_spec *model_parameter(const model *m, int index);
/* Return the offset of a parameter in the arena, in the same units. */
int64_t model_parameter_offset(const model *m, int index);
/* Fill spans (with room for all parameters) with the rows of each trained parameter, in arena order, for ops that work
 * by tensor and row. Return the numbers of parameters and rows. */
void model_row_spans(const model *m, row_span *spans, int64_t *tensors, int64_t *rows);
/* Return what a session keeps, and the floats of its slot. */
const state_list *model_states(const model *m);
int64_t model_state_floats(const model *m);
/* Return what a row of a training batch passes on to the next (architecture.h). */
const state_list *model_carried(const model *m);

/* Build and compile the forward of a spec, and with spec->train.backward the backward. Parameters are bound to the
 * model's arena; with spec->bf16 those of rank 2 and more to its bf16 copy. `gradients`: an arena in the layout of the
 * parameters, zeroed by its owner, that receives gradients; NULL: they are in the plan. Fixed parameters and those that
 * the loss does not depend on are neither written there nor outputs. pool: the state pool of a recurrent spec, slots *
 * model_state_floats.
 *
 * STATUS_INVALID: the spec is empty (batch, length, slots), requests a backward without a loss or in the recurrent
 * form, or lacks its pool or its bf16 copy. STATUS_UNSUPPORTED: a backward of packed weights, scores of an architecture
 * without them, bf16 in the recurrent form or on a backend without it, or explanations of an adapter. */
status model_plan(plan **out, const model *m, const forward_spec *spec, float *gradients, float *pool, error *err);
/* Return the last node of such a plan that writes the i-th parameter's gradient; -1: none. */
int model_gradient_node(const model *m, const plan *p, int index);

#endif
