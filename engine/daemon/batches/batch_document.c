#include "engine/daemon/batches/batch_document.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/daemon/keys/keys.h"

enum { MAX_WINDOW_DAYS = 30, MAX_WINDOW_DIGITS = 7, DAY_SECONDS = 86400 };

int64_t batch_window_seconds(const char *text)
{
	static const struct {
		char unit;
		int64_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', DAY_SECONDS}};
	const size_t digits = strspn(text, "0123456789");
	if (digits == 0 || digits > MAX_WINDOW_DIGITS || strlen(text) != digits + 1)
		return 0;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		const int64_t seconds = atoll(text) * units[i].seconds;
		if (text[digits] == units[i].unit)
			return seconds <= (int64_t)MAX_WINDOW_DAYS * DAY_SECONDS ? seconds : 0;
	}
	return 0;
}

json_t *batch_document_new(const job_queue *q, const char *id, json_t *params)
{
	const json_t *metadata = json_object_get(params, "metadata");
	const char *window = json_string_value(json_object_get(params, "completion_window"));
	const json_int_t expires = (json_int_t)(clock_unix() + batch_window_seconds(window));
	json_t *own =
	    json_pack("{s:O, s:s, s:O?, s:I, s:n, s:n, s:n, s:n, s:n, s:n, s:i, s:{s:i, s:i, s:i}}", "endpoint",
	              json_object_get(params, "endpoint"), "completion_window", window, "metadata", metadata,
	              "expires_at", expires, "in_progress_at", "finalizing_at", "cancelling_at", "output_file_id",
	              "error_file_id", "problems", "total", 0, "run", "done", 0, "failed", 0, "bytes", 0);
	return job_queue_document_new(q, id, params, own);
}

const char *batch_document_key(const json_t *document)
{
	const char *key = json_string_value(json_object_get(json_object_get(document, "request"), "key"));
	return key && key[0] ? key : STREAM_KEY_OF_FILE;
}

bool batch_document_has(const json_t *document, const char *key)
{
	return json_is_integer(json_object_get(document, key));
}

batch_progress batch_document_progress(const json_t *document)
{
	const json_t *run = json_object_get(document, "run");
	return (batch_progress){.done = json_integer_value(json_object_get(run, "done")),
	                        .failed = json_integer_value(json_object_get(run, "failed")),
	                        .bytes = json_integer_value(json_object_get(run, "bytes")),
	                        .expired = json_is_true(json_object_get(run, "expired"))};
}

json_t *batch_document_with(const json_t *document, json_t *members)
{
	json_t *copy = members ? json_copy((json_t *)(uintptr_t)document) : NULL;
	const bool whole = copy && json_object_update(copy, members) == 0;
	json_decref(members);
	if (whole)
		return copy;
	json_decref(copy);
	return NULL;
}

json_t *batch_document_at(const json_t *document, const batch_progress *p)
{
	return batch_document_with(document, json_pack("{s:{s:I, s:I, s:I, s:b}}", "run", "done", (json_int_t)p->done,
	                                               "failed", (json_int_t)p->failed, "bytes", (json_int_t)p->bytes,
	                                               "expired", p->expired));
}

json_t *batch_document_ended(const json_t *document, const char *state)
{
	return job_queue_in_state(document, state, true, NULL);
}

/* --- what clients see -------------------------------------------------------------------------------- */

static bool is_state(const json_t *document, const char *state)
{
	return strcmp(json_string_value(json_object_get(document, "status")), state) == 0;
}

static const char *public_status(const json_t *document)
{
	static const char *const ended[][2] = {
	    {"succeeded", "completed"}, {"failed", "failed"}, {"cancelled", "cancelled"}, {"expired", "expired"}};
	for (size_t i = 0; i < sizeof ended / sizeof *ended; i++)
		if (is_state(document, ended[i][0]))
			return ended[i][1];
	return batch_document_has(document, "cancelling_at")    ? "cancelling"
	       : batch_document_has(document, "finalizing_at")  ? "finalizing"
	       : batch_document_has(document, "in_progress_at") ? "in_progress"
	                                                        : "validating";
}

/* The reasons why a batch has failed, or null: those of its file, or that of its job. */
static json_t *public_errors(const json_t *document)
{
	json_t *problems = json_object_get(document, "problems"), *reason = json_object_get(document, "error");
	if (json_is_array(problems))
		return json_pack("{s:s, s:O}", "object", "list", "data", problems);
	if (!is_state(document, "failed") || !json_is_object(reason))
		return json_null();
	return json_pack("{s:s, s:[{s:O, s:O, s:O, s:n}]}", "object", "list", "data", "code",
	                 json_object_get(reason, "code"), "message", json_object_get(reason, "message"), "param",
	                 json_object_get(reason, "param"), "line");
}

/* Add a member, which is taken over. */
static void put(json_t *out, const char *key, json_t *member)
{
	json_object_set_new(out, key, member);
}

static void copy_member(json_t *out, const char *key, const json_t *document, const char *from)
{
	json_t *member = json_object_get(document, from);
	put(out, key, member ? json_incref(member) : json_null());
}

static void put_end(json_t *out, const char *key, const json_t *document, const char *state)
{
	copy_member(out, key, is_state(document, state) ? document : NULL, "finished_at");
}

json_t *batch_document_public(const json_t *document)
{
	static const char *const same[] = {"completion_window", "output_file_id", "error_file_id",
	                                   "created_at",        "in_progress_at", "expires_at",
	                                   "finalizing_at",     "cancelling_at",  "metadata"};
	const batch_progress p = batch_document_progress(document);
	json_t *out = json_object();
	copy_member(out, "id", document, "id");
	copy_member(out, "object", document, "object");
	copy_member(out, "endpoint", document, "endpoint");
	put(out, "errors", public_errors(document));
	copy_member(out, "input_file_id", document, "file");
	put(out, "status", json_string(public_status(document)));
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		copy_member(out, same[i], document, same[i]);
	put_end(out, "completed_at", document, "succeeded");
	put_end(out, "failed_at", document, "failed");
	put_end(out, "expired_at", document, "expired");
	put_end(out, "cancelled_at", document, "cancelled");
	put(out, "request_counts",
	    json_pack("{s:O, s:I, s:I}", "total", json_object_get(document, "total"), "completed",
	              (json_int_t)(p.done - p.failed), "failed", (json_int_t)p.failed));
	put(out, "additive", json_pack("{s:O}", "error", json_object_get(document, "error")));
	const bool whole = json_object_size(out) == sizeof same / sizeof *same + 12;
	json_t *project = json_object_get(document, "project");
	if (whole && (!project || json_object_set(out, "project", project) == 0))
		return out;
	json_decref(out);
	return NULL;
}
