/* A client's removal first asks the executor, as model.delete does, because only the executor knows whether generations
 * use the weights. Until it answers, the entries are closed, so no request starts to use them. */
#include "engine/daemon/jobs/job_removal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/sessions/sessions.h"

enum { SECOND_NS = 1000000000, DAY_SECONDS = 24 * 3600 };

/* --- rows of checkpoints ------------------------------------------------------------------ */

typedef struct row {
	char job[STORE_ID_BYTES], name[STORE_ID_BYTES];
	int64_t step, created, bytes;
	bool damaged;
	bool newest; /* the newest intact one of its job */
} row;

typedef struct rows {
	row *items;
	size_t n;
	bool failed;
} rows;

static void copy_text(char out[STORE_ID_BYTES], const json_t *object, const char *key)
{
	const char *text = job_document_text(object, key);
	snprintf(out, STORE_ID_BYTES, "%s", text ? text : "");
}

static bool job_removal_collect(void *context, const json_t *document)
{
	rows *all = context;
	row *more = realloc(all->items, (all->n + 1) * sizeof *more);
	all->failed = !more;
	if (!more)
		return false;
	all->items = more;
	row *r = &more[all->n++];
	*r = (row){.step = json_integer_value(json_object_get(document, "step_number")),
	           .created = json_integer_value(json_object_get(document, "created_at"))};
	copy_text(r->job, document, "fine_tuning_job_id");
	copy_text(r->name, document, "id");
	return true;
}

/* Mark the checkpoints that the job's document lists as damaged, whether or not it has ended. */
static void mark_damaged(const jobs *all, rows *of)
{
	json_t *document = NULL;
	for (size_t i = 0; i < of->n; i++) {
		row *r = &of->items[i];
		if (i == 0 || strcmp(of->items[i - 1].job, r->job) != 0) {
			json_decref(document);
			job_queue_document(&all->queue, r->job, &document, NULL); /* NULL if unreadable */
		}
		r->damaged = job_document_damage(document, r->step);
	}
	json_decref(document);
}

static void mark_newest(rows *all)
{
	for (size_t i = 0; i < all->n; i++) {
		row *r = &all->items[i];
		r->newest = !r->damaged;
		for (size_t k = 0; r->newest && k < all->n; k++) {
			const row *other = &all->items[k];
			r->newest = other->damaged || other->step <= r->step || strcmp(other->job, r->job) != 0;
		}
	}
}

/* Read the checkpoints of job `of`, or of all jobs (NULL), oldest first. On failure the list is empty. */
static status job_removal_read_rows(const jobs *all, const char *of, rows *out, error *err)
{
	bool more;
	*out = (rows){0};
	store_page page = {.parent = of, .ascending = true};
	status s = store_list(all->queue.parts->store, STORE_CHECKPOINTS, &page, job_removal_collect, out, &more, err);
	s = out->failed ? STATUS_NOMEM : s;
	if (s != STATUS_OK) {
		free(out->items);
		*out = (rows){0};
		return error_settle(err, s);
	}
	mark_damaged(all, out);
	mark_newest(out);
	return STATUS_OK;
}

static bool is_used(const jobs *all, const char *name)
{
	return sessions_use_model(all->queue.parts->sessions, name) || job_table_uses_model(all, name);
}

/* True if a request holds the entry; it may be loading. */
static bool is_held(const jobs *all, const char *name)
{
	model_entry *c;
	if (catalog_open(all->queue.parts->catalog, name, &c, NULL) != STATUS_OK)
		return false;
	bool held = c->references > 2 || c->deleting; /* more than the table's reference and ours */
	catalog_release(c);
	return held;
}

/* True if a client, a session or a job uses the checkpoint, or its weights are loaded. */
static bool is_in_use(const jobs *all, const char *name)
{
	return is_used(all, name) || fleet_has_loaded(all->queue.parts->fleet, name) || is_held(all, name);
}

