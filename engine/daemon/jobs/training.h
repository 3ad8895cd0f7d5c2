/* training.h - one job's run on the executor.
 *
 * The loop describes a run (training_plan), hands it over, and gets reports of it; between
 * training_begin and TRAINING_ENDED the plan belongs to the executor. A report is a copy: it may be kept.
 *
 * Reports come in this order: STARTED, then any of PROGRESS, EVALUATED and SAVED, then ENDED, once and last.
 * PROGRESS comes at most ten times a second. Checkpoints are saved when the trainer says so, when
 * `save_ns` have passed since the last, and when the run is stopped with one. A save that fails is reported and
 * does not end the run: the next one comes when it is due, or TRAINING_RESAVE_SECONDS later.
 *
 * After an evaluation the run waits until the loop has had its report. While the ledger lacks the row of one, no
 * checkpoint is saved: after a crash the run would continue from it, and the row would never be made again. */
#ifndef ENGINE_DAEMON_JOBS_TRAINING_H
#define ENGINE_DAEMON_JOBS_TRAINING_H

#include <limits.h>

#include "engine/daemon/compute/executor.h"
#include "engine/store/store.h"
#include "engine/train/trainer.h"

enum { TRAINING_RESAVE_SECONDS = 30 };

typedef struct training training;

typedef enum training_kind {
	TRAINING_STARTED,
	TRAINING_PROGRESS,
	TRAINING_EVALUATED,
	TRAINING_SAVED, /* a checkpoint of progress.step is durable; error: it could not be saved */
	TRAINING_ENDED  /* finished: the model is in plan.result. Else error says why; STATUS_OK: it was stopped */
} training_kind;

typedef struct training_report {
	training_kind kind;
	train_progress progress;
	bool finished;
	bool damaged;       /* ENDED: the checkpoint of plan.resume cannot be read; `error` has the reason */
	json_t *checkpoint; /* SAVED without error: its row, equal to the manifest's; borrowed */
	json_t *preview;    /* EVALUATED: {"prompt", "text"}, what the model wrote; borrowed; NULL: nothing */
	error error;
} training_report;

typedef struct training_plan {
	/* Where the weights come from: a checkpoint of this run, a model's folder, or fresh ones. */
	char resume[PATH_MAX]; /* "" or the checkpoint's folder */
	char base[PATH_MAX];   /* "" or the model's folder */
	const architecture *architecture;
	json_t *config;
	train_options options;
	uint64_t save_ns; /* 0: only when the trainer says so */
	tokenizer *tokenizer;
	dataset *train, *valid; /* valid may be NULL */
	int64_t *counts; /* of a fresh model that counts tokens (architecture.h): of each id in the texts; else NULL */
	const store *store; /* for the paths of checkpoints only, which any thread may make */
	char job[STORE_ID_BYTES];
	char name[STORE_ID_BYTES]; /* the finished model has it */
	char result[PATH_MAX];     /* folder to leave it in */
	/* Loop thread. False after EVALUATED: its row is not in the ledger yet. */
	bool (*report)(void *context, const training_report *r);
	void *context;
} training_plan;

/* Free what the plan owns: configuration, tokenizer, datasets, counts. */
void training_plan_fini(training_plan *p);

/* Hand the plan over; it must stay until ENDED. STATUS_NOMEM. */
status training_begin(training **out, executor *x, training_plan *p);
/* Ask for the end: at once, or with a checkpoint first. ENDED follows; asking again changes nothing. rows_written: the
 * ledger has the rows of all evaluations reported so far. Loop thread. */
void training_stop(training *t, bool save, bool rows_written);
/* After ENDED. Loop thread. */
void training_free(training *t);

#endif
