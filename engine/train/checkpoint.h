/* checkpoint.h - the folder a run continues from.
 *
 *   config.json, model.safetensors, tokenizer.json   a model like any other
 *   optimizer.safetensors   what the optimiser keeps (optimizer_file.h): of adamw "m" and "v", laid out like the
 *                           model's arena
 *   carried.safetensors     with carry_state: what the rows of the next step carry (carry.h)
 *   trained.safetensors     with ema_decay, whose average the model is: the weights that training goes on with
 *                           (kept_weights.h)
 *   best.safetensors        with keep_best, after the first evaluation: the weights of the best one (kept_weights.h)
 *   trainer.json            the trainer's own state, and "updates"
 *   manifest.json           written last: the hashes of all of these (manifest.h)
 *
 * The folder appears whole or not at all: everything is written and fsynced in a
 * temporary sibling (NAME.tmp-XXXXXX) that is then renamed. A crash leaves at most the
 * sibling behind. */
#ifndef ENGINE_TRAIN_CHECKPOINT_H
#define ENGINE_TRAIN_CHECKPOINT_H

#include "engine/train/kept_weights.h"
#include "engine/train/carry.h"
#include "engine/train/optimizer.h"

/* What a run after `step` steps consists of. trained, carry and best may be NULL. */
typedef struct checkpoint_parts {
	const model *model;   /* evaluated */
	const model *trained; /* with an average: the one that is trained */
	const optimizer *optimizer;
	const carry *carry;
	const kept_weights *best;
	int64_t step;
} checkpoint_parts;

/* state: an object; borrowed. id, about: of the manifest, whose kind is "checkpoint"; about may be NULL. */
status checkpoint_write(const char *folder, const checkpoint_parts *parts, const tokenizer *tok, const json_t *state,
                        const char *id, const json_t *about, error *err);

/* What follows verifies all that it reads against the manifest, where there is one: STATUS_STORAGE names the damaged
 * or missing file. */
/* The state object of a folder; *state is a new reference, NULL on error. */
status checkpoint_read_state(const char *folder, json_t **state, error *err);
/* Load weights and the optimiser's state into m and o. STATUS_INVALID (and nothing changed) when the
 * folder's model has another configuration. */
status checkpoint_load(const char *folder, const json_t *state, model *m, optimizer *o, error *err);
/* What the rows of `step` carry, into c; NULL: nothing is read. */
status checkpoint_load_carry(const char *folder, carry *c, int64_t step, error *err);
/* trained.safetensors, into the weights of m. */
status checkpoint_load_trained(const char *folder, model *m, error *err);
/* The weights of the best evaluation; NULL: nothing is read. */
status checkpoint_load_best(const char *folder, kept_weights *b, error *err);

#endif
