#include "clients/load/answer.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clients/cli/show.h"

const char *outcome_name(outcome o)
{
	static const char *const names[OUTCOMES] = {"complete", "left", "refused", "failed", "lost"};
	return names[o];
}

void answer_begin(answer *a)
{
	answer_free(a);
	*a = (answer){.tokens = -1, .position = -1};
}

void answer_free(answer *a)
{
	sse_free(&a->events);
	text_free(&a->text);
}

bool answer_object(answer *a, const char *format, ...)
{
	va_list arguments;
	if (a->problem[0])
		return false;
	va_start(arguments, format);
	vsnprintf(a->problem, sizeof a->problem, format, arguments);
	va_end(arguments);
	return false;
}

static void take_error(answer *a, const json_t *error)
{
	const char *message = json_string_value(json_object_get(error, "message"));
	a->failed = true;
	snprintf(a->reason, sizeof a->reason, "%s", message ? message : "");
}

static void take_choice(answer *a, const json_t *choice, int *texts)
{
	const json_t *string = json_object_get(choice, "text");
	const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
	string = string ? string : show_get(choice, "delta.content");
	if (json_string_length(string) > 0) {
		text_append(&a->text, json_string_value(string), json_string_length(string));
		a->n_events++;
		++*texts;
	}
	if (finish) {
		a->finishes++;
		snprintf(a->finish, sizeof a->finish, "%s", finish);
	}
}

typedef struct feeding {
	answer *answer;
	int texts;
} feeding;

static bool take_stream_event(void *context, const char *id, const char *data, size_t bytes)
{
	feeding *f = context;
	answer *a = f->answer;
	(void)id;
	a->after_done |= a->done;
	if (strcmp(data, "[DONE]") == 0) {
		a->done = true;
		return true;
	}
	json_t *event = json_loadb(data, bytes, JSON_ALLOW_NUL, NULL);
	const json_t *error = json_object_get(event, "error"), *tokens = show_get(event, "usage.completion_tokens"),
	             *position = show_get(event, "session.tokens");
	if (!event)
		answer_object(a, "an event is not JSON");
	if (error && !json_is_null(error))
		take_error(a, error);
	if (json_is_integer(tokens))
		a->tokens = json_integer_value(tokens);
	if (json_is_integer(position))
		a->position = json_integer_value(position);
	take_choice(a, json_array_get(json_object_get(event, "choices"), 0), &f->texts);
	json_decref(event);
	return true;
}

bool answer_feed(answer *a, const char *bytes, size_t n, int *texts)
{
	feeding f = {.answer = a};
	const bool ok = sse_feed(&a->events, bytes, n, take_stream_event, &f) == SSE_OK;
	*texts = f.texts;
	return ok;
}

static bool check_stream(answer *a, outcome how, long long max_tokens)
{
	if (a->after_done)
		return answer_object(a, "events follow [DONE]");
	if (a->finishes > 1)
		return answer_object(a, "%d finish reasons", a->finishes);
	if (a->tokens > max_tokens)
		return answer_object(a, "%lld tokens of at most %lld", a->tokens, max_tokens);
	if (how == OUTCOME_COMPLETE && a->finishes == 0)
		return answer_object(a, "no finish reason");
	return true;
}

static bool check_text(answer *a, outcome how, const answer *expected)
{
	const size_t n = a->text.used, whole = expected->text.used;
	if (n > whole || memcmp(text_get(&a->text), text_get(&expected->text), n) != 0)
		return answer_object(a, "the text differs from the undisturbed answer");
	if (how != OUTCOME_COMPLETE)
		return true;
	if (n < whole)
		return answer_object(a, "%zu bytes of %zu", n, whole);
	if (strcmp(a->finish, expected->finish) != 0)
		return answer_object(a, "finish reason %s, undisturbed %s", a->finish, expected->finish);
	if (a->tokens != expected->tokens || a->position != expected->position)
		return answer_object(a, "%lld tokens, at position %lld; undisturbed %lld, %lld", a->tokens, a->position,
		                     expected->tokens, expected->position);
	return true;
}

bool answer_check(answer *a, outcome how, long long max_tokens, const answer *expected)
{
	if (a->problem[0])
		return false;
	return check_stream(a, how, max_tokens) && (!expected || check_text(a, how, expected));
}
