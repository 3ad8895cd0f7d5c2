/* trainer.h - a training run as a resumable state machine.
 *
 * trainer_advance does a little work and returns, so one executor thread can train and serve. The checkpoint contains
 * everything on which the run depends: weights, the optimiser's state, step, data position, seeds. A run resumed from a
 * checkpoint continues bit for bit on the same backend.
 *
 * With precision bf16 the weights, their gradients and the optimiser's state stay f32, and the same bits are saved.
 * Forward and backward read a bf16 copy of the matrices (model_update_bf16_copy). The optimiser writes the copy beside
 * the weights, and a resumed run makes it again. Activations and their gradients are bf16. */
#ifndef ENGINE_TRAIN_TRAINER_H
#define ENGINE_TRAIN_TRAINER_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"
#include "gen/recipe.h"

/* Options of a run: the members of TrainingOptions in proto/openapi.yaml under their own names (it has their meanings,
 * ranges and defaults), and some that requests do not have.
 *
 * With PRECISION_BF16, activations and the weights that products read have 8 significant bits; the weights themselves,
 * their gradients and the moments are fp32. recompute changes no bit of a result. */
typedef struct train_options {
#define INTEGER(name, min, max, fallback) int64_t name;
#define NUMBER(name, above, min, max, fallback) double name;
#define FLAG(name, fallback) bool name;
#define CHOICE(name, fallback) train_##name name;
#define PAIR(name, min, max, ...) double name[2];
#include "gen/recipe.def"
	const struct objective *objective;      /* objective.h */
	const struct optimizer_kind *optimizer; /* optimizer_kind.h: lists the options that it reads */
	uint64_t seed;
	int64_t eval_blocks;  /* validation records per evaluation; 0: all */
	struct ranks *ranks;  /* ranks.h: batch_size is the total of all ranks; NULL: a single process */
	bool shard_optimizer; /* each rank keeps and updates only its share (ranks.h); no effect in a single process */
} train_options;

void train_options_default(train_options *o);
/* Read the members of a JSON object, named as in train_options. Keys in `others` (NULL-terminated) are skipped.
 * STATUS_INVALID names any other key, and one that only another optimiser or objective reads. */
status train_options_read(train_options *o, const json_t *json, const char *const *others, error *err);
/* Return all options as an object that train_options_read accepts, except those that only another optimiser or
 * objective reads. New reference; NULL: out of memory. */
json_t *train_options_write(const train_options *o);
/* Check ranges and dependencies between options. STATUS_INVALID names the field. */
status train_options_check(const train_options *o, error *err);
/* Check a run without validation data: STATUS_INVALID names an option that needs some. */
status train_options_check_unvalidated(const train_options *o, error *err);

/* Return the maximum tokens of a source: source_length, or those of a sequence; 0: the objective has no source. */
int64_t train_options_source(const train_options *o);
/* Return the maximum tokens of a record for the datasets of such a run. */
int64_t train_options_record(const train_options *o);
/* True if batches may have different numbers of labels. */
bool train_options_uneven(const train_options *o);

/* Return the learning rate at step t (from 0): linear warm-up, then the schedule down to 0. */
double train_learning_rate(const train_options *o, int64_t step);

enum { TRAIN_MAX_METRICS = 6 };

typedef struct train_progress {
	int64_t step, total_steps;
	int64_t tokens;    /* trained so far in all runs of this job, including padding */
	double train_loss; /* for the last finished step; NaN before, and if that step had no label */
	double gradient_norm, learning_rate;
	double valid_loss;                 /* for the last evaluation, nats per label; NaN before */
	int64_t best_step;                 /* step of the evaluation with the lowest loss; 0: none */
	double best_valid_loss;            /* its loss; NaN before */
	int64_t result_step;               /* step whose weights a finished run has (trainer_conclude); 0 before */
	int64_t skipped_steps;             /* steps whose loss or gradient was not finite */
	int64_t empty_steps;               /* steps without a label, which have no loss and change no weight */
	double gradient_noise;             /* the noise scale, in records; NaN without the option or before */
	double suggested_rate;             /* by a range test; NaN without one or before */
	const struct objective *objective; /* names the metrics */
	double metrics[TRAIN_MAX_METRICS]; /* for the last evaluation; NaN before */
	double byte_entropy; /* entropy of the training text by its bytes' frequencies, bits per byte; NaN for labelled
	                      * texts */
	double tokens_per_second; /* smoothed over the last steps */
} train_progress;

/* Return a metric of the last evaluation by the name that the objective gives it; NaN if it has none. */
double train_metric(const train_progress *p, const char *name);

/* Convert all numbers of a progress to an object (those that are not finite become null) and back. NULL: out of memory.
 * Reading sets missing ones to NaN or 0; the objective is unchanged. */
