/* store.h - durable data: the ledger and the blobs beside it.
 *
 *   DATA/ledger.sqlite          files, jobs, events, checkpoints, models, adapters, durable sessions, responses, API
 *                               keys
 *   DATA/blobs/file-…           uploaded files, each with file-….manifest
 *   DATA/models/<id>/           config.json, model.safetensors, tokenizer.json, optimizer.safetensors of some
 *                               optimizers, manifest.json
 *   DATA/adapters/<id>/         adapter.safetensors or the two files of PEFT, manifest.json
 *   DATA/jobs/<id>/job.json     a copy of the job
 *   DATA/jobs/<id>/step-N/      checkpoints (complete models plus the optimizer, manifest.json)
 *   DATA/sessions/<id>.<n>      durable session states; the row names the current n and those of its snapshots
 *   DATA/keys                   exists if the service has had an API key
 *   DATA/lost/KIND/             blobs that no row names, set aside; damaged ledgers
 *   DATA/cache/                 tokens of texts, algorithms of products (cuda/product_choices.h) and, in prefixes/,
 *                               prompts' states: they can be made again, have no row and are in no backup
 *   DATA/tmp/                   uploads in progress, files for the cache, on its file system, and idle sessions that
 *                               are not durable; emptied at start
 *   DATA/reserve                room for deletions on a full disk
 *
 * SQLite in WAL mode with synchronous=FULL: acknowledged changes are on disk. A row is written only after its blob is
 * durable, and a blob is unlinked only after a commit has listed it for removal. A crash therefore needs no repair.
 *
 * Damage. Rows, manifests and states carry hashes, and blobs are verified against their manifests when they are read. A
 * damaged object gives STATUS_STORAGE for each request that needs it, is listed by store_damaged, and affects no other
 * object. A damaged ledger is rebuilt from its intact rows and from the blobs' manifests. Blobs without a row move to
 * DATA/lost, from which store_lost_sweep removes them; a ledger that is missing or empty beside blobs is refused with
 * STATUS_STORAGE.
 *
 * All ids are made here (prefix plus 24 random hex digits, or a validated model name), so no path is ever built from
 * unchecked input. One thread (the loop) uses a store, except where noted; calls block for a disk write at most. */
#ifndef ENGINE_STORE_STORE_H
#define ENGINE_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/base/checksum.h"
#include "engine/base/digest.h"
#include "engine/base/error.h"
#include "engine/base/manifest.h"

enum { STORE_ID_BYTES = 64, STORE_DTYPE_BYTES = 16 };

typedef struct store store;

typedef enum store_table {
	STORE_FILES,
	STORE_MODELS,
	STORE_JOBS,
	STORE_EVENTS,
	STORE_CHECKPOINTS,
	STORE_SESSIONS,
	STORE_RESPONSES,
	STORE_KEYS,
	STORE_ADAPTERS
} store_table;

/* Open or create. STATUS_CONFLICT if another process holds the data folder (flock). */
status store_open(store **out, const char *folder, error *err);
/* Open an existing data folder. STATUS_STORAGE, and nothing is created, if it has no ledger or if the text in
 * DATA/identity differs from `identity` (NULL: any). */
status store_open_existing(store **out, const char *folder, const char *identity, error *err);
/* Open or create; a ledger that is missing, empty or outdated is completed from the blobs. */
status store_rebuild(store **out, const char *folder, error *err);
void store_close(store *s);

/* Unlink the queued blobs and empty the write-ahead log. Called periodically; failed steps are retried. */
void store_tick(store *s);
/* Limits of lost/; 0: no limit. */
typedef struct lost_limits {
	int days;
	int64_t bytes;
} lost_limits;
/* Remove blobs that have been in lost/ for longer than limits->days, and the oldest ones while lost/ exceeds
 * limits->bytes. Blobs younger than a day are never removed for the size limit, so that an operator can react. Returns
 * the number of blobs left. Any thread. */
