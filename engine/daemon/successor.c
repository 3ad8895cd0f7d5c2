/* successor.c - the program is executed by its path. A program that was replaced in the meantime is then the new one,
 * as after any restart, and process lists show its name. If the path no longer exists, /proc/self/exe is executed. */
#include "engine/daemon/successor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"

static const char variable[] = "ADDITIVE_SUCCESSOR";
static const char self[] = "/proc/self/exe";

/* One line of numbers, then one line for each text, which may contain spaces. */
#define WRITTEN "%llu %d %d %d\n%s\n%s\n%s"
#define READ "%llu %d %d %d\n%15[^\n]\n%95[^\n]\n%255[^\n]"

void successor_read(successor *out)
{
	unsigned long long restarts;
	int bf16;
	const char *text = getenv(variable);
	*out = (successor){0};
	device_history *d = &out->device;
	if (!text)
		return;
	if (sscanf(text, READ, &restarts, &d->processes, &d->in_vain, &bf16, d->name, d->description, out->address) ==
	    7) {
		d->restarts = restarts;
		d->bf16 = bf16;
	} else {
		*out = (successor){0};
		log_line(LOG_WARN, "%s cannot be read and is ignored", variable);
	}
	unsetenv(variable);
}

/* Close descriptors on exec, when the other threads have ended; they may be in use until then. */
static void close_on_execution(void)
{
	enum { FIRST = 3, MOST = 1 << 20 };
	if (close_range(FIRST, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
		return;
	const long open_max = sysconf(_SC_OPEN_MAX), most = open_max < 0 || open_max > MOST ? MOST : open_max;
	for (int fd = FIRST; fd < most; fd++) /* before Linux 5.11 */
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void successor_execute(const successor *s, char **argv)
{
	const device_history *d = &s->device;
	char text[sizeof *s + 128], path[PATH_MAX];
	const int n = snprintf(text, sizeof text, WRITTEN, (unsigned long long)d->restarts, d->processes, d->in_vain,
	                       d->bf16, d->name, d->description, s->address);
	const ssize_t length = readlink(self, path, sizeof path - 1);
	path[length > 0 ? length : 0] = 0;
	if (n > 0 && (size_t)n < sizeof text && setenv(variable, text, 1) == 0) {
		fflush(NULL);
		close_on_execution();
		execv(path, argv);
		execv(self, argv);
	}
	log_line(LOG_ERROR, "the engine cannot re-execute itself: %s", strerror(errno));
}
