/* catalog.h - the models that a request can name.
 *
 * A name is a model of the store ("ft:additive:demo:1a2b3c4d") or a checkpoint of a job ("ckpt-<24 hex digits of the
 * job>-<step>"). Requests need a model's configuration, vocabulary and tokenizer before it is on the device. These are
 * read once and kept as a model_entry; the scheduler keeps the weights. Entries are reference-counted. A model has one
 * entry as long as anything refers to it.
 *
 * Changes: a request begins to use a model's weights in a task with catalog_prepare, on its device. A change of the
 * weights' type, an unload and a deletion first close the entry. These tasks then wait, on every device. So what the
 * change finds idle stays idle until the entry is open again, and all devices have the weights before the change, or
 * all have those after it. Requests that run make the change fail (STATUS_CONFLICT).
 *
 * Loop thread only, except catalog_model and the tokenizer of an entry with a reference. */
#ifndef ENGINE_DAEMON_CATALOG_CATALOG_H
#define ENGINE_DAEMON_CATALOG_CATALOG_H

#include <limits.h>

#include "engine/daemon/compute/fleet.h"
#include "engine/model/model.h"
#include "engine/store/store.h"
#include "engine/text/chat_template.h"
#include "engine/daemon/catalog/kept_constraints.h"
#include "engine/text/tokenizer.h"

enum { CATALOG_MAX = 256 };

typedef struct catalog catalog;

enum { MODEL_ENTRY_PROBLEM_BYTES = 256 };

typedef enum model_gate {
	MODEL_OPEN,
	MODEL_CLOSED, /* tasks that would begin to use the weights wait */
	MODEL_DELETED /* they fail: STATUS_NOT_FOUND */
} model_gate;

typedef enum model_closing { CLOSE_TO_CHANGE, CLOSE_TO_UNLOAD, CLOSE_TO_DELETE } model_closing;

typedef struct model_entry {
	struct model_entry *next;
	int references;
	int loads;               /* model.load requests in progress */
	_Atomic model_gate gate; /* written by the loop */
	bool deleting;           /* being deleted; new requests do not find it */
	char id[STORE_ID_BYTES];
	char folder[PATH_MAX];
	const architecture *architecture;
	const explainer *explainer; /* NULL: no importance weights */
	json_t *config;             /* config.json with every key */
	void *parsed;               /* config as the architecture parsed it */
	json_t *class_names;        /* with HEAD_CLASSES: an array of strings; otherwise NULL */
	model_dims dims;
	int64_t parameters, state_bytes;
	_Atomic dtype weights; /* weight type for serving, which panels support; written by the loop, after open only
	                        * while closed */
	tokenizer *tokenizer;
	token_trie *tries[2];                    /* tries of its tokens, without and with marks of calls; NULL before
	                                          * catalog_token_trie */
	kept_constraints constraints[FLEET_MAX]; /* constraints compiled for these tokens; one for each
	                                          * device, because a constraint serves one thread at a time */
	chat_template *chat;                     /* NULL: conversations cannot be rendered */
	error chat_problem;                      /* the reason */
	char owned_by[64];
	char project[STORE_ID_BYTES]; /* "": the default */
	int64_t created;
	char problem[MODEL_ENTRY_PROBLEM_BYTES];      /* why the model cannot be used: row, configuration or tokenizer
	                                               * is damaged; fields read from these are then unset. "":
	                                               * usable */
	_Atomic bool unloadable;                      /* its weights could not be loaded when last tried */
	char load_problem[MODEL_ENTRY_PROBLEM_BYTES]; /* the reason; written before the flag is first set */
} model_entry;

status catalog_new(catalog **out, store *s);
void catalog_free(catalog *all);
/* Remove the states of prompts of each model that is forgotten from here. NULL: there are none. */
void catalog_set_prefix_disk(catalog *all, struct prefix_disk *d);

/* Return the entry of a name, with a reference for the caller. STATUS_NOT_FOUND. STATUS_STORAGE, logged: the stored
 * model is damaged. */
