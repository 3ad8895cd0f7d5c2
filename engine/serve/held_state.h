/* held_state.h - the state of a session outside of its slot: of a snapshot, or of the beginning of a prompt.
 *
 * A recurrent state is small. A cache of keys and values grows with its tokens, but what it holds of a token never
 * changes (state_piece.by_token). So the places of every HELD_BLOCK tokens are one block, with the keys and values of
 * all layers. States that have the same first tokens share its blocks; each has only the rest of its own:
 *
 *   snapshot after 700 tokens    block 0   block 1   rest: tokens 512 … 699, all that is no such cache
 *   prompt that continues it     block 0   block 1   block 2   rest
 *
 * Blocks are shared by descent, and bytes are not compared. A session has a list of its blocks (block_list). Copies of
 * it get that list; a state that is held gets and extends it. A session in a slot does not keep the bytes alive. They
 * are freed once no held state needs them. The next state that does copies them again from a slot, for all that share
 * the block.
 *
 * The slot itself is contiguous: kernels read it at full speed with one address for each layer, and a state enters it
 * by a copy. A ring that has wrapped, and a state that any token may change, are in the rest.
 *
 * States that share blocks may be used by several threads, each state by one at a time. */
#ifndef ENGINE_SERVE_HELD_STATE_H
#define ENGINE_SERVE_HELD_STATE_H

#include <stddef.h>

#include "engine/model/states.h"

enum { HELD_BLOCK = 256 /* tokens */ };

typedef struct state_block state_block;

/* The blocks of a sequence, in the order of its tokens. {0}: none. */
typedef struct block_list {
	state_block **blocks;
	int64_t count;
} block_list;

/* Return how many blocks a state with these pieces has. */
int64_t block_list_needs(const state_piece *pieces, int n);
/* Append blocks without bytes until there are `count`. STATUS_NOMEM leaves the list unchanged. */
status block_list_extend(block_list *l, int64_t count);
/* Make *out a copy of the first `count` blocks, or of all if there are fewer. STATUS_NOMEM: *out is empty. */
status block_list_copy(block_list *out, const block_list *l, int64_t count);
void block_list_fini(block_list *l);

/* Memory that is counted apart. A block counts once in each, however many states there share it. */
typedef enum held_budget { HELD_PREFIXES, HELD_SNAPSHOTS, HELD_AUTOMATIC, HELD_BUDGETS } held_budget;

/* Zero-initialise; free with held_state_fini. */
typedef struct held_state {
	block_list blocks;
	state_piece *pieces; /* in one allocation with `bytes` and `rest` */
	char **bytes;        /* address of each block */
	char *rest;
	size_t size, own_size; /* bytes of all pieces; of those in `rest` */
	int64_t n_found;       /* leading blocks that had bytes at the beginning */
	int n_pieces;
	bool complete;
} held_state;

/* A run of bytes: its offset in a slot and, of a held state, its address. */
typedef struct held_run {
	size_t slot, bytes;
	char *at;
	bool found; /* it had its bytes at the beginning */
} held_run;

/* Begin a state with these pieces, whose blocks are the first of `blocks`, which is extended. The caller writes all
 * runs but those found, and then calls held_state_end. STATUS_NOMEM: *h is empty. */
status held_state_begin(held_state *h, const state_piece *pieces, int n, block_list *blocks);
/* Return the bytes of the runs to be written. */
size_t held_state_missing(const held_state *h);
/* Give the blocks their bytes. */
void held_state_end(held_state *h);
void held_state_fini(held_state *h);

/* Return the run that begins at byte `at` of all pieces one after the other. */
held_run held_state_run(const held_state *h, size_t at);
/* Return it for a slot with these pieces; it has no address. */
held_run state_pieces_run(const state_piece *pieces, int n, size_t at);
/* Find byte `slot` of a slot. True: *at is its offset in the pieces, *bytes what follows there in its piece. False: it
 * has not been written, like the *bytes that follow. */
bool state_pieces_find(const state_piece *pieces, int n, size_t slot, size_t *at, size_t *bytes);
/* Return the bytes of all pieces. */
size_t state_pieces_bytes(const state_piece *pieces, int n);

/* Count the state in a budget, or no longer. Return the bytes by which the budget changes. */
int64_t held_state_count(held_state *h, held_budget budget);
int64_t held_state_uncount(held_state *h, held_budget budget);

typedef struct held_stats {
	int64_t bytes;  /* memory of all blocks, now */
	int64_t shared; /* bytes that they would take more if no state shared them */
} held_stats;
/* Read the counts of this process. */
void held_state_read_stats(held_stats *out);

#endif