static status remove_one(const jobs *all, const row *r, error *err)
{
	TRY(store_checkpoint_delete(all->queue.parts->store, r->job, r->step, err));
	catalog_forget(all->queue.parts->catalog, r->name);
	return STATUS_OK;
}

/* True if the job has not ended or its run has not. */
static bool is_active(const job_queue *q, const char *id)
{
	return job_queue_find(q, id) || job_queue_runs(q, id);
}

/* --- keep_checkpoints ------------------------------------------------------------------------ */

static size_t count_newer(const rows *all, const row *r)
{
	size_t n = 0;
	for (size_t i = 0; i < all->n; i++)
		n += !all->items[i].damaged && all->items[i].step > r->step;
	return n;
}

void job_removal_prune(jobs *all, const job *j)
{
	rows found;
	error err = ERROR_INIT;
	json_int_t keep =
	    json_integer_value(json_object_get(json_object_get(j->base.document, "request"), "keep_checkpoints"));
	status s = job_removal_read_rows(all, j->base.id, &found, &err);
	for (size_t i = 0; s == STATUS_OK && i < found.n; i++) {
		const row *r = &found.items[i];
		if (r->damaged || count_newer(&found, r) < (size_t)(keep > 0 ? keep : 1) || is_in_use(all, r->name))
			continue; /* tried again at the next checkpoint */
		s = remove_one(all, r, &err);
	}
	free(found.items);
	if (s != STATUS_OK)
		log_line(LOG_WARN, "old checkpoints of %s are kept for now: %s", j->base.id, error_message(&err));
}

/* --- retention --------------------------------------------------------------------------------- */

static int64_t folder_bytes(const char *folder)
{
	int64_t total = 0;
	struct stat st;
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
			total += st.st_size;
	if (dir)
		closedir(dir);
	return total;
}

/* Seconds on the monotonic clock, offset to Unix time at start. A jump of the system clock makes nothing old. */
static int64_t now_seconds(const jobs *all)
{
	return all->began_unix + (int64_t)((clock_ns() - all->began_ns) / SECOND_NS);
}

/* True if a job that ended without a model needs it to resume. */
static bool is_needed(const jobs *all, const row *r)
{
	json_t *document;
	if (!r->newest)
		return false;
	if (store_job_get(all->queue.parts->store, r->job, &document, NULL) != STATUS_OK)
		return true;
	const char *ended_as = job_document_text(document, "status");
	json_int_t ended = json_integer_value(json_object_get(document, "finished_at"));
	bool succeeded = ended_as && strcmp(ended_as, "succeeded") == 0;
	json_decref(document);
	return !succeeded && now_seconds(all) - ended < JOB_REMOVAL_GRACE_SECONDS;
}

static bool is_removable(const jobs *all, const row *r)
{
	return !is_needed(all, r) && !is_in_use(all, r->name);
}

/* Return the oldest one beyond the limits of age or size; NULL: none. */
static const row *find_victim(const jobs *all, rows *found)
{
	const job_parts *o = all->queue.parts;
	int64_t total = 0, oldest = now_seconds(all) - (int64_t)o->retain_days * DAY_SECONDS;
	char folder[PATH_MAX];
	for (size_t i = 0; i < found->n; i++) {
		row *r = &found->items[i];
		if (is_active(&all->queue, r->job)) {
			r->bytes = -1; /* not counted */
			continue;
		}
		store_checkpoint_folder(all->queue.parts->store, r->job, r->step, folder);
		r->bytes = o->retain_bytes > 0 ? folder_bytes(folder) : 0;
		total += r->bytes;
	}
	bool too_much = o->retain_bytes > 0 && total > o->retain_bytes;
	for (size_t i = 0; i < found->n; i++) {
		const row *r = &found->items[i];
		bool too_old = o->retain_days > 0 && r->created < oldest;
		if (r->bytes >= 0 && (too_old || too_much) && is_removable(all, r))
			return r;
	}
	return NULL;
}