json_t *train_progress_write(const train_progress *p);
void train_progress_read(train_progress *p, const json_t *json);

/* The completed parts of one trainer_advance (bit set). */
enum { TRAIN_STEP = 1, TRAIN_EVAL = 2, TRAIN_CHECKPOINT_DUE = 4, TRAIN_FINISHED = 8 };

typedef struct trainer trainer;

/* Create a run. Takes ownership of m, also on failure; borrows the datasets (valid may be NULL) and the base of an
 * adapter (engine/model/adapter.h). STATUS_UNSUPPORTED: the backend lacks the precision. STATUS_INVALID names the option:
 *
 *   objective        needs another head or other records
 *   sequence_length  over the model's positions, or not that of the datasets
 *   batch_size       over the training records, or not divisible among the ranks
 *   and tokens outside the model's vocabulary, or, with several ranks, carry_state or gradient_noise */
status trainer_new(trainer **out, model *m, const train_options *o, const dataset *train, const dataset *valid,
                   error *err);
void trainer_free(trainer *t);

/* Work for about `budget_ns` (0: until the next event), at least one op, and return at the first event; *events gets
 * the bits of what was completed. Slicing changes no number.
 *
 * After TRAIN_CHECKPOINT_DUE the caller should call trainer_save before advancing. TRAIN_FINISHED comes once: after the
 * last step's evaluation, with `patience` after that many evaluations without improvement, or at the end of a range
 * test. Nothing is left to do then. Errors are final. max_bad_steps consecutive steps whose loss or gradient is not
 * finite are an error (STATUS_INVALID). */
status trainer_advance(trainer *t, uint64_t budget_ns, unsigned *events, error *err);
/* Set whether trainer_advance with a budget may sleep, for at most 100 µs, until an asynchronous device has results.
 * Initially it may; a caller that has other work should not wait. */
void trainer_may_wait(trainer *t, bool may);
const train_progress *trainer_progress(const trainer *t);
/* Call after TRAIN_FINISHED: with keep_best, load the weights of the best evaluation, if it was not the last. The run
 * cannot be saved afterwards. */
status trainer_conclude(trainer *t, error *err);
/* Return the model that is evaluated: with ema_decay the average. */
const model *trainer_model(const trainer *t);
/* Return the text generated at the evaluation just completed (TRAIN_EVAL): *prompt tokens of the validation text, then
 * the model's, *count in total. *count is 0 if it cannot generate. Valid until the next advance. */
const int32_t *trainer_preview(const trainer *t, int *prompt, int *count);

/* Wait for the numbers of a step whose update has been issued to an asynchronous device, so that weights and progress
 * belong together. The next advance reports what this completed. Errors are final. */
status trainer_settle(trainer *t, error *err);
/* With shard_optimizer: gather the optimiser's states of all ranks in the host's memory, for trainer_save and
 * trainer_save_model. All ranks call it after the same step, until *complete. It never waits for other ranks, and what
 * is gathered lasts until the next step. Otherwise it is complete at once. */
status trainer_gather(trainer *t, bool *complete, error *err);
/* Write a checkpoint folder: a complete model (config.json, model.safetensors, tokenizer.json) with
 * optimizer.safetensors, trainer.json and a manifest with `id` and `about` (an object or NULL). It is written to a
 * temporary sibling, fsynced and renamed; an existing folder is exchanged. May be called between any two advances. It
 * settles first; a step in progress is not included and will be repeated. STATUS_UNAVAILABLE: the optimiser is
 * sharded, and its states have not been gathered since the last step. */
status trainer_save(trainer *t, const tokenizer *tok, const char *folder, const char *id, const json_t *about,
                    error *err);
/* After trainer_conclude, write the finished model to an existing folder: config.json, model.safetensors,
 * tokenizer.json and, if the next job takes over the optimiser's states, optimizer.safetensors. A sharded optimiser's
 * must have been gathered. */
status trainer_save_model(const trainer *t, const tokenizer *tok, const char *folder, error *err);
/* Before the first advance of a run that starts from the model in `folder`: take over the optimiser's states stored
 * there, if they have the same kind and measure. STATUS_STORAGE: the file is damaged. STATUS_INVALID: it does not fit
 * the model. After an error the trainer must be freed. */
status trainer_continue(trainer *t, const char *folder, error *err);
/* Continue from a checkpoint folder: weights, moments, position and progress. Every rank calls it; the checkpoint may
 * come from a run with another number of ranks. It must have the same model configuration, options and data:
 * STATUS_INVALID names what differs. STATUS_STORAGE: a file is damaged or missing. After another error the weights may
 * be partly replaced, and the trainer must be freed. */
status trainer_resume(trainer *t, const char *folder, error *err);

#endif
