/* additive-httpd - the HTTP front end. Options, wiring, signals; the rest is in its own files.
 *
 * Exit status: 0 after SIGTERM or SIGINT, however many streams were open; 1 when it cannot start; 2 for wrong usage. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/json_memory.h"
#include "server/health_check.h"
#include "server/http.h"
#include "server/server.h"

enum { SPARE_DESCRIPTORS = 64, MAX_DESCRIPTORS = 1 << 20 };

static const char usage[] =
    "usage: additive-httpd [OPTIONS]\n"
    "  --listen HOST:PORT            where to listen (127.0.0.1:8080; port 0: any free one, which is printed)\n"
    "  --engine unix:PATH|HOST:PORT  the engine daemon (unix:/run/additive/engine.sock)\n"
    "  --api-key-file FILE           bearer keys, one per line; without it everybody may do everything\n"
    "  --max-connections N           open at once (1024)\n"
    "  --max-connections-per-ip N    of one address (256; 0: no such limit; raise it behind a proxy)\n"
    "  --max-upload-bytes N          of one uploaded body (1073741824)\n"
    "  --request-timeout SECONDS     for a request to arrive; long bodies must keep 4 KiB/s (30)\n"
    "  --stall-timeout SECONDS       for a client to take something of its stream (600)\n"
    "  --ping SECONDS                of silence after which a stream gets a comment line (15)\n"
    "  --engine-timeout SECONDS      of silence after which the engine counts as gone (30)\n"
    "  --grace SECONDS               for running requests after SIGTERM (10)\n"
    "  --access-log                  one line per request on stderr: id, method, route, status, seconds\n"
    "  --health-check                ask the server at --listen for /healthz; exit 0 when it is well\n"
    "  --version, --help\n";

/* The numbers among the options: bounds, and the value when nothing is said. */
enum { CONNECTIONS, PER_IP, UPLOAD_BYTES, REQUEST, STALL, PING, SILENCE, GRACE, N_NUMBERS };
static const struct {
	const char *name;
	double min, max, otherwise;
} numbers[N_NUMBERS] = {
    [CONNECTIONS] = {"max-connections", 1, 1e6, 1024},
    [PER_IP] = {"max-connections-per-ip", 0, 1e6, 256},
    [UPLOAD_BYTES] = {"max-upload-bytes", 1, 1e15, 1 << 30},
    [REQUEST] = {"request-timeout", 0.1, 86400, 30},
    [STALL] = {"stall-timeout", 0.1, 86400, 600},
    [PING] = {"ping", 0.1, 86400, 15},
    [SILENCE] = {"engine-timeout", 0.5, 86400, 30},
    [GRACE] = {"grace", 0, 86400, 10},
};

typedef struct options {
	const char *listen, *engine, *key_file;
	double number[N_NUMBERS];
	bool access_log, health_check;
} options;

typedef struct program {
	server server;
	http *http;
	uv_loop_t loop;
	uv_signal_t term, interrupt;
	uint64_t grace_ms;
} program;

/* --- options ------------------------------------------------------------------------------ */

static bool parse_number(options *o, int which, const char *text)
{
	char *end;
	errno = 0;
	double value = strtod(text, &end);
	if (*text && *end == '\0' && errno == 0 && value >= numbers[which].min && value <= numbers[which].max) {
		o->number[which] = value;
		return true;
	}
	fprintf(stderr, "additive-httpd: --%s %s: expected a number from %g to %.15g\n", numbers[which].name, text,
	        numbers[which].min, numbers[which].max);
	return false;
}

typedef enum parsed { PARSED_RUN, PARSED_ENOUGH, PARSED_WRONG } parsed;

