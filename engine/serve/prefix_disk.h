/* prefix_disk.h - states after the beginnings of prompts that have left memory (prefixes.h), as files.
 *
 * All devices of a process share one. Its thread alone reads, writes and removes files:
 *
 *   prefix_disk_put   ──▶ queue ──▶ checksum, file      an executor gives up a state
 *   prefix_disk_read  ──▶ file ──▶ checksum ──▶ done    a prompt begins with one
 *
 * A file is one bare blob (session_blob.h), written without fsync. Its name is its key, so the start lists the folder
 * and reads no file. After a kill or a power cut a file may be cut off or damaged; its checksum then differs when it is
 * read, and it is removed.
 *
 * The least recently used files are removed to keep the limit, PREFIX_DISK_MOST files, and part of the file
 * system free (PREFIX_DISK_FREE). A write that fails is given up, and no other is tried for PREFIX_DISK_PAUSE_NS.
 *
 * What is removed for its model or owner is gone at once, also if it is queued. A later state of a removed owner is not
 * taken; one of a removed model is. The files follow. After a kill in between, the next start removes them: it gets the
 * models that exist, and the caller removes the owners again. Any thread, except open and close. */
#ifndef ENGINE_SERVE_PREFIX_DISK_H
#define ENGINE_SERVE_PREFIX_DISK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/serve/scheduler.h"

enum {
	PREFIX_DISK_MOST = 1 << 16,          /* files; the index of one takes about 100 bytes */
	PREFIX_DISK_STATE_BYTES = 128 << 20, /* maximum of a file */
	PREFIX_DISK_QUEUE_BYTES = 128 << 20, /* maximum of states that wait to be written while their models stay */
	PREFIX_DISK_FREE = 512 << 20,        /* bytes that the file system keeps free, or */
	PREFIX_DISK_FREE_SHARE = 16,         /* this part of it, if that is less */
	PREFIX_DISK_OWNERS = 1024            /* removed owners that are remembered */
};
#define PREFIX_DISK_PAUSE_NS 1000000000u
#define PREFIX_DISK_CLOSE_NS 5000000000u /* time to write what is queued at the end */
#define PREFIX_DISK_READ_NS 500000u      /* fixed time of a read: two hand-overs between threads, open, seek */

typedef struct prefix_disk prefix_disk;

typedef struct prefix_key {
	uint64_t model, owner; /* prefix_disk_name of the model's id, and prefix_disk_owner */
	uint64_t hash;         /* hash of all tokens (prefix_disk_hash) */
	int64_t tokens;
} prefix_key;

/* A read; a member of the caller's object. It begins zeroed. */
typedef struct prefix_read {
	struct prefix_read *next;
	prefix_key key;
	session_transfer state; /* session_blob_give of the tokens; afterwards complete, or {0}: missing or damaged */
	uint64_t began_ns;      /* 0: no read */
	atomic_bool done;
} prefix_read;

typedef struct prefix_disk_stats {
	int64_t states, bytes; /* now */
	int64_t waiting;       /* states to be written, files to be removed, and the first look at the folder */
	uint64_t reads, writes, damaged;
	uint64_t unwritten; /* states that were given up: the queue was full or the write failed */
} prefix_disk_stats;

/* Return the hash after one token more. */
static inline uint64_t prefix_disk_hash(uint64_t hash, int32_t token)
{
	hash = (hash ^ (uint32_t)token) * 0x9fb21c651e98df25u;
	return hash ^ (hash >> 29);
}
/* Return the digest of a model's id; NULL: 0. */
uint64_t prefix_disk_name(const char *text);
/* Return the digest of an owner, "OWNER" or "OWNER TENANT"; NULL: 0. The upper half is that of OWNER. */
uint64_t prefix_disk_owner(const char *text);

/* Names of models (prefix_disk_name). NULL: any. */
typedef struct prefix_models {
	uint64_t *names; /* from malloc */
	size_t n, room;
} prefix_models;

/* Open the folder, which is created, and keep the files of these models; `models` is taken over. least_free: bytes that
 * the file system keeps free; 0: as PREFIX_DISK_FREE says. limit 0: the folder is
 * removed and *out is NULL, for which all other functions do nothing. */
status prefix_disk_open(prefix_disk **out, const char *folder, int64_t limit, int64_t least_free, prefix_models *models,
                        error *err);
/* Write what is queued, and free. No other thread uses it. */
void prefix_disk_close(prefix_disk *d);

/* Return the maximum bytes of all files. */
int64_t prefix_disk_limit(const prefix_disk *d);
/* Take the blob of t and write it later. The queue holds PREFIX_DISK_QUEUE_BYTES + extra at most. */
void prefix_disk_put(prefix_disk *d, const prefix_key *key, session_transfer *t, int64_t extra);
/* Find the longest state with which ids [n] begin, of more than `least` and fewer than n tokens. In: key->model and
 * key->owner, and in key->hash the hash of no token. *ns: how long it probably takes to read. False: there is none. */
bool prefix_disk_find(prefix_disk *d, prefix_key *key, const int32_t *ids, int64_t n, int64_t least, uint64_t *ns);
/* Return how long it probably takes to read that many bytes. */
uint64_t prefix_disk_read_ns(prefix_disk *d, int64_t bytes);
/* Expect reads to be a little faster: the caller has computed instead. Without this, one slow read would be the last.
 */
void prefix_disk_doubt(prefix_disk *d);
/* Begin to read the file of r->key into r->state. r must stay until it is done or cancelled. */
void prefix_disk_read(prefix_disk *d, prefix_read *r);
/* The thread uses r no more, and its state is freed. Does not wait for the disk. */
void prefix_disk_cancel(prefix_disk *d, prefix_read *r);

/* Remove one state, or all of a model, or all of an owner and its tenants. */
void prefix_disk_remove(prefix_disk *d, const prefix_key *key);
void prefix_disk_remove_model(prefix_disk *d, const char *id);
void prefix_disk_remove_owner(prefix_disk *d, const char *owner);
/* Count the owners that have been removed so far; true if `owner` is one of the last PREFIX_DISK_OWNERS. */
uint64_t prefix_disk_removed_owners(prefix_disk *d);
bool prefix_disk_has_removed(prefix_disk *d, uint64_t owner);

void prefix_disk_read_stats(prefix_disk *d, prefix_disk_stats *out);

#endif
