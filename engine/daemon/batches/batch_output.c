#include "engine/daemon/batches/batch_output.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"

static const char *const names[BATCH_FILES] = {"output", "errors"}; /* members of an event, and parts of file names */

void batch_output_begin(batch_output *o, store *s, const char *job, const char *project)
{
	for (int i = 0; i < BATCH_FILES; i++)
		snprintf(o->files[i].project, sizeof o->files[i].project, "%s", project);
	o->store = s;
	o->job = job;
	for (int i = 0; i < BATCH_FILES; i++)
		store_temporary_path(s, o->paths[i]);
}

static bool batch_output_take(void *context, const json_t *event)
{
	batch_output *o = context;
	for (int i = 0; i < BATCH_FILES; i++) {
		json_decref(o->texts[i]);
		o->texts[i] = json_incref(json_object_get(event, names[i]));
	}
	snprintf(o->after, sizeof o->after, "%s", json_string_value(json_object_get(event, "id")));
	return true;
}

status batch_output_next(batch_output *o, bool *more, error *err)
{
	bool rest;
	char before[STORE_ID_BYTES];
	memcpy(before, o->after, sizeof before);
	store_page page = {.parent = o->job, .after = before[0] ? before : NULL, .limit = 1, .ascending = true};
	TRY(store_list(o->store, STORE_EVENTS, &page, batch_output_take, o, &rest, err));
	*more = strcmp(before, o->after) != 0;
	return STATUS_OK;
}

static status append(batch_output *o, int i, error *err)
{
	const size_t bytes = json_string_length(o->texts[i]);
	if (bytes == 0)
		return STATUS_OK;
	if (!o->streams[i])
		o->streams[i] = fopen(o->paths[i], "wxe");
	return o->streams[i] && fwrite(json_string_value(o->texts[i]), 1, bytes, o->streams[i]) == bytes
	           ? STATUS_OK
	           : file_error(err, o->paths[i], "cannot write");
}

status batch_output_write(batch_output *o, error *err)
{
	for (int i = 0; i < BATCH_FILES; i++)
		TRY(append(o, i, err));
	return STATUS_OK;
}

static status seal(batch_output *o, int i, error *err)
{
	store_file *f = &o->files[i];
	FILE *stream = o->streams[i];
	if (!stream)
		return STATUS_OK;
	o->streams[i] = NULL;
	if (fclose(stream) != 0)
		return file_error(err, o->paths[i], "cannot write");
	snprintf(f->filename, sizeof f->filename, "%s_%s.jsonl", o->job, names[i]);
	snprintf(f->purpose, sizeof f->purpose, "batch_output");
	snprintf(f->format, sizeof f->format, "json");
	return store_file_seal(f, o->paths[i], err);
}

status batch_output_seal(batch_output *o, error *err)
{
	for (int i = 0; i < BATCH_FILES; i++)
		TRY(seal(o, i, err));
	return STATUS_OK;
}

status batch_output_commit(batch_output *o, error *err)
{
	for (int i = 0; i < BATCH_FILES; i++)
		if (o->files[i].id[0])
			TRY(store_file_add(o->store, &o->files[i], o->paths[i], err));
	return STATUS_OK;
}

void batch_output_fini(batch_output *o)
{
	for (int i = 0; i < BATCH_FILES; i++) {
		json_decref(o->texts[i]);
		if (o->streams[i])
			fclose(o->streams[i]);
		if (!o->paths[i][0])
			continue;
		char path[PATH_MAX + 16]; /* left by a failure */
		snprintf(path, sizeof path, "%s" MANIFEST_SUFFIX, o->paths[i]);
		(void)unlink(path);
		(void)unlink(o->paths[i]);
	}
}
