#include "engine/daemon/batches/batch_input.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/string_table.h"
#include "proto/body_json.h"
#include "proto/json_memory.h"

static const batch_endpoint endpoints[] = {
    {"/v1/completions", "completion.create", GENERATION_COMPLETION},
    {"/v1/chat/completions", "chat.create", GENERATION_CHAT},
    {"/v1/responses", "response.create", GENERATION_RESPONSE},
    {"/v1/embeddings", "embed", BATCH_NO_GENERATION},
    {"/v1/classify", "classify", BATCH_NO_GENERATION},
    {"/v1/fill-mask", "fill_mask", BATCH_NO_GENERATION},
    {"/v1/tokenize", "tokenize", BATCH_NO_GENERATION},
    {"/v1/detokenize", "detokenize", BATCH_NO_GENERATION},
    {"/v1/explain", "explain", BATCH_NO_GENERATION},
};

const batch_endpoint *batch_endpoint_find(const char *url)
{
	for (size_t i = 0; url && i < sizeof endpoints / sizeof *endpoints; i++)
		if (strcmp(endpoints[i].url, url) == 0)
			return &endpoints[i];
	return NULL;
}

/* --- one line -------------------------------------------------------------------------------------- */

/* Mark the line as wrong. */
__attribute__((format(printf, 3, 4))) static void refuse(batch_request *x, const char *code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(x->message, sizeof x->message, format, arguments);
	va_end(arguments);
	x->code = code;
	json_decref(x->body);
	x->body = NULL;
}

void batch_request_fini(batch_request *x)
{
	json_decref(x->custom_id);
	json_decref(x->body);
}

static bool is_id(const json_t *id)
{
	const size_t bytes = json_string_length(id);
	return bytes > 0 && bytes <= BATCH_MAX_ID && strlen(json_string_value(id)) == bytes;
}

/* Return a member that needs a connection, a kept response or a session; NULL: the body has none. */
static const char *find_unavailable(const json_t *body, const batch_endpoint *e)
{
	static const char *const members[] = {"stream", "background", "state", "return_state", "store"};
	const size_t n = e->form == BATCH_NO_GENERATION ? 1 : e->form == GENERATION_RESPONSE ? 5 : 4;
	for (size_t i = 0; i < n; i++) {
		const json_t *value = json_object_get(body, members[i]);
		if (value && !json_is_false(value))
			return members[i];
	}
	return NULL;
}

/* Refuse what the front end refuses before it calls the engine, the member that it adds, and what needs several calls.
 */
static bool check_body(batch_request *x, const batch_endpoint *e, int number)
{
	const char *unavailable = find_unavailable(x->body, e);
	const json_t *response = json_object_get(x->body, "response");
	if (unavailable)
		refuse(x, "invalid_value", "line %d: '%s' must be false or absent in a batch", number, unavailable);
	else if (json_is_object(json_object_get(x->body, "stream_options")))
		refuse(x, "invalid_value", "line %d: 'stream_options' needs \"stream\": true", number);
	else if (response && !json_is_null(response))
		refuse(x, "unknown_parameter", "line %d: 'response' is not a parameter of %s", number, e->url);
	else if (strcmp(e->method, "explain") == 0 && json_object_get(x->body, "compare"))
		refuse(x, "invalid_value", "line %d: 'compare' is not available in a batch", number);
	else if (strcmp(e->method, "explain") == 0 && json_object_get(x->body, "format"))
		refuse(x, "unknown_parameter", "line %d: 'format' is not a parameter of %s", number, e->url);
	return x->body;
}

