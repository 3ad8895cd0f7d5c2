/* architecture.h - the interface of a model architecture.
 *
 * An architecture is one file in architectures/. It describes its configuration and its parameters, composes its layers
 * from mixers (mixers/mixer.h), and appends its computation to a graph. The same `forward` builds training, evaluation,
 * prefill, decode and explanation, as a forward_spec requests, so a model is written once. Every source in that folder
 * defines the constant `architecture_NAME`; the build makes the list of them. Everything here is immutable and
 * thread-safe. */
#ifndef ENGINE_MODEL_ARCHITECTURE_H
#define ENGINE_MODEL_ARCHITECTURE_H

#include <jansson.h>

#include "engine/model/builder.h"
#include "engine/model/form.h"
#include "engine/model/mixers/mixer.h"

enum { ARCHITECTURE_MAX_LAYERS = 256 };

/* model_dims.positions of a model without a limit on sequences; tokens are counted in int32. */
#define MODEL_UNBOUNDED ((int64_t)INT32_MAX)

/* Dimensions that every model has, independent of the keys of its configuration. */
typedef struct model_dims {
	const model_form *form;
	int64_t inputs;  /* number of token ids */
	int64_t outputs; /* width of the head */
	int64_t hidden, layers, heads;
	int64_t other_layers;      /* layers of the encoder in a model with two stacks; layers and heads describe the
	                            * decoder */
	pooling pool;              /* for a classifier: the pooling that the head reads */
	int64_t source;            /* maximum tokens of a source; 0: no encoder, the caller provides encoded rows */
	int64_t source_inputs;     /* number of token ids of a source */
	const char *parallel_only; /* for a stepwise model that sessions cannot read: the property that prevents it;
	                            * otherwise NULL */
	bool reads_padding;  /* masked tokens affect the result, so a sequence or source must have its own length */
	int64_t positions;   /* maximum tokens of a sequence: rows of the position table, or MODEL_UNBOUNDED */
	int64_t first_row;   /* row of position 0 in the position table */
	int64_t period;      /* token t uses row t mod period; 0: row t */
	int64_t segment;     /* tokens of a segment; PHASE_SCORE reads one segment; 0: whole sequences */
	bool by_segments;    /* a recurrent forward reads tokens of one segment of each sequence */
	int64_t trained;     /* tokens of the longest training sequence, past or planned; at most `positions` */
	int64_t mask;        /* mask token id (CONFIG_MASK); -1: none */
	int64_t start;       /* with form->source: start token id of every sequence (CONFIG_START); -1: none */
	int64_t carried;     /* floats that a row of text passes on to the next in training (architecture.carried) */
	bool carries_states; /* these floats are the state of a session */
	int64_t end;         /* with POOL_END: token id; the head reads the row of the last such token */
	bool shifted; /* a decoder reads the tokens a second time, one row later, including masked ones: row 0 is a
	               * start token, row j is token j - 1. In explanations the tokens are its source */
	bool scale_free; /* a factor of all word vectors hardly changes the result, as nothing is added to them before a
	                  * norm and no norm or layer has a bias */
	float dropout;
} model_dims;

/* Return the tokens of the longest sequence that PHASE_SCORE reads. */
static inline int64_t model_dims_length(const model_dims *d)
{
	return d->segment ? d->segment : d->positions;
}

/* Return how many of `left` tokens that follow `first` tokens of a sequence a recurrent forward reads; at most
 * `most`. */
static inline int64_t model_dims_piece(const model_dims *d, int64_t first, int64_t left, int64_t most)
{
	const int64_t in_segment = d->by_segments ? d->segment - first % d->segment : left;
	const int64_t n = left < most ? left : most;
	return n < in_segment ? n : in_segment;
}

/* Size of a new model, in terms common to all architectures. Zero (dropout: negative) means not given;
 * model_size_complete chooses. */
typedef struct model_size {
	int64_t parameters; /* approximate number in the layers; determines width and number of layers if not given */
	int64_t hidden, heads, layers;
	bool usual_heads;  /* model_size_complete has chosen the heads */
	int64_t inputs;    /* number of token ids */
	int64_t classes;   /* for a classifier */
	int64_t positions; /* maximum tokens of a sequence, for models with a limit */
	int64_t length;    /* tokens of the training sequences */
	int64_t source;    /* maximum tokens of a source, for models that encode one; 0: `positions` */
	int64_t padding;   /* padding token id; -1: none */
	int64_t end;       /* token id that ends a text; -1: none */
	double dropout;
	const model_form *form; /* required by the training; NULL: as the architecture has it */
} model_size;

