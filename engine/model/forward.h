/* forward.h - a request to a model: the phase, the shape and the outputs. */
#ifndef ENGINE_MODEL_FORWARD_H
#define ENGINE_MODEL_FORWARD_H

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

/* Caller's memory for an input (plan_binding). */
typedef struct forward_input {
	port_role role;
	void *data;
} forward_input;

typedef struct forward_spec {
	phase phase;
	int64_t batch, length; /* B sequences of N tokens (PHASE_READ: N in total; unused in PHASE_ENCODE) */
	int64_t slots;         /* for the state pool; unused in PHASE_SCORE */
	int64_t source;        /* S, for models that read a source: its tokens, or rows if there is no encoder;
	                        * PHASE_SCORE and PHASE_ENCODE */
	int64_t before;        /* P: rows before the tokens */
	int64_t memory;        /* M: rows of earlier segments for each layer (PORT_MEMORY); PHASE_SCORE */
	bool masked;           /* has a mask */
	bool source_masked, source_kept;   /* have PORT_SOURCE_MASK, PORT_SOURCE_KEPT */
	bool key_masked, restricted, kept; /* have PORT_KEY_MASK, PORT_VISIBLE, PORT_KEPT */
	bool source_restricted;            /* has PORT_SOURCE_VISIBLE, PORT_CROSS_VISIBLE */
	bool memories;                     /* outputs the rows that the next segment attends to */
	bool carried;                      /* inputs what earlier rows passed on (model_carried), outputs what these
	                                    * pass on */
	bool dropout;                      /* training: applies dropout, takes random numbers */
	bool loss;                         /* takes labels, outputs loss and count */
	bool hits;                         /* with loss: outputs which labels have the largest logit */
	bool backward;                     /* outputs gradients of all parameters as "grad.NAME" */
	bool recompute;          /* with backward: recomputes activations of a layer instead of keeping them */
	attribution attribution; /* PHASE_SCORE with LOGITS_LAST or class logits */
	float share;             /* ATTRIBUTION_FROZEN: share of a gate's product credited to its first factor
	                          * (graph.h) */
	bool explain;            /* outputs what mixers give for explanations */
	bool activations;        /* outputs vectors inside the layers, too */
	bool bf16;               /* reads matrices and tables, and keeps activations, in bf16; PHASE_SCORE only */
	bool maxima;             /* with LOGITS_LAST: outputs their maxima, if the backend computes them */
	logits_rows logits;
	int64_t rows; /* PHASE_SCORE with LOGITS_LAST: number of rows with logits; 0: one for each sequence */
	pooling embedding;
	float smoothing;             /* label smoothing of the loss */
	const forward_input *inputs; /* inputs placed by the caller, if the graph has them; others are in the plan */
	int n_inputs;
} forward_spec;

/* True if the forward reads and writes a state pool. */
static inline bool forward_recurrent(const forward_spec *spec)
{
	return spec->phase != PHASE_SCORE;
}

#endif
