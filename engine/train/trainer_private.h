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
#include "engine/train/trainer.h"
#include "engine/train/weight_average.h"

enum { TRAINER_MAX_AWAITED = 4 }; /* a loss, the two norms after it, the loss of the batch ahead */

/* A number on its way. A norm ends a step, and so does NUMBER_NONE. */
typedef enum trainer_number {
	NUMBER_LOSS,   /* of a micro-batch */
	NUMBER_SMALL2, /* the mean of the squared norms of the micro-batches' gradients */
	NUMBER_NORM2,  /* the squared norm of the step's */
	NUMBER_NONE    /* ends a step without labels; its value is not used */
} trainer_number;
typedef struct trainer_awaited {
	const float *at; /* on the device */
	unsigned fetch;
	trainer_number what;
	double weight; /* of a loss, beside a mean of 1 over the step's micro-batches */
} trainer_awaited;

/* A stage of a run; trainer.c begins with their order. */
typedef struct stage {
	plan *(*plan)(const trainer *t); /* NULL: it has none */
	status (*enter)(trainer *t);
	bool (*ready)(const trainer *t);                           /* for its end, when all is issued; NULL: at once */
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
	pass *train_pass, *valid_pass;    /* valid_pass: NULL without validation data, */
	preview *preview;                 /* and so is this, and for a model that cannot write */
	gradient_sum *sum;                /* NULL without ranks */
	carry *train_carry, *valid_carry; /* NULL without carry_state, the second without validation data too */

	const stage *stage; /* NULL: nothing left to do */
	int cursor;         /* next node of the stage's plan, -1 before enter */
	bool finish_reported;
	unsigned pending_events;                      /* events of trainer_settle, for the next advance */
	int64_t issued;                               /* steps whose update is issued: progress.step or one more */
	int64_t micro;                                /* micro-batches of the step after those */
	int64_t labels;                               /* sum over all batches of that step */
	double weight;                                /* of the batch that is issued: its share of these */
	trainer_awaited awaited[TRAINER_MAX_AWAITED]; /* oldest first */
	int n_awaited, n_left; /* how many, and how many of them the stage `take` leaves on their way */
	double loss_sum;       /* of what was taken of a step */
	double small2;         /* likewise */
	double noise[2];       /* smoothed: of the squared norms, what is noise in a record's, and what is gradient */
	range_test range;
	uint64_t step_began;
	evaluation evaluation;
	int64_t valid_batch, valid_at; /* records of a batch, and the batches done of this evaluation */
	size_t tally_bytes;
	int64_t valid_step; /* the step after which the last evaluation was, 0: none */
	int64_t stale;      /* evaluations since that with the lowest loss */
	kept_weights *best; /* NULL without keep_best */
	int bad_steps;      /* not finite, in a row */
	train_progress progress;
	error failed; /* the final error, once there is one */
};

/* The model that evaluations are of, and that a run gives. */
model *trainer_result(const trainer *t);
/* Continue with a stage; NULL ends the run. */
void trainer_go(trainer *t, const stage *next);
/* Continue with the next step, or end the run if there is none. */
void trainer_begin_step(trainer *t);
void trainer_begin_evaluation(trainer *t);
/* True if the run evaluates after `step` steps and has not done so. */
bool trainer_evaluation_is_due(const trainer *t, int64_t step);
/* TRAIN_CHECKPOINT_DUE or 0, after a step and its evaluation. */
unsigned trainer_checkpoint_event(const trainer *t);
/* Go on with the first batch of the step that is next. */
void trainer_begin(trainer *t);
/* Ranks of the run, and which one this is. */
int64_t trainer_ranks(const trainer *t);
int64_t trainer_rank(const trainer *t);
/* Batches of one evaluation. */
int64_t trainer_valid_batches(const trainer *t);

/* The state object of the run as it is. New reference; NULL when out of memory. */
json_t *trainer_state_write(const trainer *t);
/* Compare what decides the future in a saved state with the trainer's own. STATUS_INVALID names what differs. */
status trainer_state_check(const json_t *saved, const json_t *own, error *err);
/* Set position and progress from a saved state. STATUS_CORRUPT (and nothing changed) when it lacks them. */
status trainer_state_read(trainer *t, const json_t *state, error *err);

#endif
