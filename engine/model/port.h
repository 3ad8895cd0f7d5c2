/* port.h - the named inputs and outputs of a forward.
 *
 * A port has a role, which defines its meaning, and a name in the graph. The architecture and the phase determine which
 * ports exist; a role without a port is VALUE_NONE. Shapes: B sequences of N tokens, or [1, N] in total where sequences
 * are stored one after the other (PHASE_READ); D hidden width, V outputs of the head.
 *
 * A forward also has outputs with other names: what a layer's mixer gives for explanations ("layers.L.…",
 * mixers/mixer.h) and "grad.NAME" of every parameter. All outputs are f32. With bf16 the logits, the hidden vectors and
 * "pooled" have been rounded to bf16; losses and scores have not. */
#ifndef ENGINE_MODEL_PORT_H
#define ENGINE_MODEL_PORT_H

#include "engine/tensor/graph.h"

typedef enum port_role {
	/* inputs, int32 */
	PORT_TOKENS,    /* "input_ids" [B, N] */
	PORT_POSITIONS, /* "position_ids" [B, N]: rows of the position table, if the model has one */
	PORT_MASK,      /* "attention_mask" [B, N]: 0 where there is no token */
	PORT_LABELS,    /* "labels" [B, N]: the token after or at token i; HEAD_CLASSES: [B]; -1: none */
	PORT_RANDOM,    /* "rng" [4]: seed and step of dropout (ops.h) */
	PORT_SLOT,      /* "slot" [B] of the state pool */
	PORT_POSITION,  /* "position" [B]: tokens that the slot, or with spec.train.carried the row, has read */
	PORT_STARTED,   /* "started" [B]: the position; 1 for 0 where the slot has a state (spec.initial_states) */
	PORT_LENGTH,    /* "length" [B]: tokens to read */
	PORT_START,     /* "start" [B]: index of the first token (PHASE_READ) */
	PORT_LAST,      /* "last" [B] or [rows]: flat rows b * N + n of tokens whose logits are requested, or of the
	                 * last ones */
	PORT_ENTRY,     /* "entry" as PORT_TOKENS, [.., 1]: the entry of each token's adapter; 0: none (spec.adapters) */
	PORT_SOURCE,    /* "source_ids" [B, S]: input of an encoder */
	PORT_SOURCE_POSITIONS, /* "source_position_ids" [B, S]: rows of its position table */
	PORT_SOURCE_MASK,      /* "source_mask" [B, S] */
	PORT_MEMORY_MASK,      /* "memory_mask" [B, M + m + N] for the keys of self-attention: M carried rows, m memory
	                        * tokens, N tokens */
	/* inputs, f32 */
	PORT_SOURCE_ROWS, /* "source_rows" [B, S, D]: an encoded source */
	PORT_MEMORY, /* "memory.L" [B, M, D] of layer L: rows of earlier segments; output "next.memory.L": rows for the
	              * next one */
	PORT_COEFFICIENTS,  /* "coefficients" [B, V] of the logits in the score (forward_spec.explain.attribution) */
	PORT_FACTOR,        /* "factor" []: multiplies the word vectors less PORT_BASELINE */
	PORT_BASELINE,      /* "baseline" [D]: the vector of every token at factor 0, for ATTRIBUTION_GRADIENT */
	PORT_LABEL_WEIGHTS, /* "label_weights" of the shape of the labels: factors of their losses, of any sign */
	/* outputs, f32 */
	PORT_LOGITS,    /* "logits" [B, N, V]; for the rows `last`: [B, V], [rows, V] */
	PORT_MAXIMA,    /* "maxima" of these (ops.h, linear) */
	PORT_HIDDEN,    /* "hidden" [B, D]: the vectors from which these logits are computed */
	PORT_EMBEDDING, /* "embedding" [B, D] */
	PORT_ENCODINGS, /* "encodings" [B, S, D]: an encoder's output */
	PORT_LOSS,      /* "loss" []: mean over the labels, weighted or not */
	PORT_COUNT,     /* "count" []: number of labels */
	PORT_HITS,      /* "hits" [labels]: 1 if the label has the largest logit, the first of equals; otherwise 0 */
	PORT_LOG_PROBABILITIES, /* "log_probabilities" [labels]: of each label; 0 where there is none */
	/* parts of the score (attribution.h) */
	PORT_WORD_PARTS,      /* "parts.words" [B · N] */
	PORT_WORDS,           /* "words" [B, N, D]: the word vectors, for ATTRIBUTION_GRADIENT */
	PORT_WORD_SQUARES,    /* "words.squares" [B · N]: ‖word vector‖², if a norm reads nothing else */
	PORT_POSITION_PARTS,  /* "parts.positions" [B · N], for models with position tables */
	PORT_BIAS_PARTS,      /* "parts.biases" [B · N] */
	PORT_LAST_PARTS,      /* "parts.last" [B] */
	PORT_HEAD_PARTS,      /* "parts.head" [B] */
	PORT_ATTENTION_PARTS, /* "parts.attention" [B · N] */
	/* [B · S], for a source's tokens */
	PORT_SOURCE_WORD_PARTS,      /* "parts.source.words" */
	PORT_SOURCE_POSITION_PARTS,  /* "parts.source.positions" */
	PORT_SOURCE_BIAS_PARTS,      /* "parts.source.biases" */
	PORT_SOURCE_ATTENTION_PARTS, /* "parts.source.attention" */
	PORT_ROLES
} port_role;

const char *port_name(port_role role);
/* Return the port of a graph with that role, or VALUE_NONE. */
value port_find(const graph *g, port_role role);
/* Return the last dimension of that port; 0: the graph has no such port. */
int64_t port_width(const graph *g, port_role role);

#endif
