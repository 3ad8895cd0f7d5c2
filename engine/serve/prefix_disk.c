/* prefix_disk.c - the index of the files, and one thread that does the work of three lists in this order: reads,
 * because prompts wait for them; removals, because they make room; writes. One mutex guards the index and the lists. It
 * is not held while a file is used. Only the thread removes files, so no file that it reads or writes is removed. */
#include "engine/serve/prefix_disk.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/serve/prefix_file.h"
#include "engine/serve/prefix_index.h"

enum { LOOK_SECONDS = 1 };

/* A state that waits to be written. */
typedef struct queued {
	struct queued *next;
	prefix_key key;
	session_transfer state;
	bool unwanted; /* removed meanwhile */
} queued;

struct prefix_disk {
	char folder[PATH_MAX];
	int64_t limit, least_free;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t wake; /* for the thread */
	bool closing;
	uint64_t deadline_ns; /* once closing */

	prefix_index index;
	prefix_entry *removed; /* files to be removed */
	queued *first, **last, *writing;
	int64_t queued_bytes;
	prefix_read *reads, *reading;                  /* reading: NULL after it has been cancelled, too */
	uint64_t owners[PREFIX_DISK_OWNERS], n_owners; /* removed, without their tenants */

	prefix_models models; /* that exist at the start */
	double byte_ns;       /* recent time to read a byte */
	uint64_t retry_ns;
	bool failing;
	prefix_disk_stats stats;
};

uint64_t prefix_disk_name(const char *text)
{
	return text ? digest_bytes(text, strlen(text)) : 0;
}

uint64_t prefix_disk_owner(const char *text)
{
	return text ? digest_bytes(text, strcspn(text, " ")) >> 32 << 32 | (uint32_t)prefix_disk_name(text) : 0;
}

/* True if both are the same owner or tenants of it. */
static bool is_owner(uint64_t a, uint64_t b)
{
	return a >> 32 == b >> 32;
}

/* --- under the mutex ------------------------------------------------------------------ */

/* Move a file from the index to the list of those to be removed. */
static void remove_file(prefix_disk *d, prefix_entry *e)
{
	prefix_index_remove(&d->index, e);
	e->next = d->removed;
	d->removed = e;
	d->stats.waiting++;
	pthread_cond_signal(&d->wake);
}

static bool lost_owner(const prefix_disk *d, uint64_t owner)
{
	const uint64_t n = d->n_owners < PREFIX_DISK_OWNERS ? d->n_owners : PREFIX_DISK_OWNERS;
	for (uint64_t i = 0; i < n; i++)
		if (is_owner(d->owners[i], owner))
			return true;
	return false;
}

/* --- the thread ------------------------------------------------------------------------------ */

static void run_removal(prefix_disk *d)
{
	prefix_entry *e = d->removed;
	d->removed = e->next;
	pthread_mutex_unlock(&d->mutex);
	prefix_file_remove(d->folder, &e->key);
	free(e);
	pthread_mutex_lock(&d->mutex);
	d->stats.waiting--;
}

static void run_read(prefix_disk *d)
{
	enum { SHARE = 8 }; /* weight of an earlier average against the latest read */
	uint64_t ns;
	d->reading = d->reads;
	d->reads = d->reading->next;
	const prefix_key key = d->reading->key;
	session_transfer t = d->reading->state;
	d->reading->state = (session_transfer){0};
	pthread_mutex_unlock(&d->mutex);
	const bool whole = prefix_file_read(d->folder, &key, &t, &ns);
	pthread_mutex_lock(&d->mutex);
	prefix_entry *e = prefix_index_find(&d->index, &key);
	if (t.done) {
		d->stats.reads++;
		ns -= ns < PREFIX_DISK_READ_NS ? ns : PREFIX_DISK_READ_NS;
		d->byte_ns += ((double)ns / (double)t.bytes - d->byte_ns) / SHARE;
	} else {
		scheduler_transfer_fini(&t);
	}
	d->stats.damaged += !whole && e; /* otherwise it was removed before its turn */
	if (!whole && e)
		remove_file(d, e);
	prefix_read *r = d->reading;
	d->reading = NULL;
	if (r) {
		r->state = t;
		atomic_store(&r->done, true);
	} else {
		scheduler_transfer_fini(&t);
	}
}

