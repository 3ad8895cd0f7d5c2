/* additive-httpd - the HTTP front end. Options, wiring, signals; the rest is in its own files.
 *
 * Exit status: 0 after SIGTERM or SIGINT, however many streams were open; 1 when it cannot start; 2 for wrong usage. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/json_memory.h"
#include "proto/manual.h"
#include "proto/options.h"
#include "proto/short_slice.h"
#include "server/health_check.h"
#include "server/http.h"
#include "server/log.h"
#include "server/server.h"

enum { SPARE_DESCRIPTORS = 64, MAX_DESCRIPTORS = 1 << 20 };

static const option_row rows[] = {
#include "proto/front_options.def"
    {"engine", OPTION_TEXT, "ADDRESS", "the engine: unix:PATH or HOST:PORT (unix:/run/additive/engine.sock)", NULL},
    {"health-check", OPTION_FLAG, NULL, "ask the server at --listen for /healthz; exit 0 when it is well", NULL},
    {"require-backend", OPTION_TEXT, "NAME", "with --health-check: exit 1 unless the engine computes on it: cpu, cuda",
     NULL},
    {"version", OPTION_FLAG, NULL, "the version (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {"man", OPTION_FLAG, NULL, "this text as a page of the manual, in roff", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const manual_page manual = {
    .name = "additive-httpd",
    .section = 8,
    .summary = "the HTTP front end of Additive",
    .usage = "additive-httpd [OPTIONS]",
    .text = "Prints \"listening on URL\" when it does. SIGTERM and SIGINT stop it; SIGHUP is ignored.",
    .rows = rows,
    .see = "additive(1), additive-serve(1), additived(8)"};
typedef struct program {
	server server;
	http *http;
	uv_loop_t loop;
	uv_signal_t term, interrupt;
	uint64_t grace_ms;
} program;

/* --- options ------------------------------------------------------------------------------ */

static const char *text_or(const options *o, const char *name, const char *fallback)
{
	const char *given = options_text(o, name);
	return given ? given : fallback;
}

static const char *listen_address(const options *o)
{
	return text_or(o, "listen", "127.0.0.1:8080");
}

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

/* --- the end -------------------------------------------------------------------------------- */

static void on_drained(void *context)
{
	program *p = context;
	engine_link_close(p->server.engine);
	http_stop(p->http);
	uv_close((uv_handle_t *)&p->term, NULL);
	uv_close((uv_handle_t *)&p->interrupt, NULL);
}

static void on_signal(uv_signal_t *signal, int number)
{
	(void)number;
	program *p = signal->data;
	http_drain(p->http, p->grace_ms, on_drained, p);
}

static void watch_signal(program *p, uv_signal_t *signal, int number)
{
	uv_signal_init(&p->loop, signal);
	signal->data = p;
	uv_signal_start(signal, on_signal, number);
}

/* --- the beginning ---------------------------------------------------------------------------- */

/* Read --allow-host into list->sites, which has room for all options. False if one is malformed. */
static bool read_sites(const options *o, site_list *list)
{
	for (int i = 0; i < o->n_given; i++) {
		const char *name = o->given[i].value;
		if (strcmp(o->given[i].row->name, "allow-host") != 0)
			continue;
		if (!site_parse(&list->sites[list->count++], name)) {
			fprintf(stderr,
			        "additive-httpd: --allow-host %s: expected NAME or NAME:PORT, without a scheme\n",
			        name);
			return false;
		}
	}
	return true;
}

static int run(program *p, const options *o)
{
	server *s = &p->server;
	engine_link_options link = {.address = text_or(o, "engine", "unix:/run/additive/engine.sock"),
	                            .silence_ms = milliseconds(o, "engine-timeout", 30)};
	p->http = http_new(s, listen_address(o));
	if (!p->http)
		return 1;
	if (!http_on_loopback(p->http) && !options_text(o, "api-key-file"))
		fprintf(
		    stderr,
		    "additive-httpd: listening on %s without --api-key-file: every client that reaches it may use it\n",
		    http_address(p->http));
	s->engine = engine_link_new(&p->loop, &link);
	if (!s->engine) {
		fprintf(stderr, "additive-httpd: --engine %s: expected unix:PATH or HOST:PORT\n", link.address);
		http_stop(p->http);
		uv_run(&p->loop, UV_RUN_DEFAULT);
		http_free(p->http);
		return 2;
	}
	watch_signal(p, &p->term, SIGTERM);
	watch_signal(p, &p->interrupt, SIGINT);
	printf("listening on http://%s\n", http_address(p->http));
	fflush(stdout);
	short_slice_take();
	uv_run(&p->loop, UV_RUN_DEFAULT);
	engine_link_free(s->engine);
	http_free(p->http);
	return 0;
}

