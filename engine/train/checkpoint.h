/* checkpoint.h - the folder from which a run continues.
 *
 *   config.json, model.safetensors, tokenizer.json   a complete model; of an adapter, its own files (adapter.h, lora.h)
 *                                                    and tokenizer.json
 *   optimizer.safetensors   the optimiser's states (optimizer_file.h); for adamw "m" and "v", in the layout of the
 *                           model's arena
 *   carried.safetensors     with carry_state: the states that the rows of the next step carry (carry.h)
 *   trained.safetensors     with ema_decay, where the model is the average: the weights being trained (kept_weights.h)
 *   best.safetensors        with keep_best, after the first evaluation: the best weights (kept_weights.h)
 *   reference.safetensors   with an objective that compares with the first weights: log-probabilities by them
 *                           (reference.h)
 *   trainer.json            the trainer's own state, and "updates"
 *   manifest.json           written last: the hashes of all files (manifest.h)
 *
 * The folder appears whole or not at all. Everything is written and fsynced in a temporary sibling (NAME.tmp-XXXXXX),
 * which is then renamed. A crash leaves at most the sibling. */
#ifndef ENGINE_TRAIN_CHECKPOINT_H
#define ENGINE_TRAIN_CHECKPOINT_H

#include "engine/train/kept_weights.h"
#include "engine/train/carry.h"
#include "engine/train/optimizer.h"
#include "engine/train/reference.h"

/* The parts of a run after `step` steps. trained, carry, best and reference may be NULL. */
typedef struct checkpoint_parts {
	const model *model;   /* the model that is evaluated */
	const model *trained; /* with an average: the model that is trained */
	const optimizer *optimizer;
	const carry *carry;
	const kept_weights *best;
	const reference *reference; /* complete */
	int64_t step;
} checkpoint_parts;

/* Write a checkpoint. state: an object; borrowed. id, about: for the manifest, whose kind is "checkpoint"; about may be
 * NULL. */
status checkpoint_write(const char *folder, const checkpoint_parts *parts, const tokenizer *tok, const json_t *state,
                        const char *id, const json_t *about, error *err);

/* The functions below verify everything they read against the manifest, if there is one. STATUS_STORAGE names the
 * damaged or missing file. */
/* Read the state object of a folder; *state is a new reference, NULL on error. */
status checkpoint_read_state(const char *folder, json_t **state, error *err);
/* Load weights and the optimiser's state into m and o. STATUS_INVALID (and nothing has changed): the folder's model has
 * another configuration. */
status checkpoint_load(const char *folder, const json_t *state, model *m, optimizer *o, error *err);
/* Load the states that the rows of `step` carry into c; NULL: nothing to do. */
status checkpoint_load_carry(const char *folder, carry *c, int64_t step, error *err);
/* Load trained.safetensors into the weights of m. */
status checkpoint_load_trained(const char *folder, model *m, error *err);
/* Load the weights of the best evaluation; NULL: nothing to do. */
status checkpoint_load_best(const char *folder, kept_weights *b, error *err);
/* Load the log-probabilities by the first weights; NULL: nothing to do. */
status checkpoint_load_reference(const char *folder, reference *r, error *err);

#endif