/* True if the file system has room for n bytes more. */
static bool has_room(prefix_disk *d, int64_t n)
{
	pthread_mutex_unlock(&d->mutex);
	const int64_t available = prefix_file_free(d->folder);
	pthread_mutex_lock(&d->mutex);
	return available - n >= d->least_free;
}

static bool may_write(const prefix_disk *d)
{
	return !(d->failing && clock_ns() < d->retry_ns) && !(d->closing && clock_ns() > d->deadline_ns);
}

/* Record whether the disk could be written. */
static void note_write(prefix_disk *d, status s, const error *err)
{
	if (s != STATUS_OK && !d->failing)
		log_line(LOG_WARN, "states of prompts are not written to the disk: %s", error_message(err));
	d->failing = s != STATUS_OK;
	d->retry_ns = clock_ns() + PREFIX_DISK_PAUSE_NS;
}

/* Write the next state, or remove a file to make room for it. */
static void run_write(prefix_disk *d)
{
	const int64_t bytes = (int64_t)d->first->state.bytes;
	const bool room = has_room(d, bytes);
	error err = ERROR_INIT;
	status s = room ? STATUS_OK : error_set(&err, STATUS_FULL, NULL, "the disk is nearly full");
	queued *q = d->first;
	const bool exists = prefix_index_find(&d->index, &q->key); /* two devices may give up the same state */
	const bool needed = !exists && !q->unwanted && may_write(d);
	if (needed && prefix_index_oldest(&d->index) &&
	    (!room || d->index.bytes > d->limit - bytes || d->index.states >= PREFIX_DISK_MOST)) {
		remove_file(d, prefix_index_oldest(&d->index));
		return;
	}
	d->writing = q;
	d->first = q->next;
	if (!d->first)
		d->last = &d->first;
	d->queued_bytes -= bytes;
	prefix_entry *e = needed ? memory_new(1, sizeof *e) : NULL;
	if (e) {
		*e = (prefix_entry){.key = q->key, .bytes = bytes};
		pthread_mutex_unlock(&d->mutex);
		if (s == STATUS_OK)
			s = prefix_file_write(d->folder, &q->key, &q->state, &err);
		pthread_mutex_lock(&d->mutex);
		note_write(d, s, &err);
	}
	d->writing = NULL;
	if (e && s == STATUS_OK) {
		d->stats.writes++;
		prefix_index_add(&d->index, e);
		if (q->unwanted)
			remove_file(d, e);
	} else {
		free(e);
		d->stats.unwritten += !exists && !q->unwanted;
	}
	d->stats.waiting--;
	scheduler_transfer_fini(&q->state);
	free(q);
}

/* --- the start ----------------------------------------------------------------------------------- */

static bool is_known(const prefix_models *models, uint64_t name)
{
	for (size_t i = 0; i < models->n; i++)
		if (models->names[i] == name)
			return true;
	return !models->names;
}

/* Fill the index from the folder. What was removed meanwhile, or exceeds the limit now, is removed. */
static void list_folder(prefix_disk *d)
{
	found_file *all;
	const size_t n = prefix_file_list(d->folder, &all);
	pthread_mutex_lock(&d->mutex);
	for (size_t i = 0; i < n; i++) {
		prefix_entry *e = all[i].entry;
		prefix_index_add(&d->index, e);
		if (lost_owner(d, e->key.owner) || !is_known(&d->models, e->key.model))
			remove_file(d, e);
	}
	while (d->index.bytes > d->limit)
		remove_file(d, prefix_index_oldest(&d->index));
	d->stats.waiting--;
	pthread_mutex_unlock(&d->mutex);
	free(all);
}

