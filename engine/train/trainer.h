/* trainer.h - a training run as a resumable state machine.
 *
 * trainer_advance does a little work and returns, so one executor thread can train
 * and serve. Everything that decides the future is in the trainer's checkpoint:
 * weights, the optimiser's state, step, data position, seeds; a run resumed from a checkpoint
 * continues bit for bit on the same backend. */
#ifndef ENGINE_TRAIN_TRAINER_H
#define ENGINE_TRAIN_TRAINER_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"
#include "gen/recipe.h"

/* How a model is trained: the members of TrainingOptions in proto/openapi.yaml, which gives their meaning, ranges and
 * defaults, under their own names, and what no request has.
 *
 * With PRECISION_BF16 activations, and what products read of the weights, have 8 significant bits; the weights
 * themselves, their gradients and the moments stay fp32. recompute changes no bit of a result. */
typedef struct train_options {
#define INTEGER(name, min, max, otherwise) int64_t name;
#define NUMBER(name, above, min, max, otherwise) double name;
#define FLAG(name, otherwise) bool name;
#define CHOICE(name, otherwise) train_##name name;
#define PAIR(name, min, max, ...) double name[2];
#include "gen/recipe.def"
	const struct objective *objective;      /* objective.h */
	const struct optimizer_kind *optimizer; /* optimizer_kind.h: lists which of the others it reads */
	uint64_t seed;
	int64_t eval_blocks; /* validation records per evaluation; 0: all */
	struct ranks *ranks; /* ranks.h: batch_size is that of all of them together; NULL: this process is alone */
} train_options;

void train_options_default(train_options *o);
/* Read the members of a JSON object, named as those of train_options; keys in `others` (NULL-terminated) are skipped,
 * any further key, and one that only another optimiser or objective reads, is STATUS_INVALID naming it. */
status train_options_read(train_options *o, const json_t *json, const char *const *others, error *err);
/* All options, without those that only another optimiser or objective reads, as an object that train_options_read
 * takes. New reference; NULL when out of memory. */
json_t *train_options_write(const train_options *o);
/* Ranges, and what the options ask of each other. STATUS_INVALID names the field. */
status train_options_check(const train_options *o, error *err);
/* Of a run without validation data: STATUS_INVALID names an option that needs some. */
status train_options_check_unvalidated(const train_options *o, error *err);

/* Tokens of a source, at most: source_length, or as many as of a sequence; 0: the objective gives the model none. */
int64_t train_options_source(const train_options *o);
/* Tokens of a record, at most, for the datasets of such a run. */
int64_t train_options_record(const train_options *o);
/* Do batches have different numbers of labels? */
bool train_options_uneven(const train_options *o);

/* Learning rate at step t (0-based): linear warm-up, then the schedule down to 0. */
double train_learning_rate(const train_options *o, int64_t step);

enum { TRAIN_MAX_METRICS = 6 };

typedef struct train_progress {
	int64_t step, total_steps;
	int64_t tokens;    /* trained so far, all runs of this job together; what fills up short records counts too */
	double train_loss; /* the last finished step's; NaN before, and where that step had no label */
	double gradient_norm, learning_rate;
	double valid_loss;                 /* of the last evaluation, nats per label; NaN before */
	int64_t best_step;                 /* of the evaluation with the lowest loss; 0: none */
	double best_valid_loss;            /* of that one; NaN before */
	int64_t result_step;               /* whose weights a finished run has (trainer_conclude); 0 before */
	int64_t skipped_steps;             /* whose loss or gradient was not finite */
	int64_t empty_steps;               /* without a label: they have no loss and changed no weight */
	double gradient_noise;             /* the noise scale, in records; NaN without the option or before */
	double suggested_rate;             /* of a range test; NaN without one or before */
	const struct objective *objective; /* names the metrics */
	double metrics[TRAIN_MAX_METRICS]; /* of the last evaluation; NaN before */
	double byte_entropy; /* of the training text by its bytes' frequencies alone, bits per byte; NaN of labelled
	                        texts */
	double tokens_per_second; /* smoothed over the last steps */
} train_progress;

/* A metric of the last evaluation by the name that the objective gives it; NaN when there is none. */
double train_metric(const train_progress *p, const char *name);

