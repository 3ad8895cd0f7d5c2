/* forward.h - what is asked of a model: which phase, of what shape, with which outputs. */
#ifndef ENGINE_MODEL_FORWARD_H
#define ENGINE_MODEL_FORWARD_H

#include "engine/model/port.h"

/* How tokens meet what was read before them. */
typedef enum phase {
	PHASE_SCORE, /* whole sequences, all at once and afresh: training, evaluation */
	PHASE_STEP,  /* up to N more tokens for each of B slots of the state pool */
	PHASE_READ,  /* the same for tokens of any number per slot, one sequence behind the other, N tokens in all */
	PHASE_ENCODE /* a source of S tokens for each of B slots, which decoders read there; no tokens, no outputs */
} phase;

/* Which logits a forward computes. */
typedef enum logits_rows { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL } logits_rows;

/* What PORT_EMBEDDING holds of a sequence. */
typedef enum pooling {
	POOL_NONE, /* there is none */
	POOL_LAST, /* the hidden vector of the row `last` */
	POOL_MEAN, /* the mean over the unmasked tokens up to that row */
	POOL_END   /* as POOL_LAST, of a head for classes whose row `last` is that of model_dims.end */
} pooling;

/* How a score, the sum of the logits of a row times PORT_COEFFICIENTS, is led back to the tokens (attribution.h). */
typedef enum attribution {
	ATTRIBUTION_NONE,
	ATTRIBUTION_FROZEN,  /* through the network with constant norms, attention weights and gates: its exact parts */
	ATTRIBUTION_GRADIENT /* by its gradient */
} attribution;

/* Where the caller has memory for an input (plan_binding). */
typedef struct forward_input {
	port_role role;
	void *data;
} forward_input;

typedef struct forward_spec {
	phase phase;
	int64_t batch, length; /* B sequences, N tokens each (PHASE_READ: in all; not of PHASE_ENCODE) */
	int64_t slots;         /* in the state pool; not of PHASE_SCORE */
	int64_t source;        /* S, of models that read a source: tokens of it, or rows if they have no encoder;
	                        * PHASE_SCORE and PHASE_ENCODE */
	int64_t before;        /* P: rows in front of the tokens */
	int64_t memory;        /* M: rows of earlier segments for each layer (PORT_MEMORY), PHASE_SCORE */
	bool masked;           /* takes a mask */
	bool source_masked, source_kept;   /* takes PORT_SOURCE_MASK, PORT_SOURCE_KEPT */
	bool key_masked, restricted, kept; /* takes PORT_KEY_MASK, PORT_VISIBLE, PORT_KEPT */
	bool source_restricted;            /* takes PORT_SOURCE_VISIBLE, PORT_CROSS_VISIBLE */
	bool memories;                     /* gives the rows that the next segment attends to */
	bool carried;                      /* takes what earlier rows left (model_carried), gives what these leave */
	bool dropout;                      /* training: dropout on, takes random numbers */
	bool loss;                         /* takes labels, gives loss and count */
	bool hits;                         /* with loss: which labels have the largest logit */
	bool backward;                     /* gradients of all parameters as outputs "grad.NAME" */
	bool recompute;          /* with backward: activations of a layer are computed again instead of kept */
	attribution attribution; /* PHASE_SCORE with LOGITS_LAST or logits of classes */
	float share;             /* ATTRIBUTION_FROZEN: of a product in a gate, what its first factor gets (graph.h) */
	bool explain;            /* what the mixers give for explanations, as outputs */
	bool activations;        /* vectors inside the layers as outputs too */
	bool bf16;               /* matrices and tables are read, and activations kept, in bf16; PHASE_SCORE only */
	bool maxima;             /* with LOGITS_LAST: their maxima as an output, where the backend gives them */
	logits_rows logits;
	int64_t rows; /* PHASE_SCORE with LOGITS_LAST: of how many tokens; 0: one of each sequence */
	pooling embedding;
	float smoothing; /* label smoothing of the loss */
	const forward_input
	    *inputs; /* those that the caller places, if the graph has them; the others lie in the plan */
	int n_inputs;
} forward_spec;

/* Does it read and write a state pool? */
static inline bool forward_recurrent(const forward_spec *spec)
{
	return spec->phase != PHASE_SCORE;
}

#endif
