/* Rows are tried in order; forty of them cost less than one header line. */
#include "server/router.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gen/routes.h"
#include "proto/nearest.h"

const route *router_row(int i)
{
	return router_rows[i].method ? &router_rows[i] : NULL;
}

/* Fill the parameters, which need not be valid ids, and return how many there are. -1: the path does not fit. */
static int router_path_match(const route *row, const uri *u, const char **params)
{
	const char *p = row->path;
	int n_params = 0;
	for (int i = 0; i < u->n_segments; i++) {
		const char *segment = u->segments[i];
		if (*p++ != '/')
			return -1;
		size_t bytes = strcspn(p, "/");
		if (*p == '{') {
			params[n_params++] = segment;
		} else if (strlen(segment) != bytes || memcmp(segment, p, bytes) != 0) {
			return -1;
		}
		p += bytes;
	}
	return *p == '\0' || (u->n_segments == 0 && strcmp(p, "/") == 0) ? n_params : -1;
}

/* The first of n parameters that is no valid id; NULL: none. */
static const char *router_find_invalid(const char *const *params, int n)
{
	for (int i = 0; i < n; i++)
		if (!uri_id_valid(params[i]))
			return params[i];
	return NULL;
}

static bool router_path_fits(const route *row, const uri *u, const char **params)
{
	const int n = router_path_match(row, u, params);
	return n >= 0 && !router_find_invalid(params, n);
}

const char *router_invalid_id(const uri *u)
{
	const char *params[ROUTE_MAX_PARAMS], *invalid = NULL;
	const route *row;
	for (int i = 0; !invalid && (row = router_row(i)) != NULL; i++)
		invalid = router_find_invalid(params, router_path_match(row, u, params));
	return invalid;
}

const char *router_body_type(const route *row)
{
	static const char *const types[] = {NULL, "application/json", "multipart/form-data",
	                                    "application/octet-stream"};
	return types[row->body];
}

bool router_body_fits(const route *row, const char *content_type)
{
	const char *expected = router_body_type(row);
	if (!expected)
		return true;
	if (!content_type)
		return false;
	size_t bytes = strcspn(content_type, "; \t");
	return bytes == strlen(expected) && strncasecmp(content_type, expected, bytes) == 0;
}

static void router_allow(char *allow, size_t size, const char *method)
{
	if (strstr(allow, method))
		return;
	if (allow[0])
		strncat(allow, ", ", size - strlen(allow) - 1);
	strncat(allow, method, size - strlen(allow) - 1);
	if (strcmp(method, "GET") == 0)
		strncat(allow, ", HEAD", size - strlen(allow) - 1);
}

int router_find(const uri *u, const char *method, const char *content_type, route_match *out)
{
	*out = (route_match){0};
	bool method_known = false;
	if (strcmp(method, "HEAD") == 0)
		method = "GET";
	const route *row;
	for (int i = 0; (row = router_row(i)) != NULL; i++) {
		if (!router_path_fits(row, u, out->params))
			continue;
		router_allow(out->allow, sizeof out->allow, row->method);
		if (strcmp(row->method, method) != 0)
			continue;
		method_known = true;
		if (row->optional || router_body_fits(row, content_type)) {
			out->route = row;
			return 200;
		}
		size_t used = strlen(out->types);
		snprintf(out->types + used, sizeof out->types - used, "%s%s", used ? " or " : "",
		         router_body_type(row));
	}
	if (method_known)
		return 415;
	return out->allow[0] ? 405 : 404;
}

bool router_param_name(const route *row, int n, char *out, size_t size)
{
	const char *open = strchr(row->path, '{');
	while (open && n-- > 0)
		open = strchr(open + 1, '{');
	size_t bytes = open ? strcspn(open + 1, "}") : 0;
	if (bytes == 0 || bytes >= size)
		return false;
	memcpy(out, open + 1, bytes);
	out[bytes] = '\0';
	return true;
}

/* --- the nearest path ---------------------------------------------------------------- */

/* The distance of segments is that of nearest.h. A missing or extra segment counts as NEAREST_SEGMENT, and a
 * parameter's value as one. */
enum { NEAREST_SEGMENT = 3 };

static size_t router_segment_distance(const char *a, const char *b)
{
	const size_t n = strlen(a), m = strcspn(b, "/");
	return *b == '{' ? 1 : nearest_distance(a, n < NEAREST_BYTES ? n : NEAREST_BYTES - 1, b, m);
}

/* Edit distance over segments. */
static size_t router_distance(const uri *u, const char *path)
{
	size_t row[URI_MAX_SEGMENTS + 1];
	for (int i = 0; i <= u->n_segments; i++)
		row[i] = NEAREST_SEGMENT * (size_t)i;
	for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
		size_t diagonal = row[0];
		row[0] += NEAREST_SEGMENT;
		for (int i = 1; i <= u->n_segments; i++) {
			size_t above = row[i];
			const size_t changed = diagonal + router_segment_distance(u->segments[i - 1], at + 1);
			const size_t shifted = (above < row[i - 1] ? above : row[i - 1]) + NEAREST_SEGMENT;
			row[i] = changed < shifted ? changed : shifted;
			diagonal = above;
		}
	}
	return row[u->n_segments];
}

const char *router_nearest(const uri *u)
{
	const char *closest = NULL;
	size_t least = SIZE_MAX;
	const route *row;
	if (u->n_segments == 0 || strcmp(u->segments[0], "v1") != 0)
		return NULL;
	for (int i = 0; (row = router_row(i)) != NULL; i++) {
		size_t changes = strncmp(row->path, "/v1/", 4) == 0 ? router_distance(u, row->path) : SIZE_MAX;
		if (changes < least) {
			least = changes;
			closest = row->path;
		}
	}
	return closest;
}
