#include "engine/daemon/evaluations/evaluation_corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/jobs/job_check.h"
#include "engine/text/jsonl.h"

typedef struct reader {
	evaluation_corpus *corpus;
	const model_entry *model;
	const evaluation_settings *settings;
	bool full; /* ends the reading of JSON lines */
} reader;

static status add_text(reader *r, const char *text, size_t bytes, error *err)
{
	int64_t positions[EVALUATION_MAX_POSITIONS], missing;
	token_list list;
	TRY(tokens_of_text(&list, r->model, text, bytes, r->settings->begins, err));
	int32_t *ids = list.ids;
	const int64_t most = r->settings->max_tokens, count = (int64_t)list.count, tokens = count < most ? count : most;
	if (evaluation_settings_positions(r->settings, tokens, positions, &missing) == 0) {
		free(ids);
		return STATUS_OK;
	}
	int32_t *cut = realloc(ids, (size_t)tokens * sizeof *ids);
	r->corpus->texts[r->corpus->n++] = (evaluation_tokens){cut ? cut : ids, tokens};
	r->full = r->corpus->n == r->settings->texts;
	return STATUS_OK;
}

static status read_object(void *context, const json_t *object, long line, error *err)
{
	reader *r = context;
	const json_t *text = json_object_get(object, "text");
	if (!json_is_string(text))
		return jsonl_refuse(err, line, "needs a string \"text\"");
	TRY(add_text(r, json_string_value(text), json_string_length(text), err));
	return r->full ? STATUS_CANCELLED : STATUS_OK;
}

static status read_lines(reader *r, const char *text, size_t bytes, error *err)
{
	const char *end = text + bytes;
	for (const char *at = text; at < end && !r->full;) {
		const char *found = memchr(at, '\n', (size_t)(end - at)), *stop = found ? found : end;
		size_t length = (size_t)(stop - at);
		length -= length > 0 && at[length - 1] == '\r';
		TRY(add_text(r, at, length, err));
		at = stop + 1;
	}
	return STATUS_OK;
}

static status read_map(reader *r, const file_map *map, error *err)
{
	const char *text = (const char *)map->data;
	size_t bytes = map->bytes;
	if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
		text += 3;
		bytes -= 3;
	}
	if (!jsonl_detect(text, bytes))
		return read_lines(r, text, bytes, err);
	status s = jsonl_walk(text, bytes, 1, read_object, r, err);
	return r->full && s == STATUS_CANCELLED ? STATUS_OK : s;
}

status evaluation_corpus_read(evaluation_corpus *out, const char *path, const char *id, const model_entry *m,
                              const evaluation_settings *s, error *err)
{
	reader r = {.corpus = out, .model = m, .settings = s};
	file_map map;
	*out = (evaluation_corpus){.texts = memory_new((size_t)s->texts, sizeof *out->texts)};
	if (!out->texts)
		return STATUS_NOMEM;
	TRY(job_check_blame(err, job_check_file(path, id, err), "file", id));
	TRY(file_map_open(&map, path, err));
	status why = read_map(&r, &map, err);
	file_map_close(&map);
	if (why == STATUS_OK && out->n == 0)
		why = error_set(err, STATUS_INVALID, "file",
		                "it has no text with a position to evaluate: one of two tokens");
	if (why == STATUS_INVALID)
		snprintf(err->param, sizeof err->param, "file");
	return why;
}

void evaluation_corpus_fini(evaluation_corpus *c)
{
	for (int64_t i = 0; i < c->n; i++)
		free(c->texts[i].ids);
	free(c->texts);
	*c = (evaluation_corpus){0};
}
