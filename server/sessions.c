/* /v1/sessions: recurrent state kept on the engine. A session is made from JSON, or restored from the bytes
 * that GET …/state gave; the Content-Type tells which. */
#include "server/download.h"
#include "server/forward.h"
#include "server/generation.h"
#include "server/resources.h"
#include "server/upload.h"

static void sessions_restore(request *r)
{
	if (!uri_query(&r->uri, "model")) {
		reply_refuse(r, 400, "missing_parameter", "model", "say which model the state belongs to: ?model=ID");
		return;
	}
	json_t *params = request_params(r);
	if (params)
		upload_octets_begin(r, "state", params);
	else
		reply_out_of_memory(r);
}

const route sessions_routes[] = {
    {"GET", "/v1/sessions", forward_handle, .engine_method = "session.list"},
    {"POST", "/v1/sessions", forward_handle, .engine_method = "session.create", .body = BODY_JSON,
     .schema = &schema_session, .idempotent = true},
    {"POST", "/v1/sessions", sessions_restore, .engine_method = "session.import", .body = BODY_OCTETS, .query = "model",
     .idempotent = true},
    {"GET", "/v1/sessions/{id}", forward_handle, .engine_method = "session.get"},
    {"DELETE", "/v1/sessions/{id}", forward_handle, .engine_method = "session.delete"},
    {"POST", "/v1/sessions/{id}/generate", generation_handle, .engine_method = "session.generate", .body = BODY_JSON,
     .schema = &schema_session_generate, .idempotent = true},
    {"POST", "/v1/sessions/{id}/append", forward_handle, .engine_method = "session.append", .body = BODY_JSON,
     .schema = &schema_session_append, .idempotent = true},
    {"POST", "/v1/sessions/{id}/fork", forward_handle, .engine_method = "session.fork", .idempotent = true},
    {"GET", "/v1/sessions/{id}/state", download_handle, .engine_method = "session.export"},
    {.method = NULL}};
