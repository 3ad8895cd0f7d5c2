/* The page at / and its files. It is the same for all readers and asks the API for everything else, so neither needs a
 * key. The path of a file contains the hash of all files: browsers may keep it for ever, and relative imports work below
 * any prefix that a proxy adds. */
#include <string.h>

#include "gen/routes.h"
#include "server/embedded.h"
#include "server/request.h"
#include "server/server.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
                             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static const char *web_type(const char *name)
{
	static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
	                                       {".js", "text/javascript; charset=utf-8"},
	                                       {".css", "text/css; charset=utf-8"},
	                                       {".svg", "image/svg+xml"}};
	const char *ending = strrchr(name, '.');
	for (size_t i = 0; ending && i < sizeof types / sizeof *types; i++)
		if (strcmp(ending, types[i][0]) == 0)
			return types[i][1];
	return "application/octet-stream";
}

static const web_file *web_find(const char *name)
{
	for (const web_file *f = web_files; f->name; f++)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

static void web_reply(request *r, const web_file *f, const char *caching)
{
	reply_header(r, "Cache-Control", caching);
	reply_header(r, "Content-Security-Policy", policy);
	reply_file(r, web_type(f->name), f);
}

static void web_reply_off(request *r)
{
	reply_refuse(r, 404, "not_found", NULL, "this server does not serve the page (--no-web)");
}

void web_page(request *r)
{
	if (r->server->web)
		web_reply(r, web_find("index.html"), "no-cache");
	else
		web_reply_off(r);
}

void web_file_get(request *r)
{
	const web_file *f = strcmp(r->params[0], web_version) == 0 ? web_find(r->params[1]) : NULL;
	if (!r->server->web)
		web_reply_off(r);
	else if (f)
		web_reply(r, f, "public, max-age=31536000, immutable");
	else
		reply_refuse(r, 404, "not_found", NULL, "the page has no such file; load the page again after an update");
}