/* Set absent members: 6 layers of width 128 and 4 heads, or the size for `parameters`: 12 · layers · d², with a layer
 * for each 64 of the width. */
void model_size_complete(model_size *s);

/* The explanation of one attention of a model. */
typedef struct attention_site {
	const explainer *explainer; /* NULL: it is not explained */
	const void *options;
	int64_t heads;
} attention_site;

typedef struct architecture architecture;
struct architecture {
	const char *name;       /* in the API: "additive" */
	const char *model_type; /* in config.json */
	size_t config_bytes;    /* size of a configuration: a struct that begins with its model_dims */
	/* Validate keys, types and ranges, and fill defaults. Called by architecture_read. Unknown keys are errors that
	 * name the key, except keys beginning with "_" and bookkeeping of the reference ecosystem ("architectures",
	 * "transformers_version", "torch_dtype", …). */
	status (*config_read)(void *config, const json_t *json, error *err);
	/* Add missing keys to the configuration of a new model. These are the keys that `size` (complete) determines,
	 * and those whose best measured value differs from config_read's fallback, which the reference's checkpoints
	 * need. False: out of memory. */
	bool (*complete)(json_t *json, const model_size *size);
	/* Return all keys in the form of config.json. New reference; NULL: out of memory. */
	json_t *(*config_write)(const void *config);
	void (*parameters)(const void *config, parameter_list *list);
	/* New models receive the count of each token in their training texts (model_set_counts). */
	bool counts_tokens;
	/* Prefix of all tensor names, which a checkpoint may omit; NULL: none. */
	const char *prefix;
	/* True for tensors in checkpoints that are not parameters and are skipped; NULL: none. */
	bool (*ignores)(const char *name);
	/* Return the mixer of a layer and its options, which are part of the configuration. */
	const mixer *(*mixer)(const void *config, int64_t layer, const void **options);
	/* Describe attention number `layer` of an encoder or to a source; false: there are fewer. NULL: none. */
	bool (*source_attention)(const void *config, attention_place place, int64_t layer, attention_site *out);
	/* Append the state of a session beyond that of the layers' mixers; NULL: none. */
	void (*states)(const void *config, state_list *list);
	/* Append what a row of a training batch passes on to the next row, all STATE_CARRIED; NULL: nothing. With
	 * forward_spec.train.carried the graph has, for each, an input NAME of B times its floats and an output
	 * "next.NAME" of the same shape. */
	void (*carried)(const void *config, state_list *list);
	/* A row passes on the state of a session instead, if all of it is recurrent. With forward_spec.train.carried the
	 * graph has the sessions' pool STATE_POOL with one slot for each row, which holds the row's initial and then
	 * its final state. */
	bool carries_states;
	/* Append the whole computation to b->g (without graph_backward). The graph already has every parameter of the
	 * list under its name. */
	void (*forward)(const void *config, builder *b);
};

/* Find by API name or by model_type; NULL: unknown. */
const architecture *architecture_find(const char *name);
/* Return the architecture of a config.json by its model_type (additive without one); NULL: unknown. */
const architecture *architecture_of(const json_t *config);
/* Return the i-th architecture in order of names; NULL past the end. */
const architecture *architecture_at(int index);

/* Read a configuration: config_read, then the keys common to all architectures (config.h). Errors name the key. */
status architecture_read(const architecture *a, void *config, const json_t *json, error *err);
/* Return the dimensions at the start of every configuration; borrowed. */
const model_dims *architecture_dims(const void *config);
/* Return the number of scalars in all parameters; -1: out of memory or over INT64_MAX. */
int64_t architecture_count_parameters(const architecture *a, const void *config);
/* Return the number of token ids that fit into all tables, those of a source included. */
int64_t model_dims_ids(const model_dims *d);
/* Record training on sequences of `length` tokens (at most dims.positions): raises dims.trained. */
void architecture_train_on(void *config, int64_t length);
/* List what a row passes on, in either form. */
void architecture_carried(const architecture *a, const void *config, state_list *list);
/* List what a session keeps: the states of the layers in order, then the architecture's own. *out starts zeroed;
 * out->status is STATUS_NOMEM when out of memory. */
void architecture_states(const architecture *a, const void *config, state_list *out);
/* Return the explainer of the layers; of several kinds one without scores, if there is one. NULL: an attention has
 * none, or their rounds differ. */
const explainer *architecture_explainer(const architecture *a, const void *config);
/* Describe attention number `layer` at a place; false: there are fewer. */
bool architecture_attention(const architecture *a, const void *config, attention_place place, int64_t layer,
                            attention_site *out);

#define ARCHITECTURE(name) extern const architecture architecture_##name;
#include "gen/architectures.def"
#undef ARCHITECTURE

#endif
