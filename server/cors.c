#include "server/cors.h"

#include <string.h>

static const char cors_origin[] = "Origin";

bool cors_allows(const request *r)
{
	const char *origin = request_header_value(r, cors_origin);
	return origin && site_lists_origin(&r->server->sites, origin);
}

int cors_headers(const request *r, cors_header out[CORS_HEADERS])
{
	const site_list *sites = &r->server->sites;
	int n = 0;
	if (sites->count > 0 && !site_lists_all(sites)) /* a cache must not give one origin's answer to another */
		out[n++] = (cors_header){"Vary", cors_origin};
	if (!cors_allows(r))
		return n;
	out[n++] = (cors_header){"Access-Control-Allow-Origin",
	                         site_lists_all(sites) ? "*" : request_header_value(r, cors_origin)};
	out[n++] =
	    (cors_header){"Access-Control-Expose-Headers",
	                  "X-Request-Id, Retry-After, x-should-retry, openai-processing-ms, x-ratelimit-limit-requests, "
	                  "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
	                  "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"};
	return n;
}

bool cors_is_preflight(const request *r, const char *method)
{
	return strcmp(method, "OPTIONS") == 0 && request_header_value(r, cors_origin) &&
	       request_header_value(r, "Access-Control-Request-Method");
}

/* All headers that the page wants to send: clients such as OpenAI's add many of their own. */
static const char *cors_wanted_headers(const request *r)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~, ";
	enum { LONGEST = 2048 };
	const char *requested = request_header_value(r, "Access-Control-Request-Headers");
	size_t bytes = requested ? strlen(requested) : 0;
	return bytes > 0 && bytes <= LONGEST && strspn(requested, allowed) == bytes ? requested
	                                                                            : "authorization,content-type";
}

void cors_reply_preflight(request *r)
{
	/* Those of all paths: the page then reads a 404 or 405 itself. */
	reply_header(r, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE");
	reply_header(r, "Access-Control-Allow-Headers", cors_wanted_headers(r));
	reply_header(r, "Access-Control-Max-Age", "7200");
	reply_copy(r, 204, NULL, NULL, 0);
}
