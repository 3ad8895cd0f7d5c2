#include "engine/train/optimizer_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/model/safetensors.h"
#include "engine/train/optimizer_kind.h"

/* --- writing --------------------------------------------------------------------- */

status optimizer_file_write(const char *folder, const optimizer *o, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, OPTIMIZER_FILE, err));
	safetensors_item items[OPTIMIZER_MAX_STATES] = {0};
	float *state[OPTIMIZER_MAX_STATES] = {0};
	char updates[24];
	const char *measure = optimizer_measure(o);
	snprintf(updates, sizeof updates, "%lld", (long long)optimizer_updates(o));
	json_t *about =
	    json_pack("{s:s, s:s, s:s*}", "optimizer", optimizer_name(o), "updates", updates, "measure", measure);
	status s = about ? STATUS_OK : STATUS_NOMEM;
	int n = 0;
	for (; optimizer_state_name(o, n) && s == STATUS_OK; n++) {
		int64_t floats = optimizer_state_floats(o, n);
		state[n] = memory_new((size_t)floats, sizeof *state[n]);
		items[n] = (safetensors_item){
		    .name = optimizer_state_name(o, n), .type = ST_F32, .rank = 1, .dim = {floats}, .data = state[n]};
		s = state[n] ? optimizer_download(o, n, state[n]) : STATUS_NOMEM;
	}
	if (s == STATUS_OK)
		s = safetensors_write(path, items, n, about, err);
	for (int i = 0; i < n; i++)
		free(state[i]);
	json_decref(about);
	return s;
}

/* --- reading ----------------------------------------------------------------------- */

/* Prefix an error message with the file's name. */
static status optimizer_file_blame(error *err, status s, const char *param)
{
	char message[sizeof err->message];
	if (!err)
		return s;
	snprintf(message, sizeof message, "%s", err->message);
	*err = (error)ERROR_INIT;
	return error_set(err, s, param[0] ? param : NULL, OPTIMIZER_FILE ": %.200s", message);
}

static status upload_state(safetensors *file, optimizer *o, int i, error *err)
{
	const char *name = optimizer_state_name(o, i);
	int64_t n = optimizer_state_floats(o, i);
	const safetensors_entry *e = safetensors_find(file, name);
	if (!e || e->type != ST_F32 || e->count != n)
		return error_set(err, STATUS_CORRUPT, NULL, "there are no %lld floats \"%s\"", (long long)n, name);
	float *state = memory_new((size_t)n, sizeof *state);
	status s = state ? safetensors_load_f32(file, e, 0, n, state, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = optimizer_upload(o, i, state);
	free(state);
	return s;
}

static status read_states(safetensors *file, optimizer *o, error *err)
{
	for (int i = 0; optimizer_state_name(o, i); i++)
		TRY(upload_state(file, o, i, err));
	return STATUS_OK;
}

/* Open the file of a folder; `optional`: *file is NULL if it does not exist. */
static status open_file(const char *folder, bool optional, manifest **about, safetensors **file, error *err)
{
	char path[PATH_MAX];
	*file = NULL;
	*about = NULL;
	TRY(path_join(path, folder, OPTIMIZER_FILE, err));
	TRY(manifest_open_folder(about, folder, err));
	if (optional && !(*about && manifest_file_bytes(*about, OPTIMIZER_FILE) >= 0) && access(path, F_OK) != 0)
		return STATUS_OK;
	return safetensors_open_verified(file, path, *about, err);
}

status optimizer_file_read(const char *folder, optimizer *o, error *err)
{
	manifest *about;
	safetensors *file;
	status s = open_file(folder, false, &about, &file, err);
	if (s == STATUS_OK)
		s = read_states(file, o, err);
	safetensors_close(file);
	manifest_free(about);
	return s == STATUS_CORRUPT ? optimizer_file_blame(err, s, "") : s;
}

static bool says(const safetensors *file, const char *key, const char *word)
{
	const char *found = safetensors_metadata(file, key);
	return found && strcmp(found, word) == 0;
}

static status read_updates(const safetensors *file, int64_t *updates, error *err)
{
	const char *text = safetensors_metadata(file, "updates");
	char *end = NULL;
	errno = 0;
	*updates = text ? strtoll(text, &end, 10) : -1;
	return *updates >= 0 && errno == 0 && end > text && !*end
	           ? STATUS_OK
	           : error_set(err, STATUS_CORRUPT, NULL, "the number of \"updates\" is missing");
}

status optimizer_file_continue(const char *folder, optimizer *o, error *err)
{
	manifest *about;
	safetensors *file;
	int64_t updates;
	const char *measure = optimizer_measure(o);
	if (!measure)
		return STATUS_OK;
	status s = open_file(folder, true, &about, &file, err);
	if (s == STATUS_OK && file && says(file, "optimizer", optimizer_name(o)) && says(file, "measure", measure)) {
		s = read_updates(file, &updates, err);
		if (s == STATUS_OK)
			s = read_states(file, o, err);
		if (s == STATUS_OK)
			optimizer_set_updates(o, updates);
	}
	safetensors_close(file);
	manifest_free(about);
	return s == STATUS_CORRUPT ? optimizer_file_blame(err, STATUS_INVALID, "model")
	                           : s; /* the file is as it was imported */
}
