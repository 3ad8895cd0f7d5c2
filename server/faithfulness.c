/* /v1/explain/evaluate and its jobs: numbers, or a page of charts and tables, as the client's Accept says. */
#include "gen/routes.h"
#include "server/accept.h"
#include "server/forward.h"
#include "server/saved_page.h"

enum { FAITHFULNESS_DATA, FAITHFULNESS_PAGE, FAITHFULNESS_OFFERS };

static int faithfulness_pick(request *r)
{
	static const char *const offers[FAITHFULNESS_OFFERS] = {"application/json", "text/html"};
	return accept_pick(request_header_value(r, "Accept"), offers, FAITHFULNESS_OFFERS);
}

static void faithfulness_end(void *context, const frame *f)
{
	request *r = context;
	if (forward_failed(r, f))
		return;
	reply_header(r, "Vary", "Accept");
	if (faithfulness_pick(r) == FAITHFULNESS_DATA) {
		reply_copy(r, 200, "application/json", f->json, f->json_bytes);
		return;
	}
	json_t *answer = forward_json(r, f);
	if (answer)
		saved_page_reply(r, answer);
}

void faithfulness_handle(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = faithfulness_end};
	json_t *params = forward_params(r);
	if (!params)
		return;
	if (faithfulness_pick(r) >= 0) {
		request_call(r, r->route->engine_method, params, 0, false, &events);
		return;
	}
	json_decref(params);
	reply_refuse(r, 406, "not_acceptable", NULL, "an evaluation is application/json or text/html");
}