/* All numbers of a progress as an object, those that are not finite as null, and back. NULL: out of memory. A reading
 * takes what is missing for NaN or 0; the objective is kept. */
json_t *train_progress_write(const train_progress *p);
void train_progress_read(train_progress *p, const json_t *json);

/* What one trainer_advance completed (bit set). */
enum { TRAIN_STEP = 1, TRAIN_EVAL = 2, TRAIN_CHECKPOINT_DUE = 4, TRAIN_FINISHED = 8 };

typedef struct trainer trainer;

/* Takes ownership of m, also on failure; borrows the datasets (valid may be NULL).
 * STATUS_INVALID names the option: an objective that needs another head or other records, sequence_length over the
 * model's positions or not the datasets', batch_size over the training records, tokens outside the model's vocabulary;
 * of several ranks batch_size that they cannot share, or what only one process can do (carry_state, gradient_noise).
 * STATUS_UNSUPPORTED: a precision that the backend lacks. */
status trainer_new(trainer **out, model *m, const train_options *o, const dataset *train, const dataset *valid,
                   error *err);
void trainer_free(trainer *t);

/* Work for about `budget_ns` (0: until the next event), at least one op, and return at the
 * first event; *events gets the bits of what was completed. How the work is sliced changes
 * no number. With TRAIN_CHECKPOINT_DUE the caller should trainer_save before advancing.
 * TRAIN_FINISHED comes once, after the last step's evaluation, with `patience` after the evaluation that is so many
 * behind the best one, or where a range test ends; then nothing is left to do.
 * Errors are final; a loss or gradient that is not finite max_bad_steps in a row is one
 * (STATUS_INVALID). */
status trainer_advance(trainer *t, uint64_t budget_ns, unsigned *events, error *err);
const train_progress *trainer_progress(const trainer *t);
/* After TRAIN_FINISHED: with keep_best give the model the weights of the best evaluation, where that was not the last.
 * The run cannot be saved after it. */
status trainer_conclude(trainer *t, error *err);
/* The one that evaluations are of: with ema_decay the average. */
const model *trainer_model(const trainer *t);
/* What the model wrote at the evaluation that was just completed (TRAIN_EVAL): *prompt tokens of the validation text,
 * then its own, *count in all; none (*count is 0) when it cannot write. Valid until the next advance. */
const int32_t *trainer_preview(const trainer *t, int *prompt, int *count);

/* A device may have been given the update of a step whose numbers are not in the progress yet: wait for them, so that
 * weights and progress belong together. The next advance reports what it completed. Errors are final. */
status trainer_settle(trainer *t, error *err);
/* Checkpoint folder: a complete model (config.json, model.safetensors, tokenizer.json) plus
 * optimizer.safetensors, trainer.json and a manifest with `id` and `about` (an object or NULL). Written to a temporary
 * sibling, fsynced, renamed (an existing folder is exchanged). May be called between any two advances: it settles
 * first, and a step in progress is not part of it and will be done again. */
status trainer_save(trainer *t, const tokenizer *tok, const char *folder, const char *id, const json_t *about,
                    error *err);
/* What a finished run gives, behind trainer_conclude, into an existing folder: config.json, model.safetensors,
 * tokenizer.json and, of an optimiser whose states the next job takes over, optimizer.safetensors. */
status trainer_save_model(const trainer *t, const tokenizer *tok, const char *folder, error *err);
/* Before the first advance of a run that begins with the model of `folder`: take over what an optimiser left there, if
 * it is of the same kind and measure as the run's. STATUS_STORAGE: the file is damaged; STATUS_INVALID: it does not fit
 * the model. After an error the trainer must be freed. */
status trainer_continue(trainer *t, const char *folder, error *err);
/* Continue from a checkpoint folder, which may be one of a run with another number of ranks; each rank has to: weights,
 * moments, position and progress. It must have been written with the same model configuration, options and data:
 * STATUS_INVALID names what differs. STATUS_STORAGE: a file of it is damaged or missing. After another error the
 * trainer's weights may be half replaced, and it must be freed. */
status trainer_resume(trainer *t, const char *folder, error *err);

#endif
