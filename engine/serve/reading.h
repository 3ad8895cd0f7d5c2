/* reading.h - tokens of one sequence that are read afresh by one plan, in slices.
 *
 * A causal model reads a sequence in pieces of up to SCHEDULER_PREFILL_CHUNK tokens, in a slot of the state pool; any
 * other model reads it at once, by the parallel form. A reading of one piece is a chain of steps: the nodes of its
 * plan, then READING_LOG_TOKENS tokens of the log at a time. Other work has its turn between two steps.
 *
 * Plans are made for 16, 32, 64, … tokens. The model keeps those that are not in use: a reading takes one out for a
 * piece and puts it back behind it, so any number of readings can be under way. On the CPU a plan runs with the length
 * of the piece (plan_reshape). On a device that keeps the shapes of a plan, the rows behind the piece are masked, or
 * are beyond its length. A plan that is not kept is made for the length of its piece, and so is every plan of a model
 * that reads padding.
 *
 * The encoder of an encoder-decoder reads a source at once, too.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_READING_H
#define ENGINE_SERVE_READING_H

#include "engine/serve/served_model.h"

enum {
	READING_LEAST_TOKENS = 16,  /* of a plan */
	READING_KEPT_TOKENS = 1024, /* a plan for more is freed when it has run, */
	READING_KEPT_ROWS = 8,      /* and one for more rows: there would be too many kinds */
	READING_LOG_TOKENS = 64,
	READING_LOGITS = 1 << 22,        /* of all tokens of a piece: 16 MiB */
	READING_TOUCHED_BYTES = 2 << 20, /* of a new plan, in a step; beside generations: */
	READING_TOUCHED_LESS = 1 << 16,
	READING_WORK = 1 << 23, /* products of a step, about, where a node has rows that do not meet */
};
#define READING_KEPT_BYTES ((size_t)64 << 20) /* of a plan, likewise */

/* What a reading gives. */
typedef struct reading_form {
	logits_rows logits;      /* of the last token, or of each; of a head for classes, the classes' */
	int64_t rows;            /* of the tokens piece.rows instead of the last, up to so many; 0: of the last */
	pooling embedding;       /* POOL_NONE: no vector */
	bool log;                /* what an explanation needs of each token */
	bool masked;             /* of a piece: its tokens `absent` are read by none */
	attribution attribution; /* parts of the score of the last token's logits, or of the classes' */
	float share;             /* as in forward_spec */
	bool source;             /* what is read is a source, which goes into the slot; nothing else is wanted */
	bool both;               /* a source, and all of a sequence that reads it: by the parallel form */
} reading_form;

/* What is read: all of a sequence, or a piece (reading_by_pieces). */
typedef struct reading_piece {
	const int32_t *ids; /* of an attribution there until reading_end */
	const int32_t
	    *whole; /* [count], likewise: those before any was replaced, in which a head finds its row; NULL: ids */
	int64_t count, first; /* tokens, and those of the sequence before them */
	int32_t slot;         /* of the pieces before, or for the source */
	const bool *absent;   /* [count] of form.masked; there until reading_end */
	const int32_t *rows; /* [n_rows], 1 ≤ n_rows ≤ form.rows: tokens of the piece; or one, in place of the last */
	int64_t n_rows;
	float factor; /* of the word vectors, of ATTRIBUTION_GRADIENT */
	float *log;   /* [count][log_floats], filled in order, there until reading_end; NULL without form.log. Of
	               * form.both: of all places (explain_logs_floats) */
	/* Of form.both, like ids, count and absent: */
	const int32_t *source;
	int64_t n_source;
	const bool *source_absent;
} reading_piece;

/* Is a sequence read in pieces of at most SCHEDULER_PREFILL_CHUNK tokens? Never for an attribution. */
bool reading_by_pieces(const served_model *m, reading_form form);
/* Of `left` tokens behind `first`, those of the next piece. */
int64_t reading_piece_of(const served_model *m, reading_form form, int64_t first, int64_t left);

/* Tokens of a piece with LOGITS_ALL, at most: SCHEDULER_PREFILL_CHUNK, and fewer where their logits would be more than
 * READING_LOGITS; a power of two. */
int64_t reading_scored_piece(const served_model *m);

/* Get ready. reading_end(*out) is due also after an error. STATUS_NOMEM and what model_plan says. */
status reading_begin(reading **out, served_model *m, reading_form form, const reading_piece *p, error *err);
/* The next step. *done: the piece has been read, and its log. STATUS_DEVICE. */
status reading_step(reading *r, bool *done);
/* Has an attribution come to where it needs the coefficients of the logits, which can be read now? Before the next step
 * they are to be written, a number for each logit. */
bool reading_wants_coefficients(const reading *r);
status reading_write_coefficients(reading *r, const float *coefficients);
/* Parts of an attribution (model/port.h), the first `count`; zeros where the model has no such parts. */
status reading_parts(const served_model *m, const reading *r, port_role role, int64_t count, float *out);
/* The logits of the last token or of each of piece.rows (not with LOGITS_ALL), or the vector. */
status reading_values(const reading *r, float *out);
/* With LOGITS_ALL: those of token `row` of the piece. */
status reading_logits(const reading *r, int64_t row, float *out);
/* The plan goes back to m, or is freed. NULL is legal. */
void reading_end(served_model *m, reading *r);

/* Free the plans that a model keeps. */
void reading_free_all(served_model *m);

#endif
