#include "engine/daemon/batches/batch_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/reserve.h"
#include "engine/daemon/batches/batch_run_private.h"
#include "engine/daemon/net/connection.h"
#include "engine/daemon/queue/job_trace.h"

#define SECOND_NS UINT64_C(1000000000)
#define COMMIT_NS SECOND_NS /* between commits; a chunk's end is committed, too */

static void release_lines(batch_run *r)
{
	for (int i = 0; i < r->n; i++)
		batch_line_fini(&r->lines[i]);
	r->n = r->settled = r->next = 0;
}

static void batch_run_fini(queued_run *base)
{
	batch_run *r = (batch_run *)base;
	release_lines(r);
	batch_index_fini(&r->index);
	batch_output_fini(&r->output);
}

queued_job *batch_run_job(const batch_run *r)
{
	return job_queue_find(r->base.queue, r->base.id);
}

void batch_run_end(batch_run *r, status s, error *err)
{
	job_queue_end_run(&r->base, s, err);
}

void batch_run_on_pool(batch_run *r, uv_work_cb work, uv_after_work_cb done)
{
	error err = ERROR_INIT;
	r->busy = true;
	r->work.data = r;
	r->error = (error)ERROR_INIT;
	if (uv_queue_work(r->base.queue->parts->loop, &r->work, work, done) != 0)
		batch_run_end(r, STATUS_NOMEM, &err);
}

bool batch_run_returned(batch_run *r)
{
	error err = r->error;
	r->busy = false;
	const status s = !batch_run_job(r) || r->base.cancelled ? STATUS_CANCELLED : r->result;
	if (s == STATUS_OK)
		return true;
	batch_run_end(r, s, &err);
	return false;
}

/* --- commits -------------------------------------------------------------------------------------------- */

/* Join the texts of lines [from, to) that belong into the error file, or into the output. */
static json_t *join(const batch_run *r, int from, int to, bool failed)
{
	size_t bytes = 0;
	for (int i = from; i < to; i++)
		bytes += r->lines[i].failed == failed ? strlen(r->lines[i].text) : 0;
	char *text = malloc(bytes + 1), *at = text;
	for (int i = from; text && i < to; i++)
		if (r->lines[i].failed == failed)
			at = stpcpy(at, r->lines[i].text);
	json_t *string = text ? json_stringn(text, bytes) : NULL;
	free(text);
	return string;
}

/* Return the end of the next commit: at least one line, and more within the limit. */
static int commit_end(const batch_run *r, int answered)
{
	int i = r->settled;
	size_t bytes = strlen(r->lines[i++].text);
	while (i < answered && (bytes += strlen(r->lines[i].text)) <= BATCH_PENDING_BYTES)
		i++;
	return i;
}

/* Commit the results of the lines before `to`. */
static status commit(batch_run *r, queued_job *j, int to, error *err)
{
	batch_progress p = r->progress;
	const int committed = to - r->settled;
	size_t bytes = 0;
	for (int i = r->settled; i < to; i++) {
		p.failed += r->lines[i].failed;
		bytes += strlen(r->lines[i].text);
	}
	p.done += committed;
	p.bytes += (int64_t)bytes;
	p.expired |= r->expired;
	json_t *event =
	    json_pack("{s:o, s:o}", "output", join(r, r->settled, to, false), "errors", join(r, r->settled, to, true));
	TRY(job_queue_progress(r->base.queue, j, batch_document_at(j->document, &p), event, err));
	r->progress = p;
	r->settled = to;
	r->pending -= bytes;
	r->committed_ns = clock_ns();
	r->alone = r->alone > committed ? r->alone - committed : 0;
	return STATUS_OK;
}

/* --- lines ------------------------------------------------------------------------------------------------ */

static void batch_run_advance(batch_run *r);
static void batch_run_read(batch_run *r);

static void line_settled(batch_run *r, batch_line *line, const char *code, const char *message)
{
	batch_line_settle(line, code, message);
	r->pending += line->text ? strlen(line->text) : 0;
	if (!line->text)
		r->failure = error_set(&r->reason, STATUS_NOMEM, NULL, "out of memory");
}

static void expire(batch_run *r, batch_line *line)
{
	r->expired = true;
	line_settled(r, line, "batch_expired", "the completion window passed before this request ran");
}

