/* A process that adds files, models, adapters, checkpoints and session states is killed with SIGKILL at random moments. After
 * each kill every acknowledged object is complete, and no incomplete object is left. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store.h"
#include "tests/unit/support/folder.h"

enum { KILLS = 25, MOST_KILLS = 150, BLOB_BYTES = 20000 };

/* The child's report after each completed call: a kind, and an id or a number. */
typedef struct acknowledged {
	char kind;
	int64_t number;
	char id[STORE_ID_BYTES];
} acknowledged;

static void fill(char *blob, int64_t number)
{
	memset(blob, 'a' + (int)(number % 26), BLOB_BYTES);
	snprintf(blob, 32, "%lld", (long long)number);
}

static void need(bool ok)
{
	if (!ok)
		_exit(3);
}

static void add_one_of_each(store *s, int64_t n, int out)
{
	char blob[BLOB_BYTES], path[PATH_MAX], inner[PATH_MAX + 32];
	acknowledged a = {.number = n};
	fill(blob, n);
	file_part part = {blob, BLOB_BYTES};

	store_file f = {.filename = "f", .purpose = "p"};
	store_temporary_path(s, path);
	need(file_write(path, &part, 1, NULL) == STATUS_OK && store_file_add(s, &f, path, NULL) == STATUS_OK);
	a.kind = 'f';
	strcpy(a.id, f.id);
	need(write(out, &a, sizeof a) == sizeof a);

	store_model m = {.architecture = "additive"};
	store_new_id(m.id, "m-");
	store_temporary_path(s, path);
	snprintf(inner, sizeof inner, "%s/model.safetensors", path);
	need(file_make_folders(path, NULL) == STATUS_OK && file_write(inner, &part, 1, NULL) == STATUS_OK);
	need(store_model_add(s, &m, path, NULL) == STATUS_OK);
	need(store_dtype_put(s, m.id, "int8", NULL) == STATUS_OK);
	a.kind = 'm';
	strcpy(a.id, m.id);
	need(write(out, &a, sizeof a) == sizeof a);

	store_new_id(a.id, "adapter-");
	json_t *adapter = json_pack("{s:s, s:I}", "id", a.id, "parameters", (json_int_t)n);
	store_temporary_path(s, path);
	snprintf(inner, sizeof inner, "%s/adapter.safetensors", path);
	need(file_make_folders(path, NULL) == STATUS_OK && file_write(inner, &part, 1, NULL) == STATUS_OK);
	need(store_adapter_add(s, adapter, path, NULL) == STATUS_OK);
	json_decref(adapter);
	a.kind = 'a';
	need(write(out, &a, sizeof a) == sizeof a);

	json_t *session = json_pack("{s:s, s:I}", "id", "sess-1", "tokens", (json_int_t)n);
	int64_t version;
	need(store_session_next(s, "sess-1", &version, path, NULL) == STATUS_OK);
	need(store_session_write(path, "sess-1", session, blob, BLOB_BYTES, NULL) == STATUS_OK);
	need(store_session_keep(s, "sess-1", version, session, NULL) == STATUS_OK);
	a.kind = 's';
	need(write(out, &a, sizeof a) == sizeof a);

	store_checkpoint_folder(s, "ftjob-1", n, path);
	snprintf(inner, sizeof inner, "%s/model.safetensors", path);
	need(file_make_folders(path, NULL) == STATUS_OK && file_write(inner, &part, 1, NULL) == STATUS_OK);
	need(json_object_set_new(session, "id", json_sprintf("ckpt-%lld", (long long)n)) == 0);
	need(store_checkpoint_add(s, "ftjob-1", n, session, NULL) == STATUS_OK);
	need(store_job_put(s, "ftjob-1", "running", session, NULL) == STATUS_OK);
	json_decref(session);
	a.kind = 'j';
	need(write(out, &a, sizeof a) == sizeof a);
}

static void child(const char *folder, int64_t first, int out)
{
	store *s;
	need(store_open(&s, folder, NULL) == STATUS_OK);
	for (int64_t n = first;; n++)
		add_one_of_each(s, n, out);
}

/* Frees `got`. */
static void check_content(void *got, size_t bytes, int64_t number)
{
	char expected[BLOB_BYTES];
	fill(expected, number);
	assert_int_equal(bytes, BLOB_BYTES);
	assert_memory_equal(got, expected, BLOB_BYTES);
	free(got);
}

static void check_blob(const char *path, int64_t number)
{
	char *got;
	size_t bytes;
	assert_int_equal(file_read(path, 2 * BLOB_BYTES, &got, &bytes, NULL), STATUS_OK);
	check_content(got, bytes, number);
}

