/* optimizer_kind.h - the interface of a kind of optimiser.
 *
 * A kind is one source in optimizers/ that defines the constant `optimizer_kind_NAME`; the build makes the list of
 * them. It states which options it reads, what it keeps between steps, and how a step is computed. Buffers,
 * accumulation, checkpoints and the count of updates are common to all kinds (optimizer.h). Everything here is
 * immutable. */
#ifndef ENGINE_TRAIN_OPTIMIZER_KIND_H
#define ENGINE_TRAIN_OPTIMIZER_KIND_H

#include "engine/tensor/ops.h"
#include "engine/train/trainer.h"

enum { OPTIMIZER_MAX_STATES = 4 };

/* Length of a state vector, in f32 numbers. */
typedef enum optimizer_layout {
	STATE_PER_SCALAR, /* one for each number of the trained part of the arena, in its layout */
	STATE_PER_ROW,    /* one for each row of each trained parameter; a row shares all but the last index, and a
	                   * vector is one row */
	STATE_PER_TENSOR  /* one for each trained parameter */
} optimizer_layout;

typedef struct optimizer_state {
	const char *name; /* name in the checkpoint; NULL: end of the list */
	optimizer_layout layout;
} optimizer_state;

/* A trained hidden matrix (parameter_spec.hidden) with at least two rows and columns, in the arena. */
typedef struct optimizer_matrix {
	int64_t first, rows, columns;
} optimizer_matrix;

/* Inputs of an update's graph. They are those of the trained parameters, or of one share of them (optimizer.h). */
typedef struct optimizer_values {
	value weights;   /* [floats] of the arena; updated in place */
	value gradients; /* [floats] mean over the step */
	value norm2;     /* sum of the squares of all gradients, also outside the share */
	value hyper;     /* [2]: learning rate; number of the update, from 1 */
	value spans;     /* [i32] [parameters, ROW_SPAN_WORDS]: one row_span each (ops.h); VALUE_NONE for a kind without
	                  * matrix_scale whose states are all per scalar */
	int64_t rows;    /* for all parameters */
	value factors;   /* [⌈floats / 16⌉, 2]: step_factors for each 16 weights; VALUE_NONE: 1 */
	value bf16;      /* [floats] bf16 copy of the weights, written by the update; VALUE_NONE: no copy */
	value state[OPTIMIZER_MAX_STATES]; /* updated in place; zero before the first update */
	/* For a kind with matrix_scale: the hidden matrices, and that factor for each 16 weights, 0 outside them. */
	const optimizer_matrix *matrices;
	int n_matrices;
	value scales; /* [⌈floats / 16⌉] */
} optimizer_values;

typedef struct optimizer_kind {
	const char *name;           /* name in recipes */
	const char *const *options; /* train_options that only optimisers read, NULL-terminated */
	optimizer_state states[OPTIMIZER_MAX_STATES + 1];
	bool without_decay; /* weight_decay defaults to 0 */
	double momentum;    /* default of the option; 0: the common one */
	bool bf16_copy;     /* updates the bf16 copy of the weights, which is not saved */
	/* Return a word for the options on which the scale of the states depends. A job that starts from a model takes
	 * over its states if this word is the same (optimizer_file.h). NULL: every job starts without states. */
	const char *(*measure)(const train_options *o);
	/* Return the factor of steps of a hidden matrix, above 0; NULL: the kind does not treat matrices separately.
	 */
	float (*matrix_scale)(int64_t rows, int64_t columns);
	/* Append the update. The weights change in the last node only. If norm2 is not finite, nothing changes, but the
	 * copy is written. */
	void (*build_update)(graph *g, const optimizer_values *v, const train_options *o);
} optimizer_kind;

/* NULL if unknown. */
const optimizer_kind *optimizer_kind_find(const char *name);
/* Return the i-th kind in order of names; NULL past the end. */
const optimizer_kind *optimizer_kind_at(int index);
/* True if the kind reads an option; NULL: if any kind does. */
bool optimizer_kind_reads(const optimizer_kind *kind, const char *option);

#define OPTIMIZER(name) extern const optimizer_kind optimizer_kind_##name;
#include "gen/optimizers.def"
#undef OPTIMIZER

#endif
