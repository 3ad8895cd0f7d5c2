/* architecture.h - what a kind of model gives the engine.
 *
 * An architecture is one file in architectures/ that describes its configuration and its parameters, composes its
 * layers of mixers (mixers/mixer.h), and appends its computation to a graph. Training, evaluation, prefill, decode and
 * explanation are all built by the same `forward`, asked for by a forward_spec, so a model is written once. Every
 * source in that folder defines the const architecture `architecture_NAME`; the list of them is made by the build.
 * Everything here is immutable and thread-safe. */
#ifndef ENGINE_MODEL_ARCHITECTURE_H
#define ENGINE_MODEL_ARCHITECTURE_H

#include <jansson.h>

#include "engine/model/builder.h"
#include "engine/model/mixers/mixer.h"

enum { ARCHITECTURE_MAX_LAYERS = 256 };

/* model_dims.positions of a model whose sequences have no bound of its own: tokens are counted in int32. */
#define MODEL_UNBOUNDED ((int64_t)INT32_MAX)

/* What a model makes of the last hidden vectors. */
typedef enum head_kind {
	HEAD_VOCABULARY, /* logits of the next token, for each token */
	HEAD_CLASSES     /* logits of classes, for each sequence: labels and logits [B], [B, V] (port.h) */
} head_kind;

/* What every model has, whatever its keys are called. */
typedef struct model_dims {
	int64_t inputs;  /* token ids */
	int64_t outputs; /* width of the head */
	int64_t hidden, layers, heads;
	int64_t other_layers; /* of the encoder of a model that has two stacks; layers and heads are the decoder's */
	head_kind head;
	pooling pool;          /* of HEAD_CLASSES: what the head reads of a sequence */
	bool causal;           /* no token depends on later ones, so sessions can read it token by token */
	bool reads_source;     /* it attends to a source beside its tokens (forward_spec.source) */
	int64_t source;        /* tokens that a source may have; 0: there is no encoder, which makes rows of them */
	int64_t source_inputs; /* token ids of a source */
	const char *whole; /* what the model has that leaves it no recurrent form, though it is causal; NULL: nothing */
	bool
	    reads_padding; /* masked tokens take part: a sequence, or a source, has its values only at its own length */
	int64_t positions; /* tokens that a sequence may have: rows of the position table, or MODEL_UNBOUNDED */
	int64_t first_row; /* of the position table: that of position 0 */
	int64_t period;    /* token t has the row of t mod period; 0: of t */
	int64_t segment;   /* a sequence is read in segments of so many tokens: PHASE_SCORE reads one; 0: as a whole */
	bool by_segments;  /* a recurrent forward reads tokens of one segment of each sequence */
	int64_t trained;   /* tokens of the longest sequence that it was trained on, or is to be; at most `positions` */
	int64_t mask;      /* token id that stands for one to be guessed (CONFIG_MASK); -1: none is given */
	int64_t start; /* of reads_source: token id that every sequence begins with (CONFIG_START); -1: none is given */
	int64_t carried;     /* floats that a row of text leaves to the next in training (architecture.carried) */
	bool carries_states; /* these are the state of a session */
	int64_t end;         /* of POOL_END: token id; the row of a sequence is that of the last such token */
	bool shifted; /* a decoder reads the tokens a second time, one row later and masked ones too: row 0 is of a
	               * start token, row j of token j - 1. In explanations the tokens are its source */
	float dropout;
} model_dims;

/* Tokens of the longest sequence that PHASE_SCORE reads. */
static inline int64_t model_dims_length(const model_dims *d)
{
	return d->segment ? d->segment : d->positions;
}

/* Of `left` tokens behind `first` tokens of a sequence, those that a recurrent forward reads; at most `most`. */
static inline int64_t model_dims_piece(const model_dims *d, int64_t first, int64_t left, int64_t most)
{
	const int64_t in_segment = d->by_segments ? d->segment - first % d->segment : left;
	const int64_t n = left < most ? left : most;
	return n < in_segment ? n : in_segment;
}

/* How large a new model is to be, in words that every architecture understands. Zeros (dropout: negative) are not
 * given; model_size_complete chooses. */
typedef struct model_size {
	int64_t parameters; /* about so many in the layers; decides width and number of layers that are not given */
	int64_t hidden, heads, layers;
	int64_t inputs;    /* token ids */
	int64_t classes;   /* of HEAD_CLASSES */
	int64_t positions; /* tokens that a sequence may have, where the model bounds them */
	int64_t length;    /* tokens of the sequences that it is trained on */
	int64_t source;    /* tokens that a source may have, of models that encode one; 0: `positions` */
	int64_t padding;   /* token id that stands behind short sequences; -1: none */
	int64_t end;       /* token id that ends a text; -1: none */
	double dropout;
} model_size;

