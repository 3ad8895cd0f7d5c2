/* model.h - a model: architecture, configuration and weights on a backend.
 *
 * On disk a model is a folder: config.json, model.safetensors (the architecture's
 * tensor names, f32), and tokenizer files (engine/text). Parameters live in one
 * flat arena, those that are trained first and each part in parameter order, each parameter beginning at a multiple of
 * 64 bytes; padding is zero.
 *
 * The weights have a type. With DTYPE_F32 every parameter lies in the arena as plain floats,
 * which an optimiser treats as one vector: such a model can be trained and saved. With a
 * panel type (panel.h) the matrices are packed when they are read and everything else
 * stays f32: such a model is for serving and can only be run.
 *
 * An f32 model may have a bf16 copy of its arena beside it: whole, with the same element offsets (so a parameter begins
 * at a multiple of 32 bytes). A forward in bf16 reads matrices and tables there, and vectors in the arena.
 * A model is read-only while served; a trainer owns the one it trains. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/model/architecture.h"
#include "engine/tensor/backend.h"
#include "engine/tensor/plan.h"

typedef struct model model;

/* Read a model folder for `weights`, DTYPE_F32 or a panel type. A config.json without model_type is of the first
 * architecture. Missing, extra or misshapen tensors are errors (STATUS_INVALID) naming the tensor as param; of tied
 * names one is enough, and two must hold the same data. Any number type is converted to f32; an element that is not
 * finite then, or so large that products overflow, is STATUS_INVALID naming tensor and element. What differs from the
 * folder's manifest.json, if it has one, is STATUS_STORAGE. model_loader.h does the same in steps. */
status model_open(model **out, const char *folder, dtype weights, backend *b, error *err);
/* A fresh f32 model initialised from `seed` (Philox, so the same everywhere).
 * config: the keys of config.json. */
status model_create(model **out, const architecture *a, const json_t *config, uint64_t seed, backend *b, error *err);
/* Another model of the same configuration, on the same backend, with the same weights. STATUS_UNSUPPORTED when they are
 * packed. */
status model_copy(model **out, const model *m, error *err);
/* Of a fresh model: its weights that follow from how often each token id is in its training texts; counts [inputs]. */
status model_set_counts(model *m, const int64_t *counts, error *err);
void model_free(model *m);

/* Write model.safetensors and config.json into an existing folder (each atomically, in
 * this order). Tied weights are written under the names that the reference writes.
 * STATUS_UNSUPPORTED when the weights are packed. */
status model_save(const model *m, const char *folder, error *err);
/* Check a folder as model_open would, all its data too, without a device. */
status model_check(const char *folder, error *err);

const architecture *model_architecture(const model *m);
const void *model_config(const model *m);
/* What explains its attention; NULL: nothing does. */
const explainer *model_explainer(const model *m);
/* Of the mixer of a layer. */
const void *model_mixer_options(const model *m, int64_t layer);
const model_dims *model_dimensions(const model *m);
/* What the classes of HEAD_CLASSES are called (class_names.h), kept by model_save; NULL of another head. */
const json_t *model_class_names(const model *m);
/* Note that the model is trained on sequences of `length` tokens, at most its positions. */
void model_train_on(model *m, int64_t length);
backend *model_backend(const model *m);
/* Number of scalars without padding. */
int64_t model_scalar_count(const model *m);
dtype model_weight_dtype(const model *m);
/* The flat arena: its size including padding, in units of 4 bytes whatever it holds, and its device address. */
int64_t model_arena_floats(const model *m);
/* Of these the first so many hold the parameters that are trained (parameter_spec.fixed). */
int64_t model_trained_floats(const model *m);
float *model_arena(const model *m);
/* Of the weights as they were read from a folder, in the arena's types: it depends on neither the order of the file nor
 * the backend. 0: they were not read from a folder. */
uint64_t model_digest(const model *m);
/* Make the bf16 copy, or bring it up to date with the arena (nearest even), complete on return. Code that changes
 * the arena keeps the copy (adamw's `narrow`) or calls this. STATUS_UNSUPPORTED: packed weights. STATUS_NOMEM. */
status model_update_bf16_copy(model *m, error *err);
/* The copy's device address, model_arena_floats elements; NULL before model_update_bf16_copy. */
uint16_t *model_bf16_weights(const model *m);
int model_tensor_count(const model *m);
const parameter_spec *model_parameter(const model *m, int index);
/* Offset of a parameter in the arena, in the same units. */
int64_t model_parameter_offset(const model *m, int index);
/* Fill spans (room for all parameters) with the rows of each trained parameter, in the order of the arena, for the ops
 * that go by tensors and rows; how many parameters and rows these are. */
void model_row_spans(const model *m, row_span *spans, int64_t *tensors, int64_t *rows);
/* What a session keeps, and the floats of its slot. */
const state_list *model_states(const model *m);
int64_t model_state_floats(const model *m);
/* What a row of a training batch carries to the next (architecture.h). */
const state_list *model_carried(const model *m);

/* Build and compile the forward (and with spec->backward the backward) of a spec.
 * Parameters are bound to the model's arena, with spec->bf16 those of rank 2 and more to its bf16 copy; with
 * `gradients` (an arena laid out like the parameters, zeroed by its owner) gradients are written there instead of into
 * the plan. A parameter that is fixed, or that the loss does not depend on, is neither written there nor an output.
 * pool: the state pool for a recurrent spec, slots * model_state_floats. STATUS_INVALID: the spec is empty (batch,
 * length, slots), asks for a backward without a loss or in the recurrent form, or lacks its pool, or its bf16 copy.
 * STATUS_UNSUPPORTED: a backward of packed weights, scores of an architecture that has none, bf16 in the recurrent form
 * or on a backend that lacks it. */
status model_plan(plan **out, const model *m, const forward_spec *spec, float *gradients, float *pool, error *err);
/* The node of such a plan with a backward that is the last to write the i-th parameter's gradient; -1: it has none. */
int model_gradient_node(const model *m, const plan *p, int index);

#endif
