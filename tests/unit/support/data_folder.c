#include "tests/unit/support/data_folder.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"

const char *const data_folder_kinds[DATA_FOLDER_KINDS] = {"file", "model", "job", "checkpoint", "session", "adapter"};

static void need(status s, const error *err)
{
	if (s != STATUS_OK)
		fail_msg("%s", error_message(err));
}

static void fill(char *blob, int64_t number)
{
	memset(blob, 'a' + (int)(number % 26), DATA_FOLDER_BLOB);
	memcpy(blob, &number, sizeof number);
}

int64_t data_folder_number(const void *blob, size_t bytes)
{
	char expected[DATA_FOLDER_BLOB];
	int64_t number;
	if (bytes != sizeof expected)
		return -1;
	memcpy(&number, blob, sizeof number);
	fill(expected, number);
	return memcmp(blob, expected, sizeof expected) == 0 ? number : -1;
}

static void write_blob(const char *path, int64_t number)
{
	char blob[DATA_FOLDER_BLOB];
	error err = ERROR_INIT;
	fill(blob, number);
	need(file_write(path, &(file_part){blob, sizeof blob}, 1, &err), &err);
}

void data_folder_new(const char *where, char out[64])
{
	snprintf(out, 64, "%s/additive-data-XXXXXX", where);
	assert_non_null(mkdtemp(out));
}

void data_folder_put_file(store *s, int64_t number, char id[STORE_ID_BYTES])
{
	char path[PATH_MAX];
	error err = ERROR_INIT;
	store_file f = {.filename = "näme.txt", .purpose = "fine-tune"};
	store_temporary_path(s, path);
	write_blob(path, number);
	need(store_file_add(s, &f, path, &err), &err);
	strcpy(id, f.id);
}

void data_folder_put_model(store *s, const char *id, int64_t number)
{
	char path[PATH_MAX], inner[PATH_MAX + 32];
	error err = ERROR_INIT;
	store_model m = {.owned_by = "user", .architecture = "additive", .parameters = number};
	snprintf(m.id, sizeof m.id, "%s", id);
	if (store_model_get(s, id, &(store_model){0}, NULL) == STATUS_OK)
		need(store_model_delete(s, id, &err), &err);
	store_temporary_path(s, path);
	need(file_make_folders(path, &err), &err);
	snprintf(inner, sizeof inner, "%s/model.safetensors", path);
	write_blob(inner, number);
	need(store_model_add(s, &m, path, &err), &err);
}

void data_folder_put_adapter(store *s, const char *id, int64_t number)
{
	char path[PATH_MAX], inner[PATH_MAX + 32];
	error err = ERROR_INIT;
	json_t *document = json_pack("{s:s, s:I}", "id", id, "parameters", (json_int_t)number);
	store_temporary_path(s, path);
	need(file_make_folders(path, &err), &err);
	snprintf(inner, sizeof inner, "%s/adapter.safetensors", path);
	write_blob(inner, number);
	need(store_adapter_add(s, document, path, &err), &err);
	json_decref(document);
}

void data_folder_put_session(store *s, const char *id, int64_t number)
{
	char path[PATH_MAX], blob[DATA_FOLDER_BLOB];
	error err = ERROR_INIT;
	json_t *document = json_pack("{s:s, s:I}", "id", id, "tokens", (json_int_t)number);
	fill(blob, number);
	int64_t version;
	assert_int_equal(store_session_next(s, id, &version, path, NULL), STATUS_OK);
	need(store_session_write(path, id, document, blob, sizeof blob, &err), &err);
	need(store_session_keep(s, id, version, document, &err), &err);
	json_decref(document);
}

void data_folder_put_checkpoint(store *s, const char *job, int64_t step, const char *id, int64_t number)
{
	char path[PATH_MAX], inner[PATH_MAX + 32];
	error err = ERROR_INIT;
	json_t *document = json_pack("{s:s, s:I}", "id", id, "step_number", (json_int_t)step);
	store_checkpoint_folder(s, job, step, path);
	need(file_make_folders(path, &err), &err);
	snprintf(inner, sizeof inner, "%s/model.safetensors", path);
	write_blob(inner, number);
	need(store_checkpoint_add(s, job, step, document, &err), &err);
	json_decref(document);
}

