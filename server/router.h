/* router.h - map a request to its endpoint.
 *
 * A row defines an endpoint completely: method, path, body, query parameters, and either a handler or, for most, only
 * the engine's method to forward to (forward.h). The rows are generated from the operations of openapi.yaml
 * (gen/routes.c), whose `x-handler` names the handler. */
#ifndef SERVER_ROUTER_H
#define SERVER_ROUTER_H

#include <stdbool.h>

#include "proto/schema.h"
#include "server/uri.h"

struct request;

typedef enum body_kind {
	BODY_NONE,  /* none; an empty object is accepted */
	BODY_JSON,  /* one object, checked against the row's schema */
	BODY_FORM,  /* multipart/form-data, streamed */
	BODY_OCTETS /* application/octet-stream, streamed */
} body_kind;

/* Roles of keys; each may do what the ones before it may. */
typedef enum key_role { ROLE_USER, ROLE_TRAINER, ROLE_ADMIN } key_role;

enum { ROUTE_MAX_PARAMS = 2 };

typedef struct route {
	const char *method;
	const char *path; /* "/v1/models/{id}/files/{name}" */
	/* Called when the request has arrived; for BODY_FORM and BODY_OCTETS when its head has. */
	void (*handle)(struct request *r);
	const char *engine_method; /* for forward_handle */
	key_role role;             /* that a key needs */
	body_kind body;
	const schema *schema; /* BODY_JSON */
	bool optional;        /* BODY_JSON: the body may be absent; the Content-Type is checked if there is one */
	const field *query;   /* allowed query parameters, ended by a NULL name; FIELD_ANY: read by the handler; NULL:
	                       * none */
	bool idempotent;      /* the engine gets the Idempotency-Key header as a member of params */
	bool timed;           /* X-Request-Timeout applies */
	bool open;            /* needs no key */
	bool always;          /* answered even during shutdown */
} route;

typedef struct route_match {
	const route *route;                   /* NULL unless the status is 200 */
	const char *params[ROUTE_MAX_PARAMS]; /* values of {…}, in order; they point into the uri */
	char allow[64];                       /* 405: the methods of this path */
	char types[96];                       /* 415: the accepted Content-Types, "A or B" */
} route_match;

/* Returns 200, 404 (no such path, or a parameter that cannot be an id), 405, or 415 (no row accepts the Content-Type).
 * HEAD is handled as GET. content_type may be NULL. */
int router_find(const uri *u, const char *method, const char *content_type, route_match *out);
/* Return the known path closest to this one, as written in its row; NULL unless the path is under /v1/. */
const char *router_nearest(const uri *u);
/* Return the invalid id in a path that fits a row in all other respects; NULL: none. */
const char *router_invalid_id(const uri *u);
/* Return the Content-Type of the row's body; NULL: any, or none. */
const char *router_body_type(const route *row);
/* True if this Content-Type (may be NULL) is that of the row's body. */
bool router_body_fits(const route *row, const char *content_type);
/* Return the i-th row; NULL if i is the number of rows. */
const route *router_row(int i);
/* Write the name of the n-th {…} in a path, such as "id". False if there is none. */
bool router_param_name(const route *row, int n, char *out, size_t size);

#endif
