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
#include "server/compare.h"
#include "server/download.h"
#include "server/explain_view.h"
#include "server/forward.h"
#include "server/saved_page.h"

/* Response types; a comparison has only the first three. With a format, the engine renders it and sends it in pieces.
 * Without one it sends JSON, which is drawn here. */
static const struct {
	const char *accept, *type, *format;
} explain_offers[] = {
    {"application/json", "application/json", "json"},
    {"text/html", "text/html; charset=utf-8", NULL},
    {"image/svg+xml", "image/svg+xml", NULL},
    {"text/csv", "text/csv; charset=utf-8", "csv"},
    {"application/vnd.safetensors", "application/vnd.safetensors", "safetensors"},
    {"application/octet-stream", "application/octet-stream", "safetensors"},
};
enum {
	EXPLAIN_DATA,
	EXPLAIN_PAGE,
	EXPLAIN_COMPARISONS = 3,
	EXPLAIN_OFFERS = sizeof explain_offers / sizeof *explain_offers
};

static int explain_pick(request *r, int offers)
{
	const char *accepts[EXPLAIN_OFFERS];
	for (int i = 0; i < offers; i++)
		accepts[i] = explain_offers[i].accept;
	return accept_pick(request_header_value(r, "Accept"), accepts, offers);
}

/* The explanation is stolen. */
static void explain_reply_drawn(request *r, json_t *explanation, int offer)
{
	buffer drawn = {0};
	if (offer == EXPLAIN_PAGE) {
		saved_page_reply(r, explanation);
		return;
	}
	if (json_object_get(explanation, "compare"))
		compare_svg_write(explanation, &drawn);
	else
		explain_svg_write(explanation, &drawn);
	json_decref(explanation);
	if (drawn.failed)
		buffer_fini(&drawn);
	reply_bytes(r, 200, explain_offers[offer].type, drawn.data, drawn.used);
}

static void explain_end(void *context, const frame *f)
{
	request *r = context;
	json_t *explanation = forward_failed(r, f) ? NULL : forward_json(r, f);
	if (explanation)
		explain_reply_drawn(r, explanation, explain_pick(r, EXPLAIN_OFFERS));
}

static void explain_refuse(request *r, int offers)
{
	buffer all = {0};
	for (int i = 0; i < offers; i++)
		buffer_format(&all, "%s%s", i == 0 ? "" : i + 1 < offers ? ", " : " or ", explain_offers[i].accept);
	buffer_append(&all, "", 1);
	reply_refuse(r, 406, "not_acceptable", NULL, "%s is %s",
	             offers == EXPLAIN_COMPARISONS ? "a comparison" : "an explanation",
	             all.failed ? "application/json" : all.data);
	buffer_fini(&all);
}

/* params is stolen. */
static void explain_call(request *r, json_t *params)
{
	static const engine_events events = {.event = forward_ignore, .end = explain_end};
	const int offer = explain_pick(r, EXPLAIN_OFFERS);
	const char *format = offer < 0 ? NULL : explain_offers[offer].format;
	reply_header(r, "Vary", "Accept");
	if (offer < 0 || (format && json_object_set_new(params, "format", json_string(format)) != 0)) {
		json_decref(params);
		if (offer < 0)
			explain_refuse(r, EXPLAIN_OFFERS);
		else
			reply_out_of_memory(r);
	} else if (format) {
		download_call(r, params, explain_offers[offer].type);
	} else {
		request_call(r, r->route->engine_method, params, 0, false, &events);
	}
}

/* --- two side by side: one call after the other ------------------------------------------- */

typedef struct explain_pair {
	json_t *compare, *second, *first; /* the request's member; parameters of the second call; the first's answer */
} explain_pair;

static void explain_release(request *r)
{
	explain_pair *pair = r->state;
	json_decref(pair->compare);
	json_decref(pair->second);
	json_decref(pair->first);
	free(pair);
}

