/* port.h - the named inputs and outputs of a forward.
 *
 * A port has a role, which says what it means, and a name in the graph. Which ports a forward has depends on the
 * architecture and on the phase: the graph is the list, and a role that it lacks is VALUE_NONE. Shapes: B sequences of
 * N tokens, [1, N] in all where the sequences lie one behind the other (PHASE_READ); D hidden width, V outputs of the
 * head.
 *
 * Beside these a forward has outputs with names of their own: what a layer's mixer gives for explanations
 * ("layers.L.…", mixers/mixer.h) and "grad.NAME" of every parameter. All outputs are f32. With bf16 the logits, the
 * hidden vectors and "pooled" have been rounded to bf16 before; losses and scores have not. */
#ifndef ENGINE_MODEL_PORT_H
#define ENGINE_MODEL_PORT_H

#include "engine/tensor/graph.h"

typedef enum port_role {
	/* inputs, int32 */
	PORT_TOKENS,    /* "input_ids" [B, N] */
	PORT_POSITIONS, /* "position_ids" [B, N]: rows of the position table, of models that have one */
	PORT_MASK,      /* "attention_mask" [B, N]: 0 where no token is */
	PORT_LABELS,    /* "labels" [B, N], of token i what follows it or stands there; HEAD_CLASSES: [B]; -1: none */
	PORT_RANDOM,    /* "rng" [4]: seed and step of dropout (ops.h) */
	PORT_SLOT,      /* "slot" [B] of the state pool */
	PORT_POSITION,  /* "position" [B]: tokens that the slot, or with spec.carried the row, has read */
	PORT_LENGTH,    /* "length" [B]: tokens to read */
	PORT_START,     /* "start" [B]: where they begin (PHASE_READ) */
	PORT_LAST,      /* "last" [B] or [rows]: flat rows b * N + n, of tokens whose logits are wanted or last ones */
	PORT_SOURCE,    /* "source_ids" [B, S]: what an encoder reads */
	PORT_SOURCE_POSITIONS, /* "source_position_ids" [B, S]: rows of its position table */
	PORT_SOURCE_MASK,      /* "source_mask" [B, S] */
	PORT_SOURCE_KEPT,      /* "source_kept" [B, S]: those that the decoder attends to, in place of the mask */
	PORT_KEY_MASK,         /* "key_mask" [B, N]: of the keys of self-attention, in place of the mask */
	PORT_MEMORY_MASK,    /* "memory_mask" [B, M + m + N]: of the keys of self-attention, carried rows in front, then
	                      * those of m memory tokens */
	PORT_VISIBLE,        /* "visible" [B, H, N, N]: which keys (columns) a token sees of those that it could */
	PORT_SOURCE_VISIBLE, /* "source_visible" [B, H, S, S]: the same of the tokens of a source */
	PORT_CROSS_VISIBLE,  /* "cross_visible" [B, H, N, S]: the same of the tokens and those of a source */
	/* inputs, f32 */
	PORT_SOURCE_ROWS, /* "source_rows" [B, S, D]: a source that has been encoded */
	PORT_BEFORE,      /* "before" [B, P, D]: rows in front of the tokens */
	PORT_MEMORY, /* "memory.L" [B, M, D] of layer L: rows of earlier segments; output "next.memory.L": those for
	              * the next */
	PORT_KEPT,   /* "kept" [1, entries, 1]: 1, or 0 where an entry of a stack is skipped */
	PORT_COEFFICIENTS, /* "coefficients" [B, V]: of the logits in the score (forward_spec.attribution) */
	PORT_FACTOR,       /* "factor" []: what the word vectors are multiplied by */
	/* outputs, f32 */
	PORT_LOGITS,    /* "logits" [B, N, V], or those of the rows `last`: [B, V], [rows, V] */
	PORT_MAXIMA,    /* "maxima" of these (ops.h, linear) */
	PORT_HIDDEN,    /* "hidden" [B, D]: what these logits were made from */
	PORT_EMBEDDING, /* "embedding" [B, D] */
	PORT_ENCODINGS, /* "encodings" [B, S, D]: what an encoder has made of a source */
	PORT_LOSS,      /* "loss" []: the mean over the labels */
	PORT_COUNT,     /* "count" []: how many that were */
	PORT_HITS,      /* "hits" [labels]: 1 where the label has the largest logit, the first of equals; else 0 */
	/* parts of the score (attribution.h) */
	PORT_WORD_PARTS,      /* "parts.words" [B · N] */
	PORT_WORD_SQUARES,    /* "words.squares" [B · N]: ‖word vector‖², where a norm has nothing else to read */
	PORT_POSITION_PARTS,  /* "parts.positions" [B · N], of models that have position tables */
	PORT_BIAS_PARTS,      /* "parts.biases" [B · N] */
	PORT_LAST_PARTS,      /* "parts.last" [B] */
	PORT_HEAD_PARTS,      /* "parts.head" [B] */
	PORT_ATTENTION_PARTS, /* "parts.attention" [B · N] */
	/* the same of a source's tokens, [B · S] */
	PORT_SOURCE_WORD_PARTS,      /* "parts.source.words" */
	PORT_SOURCE_POSITION_PARTS,  /* "parts.source.positions" */
	PORT_SOURCE_BIAS_PARTS,      /* "parts.source.biases" */
	PORT_SOURCE_ATTENTION_PARTS, /* "parts.source.attention" */
	PORT_ROLES
} port_role;

const char *port_name(port_role role);
/* The port of a graph in that role, or VALUE_NONE. */
value port_find(const graph *g, port_role role);

#endif