/* Wait for work, or until it is time to look at the free space; remove a file if there is too little. */
static void wait_for_work(prefix_disk *d)
{
	struct timespec until;
	const bool full = prefix_index_oldest(&d->index) && !has_room(d, 0);
	if (d->reads || d->removed || d->first || d->closing) /* while the mutex was not held */
		return;
	if (full && prefix_index_oldest(&d->index)) {
		remove_file(d, prefix_index_oldest(&d->index));
		return;
	}
	if (!prefix_index_oldest(&d->index)) {
		pthread_cond_wait(&d->wake, &d->mutex);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOOK_SECONDS;
	pthread_cond_timedwait(&d->wake, &d->mutex, &until);
}

static void *disk_thread(void *argument)
{
	prefix_disk *d = argument;
	list_folder(d);
	pthread_mutex_lock(&d->mutex);
	for (;;) {
		if (d->reads)
			run_read(d);
		else if (d->removed)
			run_removal(d);
		else if (d->first)
			run_write(d);
		else if (d->closing)
			break;
		else
			wait_for_work(d);
	}
	pthread_mutex_unlock(&d->mutex);
	return NULL;
}

static void free_disk(prefix_disk *d)
{
	prefix_index_fini(&d->index);
	pthread_mutex_destroy(&d->mutex);
	pthread_cond_destroy(&d->wake);
	free(d->models.names);
	free(d);
}

/* Make all but the thread. */
static status make_disk(prefix_disk **out, const char *folder, int64_t limit, error *err)
{
	pthread_condattr_t by_clock;
	TRY(file_make_folders(folder, err));
	prefix_disk *d = memory_new(1, sizeof *d);
	if (!d || prefix_index_init(&d->index) != STATUS_OK) {
		free(d);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	snprintf(d->folder, sizeof d->folder, "%s", folder);
	d->limit = limit;
	d->last = &d->first;
	d->byte_ns = 1;
	d->stats.waiting = 1;
	pthread_mutex_init(&d->mutex, NULL);
	pthread_condattr_init(&by_clock);
	pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
	pthread_cond_init(&d->wake, &by_clock);
	pthread_condattr_destroy(&by_clock);
	*out = d;
	return STATUS_OK;
}

status prefix_disk_open(prefix_disk **out, const char *folder, int64_t limit, int64_t least_free, prefix_models *models,
                        error *err)
{
	prefix_disk *d = NULL;
	*out = NULL;
	status s = limit > 0 ? make_disk(&d, folder, limit, err) : file_remove_tree(folder, err);
	if (d) {
		d->least_free = least_free > 0 ? least_free : prefix_file_least_free(folder);
		d->models = *models;
		*models = (prefix_models){0};
		if (pthread_create(&d->thread, NULL, disk_thread, d) == 0) {
			*out = d;
			return STATUS_OK;
		}
		free_disk(d);
		s = error_set(err, STATUS_NOMEM, NULL, "cannot start the thread that writes states of prompts");
	}
	free(models->names);
	*models = (prefix_models){0};
	return s;
}

void prefix_disk_close(prefix_disk *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->mutex);
	d->closing = true;
	d->deadline_ns = clock_ns() + PREFIX_DISK_CLOSE_NS;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->mutex);
	pthread_join(d->thread, NULL);
	free_disk(d);
}

/* --- calls of other threads ---------------------------------------------------------------------- */

int64_t prefix_disk_limit(const prefix_disk *d)
{
	return d ? d->limit : 0;
}

void prefix_disk_put(prefix_disk *d, const prefix_key *key, session_transfer *t, int64_t extra)
{
	const int64_t bytes = (int64_t)t->bytes;
	queued *q = d ? memory_new(1, sizeof *q) : NULL;
	if (q) {
		pthread_mutex_lock(&d->mutex);
		prefix_entry *e = prefix_index_find(&d->index, key);
		if (e) {
			prefix_index_touch(&d->index, e);
		} else if (!lost_owner(d, key->owner) && bytes <= d->limit && bytes <= PREFIX_DISK_STATE_BYTES &&
		           d->queued_bytes + bytes <= PREFIX_DISK_QUEUE_BYTES + extra) {
			*q = (queued){.key = *key, .state = *t};
			*d->last = q;
			d->last = &q->next;
			d->queued_bytes += bytes;
			d->stats.waiting++;
			*t = (session_transfer){0};
			q = NULL;
			pthread_cond_signal(&d->wake);
		} else {
			d->stats.unwritten++;
		}
		pthread_mutex_unlock(&d->mutex);
	}
	free(q);
	scheduler_transfer_fini(t);
}

/* Under the mutex. */
static uint64_t read_time(const prefix_disk *d, int64_t bytes)
{
	return PREFIX_DISK_READ_NS + (uint64_t)((double)bytes * d->byte_ns);
}

uint64_t prefix_disk_read_ns(prefix_disk *d, int64_t bytes)
{
	pthread_mutex_lock(&d->mutex);
	const uint64_t ns = read_time(d, bytes);
	pthread_mutex_unlock(&d->mutex);
	return ns;
}

