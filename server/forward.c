/* The engine's JSON is the API's JSON, so it is passed on as bytes. */
#include "server/forward.h"

#include "proto/json_memory.h"

void forward_ignore(void *context, const frame *f)
{
	(void)context;
	(void)f;
}

bool forward_failed(request *r, const frame *f)
{
	r->call = NULL;
	if (f->type != FRAME_ERROR)
		return false;
	problem p = problem_from_frame(f);
	reply_problem(r, &p);
	return true;
}

json_t *forward_json(request *r, const frame *f)
{
	json_t *json = json_memory_parse(f->json, f->json_bytes, JSON_ALLOW_NUL, NULL);
	if (json_is_object(json))
		return json;
	json_decref(json);
	if (json_memory_failed()) {
		reply_out_of_memory(r);
		return NULL;
	}
	reply_refuse(r, 500, "engine_error", NULL, "the engine's answer is malformed");
	return NULL;
}

json_t *forward_params(request *r)
{
	json_t *params = request_params(r);
	bool ok = params && (!r->body || json_object_update(params, r->body) == 0);
	/* A parsed body is many times its text; it must not wait for the answer. */
	json_decref(r->body);
	r->body = NULL;
	if (ok)
		return params;
	json_decref(params);
	reply_out_of_memory(r);
	return NULL;
}

static void forward_end(void *context, const frame *f)
{
	request *r = context;
	if (!forward_failed(r, f))
		reply_copy(r, 200, "application/json", f->json, f->json_bytes);
}

void forward_handle(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = forward_end};
	json_t *params = forward_params(r);
	if (params)
		request_call(r, r->route->engine_method, params, 0, false, &events);
}