void job_removal_sweep(jobs *all)
{
	const job_parts *o = all->queue.parts;
	rows found;
	error err = ERROR_INIT;
	if ((o->retain_days <= 0 && o->retain_bytes <= 0) || clock_ns() < all->sweep_ns)
		return;
	status s = job_removal_read_rows(all, NULL, &found, &err);
	const row *victim = s == STATUS_OK ? find_victim(all, &found) : NULL;
	if (victim) {
		s = remove_one(all, victim, &err);
		log_line(LOG_INFO, "retention: %s %s", victim->name, s == STATUS_OK ? "is removed" : "stays for now");
	}
	if (!victim || s != STATUS_OK) /* otherwise there may be more */
		all->sweep_ns = clock_ns() + (uint64_t)JOB_REMOVAL_SWEEP_SECONDS * SECOND_NS;
	if (s != STATUS_OK)
		log_line(LOG_WARN, "retention: %s", error_message(&err));
	free(found.items);
}

/* --- job.delete, checkpoint.delete --------------------------------------------------------------- */

/* Checkpoints being deleted; with `with_job`, their job too. */
typedef struct removal {
	fleet_round unload;
	stream *stream;
	const jobs *jobs;
	bool with_job;
	rows rows;
	bool removed;
	model_entry **entries; /* one per row, closed; NULL if unreadable, so nothing uses it */
	error error;
} removal;

static void removal_free(removal *m)
{
	for (size_t i = 0; m->entries && i < m->rows.n; i++) {
		if (m->entries[i])
			catalog_reopen(m->entries[i], m->removed);
		catalog_release(m->entries[i]);
	}
	free(m->entries);
	free(m->rows.items);
	free(m);
}

static void job_removal_refuse(removal *m, status result, const error *err)
{
	error words = *err;
	error_settle(&words, result);
	stream_error(m->stream, &words, words.status == STATUS_CONFLICT ? "model_in_use" : NULL);
	removal_free(m);
}

static status check_removal(fleet_round *r, device *d)
{
	removal *m = (removal *)r;
	for (size_t i = 0; i < m->rows.n; i++)
		TRY(device_check_idle(d, m->rows.items[i].name, &m->error));
	return STATUS_OK;
}

static status run_removal(fleet_round *r, device *d)
{
	removal *m = (removal *)r;
	for (size_t i = 0; i < m->rows.n; i++)
		TRY(device_unload(d, m->rows.items[i].name, &m->error));
	return STATUS_OK;
}

static status remove_all(const removal *m, error *err)
{
	const jobs *all = m->jobs;
	const char *id = m->stream->target;
	for (size_t i = 0; i < m->rows.n; i++)
		if (is_used(all, m->rows.items[i].name))
			return error_set(err, STATUS_CONFLICT, "id", "%s is in use by a session or a job",
			                 m->rows.items[i].name);
	if (m->with_job && is_active(&all->queue, id))
		return error_set(err, STATUS_CONFLICT, "id", "the job has been resumed");
	if (!m->with_job)
		return remove_one(all, &m->rows.items[0], err);
	TRY(store_job_delete(all->queue.parts->store, id, err));
	for (size_t i = 0; i < m->rows.n; i++)
		catalog_forget(all->queue.parts->catalog, m->rows.items[i].name);
	return STATUS_OK;
}

static status commit_removal(fleet_round *r)
{
	removal *m = (removal *)r;
	TRY(remove_all(m, &m->error));
	m->removed = true;
	return STATUS_OK;
}

static void removal_done(fleet_round *r)
{
	removal *m = (removal *)r;
	if (r->result != STATUS_OK) {
		job_removal_refuse(m, r->result, &m->error);
		return;
	}
	stream_result(m->stream,
	              json_pack("{s:s, s:s, s:b}", "id", m->with_job ? m->stream->target : m->rows.items[0].name,
	                        "object", m->with_job ? "fine_tuning.job" : "fine_tuning.job.checkpoint", "deleted",
	                        1));
	removal_free(m);
}

