/* read_pass.h - one plan run over tokens of one sequence, in slices, outside the decode and prompt batches.
 *
 * A causal model reads a sequence in pieces of up to SCHEDULER_PREFILL_CHUNK tokens, in a slot of the state pool. Any
 * other model reads it at once, by the parallel form. A pass over a piece is a chain of steps: the nodes of its plan,
 * then READ_PASS_LOG_TOKENS tokens of the log at a time. Other work may run between two steps.
 *
 * Plans are compiled for 16, 32, 64, … tokens. The model keeps the idle ones: a pass takes one for a piece and
 * returns it afterwards, so any number of passes can be in progress. On the CPU a plan runs with the length of the
 * piece (plan_reshape). A device that records plans keeps their shapes; rows past the end of the piece are masked. A
 * plan that is not kept has the length of its piece, and so has every plan of a model that reads padding.
 *
 * The encoder of an encoder-decoder reads a source at once, too.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_READ_PASS_H
#define ENGINE_SERVE_READ_PASS_H

#include "engine/serve/served_model.h"

enum {
	READ_PASS_LEAST_TOKENS = 16,  /* tokens of the smallest plan */
	READ_PASS_KEPT_TOKENS = 1024, /* plans for more tokens are freed after their run */
	READ_PASS_KEPT_ROWS = 8,      /* plans with more rows are freed too: they have too many shapes */
	READ_PASS_LOG_TOKENS = 64,
	READ_PASS_LOGITS = 1 << 22,        /* for all tokens of a piece: 16 MiB */
	READ_PASS_TOUCHED_BYTES = 2 << 20, /* memory of a new plan written per step */
	READ_PASS_TOUCHED_SHORT = 1 << 16, /* likewise, while generations wait */
	READ_PASS_WORK =
	    1 << 23, /* multiplications per step, approximately, where the rows of a node are independent */
};
#define READ_PASS_KEPT_BYTES ((size_t)64 << 20) /* a larger plan is freed after its run */

/* Outputs of a pass. */
typedef struct read_pass_form {
	logits_rows logits;      /* for the last token or every token; for a class head, the classes */
	int64_t rows;            /* maximum of piece.n_rows; 0: logits of the last token only */
	pooling embedding;       /* POOL_NONE: no vector */
	bool log;                /* write the log that explanations need */
	bool masked;             /* skip the tokens in piece.absent */
	attribution attribution; /* attribution of the score of the last token's logits or of a class */
	float share;             /* forward_spec.explain.share */
	bool source;             /* encode a source into the slot; no other output */
	bool both;               /* read a source and a whole sequence together, by the parallel form */
} read_pass_form;

/* Input of a pass: a whole sequence or one piece of it (read_pass_by_pieces). */
typedef struct read_pass_piece {
	const int32_t *ids; /* [count]; for an attribution borrowed until read_pass_end */
	const int32_t
	    *whole; /* [count] ids before replacement, in which a head finds its row; borrowed likewise; NULL: ids */
	int64_t count, first; /* tokens of the piece; tokens of the sequence before it */
	int32_t slot;         /* state of the earlier pieces, or destination of the source */
	const bool *absent;   /* [count] with form.masked; borrowed until read_pass_end */
	const int32_t *rows; /* [n_rows] token indices in the piece, 1 ≤ n_rows ≤ form.rows; or one, instead of the last
	                      * token. Borrowed until read_pass_end */
	int64_t n_rows;
	float factor;          /* PORT_FACTOR, for ATTRIBUTION_GRADIENT */
	const float *baseline; /* PORT_BASELINE, likewise, borrowed until read_pass_end; NULL: zeros */
	float *log; /* [count][log_floats], written in order, borrowed until read_pass_end; NULL without form.log. With
	             * form.both: all logs (explain_logs_floats) */
	/* With form.both: the source's ids, count and absent; borrowed likewise. */
	const int32_t *source;
	int64_t n_source;
	const bool *source_absent;
} read_pass_piece;

/* True if a sequence is read in pieces of at most SCHEDULER_PREFILL_CHUNK tokens. False for an attribution. */
bool read_pass_by_pieces(const served_model *m, read_pass_form form);
/* Return the length of the next piece when `left` tokens follow token `first`. */
int64_t read_pass_piece_of(const served_model *m, read_pass_form form, int64_t first, int64_t left);

/* Return the maximum tokens of a piece with LOGITS_ALL, a power of two: SCHEDULER_PREFILL_CHUNK, or fewer if their
 * logits exceed READ_PASS_LOGITS. */
int64_t read_pass_scored_piece(const served_model *m);

/* Take or compile a plan and set its inputs. Call read_pass_end(*out) also after an error. STATUS_NOMEM, or an error of
 * model_plan. */
status read_pass_begin(read_pass **out, served_model *m, read_pass_form form, const read_pass_piece *p, error *err);
/* Run the next step. *done: the piece and its log are complete. STATUS_DEVICE. */
status read_pass_step(read_pass *r, bool *done);
/* True if an attribution needs the coefficients of the logits before its next step. The logits can be read now; the
 * caller writes one coefficient for each. */
bool read_pass_wants_coefficients(const read_pass *r);
status read_pass_write_coefficients(read_pass *r, const float *coefficients);
/* Return the floats of a row of a port; 0: the model has no such port. */
int64_t read_pass_width(const read_pass *r, port_role role);
/* Copy the first `count` parts of an attribution (model/port.h) to `out`; zeros if the model has no such parts. */
status read_pass_parts(const served_model *m, const read_pass *r, port_role role, int64_t count, float *out);
/* Copy the logits of the last token or of each of piece.rows (not with LOGITS_ALL), or the vector. */
status read_pass_values(const read_pass *r, float *out);
/* Copy the logits of token `row` of the piece (LOGITS_ALL). */
status read_pass_logits(const read_pass *r, int64_t row, float *out);
/* Return the plan to m or free it. NULL is legal. */
void read_pass_end(served_model *m, read_pass *r);

/* Free the plans that m keeps. */
void read_pass_free_all(served_model *m);

#endif