/* "model" is "compare.model" where the request has it there. */
static void explain_reply_second_problem(request *r, const frame *f)
{
	const explain_pair *pair = r->state;
	problem p = problem_from_frame(f);
	char name[sizeof p.param];
	snprintf(name, sizeof name, "%.*s", (int)strcspn(p.param, ".["), p.param);
	if (json_object_get(pair->compare, name)) {
		snprintf(name, sizeof name, "%s", p.param);
		snprintf(p.param, sizeof p.param, "compare.%.*s", (int)(sizeof p.param - sizeof "compare."), name);
	}
	reply_problem(r, &p);
}

static void explain_second_end(void *context, const frame *f)
{
	request *r = context;
	explain_pair *pair = r->state;
	int offer = explain_pick(r, EXPLAIN_COMPARISONS);
	r->call = NULL;
	if (f->type == FRAME_ERROR) {
		explain_reply_second_problem(r, f);
		return;
	}
	json_t *second = forward_json(r, f);
	if (!second)
		return;
	json_t *both = compare_join(pair->first, second);
	pair->first = NULL;
	if (!both || json_memory_failed()) { /* a list may have lost an item */
		json_decref(both);
		reply_out_of_memory(r);
		return;
	}
	if (offer == EXPLAIN_DATA)
		reply_json(r, 200, both);
	else
		explain_reply_drawn(r, both, offer);
}

static void explain_first_end(void *context, const frame *f)
{
	static const engine_events events = {.event = forward_ignore, .end = explain_second_end};
	request *r = context;
	explain_pair *pair = r->state;
	if (forward_failed(r, f))
		return;
	pair->first = forward_json(r, f);
	if (!pair->first)
		return;
	json_t *params = pair->second;
	pair->second = NULL;
	request_call(r, r->route->engine_method, params, 0, false, &events);
}

/* Parameters of the second explanation: those of the first, with the values in `compare` replaced. */
static json_t *explain_second_params(const json_t *params, json_t *compare)
{
	json_t *second = json_copy((json_t *)params);
	if (json_object_get(compare, "model") || json_object_get(compare, "input") ||
	    json_object_get(compare, "source"))
		json_object_del(second, "session");
	if (second && json_object_update(second, compare) == 0)
		return second;
	json_decref(second);
	return NULL;
}

/* params is stolen. */
static void explain_compare(request *r, json_t *params)
{
	static const engine_events events = {.event = forward_ignore, .end = explain_first_end};
	explain_pair *pair = calloc(1, sizeof *pair);
	if (!pair) {
		json_decref(params);
		reply_out_of_memory(r);
		return;
	}
	reply_header(r, "Vary", "Accept");
	r->state = pair;
	r->release = explain_release;
	pair->compare = json_incref(json_object_get(params, "compare"));
	json_object_del(params, "compare");
	pair->second = explain_second_params(params, pair->compare);
	if (pair->second) {
		request_call(r, r->route->engine_method, params, 0, false, &events);
		return;
	}
	json_decref(params);
	reply_out_of_memory(r);
}

void explain_handle(request *r)
{
	json_t *params = forward_params(r);
	const bool compare = json_object_get(params, "compare");
	if (!params)
		return;
	if (!compare) {
		explain_call(r, params);
	} else if (explain_pick(r, EXPLAIN_COMPARISONS) < 0) {
		json_decref(params);
		explain_refuse(r, EXPLAIN_COMPARISONS);
	} else if (r->members.used > 0) {
		json_decref(params);
		reply_refuse(r, 413, "too_large", "compare", "a request with 'compare' must be smaller than 64 KiB");
	} else if (json_object_get(params, "span")) {
		json_decref(params);
		reply_refuse(r, 400, "invalid_value", "span", "'compare' cannot be combined with 'span'");
	} else {
		explain_compare(r, params);
	}
}

/* --- sessions: the selection is in the query -------------------------------------------- */

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
