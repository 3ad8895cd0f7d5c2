/* /v1/sessions: recurrent state kept on the engine. A session is made from JSON, or restored from the bytes
 * that GET …/state gave; the Content-Type distinguishes them. */
#include "gen/routes.h"
#include "server/upload.h"

void sessions_restore(request *r)
{
	if (!uri_query(&r->uri, "model")) {
		reply_refuse(r, 400, "missing_parameter", "model",
		             "query parameter 'model' is required: the model that the state belongs to");
		return;
	}
	json_t *params = request_params(r);
	if (params)
		upload_octets_begin(r, "state", params);
	else
		reply_out_of_memory(r);
}
