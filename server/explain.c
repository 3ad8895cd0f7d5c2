/* /v1/explain and a session's /alpha: contributions and weights as data of several formats, as a page or as a picture,
 * as the client's Accept says. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gen/routes.h"
#include "gen/schemas.h"
#include "proto/json_memory.h"
#include "server/accept.h"
#include "server/download.h"
#include "server/explain_html.h"
#include "server/explain_svg.h"
#include "server/forward.h"

/* What is offered. The engine makes a format, and sends it in pieces; without one it sends JSON, which is drawn here.
 */
static const struct {
	const char *accept, *type, *format;
} explain_offers[] = {
    {"application/json", "application/json", "json"},
    {"text/html", "text/html; charset=utf-8", NULL},
    {"image/svg+xml", "image/svg+xml", NULL},
    {"text/csv", "text/csv; charset=utf-8", "csv"},
    {"application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream", "arrow"},
    {"application/vnd.safetensors", "application/vnd.safetensors", "safetensors"},
    {"application/octet-stream", "application/octet-stream", "safetensors"},
};
enum { EXPLAIN_PAGE = 1, EXPLAIN_OFFERS = sizeof explain_offers / sizeof *explain_offers };

static int explain_pick(request *r)
{
	const char *accepts[EXPLAIN_OFFERS];
	for (int i = 0; i < EXPLAIN_OFFERS; i++)
		accepts[i] = explain_offers[i].accept;
	return accept_pick(request_header_value(r, "Accept"), accepts, EXPLAIN_OFFERS);
}

static void explain_reply_page(request *r, const json_t *explanation, buffer *out)
{
	char nonce[40], policy[160];
	request_make_id(nonce, sizeof nonce, "");
	snprintf(policy, sizeof policy, "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-%s'", nonce);
	explain_html_write(explanation, nonce, out);
	reply_header(r, "Content-Security-Policy", policy);
}

static void explain_drawn(void *context, const frame *f)
{
	request *r = context;
	json_t *explanation = forward_failed(r, f) ? NULL : forward_json(r, f);
	const int offer = explain_pick(r);
	if (!explanation)
		return;
	buffer drawn = {0};
	if (offer == EXPLAIN_PAGE)
		explain_reply_page(r, explanation, &drawn);
	else
		explain_svg_write(explanation, &drawn);
	json_decref(explanation);
	if (drawn.failed)
		buffer_fini(&drawn);
	reply_bytes(r, 200, explain_offers[offer].type, drawn.data, drawn.used);
}

static void explain_refuse(request *r)
{
	buffer all = {0};
	for (int i = 0; i < EXPLAIN_OFFERS; i++)
		buffer_format(&all, "%s%s",
		              i == 0                   ? ""
		              : i + 1 < EXPLAIN_OFFERS ? ", "
		                                       : " or ",
		              explain_offers[i].accept);
	buffer_append(&all, "", 1);
	reply_refuse(r, 406, "not_acceptable", NULL, "an explanation is %s",
	             all.failed ? "application/json" : all.data);
	buffer_fini(&all);
}

/* params is stolen. */
static void explain_call(request *r, json_t *params)
{
	static const engine_events events = {.event = forward_ignore, .end = explain_drawn};
	const int offer = explain_pick(r);
	const char *format = offer < 0 ? NULL : explain_offers[offer].format;
	reply_header(r, "Vary", "Accept");
	if (offer < 0 || (format && json_object_set_new(params, "format", json_string(format)) != 0)) {
		json_decref(params);
		if (offer < 0)
			explain_refuse(r);
		else
			reply_out_of_memory(r);
	} else if (format) {
		download_call(r, params, explain_offers[offer].type);
	} else {
		request_call(r, r->route->engine_method, params, 0, false, &events);
	}
}

void explain_handle(request *r)
{
	json_t *params = forward_params(r);
	if (params)
		explain_call(r, params);
}

/* --- a session's: the selection stands in the query --------------------------------------- */

/* "3" as a number, anything else as text. */
static json_t *explain_scalar(const char *text, size_t bytes)
{
	char *end;
	errno = 0;
	long long number = strtoll(text, &end, 10);
	if (bytes > 0 && !isspace((unsigned char)*text) && end == text + bytes && errno == 0)
		return json_integer(number);
	return json_stringn(text, bytes);
}

/* "all" as it is; "0,2" as a list. */
static json_t *explain_list(const char *text)
{
	if (strcmp(text, "all") == 0)
		return json_string(text);
	json_t *list = json_array();
	for (const char *at = text;; at++) {
		size_t bytes = strcspn(at, ",");
		json_array_append_new(list, explain_scalar(at, bytes));
		at += bytes;
		if (*at == '\0')
			return list;
	}
}

void explain_session(request *r)
{
	json_t *params = json_object();
	bool ok = params != NULL;
	for (int i = 0; ok && i < r->uri.n_query; i++) {
		const uri_pair *q = &r->uri.query[i];
		bool scalar = strcmp(q->name, "position") == 0 || strcmp(q->name, "aggregate") == 0;
		json_t *value = scalar ? explain_scalar(q->value, strlen(q->value)) : explain_list(q->value);
		ok = json_object_set_new(params, q->name, value) == 0;
	}
	if (!ok || json_memory_failed()) { /* a list may have lost an item */
		json_decref(params);
		reply_out_of_memory(r);
		return;
	}
	schema_error error;
	if (schema_check(&schema_session_alpha, params, &error)) {
		json_object_set_new(params, "id", json_string(r->params[0]));
		explain_call(r, params);
		return;
	}
	problem p = problem_from_schema(&error);
	json_decref(params);
	reply_problem(r, &p);
}
