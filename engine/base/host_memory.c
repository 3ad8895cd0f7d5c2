#include "engine/base/host_memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void read_first_line(const char *path, char *line, int size)
{
	FILE *f = fopen(path, "re");
	if (!f || !fgets(line, size, f))
		line[0] = 0;
	if (f)
		fclose(f);
	line[strcspn(line, "\n")] = 0;
}

/* Return the smaller of `most` and the limit in a file; "max" and a missing file are no limit. */
static double limit_of(const char *path, double most)
{
	char line[32], *end;
	read_first_line(path, line, sizeof line);
	const double limit = strtod(line, &end);
	return end != line && limit > 0 && limit < most ? limit : most;
}

/* Version 2: every group up to the root has a limit. */
static double unified_limit(char *group, double most)
{
	char path[PATH_MAX];
	for (char *slash; (slash = strrchr(group, '/')); *slash = 0) {
		snprintf(path, sizeof path, "/sys/fs/cgroup%.3000s/memory.max", group);
		most = limit_of(path, most);
	}
	return limit_of("/sys/fs/cgroup/memory.max", most);
}

double host_memory_bytes(void)
{
	char line[PATH_MAX];
	const double most = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	read_first_line("/proc/self/cgroup", line, sizeof line);
	if (strncmp(line, "0::/", 4) == 0)
		return unified_limit(line + 3, most);
	return limit_of("/sys/fs/cgroup/memory/memory.limit_in_bytes", most);
}
