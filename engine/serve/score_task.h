/* score_task.h - sequences read from an empty state, without a session (scheduler.h has the request).
 *
 * The sequences of a score task run one after the other, each alone and piece by piece (read_pass.h). A slice runs some
 * steps of a pass. A causal model uses one slot of the state pool until the score task ends. Executor thread only. */
#ifndef ENGINE_SERVE_SCORE_TASK_H
#define ENGINE_SERVE_SCORE_TASK_H

#include "engine/serve/attribution_run.h"
#include "engine/serve/shares.h"

/* Approximate length of a slice; the shorter one applies while generations wait for it. */
enum { SCORE_TASK_SLICE_NS = 1000000, SCORE_TASK_SHORT_SLICE_NS = 200000 };

struct score_task {
	score_task *next; /* link of the scheduler's list */
	served_model *model;
	score_task_request request;
	int32_t slot; /* state of a causal model; in any other model it only marks the model as used */
	bool cancelled;
	share *share;                 /* its owner's, of slices */
	int overtaken;                /* times that a later score task of the owner has run before it */
	int64_t read;                 /* number of complete sequences */
	int64_t written;              /* number of rows written to request.out */
	int64_t tokens_read;          /* number of tokens read of the current sequence */
	int64_t piece;                /* tokens of the current piece */
	double *sum;                  /* [width] sum of the hidden vectors of earlier pieces */
	attribution_run *attribution; /* the current sequence's, if it is explained; NULL: not started */
	read_pass *pass;              /* the current piece's; NULL: not started */
	bool is_read;                 /* the current piece has been read */
	int64_t scored;               /* tokens of the current piece that have been scored */
	float *logits;                /* [width] of the token being scored */
};

/* Check a request and start it. The model is in use until score_task_free. STATUS_INVALID names "model" or "input".
 * STATUS_BUSY: no free slot. STATUS_NOMEM. */
status score_task_new(score_task **out, served_model *m, const score_task_request *r, error *err);
void score_task_free(score_task *x); /* NULL is legal */
/* Run a slice: at least one step, for about slice_ns. *done: all sequences are complete. STATUS_NOMEM,
 * STATUS_DEVICE. */
status score_task_advance(score_task *x, uint64_t slice_ns, bool *done, error *err);

#endif