/* Close the entry of row i, unless it is unreadable. */
static status close_row(removal *m, size_t i, error *err)
{
	model_entry *c;
	status s = catalog_open(m->jobs->queue.parts->catalog, m->rows.items[i].name, &c, NULL);
	if (s == STATUS_NOT_FOUND)
		return error_set(err, STATUS_CONFLICT, "id", "another request deletes %s", m->rows.items[i].name);
	if (s != STATUS_OK)
		return STATUS_OK;
	s = catalog_close(c, CLOSE_TO_DELETE, err);
	if (s == STATUS_OK)
		m->entries[i] = c;
	else
		catalog_release(c);
	return s;
}

/* Close the entries and ask the executors to unload the weights. m->rows is set. */
static void begin_removal(removal *m)
{
	const job_parts *e = m->jobs->queue.parts;
	error err = ERROR_INIT;
	m->entries = memory_new(m->rows.n, sizeof *m->entries);
	status s = m->entries ? STATUS_OK : STATUS_NOMEM;
	for (size_t i = 0; s == STATUS_OK && i < m->rows.n; i++) {
		const char *name = m->rows.items[i].name;
		if (is_used(m->jobs, name))
			s = error_set(&err, STATUS_CONFLICT, "id", "%s is in use by a session or a job", name);
		else
			s = close_row(m, i, &err);
	}
	m->unload =
	    (fleet_round){.check = check_removal, .run = run_removal, .commit = commit_removal, .done = removal_done};
	if (s == STATUS_OK && !fleet_begin_round(e->fleet, &m->unload))
		s = error_set(&err, STATUS_BUSY, NULL, "too many requests are waiting");
	if (s != STATUS_OK)
		job_removal_refuse(m, s, &err);
}

static removal *new_removal(stream *s, const jobs *all, bool with_job)
{
	removal *m = memory_new(1, sizeof *m);
	error err = ERROR_INIT;
	if (!m) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return NULL;
	}
	m->stream = s;
	m->jobs = all;
	m->with_job = with_job;
	status result = job_removal_read_rows(all, s->target, &m->rows, &err);
	if (result == STATUS_OK)
		return m;
	job_removal_refuse(m, result, &err);
	return NULL;
}

void job_removal_delete(stream *s, job_queue *q)
{
	json_t *document = job_machine_find_document(s, q);
	json_decref(document);
	if (!document)
		return;
	if (is_active(q, s->target)) {
		stream_refuse(s, STATUS_CONFLICT, "invalid_job_state", "id",
		              "a job that has not ended cannot be deleted");
		return;
	}
	removal *m = new_removal(s, (const jobs *)q, true);
	if (m)
		begin_removal(m);
}

void job_removal_delete_checkpoint(stream *s, job_queue *q)
{
	size_t i = 0;
	const char *name = json_string_value(json_object_get(s->params, "checkpoint"));
	json_t *document = job_machine_find_document(s, q);
	json_decref(document);
	removal *m = document ? new_removal(s, (const jobs *)q, false) : NULL;
	if (!m)
		return;
	while (i < m->rows.n && strcmp(m->rows.items[i].name, name) != 0)
		i++;
	error err = ERROR_INIT;
	if (i == m->rows.n)
		job_removal_refuse(
		    m, error_set(&err, STATUS_NOT_FOUND, "checkpoint", "the job has no checkpoint \"%.64s\"", name),
		    &err);
	else if (m->rows.items[i].newest && is_active(q, s->target))
		job_removal_refuse(
		    m, error_set(&err, STATUS_CONFLICT, "checkpoint", "the job continues from this checkpoint"), &err);
	else {
		m->rows.items[0] = m->rows.items[i];
		m->rows.n = 1;
		begin_removal(m);
	}
}
