#include "server/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "server/log.h"
#include "server/tls.h"

enum { SPARE_DESCRIPTORS = 64, MAX_DESCRIPTORS = 1 << 20 };

static uint64_t milliseconds(const options *o, const char *name, double fallback)
{
	return (uint64_t)(options_number(o, name, fallback) * 1000);
}

/* As many descriptors as we may have; the connections that fit beside the rest. */
static unsigned connection_limit(double requested)
{
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return (unsigned)requested;
	files.rlim_cur = files.rlim_max < MAX_DESCRIPTORS ? files.rlim_max : MAX_DESCRIPTORS;
	setrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_NOFILE, &files);
	double room = (double)files.rlim_cur - SPARE_DESCRIPTORS;
	if (room < 1)
		room = 1;
	if (requested > room)
		log_line(LOG_WARN, "%g connections at once: the limit of open files allows no more", room);
	return (unsigned)(requested < room ? requested : room);
}

/* Set what settings_is_limit() lists. */
static void settings_set_limits(server *s, const options *o)
{
	server_limits *l = &s->limits;
	l->connections_per_address = (unsigned)options_integer(o, "max-connections-per-ip", 256);
	l->request_ms = milliseconds(o, "request-timeout", 30);
	l->stall_ms = milliseconds(o, "stall-timeout", 600);
	l->ping_ms = milliseconds(o, "ping", 15);
	l->grace_ms = milliseconds(o, "grace", 10);
	l->upload_bytes = (uint64_t)options_integer(o, "max-upload-bytes", (int64_t)64 << 30);
	s->access_log = options_flag(o, "access-log");
	s->web = !options_flag(o, "no-web");
}

static settings_result settings_read_sites(site_list *out, const options *o)
{
	site_list list = {.sites = calloc((size_t)o->n_given + 1, sizeof *list.sites)};
	if (!list.sites)
		return SETTINGS_FAILED;
	for (int i = 0; i < o->n_given; i++) {
		const char *name = o->given[i].value;
		if (strcmp(o->given[i].row->name, "allow-host") != 0)
			continue;
		if (!site_parse(&list.sites[list.count++], name)) {
			log_line(LOG_ERROR, "--allow-host %s: expected NAME or NAME:PORT, without a scheme", name);
			free(list.sites);
			return SETTINGS_USAGE;
		}
	}
	*out = list;
	return SETTINGS_OK;
}

static settings_result settings_read_proxies(address_range **out, int *out_n, const options *o)
{
	address_range *list = calloc((size_t)o->n_given + 1, sizeof *list);
	int n = 0;
	if (!list)
		return SETTINGS_FAILED;
	for (int i = 0; i < o->n_given; i++) {
		const char *text = o->given[i].value;
		if (strcmp(o->given[i].row->name, "trusted-proxies") != 0)
			continue;
		if (!address_range_parse(&list[n++], text)) {
			log_line(LOG_ERROR,
			         "--trusted-proxies %s: expected an address, or ADDRESS/BITS without other bits set", text);
			free(list);
			return SETTINGS_USAGE;
		}
	}
	*out = list;
	*out_n = n;
	return SETTINGS_OK;
}

/* Set both lists, or neither. */
static settings_result settings_load_lists(server *s, const options *o)
{
	site_list sites = {0};
	address_range *proxies = NULL;
	int n_proxies = 0;
	settings_result r = settings_read_sites(&sites, o);
	if (r == SETTINGS_OK)
		r = settings_read_proxies(&proxies, &n_proxies, o);
	if (r != SETTINGS_OK) {
		free(sites.sites);
		return r;
	}
	free(s->sites.sites);
	s->sites = sites;
	free(s->proxies);
	s->proxies = proxies;
	s->n_proxies = n_proxies;
	return SETTINGS_OK;
}

static bool settings_load_keys(server *s, const options *o)
{
	const char *file = options_text(o, "api-key-file");
	auth *keys = file ? auth_load(file) : NULL;
	if (keys) {
		auth_free(s->auth);
		s->auth = keys;
	}
	return keys || !file;
}

static bool settings_load_certificate(const options *o)
{
	const char *certificate = options_text(o, "tls-certificate");
	return !certificate || tls_load(certificate, options_text(o, "tls-key"));
}

static settings_result settings_check(const options *o)
{
	if (!options_text(o, "tls-certificate") == !options_text(o, "tls-key"))
		return SETTINGS_OK;
	log_line(LOG_ERROR, "--tls-certificate and --tls-key go together");
	return SETTINGS_USAGE;
}

settings_result settings_load(server *s, const options *o)
{
	settings_result r = settings_check(o);
	if (r == SETTINGS_OK)
		r = settings_load_lists(s, o);
	if (r != SETTINGS_OK)
		return r;
	settings_set_limits(s, o);
	s->limits.connections = connection_limit(options_number(o, "max-connections", 1024));
	s->limits.json_bytes = 4 << 20;
	s->limits.buffered_bytes = 256 << 20;
	s->tls = options_text(o, "tls-certificate") != NULL;
	return (!s->tls || tls_is_supported()) && settings_load_keys(s, o) && settings_load_certificate(o)
	           ? SETTINGS_OK
	           : SETTINGS_FAILED;
}

void settings_free(server *s)
{
	auth_free(s->auth);
	s->auth = NULL;
	engine_keys_free(&s->keys);
	free(s->sites.sites);
	s->sites = (site_list){0};
	free(s->proxies);
	s->proxies = NULL;
	s->n_proxies = 0;
	tls_unload();
}

/* --- while the server runs ------------------------------------------------------------------- */

static bool settings_is_limit(const char *name)
{
	static const char *const limits[] = {"allow-host",
	                                     "trusted-proxies",
	                                     "max-connections-per-ip",
	                                     "max-upload-bytes",
	                                     "request-timeout",
	                                     "stall-timeout",
	                                     "ping",
	                                     "grace",
	                                     "access-log",
	                                     "no-web"};
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		if (strcmp(name, limits[i]) == 0)
			return true;
	return false;
}

/* True if the option names a file before and after. It can name another file, but not come or go. */
static bool settings_is_file(const char *name, const options *started, const options *next)
{
	static const char *const files[] = {"api-key-file", "tls-certificate", "tls-key"};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (strcmp(name, files[i]) == 0)
			return options_text(started, name) && options_text(next, name);
	return false;
}

bool settings_reload(server *s, const option_row *rows, const options *started, const options *latest,
                     const options *next)
{
	if (settings_check(next) != SETTINGS_OK || settings_load_lists(s, next) != SETTINGS_OK) {
		log_line(LOG_ERROR, "reload: nothing is changed");
		return false;
	}
	settings_set_limits(s, next);
	for (const option_row *r = rows; r->name; r++) {
		const bool limit = settings_is_limit(r->name);
		if (limit && options_differ(latest, next, r->name))
			log_line(LOG_INFO, "reload: --%s has changed and is applied", r->name);
		else if (!limit && !settings_is_file(r->name, started, next) && options_differ(started, next, r->name))
			log_line(LOG_WARN, "reload: --%s has changed and needs a restart", r->name);
	}
	if (s->auth && options_text(next, "api-key-file"))
		log_line(LOG_INFO, "reload: API keys: %s",
		         settings_load_keys(s, next) ? "read again" : "the former ones stay in use");
	if (s->tls && options_text(next, "tls-certificate"))
		log_line(LOG_INFO, "reload: certificate: %s",
		         settings_load_certificate(next) ? "new connections get it" : "the former one stays in use");
	return true;
}
