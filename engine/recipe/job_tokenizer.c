#include "engine/recipe/job_tokenizer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/recipe/job_check.h"
#include "engine/text/corpus_form.h"

enum { MAX_FILE_BYTES = 64 << 20, CANCEL_MS = 50, REPORT_BYTES = 4096, FORMAT = 2 /* a part of every key */ };

extern char **environ;

/* --- an uploaded file --------------------------------------------------------------------- */

const char *job_tokenizer_file(const json_t *spec)
{
	return json_string_value(json_object_get(spec, "file"));
}

status job_tokenizer_read(tokenizer **out, const char *path, const char *id, error *err)
{
	char *data = NULL;
	size_t bytes;
	*out = NULL;
	status s = job_check_file(path, id, err);
	if (s == STATUS_OK)
		s = file_read(path, MAX_FILE_BYTES, &data, &bytes, err);
	if (s == STATUS_OK)
		s = tokenizer_open_data(out, data, bytes, err);
	free(data);
	if (s != STATUS_OK)
		snprintf(err->param, sizeof err->param, "file");
	return s;
}

/* --- the child ---------------------------------------------------------------------------- */

typedef struct child {
	pid_t pid;
	int output;
	char report[REPORT_BYTES];
	size_t bytes;
} child;

static status spawn(child *c, char *const *argv, error *err)
{
	posix_spawn_file_actions_t actions;
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return error_set(err, STATUS_NOMEM, NULL, "cannot start training a tokenizer: %s", strerror(errno));
	int failed = posix_spawn_file_actions_init(&actions);
	if (!failed) {
		failed = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
		failed = failed ? failed : posix_spawn(&c->pid, "/proc/self/exe", &actions, NULL, argv, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	c->output = ends[0];
	if (!failed)
		return STATUS_OK;
	close(ends[0]);
	return error_set(err, STATUS_NOMEM, NULL, "cannot start training a tokenizer: %s", strerror(failed));
}

/* Read what it prints until it ends; false: cancelled. */
static bool listen_to(child *c, const atomic_bool *cancel)
{
	struct pollfd p = {.fd = c->output, .events = POLLIN};
	while (!atomic_load(cancel)) {
		if (poll(&p, 1, CANCEL_MS) <= 0)
			continue;
		ssize_t n = read(c->output, c->report + c->bytes, sizeof c->report - c->bytes);
		if (n <= 0)
			return true;
		c->bytes += (size_t)n;
	}
	return false;
}

static status job_tokenizer_explain(const child *c, int how, error *err)
{
	int code = 0;
	const char *param, *message;
	json_t *problem;
	status read = json_read(&problem, c->report, c->bytes, 0, NULL);
	if (WIFEXITED(how) && WEXITSTATUS(how) == 0) {
		json_decref(problem);
		return STATUS_OK;
	}
	if (read == STATUS_OK)
		read = json_read_members(problem, "{s:i, s:s, s:s}", "status", &code, "param", &param, "message",
		                         &message);
	if (read == STATUS_OK && code > 0)
		error_set(err, (status)code, param[0] ? param : NULL, "%s", message);
	else if (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL)
		error_set(err, STATUS_NOMEM, NULL,
		          "training a tokenizer was killed, which mostly means that memory was short");
	else if (read == STATUS_NOMEM)
		error_settle(err, read);
	else
		error_set(err, STATUS_INVALID, NULL, "the tokenizer cannot be trained on this text");
	json_decref(problem);
	return err ? err->status : STATUS_INVALID;
}

static status job_tokenizer_run(char *const *argv, const atomic_bool *cancel, error *err)
{
	child c = {0};
	int how = 0;
	TRY(spawn(&c, argv, err));
	bool ended = listen_to(&c, cancel);
	if (!ended)
		kill(c.pid, SIGKILL);
	close(c.output);
	while (waitpid(c.pid, &how, 0) < 0 && errno == EINTR)
		;
	return ended ? job_tokenizer_explain(&c, how, err) : error_set(err, STATUS_CANCELLED, NULL, "cancelled");
}

/* --- training ------------------------------------------------------------------------------- */

static status make_key(const job_tokenizer_source *c, const char *spec, uint64_t *out, error *err)
{
	uint64_t sum[4] = {FORMAT, digest_bytes(spec, strlen(spec))};
	for (size_t i = 0; i < c->n_texts; i++) {
		TRY(job_check_hash(c->texts[i], &sum[2], err));
		sum[3] = corpus_hint_of_file(c->texts[i]);
		sum[1] = digest_bytes(sum, sizeof sum);
	}
	*out = sum[1];
	return STATUS_OK;
}

/* A kept tokenizer: the digest of its one file as text, a line feed, the file. *out NULL: there is none that is whole.
 */
static void read_kept(tokenizer **out, const char *path)
{
	char *data, digest[DIGEST_TEXT_BYTES];
	size_t bytes, head = DIGEST_TEXT_BYTES; /* a NUL's place is the line feed's */
	*out = NULL;
	if (file_read(path, MAX_FILE_BYTES, &data, &bytes, NULL) != STATUS_OK)
		return;
	if (bytes > head) {
		digest_write(digest_bytes(data + head, bytes - head), digest);
		if (memcmp(data, digest, head - 1) != 0 ||
		    tokenizer_open_data(out, data + head, bytes - head, NULL) != STATUS_OK)
			*out = NULL;
	}
	free(data);
}

/* Without room for it the tokenizer is trained again when it is needed. */
static void job_tokenizer_keep(const tokenizer *t, const char *path)
{
	static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
	char digest[DIGEST_TEXT_BYTES];
	size_t bytes;
	const char *data = NULL;
	for (int i = 0; !data && i < 2; i++)
		data = tokenizer_file(t, names[i], &bytes);
	if (!data)
		return;
	digest_write(digest_bytes(data, bytes), digest);
	const file_part parts[] = {{digest, DIGEST_TEXT_BYTES - 1}, {"\n", 1}, {data, bytes}};
	file_write(path, parts, 3, NULL);
}

static status job_tokenizer_train(tokenizer **out, const job_tokenizer_source *c, const char *spec, error *err)
{
	char folder[PATH_MAX];
	const char *const words[] = {"additived", "train-tokenizer", "--json", "--spec", spec, "--out", folder};
	enum { WORDS = sizeof words / sizeof *words };
	char **argv = memory_new(WORDS + c->n_texts + 1, sizeof *argv);
	if (!argv)
		return STATUS_NOMEM;
	snprintf(folder, sizeof folder, "%s-tokenizer", c->temporary);
	for (size_t i = 0; i < WORDS; i++)
		argv[i] = (char *)(uintptr_t)words[i];
	for (size_t i = 0; i < c->n_texts; i++)
		argv[WORDS + i] = c->texts[i];
	status s = job_tokenizer_run(argv, c->cancel, err);
	free(argv);
	if (s == STATUS_OK)
		s = tokenizer_open(out, folder, INT64_MAX, err);
	file_remove_tree(folder, NULL);
	return s;
}

static status find_or_train(tokenizer **out, const job_tokenizer_source *c, error *err)
{
	char path[PATH_MAX + 32], *spec = json_text(c->spec, JSON_COMPACT | JSON_SORT_KEYS);
	uint64_t key;
	status s = spec ? make_key(c, spec, &key, err) : STATUS_NOMEM;
	if (s == STATUS_OK) {
		snprintf(path, sizeof path, "%s/%016llx.tokenizer", c->cache, (unsigned long long)key);
		read_kept(out, path);
		if (!*out) {
			s = job_tokenizer_train(out, c, spec, err);
			if (s == STATUS_OK)
				job_tokenizer_keep(*out, path);
		}
	}
	free(spec);
	return s;
}

status job_tokenizer_open(tokenizer **out, const job_tokenizer_source *c, error *err)
{
	const char *file = job_tokenizer_file(c->spec);
	char path[PATH_MAX];
	*out = NULL;
	if (c->folder[0])
		return tokenizer_open(out, c->folder, c->vocab, err);
	if (file) {
		c->paths.path(c->paths.context, file, path);
		return job_tokenizer_read(out, path, file, err);
	}
	return tokenizer_trains(c->spec) ? find_or_train(out, c, err) : tokenizer_new(out, c->spec, err);
}