static void read_members(batch_request *x, const batch_endpoint *e, int number, json_t *line)
{
	static const char *const known[] = {"custom_id", "method", "url", "body"};
	const char *method = json_string_value(json_object_get(line, "method"));
	const char *url = json_string_value(json_object_get(line, "url"));
	json_t *id = json_object_get(line, "custom_id"), *body = json_object_get(line, "body");
	size_t members = 0;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		members += json_object_get(line, known[i]) != NULL;
	if (!is_id(id)) {
		refuse(x, id ? "invalid_custom_id" : "missing_custom_id",
		       "line %d: 'custom_id' must be a string of 1 to %d bytes", number, BATCH_MAX_ID);
		return;
	}
	json_decref(x->custom_id);
	x->custom_id = json_incref(id);
	if (members < json_object_size(line))
		refuse(x, "unknown_parameter", "line %d: a line has 'custom_id', 'method', 'url' and 'body' only",
		       number);
	else if (!method || strcmp(method, "POST") != 0)
		refuse(x, "invalid_method", "line %d: 'method' must be \"POST\"", number);
	else if (!url || strcmp(url, e->url) != 0)
		refuse(x, "invalid_url", "line %d: 'url' must be the batch's endpoint, %s", number, e->url);
	else if (!json_is_object(body))
		refuse(x, "invalid_body", "line %d: 'body' must be an object", number);
	else
		x->body = json_incref(body);
	if (x->body && check_body(x, e, number)) {
		json_object_del(x->body, "stream");
		json_object_del(x->body, "stream_options");
	}
}

status batch_request_read(batch_request *out, const batch_endpoint *e, const batch_place *line, char *text)
{
	json_error_t where;
	*out = (batch_request){.custom_id = json_null()};
	if (line->bytes > BATCH_MAX_LINE) {
		refuse(out, "line_too_long", "line %d has more than %d bytes", line->number, BATCH_MAX_LINE);
		return STATUS_OK;
	}
	json_t *json = body_json_parse(text, (size_t)line->bytes, "body", &where);
	if (!json && json_memory_failed())
		return STATUS_NOMEM;
	if (json_is_object(json))
		read_members(out, e, line->number, json);
	else if (json)
		refuse(out, "invalid_json", "line %d is not a JSON object", line->number);
	else
		refuse(out, "invalid_json", "line %d is not valid JSON: %.160s (column %d)", line->number, where.text,
		       where.column);
	if (line->duplicate && out->custom_id != json_null())
		refuse(out, "duplicate_custom_id", "line %d: an earlier line has this custom_id", line->number);
	json_decref(json);
	return json_memory_failed() ? STATUS_NOMEM : STATUS_OK;
}

/* --- the file ---------------------------------------------------------------------------------------- */

typedef struct seen_id {
	string_node node;
	char text[];
} seen_id;

typedef struct scan {
	batch_index *out;
	int capacity;
	string_table ids;
	json_t *wrong; /* problems of the first lines that are no objects */
	int objects;
	digest_stream *digest;
} scan;

static status add_problem(json_t **list, const char *code, int number, const char *message)
{
	json_t *problem = json_pack("{s:s, s:s, s:n, s:o}", "code", code, "message", message, "param", "line",
	                            number ? json_integer(number) : json_null());
	if (!*list)
		*list = json_array();
	return json_array_append_new(*list, problem) == 0 ? STATUS_OK : STATUS_NOMEM;
}

/* Record the line's id; *duplicate: it was there. */
static status record_id(scan *s, const char *id, bool *duplicate)
{
	const size_t bytes = strlen(id) + 1;
	*duplicate = string_table_find(&s->ids, id) != NULL;
	seen_id *x = *duplicate ? NULL : memory_new(1, sizeof *x + bytes);
	if (!x)
		return *duplicate ? STATUS_OK : STATUS_NOMEM;
	memcpy(x->text, id, bytes);
	if (string_table_add(&s->ids, &x->node, x->text) == STATUS_OK)
		return STATUS_OK;
	free(x);
	return STATUS_NOMEM;
}

static status scan_request(scan *s, batch_place *line, char *text)
{
	json_error_t where;
	status result = STATUS_OK;
	json_t *json = line->bytes > BATCH_MAX_LINE ? NULL : body_json_parse(text, (size_t)line->bytes, "body", &where);
	if (line->bytes <= BATCH_MAX_LINE && !json && json_memory_failed())
		return STATUS_NOMEM;
	const json_t *id = json_object_get(json, "custom_id");
	s->objects += json_is_object(json);
	if (is_id(id))
		result = record_id(s, json_string_value(id), &line->duplicate);
	if (!json_is_object(json) && json_array_size(s->wrong) < BATCH_MAX_PROBLEMS)
		result = add_problem(&s->wrong, "invalid_json_line", line->number, "this line is not a JSON object");
	json_decref(json);
	return result;
}

