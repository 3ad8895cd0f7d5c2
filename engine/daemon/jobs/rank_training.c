/* The processes write one line per report to stdout (engine/rank/rank_report.h). Their stdin takes one byte per
 * command; closing it ends them. The run is over when stdout has ended and mpirun has been waited for. */
#include "engine/daemon/jobs/rank_training.h"

#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/recipe/job_tokenizer.h"

enum { READ_BYTES = 64 << 10, MAX_LINE = 16 << 20, KILL_SECONDS = 5 };
enum { END_SECONDS = 90 }; /* longer than a rank waits for mpirun (PATIENCE_SECONDS of engine/rank/main.c) */

static const char launcher[] = "mpirun";

struct rank_training {
	const job_parts *parts;
	training_plan *plan;
	char file[PATH_MAX]; /* the processes' input file */
	uv_process_t process;
	uv_pipe_t input, output; /* the processes' stdin and stdout */
	uv_timer_t patience;     /* for mpirun to end; active once rank 0 has, or the run was cancelled */
	int open;                /* handles that are not closed */
	char *line;              /* incomplete line */
	size_t used, room;
	training_report end;
	bool ended, stopping; /* the last report has arrived; a stop was requested */
};

/* --- the program --------------------------------------------------------------------------- */

/* Path of additive-train, which is in the folder of the engine. */
static bool program_path(char path[PATH_MAX])
{
	char own[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
	if (n < 0)
		return false;
	own[n] = 0;
	return snprintf(path, PATH_MAX, "%s/additive-train", dirname(own)) < PATH_MAX && access(path, X_OK) == 0;
}

static bool has_launcher(void)
{
	const char *path = getenv("PATH");
	char whole[PATH_MAX];
	for (size_t n; path && *path; path += n + (path[n] == ':')) {
		n = strcspn(path, ":");
		if (snprintf(whole, sizeof whole, "%.*s/%s", (int)n, path, launcher) < (int)sizeof whole &&
		    access(whole, X_OK) == 0)
			return true;
	}
	return false;
}

const char *rank_training_obstacle(void)
{
	char path[PATH_MAX];
	if (!program_path(path))
		return "additive-train is not in the engine's folder";
	return has_launcher() ? NULL : "there is no mpirun";
}

/* --- reports ------------------------------------------------------------------------------- */

static void ask(rank_training *t, char wish)
{
	const uv_buf_t byte = uv_buf_init(&wish, 1);
	uv_try_write((uv_stream_t *)&t->input, &byte, 1); /* a process that has ended is detected elsewhere */
}

/* The ranks end when mpirun is killed. */
static void run_out(uv_timer_t *patience)
{
	rank_training *t = patience->data;
	log_line(LOG_WARN, "the processes of %s should have ended %d s ago; they are killed", t->plan->job,
	         END_SECONDS);
	uv_process_kill(&t->process, SIGKILL);
}

static void expect_end(rank_training *t)
{
	if (!uv_is_closing((uv_handle_t *)&t->patience) && !uv_is_active((uv_handle_t *)&t->patience))
		uv_timer_start(&t->patience, run_out, END_SECONDS * 1000, 0);
}

static void read_error(const json_t *json, error *err)
{
	int code;
	const char *param, *message;
	if (json_unpack((json_t *)(uintptr_t)json, "{s:i, s:s, s:s}", "status", &code, "param", &param, "message",
	                &message) == 0 &&
	    code > 0)
		error_set(err, (status)code, param[0] ? param : NULL, "%s", message);
}

static bool read_kind(const char *word, training_kind *out)
{
	static const char *const words[] = {"started", "progress", "evaluated", "saved", "ended"};
	for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
		if (strcmp(word, words[i]) == 0) {
			*out = (training_kind)i;
			return true;
		}
	return false;
}

/* Open MPI 5's mpirun writes a NUL where the output of a killed rank ends. */
static void take_line(rank_training *t, const char *text, size_t bytes)
{
	for (; bytes && !*text; text++)
		bytes--;
	json_t *line = json_loadb(text, bytes, 0, NULL);
	training_report r = {.progress = {.objective = t->plan->options.objective}};
	if (!read_kind(json_string_value(json_object_get(line, "report")), &r.kind)) {
		log_line(LOG_WARN, "a process of %s wrote a line that is not a report", t->plan->job);
		json_decref(line);
		return;
	}
	train_progress_read(&r.progress, json_object_get(line, "progress"));
	r.finished = json_is_true(json_object_get(line, "finished"));
	r.checkpoint = json_object_get(line, "checkpoint");
	r.preview = json_object_get(line, "preview");
	read_error(json_object_get(line, "error"), &r.error);
	if (r.kind == TRAINING_ENDED) {
		t->end = r;
		t->end.checkpoint = t->end.preview = NULL;
		t->ended = true;
		expect_end(t);
	} else {
		const bool written = t->plan->report(t->plan->context, &r);
		if (r.kind == TRAINING_EVALUATED)
			ask(t, written ? 'g' : 'l');
	}
	json_decref(line);
}

/* --- the end --------------------------------------------------------------------------------- */

static void closed(uv_handle_t *h)
{
	rank_training *t = h->data;
	if (--t->open > 0)
		return;
	unlink(t->file);
	t->end.kind = TRAINING_ENDED;
	if (!t->ended && !t->stopping)
		error_set(&t->end.error, STATUS_DEVICE, NULL, "a process of the run has ended");
	const training_report report = t->end; /* the report may free t */
	t->plan->report(t->plan->context, &report);
}

static void close_handle(void *handle)
{
	if (!uv_is_closing(handle))
		uv_close(handle, closed);
}

static void exited(uv_process_t *process, int64_t exit_status, int signal)
{
	rank_training *t = process->data;
	const bool whole = exit_status == 0 && signal == 0;
	t->end.finished = t->end.finished && whole;
	/* The processes ended without being asked; rank 0 has saved what it could. */
	if (!whole && t->end.error.status == STATUS_OK && !t->stopping)
		error_set(&t->end.error, STATUS_DEVICE, NULL, "a process of the run has ended: %s %d",
		          signal ? "signal" : "exit status", signal ? signal : (int)exit_status);
	close_handle(&t->process);
	close_handle(&t->input);
	close_handle(&t->patience);
}

/* --- lines ------------------------------------------------------------------------------------- */

static void give_room(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
	rank_training *t = h->data;
	(void)suggested;
	if (t->room - t->used < READ_BYTES && t->room < MAX_LINE) {
		char *more = realloc(t->line, t->room * 2 + READ_BYTES);
		if (more) {
			t->line = more;
			t->room = t->room * 2 + READ_BYTES;
		}
	}
	*out = uv_buf_init(t->line ? t->line + t->used : NULL, (unsigned)(t->room - t->used));
}

static void take_lines(rank_training *t)
{
	size_t begin = 0;
	for (char *end; (end = memchr(t->line + begin, '\n', t->used - begin));) {
		take_line(t, t->line + begin, (size_t)(end - t->line) - begin);
		begin = (size_t)(end - t->line) + 1;
	}
	memmove(t->line, t->line + begin, t->used - begin);
	t->used -= begin;
}

static void arrived(uv_stream_t *pipe, ssize_t n, const uv_buf_t *buffer)
{
	rank_training *t = pipe->data;
	(void)buffer;
	if (n > 0) {
		t->used += (size_t)n;
		take_lines(t);
	} else if (n < 0) {
		close_handle(&t->output);
	}
}

/* --- beginning --------------------------------------------------------------------------------- */

static bool rank_training_add_file(json_t *files, const corpus *c, const char *id)
{
	char path[PATH_MAX];
	if (!id || !id[0])
		return true;
	c->paths.path(c->paths.context, id, path);
	return json_object_set_new(files, id, json_string(path)) == 0;
}

static json_t *name_files(const corpus *c)
{
	json_t *files = json_object();
	bool ok = files && rank_training_add_file(files, c, c->validation) &&
	          rank_training_add_file(files, c, job_tokenizer_file(c->spec));
	for (size_t i = 0; i < c->n_training && ok; i++)
		ok = rank_training_add_file(files, c, c->training[i].id);
	if (ok)
		return files;
	json_decref(files);
	return NULL;
}

/* Format: rank_plan.h. */
static status write_plan(const rank_training *t, const json_t *request, const corpus *c, error *err)
{
	const training_plan *p = t->plan;
	char folder[PATH_MAX];
	store_job_folder(p->store, p->job, folder);
	json_t *document =
	    json_pack("{s:O, s:o, s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:O}", "request", request, "files", name_files(c),
	              "base", p->base, "cache", c->cache.folder, "cache_bytes", (json_int_t)c->cache.budget, "folder",
	              folder, "resume", p->resume, "result", p->result, "job", p->job, "card", p->card);
	char *text = json_text(document, JSON_COMPACT | JSON_REAL_PRECISION(17));
	status s = text ? file_write(t->file, &(file_part){text, strlen(text)}, 1, err) : STATUS_NOMEM;
	free(text);
	json_decref(document);
	return s;
}

static int spawn(rank_training *t, int64_t ranks)
{
	char program[PATH_MAX], count[24], threads[24], seconds[24], devices[DEVICE_LIST_BYTES];
	const int all = t->parts->threads ? t->parts->threads : (int)uv_available_parallelism();
	if (!program_path(program))
		return UV_ENOENT;
	snprintf(count, sizeof count, "%lld", (long long)ranks);
	snprintf(threads, sizeof threads, "%d", all / ranks > 1 ? (int)(all / ranks) : 1);
	snprintf(seconds, sizeof seconds, "%d", KILL_SECONDS);
	fleet_device_list(t->parts->fleet, devices);
	/* Both Open MPI 4 and 5 know these. */
	const char *const words[] = {launcher,
	                             "--allow-run-as-root",
	                             "--oversubscribe",
	                             "--bind-to",
	                             "none",
	                             "--mca",
	                             "odls_base_sigkill_timeout",
	                             seconds,
	                             "-n",
	                             count,
	                             program,
	                             "--plan",
	                             t->file,
	                             "--backend",
	                             fleet_backend_name(t->parts->fleet),
	                             "--device",
	                             devices,
	                             "--threads",
	                             threads,
	                             NULL};
	uv_stdio_container_t stdio[3] = {
	    {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (void *)&t->input},
	    {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (void *)&t->output},
	    {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO}};
	const uv_process_options_t o = {
	    .file = launcher, .args = (char **)(uintptr_t)words, .exit_cb = exited, .stdio = stdio, .stdio_count = 3};
	return uv_spawn(t->parts->loop, &t->process, &o);
}

/* From here on ENDED follows once all handles are closed. */
static void rank_training_start(rank_training *t, int64_t ranks)
{
	t->process.data = t->input.data = t->output.data = t->patience.data = t;
	uv_pipe_init(t->parts->loop, &t->input, 0);
	uv_pipe_init(t->parts->loop, &t->output, 0);
	uv_timer_init(t->parts->loop, &t->patience);
	t->open = 4;
	int failed = spawn(t, ranks);
	if (failed) /* the handle of a process that did not start must be closed, too */
		error_set(&t->end.error, STATUS_UNAVAILABLE, NULL, "the processes of the run cannot be started: %s",
		          uv_strerror(failed));
	failed = failed ? failed : uv_read_start((uv_stream_t *)&t->output, give_room, arrived);
	if (failed) {
		t->ended = true;
		close_handle(&t->process);
		close_handle(&t->input);
		close_handle(&t->output);
		close_handle(&t->patience);
	}
}

status rank_training_begin(rank_training **out, const job_parts *parts, training_plan *p, int64_t ranks,
                           const json_t *request, const corpus *files, error *err)
{
	*out = NULL;
	rank_training *t = memory_new(1, sizeof *t);
	if (!t)
		return STATUS_NOMEM;
	t->parts = parts;
	t->plan = p;
	store_temporary_path(parts->store, t->file);
	status s = write_plan(t, request, files, err);
	if (s != STATUS_OK) {
		free(t);
		return s;
	}
	rank_training_start(t, ranks);
	*out = t;
	return STATUS_OK;
}

void rank_training_stop(rank_training *t, bool save, bool rows_written)
{
	if (t->stopping && (save || uv_is_closing((uv_handle_t *)&t->input)))
		return;
	if (rows_written && !t->stopping)
		ask(t, 'w');
	t->stopping = true;
	if (save) {
		ask(t, 's');
	} else {
		close_handle(&t->input);
		expect_end(t);
	}
}

void rank_training_free(rank_training *t)
{
	if (t)
		free(t->line);
	free(t);
}
