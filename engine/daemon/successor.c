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

/* Three lines for each device, of which two may contain spaces, then the address. */
#define WRITTEN "%llu %d %d %d\n%s\n%s\n"
#define READ "%llu %d %d %d\n%15[^\n]\n%95[^\n]\n%n"

/* Read one device; return the text after it, or NULL. */
static const char *read_device(const char *text, device_history *d)
{
	unsigned long long restarts;
	int bf16, n = 0;
	if (sscanf(text, READ, &restarts, &d->processes, &d->in_vain, &bf16, d->name, d->description, &n) != 6 || !n)
		return NULL;
	d->restarts = restarts;
	d->bf16 = bf16;
	return text + n;
}

static bool read_text(const char *text, successor *out)
{
	int n;
	while (out->n_devices < FLEET_MAX && sscanf(text, "%*u %d", &n) == 1) {
		text = read_device(text, &out->devices[out->n_devices++]);
		if (!text)
			return false;
	}
	return out->n_devices > 0 && sscanf(text, "%255[^\n]", out->address) == 1;
}

void successor_read(successor *out)
{
	const char *text = getenv(variable);
	*out = (successor){0};
	if (!text)
		return;
	if (!read_text(text, out)) {
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
	char text[sizeof *s + 128], path[PATH_MAX];
	size_t n = 0;
	for (int i = 0; i < s->n_devices && n < sizeof text; i++) {
		const device_history *d = &s->devices[i];
		n += (size_t)snprintf(text + n, sizeof text - n, WRITTEN, (unsigned long long)d->restarts, d->processes,
		                      d->in_vain, d->bf16, d->name, d->description);
	}
	if (n < sizeof text)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s", s->address);
	const ssize_t length = readlink(self, path, sizeof path - 1);
	path[length > 0 ? length : 0] = 0;
	if (n < sizeof text && setenv(variable, text, 1) == 0) {
		fflush(NULL);
		close_on_execution();
		execv(path, argv);
		execv(self, argv);
	}
	log_line(LOG_ERROR, "the engine cannot re-execute itself: %s", strerror(errno));
}