static void check_one(store *s, const acknowledged *a)
{
	char path[PATH_MAX + 32], dtype[STORE_DTYPE_BYTES];
	store_file f;
	store_model m;
	json_t *job;
	if (a->kind == 'f') {
		assert_int_equal(store_file_get(s, a->id, &f, NULL), STATUS_OK);
		assert_int_equal(f.bytes, BLOB_BYTES);
		store_blob_path(s, a->id, path);
	} else if (a->kind == 'm') {
		assert_int_equal(store_model_get(s, a->id, &m, NULL), STATUS_OK);
		assert_int_equal(store_dtype_get(s, a->id, dtype, NULL), STATUS_OK);
		assert_string_equal(dtype, "int8");
		store_model_folder(s, a->id, path);
		strcat(path, "/model.safetensors");
	} else if (a->kind == 'a') {
		json_t *adapter;
		assert_int_equal(store_adapter_get(s, a->id, &adapter, NULL), STATUS_OK);
		assert_int_equal(json_integer_value(json_object_get(adapter, "parameters")), a->number);
		json_decref(adapter);
		store_adapter_folder(s, a->id, path);
		strcat(path, "/adapter.safetensors");
	} else {
		assert_int_equal(store_job_get(s, "ftjob-1", &job, NULL), STATUS_OK);
		assert_true(json_integer_value(json_object_get(job, "tokens")) >= a->number);
		json_decref(job);
		store_checkpoint_folder(s, "ftjob-1", a->number, path);
		strcat(path, "/model.safetensors");
	}
	check_blob(path, a->number);
}

static bool keep_tokens(void *context, const json_t *object)
{
	*(int64_t *)context = json_integer_value(json_object_get(object, "tokens"));
	return true;
}

/* The document and the state agree, and neither is older than the last acknowledged one. */
static void check_session(store *s, int64_t acknowledged_tokens)
{
	char path[PATH_MAX];
	int64_t tokens = -1;
	bool more;
	assert_int_equal(store_list(s, STORE_SESSIONS, &(store_page){0}, keep_tokens, &tokens, &more, NULL), STATUS_OK);
	assert_true(tokens >= acknowledged_tokens);
	if (tokens < 0)
		return;
	void *state;
	size_t bytes;
	assert_int_equal(store_session_path(s, "sess-1", path, NULL), STATUS_OK);
	assert_int_equal(store_session_read(path, "sess-1", &state, &bytes, NULL), STATUS_OK);
	check_content(state, bytes, tokens);
}

static int entries(const char *folder, const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	DIR *dir = opendir(path);
	int n = 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static bool count_row(void *context, const json_t *object)
{
	(void)object;
	++*(int *)context;
	return true;
}

static void check_no_garbage(store *s, const char *folder)
{
	static const struct {
		store_table table;
		const char *folder;
		int names; /* per row */
	} pairs[] = {{STORE_FILES, "blobs", 2}, {STORE_MODELS, "models", 1},
	             {STORE_ADAPTERS, "adapters", 1}, {STORE_SESSIONS, "sessions", 1}};
	bool more;
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		int rows = 0;
		assert_int_equal(store_list(s, pairs[i].table, &(store_page){0}, count_row, &rows, &more, NULL),
		                 STATUS_OK);
		assert_int_equal(entries(folder, pairs[i].folder), rows * pairs[i].names);
	}
	assert_int_equal(entries(folder, "tmp"), 0);
}

/* Run a child, kill it after `microseconds`, and check the folder; returns the next free number. */
static int64_t one_crash(const char *folder, int64_t first, unsigned microseconds)
{
	int pipe_ends[2];
	assert_int_equal(pipe(pipe_ends), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(pipe_ends[0]);
		child(folder, first, pipe_ends[1]);
	}
	close(pipe_ends[1]);
	usleep(microseconds);
	kill(pid, SIGKILL);
	int how;
	waitpid(pid, &how, 0);
	assert_true(WIFSIGNALED(how)); /* it was killed and did not fail by itself */

	store *s;
	acknowledged a;
	int64_t tokens = -1, last = first;
	assert_int_equal(store_open(&s, folder, NULL), STATUS_OK);
	while (read(pipe_ends[0], &a, sizeof a) == sizeof a) {
		last = a.number + 1;
		if (a.kind == 's')
			tokens = a.number;
		else
			check_one(s, &a);
	}
	check_session(s, tokens);
	check_no_garbage(s, folder);
	store_close(s);
	close(pipe_ends[0]);
	return last + 1;
}

static void everything_acknowledged_survives_a_kill_at_any_moment(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	int64_t next = 1;
	log_init("test", LOG_WARN);
	folder_new(folder);
	srandom(1);
	int kills = 0;
	/* A busy machine gets more kills, until the children have done enough work. */
	for (; kills < KILLS || (next <= kills + 10 && kills < MOST_KILLS); kills++)
		next = one_crash(folder, next, 1000 + (unsigned)random() % 60000 * (unsigned)(1 + kills / KILLS));
	assert_true(next > kills + 10);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(everything_acknowledged_survives_a_kill_at_any_moment),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