static void line_done(batch_line *line)
{
	batch_run *r = line->owner;
	r->running--;
	if (line->text) {
		r->pending += strlen(line->text);
		r->room = r->failure == STATUS_BUSY;
	} else if (line->failure == STATUS_CANCELLED && r->ending == BATCH_EXPIRES) {
		expire(r, line);
	} else if ((r->failure == STATUS_OK || r->failure == STATUS_BUSY) &&
	           !(line->failure == STATUS_CANCELLED && r->ending == BATCH_CANCELS)) {
		r->failure = error_set(&r->reason, line->failure, NULL, "line %d: %s", line->number, line->reason);
	}
	if (line->failure == STATUS_BUSY && line->retry_after > r->retry_after)
		r->retry_after = line->retry_after;
	if (!r->busy)
		batch_run_advance(r);
}

static void begin_line(batch_run *r, batch_line *line)
{
	if (line->state == BATCH_LINE_DONE) {
		if (!line->text)
			r->failure = error_set(&r->reason, STATUS_NOMEM, NULL, "out of memory");
		else
			r->pending += strlen(line->text);
	} else if (r->ending == BATCH_EXPIRES) {
		expire(r, line);
	} else if (r->poisoned) {
		line_settled(r, line, "internal_error", "the engine died several times while it ran this request");
		r->poisoned = false;
	} else if (r->progress.bytes + (int64_t)r->pending >= BATCH_MAX_OUTPUT) {
		line_settled(r, line, "output_too_large", "the results of the batch before this request are too large");
	} else {
		r->running++;
		batch_line_begin(line);
	}
}

static bool waits(const batch_run *r)
{
	return r->ending == BATCH_RUNS && clock_ns() < r->resume_ns;
}

static bool may_begin(const batch_run *r)
{
	return !waits(r) && r->next < r->n && r->failure == STATUS_OK && !r->base.cancelled &&
	       r->ending != BATCH_CANCELS && r->running < (r->alone ? 1 : BATCH_CONCURRENT) &&
	       r->pending < BATCH_PENDING_BYTES && !(r->alone && r->next > r->settled);
}

/* Number of the lines that have results without a gap. */
static int answered(const batch_run *r)
{
	int i = r->settled;
	while (i < r->next && r->lines[i].state == BATCH_LINE_DONE && r->lines[i].text)
		i++;
	return i;
}

static void check_time(batch_run *r)
{
	if (r->ending == BATCH_RUNS && clock_unix() >= r->expires)
		r->ending = BATCH_EXPIRES;
}

/* The engine was busy, and no line runs: let those without results begin again later. */
static void postpone(batch_run *r)
{
	for (int i = r->settled; i < r->next; i++)
		r->pending -= r->lines[i].text ? strlen(r->lines[i].text) : 0; /* begin_line counts it again */
	r->next = r->settled;
	r->failure = STATUS_OK;
	r->resume_ns = clock_ns() + (uint64_t)(r->retry_after > 0 ? r->retry_after : 1) * SECOND_NS;
	r->retry_after = 0;
}

/* Begin the refused lines again, up to one that is refused again. */
static void begin_refused(batch_run *r)
{
	r->room = false;
	r->failure = STATUS_OK;
	for (int i = r->settled; i < r->next && r->failure == STATUS_OK; i++)
		if (r->lines[i].state == BATCH_LINE_WAITING)
			begin_line(r, &r->lines[i]);
}

/* Start lines, and commit when it is time. */
static status pump(batch_run *r, queued_job *j, error *err)
{
	for (;;) {
		check_time(r);
		if (r->room && r->failure == STATUS_BUSY && r->ending != BATCH_CANCELS && !r->base.cancelled)
			begin_refused(r);
		while (may_begin(r))
			begin_line(r, &r->lines[r->next++]);
		const int to = answered(r);
		const bool idle = r->running == 0, due = clock_ns() - r->committed_ns >= COMMIT_NS;
		const bool commits = idle || due || r->pending >= BATCH_PENDING_BYTES;
		while (commits && r->settled < to)
			TRY(commit(r, j, commit_end(r, to), err));
		if (idle && r->failure == STATUS_BUSY)
			postpone(r);
		else if (!may_begin(r))
			return STATUS_OK;
	}
}

