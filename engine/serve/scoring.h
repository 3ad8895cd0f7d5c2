/* scoring.h - sequences that are read from an empty state, without a session (scheduler.h has the request).
 *
 * The sequences of a scoring run one after the other, each alone and piece by piece (reading.h), in slices of the
 * readings' steps. A causal model reads in a slot of the state pool that the scoring holds until it ends. Executor
 * thread only. */
#ifndef ENGINE_SERVE_SCORING_H
#define ENGINE_SERVE_SCORING_H

#include "engine/serve/attributing.h"

/* Of a slice, about; the second beside generations, whose tokens wait for it. */
enum { SCORING_SLICE_NS = 1000000, SCORING_SHORT_SLICE_NS = 200000 };

struct scoring {
	scoring *next; /* the scheduler's list */
	served_model *model;
	scoring_request request;
	int32_t slot; /* holds a causal model's state; in any other model it only counts as a user */
	bool cancelled;
	int64_t read;             /* sequences that are complete, */
	int64_t written;          /* and rows of their numbers */
	int64_t begun;            /* tokens read of the next sequence */
	int64_t piece;            /* tokens of it in the current piece */
	double *sum;              /* [width] of the hidden vectors of the pieces so far */
	attributing *attributing; /* of the sequence, where it is explained; NULL: not begun */
	reading *reading;         /* of the piece; NULL: not begun */
	bool is_read;             /* the piece, of which */
	int64_t scored;           /* so many tokens have been scored */
	float *logits;            /* [width] of a token that is scored */
};

/* Check a request and begin it. The model is in use until scoring_free. STATUS_INVALID, naming "model" or "input";
 * STATUS_BUSY: no slot; STATUS_NOMEM. */
status scoring_new(scoring **out, served_model *m, const scoring_request *r, error *err);
void scoring_free(scoring *x); /* NULL is legal */
/* Run the next slice: at least one step, about slice_ns. *done: all sequences have been read. STATUS_NOMEM,
 * STATUS_DEVICE. */
status scoring_advance(scoring *x, uint64_t slice_ns, bool *done, error *err);

#endif
