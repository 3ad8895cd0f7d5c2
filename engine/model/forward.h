/* forward.h - a request to a model: the phase, the shape and the outputs. */
#ifndef ENGINE_MODEL_FORWARD_H
#define ENGINE_MODEL_FORWARD_H

#include <string.h>

#include "engine/model/port.h"

/* The way in which tokens access what was read before them. */
typedef enum phase {
	PHASE_SCORE, /* whole sequences at once, without previous state: training, evaluation */
	PHASE_STEP,  /* up to N more tokens for each of B slots of the state pool */
	PHASE_READ,  /* any number of tokens per slot, stored one sequence after the other, N tokens in
	              * total */
	PHASE_ENCODE /* a source of S tokens for each of B slots, which decoders read there; no tokens, no outputs */
} phase;

/* Rows for which a forward computes logits. */
typedef enum logits_rows { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL } logits_rows;

/* Contents of PORT_EMBEDDING for a sequence. */
typedef enum pooling {
	POOL_NONE, /* no embedding */
	POOL_LAST, /* hidden vector of the row `last` */
	POOL_MEAN, /* mean over the unmasked tokens up to that row */
	POOL_END   /* like POOL_LAST, for a class head whose row `last` is that of model_dims.end */
} pooling;

/* The attribution of a score, the sum of a row's logits times PORT_COEFFICIENTS, to the tokens (attribution.h). */
typedef enum attribution {
	ATTRIBUTION_NONE,
	ATTRIBUTION_FROZEN,  /* exact parts, through the network with constant norms, attention weights and gates */
	ATTRIBUTION_GRADIENT /* by its gradient */
} attribution;

/* Outputs of the head. */
typedef struct forward_outputs {
	logits_rows logits;
	int64_t rows; /* PHASE_SCORE with LOGITS_LAST: number of rows with logits; 0: one for each sequence */
	bool maxima;  /* with LOGITS_LAST: outputs their maxima, if the backend computes them */
	pooling embedding;
	bool activations; /* outputs vectors inside the layers, too */
} forward_outputs;

/* Requests of training and evaluation. */
typedef struct forward_training {
	bool loss;              /* takes labels, outputs loss and count */
	bool hits;              /* with loss: outputs which labels have the largest logit */
	bool log_probabilities; /* with loss: outputs those of the labels, before the weights are read */
	bool weighted;          /* with loss: takes a weight for each label's loss */
	bool backward;          /* outputs gradients of all parameters as "grad.NAME" */
	bool recompute;         /* with backward: recomputes activations of a layer instead of keeping them */
	bool dropout;           /* applies dropout, takes random numbers */
	bool carried;           /* inputs what earlier rows passed on (model_carried), outputs what these pass on */
	float smoothing;        /* label smoothing of the loss */
} forward_training;

/* Requests of explanations. */
typedef struct forward_explanation {
	bool log;                /* outputs what mixers give for explanations */
	attribution attribution; /* PHASE_SCORE with LOGITS_LAST or class logits */
	float share;             /* ATTRIBUTION_FROZEN: share of a gate's product credited to its first factor
	                          * (graph.h) */
} forward_explanation;

/* Listed input [B, rows, D]: rows before the tokens. */
#define FORWARD_ROWS_BEFORE "before"

/* An input in memory of the caller, or an input that only one architecture has, which is absent unless listed. */
typedef struct forward_input {
	const char *name; /* a port's (port_name), or the architecture's; NULL ends a list */
	int64_t rows;     /* for an architecture's input with any number of rows */
	void *data;       /* NULL: the plan allocates the input */
} forward_input;

typedef struct forward_spec {
	phase phase;
	int64_t batch, length;      /* B sequences of N tokens (PHASE_READ: N in total; unused in PHASE_ENCODE) */
	int64_t slots;              /* for the state pool; unused in PHASE_SCORE */
	int64_t source;             /* S, for models that read a source: its tokens, or rows if there is no encoder;
	                             * PHASE_SCORE and PHASE_ENCODE */
	bool masked, source_masked; /* has PORT_MASK, PORT_SOURCE_MASK */
	bool initial_states; /* recurrent form: a slot may start from an adapter's state (adapter.h, PORT_STARTED) */
	bool adapters;       /* recurrent form: tokens may have low-rank adapters (lora.h, PORT_ENTRY) */
	bool bf16;           /* reads matrices and tables, and keeps activations, in bf16; PHASE_SCORE only */
	forward_outputs out;
	forward_training train;
	forward_explanation explain;
	const forward_input *inputs; /* list that ends with a name NULL; NULL: none */
} forward_spec;

/* Return the listed input of that name, or NULL. */
static inline const forward_input *forward_find_input(const forward_spec *spec, const char *name)
{
	for (const forward_input *i = spec->inputs; i && i->name; i++)
		if (strcmp(i->name, name) == 0)
			return i;
	return NULL;
}

/* True if the forward reads and writes a state pool. */
static inline bool forward_recurrent(const forward_spec *spec)
{
	return spec->phase != PHASE_SCORE;
}

#endif
