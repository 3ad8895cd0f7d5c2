/* Rows are tried in order; forty of them cost less than one header line. */
#include "server/router.h"

#include <string.h>
#include <strings.h>

#include "server/resources.h"

static const route *const tables[] = {models_routes,      files_routes,    jobs_routes,
                                      completions_routes, sessions_routes, explain_routes,
                                      tokenize_routes,    storage_routes,  operations_routes};

const route *router_row(int i)
{
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		for (const route *row = tables[t]; row->method; row++)
			if (i-- == 0)
				return row;
	return NULL;
}

/* Does the path fit the row? Fills the parameters. */
static bool router_path_fits(const route *row, const uri *u, const char **params)
{
	const char *p = row->path;
	int n_params = 0;
	for (int i = 0; i < u->n_segments; i++) {
		const char *segment = u->segments[i];
		if (*p++ != '/')
			return false;
		size_t bytes = strcspn(p, "/");
		if (*p == '{') {
			if (!uri_id_valid(segment))
				return false;
			params[n_params++] = segment;
		} else if (strlen(segment) != bytes || memcmp(segment, p, bytes) != 0) {
			return false;
		}
		p += bytes;
	}
	return *p == '\0' || (u->n_segments == 0 && strcmp(p, "/") == 0);
}

bool router_body_fits(const route *row, const char *content_type)
{
	static const char *const types[] = {NULL, "application/json", "multipart/form-data",
	                                    "application/octet-stream"};
	const char *wanted = types[row->body];
	if (!wanted)
		return true;
	if (!content_type)
		return false;
	size_t bytes = strcspn(content_type, "; \t");
	return bytes == strlen(wanted) && strncasecmp(content_type, wanted, bytes) == 0;
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