static void put_job(store *s, const char *id)
{
	error err = ERROR_INIT;
	json_t *job = json_pack("{s:s, s:s}", "id", id, "status", "paused"),
	       *event = json_pack("{s:s}", "message", "made");
	need(store_job_put(s, id, "paused", job, &err), &err);
	need(store_event_add(s, id, event, &err), &err);
	json_decref(job);
	json_decref(event);
}

void data_folder_fill(store *s, int64_t number, data_objects *out)
{
	*out = (data_objects){.number = number};
	snprintf(out->model, sizeof out->model, "model-%lld", (long long)number);
	snprintf(out->job, sizeof out->job, "ftjob-%lld", (long long)number);
	snprintf(out->checkpoint, sizeof out->checkpoint, "ckpt-%lld", (long long)number);
	snprintf(out->session, sizeof out->session, "sess-%lld", (long long)number);
	data_folder_put_file(s, number, out->file);
	data_folder_put_model(s, out->model, number);
	put_job(s, out->job);
	data_folder_put_checkpoint(s, out->job, 10, out->checkpoint, number);
	data_folder_put_session(s, out->session, number);
	snprintf(out->adapter, sizeof out->adapter, "adapter-%lld", (long long)number);
	data_folder_put_adapter(s, out->adapter, number);
}

void data_folder_check(store *s, const data_objects *o)
{
	char path[PATH_MAX];
	void *blob;
	size_t bytes;
	json_t *job;
	error err = ERROR_INIT;
	need(store_check_blob(s, STORE_FILES, o->file, true, &err), &err);
	need(store_check_blob(s, STORE_MODELS, o->model, true, &err), &err);
	need(store_check_blob(s, STORE_CHECKPOINTS, o->checkpoint, true, &err), &err);
	need(store_check_blob(s, STORE_ADAPTERS, o->adapter, true, &err), &err);
	need(store_job_get(s, o->job, &job, &err), &err);
	assert_string_equal(json_string_value(json_object_get(job, "status")), "paused");
	json_decref(job);
	assert_int_equal(store_session_path(s, o->session, path, NULL), STATUS_OK);
	need(store_session_read(path, o->session, &blob, &bytes, &err), &err);
	assert_int_equal(data_folder_number(blob, bytes), o->number);
	free(blob);
}

const char *data_folder_id(const data_objects *o, const char *kind)
{
	const char *const ids[DATA_FOLDER_KINDS] = {o->file, o->model, o->job, o->checkpoint, o->session, o->adapter};
	for (int i = 0; i < DATA_FOLDER_KINDS; i++)
		if (strcmp(kind, data_folder_kinds[i]) == 0)
			return ids[i];
	fail_msg("no such kind");
	return NULL;
}

void data_folder_blob(const data_objects *o, const char *kind, char out[PATH_MAX])
{
	if (strcmp(kind, "file") == 0)
		snprintf(out, PATH_MAX, "blobs/%s", o->file);
	else if (strcmp(kind, "model") == 0)
		snprintf(out, PATH_MAX, "models/%s/model.safetensors", o->model);
	else if (strcmp(kind, "job") == 0)
		snprintf(out, PATH_MAX, "jobs/%s/job.json", o->job);
	else if (strcmp(kind, "checkpoint") == 0)
		snprintf(out, PATH_MAX, "jobs/%s/step-10/model.safetensors", o->job);
	else if (strcmp(kind, "adapter") == 0)
		snprintf(out, PATH_MAX, "adapters/%s/adapter.safetensors", o->adapter);
	else
		snprintf(out, PATH_MAX, "sessions/%s.1", o->session);
}

void data_folder_damage(const char *folder, const char *path, data_damage how)
{
	char whole[2 * PATH_MAX], *data;
	size_t bytes;
	error err = ERROR_INIT;
	snprintf(whole, sizeof whole, "%s/%s", folder, path);
	if (how == DATA_MISSING) {
		assert_int_equal(unlink(whole), 0);
		return;
	}
	need(file_read(whole, 1 << 24, &data, &bytes, &err), &err);
	data[bytes / 2] ^= 4;
	size_t kept = how == DATA_EMPTY ? 0 : how == DATA_TRUNCATED ? bytes - 1 : bytes;
	need(file_write(whole, &(file_part){data, kept}, 1, &err), &err);
	free(data);
}
