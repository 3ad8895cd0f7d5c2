#include "server/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "proto/error_body.h"
#include "proto/json_memory.h"

static void problem_copy(char *out, size_t size, const char *text, size_t bytes)
{
	if (bytes >= size)
		bytes = size - 1;
	memcpy(out, text, bytes);
	out[bytes] = '\0';
}

problem problem_make(int status, const char *code, const char *param, const char *format, va_list arguments)
{
	problem p = {.status = status};
	problem_copy(p.code, sizeof p.code, code, strlen(code));
	if (param)
		problem_copy(p.param, sizeof p.param, param, strlen(param));
	vsnprintf(p.message, sizeof p.message, format, arguments);
	if (status == 429 || status == 503)
		p.retry_after = 1;
	return p;
}

static void problem_take(const json_t *error, const char *key, char *out, size_t size, const char *fallback)
{
	const char *text = json_string_value(json_object_get(error, key));
	if (!text || !text[0])
		text = fallback;
	problem_copy(out, size, text, strlen(text));
}

problem problem_from_object(const json_t *error)
{
	problem p = {.status = 500};
	json_int_t status = json_integer_value(json_object_get(error, "status"));
	double retry = json_number_value(json_object_get(error, "retry_after"));
	if (status >= 400 && status <= 599)
		p.status = (int)status;
	problem_take(error, "code", p.code, sizeof p.code, "engine_error");
	problem_take(error, "message", p.message, sizeof p.message, "the engine failed without saying why");
	problem_take(error, "param", p.param, sizeof p.param, "");
	if (retry > 0 && retry <= 86400)
		p.retry_after = (int)ceil(retry);
	else if ((p.status == 429 && !p.param[0]) || p.status == 503)
		p.retry_after = 1; /* a 429 with a param is a quota, which time alone does not free */
	return p;
}

problem problem_from_frame(const frame *f)
{
	static const problem memory = {
	    .status = 503, .code = "out_of_memory", .message = "out of memory", .retry_after = 1};
	json_t *error = json_memory_parse(f->json, f->json_bytes, 0, NULL);
	if (json_memory_failed())
		return memory;
	problem p = problem_from_object(error);
	json_decref(error);
	return p;
}

problem problem_from_schema(const schema_error *e)
{
	problem p = {.status = 400};
	problem_copy(p.code, sizeof p.code, e->code, strlen(e->code));
	problem_copy(p.param, sizeof p.param, e->param, strlen(e->param));
	problem_copy(p.message, sizeof p.message, e->message, strlen(e->message));
	return p;
}

void problem_write(const problem *p, buffer *out)
{
	json_memory_forget();
	json_t *json = error_body(p->status, p->code, p->param, p->message);
	char *text = json_memory_print(json, PROTO_JSON);
	if (text)
		buffer_string(out, text);
	else
		out->failed = true;
	free(text);
	json_decref(json);
}
