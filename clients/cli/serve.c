/* serve.c - the engine and the front end together, in the foreground.
 *
 * One loop waits for signals, for output of both programs, and for the time of the next restart. The front end starts
 * once the engine has printed "ready". Otherwise an engine that fails to lock the data folder could leave a front end
 * connected to the socket of another engine. Until the service has been ready once, a death is an error of the setup
 * and ends everything; later, dead programs are restarted. At the end the front end stops first, so that requests can
 * end while the engine runs. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clients/cli/child.h"
#include "clients/cli/cli.h"
#include "proto/config/config.h"

enum { PROBE_MS = 50, STOP_MS = 20000, AFTER_GRACE_MS = 10000 };

static const option_row engine_rows[] = {
#include "proto/engine_options.def"
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row front_rows[] = {
#include "proto/front_options.def"
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const config_section sections[] = {{"engine", engine_rows}, {"server", front_rows}, {NULL, NULL}};

static const option_row serve_options[] = {
    {"", OPTION_FLAG, NULL, "The engine:", NULL},
#include "proto/engine_options.def"
    {"", OPTION_FLAG, NULL, "The HTTP front end:", NULL},
#include "proto/front_options.def"
    {"", OPTION_FLAG, NULL, "A configuration file:", NULL},
    {"config", OPTION_TEXT, "FILE",
     "options from [engine] and [server] of a TOML file, except those given "
     "here",
     NULL},
    {"print-config", OPTION_FLAG, NULL, "write such a file with the options given and the defaults", NULL},
    {"", OPTION_FLAG, NULL, "Every command:", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

typedef struct service {
	child engine, front;
	int signals; /* signalfd of SIGINT, SIGTERM, SIGHUP and SIGCHLD */
	const options *options;
	int front_stop_ms;
	const char *data; /* folder; NULL: its identity is an option of the engine already */
	char url[256];
	bool engine_ready; /* once */
	bool ready, stopping, broken;
} service;

/* --- the beginning ---------------------------------------------------------------------- */

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

/* "NAME=VALUE" as an argument of a child. False: out of memory. */
static bool serve_add(child *c, const char *name, const char *value)
{
	const option_row row = {.name = name, .type = OPTION_TEXT};

	return child_argument(c, options_write(&(option_given){.row = &row, .value = value}));
}

/* Time limit for the end of the front end, in milliseconds. */
static int front_stop_ms(const options *o)
{
	const int ms = (int)(options_number(o, "grace", 0) * 1000) + AFTER_GRACE_MS;

	return ms < STOP_MS ? STOP_MS : ms;
}

/* Each option goes to the program that takes it. The front end reads the file itself, also on SIGHUP. The engine does
 * not, so that it can be restarted whatever the file holds then. */
static bool arrange(service *s, const options *o, const char *socket)
{
	const char *log_format = options_text(o, "log-format");
	bool ok;

	s->engine = (child){.name = "additived", .output = -1};
	s->front = (child){.name = "additive-httpd", .output = -1};
	s->front_stop_ms = front_stop_ms(o);
	if (log_format && strcmp(log_format, "json") == 0)
		child_log_json();
	ok = serve_add(&s->engine, "socket", socket) && serve_add(&s->front, "engine", socket) &&
	     (!log_format || serve_add(&s->front, "log-format", log_format));
	for (int i = 0; i < o->n_given && ok; i++) {
		const option_row *row = o->given[i].row;

		if (options_find(engine_rows, row->name))
			ok = child_argument(&s->engine, options_write(&o->given[i]));
		else if (!o->given[i].owned &&
		         (options_find(front_rows, row->name) || strcmp(row->name, "config") == 0))
			ok = child_argument(&s->front, options_write(&o->given[i]));
	}
	return ok;
}

/* --- the middle ---------------------------------------------------------------------------- */

/* The engine has opened its data folder. A restarted engine opens this folder only: a vanished one must not be replaced
 * by an empty one or by another. */
static bool require_data(service *s)
{
	char path[PATH_MAX], identity[128] = "";
	FILE *f = NULL;

	if (!s->data)
		return true;
	if ((size_t)snprintf(path, sizeof(path), "%s/identity", s->data) < sizeof(path))
		f = fopen(path, "re");
	if (!f || !fgets(identity, sizeof(identity), f))
		cli_fail("cannot read %s: %s", path, strerror(errno));
	if (f)
		fclose(f);
	identity[strcspn(identity, "\n")] = '\0';
	return identity[0] && serve_add(&s->engine, "data-identity", identity);
}

/* "ready ADDRESS": now there is an engine to connect to. */
static void take_engine_line(service *s, const char *line)
{
	if (s->engine_ready || strncmp(line, "ready ", 6) != 0)
		return;
	s->engine_ready = true;
	if (!require_data(s) || !child_start(&s->front))
		s->broken = s->stopping = true;
}

/* "listening on http://HOST:PORT", or https: remember it, also for a restart on the same port. */
static void take_front_line(service *s, const char *line)
{
	static const char begin[] = "listening on ";
	const char *address = strstr(line, "://");

	if (strncmp(line, begin, sizeof(begin) - 1) != 0 || !address) {
		fprintf(stderr, "%s\n", line);
		return;
	}
	if (!s->url[0] && !serve_add(&s->front, "listen", address + 3))
		s->broken = s->stopping = true;
	snprintf(s->url, sizeof(s->url), "%.200s", line + sizeof(begin) - 1);
}

