/* fixture.h - a store in a folder of its own, and one object of each kind in it. */
#ifndef TESTS_UNIT_STORE_FIXTURE_H
#define TESTS_UNIT_STORE_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store.h"
#include "tests/unit/support/folder.h"

typedef struct fixture {
	char folder[64];
	store *store;
} fixture;

static inline int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	folder_new(f->folder);
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
	*state = f;
	return 0;
}

static inline int teardown(void **state)
{
	fixture *f = *state;
	store_close(f->store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f);
	return 0;
}

static inline void reopen(fixture *f)
{
	store_close(f->store);
	error err = ERROR_INIT;
	if (store_open(&f->store, f->folder, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
}

static inline void write_text(const char *path, const char *text)
{
	assert_int_equal(file_write(path, &(file_part){text, strlen(text)}, 1, NULL), STATUS_OK);
}

static inline void add_file(fixture *f, store_file *out, const char *name, const char *purpose, const char *text)
{
	char path[PATH_MAX];
	*out = (store_file){0};
	snprintf(out->filename, sizeof out->filename, "%s", name);
	snprintf(out->purpose, sizeof out->purpose, "%s", purpose);
	store_temporary_path(f->store, path);
	write_text(path, text);
	assert_int_equal(store_file_add(f->store, out, path, NULL), STATUS_OK);
	assert_int_equal(access(path, F_OK), -1);
}

static inline status add_model(fixture *f, const char *id)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	store_model m = {.parameters = 7, .created = 5};
	snprintf(m.id, sizeof m.id, "%s", id);
	strcpy(m.owned_by, "user");
	strcpy(m.architecture, "additive");
	store_temporary_path(f->store, folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	snprintf(path, sizeof path, "%s/config.json", folder);
	write_text(path, "{}");
	return store_model_add(f->store, &m, folder, NULL);
}

static inline status add_adapter(fixture *f, const char *id)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	json_t *document = json_pack("{s:s, s:s}", "id", id, "base", "m");
	store_temporary_path(f->store, folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	snprintf(path, sizeof path, "%s/adapter.safetensors", folder);
	write_text(path, "{}");
	const status result = store_adapter_add(f->store, document, folder, NULL);
	json_decref(document);
	return result;
}

static inline void put_text(fixture *f, const char *name, const char *text)
{
	char path[PATH_MAX + 64], *slash;
	snprintf(path, sizeof path, "%s/%s", f->folder, name);
	slash = strrchr(path, '/');
	*slash = 0;
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	*slash = '/';
	write_text(path, text);
}

static inline void must_exist(fixture *f, const char *name, bool exists)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof path, "%s/%s", f->folder, name);
	if ((access(path, F_OK) == 0) != exists)
		fail_msg("%s: wanted %d", name, exists);
}

static inline void count_damaged(fixture *f, size_t expected)
{
	json_t *damaged = store_damaged(f->store);
	assert_int_equal(json_array_size(damaged), expected);
	json_decref(damaged);
}

static inline status save_session(store *s, const json_t *session, const void *state, size_t bytes)
{
	char path[PATH_MAX];
	int64_t version;
	assert_int_equal(store_session_next(s, "sess-1", &version, path, NULL), STATUS_OK);
	TRY(store_session_write(path, "sess-1", session, state, bytes, NULL));
	return store_session_keep(s, "sess-1", version, session, NULL);
}

/* One object of each kind: file, model "m", adapter "adapter-1", job "ftjob-1" with a checkpoint at step 20, session "sess-1". */
static inline void add_one_of_each(fixture *f, store_file *file)
{
	char path[PATH_MAX];
	json_t *job = json_pack("{s:s, s:s}", "id", "ftjob-1", "status", "running"), *session = json_pack("{s:s}", "id", "sess-1");
	json_t *checkpoint = json_pack("{s:s, s:i}", "id", "ckpt-20", "step_number", 20);
	json_t *event = json_pack("{s:s}", "message", "begun");
	add_file(f, file, "a", "p", "x");
	assert_int_equal(add_model(f, "m"), STATUS_OK);
	assert_int_equal(add_adapter(f, "adapter-1"), STATUS_OK);
	assert_int_equal(store_job_put(f->store, "ftjob-1", "running", job, NULL), STATUS_OK);
	assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_OK);
	put_text(f, "jobs/ftjob-1/step-20/config.json", "{}");
	assert_int_equal(store_checkpoint_add(f->store, "ftjob-1", 20, checkpoint, NULL), STATUS_OK);
	assert_int_equal(save_session(f->store, session, "s", 1), STATUS_OK);
	store_blob_path(f->store, file->id, path);
	json_decref(job);
	json_decref(session);
	json_decref(checkpoint);
	json_decref(event);
}

static inline void must_have_one_of_each(fixture *f, const store_file *file)
{
	char path[PATH_MAX];
	store_file got;
	store_model m;
	json_t *job, *adapter;
	void *blob;
	size_t bytes;
	assert_int_equal(store_file_get(f->store, file->id, &got, NULL), STATUS_OK);
	assert_string_equal(got.filename, "a");
	assert_string_equal(got.purpose, "p");
	assert_int_equal(store_file_check(f->store, file->id, NULL), STATUS_OK);
	assert_int_equal(store_model_get(f->store, "m", &m, NULL), STATUS_OK);
	assert_int_equal(m.parameters, 7);
	assert_int_equal(store_check_blob(f->store, STORE_MODELS, "m", true, NULL), STATUS_OK);
	assert_int_equal(store_adapter_get(f->store, "adapter-1", &adapter, NULL), STATUS_OK);
	assert_string_equal(json_string_value(json_object_get(adapter, "base")), "m");
	json_decref(adapter);
	assert_int_equal(store_check_blob(f->store, STORE_ADAPTERS, "adapter-1", true, NULL), STATUS_OK);
	assert_int_equal(store_job_get(f->store, "ftjob-1", &job, NULL), STATUS_OK);
	assert_string_equal(json_string_value(json_object_get(job, "status")), "running");
	json_decref(job);
	assert_int_equal(store_check_blob(f->store, STORE_CHECKPOINTS, "ckpt-20", true, NULL), STATUS_OK);
	assert_int_equal(store_session_path(f->store, "sess-1", path, NULL), STATUS_OK);
	assert_int_equal(store_session_read(path, "sess-1", &blob, &bytes, NULL), STATUS_OK);
	assert_memory_equal(blob, "s", 1);
	free(blob);
}

#endif
