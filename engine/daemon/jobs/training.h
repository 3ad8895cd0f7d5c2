/* training.h - one job's run on the executor.
 *
 * The loop describes a run (training_plan), hands it over and receives reports. Between training_begin and
 * TRAINING_ENDED the plan belongs to the executor. A report is a copy and may be kept.
 *
 * Order of reports: STARTED, then any of PROGRESS, EVALUATED and SAVED, then ENDED, exactly once and last. PROGRESS is
 * sent at most ten times a second. Checkpoints are saved when the trainer requests it, when `save_ns` have passed since
 * the last, and when the run is stopped with one. A save that fails is reported and does not end the run; the next one
 * is made when it is due or TRAINING_RESAVE_SECONDS later.
 *
 * Checkpoints and the finished model are written by a thread of the loop's pool. The run waits for it, and the executor
 * serves meanwhile.
 *
 * After an evaluation the run waits until the loop has received its report. While the ledger lacks the row of an
 * evaluation, no checkpoint is saved: after a crash the run would continue from it and the row would never be made
 * again. */
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
	TRAINING_SAVED, /* a checkpoint of progress.step is durable; with `error`: it could not be saved */
	TRAINING_ENDED  /* finished: the model or adapter is in plan.result; otherwise `error` tells why, STATUS_OK if it was
	                 * stopped */
} training_kind;

typedef struct training_report {
	training_kind kind;
	train_progress progress;
	bool finished;
	bool damaged;       /* ENDED: the checkpoint in plan.resume cannot be read; `error` has the reason */
	json_t *checkpoint; /* SAVED without error: the checkpoint's row, equal to its manifest; borrowed */
	json_t *preview;    /* EVALUATED: {"prompt", "text"}, the text that the model generated; borrowed; NULL: none */
	uint64_t took_ns;   /* EVALUATED and SAVED: how long that took; 0: unknown */
	error error;
} training_report;

typedef struct training_plan {
	/* Source of the weights: a checkpoint of this run, the folder of a model, or an initialisation. */
	char resume[PATH_MAX]; /* "" or the checkpoint's folder */
	char base[PATH_MAX];   /* "" or the model's folder */
	bool adapter;          /* the weights are those of an adapter of `base`, also in `resume` */
	json_t *lora;          /* options of a low-rank adapter (job_request.h); NULL: a state adapter */
	char base_id[STORE_ID_BYTES]; /* with `adapter` */
	const architecture *architecture;
	json_t *config;
	train_options options;
	uint64_t save_ns; /* maximum time between saves; 0: save only when the trainer requests it */
	tokenizer *tokenizer;
	dataset *train, *valid; /* valid may be NULL */
	int64_t *counts;        /* for a new model that counts tokens (architecture.h): count of each id in the texts;
	                         * otherwise NULL */
	const store *store;     /* used for paths of checkpoints only, which is legal on any thread */
	char job[STORE_ID_BYTES];
	char name[STORE_ID_BYTES];    /* id of the finished model or adapter */
	char project[STORE_ID_BYTES]; /* the job's */
	char result[PATH_MAX];        /* folder for it */
	json_t *card;                 /* the model's card (recipe/model_card.h); it gets its results at the end */
	/* Receives reports. Loop thread. False after EVALUATED: the ledger does not have its row yet. */
	bool (*report)(void *context, const training_report *r);
	void *context;
} training_plan;

/* Free the members that the plan owns: configuration, tokenizer, datasets, counts, card. */
void training_plan_fini(training_plan *p);

/* Start a run. The plan must stay valid until ENDED. STATUS_NOMEM. */
status training_begin(training **out, uv_loop_t *loop, executor *x, training_plan *p);
/* Stop after the write in progress, and with `save` after a checkpoint. ENDED follows; further calls have no effect.
 * rows_written: the ledger has the rows of all evaluations reported so far. Loop thread. */
void training_stop(training *t, bool save, bool rows_written);
/* Free; only after ENDED. Loop thread. */
void training_free(training *t);

#endif