int64_t store_lost_sweep(const char *folder, int64_t now, const lost_limits *limits);
/* Return NULL while the data folder is usable, otherwise a message, valid until the next call. Looks at the disk. */
const char *store_problem(store *s);
/* Write the path of the death log (engine/base/death_log.h). out has PATH_MAX bytes. */
void store_death_log_path(const store *s, char *out);
/* Record and log that an object is damaged, once per object. */
void store_note_damage(store *s, store_table table, const char *id, const char *problem);
/* Return the damaged objects: [{"kind", "id", "problem"}]. New reference; NULL: out of memory. */
json_t *store_damaged(const store *s);
int store_damaged_count(const store *s);

/* Set the limit of data bytes; 0: none. */
void store_set_budget(store *s, int64_t bytes);
/* Set *out to the bytes of all blobs that rows name. */
status store_bytes(store *s, int64_t *out, error *err);
/* STATUS_FULL if `bytes` more exceed the budget. The cache folder counts too: its files that are not in use are first
 * removed as needed, the least recently used first. */
status store_check_room(store *s, int64_t bytes, error *err);
/* Set *out to the bytes of the budget left for the cache folder; INT64_MAX without a budget. */
status store_cache_room(store *s, int64_t *out, error *err);
/* {"data_bytes", "budget_bytes", "disk_free_bytes", "kinds": […], "lost": […]} of a data folder. Any thread: it reads
 * folders, not the ledger. New reference; NULL: out of memory. */
json_t *store_usage(const char *folder, int64_t budget);

/* Write a new id: the prefix, such as "file-", and 24 hex digits. */
void store_new_id(char out[STORE_ID_BYTES], const char *prefix);
/* True if the id is usable as the name of a model: 1…63 of [A-Za-z0-9._:-], beginning with a letter or digit. */
bool store_valid_name(const char *id);

/* Paths, always below the data folder; out needs PATH_MAX. Those of blobs, models, adapters, jobs and checkpoints only
 * join names and may be made by any thread. */
void store_blob_path(const store *s, const char *id, char *out);
/* Folder for data that can be computed again: nothing in it has a row, and the engine may remove any of it. */
void store_cache_folder(const store *s, char *out);
/* Write the folder of states of prompts (engine/serve/prefix_disk.h), in the cache and not counted in the budget. */
void store_prefix_folder(const store *s, char *out);
void store_model_folder(const store *s, const char *id, char *out);
void store_adapter_folder(const store *s, const char *id, char *out);
void store_job_folder(const store *s, const char *id, char *out);
void store_checkpoint_folder(const store *s, const char *job, int64_t step, char *out);
/* Path of the current state of a durable session; "", with STATUS_OK, if there is none. */
status store_session_path(store *s, const char *id, char *out, error *err);
/* Path of a version of its state. */
void store_session_version_path(const store *s, const char *id, int64_t version, char *out);
/* Write a new path in DATA/tmp. */
void store_temporary_path(store *s, char *out);

typedef struct store_file {
	char id[STORE_ID_BYTES], filename[256], purpose[32];
	char digest[DIGEST_TEXT_BYTES];   /* hash of its bytes; "" for a file stored before digests existed */
	char sha256[CHECKSUM_TEXT_BYTES]; /* in the same way */
	int64_t bytes, created;
	char format[8];   /* "auto", "text" or "json" (engine/text/corpus_form.h); set before sealing */
	char project[STORE_ID_BYTES]; /* "": the default; set before sealing */
	int64_t lifetime; /* seconds; 0: no limit. Set before sealing */
	int64_t expires;  /* Unix time; 0: never */
} store_file;
/* Any thread: sync and hash a finished temporary file. Fills in id, bytes, digest, created and expires, and writes the
 * manifest beside it. */
status store_file_seal(store_file *f, const char *temporary, error *err);
/* Move it in (rename, row). A file that is not sealed (no id) is sealed first. STATUS_FULL: over the budget. */
status store_file_add(store *s, store_file *f, const char *temporary, error *err);
status store_file_get(store *s, const char *id, store_file *out, error *err);
/* Like store_file_get, before the contents are read. STATUS_STORAGE: the file exists, but its blob is missing or of
 * another size. */
status store_file_use(store *s, const char *id, store_file *out, error *err);
/* Verify its blob. STATUS_STORAGE: missing or damaged. */
status store_file_check(store *s, const char *id, error *err);
status store_file_delete(store *s, const char *id, error *err);
/* Set *out to the bytes of the files of a project; "": the default. */
status store_file_bytes(store *s, const char *project, int64_t *out, error *err);
/* Append the ids of expired files to the array. */
status store_files_expired(store *s, int64_t now, json_t *ids, error *err);

