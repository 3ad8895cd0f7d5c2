#include "engine/cpu/threads.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

void threads_sleep_when_idle(char **argv)
{
	char self[PATH_MAX]; /* by its own name, so that process lists show it */
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (getenv("OMP_WAIT_POLICY") || n <= 0)
		return;
	self[n] = 0;
	if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0 && setenv("GOMP_SPINCOUNT", THREADS_SPIN_COUNT, 0) == 0)
		execv(self, argv);
}
