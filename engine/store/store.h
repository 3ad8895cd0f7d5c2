/* store.h - what must survive: the ledger and the blobs beside it.
 *
 *   DATA/ledger.sqlite          files, jobs, events, checkpoints, models, durable sessions
 *   DATA/blobs/file-…           uploaded files
 *   DATA/models/<id>/           config.json, model.safetensors, tokenizer.json
 *   DATA/jobs/<id>/step-N/      checkpoints (complete models plus the optimiser)
 *   DATA/sessions/<id>.<n>      durable session states; the row says which n counts
 *   DATA/tmp/                   uploads in progress; emptied at start
 *
 * SQLite in WAL mode with synchronous=FULL: what was acknowledged is on disk. A row is
 * written only after its blob is durable, and a blob without a row is garbage that the next start
 * removes; so a crash needs no repair. All ids are made here (prefix plus 24 random hex digits, or a
 * validated model name), so no path is ever built from unchecked input.
 * One thread (the loop) uses a store; calls block for a disk write at most. */
#ifndef ENGINE_STORE_STORE_H
#define ENGINE_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/base/error.h"

enum { STORE_ID_BYTES = 64, STORE_DTYPE_BYTES = 16 };

typedef struct store store;

/* Open or create; STATUS_CONFLICT when another process holds the data folder (flock). */
status store_open(store **out, const char *folder, error *err);
void store_close(store *s);

/* "file-" + 24 hex digits. */
void store_new_id(char out[STORE_ID_BYTES], const char *prefix);
/* A name usable as model id: 1…63 of [A-Za-z0-9._:-], beginning with a letter or digit. */
bool store_valid_name(const char *id);

/* Paths, always below the data folder; out needs PATH_MAX. Those of blobs, models, jobs and checkpoints only join
 * names and may be made by any thread. */
void store_blob_path(const store *s, const char *id, char *out);
void store_model_folder(const store *s, const char *id, char *out);
void store_job_folder(const store *s, const char *id, char *out);
void store_checkpoint_folder(const store *s, const char *job, int64_t step, char *out);
/* The current state of a durable session; "" when there is none. */
void store_session_path(const store *s, const char *id, char *out);
/* A fresh name in DATA/tmp. */
void store_temporary_path(store *s, char *out);

typedef struct store_file {
	char id[STORE_ID_BYTES], filename[256], purpose[32];
	int64_t bytes, created;
} store_file;
/* Move a finished temporary file in (fsync, rename, row); id, bytes and created are filled in. */
status store_file_add(store *s, store_file *f, const char *temporary, error *err);
status store_file_get(store *s, const char *id, store_file *out, error *err);
status store_file_delete(store *s, const char *id, error *err);

typedef struct store_model {
	char id[STORE_ID_BYTES], owned_by[64], architecture[64];
	int64_t created, parameters;
} store_model;
/* Move a finished temporary folder in; STATUS_CONFLICT when the id exists. */
status store_model_add(store *s, const store_model *m, const char *temporary_folder, error *err);
status store_model_get(store *s, const char *id, store_model *out, error *err);
status store_model_delete(store *s, const char *id, error *err);

/* How a model or checkpoint is kept in memory for serving: the word last put, "fp32" at first. STATUS_NOT_FOUND. */
status store_dtype_get(store *s, const char *id, char out[STORE_DTYPE_BYTES], error *err);
status store_dtype_put(store *s, const char *id, const char *dtype, error *err);

/* Jobs are JSON documents (the API's job object plus "request") with an indexed status. */
status store_job_put(store *s, const char *id, const char *job_status, const json_t *job, error *err);
status store_job_get(store *s, const char *id, json_t **out, error *err);

/* Append an event object (the API's; "id" is filled in). */
status store_event_add(store *s, const char *job, json_t *event, error *err);
status store_checkpoint_add(store *s, const char *job, int64_t step, const json_t *checkpoint, error *err);
/* Forget a checkpoint and remove its folder. */
status store_checkpoint_delete(store *s, const char *job, int64_t step, error *err);

/* Durable sessions: the row is a JSON document, the state is in store_session_path. */
status store_session_put(store *s, const char *id, const json_t *session, const void *blob, size_t bytes, error *err);
status store_session_delete(store *s, const char *id, error *err);

/* Listings: call `each` per row in the order asked for, until it returns false. */
typedef bool (*store_each)(void *context, const json_t *object);
typedef struct store_page {
	const char *parent; /* events and checkpoints: the job */
	const char *after;  /* id of the row to begin behind, or NULL */
	const char *filter; /* files: purpose; jobs: status; or NULL */
	int64_t limit;      /* ≤ 0: all */
	bool ascending;
} store_page;
typedef enum store_table {
	STORE_FILES,
	STORE_MODELS,
	STORE_JOBS,
	STORE_EVENTS,
	STORE_CHECKPOINTS,
	STORE_SESSIONS
} store_table;
/* STATUS_NOT_FOUND when `after` names no row. *has_more: rows remained behind the limit. `each` must not
 * change the store. */
status store_list(store *s, store_table table, const store_page *page, store_each each, void *context, bool *has_more,
                  error *err);

#endif
