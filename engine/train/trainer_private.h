/* trainer_private.h - shared by the files trainer*.c. Private to engine/train. */
#ifndef ENGINE_TRAIN_TRAINER_PRIVATE_H
#define ENGINE_TRAIN_TRAINER_PRIVATE_H

#include "engine/train/kept_weights.h"
#include "engine/train/carry.h"
#include "engine/train/gradient_sum.h"
#include "engine/train/objective.h"
#include "engine/train/optimizer.h"
#include "engine/train/pass.h"
#include "engine/train/preview.h"
#include "engine/train/range_test.h"
#include "engine/train/reference.h"
#include "engine/train/trainer.h"
#include "engine/train/weight_average.h"

enum { TRAINER_MAX_AWAITED = 4 }; /* a loss, two norms after it, and the loss of the batch ahead */

/* A number in transfer. A norm ends a step, and so does NUMBER_NONE. */
typedef enum trainer_number {
	NUMBER_LOSS,   /* loss of a micro-batch */
	NUMBER_SMALL2, /* mean of the squared norms of the micro-batches' gradients */
	NUMBER_NORM2,  /* squared norm of the step's gradient */
	NUMBER_NONE    /* ends a step without labels; its value is unused */
} trainer_number;
typedef struct trainer_awaited {
	const float *at; /* device address */
	unsigned fetch;
	trainer_number what;
	double weight; /* weight of a loss; weights average 1 over the step's micro-batches */
} trainer_awaited;

/* A stage of a run; trainer.c has their order. */
typedef struct stage {
	plan *(*plan)(const trainer *t); /* NULL: the stage has no plan */
	status (*enter)(trainer *t);
	bool (*ready)(const trainer *t);                           /* true if it can end, once all is issued; NULL: at
	                                                            * once */
	status (*leave)(trainer *t, unsigned *events, error *err); /* chooses t->stage */
} stage;

struct trainer {
	model *model;
	train_options options;
	uint64_t shuffle;
	const dataset *train, *valid;
	uint64_t train_hash, valid_hash;
	optimizer *optimizer;
	weight_average *average;          /* NULL without ema_decay */
	pass *train_pass, *valid_pass;    /* valid_pass: NULL without validation data */
	preview *preview;                 /* NULL without validation data, or if the model cannot generate */
	gradient_sum *sum;                /* NULL with a single rank */
	carry *train_carry, *valid_carry; /* NULL without carry_state; valid_carry also without validation data */

	/* If the objective computes the loss itself; else NULL. reference_pass: while the reference is computed. */
	reference *reference;
	pass *reference_pass;
	int reference_set;
	int64_t reference_at; /* records of the set that are done */

	const stage *stage; /* NULL: the run has ended */
	int cursor;         /* next node of the stage's plan; -1 before enter */
	bool finish_reported;
	bool never_waits;                             /* trainer_may_wait */
	unsigned pending_events;                      /* events of trainer_settle, returned by the next advance */
	int64_t issued;                               /* steps whose update is issued: progress.step or one more */
	int64_t micro;                                /* micro-batches of the step after those */
	int64_t labels;                               /* total of all batches of that step */
	double weight;                                /* share of the issued batch in these */
	trainer_awaited awaited[TRAINER_MAX_AWAITED]; /* oldest first */
	int n_awaited, n_left; /* their number; number of them that the stage `take` leaves in transfer */
	double loss_sum;       /* for the step being taken */
	double small2;         /* for the step being taken */
	double noise[2];       /* smoothed squared norms: noise of one record, gradient */
	range_test range;
	uint64_t step_began;
	evaluation evaluation;
	int64_t valid_batch, valid_at; /* records of a batch; batches done in this evaluation */
	size_t tally_bytes;
	int64_t valid_step; /* step of the last evaluation; 0: none */
	int64_t stale;      /* evaluations since the one with the lowest loss */
	kept_weights *best; /* NULL without keep_best */
	int bad_steps;      /* consecutive steps that were not finite */
	train_progress progress;
	error failed; /* the final error, if any */
};

/* Return the model that is evaluated, and that the run results in. */
model *trainer_result(const trainer *t);
/* Continue with a stage; NULL ends the run. */
void trainer_go(trainer *t, const stage *next);
/* Continue with the next step, or end the run if there is none. */
void trainer_begin_step(trainer *t);
void trainer_begin_evaluation(trainer *t);
/* True if the run evaluates after `step` steps and has not done so. */
bool trainer_evaluation_is_due(const trainer *t, int64_t step);
/* Return TRAIN_CHECKPOINT_DUE or 0, after a step and its evaluation. */
unsigned trainer_checkpoint_event(const trainer *t);
/* Continue with the first batch of the next step, or before it with the reference. */
void trainer_begin(trainer *t);
/* Compute the reference, then begin. */
void trainer_begin_reference(trainer *t);
/* True once the device has computed all that was issued. */
bool trainer_device_is_idle(const trainer *t);
/* Return the number of ranks of the run, and this rank's index. */
int64_t trainer_ranks(const trainer *t);
int64_t trainer_rank(const trainer *t);
/* Batches of one evaluation. */
int64_t trainer_valid_batches(const trainer *t);

/* Return the present state object of the run. New reference; NULL: out of memory. */
json_t *trainer_state_write(const trainer *t);
/* Compare the parts of a saved state that the run depends on with the trainer's own. STATUS_INVALID names what
 * differs. */
status trainer_state_check(const json_t *saved, const json_t *own, error *err);
/* Set position and progress from a saved state. STATUS_CORRUPT (and nothing has changed): it lacks them. */
status trainer_state_read(trainer *t, const json_t *state, error *err);

#endif
