/* optimizer_kind.h - what a kind of optimiser gives.
 *
 * A kind is one source in optimizers/ that defines the const optimizer_kind `optimizer_kind_NAME`; the list of them is
 * made by the build. It says which options it reads, what it keeps between steps, and how a step is computed; buffers,
 * gathering, checkpoints and the count of updates are common to all (optimizer.h). Everything here is immutable. */
#ifndef ENGINE_TRAIN_OPTIMIZER_KIND_H
#define ENGINE_TRAIN_OPTIMIZER_KIND_H

#include "engine/tensor/ops.h"
#include "engine/train/trainer.h"

enum { OPTIMIZER_MAX_STATES = 4 };

/* How many f32 numbers a state vector has. */
typedef enum optimizer_layout {
	STATE_PER_SCALAR, /* one for each number of the trained part of the model's arena, laid out like it */
	STATE_PER_ROW,   /* one for each row of each trained parameter in turn, a row being what shares all but the last
	                    index; a vector is one row */
	STATE_PER_TENSOR /* one for each trained parameter */
} optimizer_layout;

typedef struct optimizer_state {
	const char *name; /* in the checkpoint; NULL: there are no more */
	optimizer_layout layout;
} optimizer_state;

/* What the graph of an update is made from. */
typedef struct optimizer_values {
	value weights;   /* [floats] of the trained part of the arena, to be updated in place */
	value gradients; /* [floats], the mean over the step */
	value norm2;     /* the sum of their squares */
	value hyper;     /* [2]: learning rate, number of the update from 1 */
	value spans;     /* [i32] [trained parameters, ROW_SPAN_WORDS]: a row_span each (ops.h) */
	int64_t rows;    /* of all trained parameters */
	value decays;    /* [⌈floats / 16⌉]: how much of weight_decay each 16 weights have; VALUE_NONE: all of it */
	value bf16;      /* [floats] of the bf16 copy of the weights, to be written; VALUE_NONE: there is none */
	value state[OPTIMIZER_MAX_STATES]; /* to be updated in place; zero before the first update */
} optimizer_values;

typedef struct optimizer_kind {
	const char *name;           /* the word of the recipe */
	const char *const *options; /* of train_options, NULL-terminated: those that only optimisers read */
	optimizer_state states[OPTIMIZER_MAX_STATES + 1];
	bool undecayed; /* weights do not decay unless a recipe asks for it */
	bool bf16_copy; /* keeps the bf16 copy of the weights, which is not saved, up to date */
	/* By which of the options the states are measured, as a word. A job that begins with a model takes over the
	 * states that the one before it left where this is the same (optimizer_file.h). NULL: every job begins with
	 * none. */
	const char *(*measure)(const train_options *o);
	/* Appends the update. The weights change in the last node and nowhere else, and nothing changes when norm2 is
	 * not finite, but the copy is written. */
	void (*build_update)(graph *g, const optimizer_values *v, const train_options *o);
} optimizer_kind;

/* NULL when unknown. */
const optimizer_kind *optimizer_kind_find(const char *name);
/* The i-th in the order of their names; NULL past the end. */
const optimizer_kind *optimizer_kind_at(int index);
/* Does it read an option, or, with NULL, does any kind? */
bool optimizer_kind_reads(const optimizer_kind *kind, const char *option);

#define OPTIMIZER(name) extern const optimizer_kind optimizer_kind_##name;
#include "gen/optimizers.def"
#undef OPTIMIZER

#endif
