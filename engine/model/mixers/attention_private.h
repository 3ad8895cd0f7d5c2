/* attention_private.h - shared by the sources of softmax attention: attention.c (projections and the parallel form),
 * attention_parameters.c (parameters and states) and attention_stream.c (the recurrent form). */
#ifndef ENGINE_MODEL_MIXERS_ATTENTION_PRIVATE_H
#define ENGINE_MODEL_MIXERS_ATTENTION_PRIVATE_H

#include "engine/model/mixers/mixer.h"

/* Names of states, with the layer's number; of ATTENTION_EARLIER also the number of the state. */
#define ATTENTION_SOURCE "layers.%d.source"
#define ATTENTION_MEMORIES "layers.%d.memories"
#define ATTENTION_CACHE "layers.%d.cache"
#define ATTENTION_EARLIER "layers.%d.earlier.%d"
enum { ATTENTION_ROTARY_BASE = 10000 };

/* --- attention_parameters.c --- */

/* Members of the mixers. */
void attention_parameters(const void *options, const char *prefix, parameter_list *list);
void attention_states(const void *options, int layer, state_list *list);
/* Return the end of the name of the last projection, which may be in a sequence with a gate. */
const char *attention_output_part(const attention_options *o);
/* True if one product has queries, keys and values. */
bool attention_is_fused(const attention_options *o);
/* True if an option changes the score matrix. All forms test the same options, so the state fits each of them. */
bool attention_changes_matrix(const attention_options *o);
/* True if scores of memories are computed separately. A session rotates by positions in the sequence, a segment by
 * positions from the first row that it sees. Scores of tokens are equal in both; scores of memories, which are not
 * rotated, are not. */
bool attention_memories_apart(const attention_options *o);
/* Number of memories and memory tokens that a slot holds. */
int64_t attention_stored_memories(const attention_options *o);
/* Return the parameters of the matrix ops for a state, without its offset. */
matrix_stream_params attention_matrix_stream(const attention_options *o);

/* --- attention.c --- */

/* The attention that is being appended: the arguments of attention_forward. */
typedef struct attention_call {
	builder *b;
	const attention_options *o;
	int layer, index;
	const char *prefix;
	attention_rows *r; /* NULL where only keys and values are stored */
} attention_call;

typedef struct attention_keys {
	value keys, values;
} attention_keys;

/* Append one projection of x. */
value attention_project(const attention_call *a, attention_product which, value x);
/* Keys and values of rows [B, N, D], rotated and not normalised. */
attention_keys attention_project_keys(const attention_call *a, value rows);
/* Apply the norm of queries or keys of `heads` heads, if there is one. */
value attention_normalise(const attention_call *a, value x, int64_t heads);
/* Prepend the memories "mem_k" or "mem_v" and the rows of memory tokens to x. */
value attention_after_memories(const attention_call *a, const char *name, value tokens, value x);
/* Compute weights from scores. `window` applies to the whole form; the recurrent form's cache has that length. */
value attention_weigh(const attention_call *a, value scores, value mask, attention_weights_params params,
                      uint32_t site);

/* --- attention_stream.c --- */

/* Attend to the source in the slot; q [B, N, heads · key_width], normalised. */
value attention_read_source(const attention_call *a, value q);
/* Attend to the cache and to the call's own rows, which enter it. q and own: normalised; of a fused product q alone. */
value attention_read_cache(const attention_call *a, value q, attention_keys own);

#endif