typedef struct store_model {
	char id[STORE_ID_BYTES], owned_by[64], architecture[64];
	char project[STORE_ID_BYTES]; /* "": the default */
	int64_t created, parameters;
} store_model;
/* Any thread: sync and hash a finished temporary folder, and write its manifest. */
status store_model_seal(const store_model *m, const char *folder, error *err);
/* Move it in; a folder that is not sealed with these values is sealed first. STATUS_CONFLICT if the id exists;
 * STATUS_FULL. */
status store_model_add(store *s, const store_model *m, const char *temporary_folder, error *err);
status store_model_get(store *s, const char *id, store_model *out, error *err);
status store_model_delete(store *s, const char *id, error *err);

/* Adapters: documents with an "id", each with a folder. Sealing and adding are as for models. */
status store_adapter_seal(const json_t *adapter, const char *folder, error *err);
status store_adapter_add(store *s, const json_t *adapter, const char *temporary_folder, error *err);
/* *out: a new reference; NULL after a failure. STATUS_NOT_FOUND. */
status store_adapter_get(store *s, const char *id, json_t **out, error *err);
status store_adapter_delete(store *s, const char *id, error *err);

/* Type in which a model or checkpoint is kept in memory for serving: the last one stored, "fp32" at first.
 * STATUS_NOT_FOUND. */
status store_dtype_get(store *s, const char *id, char out[STORE_DTYPE_BYTES], error *err);
status store_dtype_put(store *s, const char *id, const char *dtype, error *err);

/* Combine several changes in one commit. Commits nest: the outermost one takes effect, and an inner rollback undoes
 * only the inner changes. After a rollback, files, models and adapters that were moved in are back at their temporary names.
 * store_commit rolls back when it fails. */
status store_begin(store *s, error *err);
status store_commit(store *s, error *err);
void store_rollback(store *s);
/* Commit if `result` is STATUS_OK, else roll back and return it. */
status store_end(store *s, status result, error *err);

/* Jobs are JSON documents (the API's job object plus "request") with an indexed status. */
status store_job_put(store *s, const char *id, const char *job_status, const json_t *job, error *err);
status store_job_get(store *s, const char *id, json_t **out, error *err);

/* Delete a job with its events, checkpoints and folder. STATUS_NOT_FOUND. */
status store_job_delete(store *s, const char *id, error *err);

/* Append an event object in the API's form; its "id" is filled in. */
status store_event_add(store *s, const char *job, json_t *event, error *err);
/* Delete the first event of a job. *found: there was one. */
status store_event_delete_first(store *s, const char *job, bool *found, error *err);
/* Any thread: write the manifest of a checkpoint's folder. `checkpoint` is the row's document, with an "id". */
status store_checkpoint_seal(const char *folder, const json_t *checkpoint, error *err);
/* Add a checkpoint whose folder is in place; a folder that is not sealed with this document is sealed first. */
status store_checkpoint_add(store *s, const char *job, int64_t step, const json_t *checkpoint, error *err);
/* Delete a checkpoint and its folder. */
status store_checkpoint_delete(store *s, const char *job, int64_t step, error *err);

/* Durable sessions. Each version of a state is a file of its own, and the row names the current version. To save one,
 * the loop asks for the next version and its path, any thread writes the file, and the loop keeps it. The previous
 * version is then removed. A version that is not kept is void: it is removed by store_session_discard, or set aside by
 * the next start.
 *
 * A snapshot is a version that stays. The document names it: "snapshots": [{"version", "bytes", …}], with the bytes of
 * its file. It is removed in the commit of the first document without it, or with the session. */
status store_session_next(store *s, const char *id, int64_t *version, char *path, error *err);
enum { STORE_SESSION_BYTES = 1 << 30 }; /* maximum of a state */
/* Any thread: write the file durably. `session` is the future document of the row. STATUS_TOO_LARGE. */
status store_session_write(const char *path, const char *id, const json_t *session, const void *blob, size_t bytes,
                           error *err);
