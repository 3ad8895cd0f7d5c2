/* architecture.h - the mixer interface: what a language model gives the engine.
 *
 * An architecture is one file that describes its configuration and its parameters
 * and builds its computation as a graph. Training, evaluation, prefill, decode
 * and explanation are all built by the same `forward`, asked for by a
 * forward_spec, so a model is written once. Adding one: a file with a const
 * `architecture`, its declaration at the end of this header, and a line in
 * architecture.c's list. Everything here is immutable and thread-safe. */
#ifndef ENGINE_MODEL_ARCHITECTURE_H
#define ENGINE_MODEL_ARCHITECTURE_H

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/tensor/ops.h"

enum { ARCHITECTURE_MAX_LAYERS = 256 };

/* model_dims.positions of a model whose sequences have no bound of its own: tokens are counted in int32. */
#define MODEL_UNBOUNDED ((int64_t)INT32_MAX)

/* What every language model has, whatever its keys are called. */
typedef struct model_dims {
	int64_t vocab, hidden, layers, heads;
	int64_t positions; /* tokens that a sequence may have: rows of the position table, or MODEL_UNBOUNDED */
	int64_t trained;   /* tokens of the longest sequence that it was trained on, or is to be; at most `positions` */
	float dropout;
} model_dims;

/* How a parameter is initialised. */
typedef enum parameter_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } parameter_init;

typedef struct parameter_spec {
	char name[128]; /* tensor name in the checkpoint */
	shape shape;    /* in the graph; of a matrix: [outputs, inputs] */
	parameter_init init;
	float std;          /* INIT_NORMAL */
	bool matrix;        /* read by linear, linear_cross_entropy and gather only, so it may be packed (panel.h) */
	bool transposed;    /* the checkpoint holds [inputs, outputs] */
	char alias[128];    /* a second checkpoint name holding the same data (tied weights), or "" */
	bool alias_written; /* under both names */
} parameter_spec;

/* The shape in the checkpoint; values from the checkpoint's layout to the graph's, and back. */
shape parameter_stored_shape(const parameter_spec *p);
void parameter_load(const parameter_spec *p, const float *stored, float *values);
void parameter_store(const parameter_spec *p, const float *values, float *stored);

/* Collects parameter_specs in order; grows as needed. Starts zeroed; `status` is
 * STATUS_NOMEM once an item could not be added. */
