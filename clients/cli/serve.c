/* serve.c - the engine and the front end together, in the foreground.
 *
 * One loop waits for signals, for the front end's first line (which says where it listens) and for the time
 * to start something again. Until both have been ready once, a death is an error of the setup and ends all; after that
 * the dead are restarted. To stop, the front end goes first, so that requests can end while there is an engine. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clients/cli/child.h"
#include "clients/cli/cli.h"

enum { PROBE_MS = 50, FRONT_STOP_MS = 20000, ENGINE_STOP_MS = 20000 };

static const option_row serve_options[] = {
    {"data", OPTION_TEXT, "DIR", "where everything is kept (required)", NULL},
    {"listen", OPTION_TEXT, "HOST:PORT", "where to listen (127.0.0.1:8080); port 0 takes any free one", NULL},
    {"backend", OPTION_TEXT, "NAME", "auto, cpu or cuda (auto)", NULL},
    {"device", OPTION_INTEGER, "N", "which CUDA device (0)", NULL},
    {"threads", OPTION_INTEGER, "N", "CPU threads (all cores)", NULL},
    {"max-sessions", OPTION_INTEGER, "N", "sessions on the device at once (256)", NULL},
    {"max-known-sessions", OPTION_INTEGER, "N", "sessions on the device and stored (65536)", NULL},
    {"max-generations", OPTION_INTEGER, "N", "generations running and waiting (256)", NULL},
    {"max-batch", OPTION_INTEGER, "N", "sequences in one decode step (32, on a GPU 256)", NULL},
    {"data-budget", OPTION_INTEGER, "MIB", "refuse what would make the data larger (no limit)", NULL},
    {"retain-days", OPTION_INTEGER, "N", "remove checkpoints of ended jobs when so old (never)", NULL},
    {"retain-bytes", OPTION_INTEGER, "N", "keep so many bytes of them, the newest (all)", NULL},
    {"api-key-file", OPTION_TEXT, "FILE", "bearer keys, one per line; without it everybody may do everything", NULL},
    {"access-log", OPTION_FLAG, NULL, "a line on stderr for every request", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

typedef struct service {
	child engine, front;
	int signals; /* signalfd of SIGINT, SIGTERM and SIGCHLD */
	text line;   /* of the front end's output, as far as it has come */
	char url[256], listen[256];
	bool ready, stopping, broken;
} service;

/* --- the beginning ---------------------------------------------------------------------- */

static bool make_folder(const char *path)
{
	char part[PATH_MAX];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(part))
		return false;
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (mkdir(part, 0700) != 0 && errno != EEXIST)
			return false;
	}
	return true;
}

static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void arrange(service *s, const options *o, const char *socket)
{
	s->engine = (child){.name = "additived", .output = -1};
	child_option(&s->engine, "--data", options_text(o, "data"));
	child_option(&s->engine, "--socket", socket);
	child_option(&s->engine, "--backend", options_text(o, "backend"));
	child_option(&s->engine, "--device", options_text(o, "device"));
	child_option(&s->engine, "--threads", options_text(o, "threads"));
	child_option(&s->engine, "--max-sessions", options_text(o, "max-sessions"));
	child_option(&s->engine, "--max-known-sessions", options_text(o, "max-known-sessions"));
	child_option(&s->engine, "--max-generations", options_text(o, "max-generations"));
	child_option(&s->engine, "--max-batch", options_text(o, "max-batch"));
	child_option(&s->engine, "--data-budget", options_text(o, "data-budget"));
	child_option(&s->engine, "--retain-days", options_text(o, "retain-days"));
	child_option(&s->engine, "--retain-bytes", options_text(o, "retain-bytes"));
	s->front = (child){.name = "additive-httpd", .output = -1, .listen_to = true};
	child_option(&s->front, "--listen", s->listen);
	child_option(&s->front, "--engine", socket);
	child_option(&s->front, "--api-key-file", options_text(o, "api-key-file"));
	if (options_flag(o, "access-log"))
		s->front.arguments[s->front.n_arguments++] = "--access-log";
}

/* --- the middle ---------------------------------------------------------------------------- */

/* "listening on http://HOST:PORT": remember it, also for a restart on the same port. */
static void take_line(service *s, const char *line)
{
	static const char begin[] = "listening on http://";

	if (strncmp(line, begin, sizeof(begin) - 1) == 0) {
		snprintf(s->listen, sizeof(s->listen), "%s", line + sizeof(begin) - 1);
		snprintf(s->url, sizeof(s->url), "http://%.200s", s->listen);
	} else {
		fprintf(stderr, "%s\n", line);
	}
}

