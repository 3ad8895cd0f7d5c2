/* child.c - see child.h. */
#include "clients/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/cli.h"
#include "proto/exit_status.h"
#include "proto/log_record.h"

enum { FIRST_PAUSE_MS = 100, LONGEST_PAUSE_MS = 5000, KILLED_PERIOD_MS = 1000, NO_DATA_PERIOD_MS = 2000 };

static bool child_logs_json; /* set at start, only read afterwards */

void child_log_json(void)
{
	child_logs_json = true;
}

int64_t child_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void child_log(const char *format, ...)
{
	char message[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	log_record_write(&(log_record){.level = "warn", .program = "additive", .message = message}, child_logs_json);
}

bool child_argument(child *c, char *argument)
{
	bool ok = argument && c->n_arguments < CHILD_MAX_ARGUMENTS;

	if (ok)
		c->arguments[c->n_arguments++] = argument;
	else
		free(argument);
	return ok;
}

void child_fini(child *c)
{
	for (int i = 0; i < c->n_arguments; i++)
		free(c->arguments[i]);
	c->n_arguments = 0;
	text_free(&c->line);
}

bool child_find(const char *name, char *path)
{
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

	if (n < 0)
		return false;
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	size_t room = slash ? (size_t)(path + PATH_MAX - (slash + 1)) : 0;
	if (strlen(name) >= room)
		return false;
	strcpy(slash + 1, name);
	return true;
}

/* In the new process; never returns. */
static void become(const child *c, char *path, pid_t parent, int output)
{
	char *argv[CHILD_MAX_ARGUMENTS + 2] = {path};
	sigset_t none;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int i = 0; i < c->n_arguments; i++)
		argv[i + 1] = c->arguments[i];
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGHUP, SIG_IGN); /* until the program handles it */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
	dup2(null, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	execv(path, argv);
	fprintf(stderr, "additive: cannot start %s: %s\n", path, strerror(errno));
	_exit(127);
}

bool child_start(child *c)
{
	char path[PATH_MAX];
	int ends[2] = {-1, -1};
	pid_t parent = getpid();

	c->restart_ms = 0;
	if (!child_find(c->name, path)) {
		cli_fail("cannot find %s beside this program", c->name);
		return false;
	}
	if (pipe2(ends, O_CLOEXEC) != 0) {
		cli_fail("cannot make a pipe: %s", strerror(errno));
		return false;
	}
	c->pid = fork();
	if (c->pid == 0)
		become(c, path, parent, ends[1]);
	close(ends[1]);
	text_clear(&c->line);
	c->output = ends[0];
	c->started_ms = child_now();
	if (c->pid > 0)
		return true;
	cli_fail("cannot start %s: %s", c->name, strerror(errno));
	c->pid = 0;
	close(c->output);
	c->output = -1;
	return false;
}

static void forget(child *c)
{
	if (c->output >= 0)
		close(c->output);
	c->output = -1;
	c->pid = 0;
}

bool child_died(child *c, int wait_status)
{
	int64_t now = child_now(), lived = now - c->started_ms, pause = FIRST_PAUSE_MS;
	bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;

	forget(c);
	if (WIFSIGNALED(wait_status))
		child_log("%s was killed by signal %d", c->name, WTERMSIG(wait_status));
	else
		child_log("%s ended with status %d", c->name, WEXITSTATUS(wait_status));
	if (killed) {
		c->restart_ms = now + (lived < KILLED_PERIOD_MS - pause ? KILLED_PERIOD_MS - lived : pause);
		return true;
	}
	if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == EXIT_NO_DATA) {
		c->restart_ms = now + NO_DATA_PERIOD_MS;
		return true;
	}
	if (lived >= CHILD_STEADY_MS)
		c->failures = 0;
	for (int i = 0; i < c->failures && pause < LONGEST_PAUSE_MS; i++)
		pause *= 2;
	pause = pause < LONGEST_PAUSE_MS ? pause : LONGEST_PAUSE_MS;
	if (++c->failures >= CHILD_MAX_FAILURES)
		return false;
	c->restart_ms = now + pause;
	return true;
}

/* True if it has ended. */
static bool reap(child *c)
{
	if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) == c->pid)
		forget(c);
	return c->pid == 0;
}

/* A signal to stop came, while stopping? */
static bool stop_is_repeated(int hurry)
{
	struct signalfd_siginfo info;
	bool stopping = false;

	while (read(hurry, &info, sizeof(info)) == (ssize_t)sizeof(info))
		stopping = stopping || info.ssi_signo != SIGCHLD;
	return stopping;
}

bool child_stop(child *c, int ms, int hurry)
{
	int64_t deadline = child_now() + ms;
	struct pollfd wait = {.fd = hurry, .events = POLLIN};

	c->restart_ms = 0;
	if (c->pid > 0)
		kill(c->pid, SIGTERM);
	while (!reap(c)) {
		int64_t left = deadline - child_now();

		if (left <= 0 || stop_is_repeated(hurry)) {
			child_log("%s does not stop and is killed", c->name);
			kill(c->pid, SIGKILL);
			waitpid(c->pid, NULL, 0);
			forget(c);
			return false;
		}
		poll(&wait, 1, left < 100 ? (int)left : 100);
	}
	return true;
}