typedef struct parameter_list {
	parameter_spec *items;
	int count, capacity;
	status status;
} parameter_list;
void parameter_list_add(parameter_list *list, parameter_init init, float std, shape s, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* A matrix of n outputs and k inputs with values from N(0, std²). */
void parameter_list_add_matrix(parameter_list *list, float std, int64_t n, int64_t k, bool transposed,
                               const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Give the last one added a second name; `written`: checkpoints that we write hold it under both. */
void parameter_list_alias(parameter_list *list, const char *alias, bool written);
void parameter_list_free(parameter_list *list);

/* Which logits a forward computes. */
typedef enum logits_rows { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL } logits_rows;

/* Where the caller has memory for an input (plan_binding). */
typedef struct forward_input {
	const char *name;
	void *data;
} forward_input;

typedef struct forward_spec {
	int64_t batch, length; /* B sequences, N tokens each */
	bool recurrent;        /* read N more tokens into session slots instead of starting afresh */
	bool ragged;           /* recurrent: B sequences of any lengths, one behind the other, N tokens in all */
	int64_t slots;         /* recurrent: slots in the state pool */
	bool masked;           /* takes an attention_mask */
	bool dropout;          /* training: dropout on, takes rng */
	bool loss;             /* takes labels, gives loss */
	bool backward;         /* gradients of all parameters as outputs "grad.NAME" */
	bool recompute;        /* with backward: activations of a layer are computed again instead of kept */
	bool explain;          /* scores and log-normalisers as outputs */
	bool pooled;           /* pooled vectors as outputs too */
	bool bf16;             /* matrices and tables are read, and activations kept, in bf16; not recurrent */
	bool maxima;           /* with LOGITS_LAST: their maxima as an output, where the backend gives them */
	logits_rows logits;
	float smoothing; /* label smoothing of the loss */
	const forward_input
	    *inputs; /* those that the caller places, if the graph has them; the others lie in the plan */
	int n_inputs;
} forward_spec;

/* Names of a forward's inputs and outputs in the graph.
 * Inputs (those the spec asks for):
 *   "input_ids" [i32] [B,N], "position_ids" [i32] [B,N] (rows of the position table; absent from models without one),
 *   "attention_mask" [i32] [B,N], "labels" [i32] [B,N] (already shifted: labels[i] is
 *   the token after i, negative = ignored), "rng" [i32] [4];
 *   recurrent: "slot", "position", "length" [i32] [B], and the state "pool"
 *   [slots, state_floats]; ragged: "start" [i32] [B] (ops.h), and tokens are [1,N] where
 *   they are [B,N] here;
 *   LOGITS_LAST: "last" [i32] [B], the flat rows b * N + n whose logits are wanted, filled
 *   by the caller: n = length[b] - 1 (recurrent) or N - 1, or the last token before the
 *   padding; ragged: start[b] + length[b] - 1. The vocabulary product then runs on these B rows only.
 * Outputs: "logits" [B,N,V] or [B,V], "loss" [], "count" [] (tokens that counted), and
 *   per layer l and round r: "layers.l.r.score", "layers.l.r.log_normalizer" [B,N,H],
 *   "layers.l.r.pooled" [B,N,d]; "hidden" [B,d] and "maxima" (ops.h, linear) with LOGITS_LAST.
 * All outputs are f32. With bf16 the logits, "hidden" and "pooled" have been rounded to bf16 before (the product with
 * the vocabulary writes bf16: half the bytes, and nothing that is trained on passes there); loss and scores have not.
 */

typedef struct architecture architecture;
struct architecture {
	const char *name;       /* in the API: "additive" */
	const char *model_type; /* in config.json */
	size_t config_bytes;
	/* Validate keys, types and ranges; fill defaults. Unknown keys are an error
	 * naming the key, except keys beginning with "_" and the reference ecosystem's
	 * bookkeeping ("architectures", "transformers_version", "torch_dtype", …). */
	status (*config_read)(void *config, const json_t *json, error *err);
	/* Add to the configuration of a new model the keys that it lacks and whose best value, by measurement, is not what
	 * config_read falls back to for the reference's checkpoints. False: out of memory. NULL: there are none. */
	bool (*improve)(json_t *json);
	/* All keys, as config.json holds them. New reference; NULL when out of memory. */
	json_t *(*config_write)(const void *config);
	void (*dims)(const void *config, model_dims *out);
	/* Note that the model is trained on sequences of `length` tokens, at most dims.positions: dims.trained becomes
	 * that if it was less. */
	void (*train_on)(void *config, int64_t length);
	void (*parameters)(const void *config, parameter_list *list);
	/* What all tensor names begin with, in case that a checkpoint leaves it out; NULL: nothing. */
	const char *prefix;
	/* Tensors in checkpoints that are not parameters and are skipped; NULL: none. */
	bool (*ignores)(const char *name);
	/* Floats of recurrent state per session. Never depends on tokens read. */
	int64_t (*state_floats)(const void *config);
	/* Append the whole computation to g (without graph_backward). Every parameter of the list
	 * is in the graph already, under its name. */
	void (*forward)(const void *config, graph *g, const forward_spec *spec);
	/* Explanation: names of the attention rounds of a layer, and the window of a layer (0: global).
	 * An architecture without importance weights has no rounds and no window function. */
	const char *const *rounds;
	int n_rounds;
	int64_t (*window)(const void *config, int64_t layer);
};

/* By API name or by model_type; NULL when unknown. */
const architecture *architecture_find(const char *name);
/* The i-th architecture, NULL past the end. The first is the one that a config.json
 * without model_type means. */
const architecture *architecture_at(int index);

extern const architecture architecture_additive;
extern const architecture architecture_gpt2;

#endif
