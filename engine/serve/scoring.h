/* scoring.h - sequences that are read from an empty state, without a session (scheduler.h has the request).
 *
 * The sequences of a scoring run one after the other, each alone. A causal model reads one in pieces of up to
 * SCHEDULER_PREFILL_CHUNK tokens, in a slot of the state pool that the scoring holds until it ends; any other model
 * reads it at once, by the parallel form. Plans are made for 16, 32, 64, … tokens. The model keeps the unused ones: a
 * scoring removes one from that list for a piece and returns it afterwards, so any number of scorings can be in
 * progress. A run is cut into slices of nodes (plan_step), between which other work runs.
 *
 * On the CPU a plan runs with the length of the piece (plan_reshape). On a device that keeps the shapes of a plan, the
 * rows after the piece are masked, or are beyond its length; for a model that reads padding there is a plan for each
 * exact length instead.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_SCORING_H
#define ENGINE_SERVE_SCORING_H

#include "engine/serve/served_model.h"

enum {
	SCORING_SLICE_NS = 1000000,
	SCORING_LEAST_TOKENS = 16,  /* of a plan */
	SCORING_KEPT_TOKENS = 1024, /* a plan for more is freed after its run */
};

struct scoring {
	scoring *next; /* the scheduler's list */
	served_model *model;
	scoring_request request;
	int32_t slot; /* holds a causal model's state; in any other model it only counts as a user */
	bool cancelled;
	int64_t read;       /* sequences that are complete */
	int64_t begun;      /* tokens read of the next sequence */
	int64_t piece;      /* tokens of it in the current piece */
	double *sum;        /* [width] of the hidden vectors of the pieces so far */
	scoring_plan *plan; /* of the piece; NULL: not begun */
	int cursor;         /* of the plan */
};

/* Check a request and begin it. The model is in use until scoring_free. STATUS_INVALID, naming "model" or "input";
 * STATUS_BUSY: no slot; STATUS_NOMEM. */
status scoring_new(scoring **out, served_model *m, const scoring_request *r, error *err);
void scoring_free(scoring *x); /* NULL is legal */
/* Run the next slice: at least one node, about SCORING_SLICE_NS. *done: all sequences have been read. STATUS_NOMEM,
 * STATUS_DEVICE. */
status scoring_advance(scoring *x, bool *done, error *err);

/* Free the plans in the model's list. */
void scoring_free_plans(served_model *m);

#endif