/* Set *version to the current version and *bytes to the size of its file. STATUS_STORAGE: it has none. */
status store_session_current(store *s, const char *id, int64_t *version, int64_t *bytes, error *err);
/* Make `version`, which may be current, the current one with this document. STATUS_INVALID if `id` is not a name. */
status store_session_keep(store *s, const char *id, int64_t version, const json_t *session, error *err);
void store_session_discard(const char *path);
/* Any thread: read the state from a path of store_session_path; *blob is malloc'ed. STATUS_STORAGE: damaged or
 * missing. */
status store_session_read(const char *path, const char *id, void **blob, size_t *bytes, error *err);
status store_session_delete(store *s, const char *id, error *err);

/* States of sessions that are not durable, which leave memory for a while: files in DATA/tmp, which the next start
 * removes. They have no row and are in no backup. They leave STORE_AWAY_SPARE bytes of the disk to what must be kept:
 * STATUS_FULL. Any thread. */
enum { STORE_AWAY_SPARE = 64 << 20 };
void store_session_away_path(const store *s, const char *id, char *out);
status store_session_put_away(const char *path, const void *blob, size_t bytes, error *err);
/* *blob is malloc'ed; its contents are not checked. The file stays. STATUS_STORAGE: it is missing or cannot be read. */
status store_session_take_back(const char *path, void **blob, size_t *bytes, error *err);

/* API keys: documents with an "id", in the order of creation (store_list). A key's secret is never stored. */
status store_key_put(store *s, const json_t *key, error *err);
/* STATUS_NOT_FOUND, without a message. */
status store_key_delete(store *s, const char *id, error *err);
/* *had: the data folder has, or has had, a key. DATA/keys keeps this beside the ledger, so that a ledger that has lost
 * its keys does not open a service that needed them. */
status store_keys_had(store *s, bool *had, error *err);

/* Answers to requests with a client's key, so that the request can be repeated. The answer is stored in the same commit
 * as the effect of the request. `request` is a hash of the request. */
enum { STORE_ANSWER_SECONDS = 24 * 3600 };
/* *answer: a new reference; NULL if no answer is stored for the key. */
status store_answer_get(store *s, const char *key, uint64_t *request, json_t **answer, error *err);
status store_answer_put(store *s, const char *key, uint64_t request, const json_t *answer, error *err);
/* Delete answers older than STORE_ANSWER_SECONDS. */
status store_answers_expire(store *s, error *err);

/* Responses: documents with an "id", without a blob. store_list reads them. */
status store_response_put(store *s, const char *id, const json_t *document, error *err);
/* As store_response_put, with the text of the document. */
status store_response_put_text(store *s, const char *id, const char *text, error *err);
/* Any thread: return the text of a document, malloc'ed; NULL: out of memory. */
char *store_response_text(const json_t *document);
/* STATUS_OK also if there is none. */
status store_response_delete(store *s, const char *id, error *err);

/* Listings: call `each` for each row, in the requested order, until it returns false. */
typedef bool (*store_each)(void *context, const json_t *object);
typedef struct store_page {
	const char *parent;                                       /* events and checkpoints: the job */
	const char *after;                                        /* id of the row to begin after, which matches, or NULL */
	const char *filter;                                       /* files: purpose; jobs: status; or NULL */
	const char *project;                                      /* "": documents without one; NULL: all */
	bool (*match)(const void *context, const json_t *object); /* false skips a row; NULL: none */
	const void *match_context;
	int64_t limit; /* ≤ 0: all */
	bool ascending;
} store_page;
/* Verify the blob of a file, model, adapter or checkpoint against the ledger: with `contents`, every byte. STATUS_STORAGE. */
status store_check_blob(store *s, store_table table, const char *id, bool contents, error *err);
/* The ledger's copy of an object's manifest. STATUS_NOT_FOUND; STATUS_OK with *out NULL if it has none. */
status store_manifest(store *s, store_table table, const char *id, manifest **out, error *err);
/* STATUS_NOT_FOUND if `after` names no row. *has_more: rows remain after the limit. `each` must not change the
 * store. */
status store_list(store *s, store_table table, const store_page *page, store_each each, void *context, bool *has_more,
                  error *err);

#endif
