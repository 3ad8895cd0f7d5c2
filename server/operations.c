/* /healthz, /readyz, /metrics, /version and /openapi.json. */
#include <stdlib.h>

#include "gen/routes.h"
#include "proto/json_memory.h"
#include "server/forward.h"
#include "server/embedded.h"

enum { OPERATIONS_ENGINE_MS = 2000 };

/* {"status", "backend", "device"}: the latter two as the engine's HELLO names them, null while it is unavailable.
 * devices: those of an engine with several, or NULL. */
static void operations_reply_state(request *r, const char *status, json_t *devices)
{
	const json_t *hello = engine_link_hello(r->server->engine);
	reply_json(r, 200,
	           json_pack("{s:s, s:s?, s:s?, s:O*}", "status", status, "backend",
	                     json_string_value(json_object_get(hello, "backend")), "device",
	                     json_string_value(json_object_get(hello, "device")), "devices", devices));
}

void operations_health(request *r)
{
	operations_reply_state(r, "ok", NULL);
}

/* --- readiness: the engine responds, and its device and data folder work ----------------- */

static void operations_ready_end(void *context, const frame *f)
{
	request *r = context;
	r->call = NULL;
	json_t *status = f->type == FRAME_RESULT ? json_memory_parse(f->json, f->json_bytes, 0, NULL) : NULL;
	const json_t *storage = json_object_get(status, "storage");
	const char *reason = json_string_value(json_object_get(storage, "problem"));
	const char *device = json_string_value(json_object_get(status, "device_problem"));
	if (json_memory_failed())
		reply_out_of_memory(r);
	else if (f->type != FRAME_RESULT)
		reply_refuse(r, 503, "engine_unavailable", NULL, "the engine does not report its state");
	else if (!status)
		reply_refuse(r, 500, "engine_error", NULL, "the engine's answer is malformed");
	else if (device)
		reply_refuse(r, 503, "device_error", NULL, "the engine's device: %s", device);
	else if (json_is_false(json_object_get(storage, "ok")))
		reply_refuse(r, 503, "storage_error", NULL, "the engine's storage: %s",
		             reason ? reason : "no reason given");
	else
		operations_reply_state(r, "ready", json_object_get(status, "devices"));
	json_decref(status);
}

void operations_ready(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = operations_ready_end};
	const server *s = r->server;
	if (s->draining)
		reply_refuse(r, 503, "shutting_down", NULL, "the server is shutting down");
	else if (!engine_link_up(s->engine))
		reply_refuse(r, 503, "engine_unavailable", NULL, "the engine is unavailable: %s",
		             engine_link_reason(s->engine));
	else
		r->call = engine_link_call(s->engine, "engine.status", NULL, NULL, NULL, 0, false, OPERATIONS_ENGINE_MS,
		                           &events, r);
	if (!r->status && !r->call)
		reply_out_of_memory(r);
}

void operations_version(request *r)
{
	json_t *hello = (json_t *)engine_link_hello(r->server->engine);
	reply_json(r, 200,
	           json_pack("{s:s, s:s, s:i, s:O?}", "version", ADDITIVE_VERSION, "software",
	                     "additive-httpd " ADDITIVE_VERSION, "protocol", PROTO_VERSION, "engine", hello));
}

void operations_openapi(request *r)
{
	reply_file(r, "application/json", &embedded_openapi_yaml);
}

/* --- metrics: ours, and the engine's when the request may see them and it answers in time --- */

static void operations_metrics_reply(request *r, const json_t *engine)
{
	buffer text = {0};
	metrics_write(r->server->metrics, engine_link_up(r->server->engine), engine, &text);
	if (text.failed)
		buffer_fini(&text);
	reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.used);
}

static void operations_metrics_end(void *context, const frame *f)
{
	request *r = context;
	r->call = NULL;
	json_t *engine = f->type == FRAME_RESULT ? json_memory_parse(f->json, f->json_bytes, 0, NULL) : NULL;
	if (json_memory_failed())
		reply_out_of_memory(r);
	else
		operations_metrics_reply(r, engine);
	json_decref(engine);
}

void operations_metrics(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = operations_metrics_end};
	if (!r->unchecked)
		r->call = engine_link_call(r->server->engine, "engine.metrics", NULL, NULL, NULL, 0, false,
		                           OPERATIONS_ENGINE_MS, &events, r);
	if (!r->call && !r->unchecked && engine_link_up(r->server->engine))
		reply_out_of_memory(r);
	else if (!r->call)
		operations_metrics_reply(r, NULL);
}