static void batch_run_advance(batch_run *r)
{
	queued_job *j = batch_run_job(r);
	error err = ERROR_INIT;
	r->busy = true;
	const status s = j ? pump(r, j, &err) : STATUS_OK; /* also after a failure: results must not be lost */
	if (s != STATUS_OK && r->failure == STATUS_OK) {
		r->failure = s;
		r->reason = err;
	}
	r->busy = false;
	if (r->running > 0)
		return;
	if (!j || r->base.cancelled) {
		batch_run_end(r, STATUS_CANCELLED, &err);
	} else if (r->failure != STATUS_OK) {
		batch_run_end(r, r->failure, &r->reason);
	} else if (r->ending == BATCH_CANCELS) {
		release_lines(r);
		batch_run_finalize(r, j);
	} else if (r->settled == r->n) {
		batch_run_read(r);
	} /* else batch_run_tick continues at `resume_ns` */
}

/* --- reading ---------------------------------------------------------------------------------------------- */

static status read_line(batch_run *r, FILE *file, const batch_place *place, error *err)
{
	batch_line *line = &r->lines[r->n];
	const size_t bytes = place->bytes > BATCH_MAX_LINE ? 0 : (size_t)place->bytes;
	char *text = malloc(bytes + 1);
	*line = (batch_line){.batch = &r->context,
	                     .number = place->number,
	                     .large = place->bytes >= STREAM_LARGE,
	                     .done = line_done,
	                     .owner = r};
	status s = !text ? STATUS_NOMEM
	           : fseeko(file, place->offset, SEEK_SET) == 0 && fread(text, 1, bytes, file) == bytes
	               ? batch_request_read(&line->request, r->context.endpoint, place, text)
	               : file_error(err, r->path, "cannot read");
	free(text);
	if (s != STATUS_OK) {
		batch_request_fini(&line->request);
		return s;
	}
	r->n++;
	if (!line->request.body)
		batch_line_settle(line, line->request.code, line->request.message);
	return STATUS_OK;
}

static void batch_run_pool_read(uv_work_t *work)
{
	batch_run *r = work->data;
	FILE *file = fopen(r->path, "re");
	int64_t bytes = 0;
	reserve_forget();
	r->result = file ? STATUS_OK : file_error(&r->error, r->path, "cannot open");
	for (int64_t i = r->progress.done; i < r->index.n && r->n < BATCH_CHUNK && bytes < BATCH_CHUNK_BYTES; i++) {
		if (r->result == STATUS_OK)
			r->result = read_line(r, file, &r->index.lines[i], &r->error);
		bytes += r->index.lines[i].bytes;
		if (r->result != STATUS_OK)
			break;
	}
	if (file)
		fclose(file);
}

static void lines_read(uv_work_t *work, int cancelled)
{
	batch_run *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (batch_run_returned(r))
		batch_run_advance(r);
}

/* All lines in memory are committed. */
static void batch_run_read(batch_run *r)
{
	release_lines(r);
	if (r->progress.done >= r->index.n || r->ending == BATCH_CANCELS)
		batch_run_finalize(r, batch_run_job(r));
	else
		batch_run_on_pool(r, batch_run_pool_read, lines_read);
}

/* --- beginning ---------------------------------------------------------------------------------------------- */

static void pool_scan(uv_work_t *work)
{
	batch_run *r = work->data;
	reserve_forget();
	if (r->file.bytes <= BATCH_MAX_BYTES) {
		r->result = batch_index_read(&r->index, r->path, r->file.digest, &r->error);
		return;
	}
	r->index.problems = json_pack("[{s:s, s:s, s:n, s:n}]", "code", "file_too_large", "message",
	                              "the file is over the limit of 200 MiB", "param", "line");
	r->result = r->index.problems ? STATUS_OK : STATUS_NOMEM;
}

/* The file is no batch. */
static void fail_file(batch_run *r, queued_job *j)
{
	error err = ERROR_INIT;
	json_t *next = batch_document_with(j->document, json_pack("{s:O}", "problems", r->index.problems));
	json_t *ended = next ? batch_document_ended(next, "failed") : NULL;
	json_decref(next);
	batch_run_end(r, job_queue_change(r->base.queue, j, ended, &err), &err);
}

