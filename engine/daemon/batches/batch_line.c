#include "engine/daemon/batches/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/store/store.h"
#include "proto/error_body.h"
#include "proto/json_memory.h"

/* Write an id that follows from the batch and the line: the prefix, the batch's random digits, the line number. */
static void line_id(const batch_line *line, const char *prefix, char *out, size_t size)
{
	const char *digits = strchr(line->batch->id, '_');
	snprintf(out, size, "%s%s-%d", prefix, digits ? digits + 1 : line->batch->id, line->number);
}

/* --- the result --------------------------------------------------------------------------------------- */

/* Print a line; `body`, if not NULL, is the JSON text of the response's body. */
static void write_text(batch_line *line, int http, const char *body, const char *code, const char *message)
{
	char id[STORE_ID_BYTES + 32], request[STORE_ID_BYTES + 32];
	line_id(line, "batch_req_", id, sizeof id);
	line_id(line, "req_", request, sizeof request);
	json_memory_forget();
	json_t *head = json_pack("{s:s, s:O}", "id", id, "custom_id", line->request.custom_id);
	json_t *reason = body ? json_null() : json_pack("{s:s, s:s}", "code", code, "message", message);
	char *start = json_memory_print(head, PROTO_JSON),
	     *end = json_memory_print(reason, PROTO_JSON | JSON_ENCODE_ANY);
	json_decref(head);
	json_decref(reason);
	const size_t size = strlen(start ? start : "") + strlen(body ? body : "") + strlen(end ? end : "") + 160;
	line->text = start && end ? malloc(size) : NULL;
	if (line->text && body)
		snprintf(line->text, size,
		         "%.*s,\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":%s},\"error\":null}\n",
		         (int)strlen(start) - 1, start, http, request, body);
	else if (line->text)
		snprintf(line->text, size, "%.*s,\"response\":null,\"error\":%s}\n", (int)strlen(start) - 1, start,
		         end);
	reserve_free(start);
	reserve_free(end);
	line->failed = !body || http >= 400;
	line->failure = line->text ? STATUS_OK : STATUS_NOMEM;
	line->state = BATCH_LINE_DONE;
	json_decref(line->request.body);
	line->request.body = NULL;
}

void batch_line_settle(batch_line *line, const char *code, const char *message)
{
	write_text(line, 0, NULL, code, message);
}

static void fail(batch_line *line, status failure, const char *reason)
{
	line->failure = failure;
	snprintf(line->reason, sizeof line->reason, "%s", reason);
	line->state = BATCH_LINE_WAITING;
}

/* Return the failure of the machine that an ERROR reports; STATUS_OK: it is an answer to the request. A device that
 * fails is retried until the batch expires. */
static status machine_failure(json_int_t http, const char *code)
{
	static const struct {
		const char *code;
		status failure;
	} failures[] = {{"out_of_memory", STATUS_NOMEM},
	                {"storage_full", STATUS_FULL},
	                {"io_error", STATUS_IO},
	                {"device_error", STATUS_UNAVAILABLE},
	                {"cancelled", STATUS_CANCELLED}};
	for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
		if (strcmp(code, failures[i].code) == 0)
			return failures[i].failure;
	return http == 429 ? STATUS_BUSY : http == 503 ? STATUS_UNAVAILABLE : STATUS_OK;
}

static void end_with_error(batch_line *line, const char *json)
{
	json_t *given = json ? json_memory_parse(json, strlen(json), 0, NULL) : NULL;
	const json_int_t http = json_integer_value(json_object_get(given, "status"));
	const char *code = json_string_value(json_object_get(given, "code"));
	const char *message = json_string_value(json_object_get(given, "message"));
	const status failure = given && code && message ? machine_failure(http, code) : STATUS_NOMEM;
	line->retry_after = (int)json_integer_value(json_object_get(given, "retry_after"));
	if (failure != STATUS_OK) {
		fail(line, failure, message ? message : "out of memory");
	} else {
		json_t *body = error_body((int)http, code, json_string_value(json_object_get(given, "param")), message);
		char *text = json_memory_print(body, PROTO_JSON);
		json_decref(body);
		if (text)
			write_text(line, (int)http, text, NULL, NULL);
		else
			fail(line, STATUS_NOMEM, "out of memory");
		reserve_free(text);
	}
	json_decref(given);
}

/* The answer of a generation, from the RESULT that ends it. */
static void end_generation(batch_line *line, const char *json)
{
	json_t *result = json_memory_parse(json, strlen(json), JSON_ALLOW_NUL, NULL);
	json_t *answer = result ? generation_answer_whole(&line->answer, result) : NULL;
	char *text = json_memory_print(answer, PROTO_JSON);
	json_decref(answer);
	json_decref(result);
	if (text)
		write_text(line, 200, text, NULL, NULL);
	else
		fail(line, STATUS_NOMEM, "out of memory");
	reserve_free(text);
}

