/* additive-httpd - the HTTP front end. Options, wiring, signals; the rest is in its own files.
 *
 * Exit status: 0 after SIGTERM or SIGINT, however many streams were open; 1 when it cannot start; 2 for wrong usage. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config/config.h"
#include "proto/json_memory.h"
#include "proto/manual.h"
#include "proto/options.h"
#include "proto/short_slice.h"
#include "server/health_check.h"
#include "server/http.h"
#include "server/log.h"
#include "server/server.h"
#include "server/settings.h"
#include "server/trace.h"

static const option_row rows[] = {
#include "proto/front_options.def"
    {"log-format", OPTION_TEXT, "FORM:text|json", "lines on stderr: text, or one JSON object each (text)", NULL},
    {"engine", OPTION_TEXT, "ADDRESS", "the engine: unix:PATH or HOST:PORT (unix:/run/additive/engine.sock)", NULL},
    {"", OPTION_FLAG, NULL, "Only on the command line:", NULL},
    {"config", OPTION_TEXT, "FILE", "options from [server] of a TOML file, except those given here", NULL},
    {"health-check", OPTION_FLAG, NULL, "ask the server at --listen for /healthz; exit 0 when it is well", NULL},
    {"require-backend", OPTION_TEXT, "NAME", "with --health-check: exit 1 unless the engine computes on it: cpu, cuda",
     NULL},
    {"version", OPTION_FLAG, NULL, "the version (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {"man", OPTION_FLAG, NULL, "this text as a page of the manual, in roff", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const config_section sections[] = {{"engine", NULL}, {"server", rows}, {NULL, NULL}};

static const manual_page manual = {.name = "additive-httpd",
                                   .section = 8,
                                   .summary = "the HTTP front end of Additive",
                                   .usage = "additive-httpd [OPTIONS]",
                                   .text = "Prints \"listening on URL\" when it does. SIGTERM and SIGINT stop it. "
                                           "SIGHUP makes it read its keys, its certificate and its "
                                           "configuration file again.",
                                   .rows = rows,
                                   .see = "additive(1), additive-serve(1), additived(8)"};
typedef struct program {
	server server;
	http *http;
	uv_loop_t loop;
	uv_signal_t term, interrupt, hangup;
	const options *started;
	options reloaded; /* those of the last reload that was applied; zero: there was none */
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

/* --- the end -------------------------------------------------------------------------------- */

static void on_drained(void *context)
{
	program *p = context;
	engine_link_close(p->server.engine);
	if (p->server.trace)
		trace_close(p->server.trace);
	http_stop(p->http);
	uv_close((uv_handle_t *)&p->term, NULL);
	uv_close((uv_handle_t *)&p->interrupt, NULL);
	uv_close((uv_handle_t *)&p->hangup, NULL);
}

static void on_hangup(uv_signal_t *signal, int number)
{
	(void)number;
	program *p = signal->data;
	const char *file = options_text(p->started, "config");
	const options *latest = p->reloaded.given ? &p->reloaded : p->started;
	options next;
	if (!file) {
		settings_reload(&p->server, rows, p->started, p->started, p->started);
		return;
	}
	const bool valid = config_read_again(&next, p->started, file, sections);
	if (!valid)
		log_line(LOG_ERROR, "reload: nothing is changed: %s", next.problem);
	if (valid && settings_reload(&p->server, rows, p->started, latest, &next)) {
		options_free(&p->reloaded);
		p->reloaded = next;
	} else {
		options_free(&next);
	}
}

static void on_signal(uv_signal_t *signal, int number)
{
	(void)number;
	program *p = signal->data;
	http_drain(p->http, p->server.limits.grace_ms, on_drained, p);
}

static void watch_signal(program *p, uv_signal_t *signal, uv_signal_cb take, int number)
{
	uv_signal_init(&p->loop, signal);
	signal->data = p;
	uv_signal_start(signal, take, number);
}

/* --- the beginning ---------------------------------------------------------------------------- */

/* Close what was opened before the server could start. Returns the status. */
static int stop_early(program *p, int status)
{
	if (p->server.trace)
		trace_close(p->server.trace);
	uv_run(&p->loop, UV_RUN_DEFAULT);
	return status;
}

static void on_engine_up(void *context)
{
	server *s = context;
	engine_keys_open(&s->keys, s->engine);
}

static int run(program *p, const options *o)
{
	server *s = &p->server;
	engine_link_options link = {.address = text_or(o, "engine", "unix:/run/additive/engine.sock"),
	                            .silence_ms = (uint64_t)(options_number(o, "engine-timeout", 30) * 1000),
	                            .up = on_engine_up,
	                            .context = s};
	const char *collector = options_text(o, "otlp-endpoint");
	if (collector && !(s->trace = trace_new(&p->loop, s->metrics, collector)))
		return 2;
	p->http = http_new(s, listen_address(o));
	if (!p->http)
		return stop_early(p, 1);
	if (!http_on_loopback(p->http) && !options_text(o, "api-key-file"))
		log_line(LOG_WARN, "listening on %s without --api-key-file: every client that reaches it may use it until the "
		                   "service has a key",
		         http_address(p->http));
	s->engine = engine_link_new(&p->loop, &link);
	if (s->trace)
		trace_follow_jobs(s->trace, s->engine);
	if (!s->engine) {
		fprintf(stderr, "additive-httpd: --engine %s: expected unix:PATH or HOST:PORT\n", link.address);
		http_stop(p->http);
		const int status = stop_early(p, 2);
		http_free(p->http);
		return status;
	}
	watch_signal(p, &p->term, on_signal, SIGTERM);
	watch_signal(p, &p->interrupt, on_signal, SIGINT);
	watch_signal(p, &p->hangup, on_hangup, SIGHUP);
	printf("listening on %s://%s\n", s->tls ? "https" : "http", http_address(p->http));
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

static int serve(const options *o)
{
	program p = {.started = o};
	if (strcmp(text_or(o, "log-format", "text"), "json") == 0)
		log_use_json();
	p.server = (server){.loop = &p.loop, .metrics = metrics_new()};
	const settings_result loaded = p.server.metrics ? settings_load(&p.server, o) : SETTINGS_FAILED;
	int status = loaded == SETTINGS_USAGE ? 2 : 1;
	if (loaded == SETTINGS_OK && uv_loop_init(&p.loop) == 0) {
		if (start_pool(&p.loop))
			status = run(&p, o);
		uv_loop_close(&p.loop);
	}
	trace_free(p.server.trace);
	metrics_free(p.server.metrics);
	settings_free(&p.server);
	options_free(&p.reloaded);
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
	signal(SIGHUP, SIG_IGN); /* until the loop runs; the end of a terminal session must not end a service */
	json_object_seed(0);     /* before threads make objects */
	setenv("UV_THREADPOOL_SIZE", "1", 0); /* large_body.h */
	return serve(o);
}

int main(int argc, char **argv)
{
	options o;
	bool ok = options_parse(&o, argc - 1, argv + 1, NULL, rows) && o.n_arguments == 0;
	const char *file = ok ? options_text(&o, "config") : NULL;
	if (file)
		ok = config_read(&o, file, sections);
	if (!ok)
		fprintf(stderr, "additive-httpd: %s%s. additive-httpd --help lists the options\n",
		        o.problem[0] ? o.problem : "unexpected ", o.problem[0] ? "" : o.arguments[0]);
	int status = ok ? start(&o) : o.out_of_memory ? 1 : 2;
	options_free(&o);
	return status;
}