static void read_front(service *s)
{
	char bytes[512];
	ssize_t n = read(s->front.output, bytes, sizeof(bytes));

	if (n <= 0) { /* it is about to die */
		close(s->front.output);
		s->front.output = -1;
		return;
	}
	for (ssize_t i = 0; i < n; i++) {
		if (bytes[i] != '\n') {
			text_append(&s->line, &bytes[i], 1);
			continue;
		}
		take_line(s, text_get(&s->line));
		text_clear(&s->line);
	}
}

static void probe(service *s)
{
	http *h = http_new(s->url, NULL);
	json_t *answer = h ? http_json(h, "GET", "/readyz", NULL) : NULL;

	if (answer) {
		s->ready = true;
		printf("ready %s\n", s->url);
		fflush(stdout);
	}
	json_decref(answer);
	http_free(h);
}

static void bury(service *s)
{
	child *const both[] = {&s->engine, &s->front};

	for (int i = 0; i < 2; i++) {
		int wait_status;

		if (both[i]->pid == 0 || waitpid(both[i]->pid, &wait_status, WNOHANG) != both[i]->pid)
			continue;
		bool again = child_died(both[i], wait_status);
		if (s->ready && again)
			continue;
		if (s->ready)
			cli_fail("%s keeps dying", both[i]->name);
		s->broken = s->stopping = true;
	}
}

static void read_signals(service *s)
{
	struct signalfd_siginfo info;

	while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
		s->stopping = s->stopping || info.ssi_signo != SIGCHLD;
	if (!s->stopping)
		bury(s);
}

static void start_due(service *s)
{
	child *const both[] = {&s->engine, &s->front};

	for (int i = 0; i < 2; i++) {
		if (both[i]->restart_ms == 0 || both[i]->restart_ms > child_now())
			continue;
		fprintf(stderr, "additive: starting %s again\n", both[i]->name);
		if (!child_start(both[i]))
			s->broken = s->stopping = true;
	}
}

static void run(service *s)
{
	while (!s->stopping) {
		struct pollfd wait[2] = {{.fd = s->signals, .events = POLLIN},
		                         {.fd = s->front.output, .events = POLLIN}};
		bool waiting = s->engine.restart_ms || s->front.restart_ms || (!s->ready && s->url[0]);

		poll(wait, 2, waiting ? PROBE_MS : -1);
		if (wait[0].revents)
			read_signals(s);
		if (s->front.output >= 0 && wait[1].revents)
			read_front(s);
		if (!s->stopping && !s->ready && s->url[0])
			probe(s);
		if (!s->stopping)
			start_due(s);
	}
}

/* --- the end ---------------------------------------------------------------------------------- */

static int serve(service *s)
{
	if (child_start(&s->engine) && child_start(&s->front))
		run(s);
	else
		s->broken = true;
	bool gentle = child_stop(&s->front, FRONT_STOP_MS, s->signals);
	gentle = child_stop(&s->engine, ENGINE_STOP_MS, s->signals) && gentle;
	text_free(&s->line);
	close(s->signals);
	return gentle && !s->broken ? CLI_OK : CLI_FAILED;
}

static int serve_run(cli *c)
{
	const char *data = options_text(&c->options, "data"), *listen = options_text(&c->options, "listen");
	char address[sizeof("unix:") + sizeof(((struct sockaddr_un *)0)->sun_path)];
	service s = {0};

	if (!data)
		return cli_usage("say where everything is to be kept: --data DIR");
	int n = snprintf(address, sizeof(address), "unix:%s/engine.sock", data);
	if (n >= (int)sizeof(address) - 1)
		return cli_fail("the path %s is too long to hold a socket", data);
	if (!make_folder(data))
		return cli_fail("cannot make the folder %s: %s", data, strerror(errno));
	snprintf(s.listen, sizeof(s.listen), "%s", listen ? listen : "127.0.0.1:8080");
	arrange(&s, &c->options, address);
	s.signals = open_signals();
	if (s.signals < 0)
		return cli_fail("cannot wait for signals: %s", strerror(errno));
	return serve(&s);
}

const command serve_commands[] = {{"serve", "--data DIR", 0, 0, "run the service: the engine and the HTTP front end",
                                   "Prints \"ready URL\" once requests are served. SIGINT or SIGTERM stop it: running "
                                   "requests may end, a training job keeps a\n"
                                   "checkpoint and goes on at the next start. A second signal does not wait.",
                                   serve_options, serve_run},
                                  {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