bool prefix_disk_find(prefix_disk *d, prefix_key *key, const int32_t *ids, int64_t n, int64_t least, uint64_t *ns)
{
	if (!d)
		return false;
	pthread_mutex_lock(&d->mutex);
	const prefix_entry *found = prefix_index_longest(&d->index, key, ids, n, least);
	if (found) {
		*key = found->key;
		*ns = read_time(d, found->bytes);
	}
	pthread_mutex_unlock(&d->mutex);
	return found;
}

void prefix_disk_doubt(prefix_disk *d)
{
	pthread_mutex_lock(&d->mutex);
	d->byte_ns *= 0.98;
	pthread_mutex_unlock(&d->mutex);
}

void prefix_disk_read(prefix_disk *d, prefix_read *r)
{
	r->began_ns = clock_ns();
	r->next = NULL;
	atomic_store(&r->done, false);
	pthread_mutex_lock(&d->mutex);
	prefix_read **link = &d->reads;
	while (*link)
		link = &(*link)->next;
	*link = r;
	prefix_entry *e = prefix_index_find(&d->index, &r->key);
	if (e)
		prefix_index_touch(&d->index, e);
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->mutex);
}

void prefix_disk_cancel(prefix_disk *d, prefix_read *r)
{
	if (!r->began_ns)
		return;
	pthread_mutex_lock(&d->mutex);
	if (d->reading == r)
		d->reading = NULL;
	prefix_read **link = &d->reads;
	while (*link && *link != r)
		link = &(*link)->next;
	if (*link)
		*link = r->next;
	pthread_mutex_unlock(&d->mutex);
	scheduler_transfer_fini(&r->state);
	r->began_ns = 0;
}

/* True if the key belongs to the model or the owner; 0: any. */
static bool belongs(const prefix_key *key, uint64_t of_model, uint64_t of_owner)
{
	return (!of_model || key->model == of_model) && (!of_owner || is_owner(key->owner, of_owner));
}

/* Remove all states of a model or of an owner. Under the mutex. */
static void remove_all(prefix_disk *d, uint64_t of_model, uint64_t of_owner)
{
	for (prefix_entry *e = TAILQ_FIRST(&d->index.uses), *older; e; e = older) {
		older = TAILQ_NEXT(e, use);
		if (belongs(&e->key, of_model, of_owner))
			remove_file(d, e);
	}
	for (queued *q = d->first; q; q = q->next)
		q->unwanted |= belongs(&q->key, of_model, of_owner);
	if (d->writing)
		d->writing->unwanted |= belongs(&d->writing->key, of_model, of_owner);
}

void prefix_disk_remove(prefix_disk *d, const prefix_key *key)
{
	pthread_mutex_lock(&d->mutex);
	prefix_entry *e = prefix_index_find(&d->index, key);
	if (e)
		remove_file(d, e);
	pthread_mutex_unlock(&d->mutex);
}

void prefix_disk_remove_model(prefix_disk *d, const char *id)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->mutex);
	remove_all(d, prefix_disk_name(id), 0);
	pthread_mutex_unlock(&d->mutex);
}

void prefix_disk_remove_owner(prefix_disk *d, const char *owner)
{
	const uint64_t name = prefix_disk_owner(owner);
	if (!d)
		return;
	pthread_mutex_lock(&d->mutex);
	d->owners[d->n_owners++ % PREFIX_DISK_OWNERS] = name;
	remove_all(d, 0, name);
	pthread_mutex_unlock(&d->mutex);
}

uint64_t prefix_disk_removed_owners(prefix_disk *d)
{
	if (!d)
		return 0;
	pthread_mutex_lock(&d->mutex);
	const uint64_t n = d->n_owners;
	pthread_mutex_unlock(&d->mutex);
	return n;
}

bool prefix_disk_has_removed(prefix_disk *d, uint64_t owner)
{
	pthread_mutex_lock(&d->mutex);
	const bool lost = lost_owner(d, owner);
	pthread_mutex_unlock(&d->mutex);
	return lost;
}

void prefix_disk_read_stats(prefix_disk *d, prefix_disk_stats *out)
{
	*out = (prefix_disk_stats){0};
	if (!d)
		return;
	pthread_mutex_lock(&d->mutex);
	*out = d->stats;
	out->states = d->index.states;
	out->bytes = d->index.bytes;
	pthread_mutex_unlock(&d->mutex);
}