status catalog_open(catalog *all, const char *id, model_entry **out, error *err);
/* Open a model for requests that generate text or keep sessions. STATUS_INVALID "model": it cannot. */
status catalog_open_generative(catalog *all, const char *id, model_entry **out, error *err);
/* Open a model for requests that only show or delete; a damaged model has an entry with its `problem`. */
status catalog_inspect(catalog *all, const char *id, model_entry **out, error *err);
/* STATUS_NOT_FOUND, as if it did not exist, if requests of the project may not use the model. All projects may use the
 * models of the default one. A checkpoint belongs to its job's project alone. STATUS_OK if no model has the name. */
status catalog_check_project(catalog *all, const char *id, const char *project, error *err);
/* Return why the model cannot be used; NULL: no fault is known. */
const char *catalog_problem(const model_entry *m);
/* Record in the store the models that the executor could not load. */
void catalog_note_damage(catalog *all);
void catalog_release(model_entry *m); /* NULL is legal */
/* Remove a name that the store has deleted, so requests no longer find it. */
void catalog_forget(catalog *all, const char *id);
/* Write the manifest of a finished folder that is to become this model (store_model_seal). STATUS_INVALID,
 * STATUS_UNSUPPORTED: not a model. Any thread. */
status catalog_seal(const char *id, const char *folder, const char *project, error *err);
/* Move a finished folder into the store as a new model, sealing it if it is not. STATUS_CONFLICT: the id exists. */
status catalog_add(catalog *all, const char *id, const char *folder, const char *project, error *err);

/* Return the trie of the entry's vocabulary, with the marks of calls or without, made on first use. Any thread with a reference. STATUS_NOMEM. */
status catalog_token_trie(model_entry *m, bool marks, const token_trie **out);

/* Close the entry. STATUS_CONFLICT: it is closed already, or the model is being loaded, which only CLOSE_TO_CHANGE
 * waits for. */
status catalog_close(model_entry *m, model_closing purpose, error *err);
/* End the change; `deleted`: the store has deleted the model. The caller closed the entry. */
void catalog_reopen(model_entry *m, bool deleted);

/* Executor thread. catalog_prepare is the `prepare` of a task that calls catalog_model (device_prepare); catalog_model
 * returns the entry's model (device_model). STATUS_NOT_FOUND: it has been deleted. */
bool catalog_prepare(const model_entry *m, device *d);
status catalog_model(model_entry *m, device *d, served_model **out, error *err);
/* Load it with another type of weights, for a change. */
status catalog_load(model_entry *m, device *d, dtype weights, served_model **out, error *err);
/* Store and set the type of the model's weights. */
status catalog_set_weights(catalog *all, model_entry *m, dtype weights, error *err);
/* Parse "fp32", "bf16" or "int8". False: unknown name. */
bool catalog_find_dtype(const char *name, dtype *out);
const char *catalog_dtype_name(dtype weights);

/* STATUS_INVALID, naming the parameter: the architecture has no importance weights or, with `with_tokens`, none for
 * generated tokens (its explainer has no score per token). */
status catalog_check_explains(const model_entry *m, bool with_tokens, const char *param, error *err);
/* STATUS_INVALID, naming the parameter: the model reads a source beside a text, which the request cannot provide. */
status catalog_check_reads_alone(const model_entry *m, const char *param, error *err);
/* STATUS_INVALID, naming the parameter: the model has no class head. */
status catalog_check_classifies(const model_entry *m, const char *param, error *err);
/* STATUS_INVALID, naming the parameter: the model does not predict a token from both sides, or has no mask token. */
status catalog_check_fills_masks(const model_entry *m, const char *param, error *err);
/* Return the mask token of the model, otherwise its tokenizer's, or TOKEN_NONE. */
int32_t catalog_mask(const model_entry *m);
/* Return the start token of a decoder with a source: the model's, otherwise its tokenizer's, or TOKEN_NONE. */
int32_t catalog_start(const model_entry *m);

/* Return the store's table of the entry: STORE_MODELS or STORE_CHECKPOINTS. */
store_table catalog_table(const model_entry *m);
/* Split a name made by job_document_checkpoint_name. */
bool catalog_parse_checkpoint(const char *id, char job[STORE_ID_BYTES], int64_t *step);

#endif