/* Fill in what is not given: 6 layers of width 128 and 4 heads, or what suits `parameters`: 12 layers d² with a layer
 * for each 64 of the width. */
void model_size_complete(model_size *s);

/* How one attention of a model is explained. */
typedef struct attention_site {
	const explainer *explainer; /* NULL: it is not */
	const void *options;
	int64_t heads;
} attention_site;

typedef struct architecture architecture;
struct architecture {
	const char *name;       /* in the API: "additive" */
	const char *model_type; /* in config.json */
	size_t config_bytes;    /* of a configuration: a struct that begins with its model_dims */
	/* Validate keys, types and ranges; fill defaults: called by architecture_read. Unknown keys are an error
	 * naming the key, except keys beginning with "_" and the reference ecosystem's
	 * bookkeeping ("architectures", "transformers_version", "torch_dtype", …). */
	status (*config_read)(void *config, const json_t *json, error *err);
	/* Add to the configuration of a new model the keys that it lacks: those that `size`, which is complete,
	 * decides, and those whose best value, by measurement, is not what config_read falls back to for the
	 * reference's checkpoints. False: out of memory. */
	bool (*complete)(json_t *json, const model_size *size);
	/* All keys, as config.json holds them. New reference; NULL when out of memory. */
	json_t *(*config_write)(const void *config);
	void (*parameters)(const void *config, parameter_list *list);
	/* New models are given how often each token is in their training texts (model_set_counts). */
	bool counts_tokens;
	/* What all tensor names begin with, in case that a checkpoint leaves it out; NULL: nothing. */
	const char *prefix;
	/* Tensors in checkpoints that are not parameters and are skipped; NULL: none. */
	bool (*ignores)(const char *name);
	/* The mixer of a layer and its options, which are part of the configuration. */
	const mixer *(*mixer)(const void *config, int64_t layer, const void **options);
	/* Attention number `layer` of an encoder, or to a source; false: there are fewer. NULL: there are none. */
	bool (*source_attention)(const void *config, attention_place place, int64_t layer, attention_site *out);
	/* State of a session beside that of the layers' mixers, behind it; NULL: there is none. */
	void (*states)(const void *config, state_list *list);
	/* What a row of a training batch leaves to the row behind it, all STATE_CARRIED; NULL: nothing. With
	 * forward_spec.carried the graph has for each an input NAME of B times its floats, and an output "next.NAME" of
	 * the same shape. */
	void (*carried)(const void *config, state_list *list);
	/* Or: it leaves what a session keeps, all of it recurrent. With forward_spec.carried the graph has the pool of
	 * sessions, STATE_POOL, with a slot for each row, which holds first what the row begins with and then what it
	 * leaves. */
	bool carries_states;
	/* Append the whole computation to b->g (without graph_backward). Every parameter of the list is in the graph
	 * already, under its name. */
	void (*forward)(const void *config, builder *b);
};

/* By API name or by model_type; NULL when unknown. */
const architecture *architecture_find(const char *name);
/* That of a config.json: by its model_type, or additive when it has none; NULL when unknown. */
const architecture *architecture_of(const json_t *config);
/* The i-th architecture, in the order of their names; NULL past the end. */
const architecture *architecture_at(int index);

/* Read a configuration: config_read, and the keys that every architecture has (config.h). Errors name the key. */
status architecture_read(const architecture *a, void *config, const json_t *json, error *err);
/* The dimensions with which every configuration begins; borrowed. */
const model_dims *architecture_dims(const void *config);
/* Scalars of all parameters of a configuration; -1 when out of memory or over INT64_MAX. */
int64_t architecture_count_parameters(const architecture *a, const void *config);
/* Token ids that a model has room for, of a source too. */
int64_t model_dims_ids(const model_dims *d);
/* Note that the model is trained on sequences of `length` tokens, at most dims.positions: dims.trained becomes that if
 * it was less. */
void architecture_train_on(void *config, int64_t length);
/* What the sessions of a configuration keep: of the layers in their order, then the architecture's own. Starts zeroed;
 * out->status is STATUS_NOMEM when out of memory. */
/* What a row leaves, of both kinds. */
void architecture_carried(const architecture *a, const void *config, state_list *list);
void architecture_states(const architecture *a, const void *config, state_list *out);
/* What explains the layers of a configuration; NULL when an attention cannot be explained, or a layer's not as that of
 * the others. */
const explainer *architecture_explainer(const architecture *a, const void *config);
/* Attention number `layer` at a place; false: there are fewer. */
bool architecture_attention(const architecture *a, const void *config, attention_place place, int64_t layer,
                            attention_site *out);

#define ARCHITECTURE(name) extern const architecture architecture_##name;
#include "gen/architectures.def"
#undef ARCHITECTURE

#endif