/* Count a piece of the answer. False: the pieces are not needed any more. */
static bool take_bytes(batch_line *line, size_t bytes)
{
	line->bytes += bytes;
	line->too_large |= line->bytes > BATCH_MAX_ANSWER;
	return !line->too_large && !line->lost;
}

static void on_end(void *context, bool failed, const char *json)
{
	batch_line *line = context;
	line->call = NULL;
	if (json && !failed)
		take_bytes(line, strlen(json));
	if (line->too_large)
		batch_line_settle(line, "too_large", "the answer is too large");
	else if (line->lost || !json)
		fail(line, STATUS_NOMEM, "out of memory");
	else if (failed)
		end_with_error(line, json);
	else if (line->batch->endpoint->form != BATCH_NO_GENERATION)
		end_generation(line, json);
	else
		write_text(line, 200, line->data ? line->data : json, NULL, NULL);
	free(line->data);
	line->data = NULL;
	line->bytes = line->room = 0;
	line->lost = line->too_large = false;
	generation_answer_fini(&line->answer);
	line->done(line);
}

static void on_event(void *context, const char *json, size_t bytes)
{
	batch_line *line = context;
	if (line->batch->endpoint->form == BATCH_NO_GENERATION || !take_bytes(line, bytes))
		return;
	json_t *event = json_memory_parse(json, bytes, JSON_ALLOW_NUL, NULL);
	if (!event || generation_answer_add(&line->answer, event) != GENERATION_ADDED)
		line->lost = true;
	json_decref(event);
}

static void on_data(void *context, const void *data, size_t bytes)
{
	batch_line *line = context;
	const size_t at = line->bytes;
	if (!take_bytes(line, bytes))
		return;
	line->lost = !MEMORY_ROOM(line->data, line->room, line->bytes + 1);
	if (line->lost)
		return;
	memcpy(line->data + at, data, bytes);
	line->data[line->bytes] = '\0';
}

/* --- the request -------------------------------------------------------------------------------------- */

/* The seed of a line without one: a number that JSON writers and readers keep. */
static json_t *derived_seed(const batch_line *line)
{
	char name[STORE_ID_BYTES + 32];
	line_id(line, "", name, sizeof name);
	return json_integer((json_int_t)(digest_bytes(name, strlen(name)) >> 11));
}

static bool batch_line_prepare(batch_line *line)
{
	json_t *body = line->request.body;
	const batch_context *b = line->batch;
	generation_answer *a = &line->answer;
	if (strcmp(b->endpoint->method, "explain") == 0) /* as a client that accepts JSON */
		return json_object_set_new(body, "format", json_string("json")) == 0;
	if (b->endpoint->form == BATCH_NO_GENERATION)
		return true;
	const generation_form form = (generation_form)b->endpoint->form;
	a->created = b->created;
	line_id(line, generation_answer_prefix(form), a->id, sizeof a->id);
	line_id(line, "msg_", a->message, sizeof a->message);
	snprintf(a->fingerprint, sizeof a->fingerprint, "%s", b->fingerprint);
	bool whole = generation_answer_begin(a, form, body);
	if (!json_is_integer(json_object_get(body, "seed")))
		whole = json_object_set_new(body, "seed", derived_seed(line)) == 0 && whole;
	if (!json_object_get(body, "cache_prompt"))
		whole = json_object_set_new(body, "cache_prompt", json_false()) == 0 && whole;
	return whole;
}

void batch_line_begin(batch_line *line)
{
	static const local_receiver receiver = {on_event, on_data, on_end};
	char id[STORE_ID_BYTES + 32];
	line_id(line, "req_", id, sizeof id);
	line->state = BATCH_LINE_RUNNING;
	/* The members are shared with the request: the engine changes only the object itself. */
	json_t *params = batch_line_prepare(line) ? json_copy(line->request.body) : NULL;
	line->call = params ? local_request_new(line->batch->net, &(local_origin){line->batch->key, id, line->large},
	                                        &receiver, line)
	                    : NULL;
	if (!line->call) {
		json_decref(params);
		generation_answer_fini(&line->answer);
		fail(line, STATUS_NOMEM, "out of memory");
		line->done(line);
		return;
	}
	local_request_begin(line->call, line->batch->endpoint->method, params);
}

void batch_line_cancel(batch_line *line)
{
	if (line->call)
		local_request_cancel(line->call);
}

void batch_line_fini(batch_line *line)
{
	batch_request_fini(&line->request);
	free(line->text);
}