static void read_output(service *s, child *c, void (*take)(service *s, const char *line))
{
	char bytes[512];
	ssize_t n = read(c->output, bytes, sizeof(bytes));

	if (n <= 0) { /* the child is ending */
		close(c->output);
		c->output = -1;
		return;
	}
	for (ssize_t i = 0; i < n; i++) {
		if (bytes[i] != '\n') {
			text_append(&c->line, &bytes[i], 1);
			continue;
		}
		take(s, text_get(&c->line));
		text_clear(&c->line);
	}
}

static void probe(service *s)
{
	http *h = http_new(s->url, NULL);

	if (h)
		http_trust_any(h);
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
			child_log("%s keeps dying", both[i]->name);
		s->broken = s->stopping = true;
	}
}

static void start_due(service *s)
{
	child *const both[] = {&s->engine, &s->front};

	for (int i = 0; i < 2; i++) {
		if (both[i]->restart_ms == 0 || both[i]->restart_ms > child_now())
			continue;
		child_log("starting %s again", both[i]->name);
		if (!child_start(both[i]))
			s->broken = s->stopping = true;
	}
}

/* The front end applies what can change while it runs. */
static void reload(service *s)
{
	const char *file = options_text(s->options, "config");
	options next = {0};
	const bool ok = !file || config_read_again(&next, s->options, file, sections);

	if (!ok)
		child_log("reload: nothing is changed: %s", next.problem);
	for (const option_row *row = engine_rows; ok && file && row->name; row++)
		if (options_differ(s->options, &next, row->name))
			child_log("reload: --%s has changed and needs a restart", row->name);
	/* The front end may still refuse the file and keep its longer grace, so the limit only grows. */
	if (ok && file && front_stop_ms(&next) > s->front_stop_ms)
		s->front_stop_ms = front_stop_ms(&next);
	if (ok && s->front.pid && s->url[0])
		kill(s->front.pid, SIGHUP);
	options_free(&next);
}

static void take_signals(service *s)
{
	struct signalfd_siginfo info;

	while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		s->stopping = s->stopping || info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM;
		if (info.ssi_signo == SIGHUP)
			reload(s);
	}
	if (!s->stopping)
		bury(s);
}

static void run(service *s)
{
	while (!s->stopping) {
		struct pollfd wait[3] = {{.fd = s->signals, .events = POLLIN},
		                         {.fd = s->engine.output, .events = POLLIN},
		                         {.fd = s->front.output, .events = POLLIN}};
		bool waiting = s->engine.restart_ms || s->front.restart_ms || (!s->ready && s->url[0]);

		poll(wait, 3, waiting ? PROBE_MS : -1);
		if (wait[0].revents)
			take_signals(s);
		if (s->engine.output >= 0 && wait[1].revents)
			read_output(s, &s->engine, take_engine_line);
		if (s->front.output >= 0 && wait[2].revents)
			read_output(s, &s->front, take_front_line);
		if (!s->stopping && !s->ready && s->url[0])
			probe(s);
		if (!s->stopping)
			start_due(s);
	}
}

/* --- the end ---------------------------------------------------------------------------------- */

static int serve(service *s)
{
	if (child_start(&s->engine))
		run(s);
	else
		s->broken = true;
	bool gentle = child_stop(&s->front, s->front_stop_ms, s->signals);
	gentle = child_stop(&s->engine, STOP_MS, s->signals) && gentle;
	return gentle && !s->broken ? CLI_OK : CLI_FAILED;
}

static int serve_run(cli *c)
{
	const char *file = options_text(&c->options, "config");
	char address[sizeof("unix:") + sizeof(((struct sockaddr_un *)0)->sun_path)];
	int status;

	if (file && !config_read(&c->options, file, sections))
		return c->options.out_of_memory ? cli_fail("%s", c->options.problem)
		                                : cli_usage("%s", c->options.problem);
	if (options_flag(&c->options, "print-config")) {
		config_write(stdout, &c->options, sections);
		return CLI_OK;
	}
	const char *data = options_text(&c->options, "data");
	const bool identified = options_text(&c->options, "data-identity") != NULL;
	service s = {.signals = -1, .options = &c->options, .data = identified ? NULL : data};
	if (!data)
		return cli_usage("say where everything is to be kept: --data DIR");
	int n = snprintf(address, sizeof(address), "unix:%s/engine.sock", data);
	if (n >= (int)sizeof(address) - 1)
		return cli_fail("the path %s is too long to hold a socket", data);
	if (!identified && !options_flag(&c->options, "data-must-exist") && !cli_make_folder(data))
		return cli_fail("cannot make the folder %s: %s", data, strerror(errno));
	if (!arrange(&s, &c->options, address))
		status = cli_fail("out of memory");
	else if ((s.signals = open_signals()) < 0)
		status = cli_fail("cannot wait for signals: %s", strerror(errno));
	else
		status = serve(&s);
	child_fini(&s.engine);
	child_fini(&s.front);
	if (s.signals >= 0)
		close(s.signals);
	return status;
}

const command serve_commands[] = {{"serve", "--data DIR", 0, 0, "run the service: the engine and the HTTP front end",
                                   "Prints \"ready URL\" once requests are served. SIGINT or SIGTERM stop it: running "
                                   "requests may end, a training job keeps a\n"
                                   "checkpoint and goes on at the next start. A second signal does not wait. SIGHUP "
                                   "reads the configuration file, keys and the "
                                   "certificate again.",
                                   serve_options, serve_run},
                                  {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