static void no_thread(void *context)
{
	(void)context;
}

static void no_work(uv_work_t *work)
{
	(void)work;
}

static void note_done(uv_work_t *work, int status)
{
	(void)status;
	*(bool *)work->data = true;
}

/* Create the threads of libuv's pool. libuv ends the process if it cannot, so one thread is tried first. The first work
 * is waited for, since a loop must not be closed while the pool has some. */
static bool start_pool(uv_loop_t *loop)
{
	bool done = false;
	uv_work_t first = {.data = &done};
	uv_thread_t tried;
	int failed = uv_thread_create(&tried, no_thread, NULL);
	if (failed) {
		log_line(LOG_ERROR, "cannot create a thread: %s; raise the limit of processes (ulimit -u, pids.max)",
		         uv_strerror(failed));
		return false;
	}
	uv_thread_join(&tried);
	if (uv_queue_work(loop, &first, no_work, note_done) != 0)
		return false;
	while (!done)
		uv_run(loop, UV_RUN_ONCE);
	return true;
}

static server_limits limits_of(const options *o)
{
	return (server_limits){.connections = connection_limit(options_number(o, "max-connections", 1024)),
	                       .connections_per_address = (unsigned)options_integer(o, "max-connections-per-ip", 256),
	                       .request_ms = milliseconds(o, "request-timeout", 30),
	                       .stall_ms = milliseconds(o, "stall-timeout", 600),
	                       .ping_ms = milliseconds(o, "ping", 15),
	                       .json_bytes = 4 << 20,
	                       .buffered_bytes = 256 << 20,
	                       .upload_bytes = (uint64_t)options_integer(o, "max-upload-bytes", (int64_t)64 << 30)};
}

static int serve(const options *o, const site_list *sites)
{
	const char *key_file = options_text(o, "api-key-file");
	auth *keys = key_file ? auth_load(key_file) : NULL;
	if (key_file && !keys)
		return 1;
	program p = {.grace_ms = milliseconds(o, "grace", 10)};
	p.server = (server){.loop = &p.loop,
	                    .limits = limits_of(o),
	                    .auth = keys,
	                    .sites = *sites,
	                    .metrics = metrics_new(),
	                    .access_log = options_flag(o, "access-log")};
	int status = 1;
	if (p.server.metrics && uv_loop_init(&p.loop) == 0) {
		if (start_pool(&p.loop))
			status = run(&p, o);
		uv_loop_close(&p.loop);
	}
	metrics_free(p.server.metrics);
	auth_free(keys);
	return status;
}

static int start(const options *o)
{
	if (options_flag(o, "help")) {
		manual_help(stdout, &manual);
		return 0;
	}
	if (options_flag(o, "man")) {
		manual_write(stdout, &manual);
		return 0;
	}
	if (options_flag(o, "version"))
		return puts("additive-httpd " ADDITIVE_VERSION) < 0;
	json_memory_install(malloc, free);
	if (options_flag(o, "health-check"))
		return health_check(listen_address(o), options_text(o, "require-backend"));
	if (options_text(o, "require-backend")) {
		fputs("additive-httpd: --require-backend goes with --health-check\n", stderr);
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN); /* nothing is read again, and the end of a terminal session must not end a service */
	json_object_seed(0);     /* before threads make objects */
	setenv("UV_THREADPOOL_SIZE", "1", 0); /* large_body.h */
	site_list sites = {.sites = calloc((size_t)o->n_given + 1, sizeof *sites.sites)};
	int status = !sites.sites ? 1 : read_sites(o, &sites) ? serve(o, &sites) : 2;
	free(sites.sites);
	return status;
}

int main(int argc, char **argv)
{
	options o;
	bool ok = options_parse(&o, argc - 1, argv + 1, NULL, rows) && o.n_arguments == 0;
	if (!ok)
		fprintf(stderr, "additive-httpd: %s%s. additive-httpd --help lists the options\n",
		        o.problem[0] ? o.problem : "unexpected ", o.problem[0] ? "" : o.arguments[0]);
	int status = ok ? start(&o) : o.out_of_memory ? 1 : 2;
	options_free(&o);
	return status;
}
