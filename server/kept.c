#include "server/kept.h"

#include <errno.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "gen/routes.h"
#include "server/forward.h"

/* The ids below a path, and how their deletion is answered. */
typedef struct kept_form {
	const char *path, *prefix, *deleted;
} kept_form;

static const kept_form kept_forms[] = {{"/v1/responses/", "resp_", "response"},
                                       {"/v1/chat/completions/", "chatcmpl-", "chat.completion.deleted"},
                                       {"/v1/completions/", "cmpl-", "text_completion.deleted"}};

static const kept_form *kept_form_of(const request *r)
{
	const kept_form *f = kept_forms;
	while (strncmp(r->route->path, f->path, strlen(f->path)) != 0)
		f++;
	return f;
}

bool kept_add(request *r, json_t *params, const char *id, json_t *about, bool background, bool stream)
{
	json_t *how = json_pack("{s:s*, s:o, s:b, s:b}", "id", id, "about", about, "background", background,
	                        "stream", stream);
	if (json_object_set_new(params, "response", how) == 0)
		return true;
	json_decref(params);
	reply_out_of_memory(r);
	return false;
}

void kept_name(request *r, const char *id)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", r->route->path, id);
	reply_header(r, "Content-Location", path);
}

/* The number in Last-Event-ID or starting_after. False: it is not one, and the request has been answered. */
static bool kept_read_after(request *r, kept_view *view)
{
	const char *header = request_header_value(r, "Last-Event-ID");
	const char *text = header ? header : uri_query(&r->uri, "starting_after");
	char *end;
	view->resumes = text;
	if (!text)
		return true;
	errno = 0;
	view->after = strtoull(text, &end, 10);
	if (isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && view->after < UINT64_MAX)
		return true;
	reply_refuse(r, 400, "invalid_value", header ? "Last-Event-ID" : "starting_after",
	             "%s must be the number of an event", header ? "Last-Event-ID" : "'starting_after'");
	return false;
}

bool kept_read(request *r, kept_view *view)
{
	const char *stream = uri_query(&r->uri, "stream");
	if (stream && strcmp(stream, "true") != 0 && strcmp(stream, "false") != 0) {
		reply_refuse(r, 400, "invalid_value", "stream", "'stream' must be true or false");
		return false;
	}
	if (!kept_read_after(r, view))
		return false;
	view->stream = stream ? strcmp(stream, "true") == 0 : view->resumes;
	return true;
}

json_t *kept_params(request *r, bool follow)
{
	const char *prefix = kept_form_of(r)->prefix;
	if (strncmp(r->params[0], prefix, strlen(prefix)) != 0) {
		reply_refuse(r, 404, "not_found", "id", "the id must begin with \"%s\"", prefix);
		return NULL;
	}
	json_t *params = json_pack("{s:s}", "id", r->params[0]);
	if (params && follow)
		json_object_set_new(params, "follow", json_true());
	if (!params)
		reply_out_of_memory(r);
	return params;
}

static void kept_deleted(void *context, const frame *f)
{
	request *r = context;
	if (!forward_failed(r, f))
		reply_json(
		    r, 200,
		    json_pack("{s:s, s:s, s:b}", "id", r->params[0], "object", kept_form_of(r)->deleted, "deleted", 1));
}

void kept_delete(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = kept_deleted};
	json_t *params = kept_params(r, false);
	if (params)
		request_call(r, r->route->engine_method, params, 0, false, &events);
}