static parsed parse_options(int argc, char **argv, options *o)
{
	enum { LISTEN = N_NUMBERS, ENGINE, KEYS, LOG, HEALTH, VERSION, HELP, N_OPTIONS };
	struct option known[N_OPTIONS + 1] = {[LISTEN] = {"listen", required_argument, NULL, LISTEN},
	                                      [ENGINE] = {"engine", required_argument, NULL, ENGINE},
	                                      [KEYS] = {"api-key-file", required_argument, NULL, KEYS},
	                                      [LOG] = {"access-log", no_argument, NULL, LOG},
	                                      [HEALTH] = {"health-check", no_argument, NULL, HEALTH},
	                                      [VERSION] = {"version", no_argument, NULL, VERSION},
	                                      [HELP] = {"help", no_argument, NULL, HELP}};
	for (int i = 0; i < N_NUMBERS; i++) {
		known[i] = (struct option){numbers[i].name, required_argument, NULL, i};
		o->number[i] = numbers[i].otherwise;
	}
	int which;
	bool ok = true;
	while (ok && (which = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (which == LISTEN)
			o->listen = optarg;
		else if (which == ENGINE)
			o->engine = optarg;
		else if (which == KEYS)
			o->key_file = optarg;
		else if (which == LOG)
			o->access_log = true;
		else if (which == HEALTH)
			o->health_check = true;
		else if (which == VERSION || which == HELP) {
			fputs(which == HELP ? usage : "additive-httpd " ADDITIVE_VERSION "\n", stdout);
			return PARSED_ENOUGH;
		} else
			ok = which < N_NUMBERS && parse_number(o, which, optarg);
	}
	if (ok && optind == argc)
		return PARSED_RUN;
	fputs(usage, stderr);
	return PARSED_WRONG;
}

static uint64_t milliseconds(const options *o, int which)
{
	return (uint64_t)(o->number[which] * 1000);
}

/* As many descriptors as we may have; the connections that fit beside the rest. */
static unsigned connection_limit(double wanted)
{
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return (unsigned)wanted;
	files.rlim_cur = files.rlim_max < MAX_DESCRIPTORS ? files.rlim_max : MAX_DESCRIPTORS;
	setrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_NOFILE, &files);
	double room = (double)files.rlim_cur - SPARE_DESCRIPTORS;
	if (room < 1)
		room = 1;
	if (wanted > room)
		fprintf(stderr, "additive-httpd: %g connections at once: the limit of open files allows no more\n",
		        room);
	return (unsigned)(wanted < room ? wanted : room);
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

static void warn_if_open(const options *o)
{
	bool local = strncmp(o->listen, "127.", 4) == 0 || strncmp(o->listen, "localhost:", 10) == 0 ||
	             strncmp(o->listen, "[::1]:", 6) == 0;
	if (!local && !o->key_file)
		fprintf(stderr,
		        "additive-httpd: listening on %s without --api-key-file: whoever reaches it may use it\n",
		        o->listen);
}

static int run(program *p, const options *o)
{
	server *s = &p->server;
	engine_link_options link = {.address = o->engine, .silence_ms = milliseconds(o, SILENCE)};
	p->http = http_new(s, o->listen);
	if (!p->http)
		return 1;
	s->engine = engine_link_new(&p->loop, &link);
	if (!s->engine) {
		fprintf(stderr, "additive-httpd: --engine %s: expected unix:PATH or HOST:PORT\n", o->engine);
		http_stop(p->http);
		uv_run(&p->loop, UV_RUN_DEFAULT);
		http_free(p->http);
		return 2;
	}
	watch_signal(p, &p->term, SIGTERM);
	watch_signal(p, &p->interrupt, SIGINT);
	printf("listening on http://%s\n", http_address(p->http));
	fflush(stdout);
	uv_run(&p->loop, UV_RUN_DEFAULT);
	engine_link_free(s->engine);
	http_free(p->http);
	return 0;
}

static server_limits limits_of(const options *o)
{
	return (server_limits){.connections = connection_limit(o->number[CONNECTIONS]),
	                       .connections_per_address = (unsigned)o->number[PER_IP],
	                       .request_ms = milliseconds(o, REQUEST),
	                       .stall_ms = milliseconds(o, STALL),
	                       .ping_ms = milliseconds(o, PING),
	                       .json_bytes = 4 << 20,
	                       .buffered_bytes = 256 << 20,
	                       .upload_bytes = (uint64_t)o->number[UPLOAD_BYTES]};
}

int main(int argc, char **argv)
{
	options o = {.listen = "127.0.0.1:8080", .engine = "unix:/run/additive/engine.sock"};
	parsed what = parse_options(argc, argv, &o);
	if (what != PARSED_RUN)
		return what == PARSED_WRONG ? 2 : 0;
	if (o.health_check)
		return health_check(o.listen);
	signal(SIGPIPE, SIG_IGN);
	json_memory_install(malloc, free);
	warn_if_open(&o);
	auth *keys = o.key_file ? auth_load(o.key_file) : NULL;
	if (o.key_file && !keys)
		return 1;
	program p = {.grace_ms = milliseconds(&o, GRACE)};
	p.server = (server){.loop = &p.loop,
	                    .limits = limits_of(&o),
	                    .auth = keys,
	                    .metrics = metrics_new(),
	                    .access_log = o.access_log};
	int status = 1;
	if (p.server.metrics && uv_loop_init(&p.loop) == 0) {
		status = run(&p, &o);
		uv_loop_close(&p.loop);
	}
	metrics_free(p.server.metrics);
	auth_free(keys);
	return status;
}
