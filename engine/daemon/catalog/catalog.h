/* catalog.h - the models that can be named in a request.
 *
 * A name is a model of the store ("ft:additive:demo:1a2b3c4d") or a checkpoint of a job
 * ("ckpt-<24 hex digits of the job>-<step>"). Requests need configuration, vocabulary and tokenizer of a model before
 * it is on the device: these are read once and kept as a model_entry; the scheduler keeps the weights. Entries are
 * reference-counted, so that a request can finish on a model that is being removed. Loop thread only, except for
 * catalog_model and the tokenizer of an entry with a reference. */
#ifndef ENGINE_DAEMON_CATALOG_CATALOG_H
#define ENGINE_DAEMON_CATALOG_CATALOG_H

#include <limits.h>

#include "engine/daemon/compute/device.h"
#include "engine/model/model.h"
#include "engine/store/store.h"
#include "engine/text/chat_template.h"
#include "engine/daemon/catalog/kept_constraints.h"
#include "engine/text/tokenizer.h"

enum { CATALOG_MAX = 256 };

typedef struct catalog catalog;

enum { MODEL_ENTRY_PROBLEM_BYTES = 256 };

typedef struct model_entry {
	struct model_entry *next;
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
	token_trie *trie;             /* of its tokens; NULL before catalog_token_trie */
	kept_constraints constraints; /* of texts with these tokens */
	chat_template *chat;          /* NULL: its conversations cannot be rendered, */
	error chat_problem;           /* and why */
	char owned_by[64];
	int64_t created;
	char problem[MODEL_ENTRY_PROBLEM_BYTES];      /* why it cannot be used: its row, configuration or tokenizer is
	                                               * damaged; "":      nothing. Then what these would say is not there */
	_Atomic bool unloadable;                      /* its weights could not be loaded when this was last tried, */
	char load_problem[MODEL_ENTRY_PROBLEM_BYTES]; /* and why; written before the flag is set for the first time */
} model_entry;

status catalog_new(catalog **out, store *s);
void catalog_free(catalog *all);

/* The entry of a name, with a reference for the caller. STATUS_NOT_FOUND; STATUS_STORAGE, logged: what the store has
 * under this name is damaged. */
status catalog_open(catalog *all, const char *id, model_entry **out, error *err);
/* The same for what generates text or keeps sessions: a model that cannot is STATUS_INVALID "model". */
status catalog_open_generative(catalog *all, const char *id, model_entry **out, error *err);
/* The same for what only shows or deletes: a damaged one has an entry too, with its `problem`. */
status catalog_inspect(catalog *all, const char *id, model_entry **out, error *err);
/* Why the model cannot be used; NULL: no fault is known. */
const char *catalog_problem(const model_entry *m);
/* Record in the store the models that the executor could not load. */
void catalog_note_damage(catalog *all);
void catalog_release(model_entry *m); /* NULL is legal */
/* Remove a name that the store has deleted: requests must not find it any more. */
void catalog_forget(catalog *all, const char *id);
/* Any thread: write the manifest of a finished folder that is to be this model (store_model_seal). STATUS_INVALID,
 * UNSUPPORTED: it is none. */
status catalog_seal(const char *id, const char *folder, const char *owned_by, error *err);
/* Move a finished folder in as a new model; one that is not sealed is sealed first. STATUS_CONFLICT when the id exists.
 */
status catalog_add(catalog *all, const char *id, const char *folder, const char *owned_by, error *err);

/* Any thread, with a reference: the trie of the entry's vocabulary, made on first use. STATUS_NOMEM. */
status catalog_token_trie(model_entry *m, const token_trie **out);

/* Executor thread: the `prepare` of a task that calls catalog_model (device_prepare), and the entry's model
 * (device_model). */
bool catalog_prepare(const model_entry *m, device *d);
status catalog_model(model_entry *m, device *d, served_model **out, error *err);
/* The same with a new type of weights. */
status catalog_load(model_entry *m, device *d, dtype weights, served_model **out, error *err);
/* Record the type of the weights with which it is now loaded. */
status catalog_keep_weights(catalog *all, const model_entry *m, error *err);
/* "fp32", "bf16", "int8". False when there is none of that name. */
bool catalog_find_dtype(const char *name, dtype *out);
const char *catalog_dtype_name(dtype weights);

/* STATUS_INVALID, naming the parameter, when the architecture has no importance weights; or, `with_tokens`, none that
 * generated tokens can bring with them: its explainer has no score per token. */
status catalog_check_explains(const model_entry *m, bool with_tokens, const char *param, error *err);
/* STATUS_INVALID, naming the parameter, when the model reads a source beside a text, which the request cannot give. */
status catalog_check_reads_alone(const model_entry *m, const char *param, error *err);
/* STATUS_INVALID, naming the parameter, when the model has no head for classes. */
status catalog_check_classifies(const model_entry *m, const char *param, error *err);
/* The same, when it cannot guess a token from those on both sides of it, or has no token to ask with. */
status catalog_check_fills_masks(const model_entry *m, const char *param, error *err);
/* That token: the model's own, else its tokenizer's, or TOKEN_NONE. */
int32_t catalog_mask(const model_entry *m);
/* The token that a decoder with a source begins with: the model's own, else its tokenizer's, or TOKEN_NONE. */
int32_t catalog_start(const model_entry *m);

/* The store's table of the entry: STORE_MODELS or STORE_CHECKPOINTS. */
store_table catalog_table(const model_entry *m);
/* What job_document_checkpoint_name made the name of. */
bool catalog_parse_checkpoint(const char *id, char job[STORE_ID_BYTES], int64_t *step);

#endif