static bool is_blank(const char *text, int64_t bytes)
{
	while (bytes > 0 && strchr(" \t\r", text[bytes - 1]) && text[bytes - 1])
		bytes--;
	return bytes == 0;
}

static status scan_line(scan *s, int number, int64_t offset, char *text, int64_t bytes)
{
	batch_index *x = s->out;
	if (is_blank(text, bytes) || x->n > BATCH_MAX_LINES)
		return STATUS_OK;
	if (!MEMORY_ROOM(x->lines, s->capacity, x->n + 1))
		return STATUS_NOMEM;
	batch_place *line = &x->lines[x->n++];
	*line = (batch_place){.offset = offset, .bytes = (int32_t)bytes, .number = number};
	return x->n > BATCH_MAX_LINES ? STATUS_OK : scan_request(s, line, text);
}

static status scan_file(scan *s, FILE *file, const char *path, error *err)
{
	char *text = NULL;
	size_t room = 0;
	int64_t offset = 0;
	status result = STATUS_OK;
	ssize_t bytes = 0;
	errno = 0;
	for (int number = 1; result == STATUS_OK && (bytes = getline(&text, &room, file)) > 0; number++) {
		digest_stream_add(s->digest, text, (size_t)bytes);
		const bool marked = number == 1 && bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
		const int64_t from = marked ? 3 : 0, end = bytes - (text[bytes - 1] == '\n');
		result = scan_line(s, number, offset + from, text + from, end - from);
		offset += bytes;
	}
	if (result == STATUS_OK && ferror(file))
		result = file_error(err, path, "cannot read");
	else if (result == STATUS_OK && !feof(file))
		result = STATUS_NOMEM;
	free(text);
	return result;
}

/* Decide whether the lines are a batch. */
static status judge(scan *s)
{
	batch_index *x = s->out;
	char message[96];
	if (x->n > BATCH_MAX_LINES) {
		snprintf(message, sizeof message, "the file has more than %d requests", BATCH_MAX_LINES);
		return add_problem(&x->problems, "too_many_requests", 0, message);
	}
	if (x->n == 0)
		return add_problem(&x->problems, "empty_file", 0, "the file has no requests");
	if (s->objects == 0) {
		x->problems = s->wrong;
		s->wrong = NULL;
	}
	return STATUS_OK;
}

static status check_digest(const scan *s, const char *digest, error *err)
{
	char found[DIGEST_TEXT_BYTES];
	digest_write(digest_stream_value(s->digest), found);
	return !digest[0] || strcmp(found, digest) == 0
	           ? STATUS_OK
	           : error_set(err, STATUS_STORAGE, NULL, "the input file is damaged");
}

status batch_index_read(batch_index *out, const char *path, const char *digest, error *err)
{
	scan s = {.out = out, .digest = digest_stream_new()};
	FILE *file = fopen(path, "re");
	status result = !file ? file_error(err, path, "cannot open") : s.digest ? STATUS_OK : STATUS_NOMEM;
	if (result == STATUS_OK)
		result = scan_file(&s, file, path, err);
	if (result == STATUS_OK)
		result = check_digest(&s, digest, err);
	if (result == STATUS_OK)
		result = judge(&s);
	if (file)
		fclose(file);
	for (string_node *n; (n = string_table_any(&s.ids));) {
		string_table_remove(&s.ids, n);
		free(STRING_TABLE_OWNER(n, seen_id, node));
	}
	string_table_fini(&s.ids);
	digest_stream_free(s.digest);
	json_decref(s.wrong);
	return result;
}

void batch_index_fini(batch_index *x)
{
	free(x->lines);
	json_decref(x->problems);
	*x = (batch_index){0};
}
