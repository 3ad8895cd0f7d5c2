/* router.h - which function answers which request.
 *
 * A row is the whole truth about an endpoint: method, path, body, query parameters, and either a handler or, for most,
 * just the engine's method to forward to (forward.h). The rows are made from the operations of openapi.yaml
 * (gen/routes.c), whose `x-handler` names the handler. */
#ifndef SERVER_ROUTER_H
#define SERVER_ROUTER_H

#include <stdbool.h>

#include "proto/schema.h"
#include "server/uri.h"

struct request;

typedef enum body_kind {
	BODY_NONE,  /* none; an object without members is taken for one */
	BODY_JSON,  /* one object, checked against the row's schema */
	BODY_FORM,  /* multipart/form-data, streamed */
	BODY_OCTETS /* application/octet-stream, streamed */
} body_kind;

enum { ROUTE_MAX_PARAMS = 2 };

typedef struct route {
	const char *method;
	const char *path; /* "/v1/models/{id}/files/{name}" */
	/* Called when the request has arrived; for BODY_FORM and BODY_OCTETS when its head has. */
	void (*handle)(struct request *r);
	const char *engine_method; /* for forward_handle */
	body_kind body;
	const schema *schema; /* BODY_JSON */
	bool optional;        /* BODY_JSON: the body may be absent; the Content-Type is judged when there is one */
	const field *query; /* the allowed query parameters, up to a NULL name; FIELD_ANY: the handler's; NULL: none */
	bool idempotent;    /* the engine gets the Idempotency-Key header as a member of params */
	bool open;          /* needs no key */
	bool always;        /* answered while shutting down */
} route;

typedef struct route_match {
	const route *route;                   /* NULL unless the status is 200 */
	const char *params[ROUTE_MAX_PARAMS]; /* values of {…}, in order; they live in the uri */
	char allow[64];                       /* 405: the methods there are */
	char types[96];                       /* 415: the Content-Types that fit, "A or B" */
} route_match;

/* 200, 404 (no such path, or a parameter that cannot be an id), 405, or 415 (the Content-Type fits no row).
 * HEAD is answered as GET. content_type may be NULL. */
int router_find(const uri *u, const char *method, const char *content_type, route_match *out);
/* The path under /v1/ that the fewest changes make of this one, as its row has it; NULL for what is not under /v1/. */
const char *router_nearest(const uri *u);
/* The segment that is no id, if the path fits a row but for it; NULL: none. */
const char *router_invalid_id(const uri *u);
/* The Content-Type of the row's body; NULL: any, or none. */
const char *router_body_type(const route *row);
/* Is this Content-Type (may be NULL) the one of the row's body? */
bool router_body_fits(const route *row, const char *content_type);
/* The i-th row of all; NULL: i is their number, and no larger. */
const route *router_row(int i);
/* Name of the n-th {…} in a path: "id". False when there is none. */
bool router_param_name(const route *row, int n, char *out, size_t size);

#endif