static void scanned(uv_work_t *work, int cancelled)
{
	batch_run *r = work->data;
	error err = ERROR_INIT;
	status s = STATUS_OK;
	(void)cancelled; /* cannot be cancelled */
	if (!batch_run_returned(r))
		return;
	queued_job *j = batch_run_job(r);
	if (r->index.problems) {
		fail_file(r, j);
		return;
	}
	job_trace_phase(j->document, "running");
	if (!batch_document_has(j->document, "in_progress_at"))
		s = job_queue_change(
		    r->base.queue, j,
		    batch_document_with(j->document, json_pack("{s:I, s:i}", "in_progress_at", (json_int_t)clock_unix(),
		                                               "total", r->index.n)),
		    &err);
	if (s != STATUS_OK)
		batch_run_end(r, s, &err);
	else if (batch_document_has(j->document, "joined_at"))
		batch_run_discard(r);
	else
		batch_run_read(r);
}

static status batch_run_open(queued_run *base, queued_job *j, error *err)
{
	batch_run *r = (batch_run *)base;
	const job_parts *parts = base->queue->parts;
	const json_t *document = j->document;
	r->context =
	    (batch_context){.net = parts->net,
	                    .endpoint = batch_endpoint_find(json_string_value(json_object_get(document, "endpoint"))),
	                    .id = base->id,
	                    .key = r->key,
	                    .created = json_integer_value(json_object_get(document, "created_at")),
	                    .fingerprint = r->fingerprint};
	snprintf(r->key, sizeof r->key, "%s", batch_document_key(document));
	if (!r->context.endpoint)
		return error_set(err, STATUS_CORRUPT, NULL, "the batch's record is damaged");
	r->expires = json_integer_value(json_object_get(document, "expires_at"));
	r->progress = batch_document_progress(document);
	r->ending = batch_document_has(document, "cancelling_at") ? BATCH_CANCELS : BATCH_RUNS;
	r->alone = death_log_count(parts->deaths, j->id) > 0 ? BATCH_CHUNK : 0;
	r->poisoned = death_log_poison(parts->deaths, j->id);
	if (r->poisoned && !batch_document_has(document, "in_progress_at"))
		return error_set(err, STATUS_INTERNAL, NULL, "the engine died several times while it read the file");
	r->committed_ns = clock_ns();
	TRY(connection_fingerprint(parts->net, r->fingerprint));
	TRY(store_file_use(parts->store, json_string_value(json_object_get(document, "file")), &r->file, err));
	store_blob_path(parts->store, r->file.id, r->path);
	return STATUS_OK;
}

static status batch_run_start(queued_run *base, queued_job *j)
{
	batch_run *r = (batch_run *)base;
	(void)j;
	r->work.data = r;
	r->busy = true;
	return uv_queue_work(base->queue->parts->loop, &r->work, pool_scan, scanned) == 0 ? STATUS_OK : STATUS_NOMEM;
}

/* --- stopping ------------------------------------------------------------------------------------------------ */

/* Cancel the lines that run; the run may end before this function returns. */
static void stop_lines(batch_run *r)
{
	if (r->busy)
		return; /* looks at `ending` and `cancelled` when it is done */
	r->busy = true;
	for (int i = r->settled; i < r->next; i++)
		batch_line_cancel(&r->lines[i]);
	r->busy = false;
	batch_run_advance(r);
}

static void batch_run_stop(queued_run *base)
{
	stop_lines((batch_run *)base);
}

void batch_run_cancel(queued_run *base)
{
	batch_run *r = (batch_run *)base;
	r->ending = BATCH_CANCELS;
	stop_lines(r);
}

void batch_run_tick(queued_run *base)
{
	batch_run *r = (batch_run *)base;
	if (r->busy)
		return;
	check_time(r);
	if (r->ending == BATCH_EXPIRES)
		stop_lines(r);
	else
		batch_run_advance(r); /* results may wait for a commit while a long line runs */
}

const queued_run_steps batch_run_steps = {sizeof(batch_run), batch_run_open, batch_run_start, batch_run_stop,
                                          batch_run_fini};
