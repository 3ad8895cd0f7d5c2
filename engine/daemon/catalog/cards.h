/* cards.h - the models that can be named in a request.
 *
 * A name is a model of the store ("ft:additive:demo:1a2b3c4d") or a checkpoint of a job
 * ("ckpt-<24 hex digits of the job>-<step>"). What requests need of a model before it is on the device - configuration,
 * vocabulary, tokenizer - is read once and kept as a card; the weights are the scheduler's affair.
 * Cards are reference-counted, so that a request can finish on a model that is being forgotten.
 * Loop thread only, except for cards_model and the tokenizer of a card one holds. */
#ifndef ENGINE_DAEMON_CATALOG_CARDS_H
#define ENGINE_DAEMON_CATALOG_CARDS_H

#include <limits.h>

#include "engine/daemon/compute/device.h"
#include "engine/model/model.h"
#include "engine/store/store.h"
#include "engine/text/tokenizer.h"

enum { CARDS_MAX = 256 };

typedef struct cards cards;

enum { CARD_PROBLEM_BYTES = 256 };

typedef struct card {
	struct card *next;
	int references;
	bool deleting; /* being removed: new requests do not find it */
	char id[STORE_ID_BYTES];
	char folder[PATH_MAX];
	const architecture *architecture;
	const explainer *explainer; /* NULL: it has no importance weights */
	json_t *config;             /* config.json, every key, */
	void *parsed;               /* and as the architecture has read it */
	json_t *class_names;        /* of HEAD_CLASSES: an array of strings; else NULL */
	model_dims dims;
	int64_t parameters, state_bytes;
	_Atomic dtype weights; /* how it is kept for serving: a panel type. Changed on the executor as it is loaded */
	tokenizer *tokenizer;
	char owned_by[64];
	int64_t created;
	char problem[CARD_PROBLEM_BYTES]; /* why it cannot be used: its row, configuration or tokenizer is damaged; "":
	                                   * nothing. Then what these would say is not there */
	_Atomic bool unloadable;          /* its weights could not be loaded when this was last tried, */
	char load_problem[CARD_PROBLEM_BYTES]; /* and why; written before the flag is set for the first time */
} card;

status cards_new(cards **out, store *s);
void cards_free(cards *all);

/* The card of a name, with a reference for the caller. STATUS_NOT_FOUND; STATUS_STORAGE, logged: what the store has
 * under this name is damaged. */
status cards_open(cards *all, const char *id, card **out, error *err);
/* The same for what generates text or keeps sessions: a model that cannot is STATUS_INVALID "model". */
status cards_open_generative(cards *all, const char *id, card **out, error *err);
/* The same for what only shows or deletes: a damaged one has a card too, with its `problem`. */
status cards_inspect(cards *all, const char *id, card **out, error *err);
/* Why the model cannot be used, as far as is known; NULL: nothing is wrong. */
const char *cards_problem(const card *c);
/* Tell the store of models that the executor could not load. */
void cards_note_damage(cards *all);
void cards_release(card *c); /* NULL is legal */
/* The name is gone from the store: requests must not find it any more. */
void cards_forget(cards *all, const char *id);
/* Any thread: write the manifest of a finished folder that is to be this model (store_model_seal). STATUS_INVALID,
 * UNSUPPORTED: it is none. */
status cards_seal(const char *id, const char *folder, const char *owned_by, error *err);
/* Move a finished folder in as a new model; one that is not sealed is sealed first. STATUS_CONFLICT when the id exists.
 */
status cards_add(cards *all, const char *id, const char *folder, const char *owned_by, error *err);

/* Executor thread: the `prepare` of a task that calls cards_model (device_prepare), and the card's model
 * (device_model). */
bool cards_prepare(const card *c, device *d);
status cards_model(card *c, device *d, served_model **out, error *err);
/* The same with other weights than it has been served with. */
status cards_load(card *c, device *d, dtype weights, served_model **out, error *err);
/* It is loaded with these weights: keep the choice. */
status cards_keep_weights(cards *all, const card *c, error *err);
/* "fp32", "bf16", "int8". False when there is none of that name. */
bool cards_find_dtype(const char *name, dtype *out);
const char *cards_dtype_name(dtype weights);

/* STATUS_INVALID, naming the parameter, when the architecture has no importance weights; or, `with_tokens`, none that
 * generated tokens can bring with them: its explainer has no score per token. */
status cards_check_explains(const card *c, bool with_tokens, const char *param, error *err);
/* STATUS_INVALID, naming the parameter, when the model has no head for classes. */
status cards_check_classifies(const card *c, const char *param, error *err);

/* Where the store has it: STORE_MODELS or STORE_CHECKPOINTS. */
store_table cards_table(const card *c);
/* "ckpt-…" of a job's checkpoint, and back. */
void cards_checkpoint_name(const char *job, int64_t step, char out[STORE_ID_BYTES]);
bool cards_parse_checkpoint(const char *id, char job[STORE_ID_BYTES], int64_t *step);

/* Scalars of all parameters of a configuration; -1 when out of memory or over INT64_MAX. */
int64_t cards_count_parameters(const architecture *a, const void *config);

#endif
